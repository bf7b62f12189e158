"""What a decoder costs at a length: memory, by what holds it, and floating-point operations; times from a calibration.

    sizes = sizes_of(Decoder(vocab_size=256, encoding="rope", width=128))
    cost(sizes, 8192, attention="blockwise", work="training").bytes
    longest(lambda n: cost(sizes, n, attention="dense", work="forward").bytes, 8 * 2**30)

A model of programs as XLA compiles them, without rematerialisation: right in how costs grow, good to a factor of three in
what they are, and to about a tenth once programs of some length have told what compiler and machine make of it
(`fit_memory`, `fit_times`). What an encoding itself computes in attention is left to that, too. Not known: lengths from
which on a compiler does otherwise than it did.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import nnls

from posjax.attention.tiles import tile_sizes
from posjax.encoding import Encoding, sites
from posjax.models import Decoder
from posjax.models.block import GATED
from posjax.models.latent import Latent
from posjax.spec import nearest, parse_layers

ATTENTIONS = ("dense", "blockwise", "window")
WORKS = ("forward", "training", "decoding")
_FLOAT = 4  # bytes of logits, statistics and what an optimiser keeps


class Sizes(NamedTuple):
    """A decoder's sizes.

    `mlp_dim` is that of all experts, `value_bytes` that of an activation; `parameters` counts the encoding's, too.
    """

    vocab_size: int
    width: int
    depth: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_dim: int
    gated: bool
    parameters: int
    encodings: tuple[Encoding, ...]  # they say how large the tiles of blockwise attention are
    value_bytes: int = 4
    parameter_bytes: int = 4
    latent: Latent | None = None

    @property
    def value_dim(self) -> int:
        """Channels of a head's values."""
        return self.head_dim if self.latent is None else self.latent.v_head_dim

    @property
    def slot(self) -> int:
        """Channels that a layer's cache keeps of a token."""
        if self.latent is None:
            return self.num_kv_heads * (self.head_dim + self.value_dim)
        return self.latent.kv_lora_rank + self.latent.qk_rope_head_dim

    @property
    def compressed(self) -> int:
        """Channels of a token between the two projections to its queries, keys and values."""
        return 0 if self.latent is None else self.slot + (self.latent.q_lora_rank or 0)


class Cost(NamedTuple):
    """Bytes by what holds them, and floating-point operations of the matrix products."""

    state: float  # parameters; in training their gradients and AdamW's two moments, too
    activations: float
    logits: float
    attention: float  # temporaries of attention beside q, k, v and what is read
    cache: float  # keys, values and sites of the tokens before
    tiles: float  # of blockwise attention: the tile at hand
    linear_flops: float
    attention_flops: float

    @property
    def bytes(self) -> float:
        return self.bytes_if(1.0)

    def bytes_if(self, kept: float) -> float:
        """As `bytes`, where a program keeps `kept` times what this model counts of all that grows with the length."""
        return self.state + self.tiles + kept * self.growing

    @property
    def growing(self) -> float:
        return self.activations + self.logits + self.attention + self.cache


class Times(NamedTuple):
    """Seconds for an operation in products with weights, for one in attention, and for a call."""

    linear: float
    attention: float
    call: float

    def seconds(self, cost: Cost) -> float:
        return self.linear * cost.linear_flops + self.attention * cost.attention_flops + self.call


def sizes_of(model: Decoder) -> Sizes:
    """The sizes of a decoder, its parameters counted without making them."""
    token = jax.ShapeDtypeStruct((1, 2), jnp.int32)
    variables = jax.eval_shape(lambda token: model.init(jax.random.key(0), token, sites(2)), token)
    block = model.block
    return Sizes(
        model.vocab_size,
        model.block.width,
        model.depth,
        model.block.num_heads,
        block.key_heads,
        block.channels,
        block.mlp_channels * max(block.num_experts, 1),
        block.mlp in GATED,
        sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(variables)),
        parse_layers(model.encoding),
        jnp.dtype(model.block.dtype).itemsize,
        jnp.dtype(model.block.param_dtype).itemsize,
        block.latent,
    )


