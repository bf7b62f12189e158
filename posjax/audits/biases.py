"""Judges a bias of attention logits: slopes, buckets, window, symmetry."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from posjax.encoding import Encoding
from posjax.encodings.bias import T5, Alibi, alibi_slopes
from posjax.encodings.masks import Window
from posjax.encodings.placement import Interpolate

_HIDDEN = -1e4  # a bias below hides the key
_NEAR = 128  # tokens that bfloat16 numbers without an error
_HALF = "half precision: bfloat16 cannot hold 257"
_BUCKETS = ((32, 128), (32, 256), (16, 128), (64, 128), (64, 256), (8, 20))  # usual numbers, and the farthest distance


class BiasVerdict(NamedTuple):
    """The encoding of a bias; see `posjax.audits.rotary.Verdict`. `params` are the encoding's, a table perhaps."""

    encoding: Encoding | None
    residual: float
    facts: tuple[str, ...]
    findings: tuple[str, ...]
    params: Any = ()
    unknown: tuple[str, ...] = ()


class _OfOffset(NamedTuple):
    """A bias as a function of the offset key - query, NaN where the key is hidden from all queries."""

    value: Float[np.ndarray, "H O"]
    offset: np.ndarray  # [O]
    apart: float  # how far pairs of one offset differ

    @property
    def earlier(self) -> tuple[np.ndarray, np.ndarray]:
        """Distances of earlier keys, and their biases [H, N]."""
        before = self.offset <= 0
        return -self.offset[before], self.value[:, before]


def judge_bias(bias: Float[np.ndarray, "..."]) -> BiasVerdict:
    """The verdict on a bias [H, T, T] of T queries and as many keys, all in one document.

    Raises:
      ValueError: for another shape, fewer than 8 tokens or NaN.
    """
    if bias.ndim != 3 or bias.shape[1] != bias.shape[2] or bias.shape[1] < 8:
        raise ValueError(f"a bias has shape [heads, tokens, tokens], of 8 tokens or more; got {bias.shape}")
    if np.isnan(bias).any():
        raise ValueError("the bias has NaN: give numbers, and -inf where a key is hidden")
    hidden = bias < _HIDDEN
    facts, findings = _of_mask(hidden)
    of_offset = _by_offset(np.where(hidden, np.nan, bias))
    scale = max(float(np.nanmax(np.abs(of_offset.value))), 1e-9)
    if of_offset.apart > 1e-4 * scale:  # as BLOOM adds slope * key, which is the same to a softmax
        own = np.diagonal(bias, axis1=1, axis2=2)[:, :, None]
        by_row = _by_offset(np.where(hidden, np.nan, bias - own))
        of_offset = min(of_offset, by_row, key=lambda each: each.apart)
        if by_row.apart < 1e-4 * scale:
            facts.append("up to a number for each query, which a softmax does not see")
    if of_offset.apart > 1e-4 * scale and bias.shape[1] > _NEAR:
        near = judge_bias(bias[:, :_NEAR, :_NEAR])
        more = f"beyond {_NEAR} tokens pairs of one offset differ by up to {of_offset.apart:.3g}: computed in {_HALF}"
        return near._replace(findings=(*near.findings, more))
    window = _window(hidden)
    for judge in (_flat, _slopes, _buckets):
        if (verdict := judge(of_offset, bias.shape[0], hidden)) is not None:
            encoding = verdict.encoding
            if window is not None and encoding is not None:
                encoding = Window(window) if isinstance(encoding, Window) else encoding + Window(window)
            return verdict._replace(
                encoding=encoding, facts=(*verdict.facts, *facts), findings=(*verdict.findings, *findings)
            )
    if of_offset.apart > 1e-4 * scale:
        findings.append(f"pairs of one offset differ by up to {of_offset.apart:.3g}: the bias is not relative")
    unknown = ("neither slopes nor buckets are known for this bias",)
    return BiasVerdict(None, float("nan"), tuple(facts), tuple(findings), unknown=unknown)


def _of_mask(hidden: np.ndarray) -> tuple[list[str], list[str]]:
    size, window = hidden.shape[1], _window(hidden)
    later = np.triu(np.ones((size, size), bool), 1)
    facts = ["causal"] if hidden[:, later].all() else []
    if window is not None:
        facts.append(f"a query sees {window} keys, its own among them")
    findings = [] if (hidden == hidden[:1]).all() else ["keys are hidden from some heads only"]
    return facts, findings


def _window(hidden: np.ndarray) -> int | None:
    """The number of keys that the last query sees, where earlier ones are hidden from it."""
    seen = ~hidden[0, -1]
    first = int(seen.argmax())
    return None if first == 0 or not seen[first:].all() else len(seen) - first


def _by_offset(bias: np.ndarray) -> _OfOffset:
    size = bias.shape[1]
    offsets, means, apart = np.arange(1 - size, size), [], 0.0
    for offset in offsets:
        line = np.diagonal(bias, offset, axis1=1, axis2=2)
        seen = line[:, ~np.isnan(line).any(axis=0)]
        means.append(seen.mean(axis=1) if seen.size else np.full(len(bias), np.nan))
        apart = max(apart, float(np.ptp(seen, axis=1).max())) if seen.size else apart
    value = np.stack(means, axis=1)
    there = ~np.isnan(value).any(axis=0)
    return _OfOffset(value[:, there], offsets[there], apart)


def _flat(found: _OfOffset, num_heads: int, hidden: np.ndarray) -> BiasVerdict | None:
    if np.ptp(found.value) > 1e-6:
        return None
    window = _window(hidden)
    return BiasVerdict(None if window is None else Window(window), 0.0, ("no bias but the mask",), ())


