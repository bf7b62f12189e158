"""Attention for GPUs that computes bias and mask in the kernel, forward and backward, and holds no n x n array.

The elementwise functions of biases (posjax/encodings/pairs.py) and masks (posjax/mask.py) are traced into the kernels of
steps.py and sweep.py. Hopper only, half precision only; README.md tells its state.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int32

from posjax.attention.dense import WHOLE, Operands, Part
from posjax.attention.gpu.steps import KernelOperands, KernelPlan, attention
from posjax.attention.gpu.terms import supported, terms
from posjax.attention.terms import biased, lines_refusal, marks
from posjax.attention.tiles import may_see, tile_bounds
from posjax.encoding import Array, Encoding, Site
from posjax.mask import coordinates

_TILE = 64  # a warpgroup's tile of tokens


def refusal(encoding: Encoding, x: Operands, *, interpret: bool = False) -> str | None:
    """Why the kernel cannot compute this attention; None if it can."""
    q, k, v = x.q, x.k, x.v
    if reason := supported(encoding):
        return reason
    if q.dtype not in (jnp.bfloat16, jnp.float16) and not interpret:
        return f"tensor cores multiply half precision, q is {q.dtype}: cast to bfloat16"
    if not (q.dtype == k.dtype == v.dtype):
        return f"q, k and v must share a dtype, got {q.dtype}, {k.dtype} and {v.dtype}"
    wide = max((q if x.rotated_q is None else x.rotated_q).shape[-1], v.shape[-1])
    if wide > 128:
        return f"the kernel holds head dims up to 128, got {wide}"
    biases = [(str(one.encoding), coordinates(one.q_site)) for one in biased(encoding, None, x.q_site, x.k_site)]
    masks = [(f"the mask of {encoding}", term.q) for term in encoding.mask().terms(x.q_site, x.k_site)]
    return lines_refusal(biases) or lines_refusal(masks, most=None)


def pallas(
    encoding: Encoding, x: Operands, *, scale: float, part: Part = WHOLE, interpret: bool = False, tile: int = _TILE
) -> Float[jax.Array, "T H E"]:
    """As `dense`, for what `refusal` does not refuse; differentiable in q, k, v and the encoding's parameters.

    Args:
      interpret: runs the kernels as plain operations, on any machine and in any dtype, slowly.
      tile: tokens a side of a tile; anything but 64 is for tests.

    Raises:
      ValueError: with the reason why the kernel cannot compute it.
    """
    if reason := refusal(encoding, x, interpret=interpret):
        raise ValueError(f"the pallas kernel cannot compute this: {reason}; take implementation='blockwise'")
    length, heads, _ = x.rotated_q.shape
    all_heads = heads * (part.heads or (None, 1))[1]
    static, constants, *positions = terms(encoding, x.params, x.q_site, x.k_site, all_heads)
    plan = KernelPlan(static, scale, x.q_order is not None, tile, interpret)
    out = attention(plan, _operands(plan, encoding, x, part.own_heads(constants), positions))
    return out[:length, :, : x.v.shape[2]]


def _operands(plan: KernelPlan, encoding: Encoding, x: Operands, constants: Array, positions) -> KernelOperands:
    """The operands in whole tiles; `positions` are the positions of queries and of keys that each term sees."""
    sites, orders = (x.q_site, x.k_site), (x.q_order, x.k_order)
    queries, keys = lengths = [-(-len(site.segment) // plan.tile) * plan.tile for site in sites]
    width = 1 if plan.interpret else 64  # tensor cores multiply widths of a multiple of 64
    q, k, v = (
        jnp.pad(y, [(0, length - y.shape[0]), (0, 0), (0, -y.shape[2] % width)])
        for y, length in ((x.rotated_q, queries), (x.rotated_k, keys), (x.v, keys))
    )
    lines = [[axis for position in each for axis in position] for each in positions]
    each = list(zip(sites, orders, lines, strict=True))
    q_marks, k_marks = (marks(*e, padding, n) for e, padding, n in zip(each, (0, -1), lengths, strict=True))
    bounds = [tile_bounds((site, order), site.segment > 0, plan.tile) for site, order, _ in each]
    tables = [_table(plan.tile, site, line) for site, _, line in each]
    seen = may_see(encoding, *bounds)
    return KernelOperands(q, k, v, constants, q_marks, k_marks, *tables, _ranges(seen), _ranges(seen.T))


def _table(tile: int, site: Site, positions: list[Array]) -> Int32[jax.Array, "N P"]:
    """For every tile, the least positions that each term sees, then the greatest ones."""
    if not positions:
        return jnp.zeros((-(-len(site.segment) // tile), 1), jnp.int32)  # a kernel takes no empty arrays
    low, high = tile_bounds(positions, site.segment > 0, tile)
    return jnp.stack([*low, *high], axis=1).astype(jnp.int32)


def _ranges(seen) -> Int32[jax.Array, "N 2"]:
    """For each row, the first column that is seen and the one after the last; (0, 0) if none is."""
    column = jnp.arange(seen.shape[1], dtype=jnp.int32)
    end = jnp.max(jnp.where(seen, column + 1, 0), axis=1)
    first = jnp.min(jnp.where(seen, column, seen.shape[1]), axis=1)
    return jnp.stack([jnp.minimum(first, end), end], axis=1)