def cost(sizes: Sizes, length: int, *, attention: str, work: str, batch: int = 1, window: int | None = None) -> Cost:
    """The cost of one pass over `batch` sequences of `length` tokens, or of one decoding step behind so many.

    Args:
      attention: "dense" builds [H, T, T] logits, "blockwise" tiles of them, "window" only the tiles near the diagonal.
        A decoding step attends densely; a window lets its cache forget.
      work: "forward" with its logits, "training" (gradients and an AdamW update), or "decoding".
      window: keys that a query sees; needed by attention="window", whose sizes are those of a model with that window.

    Raises:
      ValueError: for an unknown attention or work, a length or batch below 1, or a missing window.
    """
    _check(length, attention, work, batch, window)
    seen = length if window is None or attention != "window" else min(length, window)
    if work == "decoding":
        return _decoding(sizes, seen, batch)
    tokens, training = batch * length, work == "training"
    tile = tile_of(sizes, length)
    pairs = _pairs(length, attention, window, tile) * batch
    again = 3 if training else 1
    attended = (3 if attention == "dense" else 3.5) if training else 1  # blockwise computes its logits anew
    return Cost(
        sizes.parameters * (sizes.parameter_bytes * 2 + _FLOAT * 2 if training else sizes.parameter_bytes),
        tokens * _activations(sizes, training),
        tokens * sizes.vocab_size * _FLOAT * (2 if training else 1),
        batch * _attention_bytes(sizes, length, attention, training),
        0.0,
        0.0 if attention == "dense" else _tile_bytes(sizes, tile, training),
        again * 2 * tokens * _weights(sizes),
        attended * 2 * pairs * sizes.num_heads * (sizes.head_dim + sizes.value_dim),
    )


def _activations(sizes: Sizes, training: bool) -> float:
    """Bytes for each token: what the backward pass reads again of every layer, or what is alive at once in one."""
    width, turned = sizes.width, (sizes.num_heads + sizes.num_kv_heads) * sizes.head_dim
    # q, k, v, what they are projected from and what attention reads
    read = turned + (sizes.num_heads + sizes.num_kv_heads) * sizes.value_dim + sizes.compressed
    hidden = sizes.mlp_dim * (3 if sizes.gated else 2)
    if training:
        # Before and after both norms, q and k also rotated, the hidden layer before and after its activation.
        return sizes.value_bytes * (sizes.depth * (4 * width + read + turned + hidden) + 4 * width)
    rotated = sizes.num_heads * sizes.head_dim
    return sizes.value_bytes * (2 * width + max(read + rotated, sizes.mlp_dim * (2 if sizes.gated else 1)))


def _attention_bytes(sizes: Sizes, length: int, attention: str, training: bool) -> float:
    """Beside q, k and v: the weights of a layer (of every layer in training), or what a loop over tiles carries."""
    if attention == "dense":
        layers = 3 * sizes.depth + 1 if training else 2
        return layers * sizes.num_heads * length**2 * _FLOAT
    statistics = 2 * length * sizes.num_heads * _FLOAT
    so_far = length * sizes.num_heads * sizes.value_dim * _FLOAT  # what has been read, and gradients of that size
    return statistics + (4 if training else 1) * so_far


def tile_of(sizes: Sizes, length: int) -> tuple[int, int]:
    """Queries and keys of a tile of blockwise attention, the largest of all layers."""
    return max((tile_sizes(encoding, length, length, None) for encoding in sizes.encodings), key=math.prod)


def _tile_bytes(sizes: Sizes, tile: tuple[int, int], training: bool) -> float:
    """The temporaries of a tile."""
    return sizes.num_heads * math.prod(tile) * _FLOAT * (3 if training else 2)


