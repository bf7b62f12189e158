"""Hosting an encoding in a model of any framework: one call before the first layer, one in every layer.

    params = encoding.init(key, Dims(width, num_heads, head_dim, length=length))    # train them with the model's own
    x, hosted = host(encoding, params, x, site, key=None)                           # places the tokens, adds the code
    for layer in layers:
        h = layer.norm(x)
        out = hosted.attend(*layer.project(h), x=h, causal=True)                    # observes h, attends

Arrays are one sequence, [T, ...], or a batch, [B, T, ...], whose sites are shared, [T, ...], or each row's own, [B, T, ...].
The models of posjax host encodings by the same functions.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Float

from posjax.attention.attend import BEFORE_ATTENTION, attend
from posjax.attention.cache import Cache, attend_cached, empty_cache, key_channels, refuse_lost, remember, slots_needed
from posjax.attention.explicit import spec_of, split_as, split_by_compiler
from posjax.attention.parallel import ContextParallel, attend_parallel
from posjax.encoding import Array, Encoding, Needs, Params, Site, canonical, without_padding
from posjax.spec import encoding_value

_WHOLE_DOCUMENT = (
    "places the tokens of a document by all of them, so it cannot decode token by token: run the full pass, or place the "
    "tokens yourself and leave the map out"
)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Hosted:
    """An encoding with its parameters and the placed sites of some tokens, for the layers of a model.

    A pytree of `params` and `site`, so it passes through `jax.jit`, `jax.vmap` and `jax.lax.scan`.
    """

    encoding: Encoding = field(metadata=dict(static=True))
    params: Params
    site: Site  # as `encoding.place` returns it

    @split_by_compiler(lambda given: spec_of(given["x"]))
    def embed(self, x: Float[Array, "*B T M"]) -> Float[Array, "*B T M"]:
        """Adds the encoding's code; `host` has done so, unless a model wants it elsewhere or in every layer."""
        if self.site.segment.shape not in (x.shape[:-1], x.shape[-2:-1]):
            raise ValueError(f"x {list(x.shape)} and its site differ in their tokens: give posjax.sites({x.shape[-2]})")
        if "embed" not in self.encoding.hooks:
            return x
        return self._each(lambda site, x: self.encoding.embed(self.params, without_padding(x, site), site), x)

    def in_layer(self, project: Callable[[Array], tuple[Array, Array]]) -> "Hosted":
        """Returns the `Hosted` of one layer, whose matrices make queries and keys of rows [R, M] by `project`.

        Encodings need it if their codes go through these matrices, as `deberta(shared=True)`.
        """
        return replace(self, params=self.encoding.in_layer(self.params, project))

    def attend(
        self,
        q: Float[Array, "*B T H D"],
        k: Float[Array, "*B T K D"],
        v: Float[Array, "*B T K E"],
        *,
        x: Float[Array, "*B T M"] | None = None,
        causal: bool = False,
        context: ContextParallel | None = None,
        implementation: str = "auto",
        scale: float | Array | None = None,
        softcap: float | None = None,
        return_weights: bool = False,
    ):
        """Self-attention of one layer: `posjax.attend` over the tokens, whose state is observed first.

        Args:
          x: the layer's input, from which q, k and v are projected; needed by encodings that read it, such as `fox`.
          context: the devices that share each sequence, if any.
          implementation, scale, softcap, return_weights: as in `posjax.attend`; the last two not with a context.

        Raises:
          ValueError: as `posjax.attend`; for a missing x; for a causal call of an encoding that mixes tokens.
        """
        self._refuse(x, causal)
        options = dict(causal=causal, implementation=implementation, scale=scale, consumed=BEFORE_ATTENTION)
        if context is None:
            run, options = attend, options | dict(softcap=softcap, return_weights=return_weights)
        elif softcap is None and not return_weights:
            run, options = attend_parallel, options | dict(context=context)
        else:
            raise ValueError("devices that share a sequence take neither softcap nor return_weights: leave context out")

        split = None if context is None or q.ndim == 3 else context.batch_axis_of(len(q))
        options["batch"] = math.prod(q.shape[:-3]) // math.prod(context.mesh.shape[axis] for axis in split or ())

        def one(site, x, q, k, v):
            site = self._observed(site, x)
            return run(self.encoding, self.params, q, k, v, site, site, **options)

        return self._each(one, x, q, k, v, spmd_axis_name=split)

    def attend_cached(
        self,
        q: Float[Array, "*B T H D"],
        k: Float[Array, "*B T K D"],
        v: Float[Array, "*B T K E"] | None,
        *,
        x: Float[Array, "*B T M"] | None = None,
        cache: Cache | None = None,
        cache_size: int | None = None,
        value_dim: int | None = None,
        implementation: str = "auto",
        scale: float | None = None,
        softcap: float | None = None,
    ) -> tuple[Float[jax.Array, "*B T H E"], Cache]:
        """Causal attention of new tokens over themselves and a cache, which comes back with them in it.

        Args:
          x: as in `attend`.
          cache: what the layer returned for the tokens before; None for a prompt, which gets one of `cache_size` slots.
          v, value_dim, implementation, scale, softcap: as in `posjax.attention.attend_cached`.

        Raises:
          ValueError: as `attend` and `posjax.attention.attend_cached`; for an encoding that places documents as a whole.

        >>> import posjax as pj
        >>> encoding = pj.parse("alibi")
        >>> @jax.jit
        ... def last(q):    # of 6 tokens: decoded behind a prompt of 5, and by the full pass
        ...     prompt, new, whole = (Hosted(encoding, (), site) for site in (pj.sites(5), pj.sites(1, start=5), pj.sites(6)))
        ...     _, cache = prompt.attend_cached(q[:5], q[:5], q[:5], cache_size=8)
        ...     out, cache = new.attend_cached(q[5:], q[5:], q[5:], cache=cache)
        ...     return out[0], whole.attend(q, q, q, causal=True)[5]
        >>> bool(jnp.allclose(*last(jnp.arange(96.0).reshape(6, 2, 8) / 96), atol=1e-5))
        True
        """
        self._refuse_cached(x)
        if (cache is None) == (cache_size is None):
            raise ValueError("give cache_size for a prompt, or the cache of the tokens before: one of them")
        options = dict(value_dim=value_dim, implementation=implementation, scale=scale, softcap=softcap)

        def one(site, x, q, k, v, cache):
            prompt = cache is None
            site = self._observed(site, x, None if prompt else cache.site)
            cache = self._empty(site, q, k, v, cache_size) if prompt else cache
            kwargs = dict(prefill=prompt, consumed=BEFORE_ATTENTION, **options)
            return attend_cached(self.encoding, self.params, q, k, v, site, cache, **kwargs)

        out, cache = self._each(one, x, q, k, v, cache)
        refuse_lost(cache)
        return out, cache

    def remember(
        self,
        q: Float[Array, "*B T H D"],
        k: Float[Array, "*B T K D"],
        v: Float[Array, "*B T K E"] | None,
        *,
        x: Float[Array, "*B T M"] | None = None,
        cache_size: int,
        value_dim: int | None = None,
    ) -> Cache:
        """The cache of a prompt whose attention is computed elsewhere, by other queries and keys of the same logits.

        Arguments and errors: as for `attend_cached`.
        """
        self._refuse_cached(x)

        def one(site, x, q, k, v):
            site = self._observed(site, x)
            kwargs = dict(value_dim=value_dim, consumed=BEFORE_ATTENTION)
            return remember(self.encoding, self.params, q, k, v, site, self._empty(site, q, k, v, cache_size), **kwargs)

        return self._each(one, x, q, k, v)

    def attention_fn(
        self, x: Float[jax.Array, "*B T M"] | None = None, *, causal: bool = False, key_site: Site | None = None
    ) -> Callable[..., jax.Array]:
        """An `attention_fn` for flax's attention modules, `nn.MultiHeadDotProductAttention` and `nnx.MultiHeadAttention`.

            nn.MultiHeadDotProductAttention(num_heads, attention_fn=hosted.attention_fn(x, causal=True))(x)

        It attends as `attend` does. For an NNX module, which outlives its call, see `posjax.nnx.self_attention`.

        Args:
          x: the module's input; needed by encodings that read it.
          causal: hides later keys, as is_causal=True in an NNX module's call does. In decoding the module's mask does so.
          key_site: for decoding (decode=True): the sites of all slots of the module's cache, not placed. A mask that hides
            slots is allowed then, and no other.

        Raises:
          ValueError: as `attend`; with key_site also for an encoding that reads the input of the layer, mixes tokens or
            places documents as a whole. When the module calls it, for requests that attention here does not meet: any other
            mask, dropout of attention weights, a precision, einsums of one's own.

        >>> import flax.linen as nn, posjax as pj
        >>> x = jnp.ones((5, 16))
        >>> hosted = Hosted(pj.parse("rope"), (), pj.sites(5))
        >>> module = nn.MultiHeadDotProductAttention(num_heads=2, attention_fn=hosted.attention_fn(causal=True))
        >>> jax.jit(module.init_with_output)(jax.random.key(0), x)[0].shape
        (5, 16)
        """
        self._refuse(x, causal or key_site is not None)
        if key_site is not None:
            key_site = self._slots(key_site)

        # Linen passes an argument only where the signature names it, so all are named: none gets lost.
        def attention_fn(
            query,
            key,
            value,
            *,
            mask=None,
            is_causal=False,
            dtype=None,
            module=None,
            dropout_rate=0.0,
            deterministic=False,
            dropout_rng=None,
            broadcast_dropout=True,  # without effect, as is dropout_rng, where nothing is dropped
            precision=None,
            force_fp32_for_softmax=False,  # softmax is float32 anyway
            qk_attn_weights_einsum=None,
            attn_weights_value_einsum=None,
        ):
            einsums = qk_attn_weights_einsum, attn_weights_value_einsum
            _refuse_of_flax(dropout_rate if not deterministic else 0.0, precision, einsums)
            q, k, v = (each if dtype is None else each.astype(dtype) for each in (query, key, value))
            kwargs = dict(causal=causal or is_causal) | (dict(return_weights=True) if module is not None else {})
            if key_site is None:
                _refuse_mask(mask)
                read = self.attend(q, k, v, x=x, **kwargs)
            else:
                read = self._attend_slots(q, k, v, key_site, mask, **kwargs)
            if module is None:
                return read
            module.sow("intermediates", "attention_weights", read[1])
            return read[0]

        return attention_fn

    def _slots(self, site: Site) -> Site:
        """The placed sites of keys that are not the queries' own."""
        if "observe" in self.encoding.hooks:
            raise ValueError(f"{self.encoding} keeps more than the cache of a flax module: take hosted.attend_cached")
        if Needs.WHOLE_DOCUMENT in self.encoding.needs:
            raise ValueError(f"{self.encoding} {_WHOLE_DOCUMENT}")
        return place(self.encoding, self.params, site, key=None).site

    def _attend_slots(self, q, k, v, key_site: Site, mask, **kwargs):
        """Attention over the slots of a cache, less those that the mask hides."""
        if mask is not None and mask.shape[-3:-1] != (1, 1):
            _refuse_mask(mask)
        if mask is not None and q.shape[-3] == 1:
            kwargs |= dict(causal=False)  # the mask hides the slots that are still empty
        shown = None if mask is None else jnp.broadcast_to(mask[..., 0, 0, :], (*k.shape[:-3], k.shape[-3])) > 0

        def one(site, q, k, v, key_site, shown):
            if shown is not None:
                key_site = key_site._replace(segment=jnp.where(shown, key_site.segment, 0))
            return attend(self.encoding, self.params, q, k, v, site, key_site, consumed=BEFORE_ATTENTION, **kwargs)

        if q.ndim == 3:
            return one(self.site, q, k, v, key_site, shown)
        axes = (batch_axis(self.site), 0, 0, 0, batch_axis(key_site), None if shown is None else 0)
        return jax.vmap(one, in_axes=axes)(self.site, q, k, v, key_site, shown)

    def _each(self, function, x, *others, spmd_axis_name=None):
        """function(site, x, *others), vmapped over a batch if the first of `others` (x without others) has a batch axis."""
        first = others[0] if others else x
        if first.ndim - (1 if others else 0) == 2:
            return function(self.site, x, *others)
        axis = batch_axis(self.site)
        site = split_as(first, self.site) if isinstance(axis, int) else self.site
        run = jax.vmap(function, in_axes=(axis, *(0 for _ in (x, *others))), spmd_axis_name=spmd_axis_name)
        return run(site, *split_as(first, (x, *others)))

    def _observed(self, site: Site, x, past: Site | None = None) -> Site:
        if "observe" not in self.encoding.hooks:
            return site
        return self.encoding.observe(self.params, without_padding(x, site), site, past)

    def _empty(self, site: Site, q, k, v, size: int) -> Cache:
        """A cache for the tokens of a prompt of these keys and values, with `site` as observed, and of those to come."""
        slots = slots_needed(self.encoding, site, size)
        channels = key_channels(self.encoding, self.params, q, k, v, site)
        return empty_cache(slots, k.shape[1], channels, site, k.dtype, value_dim=0 if v is None else v.shape[2])

    def _refuse_cached(self, x) -> None:
        self._refuse(x, causal=True)
        if Needs.WHOLE_DOCUMENT in self.encoding.needs:
            raise ValueError(f"{self.encoding} {_WHOLE_DOCUMENT}")

    def _refuse(self, x, causal: bool) -> None:
        if x is None and "observe" in self.encoding.hooks:
            raise ValueError(f"{self.encoding} {BEFORE_ATTENTION['observe']}: give it, hosted.attend(q, k, v, x=...)")
        if causal and Needs.BOTH_DIRECTIONS in self.encoding.needs:
            raise ValueError(f"{self.encoding} mixes tokens with later ones: it cannot be hosted by a causal model")


