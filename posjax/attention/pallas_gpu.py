"""Attention for GPUs that computes bias and mask in the kernel, forward and backward, and holds no n x n array.

What an encoding tells the kernel is in posjax/encodings/in_kernel.py; the kernels are in pallas_steps.py and sweep.py.

No GPU was at hand. Checked on CPU: the arithmetic, against `dense`, interpreted; copies and barriers, in jax's simulator of
a GPU, which found no races; and that Mosaic GPU infers the layouts of all three kernels and lowers them for CUDA. That they
compile, run and are fast is not known. Hopper only (compute capability 9.0: WGMMA), half precision only.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int32

from posjax.attention import kernel_bias as bias
from posjax.attention.kernel_bias import Learns
from posjax.attention.pallas_steps import Operands, Plan, attention
from posjax.attention.tiles import tile_bounds
from posjax.encoding import Array, Bounds, Encoding, Params, Site

_TILE = 64  # a warpgroup's tile of tokens


def refusal(encoding: Encoding, q, k, v, q_site: Site, k_site: Site, *, interpret: bool = False) -> str | None:
    """Why the kernel cannot compute this attention; None if it can."""
    if reason := bias.supported(encoding):
        return reason
    if q.dtype not in (jnp.bfloat16, jnp.float16) and not interpret:
        return f"tensor cores multiply half precision, q is {q.dtype}: cast to bfloat16"
    if not (q.dtype == k.dtype == v.dtype):
        return f"q, k and v must share a dtype, got {q.dtype}, {k.dtype} and {v.dtype}"
    if max(q.shape[-1], v.shape[-1]) > 128:
        return f"the kernel holds head dims up to 128, got {q.shape[-1]} and {v.shape[-1]}"
    for term in bias.terms(encoding, None, q_site, k_site):
        for site in (term.q_site, term.k_site):
            if site.position.ndim > 2 or (site.position.ndim == 2 and site.position.shape[1] > 1):
                return f"{term.encoding} is computed on a line in the kernel, positions are {site.position.shape}"
            if not jnp.issubdtype(site.position.dtype, jnp.integer):
                return f"{term.encoding} has positions of {site.position.dtype}, to which the kernel gives no gradient"
    return None


def pallas(
    encoding: Encoding,
    params: Params,
    q: Float[Array, "T H D"],
    k: Float[Array, "S K D"],
    rotated_q: Float[Array, "T H C"],
    rotated_k: Float[Array, "S K2 C"],
    v: Float[Array, "S K E"],
    q_site: Site,
    k_site: Site,
    *,
    q_order: Int32[Array, " T"] | None,
    k_order: Int32[Array, " S"] | None,
    scale: float,
    interpret: bool = False,
    tile: int = _TILE,
) -> Float[jax.Array, "T H E"]:
    """As `dense`, for what `refusal` does not refuse; differentiable in q, k, v and the encoding's parameters.

    Args:
      interpret: runs the kernels as plain operations, on any machine and in any dtype, slowly.
      tile: tokens a side of a tile; anything but 64 is for tests.

    Raises:
      ValueError: with the reason why the kernel cannot compute it.
    """
    if reason := refusal(encoding, rotated_q, rotated_k, v, q_site, k_site, interpret=interpret):
        raise ValueError(f"the pallas kernel cannot: {reason}; take implementation='blockwise'")
    found = bias.terms(encoding, params, q_site, k_site)
    plan = Plan(_learns(found, q.shape[1]), scale, q_order is not None, tile, interpret)
    operands = _operands(plan, encoding, found, rotated_q, rotated_k, v, q_site, k_site, q_order, k_order)
    return attention(plan, operands)[: q.shape[0], :, : v.shape[2]]


def _learns(found: list[bias.Term], num_heads: int) -> tuple[Learns, ...]:
    ends, each = 0, []
    for term in found:
        count = jax.eval_shape(lambda p, t=term: t.encoding.kernel_constants(p, num_heads), term.params).shape[1]
        each.append(Learns(term.encoding, ends, ends + count, bool(jax.tree.leaves(term.params))))
        ends += count
    return tuple(each)


def _operands(plan: Plan, encoding, found, q, k, v, q_site, k_site, q_order, k_order) -> Operands:
    queries, keys = (-(-len(site.segment) // plan.tile) * plan.tile for site in (q_site, k_site))
    width = 1 if plan.interpret else 64  # what tensor cores multiply is a multiple of 64 wide

    def padded(x, length):
        return jnp.pad(x, [(0, length - x.shape[0]), (0, 0), (0, -x.shape[2] % width)])

    positions = [[site.position.reshape(-1) for site in sites] for sites in zip(*[t[2:] for t in found], strict=True)]
    q_positions, k_positions = positions or ([], [])
    seen, q_bounds, k_bounds = _seen_tiles(plan, encoding, q_site, k_site, q_order, k_order, q_positions, k_positions)
    return Operands(
        padded(q, queries),
        padded(k, keys),
        padded(v, keys),
        bias.constants(found, q.shape[1]),
        bias.marks(q_site, q_order, q_positions, 0, queries),
        bias.marks(k_site, k_order, k_positions, -1, keys),
        q_bounds,
        k_bounds,
        _ranges(seen),
        _ranges(seen.T),
    )


def _seen_tiles(plan: Plan, encoding, q_site, k_site, q_order, k_order, q_positions, k_positions):
    """Which tiles of keys hold one that a tile of queries may see, [N, O], and the bounds of the terms' positions."""
    q, q_table = _bounds_of(plan.tile, q_site, q_order, q_positions)
    k, k_table = _bounds_of(plan.tile, k_site, k_order, k_positions)
    q_sites, k_sites = (Bounds(*(corner[0] for corner in bounds)) for bounds in (q, k))
    nowhere = (q_sites.high.prefix > 0)[:, None] | (k_sites.high.prefix > 0)[None]
    (q_low, q_high), (k_low, k_high) = ([corner.segment for corner in sites] for sites in (q_sites, k_sites))
    seen = (q_low[:, None] <= k_high[None]) & (k_low[None] <= q_high[:, None])
    seen = seen & (encoding.sees(q_sites, k_sites) | nowhere)
    if plan.causal:
        seen = seen & (k.low[1][None] <= q.high[1][:, None])
    return seen, q_table, k_table


def _bounds_of(tile: int, site: Site, order: Array | None, positions: list[Array]):
    """Bounds of (site, order, positions) of every tile, and those of the positions as the kernel's table."""
    missing = -len(site.segment) % tile
    tree = (site, jnp.zeros_like(site.segment) if order is None else order, positions)
    tree = jax.tree.map(lambda x: jnp.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1)), tree)
    bounds = tile_bounds(tree, tree[0].segment > 0, tile)
    none = jnp.zeros((len(tree[1]) // tile, 1), jnp.int32)  # a kernel takes no empty arrays
    table = jnp.stack([*bounds.low[2], *bounds.high[2]], axis=1) if positions else none
    return bounds, jnp.asarray(table, jnp.int32)


def _ranges(seen) -> Int32[jax.Array, "N 2"]:
    """Of each row, the first column that is seen and the one behind the last; (0, 0) where none is."""
    column = jnp.arange(seen.shape[1], dtype=jnp.int32)
    end = jnp.max(jnp.where(seen, column + 1, 0), axis=1)
    first = jnp.min(jnp.where(seen, column, seen.shape[1]), axis=1)
    return jnp.stack([jnp.minimum(first, end), end], axis=1)
