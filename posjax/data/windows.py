"""Cuts a stream of documents into windows of tokens whose positions and documents are known."""

import numpy as np

from posjax.data.containers import Text

Batch = dict[str, np.ndarray]

POSITIONS = ("document", "window")


def check_windows(text: Text, length: int, positions: str) -> None:
    """Raises ValueError where no window of `length` tokens fits, or `positions` is none of `POSITIONS`."""
    if positions not in POSITIONS:
        raise ValueError(f"positions={positions!r} must be one of {', '.join(map(repr, POSITIONS))}")
    if length < 1:
        raise ValueError(f"length={length} must be at least 1")
    if len(text) < length + 1:
        raise ValueError(
            f"{text.name!r} has {len(text):,} tokens, fewer than one window of length={length} and its last target; "
            f"use length <= {len(text) - 1}"
        )


def gather_windows(text: Text, offset: np.ndarray, valid: np.ndarray, positions: str) -> Batch:
    """Reads the windows that lie at given offsets of the stream.

    The stream is read as a circle: the target of the last token is the first one, with weight 0.

    Args:
      text: the stream.
      offset: [b, T] int64, offset of each input token in the stream, rising by 1 (modulo N) along a window.
      valid: [b, T] bool, False where the window is padded; padding comes last.
      positions: "document" for offsets in the token's document, "window" for 0..T-1.

    Returns:
      tokens, targets, position, segment: [b, T] int32, weight: [b, T] float32. Segments count a window's documents
      from 1; padding has segment, tokens and weight 0. The weight is 0 where the target opens another document.
    """
    starts = np.asarray(text.starts)
    reach = np.concatenate([offset, (offset[:, -1:] + 1) % len(text)], axis=1)
    in_document = reach - starts[np.searchsorted(starts, reach, side="right") - 1]
    # starts[0] is 0, so going round the circle opens a document, too, even when there is only one.
    opens = in_document == 0
    along = np.arange(offset.shape[1])
    position = in_document[:, :-1] if positions == "document" else along
    return {
        "tokens": np.where(valid, text.tokens[reach[:, :-1]], 0).astype(np.int32),
        "targets": np.where(valid, text.tokens[reach[:, 1:]], 0).astype(np.int32),
        "position": np.where(valid, position, 0).astype(np.int32),
        "segment": np.where(valid, 1 + np.cumsum(opens[:, :-1] & (along > 0), axis=1), 0).astype(np.int32),
        "weight": (valid & ~opens[:, 1:]).astype(np.float32),
    }


def phase_offsets(num_tokens: int, length: int, index: np.ndarray, phase: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Offsets of phase windows: N tokens on a circle, cut every `length` tokens from a random phase on.

    Over the ceil(N / length) windows of an epoch every token is an input once; the last window is padded to `length`.

    Args:
      num_tokens: N.
      length: T.
      index: [b] number of each window in its epoch, 0..ceil(N / T) - 1.
      phase: [b] offset where that epoch starts, 0..N-1.

    Returns:
      offset [b, T] int64 and valid [b, T] bool, as `gather_windows` takes them.
    """
    along = index[:, None] * length + np.arange(length)
    return (phase[:, None] + along) % num_tokens, along < num_tokens
