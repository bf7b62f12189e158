"""Cuts a stream of documents into windows of tokens, with the position and document of each token."""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from posjax.data.containers import Text

Batch = dict[str, np.ndarray]

POSITIONS = ("document", "window", "stream")


# Growth of the context from the start to the whole length, as a function of the share of steps done.
SCHEDULES: Mapping[str, Callable[[int, int, float], float]] = MappingProxyType(
    {
        "linear": lambda start, length, share: start + (length - start) * share,
        "sinusoidal": lambda start, length, share: start + (length - start) * math.sin(math.pi / 2 * share),
        "exponential": lambda start, length, share: start * (length / start) ** share,
    }
)


class Ladder(NamedTuple):
    """A context that grows during training: SkyLadder, Zhu et al. (2025), arXiv 2503.15450, section 4.1.

    At step t a token sees the tokens of its own document in its block of w(t) tokens: blocks are counted from the window's
    first token. With the linear schedule w(t) = min(T, start + floor(alpha t)), alpha = (T - start) / steps; the others
    follow sail-sg/SkyLadder, lit_gpt/packed_dataset.py. Tokens, targets, positions and weights stay.
    """

    start: int = 32
    steps: int = 0
    schedule: str = "linear"

    def context(self, step: int, length: int) -> int:
        """Returns w(t), the context in windows of `length` tokens."""
        if step >= self.steps:
            return length
        return min(length, int(SCHEDULES[self.schedule](self.start, length, step / self.steps)))

    def check(self, length: int) -> None:
        """Raises ValueError for a start outside 1..length, negative steps or an unknown schedule."""
        if self.schedule not in SCHEDULES:
            raise ValueError(f"no schedule is named {self.schedule!r}; known: {', '.join(SCHEDULES)}")
        if self.steps < 0:
            raise ValueError(f"steps={self.steps} in which a context grows must not be negative")
        if self.steps and not 1 <= self.start <= length:
            raise ValueError(f"start={self.start}, the first context, must lie in 1..{length}, the length of a window")


def in_blocks(batch: Batch, context: int) -> Batch:
    """Cuts a batch's windows into blocks of `context` tokens that do not see each other; documents stay apart."""
    segment = batch["segment"]
    opens = np.diff(segment, axis=1, prepend=0) != 0
    opens |= np.arange(segment.shape[1]) % context == 0
    return batch | {"segment": np.where(segment > 0, np.cumsum(opens, axis=1), 0).astype(np.int32)}


def check_windows(text: Text, length: int, positions: str) -> None:
    """Raises ValueError if no window of `length` tokens fits, or `positions` is not in `POSITIONS`."""
    if positions not in POSITIONS:
        raise ValueError(f"positions={positions!r} must be one of {', '.join(map(repr, POSITIONS))}")
    if length < 1:
        raise ValueError(f"length={length} must be at least 1")
    if len(text) < length + 1:
        raise ValueError(f"{text.name!r} has {len(text):,} tokens: length={length} must be at most {len(text) - 1}")


def gather_windows(text: Text, offset: np.ndarray, valid: np.ndarray, positions: str) -> Batch:
    """Reads the windows that lie at given offsets of the stream.

    The stream is read as a circle: the target of the last token is the first token, with weight 0. The text's BOS replaces
    a window's first token (see `with_bos`).

    Args:
      text: the stream.
      offset: [b, T] int64, offset of each input token in the stream, rising by 1 (modulo N) along a window.
      valid: [b, T] bool, False where the window is padded; padding comes last.
      positions: "document" for offsets in the token's document, "window" for 0..T-1, "stream" for 0..T-1 in rows that are one
        document each, whatever documents they hold: tokens see those before, as in the training of GPT-2. Such rows are
        filled, not padded: tokens beyond the last one of an epoch have weight 0.

    Returns:
      tokens, targets, position, segment: [b, T] int32, weight: [b, T] float32. Segments count a window's documents
      from 1; padding has segment, tokens and weight 0. The weight is 0 where the target opens another document.
    """
    starts = np.asarray(text.starts)
    reach = np.concatenate([offset, (offset[:, -1:] + 1) % len(text)], axis=1)
    in_document = reach - starts[np.searchsorted(starts, reach, side="right") - 1]
    # starts[0] is 0, so going round the circle opens a document too, even if there is only one.
    one_document = positions == "stream"
    opens = (in_document == 0) & (not one_document)
    along = np.arange(offset.shape[1])
    position = in_document[:, :-1] if positions == "document" else along
    shown, read = valid | one_document, text.tokens[reach]
    batch = {
        "tokens": np.where(shown, read[:, :-1], 0).astype(np.int32),
        "targets": np.where(shown, read[:, 1:], 0).astype(np.int32),
        "position": np.where(shown, position, 0).astype(np.int32),
        "segment": np.where(shown, 1 + np.cumsum(opens[:, :-1] & (along > 0), axis=1), 0).astype(np.int32),
        "weight": (valid & ~opens[:, 1:]).astype(np.float32),
    }
    return with_bos(batch, text.bos)


def with_bos(batch: Batch, bos: Sequence[int]) -> Batch:
    """Replaces the first tokens of each window by `bos`; the targets stay.

    A window that begins within a document then begins as the document does. Targets inside a `bos` of several tokens have
    weight 0.
    """
    if not bos:
        return batch
    tokens, weight = batch["tokens"].copy(), batch["weight"].copy()
    tokens[:, : len(bos)] = bos[: tokens.shape[1]]
    weight[:, : len(bos) - 1] = 0
    return {**batch, "tokens": tokens, "weight": weight}


def phase_offsets(num_tokens: int, length: int, index: np.ndarray, phase: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns offsets of windows of N tokens on a circle, cut every `length` tokens from a random phase on.

    Over the ceil(N / length) windows of an epoch every token is an input once; the last window is padded to `length`.

    Args:
      num_tokens: N.
      length: T.
      index: [b] number of each window in its epoch, 0..ceil(N / T) - 1.
      phase: [b] offset at which that epoch starts, 0..N-1.

    Returns:
      offset [b, T] int64 and valid [b, T] bool, for `gather_windows`.
    """
    along = index[:, None] * length + np.arange(length)
    return (phase[:, None] + along) % num_tokens, along < num_tokens
