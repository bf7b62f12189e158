"""Cached decoding: keys, values and sites of the tokens so far, in arrays of a fixed size.

Slots are filled in the order of the tokens. A slot that holds no token has segment 0 and is never seen, so nothing here
computes with lengths. Keys are kept transformed, unless the encoding `keeps_raw_keys`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int32

from posjax.attention.attend import attend
from posjax.attention.dense import dense, visible
from posjax.encoding import Array, Encoding, Params, Site


class Cache(NamedTuple):
    """What one layer remembers of one sequence."""

    key: Float[Array, "S H D"]
    value: Float[Array, "S H D"]
    site: Site
    filled: Int32[Array, ""]  # slots written so far, whoever stands in them


def empty_cache(size: int, num_heads: int, head_dim: int, site: Site, dtype=jnp.float32) -> Cache:
    """A cache of `size` slots for tokens whose sites look like `site` (its values do not matter)."""
    slots = jax.tree.map(lambda x: jnp.zeros((size, *x.shape[1:]), x.dtype), site)
    zeros = jnp.zeros((size, num_heads, head_dim), dtype)
    return Cache(zeros, zeros, slots, jnp.int32(0))


def attend_cached(
    encoding: Encoding,
    params: Params,
    q: Float[Array, "T H D"],
    k: Float[Array, "T H D"],
    v: Float[Array, "T H D"],
    site: Site,
    cache: Cache,
    *,
    prefill: bool = False,
    implementation: str = "auto",
    scale: float | None = None,
) -> tuple[Float[jax.Array, "T H D"], Cache]:
    """Causal attention of T new tokens over themselves and the cache, and the cache with them in it.

    Args:
      prefill: static; says that the cache is empty, so that a prompt is attended like any sequence, without the unfilled
        slots.
      implementation: of the prefill, as in `attend`.

    The caller sees to it that the new tokens fit: JAX cannot check `cache.filled` under jit, and a write past the end
    would shift onto the last slots. Queries see no cached key that the full pass would not show them.
    """
    rotated_q, rotated_k = encoding.rotate(params, q, site, k, site)
    kept = k if encoding.keeps_raw_keys else rotated_k
    cache = _appended(cache, kept, v, site)
    if prefill:
        options = dict(causal=True, implementation=implementation, scale=scale)
        return attend(encoding, params, q, k, v, site, site, **options), cache
    if encoding.keeps_raw_keys:
        rotated_q, rotated_k = encoding.rotate(params, q, site, cache.key, cache.site)
    else:
        rotated_k = cache.key
    order = cache.filled - q.shape[0] + jnp.arange(q.shape[0])
    seen = visible(encoding, site, cache.site, order, jnp.arange(len(cache.key)))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    operands = (q, cache.key, rotated_q, rotated_k.astype(q.dtype), cache.value.astype(q.dtype), site, cache.site)
    return dense(encoding, params, *operands, seen=seen, scale=scale)[0], cache


def _appended(cache: Cache, key, value, site: Site) -> Cache:
    def write(slots, new):
        return jax.lax.dynamic_update_slice_in_dim(slots, jnp.asarray(new, slots.dtype), cache.filled, axis=0)

    return Cache(
        write(cache.key, key),
        write(cache.value, value),
        jax.tree.map(write, cache.site, site),
        cache.filled + key.shape[0],
    )
