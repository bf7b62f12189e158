"""Finds the encoding of measured frequencies: candidates by fit, simple ones first, each one tested."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from posjax.encodings.angles import geometric
from posjax.encodings.rotary import PRope, Rope, Rotary
from posjax.encodings.rotary_grid import AxialRope, MRope
from posjax.encodings.scaling import Scaling, Spectrum
from posjax.encodings.scalings import Clipped, Linear, Llama3, Ntk, NtkByParts, Yarn, yarn_ramp
from posjax.encodings.scalings_by_length import LongRope

_EXACT = 2e-6  # share of a frequency that float32 computations of it differ by
_LENGTHS = tuple(2**n for n in range(2, 21))  # trained lengths that are tried
_STILL = 1e30  # divides the frequency of a pair that does not turn
_USUAL_BASES = (10_000.0, 500_000.0, 1_000_000.0)


class Lanes(NamedTuple):
    """The frequencies of all pairs of a rotary dim, those that are still among them.

    Attributes:
      layout: "half" or "interleaved".
      rotary_dim: R; its pairs are C = R / 2.
      wave: in radians per position, 0 for pairs that are still.
      factor: by which queries and keys grow.
      length: of the document that was probed, 1 + its largest position.
      reach: the last position by which frequencies were measured.
    """

    head_dim: int
    layout: str
    rotary_dim: int
    wave: Float[np.ndarray, "A C"]
    factor: float
    length: int
    reach: int

    @property
    def fraction(self) -> dict[str, float]:
        """The argument of a rotary that does not turn the whole head."""
        return {} if self.rotary_dim == self.head_dim else {"fraction": self.rotary_dim / self.head_dim}

    @property
    def moving(self) -> np.ndarray:
        return np.abs(self.wave).max(axis=0) > 0


def wave_of(encoding: Rotary, lanes: Lanes) -> tuple[Float[np.ndarray, "A C"], float]:
    """The scaled frequencies of an encoding and its attention factor, at the length of the probe."""
    num_axes, channels = lanes.wave.shape
    wave, scaling = np.asarray(encoding.wave(num_axes, channels), np.float64), encoding.scaling
    if scaling is None:
        return wave, 1.0
    length = np.full(1, lanes.length, np.float32)
    multiplier = np.asarray(scaling.multiplier(encoding.spectrum(num_axes, channels), length), np.float64)
    factor = scaling.attention(np.full((1, num_axes), lanes.length - 1, np.int32), length)
    return wave * multiplier.reshape(-1, multiplier.shape[-1])[0], float(np.ravel(factor)[0])


def misfit(encoding: Rotary, lanes: Lanes) -> float:
    """The largest error of a frequency as a share of it, above the error of its measurement; inf for another layout."""
    if (encoding.layout, _rotary_dim(encoding, lanes)) != (lanes.layout, lanes.rotary_dim):
        return math.inf
    try:
        wave, factor = wave_of(encoding, lanes)
    except ValueError:  # sections, for example, of another rotary dim
        return math.inf
    error = np.maximum(np.abs(wave - lanes.wave) - 3e-6 / lanes.reach, 0.0)
    share = (error / np.maximum(np.abs(lanes.wave), 1e-12)).max(initial=0.0)
    return float(max(share, abs(factor / lanes.factor - 1) - 1e-5))


def _rotary_dim(encoding: Rotary, lanes: Lanes) -> int:
    return int(encoding.fraction * lanes.head_dim)


def fits(encoding: Rotary, lanes: Lanes) -> bool:
    """Whether an encoding has the measured frequencies, to what float32 computations of them differ by."""
    return misfit(encoding, lanes) <= _EXACT


def best_of(options: Iterable[Lanes], hints: Sequence[Rotary] = ()) -> tuple[Rotary, Lanes] | None:
    """The first candidate that fits one of several readings of the same pairs; None if no candidate does."""
    options = list(options)
    for tier in (lambda lanes, hints: hints, simple, _ramps, _free):
        for lanes in options:
            for encoding in tier(lanes, hints):
                if fits(encoding, lanes):
                    return encoding, lanes
    return None


class _Family(NamedTuple):
    """A series of frequencies, and the encoding that it makes of a base and a scaling."""

    index: Int[np.ndarray, " C"]
    count: int
    make: Callable[[float, Scaling | None], Rotary]


def _families(lanes: Lanes) -> Iterator[_Family]:
    num_axes, channels = lanes.wave.shape
    count, last = int(lanes.moving.sum()), np.arange(channels)
    if num_axes > 1:
        yield from _of_axes(lanes)
    elif count == channels:
        yield _Family(last, channels, lambda base, scaling: Rope(base, lanes.layout, scaling=scaling, **lanes.fraction))
    elif lanes.moving[:count].all():
        if lanes.rotary_dim == lanes.head_dim:
            share = count / channels
            yield _Family(last, channels, lambda base, scaling: PRope(base, lanes.layout, share, scaling))
        hard = lambda scaling: Clipped(channels - count, False, scaling)  # noqa: E731
        yield _Family(
            last, channels, lambda base, scaling: Rope(base, lanes.layout, scaling=hard(scaling), **lanes.fraction)
        )


def _of_axes(lanes: Lanes) -> Iterator[_Family]:
    """Series of several axes: one for each, or one that they share."""
    num_axes, channels = lanes.wave.shape
    axis, turns = np.abs(lanes.wave).argmax(axis=0), lanes.wave != 0
    if (turns.sum(axis=0) > 1).any():
        return
    blocks = np.flatnonzero(np.diff(axis)).size == num_axes - 1
    if lanes.rotary_dim == lanes.head_dim and blocks and turns.any(axis=0).all():
        sizes = tuple(int((axis == a).sum()) for a in range(num_axes))
        indexing = "ij" if axis[0] == 0 else "xy"
        if len({*sizes}) == 1:
            for kind in ("shared", "split"):
                make = lambda base, scaling, kind=kind: AxialRope(base, kind, indexing, lanes.layout, scaling)  # noqa: E731
                spectrum = make(100.0, None).spectrum(num_axes, channels)
                yield _Family(spectrum.index, spectrum.count, make)
        else:
            dims = tuple(2 * n for n in sizes)
            index = np.concatenate([np.arange(n) for n in (sizes if axis[0] == 0 else sizes[::-1])])
            yield _Family(
                index, max(sizes), lambda base, _: AxialRope(base, "shared", indexing, lanes.layout, None, dims)
            )
    sections = [int((turns.any(axis=0) & (axis == a)).sum()) for a in range(num_axes)]
    sections = (channels - sum(sections[-2:]), *sections[-2:])
    if num_axes <= 3:
        for style in ({}, {"interleaved": True}, {"time_last": True}):
            if style.get("time_last") and sections[1] - sections[2] not in (0, 1):
                continue
            make = lambda base, scaling, style=style: MRope(  # noqa: E731
                base, sections, layout=lanes.layout, scaling=scaling, **lanes.fraction, **style
            )
            yield _Family(np.arange(channels), channels, make)


def _bases(lanes: Lanes, family: _Family) -> list[float]:
    """Bases that the frequencies suggest: by the slope of their logarithms, over all and over as many as are on a line."""
    used = lanes.moving & (lanes.wave.sum(axis=0) > 0)
    order = np.argsort(family.index[used], kind="stable")
    index, log = family.index[used][order], np.log(lanes.wave.sum(axis=0)[used][order])
    estimates = []
    for c, w in ((index, log), _on_a_line(index, log), _on_a_line(index[::-1], log[::-1])):
        if len({*c.tolist()}) > 1:
            estimates.append(math.exp(min(-_line(c, w)[0] * family.count, 80.0)))
    if len({*index.tolist()}) == 1 and not estimates:
        estimates = [10_000.0]
    rounded = chain.from_iterable((nice(x, 1e-5), nice(x, 0.05), x) for x in estimates)
    return [base for base in dict.fromkeys((*rounded, *_USUAL_BASES)) if base > 0]


def _on_a_line(index: np.ndarray, log: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The longest beginning of a series of logarithms that lies on a line."""
    end = 2
    while end < len(log):
        slope, start = _line(index[: end + 1], log[: end + 1])
        if np.abs(slope * index[: end + 1] + start - log[: end + 1]).max() > _EXACT:
            break
        end += 1
    return index[:end], log[:end]


