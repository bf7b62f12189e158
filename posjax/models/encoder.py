"""A bidirectional encoder of text with any encoding, and the heads of its training."""

from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Float, Int32

from posjax.encoding import Array, Encoding, Site
from posjax.models.block import activation
from posjax.models.layers import Linear, Norm
from posjax.models.transformer import BlockModel, TokenHead, embedded, tied_logits


class Encoder(BlockModel):
    """A bidirectional transformer: tokens [B, T] at `site` (leaves [B, T, ...] or [T, ...]) to logits [B, T, V], float32.

    Every token sees all tokens of its document. Of tokens [B, T, P] the embeddings of a place are added up. Placement "post"
    with `embedding_norm` is BERT (Devlin et al. 2018, arXiv 1810.04805), "pre" with first_norm=False ModernBERT (Warner et
    al. 2024, arXiv 2412.13663). Unless the placement is "post", there is a norm behind the last block.

    Args:
      vocab_size: V.
      encoding: one encoding or a pattern over the layers.
      length: positions that a table must hold.
      num_types: the number of token types (first or second sentence) with an embedding; 0: no types.
      embedding_norm, first_norm: see `Transformer`.
      embedding_scale: factor of token embeddings.
      head: activation of the masked-LM head, decoder(norm(activation(dense(x)))); None: no head, the model returns features.
      head_dense_bias, head_bias: whether the head's dense layer and its decoder have a bias.
      tied_embedding: whether the token embedding is the decoder.
      pooler: whether the model has the layer of `pooled`.
      num_pair_classes: outputs of the head on `pooled`, as BERT's for sentences that follow each other; 0: no such head.

    Raises (on call):
      ValueError: for an unknown activation, or classes of pairs without the pooler.

    >>> import posjax as pj
    >>> from posjax.models import BlockConfig
    >>> block = BlockConfig(width=16, num_heads=2, placement="post", norm_epsilon=1e-12)
    >>> model = Encoder(vocab_size=256, encoding="learned", length=8, block=block, depth=1)
    >>> tokens, site = jnp.zeros((3, 8), jnp.int32), pj.packed([5, 3])
    >>> jax.eval_shape(model.init_with_output, jax.random.key(0), tokens, site)[0].shape
    (3, 8, 256)
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

    def setup(self):
        types, init = self.block.types, nn.initializers.normal(0.02)
        if self.num_pair_classes and not self.pooler:
            raise ValueError(f"num_pair_classes={self.num_pair_classes} reads what the pooler makes: pooler=True")
        self.token_embedding = nn.Embed(self.vocab_size, self.block.width, embedding_init=init, **types)
        if self.num_types:
            self.type_embedding = nn.Embed(self.num_types, self.block.width, embedding_init=init, **types)
        norms = dict(embedding_norm=self.embedding_norm, first_norm=self.first_norm)
        norms |= dict(final_norm=self.block.placement != "post")
        self.trunk = self.transformer(self.encoding, length=self.length, **norms)
        if self.head is not None:
            self.head_dense = Linear((self.block.width,), use_bias=self.head_dense_bias, **types)
            self.head_norm = Norm(self.block)
            if self.head_bias:
                zeros = nn.initializers.zeros
                self.decoder_bias = self.param("decoder_bias", zeros, (self.vocab_size,), self.block.param_dtype)
            if not self.tied_embedding:
                self.decoder = TokenHead(self.vocab_size, param_dtype=self.block.param_dtype)
        if self.pooler:
            self.pool = Linear((self.block.width,), **types)
        if self.num_pair_classes:
            self.pairs = self.float32_head(self.num_pair_classes)

    def __call__(
        self,
        tokens: Int32[Array, "B T *P"],
        site: Site,
        types: Int32[Array, "B T"] | None = None,
        *,
        train: bool = False,
    ) -> Float[jax.Array, "B T V"]:
        """Returns the logits of every token, or the features of a model without a head; `types` None: all 0."""
        x = self.features(tokens, site, types, train=train)
        if self.is_initializing() and self.pooler:  # makes the parameters of these heads
            pooled = self._pooled(x)
            if self.num_pair_classes:
                self.pairs(pooled)
        return x if self.head is None else self.logits(x)

    def features(
        self,
        tokens: Int32[Array, "B T *P"],
        site: Site,
        types: Int32[Array, "B T"] | None = None,
        *,
        train: bool = False,
    ) -> Float[jax.Array, "B T M"]:
        """Returns the output of the transformer.

        Raises:
          ValueError: for types in a model that has none.
        """
        if types is not None and not self.num_types:
            raise ValueError("this model has no types of tokens (num_types=0): leave types out")
        x = embedded(self.token_embedding, tokens) * self.embedding_scale
        if self.num_types:
            x = x + embedded(self.type_embedding, jnp.zeros(x.shape[:2], jnp.int32) if types is None else types)
        return self.trunk(x, site, train=train)[0]

    def logits(self, x: Float[jax.Array, "B T M"]) -> Float[jax.Array, "B T V"]:
        """Returns the output of the masked-LM head for features."""
        x = self.head_norm(activation(self.head)(self.head_dense(x)))
        y = tied_logits(self.token_embedding, x) if self.tied_embedding else self.decoder(x)
        return y + self.decoder_bias.astype(jnp.float32) if self.head_bias else y

    def pooled(
        self, tokens: Int32[Array, "B T"], site: Site, types: Int32[Array, "B T"] | None = None
    ) -> Float[jax.Array, "B M"]:
        """Returns tanh(dense(features of the first token in the row)), as BERT's pooler."""
        return self._pooled(self.features(tokens, site, types))

    def pair_logits(
        self, tokens: Int32[Array, "B T"], site: Site, types: Int32[Array, "B T"] | None = None
    ) -> Float[jax.Array, "B C"]:
        """Returns the logits of the head on `pooled`."""
        return self.pairs(self.pooled(tokens, site, types))

    def _pooled(self, x):
        return jnp.tanh(self.pool(x[:, 0]))
