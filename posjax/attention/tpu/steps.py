"""The two kernels of attention on TPUs: the output, and all gradients.

An online softmax over tiles of keys by queries, [S, T], which are recomputed for the gradients (Dao 2023, arXiv 2307.08691).
In that order maxima and sums over keys add whole vectors, and numbers of queries lie along lanes. Each kernel goes over the
heads, then over one side of the tiles, then over the other. Gradients of queries and of the row of biases stay in the vector
memory for a whole head; nothing is added up across heads, so results are the same bit for bit.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int32

from posjax.attention.terms import HIDDEN, Masks, Pairs, apart, seen
from posjax.attention.tpu.rows import EIGHT, LANES, gathered, in_eights, skewed, spread, unskewed
from posjax.encoding import Array

_LEAST = -1e29  # below any logit, and so far above HIDDEN that exp(HIDDEN - _LEAST) is 0
PARTLY, WHOLLY = 1, 2  # whether a tile has hidden pairs, or pairs without a bias


class KernelPlan(NamedTuple):
    """The static arguments."""

    masks: Masks
    scale: float
    causal: bool
    all_stand: bool  # whether no token is known to stand nowhere
    q_block: int
    k_block: int
    memory: int  # bytes of the vector memory that a kernel may take
    interpret: bool


class KernelOperands(NamedTuple):
    """The operands of attention, heads first and in whole blocks of tokens."""

    q: Float[Array, "H T C"]
    k: Float[Array, "K S C"]
    v: Float[Array, "K S E"]
    row: Float[Array, "H L"] | None  # biases from the last key and the first query on, by falling offset; L = S + T
    potential: Float[Array, "H S"] | None  # a bias of each key
    q_vectors: Float[Array, "H T F"] | None  # whose products with vectors of offsets are a bias
    q_table: Float[Array, "H L F"] | None  # vectors by rising offset, from the last query and the first key on
    k_vectors: Float[Array, "H S G"] | None
    k_table: Float[Array, "H L G"] | None  # by falling offset, as the row
    q_marks: Int32[Array, "R T"]
    k_marks: Int32[Array, "R S"]
    tiles: Int32[Array, "O N"]  # of keys by queries: 0 where no query sees a key, PARTLY, WHOLLY
    fetched_k: Int32[Array, "O N"]  # the block of keys to hold at each tile, which stays where none is seen
    fetched_q: Int32[Array, "O N"]  # the same of queries


class _Side(NamedTuple):
    """The blocks of a kernel's arrays, as (shape, index) by the side of the tile that they follow."""

    at: Callable  # (two indices of the grid, fetched_k, fetched_q) -> blocks of queries and of keys
    plan: KernelPlan
    group: int  # heads of queries that share one of keys

    def queries(self, width: int):
        return (None, self.plan.q_block, width), lambda h, *n: (h, self.at(*n)[0], 0)

    def keys(self, width: int, group: int = 1):
        return (None, self.plan.k_block, width), lambda h, *n: (jax.lax.div(h, group), self.at(*n)[1], 0)

    def query_row(self):
        return (None, 1, self.plan.q_block), lambda h, *n: (h, 0, self.at(*n)[0])

    def key_row(self):
        return (None, 1, self.plan.k_block), lambda h, *n: (h, 0, self.at(*n)[1])

    def head(self, *shape: int):
        return (None, *shape), lambda h, *n: (h, 0, 0)

    def inputs(self, x: KernelOperands) -> dict[str, tuple[Array, Any]]:
        """The operands and their blocks, by name."""
        rows = x.q_marks.shape[0]
        found = {
            "q": (x.q, self.queries(x.q.shape[2])),
            "k": (x.k, self.keys(x.k.shape[2], self.group)),
            "v": (x.v, self.keys(x.v.shape[2], self.group)),
            "q_marks": (x.q_marks, ((rows, self.plan.q_block), lambda h, *n: (0, self.at(*n)[0]))),
            "k_marks": (x.k_marks, ((rows, self.plan.k_block), lambda h, *n: (0, self.at(*n)[1]))),
        }
        if x.row is not None:
            found["row"] = in_eights(x.row), self.head(EIGHT, x.row.shape[1])
        if x.potential is not None:
            found["potential"] = x.potential[:, None], self.key_row()
        for own, table, vectors, block in _with_table(x, self):
            found |= {f"{own}_vectors": (vectors, block(vectors.shape[2]))}
            found |= {f"{own}_table": (table, self.head(*table.shape[1:]))}
        return found


