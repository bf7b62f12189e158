"""Judges a bias of attention logits: the encoding that adds the same and hides the same keys."""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from posjax.attention.dense import visible
from posjax.audits.rotary import Verdict, usual
from posjax.encoding import Dims, Encoding, Params, Site, packed, parts, sites
from posjax.encodings import none
from posjax.encodings.bias import T5, Alibi, alibi_slopes
from posjax.encodings.masks import Chunked, Dilated, Longformer, Sinks, Window
from posjax.encodings.placement import Interpolate
from posjax.encodings.views import ReRope

_HIDDEN = -9e3  # a bias below hides the key: GPT-2's -1e4 is -9984 in bfloat16
_NEAR = 128  # tokens that bfloat16 numbers without an error
_BUCKETS = ((32, 128), (32, 256), (16, 128), (64, 128), (64, 256), (8, 20))  # usual numbers, and the farthest distance
_LEAST = 8  # tokens


class Bias(NamedTuple):
    """A bias as a softmax sees it, between tokens that are no padding.

    Attributes:
      value: less the bias of the query's own key: a softmax sees no number that is added to all keys of a query. NaN where
        the key is hidden.
      own: the bias of each query's own key.
      site: the documents; positions count from 0 in each.
      causal: whether no query sees a later key.
    """

    value: Float[np.ndarray, "H T T"]
    own: Float[np.ndarray, "H T"]
    site: Site
    causal: bool

    @property
    def seen(self) -> Bool[np.ndarray, "T T"]:
        """The keys that a query sees in some head."""
        return ~np.isnan(self.value).all(axis=0)

    @property
    def offset(self) -> Int[np.ndarray, "T T"]:
        """The position of the key less that of the query."""
        return self.site.position - self.site.position[:, None]

    @property
    def tolerance(self) -> float:
        """A difference, in units of logits, that rounding explains."""
        return float(1e-4 * np.nanmax(np.abs(self.value)) + 1e-6 * max(1.0, np.abs(self.own).max()))

    def by_offset(self) -> tuple[Int[np.ndarray, " O"], Float[np.ndarray, "H O"], float]:
        """The offsets of pairs that all heads see, the mean bias at each, and how far a pair is from that at most."""
        pairs = ~np.isnan(self.value).any(axis=0)
        return _grouped(self.value[:, pairs], self.offset[pairs])

    def made_by(
        self, encoding: Encoding, params: Params = ()
    ) -> tuple[Float[np.ndarray, "H T T"], Float[np.ndarray, "H T"]]:
        """`value` and `own` of an encoding at the same tokens, for queries and keys of zeros."""
        bias = np.asarray(_bias_of(encoding, params, self.site, len(self.value)), np.float64)
        return _less_own(np.where(self.seen, bias, -np.inf))

    def residual(self, encoding: Encoding, params: Params = ()) -> float:
        """The largest difference from an encoding's bias; infinite where it hides other keys of a head."""
        value, _ = self.made_by(encoding, params)
        if (np.isnan(value) != np.isnan(self.value)).any():
            return np.inf
        return float(np.nanmax(np.abs(value - self.value)))

    def hides_as(self, encoding: Encoding) -> bool:
        """Whether an encoding hides the same keys from all heads."""
        order = np.arange(len(self.seen), dtype=np.int32) if self.causal else None
        return bool((np.asarray(visible(encoding, self.site, self.site, order, order)) == self.seen).all())

    def agrees(self, encoding: Encoding) -> bool:
        """Whether an encoding without parameters, or with T5's table, has this bias and this mask."""
        (part,) = [each for each in parts(encoding) if "bias" in each.hooks] or [none()]
        if not isinstance(part, T5):
            return self.residual(part) <= self.tolerance and self.hides_as(encoding)
        found = None if self.causal and part.bidirectional else _buckets(self, [part])
        return found is not None and found.encoding == part and self.hides_as(encoding)


@functools.partial(jax.jit, static_argnums=(0, 3))
def _bias_of(encoding: Encoding, params: Params, site: Site, num_heads: int) -> Float[jax.Array, "H T T"]:
    """The bias of an encoding for queries and keys of zeros; starting parameters where none are given."""
    count = len(site.segment)
    params = params or encoding.init(jax.random.key(0), Dims(8 * num_heads, num_heads, 8, length=count))
    zeros, site = jnp.zeros((count, num_heads, 8)), encoding.place(params, site)
    return jnp.broadcast_to(encoding.bias(params, zeros, site, zeros, site), (num_heads, count, count))


