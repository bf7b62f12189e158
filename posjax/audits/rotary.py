"""Judges a measured rotation: its encoding, its facts and its defects."""

import contextlib
import functools
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jaxtyping import Float, Int

from posjax.audits.fit import Lanes, best_of, misfit, nice, simple, wave_of
from posjax.audits.probe import Turning, unwrapped_waves, wrapped
from posjax.audits.rounding import explain, grown
from posjax.encoding import Dims, Encoding, Params, Site
from posjax.encodings.rotary import PRope, Rope, Rotary
from posjax.encodings.scalings import Yarn
from posjax.encodings.scalings_by_length import LongRope
from posjax.spec import registered, registered_names

_Kind = TypeVar("_Kind", bound=Encoding)
_NOTED = 5e-3  # radians: a larger error of an angle is noted
_TABLE = 8e-3  # radians by which cosines and sines in bfloat16 are off
_ROUNDED_TABLE = "cos and sin in half precision, as a model's own arithmetic may be"
_LOOSE = 0.02  # share of a frequency by which half precision is off


class Verdict(NamedTuple):
    """The encoding of a rotation or a bias, with facts and defects.

    Attributes:
      encoding: None where no registered one computes the same.
      residual: the largest difference from it, in radians or, of a bias, in units of logits; nan without an encoding.
      facts, findings: in words; findings are defects.
      lanes: the measured frequencies.
      unknown: open questions, in words: no registered encoding says whether the code is right.
      params: of the encoding, such as the table of a bias.
    """

    encoding: Any
    residual: float
    facts: tuple[str, ...]
    findings: tuple[str, ...]
    lanes: Lanes | None = None
    unknown: tuple[str, ...] = ()
    params: Params = ()


def judge(found: Turning, hints: Sequence[Rotary] = ()) -> Verdict:
    """The verdict on one measured rotation.

    Args:
      hints: encodings that are tried first, of a configuration perhaps.
    """
    if found.faults or found.unknown:
        return Verdict(None, float("nan"), (), found.faults, unknown=found.unknown)
    if not len(found.pairs):
        return Verdict(None, 0.0, ("no channel turns",), ("queries and keys are not rotated",))
    wave, start, reach = unwrapped_waves(found)
    if not _readings(found):
        return _of_pairs(found)
    findings, sense = [], np.sign(wave.sum(axis=0))
    if (sense < 0).all():
        findings.append(
            "pairs turn by -p instead of p: sin has the other sign, or the two channels of a pair are exchanged"
        )
    elif (sense < 0).any():
        findings.append(f"{int((sense < 0).sum())} of {sense.size} pairs turn the other way")
    if (np.abs(start) > 1e-3).any():
        findings.append(f"positions are counted from {nice(float(np.median(start / wave.sum(axis=0))), 1e-2):g} on")
    reverse = -1.0 if (sense < 0).all() else 1.0
    options = [
        _lanes(found, layout, rotary_dim, index, reverse * wave, reach)
        for layout, rotary_dim, index in _readings(found)
    ]
    angle = reverse * wrapped(found.angle - start)
    return _of_angles(found, angle, options, hints, findings)


def _of_angles(found: Turning, angle: np.ndarray, options: list[Lanes], hints, findings: list[str]) -> Verdict:
    best, facts, unknown = best_of(options, hints), [], []
    encoding, lanes = best if best and not lists_frequencies(best[0]) else (None, options[0])
    if encoding is None or _error(encoding, lanes, found, angle).max() > _NOTED:
        rounded = _rounded(options, found, angle, [*hints, *([encoding] if encoding else [])])
        if rounded is not None:
            encoding, lanes, what = rounded
            line = f"{what}: {grown(_error(encoding, lanes, found, angle), found.position)}"
            (facts if what == _ROUNDED_TABLE else findings).append(line)
        elif encoding is None and best is None:
            open_question = ("no known encoding has these frequencies",)
            return Verdict(None, float("nan"), (_pairs(options[0]),), tuple(findings), unknown=open_question)
        elif encoding is not None:
            findings.append(f"angles are not linear: {grown(_error(encoding, lanes, found, angle), found.position)}")
    if encoding is None:
        encoding, lanes = best
        unknown.append("frequencies follow no series of one base and a known scaling: the spec lists them one by one")
    error = _error(encoding, lanes, found, angle)
    words, more = _words(encoding, lanes)
    return Verdict(encoding, float(error.max()), (*words, *facts), (*findings, *more), lanes, tuple(unknown))