def _slopes(found: _OfOffset, num_heads: int, hidden: np.ndarray) -> BiasVerdict | None:
    """ALiBi and its published mistakes."""
    distance, bias = found.earlier
    near = (distance > 0) & (distance <= _NEAR)
    slopes = -(bias[:, near] @ distance[near]) / (distance[near] @ distance[near])
    line = -slopes[:, None] * distance
    if np.abs(bias - line)[:, distance <= _NEAR].max() > 0.02 * max(np.abs(line[:, distance <= _NEAR]).max(), 1e-9):
        return None
    facts, findings = [f"linear in the distance, slopes {_some(slopes)}"], []
    if (slopes < 0).all():
        findings.append("slopes have the other sign: far keys are favoured")
    encoding, words = _of_slopes(np.abs(slopes), num_heads)
    findings += words
    error = np.abs(bias - line).max(axis=0)
    if error.max() > 1e-3 * np.abs(line).max() or found.apart > 1e-3 * np.abs(line).max():
        first = int(distance[error > 1e-3 * np.abs(line).max()].min(initial=distance.max()))
        findings.append(
            f"not linear from distance {first} on, off by up to {max(error.max(), found.apart):.3g}: positions or biases "
            f"in {_HALF}"
        )
    later = found.offset > 0
    if later.any() and not np.allclose(
        found.value[:, later], -slopes[:, None] * found.offset[later], rtol=1e-2, atol=1e-3
    ):
        way = "0" if np.abs(found.value[:, later]).max() < 1e-6 else "of other sign or slope"
        facts.append(f"later keys: {way}; under a causal mask this does not matter")
    residual = float(error.max()) if encoding is not None else float("nan")
    return BiasVerdict(encoding, residual, tuple(facts), tuple(findings))


def _of_slopes(slopes: np.ndarray, num_heads: int) -> tuple[Encoding | None, list[str]]:
    biased = int(np.count_nonzero(slopes))
    if biased < num_heads and slopes[:biased].all():
        encoding, words = _of_slopes(slopes[:biased], biased)
        return (replace(encoding, heads=biased) if isinstance(encoding, Alibi) else None), words
    published = alibi_slopes(num_heads)
    if _close(slopes, published):
        return Alibi(), []
    factor = float(np.median(slopes / published))
    for size in (n for n in range(1, num_heads) if num_heads % n == 0):
        if _close(slopes, np.tile(alibi_slopes(size), num_heads // size)):
            return Alibi(), [
                f"slopes of heads 0..{size - 1} restart at head {size}: as if on {num_heads // size} tensor-parallel ranks, "
                "each of which counts its own heads"
            ]
    for what, others in _other_slopes(num_heads):
        if _close(slopes, others):
            return Alibi(), [what]
    steepest = -float(np.log2(slopes[2 ** int(np.log2(num_heads)) - 1]))
    if num_heads > 1 and _close(slopes, alibi_slopes(num_heads, steepest), 1e-3):
        return Alibi(exponent=float(f"{steepest:.4g}")), []
    if _close(slopes, factor * published, 1e-3):
        return Interpolate(1 / factor) >> Alibi(), [f"slopes are {factor:.6g} times the published ones"]
    return None, [f"slopes {_some(slopes)} are not the published {_some(published)}"]


def _other_slopes(num_heads: int) -> Iterator[tuple[str, np.ndarray]]:
    head = np.arange(num_heads)
    yield (
        f"slopes 2^(-8h/{num_heads}) for heads that are no power of two: the published slopes are of the power below",
        2.0 ** (-8 * (head + 1) / num_heads),
    )
    yield "slopes in the reverse order of heads", alibi_slopes(num_heads)[::-1]
    yield "slopes are counted from head 0, 2^0, instead of head 1", 2.0 ** (-8 * head / num_heads)
    yield "slopes sorted: those of the next power of two stand among the others", np.sort(alibi_slopes(num_heads))[::-1]


def _close(a: np.ndarray, b: np.ndarray, share: float = 5e-3) -> bool:
    return bool(np.allclose(a, b, rtol=share, atol=0))


def _some(slopes: np.ndarray) -> str:
    return ", ".join(f"{slope:.4g}" for slope in slopes[:4]) + (", ..." if len(slopes) > 4 else "")


def _buckets(found: _OfOffset, num_heads: int, hidden: np.ndarray) -> BiasVerdict | None:
    """T5's buckets: the coarsest usual ones within which a bias is constant."""
    scale = max(float(np.ptp(found.value)), 1e-9)
    far = int(np.abs(found.offset).max())
    fitting = []
    for turned in (1, -1):
        for count, distance in _BUCKETS:
            for both in (True, False):
                t5 = T5(count, distance, both)
                bucket = np.asarray(t5.steps().at(jnp.asarray(turned * found.offset)))
                groups = [found.value[:, bucket == n] for n in np.unique(bucket)]
                apart = max(float(np.ptp(group, axis=1).max()) for group in groups)
                if apart < 1e-5 * scale and len(groups) > 2:
                    fitting.append((len(groups), turned < 0, t5, bucket, apart))
    if not fitting:
        return None
    groups, turned, t5, bucket, apart = min(fitting, key=lambda each: each[:2])
    table = np.zeros((t5.num_buckets, num_heads), np.float32)
    for n in np.unique(bucket):
        table[n] = found.value[:, bucket == n].mean(axis=1)
    facts = [f"{groups} buckets of distance seen up to {far}, {'both ways' if t5.bidirectional else 'one way'}"]
    findings = []
    if turned:
        findings.append(
            "the offset is query - key instead of key - query: earlier and later keys have exchanged buckets"
        )
    if not t5.bidirectional and not hidden[:, 0, 1:].all():
        facts.append("later keys share the bucket of distance 0: a decoder's buckets")
    return BiasVerdict(t5, apart, tuple(facts), tuple(findings), {"table": table})
