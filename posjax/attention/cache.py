"""Cached decoding: keys, values and sites of the tokens so far, in arrays of a fixed size.

A slot that holds no token has segment 0 and is never seen, so nothing here computes with lengths. Keys and values are kept
as attention multiplies them, after `rotate` and `value`. If these depend on the number of keys or differ by heads that
share a key, or if `bias` reads raw keys, both are kept raw and transformed at every step. So they are where `rotate` changes
the number of channels and the cache was made for raw keys; `key_channels` says for how many it is better made.

Slots are filled in the order of the tokens. If the `memory` of the encoding's mask is bounded and fits, the cache is a
ring, for any number of tokens: the first tokens of the current document keep their slots, each later one overwrites the
oldest, and padding is not written. What a query sees follows from sites and order, so a token may lie in any slot.
"""

from collections.abc import Collection
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Bool, Float, Int32, Shaped

from posjax.attention.attend import attend, check, check_consumed, finish, transform
from posjax.attention.dense import Operands, dense
from posjax.attention.explicit import spec_of, split_by_compiler
from posjax.attention.tile_bias import reads_content
from posjax.encoding import Array, Encoding, Needs, Params, Site, axes, canonical, reads_rows, without_padding
from posjax.mask import Memory


class Cache(NamedTuple):
    """The keys and values of one sequence in one layer, laid out as a decoding step reads them."""

    key: Float[Array, "K S D"]
    value: Float[Array, "K E S"]
    site: Site
    order: Int32[Array, " S"]  # how many tokens, padding included, came before the one in each slot
    filled: Int32[Array, ""]  # tokens so far, padding included
    document: Int32[Array, ""]  # in a ring: the segment of the last token
    length: Int32[Array, ""]  # in a ring: tokens of that document so far
    position: Shaped[Array, ""]  # in a ring: where the last token stands
    forgotten: Shaped[Array, "2"]  # in a ring: the least and greatest position of that document's overwritten tokens
    lost: Bool[Array, ""]  # whether a forgotten token may still be seen by queries


def empty_cache(
    size: int, num_heads: int, head_dim: int, site: Site, dtype=jnp.float32, *, value_dim: int | None = None
) -> Cache:
    """A cache of `size` slots and `num_heads` key heads, for tokens with sites of the same structure as `site`.

    Keys have `head_dim` channels a head, or `key_channels`, and values `value_dim`, `head_dim` where None.
    """
    slots = jax.tree.map(lambda x: jnp.zeros((size, *x.shape[1:]), x.dtype), canonical(site))
    key = jnp.zeros((num_heads, size, head_dim), dtype)
    value = jnp.zeros((num_heads, head_dim if value_dim is None else value_dim, size), dtype)
    zero, nowhere = jnp.int32(0), jnp.zeros((), slots.position.dtype)
    in_ring = dict(document=zero, length=zero, position=nowhere, forgotten=_nothing(slots.position.dtype))
    return Cache(key, value, slots, jnp.zeros(size, jnp.int32), zero, **in_ring, lost=jnp.asarray(False))


def key_channels(
    encoding: Encoding,
    params: Params,
    q: Float[Array, "T H D"],
    k: Float[Array, "T K D"],
    v: Float[Array, "T K E"] | None,
    site: Site,
) -> int:
    """The channels of keys in a cache that need not transform them again at each step; D where they are kept raw anyway.

    `v` is None where values are channels of the keys.
    """
    if v is None:
        return k.shape[2]
    rotated = jax.eval_shape(lambda *qkv: transform(encoding, params, *qkv, site, site).rotated_k, q, k, v)
    return k.shape[2] if _are_kept_raw(encoding, params, q, k, site, rotated.shape[1]) else rotated.shape[2]


def _are_kept_raw(encoding: Encoding, params: Params, q, k, site: Site, rotated_heads: int) -> bool:
    """Whether no cache holds keys after `rotate`."""
    by_head = rotated_heads != k.shape[1]
    return by_head or Needs.DOCUMENT_LENGTH in encoding.needs or reads_content(encoding, params, q, k, site, site)[1]