def judge_bias(bias: Float[np.ndarray, "..."], meant: Sequence[Encoding] = ()) -> tuple[Verdict, Bias]:
    """The verdict on a bias of T queries and as many keys, and the bias that was judged.

    Args:
      meant: encodings of a configuration, which are tried first.

    Raises:
      ValueError: for another shape, NaN, or fewer than 8 tokens that see themselves.
    """
    if bias.ndim != 3 or bias.shape[1] != bias.shape[2] or bias.shape[1] < _LEAST:
        raise ValueError(f"a bias has shape [heads, tokens, tokens], of 8 tokens or more; got {bias.shape}")
    if np.isnan(bias).any():
        raise ValueError("the bias has NaN: give numbers, and -inf where a key is hidden")
    found, facts = _read(bias)
    verdict = _named(found, meant)
    if verdict is None and not found.causal:
        earlier = found._replace(value=np.where(found.offset > 0, np.nan, found.value), causal=True)
        if (verdict := _named(earlier, meant)) is not None:
            found = earlier
            facts.append("later keys have another bias; under a causal mask this does not matter")
    verdict = verdict or _unknown(found)
    residual = float("nan")
    if verdict.encoding is not None:
        residual = found.residual(verdict.encoding, verdict.params)
        facts += _shift(found.own - found.made_by(verdict.encoding, verdict.params)[1], found.tolerance)
    verdict = verdict._replace(residual=residual, facts=(*verdict.facts, *facts))
    return _with_mask(verdict, found, meant), found


def judge_mask(mask: Bool[np.ndarray, "H T T"]) -> tuple[Verdict, Bias]:
    """The verdict on the keys that a query sees, and the mask as a bias.

    Raises:
      ValueError: for fewer than 8 tokens that see themselves, or heads that see different keys.
    """
    if (mask != mask[0]).any():
        raise ValueError("heads of the mask see different keys: give the mask of one")
    found, facts = _read(np.where(mask[:1], 0.0, -np.inf))
    most, offset = found.seen.sum(axis=1).max(), found.offset[found.seen]
    width = f"a query sees up to {most} keys, itself counted: to {-offset.min()} before it and {offset.max()} after it"
    return _with_mask(Verdict(none(), 0.0, (*facts, width), ()), found, [none()]), found


def _with_mask(verdict: Verdict, found: Bias, meant: Sequence[Encoding]) -> Verdict:
    """Adds the mask to the encoding of a verdict."""
    mask = next(filter(found.hides_as, _masks(found)), None)
    if mask is None:
        return verdict._replace(unknown=(*verdict.unknown, "no known mask hides these keys"))
    if mask == none():
        alone = not found.causal and found.site.segment.max() == 1
        if verdict.encoding == mask and alone and mask not in meant:
            return verdict._replace(
                findings=("all keys that a query sees have one bias: it does not depend on the position",)
            )
        return verdict
    if verdict.encoding in (None, none()):
        return verdict if verdict.encoding is None else verdict._replace(encoding=mask)
    return verdict._replace(encoding=verdict.encoding + mask, params=(verdict.params, ()))


def _less_own(bias: Float[np.ndarray, "H T T"]) -> tuple[Float[np.ndarray, "H T T"], Float[np.ndarray, "H T"]]:
    own = np.diagonal(bias, axis1=1, axis2=2)
    return np.where(bias < _HIDDEN, np.nan, bias) - own[:, :, None], own


def _read(bias: Float[np.ndarray, "H T T"]) -> tuple[Bias, list[str]]:
    """The bias between tokens that are no padding, and facts of its mask."""
    seen = (bias >= _HIDDEN).any(axis=0)
    # transformers lets a query that would see no key see all of them.
    padding = ~seen.diagonal() | (seen.all(axis=1) & ~seen[-1])
    if (count := int((~padding).sum())) < _LEAST:
        raise ValueError(f"{count} tokens of the bias see themselves: give 8 or more, and -inf where a key is hidden")
    bias, seen = bias[:, ~padding][:, :, ~padding], seen[~padding][:, ~padding]
    lengths = _documents(seen)
    chunks = len(lengths) > 2 and (lengths[1:-1] == lengths[0]).all() and lengths[-1] <= lengths[0]
    causal = not np.triu(seen, 1).any()
    facts = ["causal"] * causal
    facts += [f"{padding.sum()} tokens are padding"] * bool(padding.any())
    facts += [f"documents of {', '.join(map(str, lengths[:8]))} tokens"] * (len(lengths) > 1 and not chunks)
    return Bias(*_less_own(bias), sites(count) if chunks else packed(lengths.tolist()), causal), facts


