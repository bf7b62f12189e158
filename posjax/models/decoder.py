"""A pre-norm decoder language model, hosting any encoding."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Float, Int32

from posjax.attention import Cache, ContextParallel
from posjax.encoding import Encoding, Site
from posjax.models.trunk import Trunk
from posjax.spec import parse_layers


class Decoder(nn.Module):
    """Tokens [B, T] at `site` (leaves [B, T, ...], or [T, ...] for all alike) to next-token logits [B, T, V] in float32.

        model = Decoder(vocab_size=256, encoding="alibi", length=1024)
        logits = model.apply(model.init(key, tokens, site), tokens, site)

    Token embeddings have unit variance after the scaling by sqrt(width) of Vaswani et al. (2017), section 3.4, so that
    a sinusoidal code and content start at a like size. `length` is the number of positions that a table must hold.

    For cached decoding, `prefill` reads a prompt and `extend` some more tokens; `posjax.models.generate` loops.
    """

    vocab_size: int
    encoding: str | Encoding | tuple[str | Encoding, ...] = "rope"
    length: int | None = None
    width: int = 256
    depth: int = 4
    num_heads: int = 4
    mlp_dim: int | None = None  # 4 * width where None
    mlp: str = "gelu"
    tied_embedding: bool = True
    injection: str = "stem"
    dropout: float = 0.0
    implementation: str = "auto"
    dtype: Any = jnp.float32
    attention_dtype: Any = None
    param_dtype: Any = jnp.float32
    context: ContextParallel | None = None  # the devices that share each sequence
    num_kv_heads: int | None = None  # heads of keys and values; num_heads where None

    def setup(self):
        types = dict(dtype=self.dtype, param_dtype=self.param_dtype)
        init = nn.initializers.normal(self.width**-0.5)
        self.token_embedding = nn.Embed(self.vocab_size, self.width, embedding_init=init, **types)
        self.trunk = Trunk(
            parse_layers(self.encoding),
            self.depth,
            self.num_heads,
            self.mlp_dim or 4 * self.width,
            injection=self.injection,
            mlp=self.mlp,
            causal=True,
            length=self.length,
            dropout=self.dropout,
            implementation=self.implementation,
            attention_dtype=self.attention_dtype,
            context=self.context,
            num_kv_heads=self.num_kv_heads,
            **types,
        )
        if not self.tied_embedding:
            self.head = nn.Dense(self.vocab_size, use_bias=False, dtype=jnp.float32, param_dtype=self.param_dtype)

    def __call__(
        self, tokens: Int32[jax.Array, "B T"], site: Site, *, train: bool = False
    ) -> Float[jax.Array, "B T V"]:
        return self._run(tokens, site, train=train)[0]

    def prefill(self, tokens: Int32[jax.Array, "B T"], site: Site, *, cache_size: int):
        """Logits of a prompt and the caches, of `cache_size` slots, that remember it; a layer has one for itself.

        Layers whose encoding shows a query only so many tokens, as `window` and `sinks` do, remember no more of them, for
        however many tokens: a cache of theirs takes a prompt of any length.

        Raises:
          ValueError: for a prompt that does not fit.
        """
        return self._run(tokens, site, cache_size=cache_size)

    def extend(self, tokens: Int32[jax.Array, "B T"], site: Site, caches: list[Cache]):
        """Logits of further tokens and the caches with them in it."""
        return self._run(tokens, site, caches=caches)

    def _run(self, tokens, site, **options):
        x, caches = self.trunk(self.token_embedding(tokens) * self.width**0.5, site, **options)
        if not self.tied_embedding:
            return self.head(x), caches
        table = jnp.asarray(self.token_embedding.embedding, x.dtype)
        return jnp.einsum("btm,vm->btv", x, table, preferred_element_type=jnp.float32), caches