def _line(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Slope and start of the line nearest to points; a slope of 0 where all have one x."""
    away = x - x.mean()
    slope = float(away @ y / max(away @ away, 1e-30))
    return slope, float(y.mean() - slope * x.mean())


def nice(x: float, share: float) -> float:
    """The number of fewest digits within a share of x."""
    for digits in range(11):
        rounded = float(f"{x:.{digits}e}")
        if abs(rounded - x) <= share * abs(x):
            return rounded
    return x


def _ratios(lanes: Lanes) -> Iterator[tuple[_Family, float, Spectrum, np.ndarray]]:
    """The factor of each frequency, for each family and base; 1 where a pair is still."""
    for family in _families(lanes):
        for base in _bases(lanes, family):
            spectrum = Spectrum(base, family.count, family.index)
            yield family, base, spectrum, np.where(lanes.moving, lanes.wave.sum(axis=0) / spectrum.frequency, 1.0)


def simple(lanes: Lanes, hints: Sequence[Rotary] = ()) -> Iterator[Rotary]:
    """Plain, linear and NTK-aware frequencies."""
    for family, base, _, ratio in _ratios(lanes):
        if base in _USUAL_BASES or base == nice(base, 1e-3):
            yield family.make(base, None)
            if (factor := nice(float(1 / np.median(ratio[lanes.moving])), 1e-5)) != 1 and factor > 0:
                yield family.make(base, Linear(factor))
    for family, base, _, ratio in _ratios(lanes):
        slow = lanes.moving & (family.index == family.index[lanes.moving].max())
        factor = 1 / float(ratio[slow][0])
        if base in _USUAL_BASES and family.count > 1 and family.index.max() == family.count - 1 and factor > 1:
            yield family.make(base, Ntk(nice(factor, 1e-3)))
    for family, base, _, _ in _ratios(lanes):
        yield family.make(base, None)


def _ramps(lanes: Lanes, hints: Sequence[Rotary]) -> Iterator[Rotary]:
    """Frequencies that are kept, divided, or mixed from both: YaRN, Llama 3 and NTK by parts of usual thresholds."""
    for family, base, spectrum, ratio in _ratios(lanes):
        if base <= 1 or ratio.min() > 0.999:
            continue
        for length in _LENGTHS:
            for kind in (Llama3, Yarn, NtkByParts, partial(Yarn, truncate=False)):
                ramp = _ramp(kind(2.0, original_length=length), spectrum)[lanes.moving]
                if (
                    ramp.any()
                    and (fall := float(ramp @ (1 - ratio[lanes.moving]) / (ramp @ ramp))) < 0.9999
                    and fall > 0
                ):
                    scaling = kind(nice(1 / (1 - fall), 1e-4), original_length=length)
                    yield family.make(base, _with_factor(scaling, lanes.factor))


def _ramp(scaling: Scaling, spectrum: Spectrum) -> np.ndarray:
    """The share of each frequency that a scaling of factor 2 divides."""
    return yarn_ramp(scaling, spectrum) if isinstance(scaling, Yarn) else 2 * (1 - scaling.multiplier(spectrum, None))


def _with_factor(scaling: Scaling, factor: float) -> Scaling:
    if isinstance(scaling, Yarn) and abs(scaling.attention(None, None) / factor - 1) > 1e-5:
        return replace(scaling, attention_factor=nice(factor, 1e-6))
    return scaling


def _free(lanes: Lanes, hints: Sequence[Rotary]) -> Iterator[Rotary]:
    """Ramps between any two channels, and then any frequencies at all: as the factors of LongRoPE."""
    for family, base, spectrum, ratio in _ratios(lanes):
        low, inside = ratio.min(), (ratio < 1 - 1e-5) & (ratio > ratio.min() + 1e-5)
        if base <= 1 or low <= 0 or inside.sum() < 2:
            continue
        share = (1 - ratio[inside]) / (1 - low)
        if lanes.wave.shape[0] == 1:
            yield from _ramps_between(family, base, spectrum, share, inside, nice(1 / low, 1e-5), lanes.factor)
    if lanes.wave.shape[0] == 1 and (lanes.wave >= 0).all() and lanes.moving.any():
        family = _Family(np.arange(lanes.rotary_dim // 2), lanes.rotary_dim // 2, None)
        base = next(iter(_bases(lanes, family)))
        factors = geometric(base, family.count) / np.where(lanes.moving, lanes.wave[0], 1.0)
        factors = tuple(nice(float(x), 1e-9) for x in np.where(lanes.moving, factors, _STILL))
        scaling = LongRope(factors, factors, 1.0, lanes.length, nice(lanes.factor, 1e-6))
        yield Rope(base, lanes.layout, scaling=scaling, **lanes.fraction)


def _ramps_between(family, base, spectrum, share, inside, factor, attention) -> Iterator[Rotary]:
    length = 4096
    for kind, x in ((Yarn, family.index), (NtkByParts, length * spectrum.frequency / (2 * np.pi))):
        slope, start = _line(x[inside], share)
        ends = np.array([-start, 1 - start]) / (slope or 1e-9)
        if kind is Yarn:
            ends = length / (2 * math.pi) * np.exp(np.clip(-ends / family.count * math.log(base), -30, 30))
        fast, slow = (float(nice(max(ends), 1e-7)), float(nice(min(ends), 1e-7)))
        if fast > slow > 0 and factor >= 1:
            options: dict[str, Any] = {"truncate": False} if kind is Yarn else {}
            scaling = kind(factor, length, fast, slow, **options)
            yield family.make(base, _with_factor(scaling, attention))