def _documents(seen: Bool[np.ndarray, "T T"]) -> Int[np.ndarray, " N"]:
    """The lengths of documents: between two of them, no query sees a key."""
    place = np.arange(len(seen))
    farthest = np.maximum.accumulate(np.where(seen | seen.T, place, 0).max(axis=1))
    return np.diff(np.append(0, np.flatnonzero(farthest == place) + 1))


def _masks(found: Bias) -> Iterator[Encoding]:
    """Masks that hide keys as from the last and the first query of the longest document."""
    segment = found.site.segment
    document = segment == np.bincount(segment).argmax()
    row = found.seen[document][-1, document][::-1]  # by distance
    near = len(row) if row.all() else int(row.argmin())
    first = int(row[::-1].argmin())
    later = found.seen[document][0, document]  # by distance
    ahead = len(later) if later.all() else int(later.argmin())
    yield none()
    yield Window(near)
    if ahead not in (1, near):
        yield Window(near, ahead - 1)
    yield Dilated(int(row.sum()), int(row[1:].argmax()) + 1)
    yield Chunked(int(found.seen[:, 0].sum()))
    yield Sinks(first, near)
    if near > 1:
        yield Longformer(2 * (near - 1), first)


def _named(found: Bias, meant: Sequence[Encoding]) -> Verdict | None:
    """The verdict on a bias of a known encoding, or of a known mistake."""
    return next(filter(None, (judge(found, meant) for judge in (_exact, _slopes, _buckets))), None)


def _unknown(found: Bias) -> Verdict:
    apart = found.by_offset()[2]
    words = "neither slopes nor buckets are known for this bias"
    if (np.isnan(found.value).any(axis=0) & found.seen).any():
        words = "keys are hidden from some heads only, as by no known encoding"
    elif apart > found.tolerance:
        words = f"pairs of one offset differ by up to {apart:.3g}: the bias depends on more than the offset"
    return Verdict(None, float("nan"), (), (), unknown=(words,))


def _shift(shift: Float[np.ndarray, "H T"], tolerance: float) -> list[str]:
    """Tells a number that a bias has more than its encoding."""
    if np.abs(shift).max() <= tolerance:
        return []
    of = "head" if np.ptp(shift, axis=1).max() <= tolerance else "query"
    return [f"up to a number for each {of}, which a softmax does not see"]


def _exact(found: Bias, meant: Sequence[Encoding]) -> Verdict | None:
    """Encodings without parameters, with their usual arguments."""
    ours = [part for each in meant for part in parts(each) if "bias" in part.hooks and not isinstance(part, T5)]
    plain = [each for each in usual(Encoding) if "bias" in each.hooks and type(each).init is Encoding.init]
    plain = [each for each in plain if 1 in each.dimensions and "observe" not in each.hooks]
    plain += [Alibi("offset"), Alibi("split")]
    for encoding in [none(), *ours, *plain]:
        if found.residual(encoding) <= found.tolerance:
            return Verdict(encoding, 0.0, ("no bias but the mask",) if encoding == none() else (), ())
    return None


def _slopes(found: Bias, meant: Sequence[Encoding]) -> Verdict | None:
    """ALiBi with its published mistakes, or with distances that are cut off."""
    pairs = ~np.isnan(found.value).any(axis=0) & (found.offset != 0)
    if not pairs.any():
        return None
    value, distance = found.value[:, pairs], np.abs(found.offset[pairs])
    near = ((found.site.position < _NEAR)[:, None] & (found.site.position < _NEAR))[pairs]
    farthest = value[:, distance.argmax(), None]
    knee = distance[(np.abs(value - farthest) <= found.tolerance).all(axis=0)].min()
    slopes, share = _fitted(value, np.minimum(distance, knee), near)
    cut_off = knee + 1 < distance.max() and share.max() <= 1e-3
    slopes, share = (slopes, share) if cut_off else _fitted(value, distance, near)
    if share[:, near].max(initial=0.0) > 0.02 or share.max() > 2.0**-6:
        return None
    facts, findings = [f"linear in the distance, slopes {_some(slopes)}"], []
    if share.max() > 1e-3:
        error = (share.max(axis=1) * np.abs(slopes) * distance.max()).max()
        half = "computed in half precision, and bfloat16 cannot hold 257"
        findings.append(f"beyond {_NEAR} tokens biases are off by up to {error:.3g}: {half}")
    if (slopes < 0).all():
        findings.append("slopes have the other sign: far keys are favoured")
    encoding, words, unknown = _of_slopes(np.abs(slopes))
    if cut_off and encoding is not None:
        facts.append(f"distances beyond {knee} are cut off")
        encoding = ReRope(int(knee)) >> encoding
    return Verdict(encoding, 0.0, tuple(facts), (*findings, *words), unknown=unknown)


