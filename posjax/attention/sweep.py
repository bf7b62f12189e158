"""Kernels that hold one tile of tokens and sweep over tiles of others: one form for forward and backward.

Each head and each held tile is one program. `Step` defines the computation, the same on every machine. On a GPU the
operands are tiles in shared memory, copied there during the computation on the previous tile, and `dot` runs on tensor
cores; interpreted, they are arrays. Written for Pallas's Mosaic GPU backend and one Hopper warpgroup a program.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Int32

from posjax.encoding import Array

_SLOTS = 2  # tiles in shared memory: one in use, one being copied


class Operand(NamedTuple):
    """An array with tokens on one axis: [N, G, D] by head, [H, N] or [H, P, N] by head, or [R, N] shared by the heads."""

    array: Array
    token_axis: int
    head_axis: int | None


class Step(NamedTuple):
    """The computation of a program. For `here` see `Here`."""

    init: Callable  # () -> carry
    add: Callable  # (here, held, swept, carry) -> carry, for each tile swept over
    finish: Callable  # (carry) -> the results of the held tile: per output an array or a tuple of its rows


class Here(NamedTuple):
    head: Array
    held: Array  # index of the held tile
    swept: Array  # of the one swept over
    tables: tuple  # the tables of scalars, to be indexed
    dot: Callable  # (a [M, L], b [L, N], or [N, L] if transposed, onto [M, N] or None) -> onto + a b in float32


class Sweep(NamedTuple):
    """The shape of the sweep: sizes of tiles, the tiles that each held tile sweeps over, and the outputs."""

    heads: int
    held_tile: int
    swept_tile: int
    ranges: Int32[Array, "N 2"]  # of the tiles that each held tile sweeps over: first, and one behind the last
    outputs: Sequence[tuple[jax.ShapeDtypeStruct, int, int]]  # array, its token axis, its head axis


def sweep(
    shape: Sweep,
    step: Step,
    held: Sequence[Operand],
    swept: Sequence[Operand],
    tables: Sequence[Array],
    interpret: bool,
) -> Sequence[jax.Array]:
    """Runs `step` for every head and held tile; `interpret` runs it as plain operations, on any machine."""
    run = _interpreted if interpret else _mosaic
    return run(shape, step, held, swept, tables)


def _part(operand: Operand, head, heads: int, start, size: int) -> tuple:
    """The index of one head's tile within an operand's array."""
    from jax.experimental import pallas as pl

    index: list = [slice(None)] * operand.array.ndim
    index[operand.token_axis] = pl.ds(start, size)
    if operand.head_axis is not None:
        index[operand.head_axis] = jax.lax.div(head, jnp.int32(heads // operand.array.shape[operand.head_axis]))
    return tuple(index)


def _tile_shape(operand: Operand, size: int) -> tuple[int, ...]:
    shape = [size if axis == operand.token_axis else n for axis, n in enumerate(operand.array.shape)]
    return tuple(n for axis, n in enumerate(shape) if axis != operand.head_axis)


def _interpreted(shape: Sweep, step: Step, held, swept, tables):
    from jax.experimental import pallas as pl

    outputs = [Operand(*output) for output in shape.outputs]
    counts = (1, len(tables), len(held), len(swept), len(outputs))

    def kernel(*refs):
        ranges, table_refs, held_refs, swept_refs, out_refs = _split(refs, counts)
        head, i = pl.program_id(0), pl.program_id(1)

        def read(operands, refs, tile, index):
            parts = [_part(o, head, shape.heads, index * tile, tile) for o in operands]
            return [ref[part] for ref, part in zip(refs, parts, strict=True)]

        kept = read(held, held_refs, shape.held_tile, i)

        def add(j, carry):
            here = Here(head, i, j, table_refs, plain_dot)
            return step.add(here, kept, read(swept, swept_refs, shape.swept_tile, j), carry)

        carry = jax.lax.fori_loop(ranges[0][i, 0], ranges[0][i, 1], add, step.init())
        for output, ref, value in zip(outputs, out_refs, step.finish(carry), strict=True):
            value = jnp.stack(value) if isinstance(value, tuple) else value
            ref[_part(output, head, shape.heads, i * shape.held_tile, shape.held_tile)] = value

    grid = (shape.heads, shape.ranges.shape[0])
    run = pl.pallas_call(kernel, out_shape=[o.array for o in outputs], grid=grid, interpret=True)
    return run(shape.ranges, *tables, *[operand.array for operand in (*held, *swept)])


def plain_dot(a, b, transposed=False, onto=None):
    product = jax.lax.dot_general(a, b, (((1,), (int(transposed),)), ((), ())), preferred_element_type=jnp.float32)
    return product if onto is None else onto + product


def _mosaic(shape: Sweep, step: Step, held, swept, tables):
    from jax.experimental.pallas import mosaic_gpu as plgpu

    outputs = [Operand(*output) for output in shape.outputs]

    def shared(operand, tile, *slots):
        return plgpu.SMEM((*slots, *_tile_shape(operand, tile)), operand.array.dtype)

    scratch = [
        [shared(operand, shape.held_tile) for operand in held],
        [shared(operand, shape.swept_tile, _SLOTS) for operand in swept],
        [shared(output, shape.held_tile) for output in outputs],
        plgpu.Barrier(num_arrivals=len(held)),
        plgpu.Barrier(num_arrivals=len(swept), num_barriers=_SLOTS),
    ]
    run = plgpu.kernel(
        functools.partial(_mosaic_kernel, shape, step, held, swept, len(tables), outputs),
        out_type=[output.array for output in outputs],
        scratch_types=scratch,
        grid=(shape.heads, shape.ranges.shape[0]),
        grid_names=("heads", "tiles"),
        compiler_params=plgpu.CompilerParams(approx_math=True, lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
    )
    return run(shape.ranges, *tables, *[operand.array for operand in (*held, *swept)])


def _mosaic_kernel(shape: Sweep, step: Step, held, swept, num_tables: int, outputs, *refs):
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import mosaic_gpu as plgpu

    *arrays, held_tiles, swept_tiles, out_tiles, held_barrier, swept_barrier = refs
    counts = (1, num_tables, len(held), len(swept), len(outputs))
    (ranges,), tables, held_refs, swept_refs, out_refs = _split(arrays, counts)
    head, i = jax.lax.axis_index("heads"), jax.lax.axis_index("tiles")
    first, end = ranges[i, 0], ranges[i, 1]

    def copy(operands, refs, index, tile, into, barrier):
        for operand, ref, target in zip(operands, refs, into, strict=True):
            plgpu.copy_gmem_to_smem(ref.at[_part(operand, head, shape.heads, index * tile, tile)], target, barrier)

    def fetch(j):
        slot = jax.lax.rem(j - first, jnp.int32(_SLOTS))
        into = [tile.at[slot] for tile in swept_tiles]
        copy(swept, swept_refs, j, shape.swept_tile, into, swept_barrier.at[slot])

    copy(held, held_refs, i, shape.held_tile, held_tiles, held_barrier)
    pl.when(first < end)(lambda: fetch(first))
    plgpu.barrier_wait(held_barrier)

    def add(j, carry):
        # The tile in the other slot is no longer read: Mosaic synchronises the warpgroup before a copy.
        pl.when(j + 1 < end)(lambda: fetch(j + 1))
        slot = jax.lax.rem(j - first, jnp.int32(_SLOTS))
        plgpu.barrier_wait(swept_barrier.at[slot])
        here = Here(head, i, j, tables, tensor_core_dot)
        return step.add(here, held_tiles, [tile.at[slot] for tile in swept_tiles], carry)

    carry = jax.lax.fori_loop(first, end, add, step.init())
    for tile, value in zip(out_tiles, step.finish(carry), strict=True):
        if isinstance(value, tuple):
            for index, row in enumerate(value):
                tile[index] = row
        else:
            tile[...] = value
    plgpu.commit_smem()
    for output, tile, ref in zip(outputs, out_tiles, out_refs, strict=True):
        part = _part(output, head, shape.heads, i * shape.held_tile, shape.held_tile)
        plgpu.copy_smem_to_gmem(tile, ref.at[part])
    plgpu.wait_smem_to_gmem(0)


def tensor_core_dot(a, b, transposed=False, onto=None):
    """`a` from shared memory or, in half precision, from registers; `b` from shared memory; added up in registers."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import mosaic_gpu as plgpu

    def multiply(product):
        plgpu.wgmma(product, a, b.transpose((1, 0)) if transposed else b)
        return product[...] if onto is None else None

    if onto is not None:
        return pl.run_state(multiply)(plgpu.ACC.init(onto))
    columns = b.shape[0] if transposed else b.shape[1]
    return pl.run_scoped(multiply, plgpu.ACC((a.shape[0], columns), jnp.float32))


def _split(refs, counts):
    refs = iter(refs)
    return [[next(refs) for _ in range(count)] for count in counts]