def lists_frequencies(encoding: Rotary) -> bool:
    """Whether an encoding only lists frequencies, as any set of them can be listed."""
    scaling = encoding.scaling
    return isinstance(scaling, LongRope) and scaling.factor == 1 and scaling.short_factor == scaling.long_factor


def _readings(found: Turning) -> list[tuple[str, int, np.ndarray]]:
    """The layouts and rotary dims that the pairs may be of, with the number of each pair."""
    first, shift = found.pairs[:, 0], np.diff(found.pairs, axis=1).ravel()
    if (shift != shift[0]).any():
        return []
    readings = [("half", 2 * int(shift[0]), first)] if (first < shift[0]).all() else []
    if shift[0] == 1 and (first % 2 == 0).all():
        sizes = dict.fromkeys([2 * len(first), found.head_dim, int(first.max()) + 2])
        readings += [("interleaved", size, first // 2) for size in sizes if size > first.max()]
    return readings


def _lanes(found: Turning, layout: str, rotary_dim: int, index: np.ndarray, wave: np.ndarray, reach: int) -> Lanes:
    whole = np.zeros((len(wave), rotary_dim // 2))
    whole[:, index] = np.where(np.abs(wave) * reach > 1e-6, wave, 0.0)
    return Lanes(found.head_dim, layout, rotary_dim, whole, found.factor, found.length, reach)


def _index(lanes: Lanes, found: Turning) -> np.ndarray:
    return found.pairs[:, 0] // (1 if lanes.layout == "half" else 2)


def _error(encoding: Rotary, lanes: Lanes, found: Turning, angle: np.ndarray) -> Float[np.ndarray, " P"]:
    """The largest difference of an angle from the encoding's, at each position."""
    wave = wave_of(encoding, lanes)[0][:, _index(lanes, found)]
    return np.abs(wrapped(angle - found.position @ wave)).max(axis=1)


def _rounded(options, found: Turning, angle: np.ndarray, hints) -> tuple[Rotary, Lanes, str] | None:
    """An encoding and a defect that explain the angles together."""
    candidates = [
        (encoding, lanes)
        for lanes in options
        for encoding in dict.fromkeys([*hints, *simple(lanes)])
        if misfit(encoding, lanes) < _LOOSE
    ]
    waves = [wave_of(encoding, lanes)[0][:, _index(lanes, found)] for encoding, lanes in candidates]
    defect = explain(angle, found.position, waves)
    if defect is not None:
        return *candidates[defect.candidate], defect.what
    within = (each for each in candidates if _error(*each, found, angle).max() < _TABLE)
    return next(((*each, _ROUNDED_TABLE) for each in within), None)


def _pairs(lanes: Lanes) -> str:
    if lanes.layout == "half":
        return f"pairs (c, c + {lanes.rotary_dim // 2}) of {lanes.head_dim} channels: half layout"
    return f"pairs (2c, 2c + 1) of {lanes.head_dim} channels: interleaved layout"


def _of_pairs(found: Turning) -> Verdict:
    """The verdict on pairs of no known layout."""
    some = ", ".join(f"({a}, {b})" for a, b in found.pairs[:3])
    shift = np.diff(found.pairs, axis=1).ravel()
    if len({*shift.tolist()}) == 1:
        blocks = f"pairs {some}, ...: half layout within blocks of {2 * shift[0]} channels, which no spec has"
        return Verdict(None, float("nan"), (), (), unknown=(blocks,))
    permuted = (
        f"pairs {some}, ... are neither of the half nor of the interleaved layout: rows of the weights were permuted"
    )
    return Verdict(None, float("nan"), (), (permuted,))


def _words(encoding: Rotary, lanes: Lanes) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Facts of an encoding, and findings that need no comparison."""
    facts, findings = [_pairs(lanes)], []
    turning, pairs = int(lanes.moving.sum()), lanes.head_dim // 2
    if len(lanes.wave) > 1:
        facts.append(f"pairs of each axis: {', '.join(map(str, (lanes.wave != 0).sum(axis=1)))}")
    elif turning < pairs:
        first = lanes.rotary_dim < lanes.head_dim
        kind = "partial lanes as in GPT-NeoX" if first else "proportional lanes"
        facts.append(f"{turning} of {pairs} pairs turn: {kind}")
    series = f"base {encoding.base:g}"
    listed = encoding.scaling is None or lists_frequencies(encoding)
    facts.append(series if listed else f"{series}, {encoding.scaling}"[:200])
    if abs(lanes.factor - 1) > 5e-4:
        facts.append(f"attention factor {lanes.factor:.6g}")
    if isinstance(encoding.scaling, Yarn) and encoding.scaling.attention_factor == 1:
        findings.append(
            f"YaRN's frequencies without its attention factor, {0.1 * np.log(encoding.scaling.factor) + 1:.4g} by default"
        )
    findings += _odd_base(encoding, lanes)
    return tuple(facts), tuple(findings)


def _odd_base(encoding: Rotary, lanes: Lanes) -> list[str]:
    """Exponents that divide by C - 1 give a base that is no round number, and one that is."""
    count = lanes.rotary_dim // 2
    if type(encoding) is not Rope or encoding.scaling is not None or lanes.wave.shape[0] > 1 or count < 3:
        return []
    meant = encoding.base ** ((count - 1) / count)
    if encoding.base == nice(encoding.base, 1e-3) or abs(nice(meant, 1e-3) / meant - 1) > 2e-5:
        return []
    return [f"exponents divide by {count - 1} instead of {count}: base^(-c/(C - 1)) of base {nice(meant, 1e-3):g}"]


def in_catalogue(
    matrix: Float[np.ndarray, "2 H P D D"], position: Int[np.ndarray, "P A"], num_heads: int | None
) -> tuple[Rotary, float] | None:
    """A registered rotary encoding that has these matrices with its usual arguments and starting parameters."""
    head_dim, heads = matrix.shape[-1], num_heads or matrix.shape[-1]
    site = Site(position[:, 0] if position.shape[1] == 1 else position, np.ones(len(position), np.int32))
    grid = None if position.shape[1] == 1 else tuple(int(n) + 1 for n in position.max(axis=0))
    dims = Dims(heads * head_dim, heads, head_dim, length=int(position.max()) + 1, grid=grid)
    x = np.random.default_rng(0).standard_normal((len(position), heads, head_dim)).astype(np.float32)
    theirs = np.einsum("ahtij,thj->athi", np.broadcast_to(matrix, (2, heads, *matrix.shape[2:])), x)
    channel, mixed = np.arange(head_dim // 2), np.abs(matrix).max(axis=(0, 1, 2)) > 1e-6
    paired = {"half": (channel, channel + head_dim // 2), "interleaved": (2 * channel, 2 * channel + 1)}
    plain = usual(Rotary)
    kinds = [type(each) for each in plain if "layout" in {field.name for field in fields(each)}]
    others = [kind(layout="interleaved") for kind in kinds]  # pyrefly: ignore[unexpected-keyword]
    encodings = [each for each in [*plain, *others] if type(each) not in (Rope, PRope)]
    encodings = tuple(each for each in encodings if mixed[paired[each.layout]].any())
    for encoding, turned in zip(encodings, _turned(encodings, dims, x, site), strict=True):
        residual = np.inf if turned is None else float(np.abs(np.stack(turned) - theirs).max())
        if residual < 1e-4 * np.abs(theirs).max():
            return encoding, residual
    return None


@functools.partial(jax.jit, static_argnums=(0, 1))
def _turned(encodings: tuple[Rotary, ...], dims: Dims, x: jax.Array, site: Site) -> list[tuple[Any, Any] | None]:
    """Queries and keys x as each encoding turns them, in one program; None from an encoding that does not fit."""

    def turned(encoding):
        try:
            return encoding.rotate(encoding.init(jax.random.key(0), dims), x, site, x, site)
        except ValueError:  # other axes, sections of another head dim, or out of reach
            return None

    return [turned(encoding) for encoding in encodings]


def usual(base: type[_Kind]) -> list[_Kind]:
    """The registered encodings of a class that have defaults for all arguments, with these."""
    found = []
    for kind in map(registered, registered_names()):
        with contextlib.suppress(TypeError):  # an argument without a default
            if issubclass(kind, base):
                found.append(kind())
    return found
