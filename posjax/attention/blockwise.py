"""Attention in O(T + S) memory: an online softmax over tiles, recomputed in the backward pass.

Milakov & Gimelshein (2018), arXiv 1805.02867; Rabe & Staats (2021), arXiv 2112.05682; Dao et al. (2022), arXiv 2205.14135.
The bias and the mask of a tile come from the sites of its tokens, so neither they nor their gradients are ever n x n.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from posjax.attention.dense import tile_logits, visible
from posjax.encoding import Array, Encoding, Params, Site

_TILE = 512
_ROWS = 64  # queries at a time where a tile must hold all the keys


class _Operands(NamedTuple):
    params: Params
    q: Array
    k: Array
    rotated_q: Array
    rotated_k: Array
    v: Array
    q_site: Site
    k_site: Site


class _Plan(NamedTuple):
    """All that is static: hashable, so that it can be a non-differentiable argument."""

    encoding: Encoding
    scale: float
    causal: bool
    q_tile: int
    k_tile: int


def blockwise(
    encoding: Encoding,
    params: Params,
    q: Float[Array, "T H D"],
    k: Float[Array, "S H D"],
    rotated_q: Float[Array, "T H C"],
    rotated_k: Float[Array, "S H C"],
    v: Float[Array, "S H E"],
    q_site: Site,
    k_site: Site,
    *,
    causal: bool,
    scale: float,
    tile: int = _TILE,
) -> Float[jax.Array, "T H E"]:
    """As `dense`, tile by tile; differentiable in q, k, v, the encoding's parameters and float leaves of the sites."""
    length = q.shape[0]
    if encoding.whole_rows:
        plan = _Plan(encoding, scale, causal, min(tile, _ROWS, length), k.shape[0])
    else:
        plan = _Plan(encoding, scale, causal, min(tile, length), min(tile, k.shape[0]))
    pad_q, pad_k = (functools.partial(_padded, size) for size in (plan.q_tile, plan.k_tile))
    # Tokens added to fill the last tile have segment 0, so nobody sees them.
    operands = _Operands(
        params, pad_q(q), pad_k(k), pad_q(rotated_q), pad_k(rotated_k), pad_k(v), pad_q(q_site), pad_k(k_site)
    )
    return _attention(plan, operands)[:length]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(plan: _Plan, operands: _Operands):
    return _forward(plan, operands)[0]


def _forward(plan: _Plan, operands: _Operands):
    (length, heads, _), value_dim = operands.q.shape, operands.v.shape[-1]
    init = (
        jnp.full((heads, length), -jnp.inf),  # running maximum of the logits
        jnp.zeros((heads, length)),  # running sum of exp(logit - maximum)
        jnp.zeros((length, heads, value_dim)),
    )

    def add_tile(carry, index):
        i, j = index[0] * plan.q_tile, index[1] * plan.k_tile
        peak, total, out = (_read(x, i, plan.q_tile, axis) for x, axis in zip(carry, (1, 1, 0), strict=True))
        logits, seen, _ = _logits(plan, operands, i, j)
        v = _read(operands.v, j, plan.k_tile)
        new_peak = jnp.maximum(peak, jnp.max(logits, axis=-1, where=seen, initial=-jnp.inf))
        origin = jnp.where(jnp.isfinite(new_peak), new_peak, 0.0)
        weights = jnp.where(seen, jnp.exp(jnp.where(seen, logits - origin[..., None], 0.0)), 0.0)
        fade = jnp.exp(peak - origin)
        read = jnp.einsum("hts,she->the", weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
        if plan.encoding.reads_weights:
            read = read + _read_beside(plan, operands, weights, i, j)[0]
        new = (new_peak, total * fade + weights.sum(-1), out * fade.T[..., None] + read)
        return tuple(_write(x, y, i, axis) for x, y, axis in zip(carry, new, (1, 1, 0), strict=True)), None

    (peak, total, out), _ = jax.lax.scan(add_tile, init, _tiles(plan, operands))
    out = (out / jnp.where(total > 0, total, 1.0).T[..., None]).astype(operands.q.dtype)
    # The log of the softmax's denominator; 0 where nothing is seen, and then no tile is read back.
    log_total = jnp.where(total > 0, peak + jnp.log(jnp.where(total > 0, total, 1.0)), 0.0)
    return out, (operands, out, log_total)


def _backward(plan: _Plan, saved, d_out):
    operands, out, log_total = saved
    d_out = d_out.astype(jnp.float32)
    # d logit = weight (d weight - sum over keys of weight d weight), and that sum is d_out . out
    inner = jnp.einsum("the,the->ht", d_out, out.astype(jnp.float32))
    floats, _ = _split(operands)
    init = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), floats)

    def add_tile(carry, index):
        i, j = index[0] * plan.q_tile, index[1] * plan.k_tile
        logits, seen, pull = _logits(plan, operands, i, j)
        v = _read(operands.v, j, plan.k_tile)
        row = functools.partial(_read, start=i, size=plan.q_tile)
        weights = jnp.where(seen, jnp.exp(jnp.where(seen, logits - row(log_total, axis=1)[..., None], 0.0)), 0.0)
        d_read = row(d_out).astype(v.dtype)
        d_v = jnp.einsum("hts,the->she", weights.astype(v.dtype), d_read, preferred_element_type=jnp.float32)
        d_weights = jnp.einsum("the,she->hts", d_read, v, preferred_element_type=jnp.float32)
        if plan.encoding.reads_weights:
            d_weights_beside, d_beside = _read_beside(plan, operands, weights, i, j)[1](d_read.astype(jnp.float32))
            carry, d_weights = _accumulate(plan, carry, d_beside, i, j), d_weights + d_weights_beside
        d_tile = pull(weights * (d_weights - row(inner, axis=1)[..., None]))._replace(v=d_v)
        return _accumulate(plan, carry, d_tile, i, j), None

    grads, _ = jax.lax.scan(add_tile, init, _tiles(plan, operands))
    return (_join(jax.tree.map(lambda g, x: g.astype(x.dtype), grads, floats), operands),)


