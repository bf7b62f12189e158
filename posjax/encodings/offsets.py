"""Look-ups by the offset of a query and a key: the key's position minus the query's.

Tokens of a document mostly stand side by side: then the offset of every related pair is first + s - t, with one constant
`first`, and the values of all pairs are a matrix of queries by offsets whose every row is shifted by one more than the row
before (`shifted`). A gather of single values is slow, its gradient, a scatter, slower. `Line` says whether tokens stand so.
It is data, so the program chooses between the two ways when it runs.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int32

from posjax.encoding import Array, Encoding, Params, Site, axes
from posjax.encodings.pairs import related, shifted
from posjax.encodings.tables import numpy_if_known

_FEW = 32  # queries in a block: fewer make its products slow
_BLOCKS = 8
_SQUARE = 128  # queries in a block that reads diagonals
_ENOUGH = np.int32(2**30)


Both = tuple[jax.Array | None, jax.Array | None]  # of queries, and of keys; None where these have no term


class ProductBias(Encoding):
    """A bias a . r(k - q), a vector of the query, or of the key, times one of the offset; 0 where a token stands nowhere.

    Dense tiles, blockwise attention and the kernel for TPUs all read `factors`, `of_offset` and `of_keys`.
    """

    terms = 1  # of two: whether queries, or keys, or both have vectors
    exact = False  # whether vectors are a few numbers that are never rounded: tiles take them pair by pair

    def bias(self, params, q, q_site, k, k_site):
        self.coordinates(q_site), self.coordinates(k_site)
        line = Line(0, False) if self.exact else line_of(q_site, k_site)
        bias = choose(
            line.holds,
            lambda params, factors: self.on_line(params, factors, q_site, k_site, line.first),
            lambda params, factors: self.anywhere(params, factors, q_site, k_site),
            params,
            self.factors(params, q, q_site, k, k_site),
        )
        bias, numbers = jnp.where(related(q_site, k_site), bias, 0.0), self.of_keys(params, k)
        return bias if numbers is None else bias + numbers.T[:, None]

    def factors(
        self, params: Params, q: Float[Array, "T H D"], q_site: Site, k: Float[Array, "S H D"], k_site: Site
    ) -> Both:
        """The vectors of queries, [T, H, C], and of keys, [S, H, E], in float32."""
        raise NotImplementedError

    def of_offset(self, params: Params, offset: Int32[Array, " L"]) -> Both:
        """The vectors [L, #H, C], and [L, #H, E], at whole offsets on a line."""
        raise NotImplementedError

    def of_keys(self, params: Params, k: Float[Array, "S H D"]) -> Float[jax.Array, "S H"] | None:
        """A number of each key, which all queries have, wherever the two stand; None: there is none."""
        return None

    def anywhere(self, params: Params, factors: Both, q_site: Site, k_site: Site) -> Float[Array, "H T S"]:
        """The bias of pairs that stand on no line; numbers of unrelated pairs mean nothing."""
        raise NotImplementedError

    def on_line(
        self, params: Params, factors: Both, q_site: Site, k_site: Site, first: Int32[Array, ""] | int
    ) -> Float[Array, "H T S"]:
        """The same on a line. The rows start at the pair of the last query and the first key; the last row is spare."""
        (asked, answered), bias = factors, 0.0
        num_q, num_k = len(q_site.segment), len(k_site.segment)
        steps = np.arange(num_q + num_k, dtype=np.int32)
        if asked is not None:
            rows = self.of_offset(params, first + steps - (num_q - 1))[0]
            bias = bias + products_on_line(asked, rows, num_k)
        if answered is not None:
            rows = self.of_offset(params, first - steps + (num_k - 1))[1]
            bias = bias + products_on_line(answered, rows, num_q).swapaxes(1, 2)
        return bias


class Line(NamedTuple):
    """Whether the offset of all related pairs is first + s - t, with s and t the places of key and query in the arrays.

    Under `jax.vmap` it is so for all sequences of the batch, with one `first`, or for none: neither has a batch axis.
    """

    first: Int32[Array, ""] | int
    holds: Bool[Array, ""] | np.bool_ | bool  # a bool where it is known at tracing time


def line_of(q_site: Site, k_site: Site) -> Line:
    """The line of whole positions on one axis. Several axes, fractional positions or a single query are no line."""
    q_position, k_position = axes(q_site), axes(k_site)
    whole = all(np.issubdtype(position.dtype, np.integer) for position in (q_position, k_position))
    if q_position.shape[1] > 1 or len(q_position) == 1 or not whole:
        return Line(0, False)
    place = np.arange(len(k_position), dtype=np.int32) - np.arange(len(q_position), dtype=np.int32)[:, None]
    first, pairs = k_position[:, 0] - q_position - place, related(q_site, k_site)
    where = numpy_if_known(first, pairs)
    least = where.min(where.where(pairs, first, _ENOUGH))
    most = where.max(where.where(pairs, first, -_ENOUGH))
    if where is np:
        return Line(int(least), bool(least >= most))
    least, most = of_batch(least, most)
    return Line(least, least >= most)


@jax.custom_batching.custom_vmap
def of_batch(least: Int32[Array, ""], most: Int32[Array, ""]):
    """The least and the greatest value in the batch: given a condition with a batch axis, `cond` computes both branches."""
    return least, most


@of_batch.def_vmap
def _of_batch_rule(axis_size, batched, least, most):
    least = jnp.min(least) if batched[0] else least
    most = jnp.max(most) if batched[1] else most
    return of_batch(least, most), (False, False)


def for_all(flag: Bool[Array, ""] | np.bool_ | bool) -> Bool[Array, ""] | np.bool_ | bool:
    """Whether it holds for all sequences of a batch, under `jax.vmap`: without a batch axis."""
    return of_batch(flag.astype(jnp.int32), jnp.int32(1))[0] > 0 if isinstance(flag, jax.core.Tracer) else flag


def choose(holds: Bool[Array, ""] | np.bool_ | bool, then: Callable, otherwise: Callable, *operands):
    """Computes one of two functions of arrays; chosen while tracing where the condition is known then.

    Where it is not, the backward pass recomputes everything but the operands: residuals of `cond` take memory for both
    functions, in the layout of the larger one.
    """
    if isinstance(holds, jax.core.Tracer):
        return jax.lax.cond(holds, jax.checkpoint(then), jax.checkpoint(otherwise), *operands)
    return (then if holds else otherwise)(*jax.tree.map(jnp.asarray, operands))


def at(by_row: Float[Array, "H T R"], row: Int32[Array, "*#H T S"]) -> Float[Array, "H T S"]:
    """by_row[h, t, row[h, t, s]]; the rows are known to exist."""
    return jnp.take_along_axis(by_row, row if row.ndim == 3 else row[None], axis=2, mode="promise_in_bounds")


def sums_at(x: Float[Array, "H T S"], row: Int32[Array, "T S"], num_rows: int) -> Float[Array, "H T R"]:
    """Sums x over the keys that share a row: the transpose of `at`."""
    query = np.arange(x.shape[1], dtype=np.int32)[:, None]
    return jnp.zeros((*x.shape[:2], num_rows), x.dtype).at[:, query, row].add(x, mode="promise_in_bounds")


def sums_on_line(
    x: Float[Array, "H T S"], first: Int32[Array, ""] | int, left: int, right: int
) -> Float[Array, "H T R"]:
    """`sums_at` on a line: sums over the keys at each offset from -left to right; keys beyond count at either end."""
    _, num_q, num_k = x.shape
    offset = first + (np.arange(num_k) - np.arange(num_q)[:, None]).astype(np.int32)
    ends = [jnp.sum(jnp.where(beyond, x, 0.0), axis=2, keepdims=True) for beyond in (offset <= -left, offset >= right)]
    # Columns of x from `start` on, zeros outside of it, so that query t finds the offset 1 - left in column t.
    width = num_q + left + right - 1
    start = jnp.clip(1 - left - first, -width, num_k)
    around = jnp.pad(x, ((0, 0), (0, 0), (width, width)))
    near = jax.lax.dynamic_slice_in_dim(around, start + width, width, axis=2)
    between = [diagonals(near, left + right - 1)] if left + right > 1 else []
    return jnp.concatenate([ends[0], *between, ends[1]], axis=2)


def diagonals(x: Float[Array, "H T W"], count: int) -> Float[jax.Array, "H T C"]:
    """Returns x[h, t, t : t + count]; W = T + count - 1."""
    in_blocks = lambda x: diagonals_in_blocks(x, count)  # noqa: E731
    return jax.lax.platform_dependent(x, tpu=in_blocks, default=lambda x: shifted(x, count, 1))


def diagonals_in_blocks(x: Float[Array, "H T W"], count: int) -> Float[jax.Array, "H T C"]:
    """Returns `diagonals`, in blocks of queries, which read few columns beside their own.

    A TPU needs a third of the cycles and copies nothing; a CPU takes twice as long.
    """
    heads, num_q, _ = x.shape
    size = min(_SQUARE, num_q)
    x = jnp.pad(x, ((0, 0), (0, -num_q % size), (0, -num_q % size)))
    blocks = [x[:, i : i + size, i : i + size + count - 1] for i in range(0, num_q, size)]
    return shifted(jnp.stack(blocks, axis=1), count, 1).reshape(heads, -1, count)[:, :num_q]


def at_line(
    by_row: Float[Array, "H T R"], num_keys: int, first: Int32[Array, ""] | int, left: int, right: int
) -> Float[jax.Array, "H T S"]:
    """by_row at row offset + left, the offset clipped to -left and right, on a line."""
    heads, num_q, _ = by_row.shape
    pairs = jax.ShapeDtypeStruct((heads, num_q, num_keys), by_row.dtype)
    return jax.linear_transpose(lambda x: sums_on_line(x, first, left, right), pairs)(by_row)[0]


def products_on_line(
    x: Float[Array, "T H D"], rows: Float[Array, " L #H D"], num_keys: int
) -> Float[jax.Array, "H T S"]:
    """x[t] . rows[s - t + T - 1] of each head; L = T + S, and the last row is spare.

    Works on blocks of queries: the product of a block with all rows that its queries read is little larger than the result.
    """
    x, rows = jnp.swapaxes(x, 0, 1), jnp.swapaxes(rows, 0, 1)
    heads, num_q, channels = x.shape
    rows = jnp.broadcast_to(rows, (heads, *rows.shape[1:]))
    size = min(num_q, max(_FEW, -(-num_q // _BLOCKS)))
    blocks = -(-num_q // size)
    missing = blocks * size - num_q
    x = jnp.pad(x, ((0, 0), (0, missing), (0, 0))).reshape(heads, blocks, size, channels)
    rows = jnp.pad(rows, ((0, 0), (missing, 0), (0, 0)))
    starts = [(blocks - 1 - block) * size for block in range(blocks)]
    rows = jnp.stack([rows[:, start : start + size + num_keys] for start in starts], axis=1)
    product = jnp.einsum("hbtd,hbld->hbtl", x, rows, preferred_element_type=jnp.float32)
    return shifted(product, num_keys, -1).reshape(heads, -1, num_keys)[:, :num_q]