def _tiles_below(length: int, tile: tuple[int, int]) -> float:
    rows, columns = (-(-length // side) for side in tile)
    return rows * (columns + 1) / 2


def _pairs(length: int, attention: str, window: int | None, tile: tuple[int, int]) -> float:
    """(query, key) pairs whose logits are computed: all, or those in the tiles that causality and the window leave."""
    if attention == "dense":
        return float(length) ** 2
    below = _tiles_below(length, tile) * math.prod(tile)
    return below if attention == "blockwise" else min(below, length * (window + tile[1]))


def _weights(sizes: Sizes) -> float:
    """Weights that a token is multiplied with: those of the products, the head among them."""
    layer = _attention_weights(sizes) + (3 if sizes.gated else 2) * sizes.width * sizes.mlp_dim
    return sizes.depth * layer + sizes.width * sizes.vocab_size


def _attention_weights(sizes: Sizes) -> int:
    """Of one layer's projections."""
    width, queries, read = sizes.width, sizes.num_heads * sizes.head_dim, sizes.num_heads * sizes.value_dim
    if sizes.latent is None:
        return width * (queries + read + sizes.slot)
    rank = sizes.latent.q_lora_rank
    up = sizes.latent.kv_lora_rank * (sizes.num_heads * sizes.latent.qk_nope_head_dim + read)
    return width * (sizes.compressed + read) + up + (width if rank is None else rank) * queries


def _decoding(sizes: Sizes, seen: int, batch: int) -> Cost:
    slot = sizes.slot * sizes.value_bytes + 4 * _FLOAT  # key, value, site and order
    multiplied = sizes.head_dim + sizes.value_dim if sizes.latent is None else sizes.slot + sizes.latent.kv_lora_rank
    return Cost(
        sizes.parameters * sizes.parameter_bytes,
        batch * _activations(sizes, training=False),
        batch * sizes.vocab_size * _FLOAT,
        2 * batch * sizes.num_heads * seen * _FLOAT,
        sizes.depth * batch * seen * slot,
        0.0,
        2 * batch * _weights(sizes),
        sizes.depth * 2 * batch * seen * sizes.num_heads * multiplied,
    )


def _check(length: int, attention: str, work: str, batch: int, window: int | None) -> None:
    for what, value, known in (("attention", attention, ATTENTIONS), ("work", work, WORKS)):
        if value not in known:
            raise ValueError(f"no {what} is named {value!r}; {nearest(value, list(known))}")
    if length < 1 or batch < 1:
        raise ValueError(f"length={length} and batch={batch} must be at least 1")
    if attention == "window" and (window is None or window < 1):
        raise ValueError(f"attention='window' needs a window of at least 1, got {window}")


def fit_memory(costs: Sequence[Cost], held: Sequence[float | None]) -> float:
    """How many times what the model counts programs keep of what grows with the length: `kept` of `Cost.bytes_if`.

    The costliest program decides, as compilers do otherwise where arrays are large.

    Args:
      held: bytes of programs with these costs, or None for one that was not compiled. Without any the count is taken.
    """
    told = [(cost, size) for cost, size in zip(costs, held, strict=True) if size is not None]
    if not told:
        return 1.0
    most, size = max(told, key=lambda pair: pair[0].growing)
    return max(0.0, (size - most.state - most.tiles) / most.growing)


def fit_times(costs: Sequence[Cost], seconds: Sequence[float | None]) -> Times:
    """What explains measured times best, by least squares of the relative error, then scaled to meet the longest of them.

    None is negative. Scaled, because programs slow down where arrays leave the caches: longer ones are like the longest.

    Args:
      seconds: of programs with these costs, or None for one that was not measured.

    Raises:
      ValueError: for no time at all, or one that is not positive.
    """
    timed = [(cost, second) for cost, second in zip(costs, seconds, strict=True) if second is not None]
    if not timed or min(second for _, second in timed) <= 0:
        raise ValueError(f"times are fitted to positive ones, got {list(seconds)}")
    rows = np.array([(cost.linear_flops, cost.attention_flops, 1.0) for cost, _ in timed])
    scale = rows.max(axis=0)  # the columns differ by ten orders of magnitude
    found, _ = nnls(rows / scale / np.array([second for _, second in timed])[:, None], np.ones(len(timed)))
    rates = found / scale
    last = int(np.argmax([second for _, second in timed]))
    return Times(*(rates * timed[last][1] / (rows[last] @ rates)).tolist())


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
