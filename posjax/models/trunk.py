"""Pre-norm blocks that host any encoding: what the ViT and the decoder share."""

from dataclasses import replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Float

from posjax.attention import Cache, ContextParallel
from posjax.encoding import Dims, Encoding, Needs, Site
from posjax.hosting import Hosted, place
from posjax.models.layers import Attention, DropPath, Mlp
from posjax.models.patch_dropout import Kept, take, taken
from posjax.spec import nearest

INJECTIONS = ["every_layer", "every_layer_shared", "lape", "stem"]


class Trunk(nn.Module):
    """Pre-norm blocks over [B, T, M] with a final norm; the place where an encoding is hosted.

    `encodings` is a pattern over the layers, repeated: layer l hosts encodings[l % len(encodings)].

    Training (`train=True`) takes an rng "place" for encodings that move tokens, and "dropout" where there is any.

    `context` shares each sequence among devices; tokens and sites come and go in their own order all the same.

    `injection` says where `encoding.embed` acts, and whose parameters the layers use:
      stem: once, before the first block; attention in every layer shares the same parameters (as T5 does).
      every_layer: before every block, each with parameters of its own, for its attention too.
      every_layer_shared: before every block, with one set of parameters.
      lape: what it would add at the stem goes, behind a LayerNorm of each layer's own, to the normed input of attention,
        and not into the residual stream: attention(norm(x) + norm_l(code)). Yu et al. (2023), "LaPE: Layer-adaptive
        Position Embedding", ICCV, eq. 5; the authors' code chains the norms from layer to layer, the paper does not.
    In a pattern "shared" means by layers whose encodings are equal; at the stem each of them is embedded once.

    `layer_scale` is the initial value of a learned factor on each channel of a residual branch (Touvron et al. 2021,
    arXiv 2103.17239), `drop_path` the rate of stochastic depth of the last block, to which it grows linearly from 0.
    Where the collection "intermediates" is mutable, "tokens_in" and each block's output, "tokens_{l}", are sown.

    Raises (on call):
      ValueError: for an unknown injection, a width that the heads do not divide, heads that their keys do not divide, an
        encoding that mixes tokens in a causal model, or one that places whole documents in cached decoding; for cached
        decoding with a `context`; for "lape" where nothing is added to tokens.
    """

    encodings: tuple[Encoding, ...]
    depth: int
    num_heads: int
    mlp_dim: int
    injection: str = "stem"
    mlp: str = "gelu"
    causal: bool = False
    length: int | None = None  # positions that a 1-D table must hold
    grid: tuple[int, int] | None = None  # (height, width) that a 2-D table must hold
    prefix: int = 0
    dropout: float = 0.0
    implementation: str = "auto"
    dtype: Any = jnp.float32
    attention_dtype: Any = None
    param_dtype: Any = jnp.float32
    context: ContextParallel | None = None
    num_kv_heads: int | None = None  # heads of keys and values; num_heads where None
    mlp_bias: bool | None = None  # as the kind of MLP has them
    layer_scale: float | None = None
    drop_path: float = 0.0
    norm_epsilon: float = 1e-6
    final_norm: bool = True

    @nn.compact
    def __call__(
        self,
        x: Float[jax.Array, "B T M"],
        site: Site,
        *,
        train: bool = False,
        caches: list[Cache] | None = None,
        cache_size: int | None = None,
        kept: Kept | None = None,
    ) -> tuple[Float[jax.Array, "B K M"], list[Cache | None]]:
        """Tokens behind all blocks, and their caches; with `kept`, only those tokens go through, placed among all."""
        if self.injection not in INJECTIONS:
            raise ValueError(f"no injection is named {self.injection!r}; {nearest(self.injection, INJECTIONS)}")
        if self.context is not None and (caches is not None or cache_size is not None):
            raise ValueError("a cache is not shared by devices: decode with model.clone(context=None)")
        hosts = self._hosts()
        x, hosted = self._hosted(hosts, x, site, kept, train)
        if self.context is not None and not self.is_initializing():
            x = self.context.shared(x)
        self.sow("intermediates", "tokens_in", x)
        written = []
        for layer, (name, _) in enumerate(hosts):
            cache = None if caches is None else caches[layer]
            x, cache = self._block(layer, x, *hosted[name], train, cache, cache_size)
            self.sow("intermediates", f"tokens_{layer}", x)
            written.append(cache)
        return self._norm("norm")(x) if self.final_norm else x, written

    def _hosted(self, hosts, x, site: Site, kept, train: bool):
        """The tokens that enter the blocks, and {name: (hosted encoding, its code for "lape" or None)}."""
        dims, place_key = self._dims(x.shape[-1]), self.make_rng("place") if train else None
        hosted = {}
        for name, encoding in hosts:
            if name in hosted:
                continue
            params = self.param(name, encoding.init, dims)
            one, code = place(encoding, params, site, key=place_key, batch=x.shape[0]), None
            if self.injection == "stem":
                x = one.embed(x)
            elif self.injection == "lape" and "embed" in encoding.hooks:
                start = x if Needs.BOTH_DIRECTIONS in encoding.needs else jnp.zeros_like(x)
                code = one.embed(start) - start
            hosted[name] = one, code
        if self.injection == "lape" and all(code is None for _, code in hosted.values()):
            raise ValueError(
                f"injection='lape' normalises what is added to tokens, and {', '.join(map(str, self.encodings))} adds "
                "nothing; take injection='stem'"
            )
        if kept is None:
            return x, hosted
        held = {
            name: (replace(one, site=taken(one.site, kept)), None if code is None else take(code, kept))
            for name, (one, code) in hosted.items()
        }
        return take(x, kept), held

    def _block(self, layer: int, x, hosted: Hosted, code, train: bool, cache, cache_size):
        if self.injection.startswith("every_layer"):
            x = hosted.embed(x)
        drop = nn.Dropout(self.dropout, deterministic=not train)
        rate = self.drop_path * layer / max(self.depth - 1, 1)
        normed = self._norm(f"attention_norm_{layer}")(x)
        if code is not None:
            normed = normed + self._norm(f"code_norm_{layer}")(code)
        y, cache = self._attention(name=f"attention_{layer}")(normed, hosted, cache, cache_size)
        y = self._scaled(f"attention_scale_{layer}", drop(y))
        x = x + DropPath(rate, name=f"attention_path_{layer}")(y, train=train)
        types = self.dtype, self.param_dtype
        mlp = Mlp(self.mlp_dim, self.mlp, *types, use_bias=self.mlp_bias, name=f"mlp_{layer}")
        y = self._scaled(f"mlp_scale_{layer}", drop(mlp(self._norm(f"mlp_norm_{layer}")(x))))
        return x + DropPath(rate, name=f"mlp_path_{layer}")(y, train=train), cache

    def _norm(self, name: str) -> nn.LayerNorm:
        return nn.LayerNorm(self.norm_epsilon, dtype=self.dtype, param_dtype=self.param_dtype, name=name)

    def _scaled(self, name: str, y):
        if self.layer_scale is None:
            return y
        init = nn.initializers.constant(self.layer_scale)
        return y * self.param(name, init, y.shape[-1:], self.param_dtype).astype(y.dtype)

    def _hosts(self) -> list[tuple[str, Encoding]]:
        return layer_hosts(self.encodings, self.depth, self.injection)

    def _dims(self, width: int) -> Dims:
        if self.num_heads < 1 or width % self.num_heads:
            raise ValueError(f"width {width} is not divisible by num_heads {self.num_heads}")
        shared = self.num_kv_heads
        if shared is not None and (shared < 1 or self.num_heads % shared):
            divisors = [n for n in range(1, self.num_heads + 1) if self.num_heads % n == 0]
            raise ValueError(
                f"num_kv_heads {shared} does not divide num_heads {self.num_heads}: it may be one of {divisors}"
            )
        return Dims(width, self.num_heads, width // self.num_heads, self.length, self.grid, self.prefix)

    def _attention(self, name: str) -> Attention:
        return Attention(
            self.num_heads,
            self.causal,
            self.implementation,
            self.dtype,
            self.attention_dtype,
            self.param_dtype,
            context=self.context,
            num_kv_heads=self.num_kv_heads,
            name=name,
        )


def layer_hosts(pattern: tuple[Encoding, ...], depth: int, injection: str) -> list[tuple[str, Encoding]]:
    """For each layer of a trunk the name of its encoding's parameters, and the encoding."""
    hosts = []
    for layer in range(depth):
        encoding = pattern[layer % len(pattern)]
        own = layer if injection == "every_layer" else pattern.index(encoding)
        alone = pattern.count(encoding) == len(pattern) and injection != "every_layer"
        hosts.append(("encoding" if alone else f"encoding_{own}", encoding))
    return hosts
