"""The tokens that the heads of a language model look at.

Weights are one layer's, [..., H, T, T] with keys along the last axis.
"""

import itertools

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from posjax.encoding import Array

FIRST = "attention on the first token"
SINK, SINK_TOKENS = 0.3, 64  # threshold and length of Gu et al. (2024)


def sink(weights: Float[Array, "*B H T T"], token: int = 0) -> Float[Array, "*B H"]:
    """Returns each head's mean attention to a token, of the queries from it on, within the first 64 tokens.

    Gu et al. (2024), arXiv 2410.10781, section 3: alpha_k = sum_{i >= k} A_ik / (T - k), T = 64. A head is a sink if alpha_0
    is above 0.3; the share of such heads is the sink rate.
    """
    return weights[..., token:SINK_TOKENS, token].mean(axis=-1)


def previous(weights: Float[Array, "*B H T T"]) -> Float[Array, "*B H"]:
    """Returns each head's mean attention to the token before."""
    return _at(weights, 1).mean(axis=-1)


def induction_score(weights: Float[Array, "*B H T T"], length: int) -> Float[Array, "*B H"]:
    """Returns each head's mean attention to the token behind the earlier copy, where `length` tokens stand twice.

    Olsson et al. (2022), arXiv 2209.11895: a query at i in the second copy and the key at i - length + 1.
    """
    return _at(weights, length - 1)[..., -length:].mean(axis=-1)


def oldest(weights: Float[Array, "*B H T T"], window: int) -> Float[Array, "*B H"]:
    """Returns each head's mean attention to the oldest token in its window, of the queries that no longer see the first."""
    return _at(weights, window - 1)[..., 1:].mean(axis=-1)


def _at(weights: Float[Array, "*B H T T"], distance: int) -> Float[Array, "*B H N"]:
    return jnp.diagonal(weights, offset=-distance, axis1=-2, axis2=-1)


def by_distance(weights: Float[Array, "*B H T T"]) -> Float[Array, "*B H N"]:
    """Returns each head's attention by the distance of the key, 0, 1, 2 to 3, 4 to 7 ..., as the mean over all queries."""
    length = weights.shape[-1]
    distance = np.subtract.outer(np.arange(length), np.arange(length))
    edges = [0, *(2**i for i in range(length.bit_length()) if 2**i < length), length]
    inside = [(distance >= low) & (distance < high) for low, high in itertools.pairwise(edges)]
    return jnp.stack([jnp.where(mask, weights, 0).sum((-2, -1)) / length for mask in inside], axis=-1)


def lead_of_previous(
    query: Float[Array, "T H D"], key: Float[Array, "T H D"], pairs: list[tuple[int, int]], others: int = 32
) -> Float[np.ndarray, "H P"]:
    """Returns each pair's lead at the token before: its part of that logit, minus its mean part at distances 2 to `others`.

    The pairs that lead make a head look at the token before: the fast ones in Barbero et al. (2024), arXiv 2410.06205,
    section 5.

    Args:
      query, key: behind `rotate`, one key head for each query head, before the scale of logits.
    """
    query, key = (np.asarray(x)[..., np.asarray(pairs).T] for x in (query, key))  # [T, H, 2, P]

    def part(distance: int) -> np.ndarray:
        keys = key[others - distance : len(key) - distance]
        return (query[others:] * keys).sum(axis=2).mean(axis=0, dtype=np.float64)

    return part(1) - np.mean([part(distance) for distance in range(2, others + 1)], axis=0)