def slots_needed(encoding: Encoding, site: Site, size: int) -> int:
    """The number of slots for `size` tokens with sites like `site`: fewer if a ring remembers all that queries see.

    >>> import posjax as pj
    >>> [slots_needed(pj.parse(spec), pj.sites(1), 1000) for spec in ("rope", "rope + window(64)", "rope + sinks(4, 60)")]
    [1000, 64, 64]
    """
    return min(size, sum(_memory(encoding, site)))


@split_by_compiler(lambda given: (PartitionSpec(*spec_of(given["q"])[:2]), jax.tree.map(spec_of, given["cache"])))
def attend_cached(
    encoding: Encoding,
    params: Params,
    q: Float[Array, "T H D"],
    k: Float[Array, "T K D"],
    v: Float[Array, "T K E"] | None,
    site: Site,
    cache: Cache,
    *,
    prefill: bool = False,
    value_dim: int | None = None,
    implementation: str = "auto",
    scale: float | None = None,
    softcap: float | None = None,
    consumed: Collection[str] = (),
) -> tuple[Float[jax.Array, "T H E"], Cache]:
    """Causal attention of T new tokens over themselves and the cache, and the cache with them in it.

    Args:
      v: None where values are the first `value_dim` channels of the keys, which `rotate` must leave as they are: the cache
        holds them once, and its values have no channels.
      prefill: static; the cache is empty, so a prompt is attended like any sequence, without the unfilled slots.
      implementation: of the prefill, as in `attend`.
      scale, softcap: of the logits, as in `attend`.
      consumed: the hooks that were run before, as in `attend`.

    Returns:
      What the full pass over all tokens so far would give. Once the cache has forgotten a token that a query may see, it
      raises, or under `jax.jit`, where that is not known, gives NaN, and `cache.lost` is True: after more tokens than slots,
      or, in a ring, for positions that break the rules of `Memory`. A ring holds one document at a time, so segments must
      rise: it cannot tell an earlier document from a forgotten one.

    Raises:
      ValueError: for shapes that do not fit each other or the cache; for a full cache; for more tokens at once than the
        cache has slots, if it is no ring; for a hook that was not run; for values within the keys and an encoding that
        transforms values.
    """
    check_consumed(encoding, consumed)
    site = canonical(site)
    new = _taken_in(encoding, params, q, k, v, site, cache, value_dim)
    here, tokens, after = new.operands, new.tokens, new.cache
    if prefill:
        options = dict(causal=True, implementation=implementation, scale=scale, softcap=softcap, consumed=consumed)
        return attend(encoding, params, q, k, _values(k, v, value_dim), site, site, **options), after
    # Of several new tokens, the first may see what the last overwrites.
    seen = _joined(_tokens(cache), tokens) if new.ring and len(k) > 1 else _tokens(after)
    orders = dict(q_order=tokens.order, k_order=seen.order)
    values = seen.value if v is not None else _values(seen.key, None, value_dim)
    if new.raw:
        operands = transform(encoding, params, q, seen.key, values, site, seen.site, **orders)
    else:
        of_shape = seen.key[..., : k.shape[2]]  # which no bias reads
        operands = here._replace(k=of_shape, rotated_k=seen.key, v=values, k_site=seen.site, **orders)
    operands = operands._replace(rotated_k=operands.rotated_k.astype(q.dtype), v=operands.v.astype(q.dtype))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    refuse_lost(after)
    out, _ = dense(encoding, operands, scale=scale, softcap=softcap)
    return jnp.where(after.lost, jnp.nan, finish(encoding, params, out, site)), after


def refuse_lost(cache: Cache) -> None:
    """Raises where tokens are known to be lost; under `jax.jit` and `jax.vmap` that is unknown."""
    if isinstance(cache.lost, jax.core.Tracer) or not cache.lost.any():
        return
    raise ValueError(
        f"the cache of {cache.order.shape[-1]} slots is full: of {int(cache.filled.max())} tokens a query may see some that "
        "were overwritten. Give the prompt a larger cache_size; in a ring, positions and segments must rise"
    )


def remember(
    encoding: Encoding,
    params: Params,
    q: Float[Array, "T H D"],
    k: Float[Array, "T K D"],
    v: Float[Array, "T K E"] | None,
    site: Site,
    cache: Cache,
    *,
    value_dim: int | None = None,
    consumed: Collection[str] = (),
) -> Cache:
    """The cache with T new tokens in it, whose attention is computed elsewhere. Arguments and errors of `attend_cached`."""
    check_consumed(encoding, consumed)
    site = canonical(site)
    return _taken_in(encoding, params, q, k, v, site, cache, value_dim).cache


