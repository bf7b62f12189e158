"""Long texts read by a trained decoder: loss by length, loss by position, retrieval.

Memory grows with the length and never with its square: attention is computed in tiles, and everything that works token by
token (the blocks' MLPs, the logits and their loss) a chunk of positions at a time.
"""

import functools
import itertools
import math
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Bool, Float, Int32

from posjax import data
from posjax.encoding import Array, Site, sites
from posjax.models import Decoder
from posjax.models.block import Mlp

CHUNK = 2048  # tokens whose hidden layer is held at once, and whose logits, where a vocabulary is
VOCABULARY = 4096  # no larger than this; of a larger one fewer tokens' logits are
_BINS_PER_OCTAVE = 2


class TokenScores(NamedTuple):
    """The scores of some sequences."""

    loss: np.ndarray  # [B, T] nats
    right: np.ndarray  # [B, T] whether the likeliest token is the target


class TextLoss(NamedTuple):
    """Mean loss (nats per token) of some documents read in windows of one length."""

    sliding: float  # every byte behind at least length - stride others
    chunked: float  # windows that do not overlap: a byte sees what its window holds before it
    # (bytes before in the window, loss) over all windows, in bins growing geometrically
    by_position: list[tuple[float, float]]


class Retrieved(NamedTuple):
    """Scores of retrieved answers; each byte of an answer is predicted behind the right bytes before it."""

    accuracy: float  # share of the bytes of answers that are the likeliest ones
    exact: float  # share of the examples whose answers are all right: what greedy decoding would give
    log_prob: float  # of an example's answers, nats, mean over examples


