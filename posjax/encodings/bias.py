"""Encodings that add a function of the offset to the attention logits, with a few parameters or none."""

import bisect
import functools
import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from posjax.encoding import Array, Needs, Site, axes, rises, stands
from posjax.encodings.angles import angles, axial
from posjax.encodings.offsets import ProductBias
from posjax.encodings.pairs import HIDDEN, ElementwiseBias, OffsetBias, Steps, length, pairwise, per_head
from posjax.mask import offset
from posjax.spec import nearest, register

_DIRECTIONS = ["both", "offset", "split"]
_STARTS = ["uniform", "alibi"]
_KINDS = ["log", "power"]


@register("alibi")
@dataclass(frozen=True)
class Alibi(ElementwiseBias):
    """Attention with linear biases: -slope_h |q - k|, with slopes 2^(-8/H), 2^(-16/H), ..., 2^-8.

    Press et al. (2021), arXiv 2108.12409. If H is not a power of two, the slopes follow the authors' code (and BLOOM and
    MPT): first the slopes of the next lower power of two, then every second one of the next higher. Several ports take
    2^(-8h/H) for every H, which nobody published. Under a causal mask this is the paper's bias; without one it is its
    symmetric form, which cannot tell left from right. Positions of several axes are compared by Euclidean distance. Zero
    where a token stands nowhere. The bias is not scaled by 1/sqrt(D).

    Args:
      direction: how bidirectional attention tells left from right, on one position axis.

        - "both": it does not.
        - "offset": adds slope_h / 2 to keys before the query, as Ruoss et al. (2023), arXiv 2305.16843, do in their code.
        - "split": the first half of the heads (the larger one where H is odd) sees no key after the query, the other half
          none before it, with the slopes of that many heads: the "nonsymmetric" form by the authors
          (ofirpress/attention_with_linear_biases, issue 5).

      exponent: E, so that the smallest slope is 2^-E where H is a power of two: `alibi_bias_max` of MPT and keras-hub.
      heads: only the first `heads` heads have a bias, with the slopes of so many heads, as in x-transformers
        (`alibi_num_heads`). None: all heads.

    Raises:
      ValueError: for an unknown direction, an exponent that is not positive, or heads that are not 1 to H.

    >>> import posjax as pj
    >>> q = jnp.zeros((4, 8, 16))    # 4 tokens, 8 heads
    >>> Alibi().bias((), q, pj.sites(4), q, pj.sites(4))[0, 3].tolist()    # of the last query in the first head
    [-1.5, -1.0, -0.5, -0.0]
    """

    family = "decay"
    formula = (
        r"b^{(h)}_{mn} = -2^{-Eh/H}\,|m-n|,\quad E = 8",
        r"H\ \text{a power of 2; else the slopes of the next lower power, then every other one of"
        " twice as many heads}",
    )
    ranges = "exponent > 0", "heads >= 1"

    direction: str = "both"
    exponent: float = 8.0
    heads: int | None = None

    def __post_init__(self):
        super().__post_init__()
        if self.direction not in _DIRECTIONS:
            raise ValueError(f"alibi has no direction {self.direction!r}; {nearest(self.direction, _DIRECTIONS)}")

    @property
    def dimensions(self):
        return (1, 2, 3) if self.direction == "both" else (1,)

    def constants(self, params, num_heads):
        biased = num_heads if self.heads is None else self.heads
        if biased > num_heads:
            raise ValueError(f"alibi(heads={biased}) in a model of {num_heads} heads: give at most {num_heads}")
        split = self.direction == "split"
        columns = _split(biased, self.exponent) if split else [alibi_slopes(biased, self.exponent)]
        return np.pad(np.stack(columns, axis=1), ((0, num_heads - biased), (0, 0))).astype(np.float32)

    def is_difference(self, site):
        return self.direction == "both" and rises(site)

    def potential(self, params, site, num_heads):
        return self.constants(params, num_heads)[:, 0] * axes(site).astype(np.float32)

    def logit(self, constants, offset):
        slope, distance = constants[0], length(offset)
        if self.direction == "split":
            return jnp.where(constants[1] * offset[0].astype(jnp.float32) > 0, HIDDEN, -slope * distance)
        if self.direction == "offset":
            distance = jnp.where(offset[0] < 0, distance - 0.5, distance)
        return -slope * distance