def host(
    encoding: Encoding, params: Params, x: Float[Array, "*B T M"], site: Site, *, key: jax.Array | None
) -> tuple[Float[Array, "*B T M"], Hosted]:
    """Returns the tokens with the encoding's code added, and the `Hosted` by which layers attend.

    Args:
      params: of `encoding.init`.
      x: the embedded tokens, before the first layer.
      site: where they stand: `posjax.sites(length)`, `posjax.grid(height, width)`, or data.
      key: for encodings that move tokens at random in training; None says that this is no training.

    >>> import posjax as pj
    >>> encoding = pj.parse("sinusoidal + alibi")
    >>> params = encoding.init(jax.random.key(0), pj.Dims(width=16, num_heads=2, head_dim=8))
    >>> x, hosted = host(encoding, params, jnp.zeros((4, 5, 16)), pj.packed([3, 2]), key=None)    # a batch of 4 rows
    >>> q = k = v = x.reshape(4, 5, 2, 8)
    >>> jax.jit(Hosted.attend, static_argnames="causal")(hosted, q, k, v, causal=True).shape
    (4, 5, 2, 8)
    """
    hosted = place(encoding, params, site, key=key, batch=len(x) if x.ndim == 3 else None)
    return hosted.embed(x), hosted


def place(encoding: Encoding, params: Params, site: Site, *, key: jax.Array | None, batch: int | None = None) -> Hosted:
    """`host` without the code: `Hosted.embed` adds it where a model wants it.

    With a key, each sequence of a batch is placed by a draw of its own; sites that all share stay shared otherwise.
    """
    site = canonical(site)
    if "place" not in encoding_value(encoding).hooks:
        return Hosted(encoding, params, site)
    if batch is None or (key is None and batch_axis(site) is None):
        return Hosted(encoding, params, _placed(encoding.place, params, site, key))
    keys = None if key is None else jax.random.split(key, batch)
    run = jax.vmap(encoding.place, in_axes=(None, batch_axis(site), 0))
    return Hosted(encoding, params, _placed(run, params, site, keys))


