"""Cached decoding: keys, values and sites of the tokens so far, in arrays of a fixed size.

A slot that holds no token has segment 0 and is never seen, so nothing here computes with lengths. Keys are kept transformed,
unless the encoding `keeps_raw_keys` or turns keys that several heads share by the head.

Slots are filled in the order of the tokens. Where the encoding's `memory` is bounded and fits, the cache is a ring instead,
however many tokens come: the first tokens of the current document keep their slots, its others overwrite the oldest one, and
padding is not written. As what a query sees follows from sites and order, it does not matter where a token lies.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int32

from posjax.attention.attend import attend, rotate
from posjax.attention.dense import dense, visible
from posjax.encoding import Array, Encoding, Memory, Params, Site, axes


class Cache(NamedTuple):
    """What one layer remembers of one sequence; keys and values lie as a step of decoding reads them."""

    key: Float[Array, "K S D"]
    value: Float[Array, "K E S"]
    site: Site
    order: Int32[Array, " S"]  # how many tokens, padding too, came before the one in each slot
    filled: Int32[Array, ""]  # tokens so far, padding too
    document: Int32[Array, ""]  # in a ring: the segment of the last token
    length: Int32[Array, ""]  # in a ring: tokens of that document so far
    lost: Bool[Array, ""]  # whether a token was forgotten that queries would see


def empty_cache(size: int, num_heads: int, head_dim: int, site: Site, dtype=jnp.float32) -> Cache:
    """A cache of `size` slots and `num_heads` key heads, for tokens whose sites look like `site`; values do not matter."""
    slots = jax.tree.map(lambda x: jnp.zeros((size, *x.shape[1:]), x.dtype), site)
    key, value = jnp.zeros((num_heads, size, head_dim), dtype), jnp.zeros((num_heads, head_dim, size), dtype)
    zero = jnp.int32(0)
    return Cache(key, value, slots, jnp.zeros(size, jnp.int32), zero, zero, zero, jnp.asarray(False))


def slots_needed(encoding: Encoding, site: Site, size: int) -> int:
    """How many slots `size` tokens that stand like `site` need: fewer where a ring remembers all that queries see."""
    return min(size, sum(_memory(encoding, site)))


def attend_cached(
    encoding: Encoding,
    params: Params,
    q: Float[Array, "T H D"],
    k: Float[Array, "T K D"],
    v: Float[Array, "T K E"],
    site: Site,
    cache: Cache,
    *,
    prefill: bool = False,
    implementation: str = "auto",
    scale: float | None = None,
) -> tuple[Float[jax.Array, "T H E"], Cache]:
    """Causal attention of T new tokens over themselves and the cache, and the cache with them in it.

    Args:
      prefill: static; says that the cache is empty, so that a prompt is attended like any sequence, without the unfilled
        slots.
      implementation: of the prefill, as in `attend`.

    Returns:
      What the full pass over all tokens so far would give, or NaN once the cache has forgotten a token that a query sees:
      when more tokens come than there are slots, or, in a ring, positions are not those that `Memory` asks for. A ring
      knows one document at a time: going back to an earlier one finds it forgotten.

    Raises:
      ValueError: for more tokens at once than the cache has slots, if it is no ring.
    """
    memory, size = _memory(encoding, site), len(cache.order)
    ring = sum(memory) <= size
    if not ring and len(k) > size:
        raise ValueError(f"a prompt of {len(k)} tokens does not fit a cache of {size} slots")
    raw = encoding.keeps_raw_keys or (encoding.heads_differ and k.shape[1] != q.shape[1])
    rotated_q, rotated_k = rotate(encoding, params, q, site, k, site)
    order = cache.filled + jnp.arange(len(k), dtype=jnp.int32)
    tokens = _Tokens(k if raw else rotated_k, v, site, order)
    after = _with_in_ring(encoding, memory.first, cache, tokens) if ring else _with_behind(cache, tokens)
    if prefill:
        options = dict(causal=True, implementation=implementation, scale=scale)
        return attend(encoding, params, q, k, v, site, site, **options), after
    # The first of several tokens may see what the last of them overwrites.
    seen = _joined(_tokens(cache), tokens) if ring and len(k) > 1 else _tokens(after)
    if raw:
        rotated_q, rotated_k = rotate(encoding, params, q, site, seen.key, seen.site)
    else:
        rotated_k = seen.key
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    operands = (q, seen.key, rotated_q, rotated_k.astype(q.dtype), seen.value.astype(q.dtype), site, seen.site)
    shown = visible(encoding, site, seen.site, order, seen.order)
    out, _ = dense(encoding, params, *operands, seen=shown, scale=scale)
    return jnp.where(after.lost, jnp.nan, out), after


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
    """What a cache must remember of a document: all of it, where encodings look at more than pairs of tokens on a line."""
    if encoding.whole_rows or encoding.length_dependent or axes(site).shape[1] > 1:
        return Memory()
    return encoding.memory._replace(last=max(encoding.memory.last, encoding.observes))


def _with_behind(cache: Cache, tokens: _Tokens) -> Cache:
    lost = cache.lost | (cache.filled + len(tokens.order) > len(cache.order))
    return _written(cache, tokens, tokens.order)._replace(lost=lost)


def _with_in_ring(encoding: Encoding, first: int, cache: Cache, tokens: _Tokens) -> Cache:
    size, index = len(cache.order), jnp.arange(len(tokens.order))
    segment = jnp.asarray(tokens.site.segment)
    real = segment > 0
    last = jax.lax.cummax(jnp.where(real, index, -1))  # the last token up to each that is no padding
    before = jnp.concatenate([jnp.full(1, -1), last[:-1]])
    begins = real & (segment != jnp.where(before < 0, cache.document, segment[before]))
    start = jax.lax.cummax(jnp.where(begins, index, -1))  # where each one's document begins; -1 if before all of these
    passed = jnp.cumsum(real, dtype=jnp.int32)
    rank = passed - jnp.where(start < 0, 1 - cache.length, passed[start])  # in its document
    length = jnp.where(last[-1] < 0, cache.length, rank[last[-1]] + 1)
    current = real & (start == start[-1])
    kept = current & ((rank < first) | (rank >= length - (size - first)))
    slot = jnp.where(rank < first, rank, first + (rank - first) % (size - first))

    query = jax.tree.map(lambda x: jnp.asarray(x)[last[-1:]], tokens.site)
    overwritten = jax.tree.map(lambda x: x[slot], cache.site)
    forgotten = kept & visible(encoding, query, overwritten)[0]
    forgotten = forgotten | (current & ~kept & visible(encoding, query, tokens.site)[0])
    return _written(cache, tokens, jnp.where(kept, slot, size + index))._replace(
        document=jnp.where(last[-1] < 0, cache.document, segment[last[-1]]),
        length=length,
        lost=cache.lost | jnp.any(forgotten),
    )


def _written(cache: Cache, tokens: _Tokens, slot: Int32[Array, " T"]) -> Cache:
    """The cache with the tokens in these slots, which differ; those beyond its end are dropped."""
    count = len(slot)
    if count == 1:
        # A second row, to be dropped: XLA makes an update-slice of the scatter of one row, fuses it with every reader of
        # the cache, and then copies the cache for each of them.
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