def _split(num_heads: int, exponent: float) -> tuple[np.ndarray, np.ndarray]:
    """The slope of each head, [H], and the sign of the offsets that it hides."""
    left = -(-num_heads // 2)
    slopes = np.concatenate([alibi_slopes(n, exponent) for n in (left, num_heads - left)])
    return slopes, np.where(np.arange(num_heads) < left, 1, -1)


def alibi_slopes(num_heads: int, exponent: float = 8.0) -> Float[np.ndarray, " H"]:
    """The published slopes, in float64, for any number of heads; those of a power of two end at 2^-exponent.

    >>> alibi_slopes(4).tolist()
    [0.25, 0.0625, 0.015625, 0.00390625]
    >>> alibi_slopes(6)[4:].round(4).tolist()    # from the slopes of 8 heads
    [0.5, 0.125]
    """
    power = 2 ** math.floor(math.log2(max(num_heads, 1)))
    below = 2.0 ** (-exponent / power * np.arange(1, power + 1))
    above = 2.0 ** (-exponent / 2 / power * np.arange(1, 2 * power + 1))
    return np.concatenate([below, above[0::2]])[:num_heads]


@register("alibi_pi")
@dataclass(frozen=True)
class AlibiPi(ProductBias):
    """ALiBi with interpolated positions: slopes times original_length / n in a document of n > original_length tokens.

    Al-Khateeb et al. (2023), arXiv 2310.13017. n is the number of positions that the query's document spans; in cached
    decoding, that it spans so far. The last token of each step is then biased as in a full pass over the tokens up to it.
    The bias of shorter documents is `alibi()`. `observe` must have written n into the sites.

    Raises:
      ValueError: for an original_length below 1, or sites that were not observed.
    """

    family = "decay"
    formula = (
        r"b^{(h)}_{mn} = -2^{-8h/H}\,\min\left(1, \frac{N}{T}\right)|m-n|,\quad T\ \text{the length"
        " of the document}",
        r"H\ \text{a power of 2; else the slopes of the next lower power, then every other one of"
        " twice as many heads}",
    )

    dimensions = (1,)
    needs = Needs.DOCUMENT_LENGTH
    exact = True

    original_length: int

    def __post_init__(self):
        if self.original_length < 1:
            raise ValueError(f"alibi_pi needs an original_length of at least 1, got {self.original_length}")

    def observe(self, params, x, site, past=None):
        return site._replace(state=_spans(self.coordinates(site)[:, 0], site, past))

    def factors(self, params, q, q_site, k, k_site):
        if isinstance(q_site.state, tuple):
            raise ValueError(
                "alibi_pi needs to know the length of each document: site = encoding.observe(params, x, site)"
            )
        stretch = jnp.minimum(1.0, self.original_length / q_site.state)
        return stretch[:, None, None] * alibi_slopes(q.shape[1]).astype(np.float32)[:, None], None

    def of_offset(self, params, offset):
        return -jnp.abs(offset).astype(jnp.float32)[:, None, None], None

    def anywhere(self, params, factors, q_site, k_site):
        start, to = (self.coordinates(site)[:, 0] for site in (q_site, k_site))
        return -jnp.moveaxis(factors[0], 0, 1) * jnp.abs(offset(start[:, None], to)).astype(jnp.float32)


def _spans(position: Array, site: Site, past: Site | None) -> Float[jax.Array, " T"]:
    """The number of positions that each token's document spans, from its first token to its last so far."""
    segment, standing = site.segment, stands(site)
    if past is not None:
        position = jnp.concatenate([axes(past)[:, 0], position])
        standing = jnp.concatenate([stands(past), standing])
        segment = jnp.concatenate([past.segment, segment])
    standing, position = standing & (segment > 0), jnp.asarray(position)
    limits = (jnp.iinfo if jnp.issubdtype(position.dtype, jnp.integer) else jnp.finfo)(position.dtype)
    _, document = jnp.unique(segment, size=len(segment), return_inverse=True)
    count = dict(num_segments=len(segment))
    last = jax.ops.segment_max(jnp.where(standing, position, limits.min), document, **count)[document]
    first = jax.ops.segment_min(jnp.where(standing, position, limits.max), document, **count)[document]
    return jnp.where(last >= first, (last - first).astype(jnp.float32) + 1, 1.0)[-len(site.segment) :]


@register("t5")
@dataclass(frozen=True)
class T5(ElementwiseBias):
    """A learned bias per head and bucket of distance: exact near, logarithmic far, one bucket beyond max_distance.

    Raffel et al. (2019), arXiv 1910.10683, section 2.1, and its code: half of the buckets hold one distance each; the
    others grow logarithmically up to max_distance. bidirectional=True splits the buckets between keys before and
    after the query; False (decoders) puts every later key at distance 0. T5 itself has no 1/sqrt(D) on the logits.
    Bucket edges are computed in exact integers. With A position axes there is a table per axis and the biases add
    (Xu et al. 2020, LayoutLMv2, arXiv 2012.14740). Zero where a token stands nowhere. A fractional distance
    falls into the bucket of the whole distance below it.

    Parameters: [num_buckets, H], or [A, num_buckets, H] on a grid; initialised N(0, 1/M) as T5 does.

    Raises:
      ValueError: for fewer than 4 (bidirectional) or 2 buckets, an odd number of bidirectional ones, or a
        max_distance within the exact buckets.

    >>> T5(bidirectional=False).steps().at(np.array([0, -1, -15, -16, -64, -128, -1000])).tolist()
    [0, 1, 15, 16, 26, 31, 31]
    """

    family = "learned bias"
    formula = (
        r"b^{(h)}_{mn} = E_{h,\,\mathrm{bucket}(m-n)}",
        r"\mathrm{bucket}(d) = \begin{cases} d & d < \frac{K}{2} \\ \min\left(K-1,\ \frac{K}{2} +"
        r" \left\lfloor \frac{K}{2}\,\frac{\ln(2d/K)}{\ln(2d_{\max}/K)} \right\rfloor\right) &"
        r" \text{else} \end{cases}\quad\text{for the } K \text{ buckets of a side}",
    )

    num_buckets: int = 32
    max_distance: int = 128
    bidirectional: bool = True

    def __post_init__(self):
        per_side = self.num_buckets // 2 if self.bidirectional else self.num_buckets
        if per_side < 2 or (self.bidirectional and self.num_buckets % 2):
            raise ValueError(f"t5 needs an even number of buckets, at least 4 if bidirectional; got {self}")
        if self.max_distance <= per_side // 2:
            raise ValueError(f"t5 needs max_distance > {per_side // 2}, its exact buckets; got {self}")

    def init(self, key, dims):
        shape = (self.num_buckets, dims.num_heads)
        shape = shape if dims.grid is None else (len(dims.grid), *shape)
        return {"table": dims.width**-0.5 * jax.random.normal(key, shape, jnp.float32)}

    def constants(self, params, num_heads):
        return params["table"].astype(jnp.float32).reshape(-1, num_heads).T

    def logit(self, constants, offset):
        if (count := len(constants) // self.num_buckets) != len(offset):
            raise ValueError(f"t5 has tables for {count} position axes, got {len(offset)}")
        table = [constants[start : start + self.num_buckets] for start in range(0, len(constants), self.num_buckets)]
        return sum(map(self._of_axis, table, offset))

    def _of_axis(self, table, offset):
        """The bias as a step function of the offset: it changes where a bucket begins."""
        first, bucket, _ = self.steps()
        bias = table[bucket[0]]
        for edge, index in zip(first[1:], bucket[1:], strict=True):
            bias = jnp.where(offset >= int(edge), table[index], bias)
        return bias

    def steps(self) -> Steps:
        """The bucket of each offset k - q."""
        per_side = self.num_buckets // 2 if self.bidirectional else self.num_buckets
        whole = functools.partial(_bucket, num_buckets=per_side, max_distance=self.max_distance)
        least = [bisect.bisect_left(range(self.max_distance + 1), n, key=whole) for n in range(per_side)]
        later = per_side if self.bidirectional else 0
        return Steps.of_distances(least, self.max_distance, lambda n: n, lambda n: later + n * self.bidirectional)


def _bucket(distance: int, num_buckets: int, max_distance: int) -> int:
    exact = num_buckets // 2
    if distance < exact:
        return distance
    steps = num_buckets - exact
    # exact + floor(steps log(distance / exact) / log(max_distance / exact)), compared in whole numbers
    edges = [exact**steps * max_distance**j <= distance**steps * exact**j for j in range(1, steps)]
    return exact + sum(edges)


@register("kerple")
@dataclass(frozen=True)
class Kerple(ElementwiseBias):
    """A conditionally positive definite kernel of the distance d = |q - k|, with a learned p and a learned a per head.

    Chi et al. (2022), arXiv 2205.09921, section 4: kind="log" is -p ln(1 + a d), kind="power" is -a d^p with p at most 2.
    Positions of several axes are compared by Euclidean distance; the kernels are conditionally positive definite in it too.
    Zero where a token stands nowhere, and not scaled by 1/sqrt(D).

    Parameters: "p" and "a", [H]. The authors clamp both to 0.01 or more, and p to at most 2 in the power kernel, by writing
    over them in the forward pass. Here a and p are softplus of the parameters (in the power kernel p is twice their
    sigmoid), so gradients never vanish at a bound. At first p is uniform in (0, 2) and a in (0, 1), as in their code; both
    are at least 0.01, and p is at most 1.99 in the power kernel.

    Raises:
      ValueError: for an unknown kind.
    """

    family = "decay"
    formula = (
        r"b^{(h)}_{mn} = -p_h \ln\left(1 + a_h |m-n|\right)\quad\text{or}\quad -a_h |m-n|^{p_h},\ 0 <"
        r" p_h \le 2",
    )

    kind: str = "log"

    def __post_init__(self):
        if self.kind not in _KINDS:
            raise ValueError(f"kerple has no kind {self.kind!r}; {nearest(self.kind, _KINDS)}")

    def init(self, key, dims):
        p, a = jax.random.uniform(key, (2, dims.num_heads), jnp.float32, minval=0.01)
        p = jnp.clip(2 * p, 0.01, 1.99)
        raw = jnp.log(p / (2 - p)) if self.kind == "power" else _softplus_inverse(p)
        return {"p": raw, "a": _softplus_inverse(a)}

    def constants(self, params, num_heads):
        p = 2 * jax.nn.sigmoid(params["p"]) if self.kind == "power" else jax.nn.softplus(params["p"])
        return jnp.stack([p, jax.nn.softplus(params["a"])], axis=1).astype(jnp.float32)

    def logit(self, constants, offset):
        (p, a), distance = constants, length(offset)
        if self.kind == "log":
            return -p * jnp.log(1 + a * distance)  # Mosaic GPU has no log1p
        apart = distance > 1e-6  # not 0: a small power of a distance that is rounded to more than 0 is near 1
        return jnp.where(apart, -a * jnp.exp(p * jnp.log(jnp.where(apart, distance, 1.0))), 0.0)


@register("bam")
@dataclass(frozen=True)
class Bam(ElementwiseBias):
    """BAM, a generalized Gaussian prior of positions: -exp(a) (|k - q - m| + 1e-5)^b, with a, b and m learned per head.

    Bianchessi et al. (2025), arXiv 2505.22842, as the authors' repository ArthurSBianchessi/BAM states it (README, "The
    core of BAM", and `AttentionPrior` of models/bam.py): the log of a prior that is added to the logits. b = 0 is the uniform
    prior, that of `none`; b = 1 with the slopes of ALiBi is `alibi`; b below 0 turns a head away from its own token. The
    README writes |i - j - m| for query i and key j, its code has the key's position first, as here. The authors' models
    with SSMax multiply logits and bias by it; `bam() + ssmax()` multiplies the logits alone.

    Positions of several axes are compared by Euclidean distance, without m. Zero where a token stands nowhere.

    Args:
      start: "uniform": a = b = 0, as their training script has it. "alibi": a is the log of ALiBi's slopes and b = 1, as in
        their code of May 2025. The README's "slope" takes the slopes themselves for a.
      location: whether m = exp(c) - exp(-c) is learned; c = 0 at first. On one position axis. Their script keeps it at 0.

    Parameters: "scale" (a) and "shape" (b), [H], and with location=True "location" (c), [H]. The paper learns them for each
    layer: host it with injection="every_layer".

    Raises:
      ValueError: for an unknown start.
    """

    family = "decay"
    formula = (r"b^{(h)}_{mn} = -e^{a_h}\left(|n-m-\mu_h| + 10^{-5}\right)^{\nu_h}",)

    start: str = "uniform"
    location: bool = False

    def __post_init__(self):
        if self.start not in _STARTS:
            raise ValueError(f"bam has no start {self.start!r}; {nearest(self.start, _STARTS)}")

    @property
    def dimensions(self):
        return (1,) if self.location else (1, 2, 3)

    def init(self, key, dims):
        slopes = np.log(alibi_slopes(dims.num_heads)) if self.start == "alibi" else np.zeros(dims.num_heads)
        params = {
            "scale": jnp.asarray(slopes, jnp.float32),
            "shape": jnp.full(dims.num_heads, float(self.start == "alibi"), jnp.float32),
        }
        return params | ({"location": jnp.zeros(dims.num_heads, jnp.float32)} if self.location else {})

    def constants(self, params, num_heads):
        names = ["scale", "shape"] + ["location"] * self.location
        return jnp.stack([params[name] for name in names], axis=1).astype(jnp.float32)

    def logit(self, constants, offset):
        scale, shape, *location = constants
        if location:
            offset = (jnp.asarray(offset[0], jnp.float32) - (jnp.exp(location[0]) - jnp.exp(-location[0])),)
        return -jnp.exp(scale + shape * jnp.log(length(offset) + 1e-5))


def _softplus_inverse(x: Float[jax.Array, " H"]) -> Float[jax.Array, " H"]:
    return jnp.log(jnp.expm1(x))


@register("sandwich")
@dataclass(frozen=True)
class Sandwich(OffsetBias):
    """The inner product of two sinusoidal codes: sum_c cos((q - k) base^(-2c/dim)), over 8h/H for head h = 1 ... H.

    Chi et al. (2022), arXiv 2212.10356: dim is their d-bar, 128 whatever the model's width; c = 0 ... dim/2 - 1.
    With A position axes each has the frequencies of dim/A channels, and their sums add up.
    Computed as that sum, of each offset once where tokens stand side by side. Zero where a token stands nowhere, and not
    scaled by 1/sqrt(D).

    Raises:
      ValueError: for a dim that is not positive and even, is above 2^16, or (on call) cannot be shared by the axes; for a
        base not positive.
    """

    family = "decay"
    formula = (
        r"b^{(h)}_{mn} = \frac{H}{8h} \sum_{c=0}^{\bar d/2-1} \cos\left((m-n)\,\beta^{-2c/\bar"
        r" d}\right),\quad \bar d = 128",
    )
    ranges = "base > 0", "dim <= 65536"

    dim: int = 128
    base: float = 10_000.0

    def __post_init__(self):
        super().__post_init__()
        if self.dim < 2 or self.dim % 2:
            raise ValueError(f"sandwich needs a positive even dim, got {self.dim}")

    def of_offset(self, params, offset, num_heads):
        wave = axial(self.base, offset.shape[-1], self.dim // 2, "sandwich: a dim")

        def similarity(offset):
            angle = angles(offset.reshape(-1, offset.shape[-1]), wave)
            return jnp.sum(jnp.cos(angle), axis=1).reshape(*offset.shape[:-1], 1)

        bias = pairwise(similarity, jnp.asarray(offset, jnp.float32), self.dim // 2)
        return per_head(num_heads / (8 * np.arange(1, num_heads + 1))) * bias