class _TakenIn(NamedTuple):
    """New tokens and the cache that holds them."""

    operands: Operands
    tokens: "_Tokens"
    cache: Cache
    raw: bool  # whether keys and values are kept as they were before `rotate` and `value`
    ring: bool


def _taken_in(encoding: Encoding, params: Params, q, k, v, site: Site, cache: Cache, value_dim: int | None) -> _TakenIn:
    values = _values(k, v, value_dim)
    check(q, k, values, site, site)
    if v is None and "value" in encoding.hooks:
        raise ValueError(f"{encoding} transforms values: keep them beside the keys, as v")
    memory, size = _memory(encoding, site), len(cache.order)
    ring = sum(memory) <= size
    if not ring and len(k) > size:
        raise ValueError(f"a prompt of {len(k)} tokens does not fit a cache of {size} slots")
    here = transform(encoding, params, q, k, values, site, site)
    heads, channels = here.rotated_k.shape[1:]
    raw = _are_kept_raw(encoding, params, q, k, site, heads) or (
        channels != k.shape[2] and cache.key.shape[2] != channels
    )
    order = cache.filled + jnp.arange(len(k), dtype=jnp.int32)
    kept = k[..., :0] if v is None else without_padding(v, site) if raw else here.v
    tokens = _Tokens(here.k if raw else here.rotated_k, kept, site, order)
    _check_fits(cache, tokens)
    after = _with_in_ring(encoding, memory.first, cache, tokens) if ring else _with_behind(cache, tokens)
    return _TakenIn(here, tokens, after, raw, ring)


def _values(k: Float[Array, "T K D"], v: Float[Array, "T K E"] | None, value_dim: int | None) -> Float[Array, "T K E"]:
    """The values, or the first channels of the keys that are the values."""
    if (v is None) != (value_dim is not None):
        raise ValueError("give v, or value_dim where values are the first channels of the keys: one of them")
    return k[..., :value_dim] if v is None else v


def _check_fits(cache: Cache, tokens: "_Tokens") -> None:
    made = cache.key.shape[0], cache.key.shape[2], cache.value.shape[1]
    given = *tokens.key.shape[1:], tokens.value.shape[2]
    if made != given:
        sizes = [f"{heads} key heads of {dim} channels with values of {value}" for heads, dim, value in (made, given)]
        raise ValueError(
            f"the cache was made for {sizes[0]}, k and v have {sizes[1]}: "
            f"empty_cache(size, {given[0]}, {given[1]}, site, value_dim={given[2]}) fits them"
        )


class _Tokens(NamedTuple):
    key: Float[Array, "T K D"]
    value: Float[Array, "T K E"]
    site: Site
    order: Int32[Array, " T"]


def _tokens(cache: Cache) -> _Tokens:
    return _Tokens(jnp.moveaxis(cache.key, 1, 0), jnp.moveaxis(cache.value, 2, 0), cache.site, cache.order)


def _joined(past: _Tokens, new: _Tokens) -> _Tokens:
    return jax.tree.map(lambda a, b: jnp.concatenate([a, jnp.asarray(b, a.dtype)]), past, new)


def _memory(encoding: Encoding, site: Site) -> Memory:
    """The part of a document that a cache must remember: all, if the encoding looks beyond pairs of tokens on a line."""
    if reads_rows(encoding) or Needs.DOCUMENT_LENGTH in encoding.needs or axes(site).shape[1] > 1:
        return Memory()
    memory = encoding.mask().memory
    return memory._replace(last=max(memory.last, encoding.observes))


def _with_behind(cache: Cache, tokens: _Tokens) -> Cache:
    lost = cache.lost | (cache.filled + len(tokens.order) > len(cache.order))
    return _written(cache, tokens, tokens.order)._replace(lost=lost)


