"""A bidirectional encoder of text, hosting any encoding, with the heads that such models are trained by."""

from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Float, Int32

from posjax.encoding import Array, Encoding, Site
from posjax.models.block import activation
from posjax.models.layers import Linear, Norm
from posjax.models.transformer import BlockModel, one_token, tied_logits


class Encoder(BlockModel):
    """Tokens [B, T] at `site` (leaves [B, T, ...], or [T, ...] for all alike) to logits [B, T, V] of each token, in float32.

        model = Encoder(vocab_size=256, encoding="learned", length=512, placement="post", norm_epsilon=1e-12)
        logits = model.apply(model.init(key, tokens, site), tokens, site, types)

    Every token sees all tokens of its document. `placement="post"` with `embedding_norm` is BERT (Devlin et al. 2018, arXiv
    1810.04805), "pre" with first_norm=False ModernBERT (Warner et al. 2024, arXiv 2412.13663). Other fields are those of
    `BlockConfig` and `BlockModel`. Behind the last block there is a norm, save where the placement is "post".

    Args:
      length: the number of positions that a table must hold.
      num_types: how many types of tokens (first or second sentence) have an embedding; 0 for none.
      embedding_norm, first_norm: see `Transformer`.
      embedding_scale: factor of token embeddings.
      head: the activation of the masked-LM head, which is decoder(norm(activation(dense(x)))); None for a model without it,
        whose output are its features.
      head_dense_bias, head_bias: whether the head's dense layer and its decoder have a bias.
      tied_embedding: whether the decoder is the token embedding.
      pooler: whether there is the layer that reads the first token, see `pooled`.
      num_pair_classes: outputs of the head that reads `pooled`, as BERT's for sentences that follow; 0 for none.

    Raises:
      ValueError: as `BlockConfig`; for an unknown activation, or classes of pairs without the pooler.
    """

    reads: ClassVar[str] = "masked text"
    vocab_size: int
    encoding: str | Encoding | tuple[str | Encoding, ...] = "rope"
    length: int | None = None
    num_types: int = 0
    embedding_norm: bool = True
    first_norm: bool = True
    embedding_scale: float = 1.0
    head: str | None = "gelu_exact"
    head_dense_bias: bool = True
    head_bias: bool = True
    tied_embedding: bool = True
    pooler: bool = False
    num_pair_classes: int = 0

    def example(self) -> tuple[Int32[Array, "1 1"], Site]:
        """Arguments of `init`."""
        return one_token()

    def setup(self):
        types, init = self.block.types, nn.initializers.normal(0.02)
        if self.num_pair_classes and not self.pooler:
            raise ValueError(f"num_pair_classes={self.num_pair_classes} reads what the pooler makes: pooler=True")
        self.token_embedding = nn.Embed(self.vocab_size, self.block.width, embedding_init=init, **types)
        if self.num_types:
            self.type_embedding = nn.Embed(self.num_types, self.block.width, embedding_init=init, **types)
        norms = dict(embedding_norm=self.embedding_norm, first_norm=self.first_norm)
        behind = self.block.placement != "post"
        self.trunk = self.transformer(self.encoding, length=self.length, final_norm=behind, **norms)
        if self.head is not None:
            self.head_dense = Linear((self.block.width,), use_bias=self.head_dense_bias, **types)
            self.head_norm = Norm(self.block)
            if self.head_bias:
                self.decoder_bias = self.param(
                    "decoder_bias", nn.initializers.zeros, (self.vocab_size,), self.block.param_dtype
                )
            if not self.tied_embedding:
                self.decoder = nn.Dense(
                    self.vocab_size, use_bias=False, dtype=jnp.float32, param_dtype=self.block.param_dtype
                )
        if self.pooler:
            self.pool = Linear((self.block.width,), **types)
        if self.num_pair_classes:
            self.pairs = nn.Dense(self.num_pair_classes, dtype=jnp.float32, param_dtype=self.block.param_dtype)

    def __call__(
        self,
        tokens: Int32[Array, "B T"],
        site: Site,
        types: Int32[Array, "B T"] | None = None,
        *,
        train: bool = False,
    ) -> Float[jax.Array, "B T V"]:
        """The logits of every token, or the features of a model without a head; `types` are 0 where None."""
        x = self.features(tokens, site, types, train=train)
        if self.is_initializing() and self.pooler:
            self._pair_logits(x)
        return x if self.head is None else self.logits(x)

    def features(
        self,
        tokens: Int32[Array, "B T"],
        site: Site,
        types: Int32[Array, "B T"] | None = None,
        *,
        train: bool = False,
    ) -> Float[jax.Array, "B T M"]:
        """The output of the transformer.

        Raises:
          ValueError: for types in a model that has none.
        """
        if types is not None and not self.num_types:
            raise ValueError("this model has no types of tokens (num_types=0): leave types out")
        x = self.token_embedding(tokens) * self.embedding_scale
        if self.num_types:
            x = x + self.type_embedding(jnp.zeros_like(tokens) if types is None else types)
        return self.trunk(x, site, train=train)[0]

    def logits(self, x: Float[jax.Array, "B T M"]) -> Float[jax.Array, "B T V"]:
        """The masked-LM head on features."""
        x = self.head_norm(activation(self.head)(self.head_dense(x)))
        y = tied_logits(self.token_embedding, x) if self.tied_embedding else self.decoder(x)
        return y + self.decoder_bias.astype(jnp.float32) if self.head_bias else y

    def pooled(
        self, tokens: Int32[Array, "B T"], site: Site, types: Int32[Array, "B T"] | None = None
    ) -> Float[jax.Array, "B M"]:
        """tanh(dense(features of the first token)), as BERT's pooler; rows begin with that token."""
        return self._pooled(self.features(tokens, site, types))

    def pair_logits(
        self, tokens: Int32[Array, "B T"], site: Site, types: Int32[Array, "B T"] | None = None
    ) -> Float[jax.Array, "B C"]:
        """Logits of the head that reads `pooled`."""
        return self.pairs(self.pooled(tokens, site, types))

    def _pooled(self, x):
        return jnp.tanh(self.pool(x[:, 0]))

    def _pair_logits(self, x):
        """Makes the parameters of these heads."""
        pooled = self._pooled(x)
        return self.pairs(pooled) if self.num_pair_classes else pooled
