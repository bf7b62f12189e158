"""Encodings that add a function of the distance to the attention logits."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int32, Shaped

from posjax.encoding import Array, Encoding, Site, axes, stands
from posjax.spec import register


@register("alibi")
@dataclass(frozen=True)
class Alibi(Encoding):
    """Attention with linear biases: -slope_h |q - k|, with slopes 2^(-8/H), 2^(-16/H), ...

    Press et al. (2021), arXiv 2108.12409. Where H is no power of two, the slopes are the authors' (and BLOOM's and MPT's):
    those of the power of two below, then every second one of the power of two above; 2^(-8h/H) for any H, as in several
    ports, is not published. Under a causal mask this is the paper's bias; without one it is its symmetric form, which
    cannot tell left from right. Positions of several axes are compared by Euclidean distance.
    Zero where a token stands nowhere. The bias is not scaled by 1/sqrt(D).
    """

    def bias(self, params, q, q_site, k, k_site):
        distance = _distance(q_site, k_site)
        bias = -jnp.asarray(alibi_slopes(q.shape[1]), jnp.float32)[:, None, None] * distance
        return jnp.where(_both_stand(q_site, k_site), bias, 0.0)


def alibi_slopes(num_heads: int) -> Float[np.ndarray, " H"]:
    """The published slopes, in float64, for any number of heads."""
    power = 2 ** math.floor(math.log2(num_heads))
    below = 2.0 ** (-8 / power * np.arange(1, power + 1))
    above = 2.0 ** (-4 / power * np.arange(1, 2 * power + 1))
    return np.concatenate([below, above[0::2][: num_heads - power]])


@register("t5")
@dataclass(frozen=True)
class T5(Encoding):
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
    """

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
        return {"table": dims.width**-0.5 * jax.random.normal(key, shape)}

    def bias(self, params, q, q_site, k, k_site):
        table = params["table"][None] if params["table"].ndim == 2 else params["table"]
        q_position, k_position = axes(q_site), axes(k_site)
        if q_position.shape[1] != table.shape[0]:
            raise ValueError(f"t5 has tables for {table.shape[0]} position axes, got {q_position.shape[1]}")
        bias = 0.0
        for axis in range(table.shape[0]):
            # Every offset beyond max_distance shares a bucket, so one row per offset within it says everything.
            by_offset = table[axis].T[:, self.buckets()]
            offset = jnp.floor(jnp.abs(d := k_position[None, :, axis] - q_position[:, None, axis])) * jnp.sign(d)
            index = jnp.clip(offset, -self.max_distance, self.max_distance).astype(jnp.int32) + self.max_distance
            bias = bias + jnp.take(by_offset, index, axis=1, mode="clip")  # index is clipped just above
        return jnp.where(_both_stand(q_site, k_site), bias.astype(jnp.float32), 0.0)

    def buckets(self) -> Int32[np.ndarray, " O"]:
        """The bucket of each offset k - q from -max_distance to max_distance."""
        per_side = self.num_buckets // 2 if self.bidirectional else self.num_buckets
        before = np.array([_bucket(n, per_side, self.max_distance) for n in range(self.max_distance + 1)], np.int32)
        after = per_side + before[1:] if self.bidirectional else np.zeros(self.max_distance, np.int32)
        return np.concatenate([before[::-1], after])


def _bucket(distance: int, num_buckets: int, max_distance: int) -> int:
    exact = num_buckets // 2
    if distance < exact:
        return distance
    steps = num_buckets - exact
    # exact + floor(steps log(distance / exact) / log(max_distance / exact)), compared in whole numbers
    edges = [exact**steps * max_distance**j <= distance**steps * exact**j for j in range(1, steps)]
    return exact + sum(edges)


def _distance(q_site: Site, k_site: Site) -> Shaped[Array, "T S"]:
    offset = axes(q_site)[:, None] - axes(k_site)[None]
    if offset.shape[-1] == 1:
        return jnp.abs(offset[..., 0])
    squared = jnp.sum(jnp.square(offset.astype(jnp.float32)), axis=-1)
    return jnp.where(squared > 0, jnp.sqrt(jnp.where(squared > 0, squared, 1.0)), 0.0)  # finite gradient at distance 0


def _both_stand(q_site: Site, k_site: Site) -> Bool[Array, "T S"]:
    return stands(q_site)[:, None] & stands(k_site)[None]