def _with_in_ring(encoding: Encoding, first: int, cache: Cache, tokens: _Tokens) -> Cache:
    size, index = len(cache.order), jnp.arange(len(tokens.order), dtype=jnp.int32)
    segment, position = jnp.asarray(tokens.site.segment), jnp.asarray(axes(tokens.site)[:, 0])
    real = segment > 0
    last = jax.lax.cummax(jnp.where(real, index, -1))  # the last token up to each one, padding left out
    before = jnp.concatenate([jnp.full(1, -1, last.dtype), last[:-1]])
    segment_before = jnp.where(before < 0, cache.document, segment[before])
    begins = real & (segment != segment_before)
    start = jax.lax.cummax(jnp.where(begins, index, -1))  # where each one's document begins; -1 if before these tokens
    passed = jnp.cumsum(real, dtype=jnp.int32)
    rank = passed - jnp.where(start < 0, 1 - cache.length, passed[start])  # in its document
    length = jnp.where(last[-1] < 0, cache.length, rank[last[-1]] + 1)
    current = real & (start == start[-1])
    kept = current & ((rank < first) | (rank >= length - (size - first)))
    slot = jnp.where(rank < first, rank, first + (rank - first) % (size - first))

    overwritten = kept & (cache.site.segment[slot] == segment)
    forgotten = jnp.where(start[-1] < 0, cache.forgotten, _nothing(position.dtype))
    forgotten = _with_those(forgotten, overwritten, cache.site.position.reshape(size)[slot])
    forgotten = _with_those(forgotten, current & ~kept, position)
    standing_nowhere = overwritten & (cache.site.prefix[slot] > 0) | (current & ~kept & (tokens.site.prefix > 0))
    # A single token does not see the token that it overwrites; several see all earlier tokens, and each other.
    missed = forgotten if len(index) == 1 else cache.forgotten
    position_before = jnp.where(before < 0, cache.position, position[before])
    sees = _may_see(encoding.mask().placed_memory, missed, position, position_before) | (tokens.site.prefix > 0)
    sees = sees & (missed[0] <= missed[1]) & real & (start < 0)
    return _written(cache, tokens, jnp.where(kept, slot, size + index))._replace(
        document=jnp.where(last[-1] < 0, cache.document, segment[last[-1]]),
        length=length,
        position=jnp.where(last[-1] < 0, cache.position, position[last[-1]]),
        forgotten=forgotten,
        lost=cache.lost | jnp.any(sees | standing_nowhere | (begins & (segment < segment_before))),
    )


def _nothing(dtype) -> Shaped[Array, "2"]:
    """The bounds of no positions."""
    limits = jnp.finfo(dtype) if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype)
    return jnp.array([limits.max, limits.min], dtype)


def _with_those(bounds: Shaped[Array, "2"], those: Bool[Array, " T"], position: Shaped[Array, " T"]):
    """The bounds, widened to hold the positions of those tokens."""
    low, high = (jnp.where(those, position, limit) for limit in _nothing(position.dtype))
    return jnp.stack([jnp.minimum(bounds[0], jnp.min(low)), jnp.maximum(bounds[1], jnp.max(high))])


def _may_see(memory: Memory, forgotten: Shaped[Array, "2"], position, before) -> Bool[Array, " T"]:
    """Marks queries that may see tokens within these bounds: by `memory`, or by coming nearer than the token before."""
    low, high = forgotten
    gap, gap_before = (jnp.maximum(low - at, at - high) for at in (position, before))
    among_first = (position < memory.first) | (low < memory.first) if memory.first else False
    return (gap < memory.last) | (gap <= gap_before) | among_first


def _written(cache: Cache, tokens: _Tokens, slot: Int32[Array, " T"]) -> Cache:
    """The cache with the tokens written into these different slots; slots beyond its end are dropped."""
    count = len(slot)
    if count == 1:
        # Add a second row, which is dropped: XLA turns a scatter of one row into an update-slice, fuses it with every
        # reader of the cache, and copies the cache for each of them.
        tokens = jax.tree.map(lambda x: jnp.concatenate([x, x]), tokens)
        slot = jnp.concatenate([slot, jnp.full(1, 2 * len(cache.order), slot.dtype)])

    def write(slots, new, axis=0):
        new = jnp.moveaxis(jnp.asarray(new, slots.dtype), 0, axis)
        return slots.at[(slice(None),) * axis + (slot,)].set(new, mode="drop", unique_indices=True)

    return cache._replace(
        key=write(cache.key, tokens.key, axis=1),
        value=write(cache.value, tokens.value, axis=2),
        site=jax.tree.map(write, cache.site, tokens.site),
        order=write(cache.order, tokens.order),
        filled=cache.filled + count,
    )