def _fitted(value: np.ndarray, distance: np.ndarray, near: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The slope of each head, by near tokens, and how far each pair is from it, as shares of the farthest bias."""
    slopes = -(value[:, near] @ distance[near]) / max(float(distance[near] @ distance[near]), 1.0)
    largest = np.maximum(np.abs(slopes) * distance.max(), 1e-9)
    return slopes, np.abs(value + slopes[:, None] * distance) / largest[:, None]


def _of_slopes(slopes: np.ndarray, some: bool = False) -> tuple[Encoding | None, tuple[str, ...], tuple[str, ...]]:
    """The encoding of slopes, of some heads or of all, findings, and open questions."""
    biased = int(np.count_nonzero(slopes))
    if 0 < biased < len(slopes) and slopes[:biased].all():
        encoding, findings, unknown = _of_slopes(slopes[:biased], some=True)
        return (replace(encoding, heads=biased) if isinstance(encoding, Alibi) else None), findings, unknown
    published = alibi_slopes(len(slopes))
    if _close(slopes, published):
        return Alibi(), (), ()
    for what, others in _other_slopes(len(slopes)):
        if _close(slopes, others):
            return Alibi(), (what,), ()
    steepest = -float(np.log2(slopes[2 ** int(np.log2(len(slopes))) - 1])) if slopes.all() else 0.0
    if (some or len(slopes) > 1) and steepest > 0 and _close(slopes, alibi_slopes(len(slopes), steepest), 1e-3):
        return Alibi(exponent=float(f"{steepest:.4g}")), (), ()
    factor = float(np.median(slopes / published))
    if _close(slopes, factor * published, 1e-3) and len(slopes) > 1:
        words = f"slopes are {factor:.6g} times the published ones: a bias before logits are scaled, or other positions"
        return Interpolate(1 / factor) >> Alibi(), (), (words,)
    return None, (), (f"slopes {_some(slopes)} are not the published {_some(published)}",)


def _other_slopes(num_heads: int) -> Iterator[tuple[str, np.ndarray]]:
    head = np.arange(num_heads)
    for size in (n for n in range(1, num_heads) if num_heads % n == 0):
        ranks = f"as if on {num_heads // size} tensor-parallel ranks, each of which counts its own heads"
        yield (
            f"slopes of heads 0..{size - 1} restart at head {size}: {ranks}",
            np.tile(alibi_slopes(size), num_heads // size),
        )
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


def _buckets(found: Bias, meant: Sequence[Encoding]) -> Verdict | None:
    """T5's buckets: a configuration's, or the coarsest usual ones within which a bias is constant."""
    offset, value, apart = found.by_offset()
    if apart > found.tolerance:
        return None
    hints = [each for each in meant if isinstance(each, T5)]
    usual = [T5(*sizes, both) for sizes in _BUCKETS for both in (True, False)]
    fitting = []
    for t5, sign in [*((t5, 1) for t5 in hints), *((t5, sign) for sign in (1, -1) for t5 in usual)]:
        steps = t5.steps()
        step = np.searchsorted(steps.first, np.clip(sign * offset, -steps.far, steps.far), side="right") - 1
        held, mean, spread = _grouped(value, steps.bucket[step])
        if spread <= 0.1 * found.tolerance and (t5 in hints or 2 < len(held) < len(offset)):
            fitting.append((t5 not in hints, len(held), -sign, t5, held, mean))
    if not fitting:
        return None
    _, groups, turned, t5, held, mean = min(fitting, key=lambda each: each[:3])
    of_head = np.ptp(found.own, axis=1).max() <= found.tolerance
    table = np.zeros((t5.num_buckets, len(value)), np.float32)
    table[held] = (mean + found.own[:, :1] * of_head).T
    ways = "both ways" if t5.bidirectional else "one way"
    facts = [f"{groups} buckets of distance seen up to {np.abs(offset).max()}, {ways}"]
    if not t5.bidirectional and not found.causal:
        facts.append("later keys share the bucket of distance 0: a decoder's buckets")
    exchanged = "the offset is query - key instead of key - query: earlier and later keys have exchanged buckets"
    return Verdict(t5, 0.0, tuple(facts), (exchanged,) if turned > 0 else (), params={"table": table})


def _grouped(value: Float[np.ndarray, "H N"], key: Int[np.ndarray, " N"]) -> tuple[np.ndarray, np.ndarray, float]:
    """The keys that occur, the mean value of each, [H, K], and how far a value is from that at most."""
    held, which = np.unique(key, return_inverse=True)
    mean = np.stack([np.bincount(which, of_head) for of_head in value]) / np.bincount(which)
    return held, mean, float(np.abs(value - mean[:, which]).max())