def _split_as_given(given: Mapping[str, Any]) -> Site:
    """The partitions of a placed site: that of the given one's tokens, where its leaves have these axes."""
    site, tokens = given["site"], given["site"].segment.shape
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (given["params"], site, given["key"]))
    placed = jax.eval_shape(given["run"], *shapes)
    return jax.tree.map(
        lambda x: spec_of(site.segment) if x.shape[: len(tokens)] == tokens else PartitionSpec(), placed
    )


@split_by_compiler(_split_as_given)
def _placed(run: Callable[..., Site], params: Params, site: Site, key: jax.Array | None) -> Site:
    return run(params, site, key)


def batch_axis(site: Site) -> int | Site | None:
    """Returns the `in_axes` of a site: None if the sequences of the batch share it, 0 if each has its own.

    Sequences with documents of their own, [B, T], may share a position and a prefix, which then stay known when traced.
    """
    if site.segment.ndim == 1:
        return None
    if site.prefix.ndim == 2:
        return 0
    return jax.tree.map(lambda leaf: 0, site)._replace(position=None, prefix=None)


def _refuse_of_flax(dropout_rate: float, precision: Any, einsums: tuple) -> None:
    if dropout_rate > 0:
        raise ValueError(f"dropout_rate={dropout_rate}: attention drops no weights here; drop what a layer adds")
    if precision is not None:
        raise ValueError(f"precision={precision}: set it by jax.default_matmul_precision around the call")
    if any(einsum is not None for einsum in einsums):
        raise ValueError("einsums of one's own are not called here: leave qk_attn_weights_einsum_cls and the like out")


def _refuse_mask(mask: jax.Array | None) -> None:
    if mask is not None:
        raise ValueError(
            f"a mask {list(mask.shape)}: causality is hosted.attention_fn(causal=True), padding and documents are "
            "site.segment, a window is an encoding; slots of a cache need key_site"
        )
