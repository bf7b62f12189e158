"""Reads frequencies and tables of cosines and sines as measured rotations."""

import numpy as np
from jaxtyping import Float

from posjax.audits.probe import Turning, probe_positions, wrapped

_ALIKE = 1e-2  # radians by which the two copies of an angle may differ


def of_frequencies(inv_freq: Float[np.ndarray, "..."], head_dim: int | None, length: int) -> Turning:
    """The rotation by inv_freq [C], in the half layout.

    Raises:
      ValueError: for another shape, or more frequencies than the head dim has pairs.
    """
    inv_freq = np.squeeze(inv_freq)
    if inv_freq.ndim != 1 or not len(inv_freq):
        raise ValueError(f"inv_freq is one number for each pair of channels, got an array of shape {inv_freq.shape}")
    position = probe_positions(length)
    return _turning(position * inv_freq, np.ones((len(position), len(inv_freq))), position, head_dim, "half")


def of_table(cos: Float[np.ndarray, "..."], sin: Float[np.ndarray, "..."], head_dim: int | None) -> Turning:
    """The rotation by a table [T, W] of positions 0, 1, ..., whose width is that of the pairs or of the channels.

    Raises:
      ValueError: for other shapes, or fewer than 8 positions.
    """
    cos, sin = (np.reshape(x, (-1, x.shape[-1])) for x in (cos, sin))
    if cos.shape != sin.shape or len(cos) < 8:
        raise ValueError(f"a table is (cos, sin) of one shape and 8 positions or more, got {cos.shape} and {sin.shape}")
    position = np.arange(len(cos), dtype=np.int32)[:, None]
    norm, half = np.hypot(cos, sin), cos.shape[1] // 2
    kinds = {name: _layout(np.arctan2(x, y)) for name, x, y in (("cos", norm, cos), ("sin", sin, norm))}
    angle = np.arctan2(sin, cos)
    layout = _layout(angle)
    if layout is None and head_dim == cos.shape[1]:
        faults = (f"cos and sin are laid out differently ({kinds['cos']}, {kinds['sin']})",)
        return _turning(angle[:, :half], norm[:, :half], position, head_dim, "half")._replace(faults=faults)
    if layout is None:
        return _turning(angle, norm, position, head_dim, "half")
    kept = slice(None, half) if layout == "half" else slice(None, None, 2)
    return _turning(angle[:, kept], norm[:, kept], position, head_dim or cos.shape[1], layout)


def _layout(angle: np.ndarray) -> str | None:
    """Says how a table holds each angle twice; None where it holds it once."""
    half = angle.shape[1] // 2
    if angle.shape[1] % 2 or half < 1:
        return None
    alike = lambda a, b: np.abs(wrapped(a - b)).max() < _ALIKE  # noqa: E731
    if alike(angle[:, :half], angle[:, half:]):
        return "half"
    return "interleaved" if alike(angle[:, 0::2], angle[:, 1::2]) else None


def _turning(angle: np.ndarray, norm: np.ndarray, position: np.ndarray, head_dim: int | None, layout: str) -> Turning:
    count = angle.shape[1]
    head_dim = head_dim or 2 * count
    if 2 * count > head_dim:
        raise ValueError(f"{count} frequencies turn {2 * count} channels, and head_dim is {head_dim}")
    channel = np.arange(count)
    pairs = np.stack([channel, channel + count] if layout == "half" else [2 * channel, 2 * channel + 1], axis=1)
    return Turning(head_dim, pairs, position, angle, norm)
