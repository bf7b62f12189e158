"""What a decoder costs at a length: memory, by what holds it, and floating-point operations; times from a calibration.

    sizes = sizes_of(Decoder(vocab_size=256, encoding="rope", width=128))
    cost(sizes, 8192, attention="blockwise", work="training").bytes
    longest(lambda n: cost(sizes, n, attention="dense", work="forward").bytes, 8 * 2**30)

A model of programs as XLA compiles them, without rematerialisation: right in how costs grow, good to a factor of two in
what they are, and to tens of percent once a `Calibration` on short lengths has told what compiler and machine make of
it. What an encoding itself computes in attention is left to the calibration, too.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import nnls

from posjax.encoding import sites
from posjax.models import Decoder
from posjax.spec import nearest

ATTENTIONS = ("dense", "blockwise", "window")
WORKS = ("forward", "training", "decoding")
TILE = 512  # of blockwise attention
_FLOAT = 4  # bytes of logits, statistics and what an optimiser keeps


class Sizes(NamedTuple):
    """A decoder's sizes; `value_bytes` is that of an activation, `parameters` counts the encoding's, too."""

    vocab_size: int
    width: int
    depth: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_dim: int
    gated: bool
    parameters: int
    value_bytes: int = 4
    parameter_bytes: int = 4


class Cost(NamedTuple):
    """Bytes by what holds them, and floating-point operations of the matrix products."""

    state: float  # parameters; in training their gradients and AdamW's two moments, too
    activations: float
    logits: float
    attention: float  # temporaries of attention beside q, k, v and what is read
    cache: float  # keys, values and sites of the tokens before
    linear_flops: float
    attention_flops: float

    @property
    def bytes(self) -> float:
        return self.state + self.activations + self.logits + self.attention + self.cache


class Calibration(NamedTuple):
    """What a model of costs cannot know of a machine and its compiler.

    Seconds for an operation in products with weights, for one in attention, and for a call; and by how much more than
    the model's own count a program keeps of activations.
    """

    linear: float
    attention: float
    call: float
    kept: float

    def seconds(self, cost: Cost) -> float:
        return self.linear * cost.linear_flops + self.attention * cost.attention_flops + self.call

    def bytes(self, cost: Cost) -> float:
        return cost.bytes + (self.kept - 1) * cost.activations


def sizes_of(model: Decoder) -> Sizes:
    """The sizes of a decoder, its parameters counted without making them."""
    token = jax.ShapeDtypeStruct((1, 2), jnp.int32)
    variables = jax.eval_shape(lambda token: model.init(jax.random.key(0), token, sites(2)), token)
    heads = model.num_heads
    return Sizes(
        model.vocab_size,
        model.width,
        model.depth,
        heads,
        model.num_kv_heads or heads,
        model.width // heads,
        model.mlp_dim or 4 * model.width,
        model.mlp == "swiglu",
        sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(variables)),
        jnp.dtype(model.dtype).itemsize,
        jnp.dtype(model.param_dtype).itemsize,
    )


def cost(sizes: Sizes, length: int, *, attention: str, work: str, batch: int = 1, window: int | None = None) -> Cost:
    """The cost of one pass over `batch` sequences of `length` tokens, or of one decoding step behind so many.

    Args:
      attention: "dense" builds [H, T, T] logits, "blockwise" tiles of them, "window" only the tiles near the diagonal.
        A decoding step attends densely; a window lets its cache forget.
      work: "forward" with its logits, "training" (gradients and an AdamW update), or "decoding".
      window: keys that a query sees; needed by attention="window".

    Raises:
      ValueError: for an unknown attention or work, a length or batch below 1, or a missing window.
    """
    _check(length, attention, work, batch, window)
    seen = length if window is None or attention != "window" else min(length, window)
    if work == "decoding":
        return _decoding(sizes, seen, batch)
    tokens, training = batch * length, work == "training"
    pairs = _pairs(length, attention, window) * batch
    again = 3 if training else 1
    attended = (3 if attention == "dense" else 3.5) if training else 1  # blockwise computes its logits anew
    return Cost(
        sizes.parameters * (sizes.parameter_bytes * 2 + _FLOAT * 2 if training else sizes.parameter_bytes),
        tokens * _activations(sizes, training),
        tokens * sizes.vocab_size * _FLOAT * (2 if training else 1),
        _attention_bytes(sizes, length, batch, attention, training),
        0.0,
        again * 2 * tokens * _weights(sizes),
        attended * 4 * pairs * sizes.num_heads * sizes.head_dim,
    )


def _activations(sizes: Sizes, training: bool) -> float:
    """Bytes for each token: what the backward pass reads again of every layer, or what is alive at once in one."""
    width, kv_width = sizes.width, sizes.num_kv_heads * sizes.head_dim
    read = 2 * width + 2 * kv_width  # q, k, v and what attention reads
    hidden = sizes.mlp_dim * (3 if sizes.gated else 2)
    if training:
        # Before and after both norms, q and k also rotated, the hidden layer before and after its activation.
        return sizes.value_bytes * (sizes.depth * (4 * width + read + width + kv_width + hidden) + 4 * width)
    return sizes.value_bytes * (2 * width + max(read + width, sizes.mlp_dim * (2 if sizes.gated else 1)))


def _attention_bytes(sizes: Sizes, length: int, batch: int, attention: str, training: bool) -> float:
    """Temporaries beside q, k and v: the weights of a layer (of every layer in training), or those of a tile."""
    statistics = 2 * length * sizes.num_heads * _FLOAT * batch
    if attention == "dense":
        layers = 3 * sizes.depth + 1 if training else 2
        return layers * batch * sizes.num_heads * length**2 * _FLOAT
    side = min(length, TILE)
    gradients = 4 * length * sizes.width * _FLOAT * batch if training else length * sizes.width * _FLOAT * batch
    return batch * sizes.num_heads * side**2 * _FLOAT * (3 if training else 2) + statistics + gradients


def _pairs(length: int, attention: str, window: int | None) -> float:
    """(query, key) pairs whose logits are computed: all, or those in the tiles that causality and the window leave."""
    if attention == "dense":
        return float(length) ** 2
    side = min(length, TILE)
    below = length * (length + side) / 2
    return below if attention == "blockwise" else min(below, length * (window + side))


def _weights(sizes: Sizes) -> float:
    """Weights that a token is multiplied with: those of the products, the head among them."""
    width, kv_width = sizes.width, sizes.num_kv_heads * sizes.head_dim
    layer = 2 * width**2 + 2 * width * kv_width + (3 if sizes.gated else 2) * width * sizes.mlp_dim
    return sizes.depth * layer + width * sizes.vocab_size


def _decoding(sizes: Sizes, seen: int, batch: int) -> Cost:
    slot = 2 * sizes.num_kv_heads * sizes.head_dim * sizes.value_bytes + 3 * _FLOAT  # key, value and site
    return Cost(
        sizes.parameters * sizes.parameter_bytes,
        batch * _activations(sizes, training=False),
        batch * sizes.vocab_size * _FLOAT,
        2 * batch * sizes.num_heads * seen * _FLOAT,
        sizes.depth * batch * seen * slot,
        2 * batch * _weights(sizes),
        sizes.depth * 4 * batch * seen * sizes.num_heads * sizes.head_dim,
    )


def _check(length: int, attention: str, work: str, batch: int, window: int | None) -> None:
    for what, value, known in (("attention", attention, ATTENTIONS), ("work", work, WORKS)):
        if value not in known:
            raise ValueError(f"no {what} is named {value!r}; {nearest(value, list(known))}")
    if length < 1 or batch < 1:
        raise ValueError(f"length={length} and batch={batch} must be at least 1")
    if attention == "window" and (window is None or window < 1):
        raise ValueError(f"attention='window' needs a window of at least 1, got {window}")


def calibrate(costs: Sequence[Cost], seconds: Sequence[float | None], held: Sequence[float | None]) -> Calibration:
    """What explains measured times best, by least squares of the relative error, and the bytes of the costliest program.

    Nothing is negative.

    Args:
      seconds, held: of programs with these costs, or None for one that was not measured. Without any bytes the model's
        own count of activations is taken.

    Raises:
      ValueError: for no time at all, or one that is not positive.
    """
    timed = [(cost, second) for cost, second in zip(costs, seconds, strict=True) if second is not None]
    if not timed or min(second for _, second in timed) <= 0:
        raise ValueError(f"a calibration needs positive times, got {list(seconds)}")
    rows = np.array([(cost.linear_flops, cost.attention_flops, 1.0) for cost, _ in timed])
    scale = rows.max(axis=0)  # the columns differ by ten orders of magnitude
    found, _ = nnls(rows / scale / np.array([second for _, second in timed])[:, None], np.ones(len(timed)))
    told = [(cost, size) for cost, size in zip(costs, held, strict=True) if size is not None]
    kept = 1.0
    if told:  # the longest says most: compilers fuse less where arrays are large
        longest_cost, size = max(told, key=lambda pair: pair[0].linear_flops + pair[0].attention_flops)
        kept = max(0.0, 1 + (size - longest_cost.bytes) / longest_cost.activations)
    return Calibration(*(found / scale).tolist(), kept)


def longest(needed: Callable[[int], float], limit: float, most: int = 2**40) -> int:
    """The largest length whose need, which never falls with the length, is within the limit: 0 if none, at most `most`."""
    if needed(1) > limit:
        return 0
    low, high = 1, 2
    while high < most and needed(high) <= limit:
        low, high = high, 2 * high
    if high >= most:
        return most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if needed(middle) <= limit else (low, middle)
    return low
