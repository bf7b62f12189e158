"""What the ViT and the decoder share: pre-norm blocks that host any encoding."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Float

from posjax.attention import Cache, ContextParallel, attend, attend_cached, attend_parallel, empty_cache, slots_needed
from posjax.encoding import Dims, Encoding, Params, Site
from posjax.spec import nearest

INJECTIONS = ["every_layer", "every_layer_shared", "stem"]
_MLPS = ["gelu", "swiglu"]


class Attention(nn.Module):
    """Multi-head self-attention over [B, T, M], interpreting an encoding whose parameters come from outside.

    With `num_kv_heads` fewer keys and values than queries, each pair of which serves as many heads in a row: grouped
    queries (Ainslie et al. 2023, arXiv 2305.13245), or a single one for all (Shazeer 2019, arXiv 1911.02150).
    """

    encoding: Encoding
    num_heads: int
    causal: bool = False
    implementation: str = "auto"
    dtype: Any = jnp.float32
    attention_dtype: Any = None  # of q, k and v; `dtype` where None
    param_dtype: Any = jnp.float32
    context: ContextParallel | None = None
    num_kv_heads: int | None = None  # num_heads where None

    @nn.compact
    def __call__(
        self,
        x: Float[jax.Array, "B T M"],
        site: Site,
        encoding_params: Params,
        cache: Cache | None = None,
        cache_size: int | None = None,
    ) -> tuple[Float[jax.Array, "B T M"], Cache | None]:
        width = x.shape[-1]
        head_dim, num_kv_heads = width // self.num_heads, self.num_kv_heads or self.num_heads
        project = functools.partial(nn.DenseGeneral, dtype=self.dtype, param_dtype=self.param_dtype)
        inner = self.attention_dtype or self.dtype
        heads = {"query": self.num_heads, "key": num_kv_heads, "value": num_kv_heads}
        q, k, v = (project((count, head_dim), name=name)(x).astype(inner) for name, count in heads.items())
        context = None if self.is_initializing() else self.context  # a batch to initialise with is too small to share

        def one(x, q, k, v, site, cache):
            site = self.encoding.observe(encoding_params, x, site, None if cache is None else cache.site)
            if cache is None and cache_size is None:
                run = attend if context is None else functools.partial(attend_parallel, context=context)
                options = dict(causal=self.causal, implementation=self.implementation)
                return run(self.encoding, encoding_params, q, k, v, site, site, **options), None
            prefill = cache is None
            if prefill:
                size = slots_needed(self.encoding, site, cache_size)
                cache = empty_cache(size, num_kv_heads, head_dim, site, inner)
            options = dict(prefill=prefill, implementation=self.implementation)
            return attend_cached(self.encoding, encoding_params, q, k, v, site, cache, **options)

        split = None if context is None else context.batch_axis_of(len(x))
        each = jax.vmap(one, in_axes=(0, 0, 0, 0, batch_axis(site), 0), spmd_axis_name=split)
        read, cache = each(x, q, k, v, site, cache)
        out = project(width, axis=(-2, -1), name="out")
        return out(read.astype(self.dtype)), cache


class Mlp(nn.Module):
    """Two projections around a GELU, or three around a SwiGLU (Shazeer 2020, arXiv 2002.05202, without biases)."""

    mlp_dim: int
    kind: str = "gelu"
    dtype: Any = jnp.float32
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Float[jax.Array, "*B T M"]) -> Float[jax.Array, "*B T M"]:
        if self.kind not in _MLPS:
            raise ValueError(f"no MLP is named {self.kind!r}; {nearest(self.kind, _MLPS)}")
        dense = functools.partial(
            nn.Dense, use_bias=self.kind == "gelu", dtype=self.dtype, param_dtype=self.param_dtype
        )
        hidden = dense(self.mlp_dim, name="up")(x)
        hidden = nn.gelu(hidden) if self.kind == "gelu" else nn.silu(dense(self.mlp_dim, name="gate")(x)) * hidden
        return dense(x.shape[-1], name="down")(hidden)


class Trunk(nn.Module):
    """Pre-norm blocks over [B, T, M] with a final norm; the place where an encoding is hosted.

    `encodings` is a pattern over the layers, repeated: layer l hosts encodings[l % len(encodings)].

    Training (`train=True`) takes an rng "place" for encodings that move tokens, and "dropout" where there is any.

    `context` shares each sequence among devices; tokens and sites come and go in their own order all the same.

    `injection` says where `encoding.embed` acts, and whose parameters the layers use:
      stem: once, before the first block; attention in every layer shares the same parameters (as T5 does).
      every_layer: before every block, each with parameters of its own, for its attention too.
      every_layer_shared: before every block, with one set of parameters.
    In a pattern "shared" means by layers whose encodings are equal; at the stem each of them is embedded once.

    Raises (on call):
      ValueError: for an unknown injection, a width that the heads do not divide, heads that their keys do not divide, an
        encoding that mixes tokens in a causal model, or one that places whole documents in cached decoding; for cached
        decoding with a `context`.
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

    @nn.compact
    def __call__(
        self,
        x: Float[jax.Array, "B T M"],
        site: Site,
        *,
        train: bool = False,
        caches: list[Cache] | None = None,
        cache_size: int | None = None,
    ) -> tuple[Float[jax.Array, "B T M"], list[Cache | None]]:
        if self.injection not in INJECTIONS:
            raise ValueError(f"no injection is named {self.injection!r}; {nearest(self.injection, INJECTIONS)}")
        self._refuse(decoding=caches is not None or cache_size is not None)
        dims = self._dims(x.shape[-1])
        drop = nn.Dropout(self.dropout, deterministic=not train)
        norm = functools.partial(nn.LayerNorm, dtype=self.dtype, param_dtype=self.param_dtype)
        place_key = self.make_rng("place") if train else None
        hosts = self._hosts()
        hosted = {}  # by name: the encoding's parameters and where it sees the tokens
        for name, encoding in hosts:
            if name not in hosted:
                params = self.param(name, encoding.init, dims)
                hosted[name] = params, _place(encoding, params, site, place_key, x.shape[0])
                if self.injection == "stem":
                    x = _embed(encoding, x, *hosted[name])
        if self.context is not None and not self.is_initializing():
            x = self.context.shared(x)
        written = []
        for layer, (name, encoding) in enumerate(hosts):
            params, placed = hosted[name]
            if self.injection != "stem":
                x = _embed(encoding, x, params, placed)
            attention = self._attention(encoding, name=f"attention_{layer}")
            cache = None if caches is None else caches[layer]
            y, cache = attention(norm(name=f"attention_norm_{layer}")(x), placed, params, cache, cache_size)
            x = x + drop(y)
            mlp = Mlp(self.mlp_dim, self.mlp, self.dtype, self.param_dtype, name=f"mlp_{layer}")
            x = x + drop(mlp(norm(name=f"mlp_norm_{layer}")(x)))
            written.append(cache)
        return norm(name="norm")(x), written

    def _hosts(self) -> list[tuple[str, Encoding]]:
        """For each layer the name of its encoding's parameters, and the encoding."""
        hosts, pattern = [], self.encodings
        for layer in range(self.depth):
            encoding = pattern[layer % len(pattern)]
            own = layer if self.injection == "every_layer" else pattern.index(encoding)
            alone = pattern.count(encoding) == len(pattern) and self.injection != "every_layer"
            hosts.append(("encoding" if alone else f"encoding_{own}", encoding))
        return hosts

    def _refuse(self, decoding: bool) -> None:
        if decoding and self.context is not None:
            raise ValueError("a cache is not shared by devices: decode with model.clone(context=None)")
        for encoding in self.encodings:
            if self.causal and encoding.mixes_tokens:
                raise ValueError(f"{encoding} mixes tokens with later ones: it cannot be hosted by a causal model")
            if decoding and encoding.places_whole:
                raise ValueError(
                    f"{encoding} places the tokens of a document by all of them, so it cannot decode token by token: "
                    "run the full pass, or place the tokens yourself and leave the map out"
                )

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

    def _attention(self, encoding: Encoding, name: str) -> Attention:
        return Attention(
            encoding,
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


def batch_axis(site: Site) -> int | None:
    """0 if every sequence of the batch has a site of its own, None if all share one: the `in_axes` of a site."""
    return 0 if site.segment.ndim == 2 else None


def _embed(encoding: Encoding, x, params: Params, placed: Site):
    return jax.vmap(encoding.embed, in_axes=(None, 0, batch_axis(placed)))(params, x, placed)


def _place(encoding: Encoding, params: Params, site: Site, key: jax.Array | None, batch: int) -> Site:
    """`encoding.place` for each sequence, with a key of its own; a site shared by all stays so if nothing moves."""
    if batch_axis(site) is None and (key is None or encoding.place(params, site, key) is site):
        return encoding.place(params, site)
    keys = None if key is None else jax.random.split(key, batch)
    return jax.vmap(encoding.place, in_axes=(None, batch_axis(site), 0))(params, site, keys)
