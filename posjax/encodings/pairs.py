"""The pairs of tokens that have a bias, and the value of a function of their offset on a tile."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int32, Shaped

from posjax.encoding import Array, Encoding, Params, Site, both_stand, side_by_side
from posjax.gradients import with_transpose
from posjax.mask import offset

# The bias that hides a key from one head, as a `mask` is the same for all heads; finite, so no arithmetic meets -inf.
HIDDEN = -1e9
_BLOCK = 128  # lanes of a TPU
_HELD = 2**20  # activations of a hidden layer that are held at a time


class OffsetBias(Encoding):
    """A bias that is a function of the offset k - q, and 0 where one of the two stands nowhere."""

    def bias(self, params, q, q_site, k, k_site):
        start, to = self.coordinates(q_site), self.coordinates(k_site)
        if self.by_row and side_by_side(q_site) and side_by_side(k_site) and q_site.segment[0] == k_site.segment[0]:
            offsets = np.concatenate([offset(start[::-1], to[:1]), offset(start[:1], to[1:])])
            return toeplitz(self.of_offset(params, offsets[None], q.shape[1])[:, 0], len(start), len(to))
        offsets = offset(start[:, None], to[None])
        return jnp.where(related(q_site, k_site), self.of_offset(params, offsets, q.shape[1]), 0.0)

    def of_offset(self, params: Params, offset: Shaped[Array, "T S A"], num_heads: int) -> Float[jax.Array, "#H T S"]:
        """The bias of each head at each offset, in float32."""
        raise NotImplementedError

    @property
    def by_row(self) -> bool:
        """Whether the pairs of a line are computed once for each offset."""
        return True


_LISTED = 2**16  # offsets up to here are listed: one look-up is faster than a search


class Steps(NamedTuple):
    """A step function of whole offsets: `bucket[i]` from offset `first[i]` on, up to the next; constant beyond `far`."""

    first: Int32[np.ndarray, " B"]  # rises; the lowest is -far
    bucket: Int32[np.ndarray, " B"]
    far: int

    @classmethod
    def of_distances(cls, least: Sequence[int], far: int, before: Callable, after: Callable) -> "Steps":
        """The steps where `least` holds the least distance of bucket 0, 1, ...; some may hold none.

        `before` and `after` number the buckets of offsets up to 0 and above it.
        """
        least = np.array(least, np.int64)
        ends = np.append(least[1:], far + 1)
        held = np.flatnonzero(ends > least)
        first = np.append(1 - ends[held][::-1], least[held][1:]).astype(np.int32)
        bucket = np.append(before(held[::-1]), after(held[1:])).astype(np.int32)
        new = np.append(True, np.diff(bucket) != 0)
        return cls(first[new], bucket[new], far)

    def at(self, offset: Shaped[Array, "*N"]) -> Int32[jax.Array, "*N"]:
        """The bucket of each offset, which is truncated to a whole number; all look-ups exist."""
        offset = whole_offset(offset, self.far)
        if self.far <= _LISTED:
            return jnp.take(self.listed(), offset + self.far, mode="clip")
        return jnp.take(self.bucket, jnp.searchsorted(self.first, offset, side="right") - 1, mode="clip")

    def listed(self) -> Int32[np.ndarray, " O"]:
        """The bucket of each offset from -far to far."""
        return np.repeat(self.bucket, np.diff(self.first, append=self.far + 1))


class ElementwiseBias(OffsetBias):
    """A bias that is one function of a few constants of the head and of the offset, element by element.

    `logit` states it once; dense tiles, blockwise attention and the GPU kernel all call it. It may use comparisons,
    `where`, arithmetic, abs, exp and log, but no look-ups or reductions.
    """

    def steps(self) -> Steps | None:
        """The index of the constant that a bias takes at each whole offset.

        Between whole offsets it is as at the one nearer to 0. On several axes it is a sum, to which each axis has its own
        share of the constants. None for all other biases.
        """
        return None

    @property
    def constant_beyond(self) -> float:
        """From this offset on, on either side, the bias is constant."""
        return math.inf if (steps := self.steps()) is None else steps.far

    def constants(self, params: Params, num_heads: int) -> Float[Array, "H P"]:
        """The constants of each head for `logit`, in float32; gradients flow back through them to the parameters."""
        return jnp.zeros((num_heads, 0), jnp.float32)

    def logit(self, constants: tuple[Any, ...], offset: tuple[Any, ...]) -> Any:
        """The bias of a head from its P constants, at offsets k - q, an array for each position axis."""
        raise NotImplementedError

    @property
    def by_row(self):
        return self.steps() is not None  # arithmetic of pairs becomes a part of the softmax

    def of_offset(self, params, offset, num_heads):
        constants = self.constants(params, num_heads)
        axes = tuple(offset[..., axis] for axis in range(offset.shape[-1]))
        if (steps := self.steps()) is None:
            return self.logit(tuple(constants[:, index, None, None] for index in range(constants.shape[1])), axes)
        if (count := constants.shape[1] // (int(steps.bucket.max()) + 1)) != len(axes):
            raise ValueError(f"{self} has constants for {count} position axes, got {len(axes)}")
        shares = jnp.split(constants, len(axes), axis=1)
        # Two gathers: the gradient of the second one is a scatter, faster with fewer rows.
        return sum(
            jnp.take(share, steps.at(axis), axis=1, mode="clip") for share, axis in zip(shares, axes, strict=True)
        )


def related(q_site: Site, k_site: Site) -> Bool[Array, "T S"]:
    """Marks pairs in the same document that both stand somewhere; positions of other pairs mean nothing."""
    return both_stand(q_site, k_site) & same_document(q_site, k_site)


def shifted(x: Float[Array, "*N T L"], num_columns: int, step: int) -> Float[jax.Array, "*N T S"]:
    """Shifts row t left by t (step 1) or by T - 1 - t (step -1; L is at least T + S) and keeps the first columns.

    Rows that are longer or shorter by one, read from the same numbers, shift each by one more than the row before. A slice of
    each row takes four times the cycles on a TPU.
    """
    *first, rows, length = x.shape
    flat = x.reshape(*first, -1)
    flat = jnp.pad(flat, [*[(0, 0)] * len(first), (0, rows)]) if step == 1 else flat[..., rows - 1 : -1]
    return flat.reshape(*first, rows, length + step)[..., :num_columns]


def toeplitz(row: Float[Array, "H L"], num_q: int, num_k: int) -> Float[jax.Array, "H T S"]:
    """Returns row[h, s - t + T - 1], from one value for each of L = T + S - 1 offsets.

    On GPUs XLA fuses slices into the softmax, and would write blocks to memory. The transpose of slices is a scatter, which
    adds numbers one by one: `sums_of_diagonals` takes its place.
    """

    def in_slices(row):
        of_query = lambda t: jax.lax.dynamic_slice_in_dim(row, num_q - 1 - t, num_k, axis=1)  # noqa: E731
        return jax.vmap(of_query, out_axes=1)(jnp.arange(num_q, dtype=jnp.int32))

    in_blocks = lambda row: toeplitz_of_blocks(row, num_q, num_k)  # noqa: E731
    on_gpu = with_transpose(in_slices, sums_of_diagonals)
    return jax.lax.platform_dependent(row, cpu=in_slices, tpu=in_blocks, default=on_gpu)


def sums_of_diagonals(x: Float[Array, "H T S"]) -> Float[jax.Array, "H L"]:
    """The transpose of `toeplitz`: entry l sums x[h, t, l + t - T + 1]."""
    heads, rows, columns = x.shape
    flat = jnp.pad(x, ((0, 0), (0, 0), (0, rows))).reshape(heads, -1)
    # Cut into rows that are longer by one, each begins a place to the left of the last.
    flat = jnp.pad(flat, ((0, 0), (rows - 1, 1)))
    return flat.reshape(heads, rows, -1)[..., : rows + columns - 1].sum(axis=1)


def toeplitz_of_blocks(row: Float[Array, "H L"], num_q: int, num_k: int) -> Float[jax.Array, "H T S"]:
    """Returns `toeplitz` made of square blocks, of which those on a diagonal are equal.

    A TPU needs a 35th of the cycles of one slice a row, and a 15th for its gradient, which takes a CPU six times as long.
    """
    side = min(_BLOCK, num_q, num_k)
    rows, columns = -(-num_q // side), -(-num_k // side)
    whole = jnp.pad(row, ((0, 0), (rows * side - num_q, columns * side - num_k + 1))).reshape(len(row), -1, 1, side)
    windows = jnp.concatenate([whole[:, :-1], whole[:, 1:]], axis=3)  # of the offsets of each diagonal of blocks
    blocks = shifted(jnp.broadcast_to(windows, (*windows.shape[:2], side, 2 * side)), side, -1)
    lines = [jnp.moveaxis(blocks[:, i : i + columns], 1, 2) for i in reversed(range(rows))]
    return jnp.concatenate(lines, axis=1).reshape(len(row), rows * side, -1)[:, :num_q, :num_k]


def same_document(q_site: Site, k_site: Site) -> Bool[Array, "T S"]:
    return (q_site.segment[:, None] == k_site.segment[None]) & (k_site.segment > 0)[None]


def length(offset: tuple[Array, ...]) -> Float[jax.Array, "..."]:
    """The Euclidean length of offsets, an array for each axis, at least 1e-15, with a gradient of 0 there."""
    offset = [jnp.asarray(axis, jnp.float32) for axis in offset]
    if len(offset) == 1:
        return jnp.abs(offset[0])
    # No choice by `squared > 0`: XLA may compute that twice, fused with what comes before, and once round 0 to more than 0.
    return jnp.sqrt(jnp.maximum(sum(jnp.square(axis) for axis in offset), 1e-30))


def whole_offset(offset: Shaped[Array, "*N"], far: int) -> Int32[Array, "*N"]:
    """The offset, truncated to a whole number and clipped to `far` on either side."""
    return jnp.clip(jnp.trunc(offset), -far, far).astype(jnp.int32)


def log_offset(offset: Float[jax.Array, "*N A"]) -> Float[jax.Array, "*N A"]:
    """sign(x) ln(1 + |x|) of each coordinate."""
    return jnp.sign(offset) * jnp.log1p(jnp.abs(offset))


def per_head(values: np.ndarray) -> Array:
    """Values of shape [H, 1, 1], which broadcast over the tile of each head; floats in float32."""
    values = np.asarray(values)
    return (values.astype(np.float32) if values.dtype == np.float64 else values)[:, None, None]


def pairwise(
    function: Callable[[jax.Array], jax.Array], features: Float[jax.Array, "T S F"], hidden: int
) -> Float[jax.Array, "H T S"]:
    """Applies function([..., F]) -> [..., H], whose hidden layers are `hidden` wide, to every pair.

    A tile's hidden layer would dwarf its logits, so only some queries are computed at a time, and again in the
    backward pass.
    """
    queries = max(1, _HELD // (features.shape[1] * hidden))
    if features.shape[0] <= queries:
        return jnp.moveaxis(function(features), -1, 0)
    return jnp.moveaxis(jax.lax.map(jax.checkpoint(function), features, batch_size=queries), -1, 0)


def linear_init(key: jax.Array, inputs: int, outputs: int, *, bias: bool = True) -> dict[str, Any]:
    """A kernel [inputs, outputs] and a bias [outputs], uniform within inputs^(-1/2) of 0 as torch.nn.Linear's are."""
    keys, bound = jax.random.split(key), inputs**-0.5
    layer = {"kernel": jax.random.uniform(keys[0], (inputs, outputs), jnp.float32, minval=-bound, maxval=bound)}
    return layer | (
        {"bias": jax.random.uniform(keys[1], (outputs,), jnp.float32, minval=-bound, maxval=bound)} if bias else {}
    )


def linear(layer: dict[str, Any], x: Float[jax.Array, "*N F"]) -> Float[jax.Array, "*N G"]:
    """x times the kernel plus the bias, if there is one, in full float32 on every device."""
    return jnp.matmul(x, layer["kernel"], precision="highest") + layer.get("bias", 0.0)
