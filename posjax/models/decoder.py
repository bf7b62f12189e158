"""A decoder language model with any encoding."""

from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Float, Int32

from posjax.attention import Cache
from posjax.encoding import Encoding, Site
from posjax.models.transformer import BlockModel, TokenHead, embedded, tied_logits, token_at


class Decoder(BlockModel):
    """A causal transformer: tokens [B, T] at `site` (leaves [B, T, ...] or [T, ...]) to next-token logits [B, T, V], float32.

    `prefill` and `extend` decode with caches; `posjax.models.generate` loops over them.

    Args:
      vocab_size: V.
      encoding: one encoding or a pattern over the layers.
      length: positions that a table must hold.
      tied_embedding: whether the token embedding is the head.
      embedding_scale: factor of token embeddings; None: sqrt(width) (Vaswani et al. 2017, section 3.4), which gives them unit
        variance, as sinusoidal codes have.
      embedding_norm: whether tokens are normed before the first block (BLOOM).
      head_bias: whether a head of its own has a bias (GPT-J).
      head_scale: factor of logits (Granite, Cohere).
      final_softcap: bounds logits to c tanh(logits / c) (Gemma 2).

    >>> import posjax as pj
    >>> from posjax.models import BlockConfig
    >>> model = Decoder(vocab_size=256, encoding="rope", block=BlockConfig(width=16, num_heads=2), depth=1)
    >>> tokens, site = jnp.zeros((3, 5), jnp.int32), pj.sites(5)
    >>> params = jax.jit(model.init)(jax.random.key(0), tokens, site)
    >>> jax.jit(model.apply)(params, tokens, site).shape
    (3, 5, 256)
    """

    reads: ClassVar[str] = "text"
    vocab_size: int
    encoding: str | Encoding | tuple[str | Encoding, ...] = "rope"
    length: int | None = None
    tied_embedding: bool = True
    embedding_scale: float | None = None
    embedding_norm: bool = False
    head_bias: bool = False
    head_scale: float = 1.0
    final_softcap: float | None = None

    def setup(self):
        init = nn.initializers.normal(self.block.width**-0.5)
        self.token_embedding = nn.Embed(self.vocab_size, self.block.width, embedding_init=init, **self.block.types)
        trunk = dict(causal=True, length=self.length, embedding_norm=self.embedding_norm)
        self.trunk = self.transformer(self.encoding, **trunk)
        if not self.tied_embedding:
            self.head = TokenHead(self.vocab_size, self.head_bias, self.block.param_dtype)
        elif self.head_bias:
            raise ValueError("head_bias is of a head of its own: tied_embedding=False, or leave it out")

    def __call__(
        self, tokens: Int32[jax.Array, "B T"], site: Site, *, train: bool = False
    ) -> Float[jax.Array, "B T V"]:
        return self._run(tokens, site, train=train)[0]

    def prefill(
        self, tokens: Int32[jax.Array, "B T"], site: Site, *, cache_size: int, at: Int32[jax.Array, " B"] | None = None
    ):
        """Returns the logits [B, T, V] of a prompt, and the cache of each layer, with `cache_size` slots.

        The cache of a layer with a window remembers no more tokens than a query sees, so it takes a prompt of any length.

        Args:
          at: the index of one token in each row, whose logits alone are computed, [B, 1, V]; None: all tokens.

        Raises:
          ValueError: for a prompt that does not fit.
        """
        x, caches = self.features(tokens, site, cache_size=cache_size)
        return self.logits(x if at is None else token_at(x, at)), caches

    def extend(self, tokens: Int32[jax.Array, "B T"], site: Site, caches: list[Cache]):
        """Returns the logits [B, T, V] of further tokens, and the caches with these tokens."""
        return self._run(tokens, site, caches=caches)

    def features(self, tokens: Int32[jax.Array, "B T"], site: Site, **options: Any):
        """Returns the output of the transformer, [B, T, M], and its caches; `options` are arguments of its call."""
        scale = self.block.width**0.5 if self.embedding_scale is None else self.embedding_scale
        return self.trunk(embedded(self.token_embedding, tokens) * scale, site, **options)

    def logits(self, x: Float[jax.Array, "B T M"]) -> Float[jax.Array, "B T V"]:
        """Returns the next-token logits of features."""
        logits = tied_logits(self.token_embedding, x) if self.tied_embedding else self.head(x)
        logits = logits if self.head_scale == 1 else logits * self.head_scale
        return logits if self.final_softcap is None else self.final_softcap * jnp.tanh(logits / self.final_softcap)

    def _run(self, tokens, site, **options):
        x, caches = self.features(tokens, site, **options)
        return self.logits(x), caches