def read_tokens(
    model: Decoder, params: Any, tokens: Int32[Array, "B T"], targets: Int32[Array, "B T"], site: Site
) -> tuple[Float[jax.Array, "B T"], Bool[jax.Array, "B T"]]:
    """The loss (nats) of every target, and whether it is the likeliest token, without ever holding all the logits."""
    with nn.intercept_methods(_Chunked()):
        x, _ = model.apply({"params": params}, tokens, site, method=Decoder.features)

    def scored(x, targets):
        logits = model.apply({"params": params}, x, method=Decoder.logits)
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets), jnp.argmax(logits, -1) == targets

    return _by_chunks(scored, x, targets, tokens=max(1, CHUNK * VOCABULARY // max(model.vocab_size, VOCABULARY)))


class _Chunked:
    """Lets the MLPs of a model see a chunk of positions at a time: their hidden layers are its widest arrays."""

    def __init__(self):
        self._within = False

    def __call__(self, call, args, kwargs, context):
        if self._within or not isinstance(context.module, Mlp) or context.method_name != "__call__":
            return call(*args, **kwargs)
        module, variables = context.module.unbind()
        self._within = True
        try:
            return _by_chunks(lambda x: module.apply(variables, x), *args)
        finally:
            self._within = False


def _by_chunks(function, *arrays, tokens=None):
    """Returns `function(*arrays)` for arrays [B, T, ...], computed for `tokens` tokens at a time, `CHUNK` if None."""
    batch, length = arrays[0].shape[:2]
    size = max(1, (CHUNK if tokens is None else tokens) // batch)
    if length <= size:
        return function(*arrays)

    def part(start):
        return [jax.lax.dynamic_slice_in_dim(x, start, size, axis=1) for x in arrays]

    # XLA would make one array of zeros serve the loops of all layers, and copy it for each of them before the first runs:
    # zeros that depend on what the loop reads are made when it does.
    zero = jnp.minimum(jnp.nan_to_num(jnp.abs(arrays[0].ravel()[0])), 0)
    shapes = jax.eval_shape(function, *part(0))
    done = jax.tree.map(lambda s: jnp.broadcast_to(zero, (batch, length, *s.shape[2:])).astype(s.dtype), shapes)

    def step(i, done):
        start = i * size  # both slices let the last part begin where it still fits
        write = functools.partial(jax.lax.dynamic_update_slice_in_dim, start_index=start, axis=1)
        return jax.tree.map(write, done, function(*part(start)))

    return jax.lax.fori_loop(0, -(-length // size), step, done)


class Reader:
    """`read_tokens` compiled for batches of one shape, with its time and memory.

    Attributes:
      batch, length: of the batches.
      temp_bytes: temporaries that XLA reserves; None where the backend does not tell.
      seconds: the fastest of the batches read so far; nan before the first.
    """

    def __init__(self, model: Decoder, params: Any, batch: int, length: int):
        self.batch, self.length, self.seconds = batch, length, float("nan")
        site = sites(length)
        tokens = jax.ShapeDtypeStruct((batch, length), jnp.int32)
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params)
        read = jax.jit(lambda params, tokens, targets: read_tokens(model, params, tokens, targets, site))
        self._read = read.lower(shapes, tokens, tokens).compile()
        analysis = self._read.memory_analysis()
        self.temp_bytes = None if analysis is None else int(analysis.temp_size_in_bytes)

    def __call__(self, params: Any, tokens: np.ndarray, targets: np.ndarray) -> TokenScores:
        """Any number of sequences [N, T], a batch at a time; the last one is filled up with zeros."""
        found = []
        for first in range(0, len(tokens), self.batch):
            part = [np.asarray(x[first : first + self.batch], np.int32) for x in (tokens, targets)]
            part = [np.pad(x, [(0, self.batch - len(x)), (0, 0)]) for x in part]
            began = time.perf_counter()
            found.append(jax.tree.map(np.asarray, self._read(params, *part)))
            self.seconds = float(np.fmin(self.seconds, time.perf_counter() - began))
        loss, right = (np.concatenate(parts)[: len(tokens)] for parts in zip(*found, strict=True))
        return TokenScores(loss, right)


def text_windows(text: np.ndarray, *, length: int, stride: int, first: int, count: int) -> np.ndarray:
    """Windows [count / stride, length + 1] whose last `stride` bytes are, together, text[first + 1 : first + 1 + count].

    Args:
      text: one document [N] uint8, of more than first + count bytes.
      stride: divides `length` and `count`.
      first: where the context of the first scored byte ends; at least length - stride.
    """
    ends = first + stride * np.arange(1, count // stride + 1)
    return text[ends[:, None] + np.arange(-length, 1)]


def text_loss(
    reader: Reader,
    params: Any,
    texts: Sequence[np.ndarray],
    *,
    stride: int,
    first: int,
    count: int,
    bos: Sequence[int] = (),
) -> TextLoss:
    """The loss of the same bytes of each document, in sliding windows and in windows that do not overlap.

    Those are every length/stride-th of the sliding ones, so that both are had at once. A window longer than `count` is
    also scored whole, which then takes in bytes before the `count` ones.

    Args:
      texts: documents [N_i] uint8; `first` and `count` as in `text_windows`, for each.
      bos: tokens that stand in place of each window's first ones; which targets are scored stays.
    """
    windows = [text_windows(text, length=reader.length, stride=stride, first=first, count=count) for text in texts]
    for part in windows:
        part[:, : len(bos)] = bos[: reader.length]
    every = reader.length // stride
    losses = [reader(params, part[:, :-1], part[:, 1:]).loss for part in windows]
    whole = np.concatenate([loss[every - 1 :: every] if len(loss) >= every else loss[-1:] for loss in losses])
    sliding = np.concatenate([loss[:, -stride:].ravel() for loss in losses])
    means = (float(np.mean(x, dtype=np.float64)) for x in (sliding, whole))
    return TextLoss(*means, _by_position(np.concatenate(losses)))


def _by_position(losses: Float[np.ndarray, "N T"]) -> list[tuple[float, float]]:
    length = losses.shape[1]
    edges = 2.0 ** (np.arange(0, _BINS_PER_OCTAVE * np.log2(length) + 1) / _BINS_PER_OCTAVE)
    edges = np.unique(np.round([0, *edges, length]).astype(int))
    edges = edges[edges <= length]
    mean = losses.mean(axis=0, dtype=np.float64)
    return [(float((a + b - 1) / 2), float(mean[a:b].mean())) for a, b in itertools.pairwise(edges)]


def retrieved(reading: TokenScores, batch: data.windows.Batch) -> Retrieved:
    """Accuracy on the answers of a `retrieval_batch`, by this reading of it."""
    answer = batch["weight"] > 0
    right, log_prob = reading.right | ~answer, -np.where(answer, reading.loss, 0.0).sum(axis=1, dtype=np.float64)
    if not np.isfinite(log_prob).all():  # behind the end of a learned table
        return Retrieved(math.nan, math.nan, math.nan)
    return Retrieved(float(reading.right[answer].mean()), float(right.all(axis=1).mean()), float(log_prob.mean()))
