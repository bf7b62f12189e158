"""Encodings that change how sharply a query attends: temperatures that grow with its position, and learned sinks.

Temperatures multiply q in `rotate`, so they scale the logits of content, not the biases of other encodings. The factor
depends on the query's own position and never on a length, so cached keys stay right. Tokens that stand nowhere keep their
queries. Positions count from 0 and are taken for the number of tokens before a query: these encodings are for causal
models.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Float32

from posjax.encoding import Encoding, Needs, stands
from posjax.spec import register


class _Temperature(Encoding):
    """q times a factor that depends on the number of keys up to the query, p + 1."""

    relative = False
    dimensions = (1,)
    needs = Needs.WHOLE_HEAD

    def factor(self, params, count: Float32[jax.Array, "T 1"]) -> Float32[jax.Array, "T #H"]:
        raise NotImplementedError

    def rotate(self, params, q, q_site, k, k_site):
        # Padding may stand left of position 0, where there is no logarithm.
        count = jnp.maximum(jnp.asarray(self.coordinates(q_site), jnp.float32) + 1, 1.0)
        factor = jnp.where(stands(q_site)[:, None], self.factor(params, count), 1.0)
        return (q * factor[..., None]).astype(q.dtype), k


@register("log_n")
@dataclass(frozen=True)
class LogN(_Temperature):
    """Log-n scaling: q max(1, ln(p + 1) / ln original_length), one up to the trained length and growing beyond.

    Su (2021, 2023), kexue.fm/archives/8823 and 9706, as in bojone/rerope: it keeps the entropy of attention as trained
    while the number of keys grows.

    Args:
      shifted: q ln(original_length + p) / ln original_length, which grows from the first token on: log_a(a + n) of SWAN-GPT
        (section 2.2 and appendix D; see the pattern `swan`), where a is fitted to a model.

    Raises:
      ValueError: for an original_length below 2, or positions of several axes.
    """

    family = "other"
    formula = (r"q'_m = q_m \max\left(1, \frac{\ln(m+1)}{\ln N}\right)",)

    original_length: int
    shifted: bool = False

    def __post_init__(self):
        if self.original_length < 2:
            raise ValueError(f"log_n needs an original_length of at least 2, got {self.original_length}")

    def factor(self, params, count):
        count = count + (self.original_length - 1) if self.shifted else count
        return jnp.maximum(1.0, jnp.log(count) / math.log(self.original_length))


@register("llama4_temperature")
@dataclass(frozen=True)
class Llama4Temperature(_Temperature):
    """Llama 4's temperature: q (1 + attn_scale ln(1 + floor((p + 1) / floor_scale))), a step every floor_scale tokens.

    As in transformers' `Llama4TextAttention`, which uses it only in layers without rotary embedding (every fourth one).
    Ministral 3 has p in place of p + 1.

    Raises:
      ValueError: for a floor_scale below 1, a negative attn_scale, or positions of several axes.
    """

    family = "other"
    formula = (
        r"q'_m = q_m \left(1 + \alpha \ln\left(1 + \left\lfloor \frac{m+1}{f}"
        r" \right\rfloor\right)\right)",
    )
    ranges = "floor_scale >= 1", "attn_scale >= 0"

    attn_scale: float = 0.1
    floor_scale: int = 8192

    def factor(self, params, count):
        return 1.0 + self.attn_scale * jnp.log1p(count // self.floor_scale)


@register("power_temperature")
@dataclass(frozen=True)
class PowerTemperature(_Temperature):
    """Beam's temperature: q (1 + (p + 1) / original_length)^exponent, a power of the number of keys up to the query.

    As in transformers' `BeamAttention`, which uses it only in layers without rotary embedding; the docstring of its
    `compute_attention_scaling` has p in place of p + 1.

    Raises:
      ValueError: for an original_length below 1, a negative exponent, or positions of several axes.
    """

    family = "other"
    formula = (r"q'_m = q_m \left(1 + \frac{m+1}{N}\right)^a",)
    ranges = "original_length >= 1", "exponent >= 0"

    original_length: int = 2048
    exponent: float = 0.1

    def factor(self, params, count):
        return jnp.exp(self.exponent * jnp.log1p(count / self.original_length))


@register("ssmax")
@dataclass(frozen=True)
class SSMax(_Temperature):
    """Scalable softmax: q s_h ln n, with n = p + 1 keys up to the query and a learned s for each head.

    Nakanishi (2025), arXiv 2501.19399: softmax over n logits z becomes n^(s z_i) / sum_j n^(s z_j). All s start at `scale`;
    at 0.168 the mean of s ln n over n = 1 ... 1024 is 1. The variant with a bias beside s ln n is not here.

    Raises:
      ValueError: for positions of several axes.
    """

    family = "other"
    formula = (r"q'_m = s_h \ln(m+1)\,q_m",)

    scale: float = 0.168

    def init(self, key, dims):
        return {"scale": jnp.full(dims.num_heads, self.scale, jnp.float32)}

    def factor(self, params, count):
        return params["scale"] * jnp.log(count)


@register("learned_sink")
@dataclass(frozen=True)
class LearnedSink(Encoding):
    """A learned logit s_h for each head in the softmax's denominator: a_ij = exp(z_ij) / (exp(s_h) + sum_l exp(z_il)).

    Agarwal et al. (2025), gpt-oss, arXiv 2508.10925, whose code appends s_h to the logits of each query and drops its column
    after the softmax: a head may attend to nothing, and needs no first token as a place for its weight (Xiao et al. 2023,
    arXiv 2309.17453). The sink is no key: it stands nowhere, every query sees it, and it is neither scaled nor masked. The
    mask that always shows the first tokens is `sinks`.

    Parameters: {"sink": [H]}, initialised N(0, stddev^2) as in transformers; near 0 every head begins with softmax_1 (Miller
    2023, "Attention is off by one").

    Raises:
      ValueError: for a negative stddev.
    """

    family = "windows and views"
    formula = (r"a_{mn} = \frac{e^{\ell_{mn}}}{e^{s_h} + \sum_l e^{\ell_{ml}}}",)
    ranges = ("stddev >= 0",)

    stddev: float = 0.02

    def init(self, key, dims):
        return {"sink": self.stddev * jax.random.normal(key, (dims.num_heads,), jnp.float32)}

    def sink(self, params, q_site, num_heads):
        return params["sink"]


@register("token_sink")
@dataclass(frozen=True)
class TokenSink(Encoding):
    """A logit of each query and head in the softmax's denominator, read off the query's token: s_qh = w_h . x_q.

    Of the second Inkling (2026) by Thinking Machines. There is no paper: the source is `Inkling2FullAttention` of
    transformers 5.24. x is the layer's input. As with `learned_sink`, every query has it, and it is neither scaled nor
    masked.

    Parameters: {"kernel": [M, H]}, initialised N(0, stddev^2) as in transformers.

    Raises:
      ValueError: for a negative stddev.
    """

    family = "windows and views"
    formula = (r"a_{mn} = \frac{e^{\ell_{mn}}}{e^{s_m} + \sum_l e^{\ell_{ml}}},\quad s_m = w_h\cdot x_m",)
    observes = 0
    needs = Needs.SINK_OF_QUERIES
    ranges = ("stddev >= 0",)

    stddev: float = 0.02

    def init(self, key, dims):
        return {"kernel": self.stddev * jax.random.normal(key, (dims.width, dims.num_heads), jnp.float32)}

    def observe(self, params, x, site, past=None):
        return site._replace(state=jnp.matmul(x.astype(jnp.float32), params["kernel"], precision="highest"))

    def sink(self, params, q_site, num_heads):
        return q_site.state