def _with_table(x: KernelOperands, side: _Side) -> list[tuple]:
    """The sides whose tokens have vectors, as (q or k, table, vectors, their blocks by width)."""
    both = ("q", x.q_table, x.q_vectors, side.queries), ("k", x.k_table, x.k_vectors, side.keys)
    return [each for each in both if each[1] is not None]


@functools.partial(jax.jit, static_argnums=0)  # traced once for all layers that are alike
def tpu_attention(plan: KernelPlan, x: KernelOperands) -> tuple[Float[jax.Array, "H T E"], Float[jax.Array, "H T"]]:
    """The output, and the log of the softmax's denominator: -HIDDEN for a query that sees no key."""
    (heads, length, _), width = x.q.shape, x.v.shape[2]
    side = _Side(lambda i, j, fetched_k, _: (i, fetched_k[j, i]), plan, heads // len(x.k))
    out = {
        "out": (jax.ShapeDtypeStruct((heads, length, width), x.q.dtype), side.queries(width)),
        "log_total": (jax.ShapeDtypeStruct((heads, 1, length), jnp.float32), side.query_row()),
    }
    scratch = {"peak": (1, plan.q_block), "total": (1, plan.q_block), "sum": (width, plan.q_block)}
    found = _call(_output_step, plan, x, side.inputs(x), out, scratch, x.tiles.shape[::-1])
    return found["out"], found["log_total"][:, 0]


def _output_step(plan: KernelPlan, x: SimpleNamespace) -> None:
    from jax.experimental import pallas as pl

    i, j = pl.program_id(1), pl.program_id(2)

    @pl.when(j == 0)
    def start():
        x.peak[...] = jnp.full(x.peak.shape, _LEAST, jnp.float32)
        x.total[...] = jnp.zeros(x.total.shape, jnp.float32)
        x.sum[...] = jnp.zeros(x.sum.shape, jnp.float32)

    def add(is_whole: bool):
        s = _logits(plan, x, i, j, is_whole)
        peak = jnp.maximum(x.peak[...], jnp.max(s, axis=0, keepdims=True))
        weights, fade = jnp.exp(s - peak), jnp.exp(x.peak[...] - peak)
        x.peak[...] = peak
        x.total[...] = x.total[...] * fade + jnp.sum(weights, axis=0, keepdims=True)
        x.sum[...] = x.sum[...] * fade + _dot(x.v[...], weights.astype(x.v.dtype), 0, 0)

    _on_seen(x.tiles[j, i], add)

    @pl.when(j == pl.num_programs(2) - 1)
    def finish():
        some = x.total[...] > 0
        total = jnp.where(some, x.total[...], 1.0)
        x.out[...] = (x.sum[...] / total).T.astype(x.out.dtype)
        x.log_total[...] = jnp.where(some, x.peak[...] + jnp.log(total), -HIDDEN)


@functools.partial(jax.jit, static_argnums=0)
def tpu_attention_gradients(plan: KernelPlan, x: KernelOperands, d_out, log_total, inner) -> dict[str, jax.Array]:
    """Gradients by the names of the operands; keys and values have one for each head of queries.

    Args:
      d_out: [H, T, E], in the dtype of v.
      log_total: [H, T], of `tpu_attention`.
      inner: [H, T], to be subtracted from the gradient of each weight.
    """
    (heads, length, width), (_, keys, value_width) = x.q.shape, x.v.shape
    # Gradients of grouped queries are summed after the kernel, so they are not rounded before.
    dtype = x.k.dtype if heads == len(x.k) else jnp.float32
    side = _Side(lambda j, i, _, fetched_q: (fetched_q[j, i], j), plan, heads // len(x.k))
    given = side.inputs(x) | {
        "d_out": (d_out, side.queries(value_width)),
        "log_total": (log_total[:, None], side.query_row()),
        "inner": (inner[:, None], side.query_row()),
    }
    out = {
        "d_q": (jax.ShapeDtypeStruct((heads, width, length), jnp.float32), side.head(width, length)),
        "d_k": (jax.ShapeDtypeStruct((heads, keys, width), dtype), side.keys(width)),
        "d_v": (jax.ShapeDtypeStruct((heads, keys, value_width), dtype), side.keys(value_width)),
    }
    scratch = {"k_sum": (plan.k_block, width), "v_sum": (plan.k_block, value_width)}
    if x.row is not None:
        shape = heads, EIGHT, x.row.shape[1]
        out["d_row"] = jax.ShapeDtypeStruct(shape, jnp.float32), side.head(*shape[1:])
    if x.potential is not None:
        out["d_potential"] = jax.ShapeDtypeStruct((heads, 1, keys), jnp.float32), side.key_row()
        scratch["potential_sum"] = plan.k_block, LANES
    tables = _with_table(x, side)
    for own, table, vectors, _ in tables:
        for name, shape in (("table", table.shape), ("vectors", (heads, vectors.shape[2], vectors.shape[1]))):
            out[f"d_{own}_{name}"] = jax.ShapeDtypeStruct(shape, jnp.float32), side.head(*shape[1:])
    found = _call(_gradient_step, plan, x, given, out, scratch, x.tiles.shape)
    grads = {"q": plan.scale * jnp.swapaxes(found["d_q"], 1, 2), "k": found["d_k"], "v": found["d_v"]}
    if x.row is not None:
        grads["row"] = jax.linear_transpose(in_eights, x.row)(found["d_row"])[0]
    for own, *_ in tables:
        grads[f"{own}_table"] = found[f"d_{own}_table"]
        grads[f"{own}_vectors"] = jnp.swapaxes(found[f"d_{own}_vectors"], 1, 2)
    return grads if x.potential is None else grads | {"potential": found["d_potential"][:, 0]}


def _gradient_step(plan: KernelPlan, x: SimpleNamespace) -> None:
    from jax.experimental import pallas as pl

    j, i = pl.program_id(1), pl.program_id(2)
    of_head = "d_q", "d_row", "d_q_table", "d_q_vectors", "d_k_table", "d_k_vectors"
    pl.when((j == 0) & (i == 0))(lambda: _clear(x, *of_head))
    pl.when(i == 0)(lambda: _clear(x, "k_sum", "v_sum", "potential_sum"))

    def add(is_whole: bool):
        weights = jnp.exp(_logits(plan, x, i, j, is_whole) - x.log_total[...])
        x.v_sum[...] += _dot(weights.astype(x.d_out.dtype), x.d_out[...], 1, 0)
        d_s = weights * (_dot(x.v[...], x.d_out[...], 1, 1) - x.inner[...])
        d_product = d_s.astype(x.k.dtype)
        x.k_sum[...] += _dot(d_product, x.q[...], 1, 0)
        here = pl.ds(pl.multiple_of(i * plan.q_block, LANES), plan.q_block)
        x.d_q[:, here] += _dot(x.k[...], d_product, 0, 0)
        if any(hasattr(x, name) for name in ("row", "q_table", "k_table")):
            related = d_s if is_whole or plan.all_stand else jnp.where(apart(_pairs(x)), 0.0, d_s)
            _pull_bias(plan, x, i, j, related)
        if hasattr(x, "potential"):
            x.potential_sum[...] += sum(d_s[:, at : at + LANES] for at in range(0, plan.q_block, LANES))

    _on_seen(x.tiles[j, i], add)

    @pl.when(i == pl.num_programs(2) - 1)
    def finish():
        x.d_k[...] = (plan.scale * x.k_sum[...]).astype(x.d_k.dtype)
        x.d_v[...] = x.v_sum[...].astype(x.d_v.dtype)
        if hasattr(x, "potential"):
            x.d_potential[...] = jnp.sum(x.potential_sum[...].T, axis=0, keepdims=True)


def _clear(x: SimpleNamespace, *names: str) -> None:
    for ref in (getattr(x, name) for name in names if hasattr(x, name)):
        ref[...] = jnp.zeros(ref.shape, ref.dtype)


def _on_seen(kind, add: Callable[[bool], None]) -> None:
    from jax.experimental import pallas as pl

    pl.when(kind == PARTLY)(lambda: add(False))
    pl.when(kind == WHOLLY)(lambda: add(True))


def _logits(plan: KernelPlan, x: SimpleNamespace, i, j, is_whole: bool):
    """The logits of a tile [S, T], HIDDEN where the query does not see the key."""
    s = plan.scale * _dot(x.k[...], x.q[...], 1, 1)
    pairs = None if is_whole else _pairs(x)
    if (bias := _bias(plan, x, i, j)) is not None:
        s = s + (bias if is_whole or plan.all_stand else jnp.where(apart(pairs), 0.0, bias))
    if hasattr(x, "potential"):
        s = s + jnp.broadcast_to(x.potential[...], (EIGHT, plan.k_block)).T[:, :1]
    return s if is_whole else jnp.where(seen(plan.masks, plan.causal, pairs), s, HIDDEN)


def _bias(plan: KernelPlan, x: SimpleNamespace, i, j):
    """The biases of a tile [S, T] by the offset; None if it has no bias."""
    found = []
    if hasattr(x, "row"):
        found.append(spread(x.row[:, _window(plan, x, i, j)], plan.k_block, plan.q_block))
    for own, vectors, table, product in _tables(x):
        products = (product(table[rows, :], vectors[at, :], 1, 1) for at, _, rows in _strips(plan, x, own, i, j))
        tile = jnp.concatenate([skewed(each) for each in products], axis=1)
        found.append(tile if own == "q" else tile.T)
    return sum(found[1:], found[0]) if found else None


def _pull_bias(plan: KernelPlan, x: SimpleNamespace, i, j, d_bias) -> None:
    """Adds up the gradients of what `_bias` reads."""
    if hasattr(x, "row"):
        x.d_row[:, _window(plan, x, i, j)] += gathered(d_bias)
    for own, vectors, table, product in _tables(x):
        d_tile = d_bias if own == "q" else d_bias.T
        d_table, d_vectors = getattr(x, f"d_{own}_table"), getattr(x, f"d_{own}_vectors")
        for n, (at, in_head, rows) in enumerate(_strips(plan, x, own, i, j)):
            d_product = unskewed(d_tile[:, n * LANES : (n + 1) * LANES]).astype(table.dtype)
            d_table[rows, :] += product(d_product, vectors[at, :], 1, 0)
            d_vectors[:, in_head] += product(table[rows, :], d_product, 0, 0)


def _tables(x: SimpleNamespace) -> list[tuple]:
    """The sides whose tokens have vectors: (q or k, these, the vectors of offsets, how the two are multiplied)."""
    each = [
        (own, getattr(x, f"{own}_vectors"), getattr(x, f"{own}_table")) for own in "qk" if hasattr(x, f"{own}_table")
    ]
    return [(*one, functools.partial(_dot, exact=one[2].dtype == jnp.float32)) for one in each]


def _strips(plan: KernelPlan, x: SimpleNamespace, own: str, i, j):
    """Parts of 128 tokens of a side: places in their block, in their head, and the rows of the table for the others."""
    from jax.experimental import pallas as pl

    k_blocks, q_blocks = x.tiles.shape
    sides = (i, q_blocks, plan.q_block), (j, k_blocks, plan.k_block)
    (n, blocks, size), (other, _, others) = sides if own == "q" else sides[::-1]
    for at in range(0, size, LANES):
        first = other * others + (blocks - n) * size - LANES - at
        in_head = pl.ds(pl.multiple_of(n * size + at, LANES), LANES)
        yield pl.ds(at, LANES), in_head, pl.ds(pl.multiple_of(first, LANES), others + LANES)


def _window(plan: KernelPlan, x: SimpleNamespace, i, j):
    """The part of the row that a tile reads."""
    from jax.experimental import pallas as pl

    start = i * plan.q_block + (x.tiles.shape[0] - 1 - j) * plan.k_block
    return pl.ds(pl.multiple_of(start, LANES), plan.k_block + plan.q_block)


def _pairs(x: SimpleNamespace) -> Pairs:
    of_keys = x.k_marks[...].T
    return Pairs(lambda row: x.q_marks[row : row + 1, :], lambda row: of_keys[:, row : row + 1])


def _dot(a, b, a_axis: int, b_axis: int, exact: bool = False):
    """The product of two matrices, summed over an axis of each."""
    precision = jax.lax.Precision.HIGHEST if exact else None
    axes = ((a_axis,), (b_axis,)), ((), ())
    return jax.lax.dot_general(a, b, axes, precision=precision, preferred_element_type=jnp.float32)


def _call(
    step: Callable,
    plan: KernelPlan,
    x: KernelOperands,
    given: Mapping[str, tuple[Array, Any]],
    out: Mapping[str, tuple[jax.ShapeDtypeStruct, Any]],
    scratch: Mapping[str, tuple[int, ...]],
    grid: Sequence[int],
) -> dict[str, jax.Array]:
    """Runs a step for every head and tile, with references to inputs, outputs and scratch by name."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    names = ["fetched_k", "fetched_q", "tiles", *given, *out, *scratch]

    def kernel(*refs):
        step(plan, SimpleNamespace(**dict(zip(names, refs, strict=True))))

    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=2,
        grid=(x.q.shape[0], *grid),
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), *(pl.BlockSpec(*block) for _, block in given.values())],
        out_specs=[pl.BlockSpec(*block) for _, block in out.values()],
        scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in scratch.values()],
    )
    run = pl.pallas_call(
        kernel,
        grid_spec=spec,
        out_shape=[shape for shape, _ in out.values()],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary", "arbitrary"), vmem_limit_bytes=plan.memory
        ),
        interpret=plan.interpret,
    )
    found = run(x.fetched_k, x.fetched_q, x.tiles, *(array for array, _ in given.values()))
    return dict(zip(out, found, strict=True))