_attention.defvjp(_forward, _backward)


def _logits(plan: _Plan, operands: _Operands, i, j):
    """Logits and visibility of the tile at query i and key j, and the pull-back of its logits onto the tile's operands."""
    tile = _tile(plan, operands, i, j)
    floats, _ = _split(tile)

    def logits(floats: Any):
        t = _join(floats, tile, fill=tile)
        arguments = (t.params, t.q, t.k, t.rotated_q, t.rotated_k, t.q_site, t.k_site)
        return tile_logits(plan.encoding, plan.scale, *arguments)

    values, pull = jax.vjp(logits, floats)
    causal_from = i - j if plan.causal else None
    seen = visible(plan.encoding, tile.q_site, tile.k_site, causal_from=causal_from)
    return values, seen, lambda d_logits: pull(d_logits)[0]


def _read_beside(plan: _Plan, operands: _Operands, weights, i, j):
    """What a tile of weights reads beside the values, and the pull-back of that onto the weights and the operands."""
    tile = _tile(plan, operands, i, j)

    def read(weights, floats: Any):
        t = _join(floats, tile, fill=tile)
        return jnp.asarray(plan.encoding.read(t.params, weights, t.q_site, t.k_site), jnp.float32)

    return jax.vjp(read, weights, _split(tile)[0])


def _tile(plan: _Plan, operands: _Operands, i, j) -> _Operands:
    return _map_parts(operands, lambda x: x, lambda x: _read(x, i, plan.q_tile), lambda x: _read(x, j, plan.k_tile))


def _tiles(plan: _Plan, operands: _Operands) -> jax.Array:
    """The (query tile, key tile) pairs to visit; those wholly above the diagonal are never computed."""
    rows, columns = operands.q.shape[0] // plan.q_tile, operands.k.shape[0] // plan.k_tile
    return jnp.asarray([(i, j) for i in range(rows) for j in range(columns) if not plan.causal or j <= i], jnp.int32)


def _accumulate(plan: _Plan, total: _Operands, tile: _Operands, i, j) -> _Operands:
    def add(start, size):
        return lambda x, y: _write(x, _read(x, start, size) + y.astype(x.dtype), start)

    on_q, on_k = add(i, plan.q_tile), add(j, plan.k_tile)
    return _Operands(
        params=jax.tree.map(jnp.add, total.params, tile.params),
        **{
            name: jax.tree.map(on_q, getattr(total, name), getattr(tile, name)) for name in ("q", "rotated_q", "q_site")
        },
        **{
            name: jax.tree.map(on_k, getattr(total, name), getattr(tile, name))
            for name in ("k", "rotated_k", "v", "k_site")
        },
    )


def _map_parts(operands: _Operands, on_params, on_q, on_k) -> _Operands:
    by_part = dict(params=on_params, q=on_q, rotated_q=on_q, q_site=on_q, k=on_k, rotated_k=on_k, v=on_k, k_site=on_k)
    return _Operands(**{name: jax.tree.map(by_part[name], getattr(operands, name)) for name in operands._fields})


def _is_float(x) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


def _split(tree):
    """The tree with None for its integer leaves, and the integer leaves with None for the float ones."""
    return jax.tree.map(lambda x: x if _is_float(x) else None, tree), jax.tree.map(
        lambda x: None if _is_float(x) else x, tree
    )


def _join(floats, like, fill=None):
    """`floats` with its gaps filled: by `fill`'s integers, or by the zero cotangents that JAX has for integers."""
    leaves = iter(jax.tree.leaves(floats))
    rest = jax.tree.leaves(like if fill is None else fill)
    filled = [
        next(leaves) if _is_float(x) else (x if fill is not None else np.zeros(x.shape, jax.dtypes.float0))
        for x in rest
    ]
    return jax.tree.unflatten(jax.tree.structure(like), filled)


def _padded(size: int, tree):
    """Zeros behind the tokens of every leaf until they are a multiple of `size`."""
    return jax.tree.map(lambda x: jnp.pad(x, [(0, -x.shape[0] % size)] + [(0, 0)] * (x.ndim - 1)), tree)


def _read(x, start, size: int, axis: int = 0):
    return jax.lax.dynamic_slice_in_dim(x, start, size, axis)


def _write(x, tile, start, axis: int = 0):
    return jax.lax.dynamic_update_slice_in_dim(x, tile.astype(x.dtype), start, axis)
