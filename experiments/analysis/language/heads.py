"""The places where the heads of a language model look, and the values of its layers.

Everything here is of one text: the unit of repetition.
"""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int32

from posjax.encoding import Array, Site
from posjax.models import Decoder

SINK, SINK_TOKENS = 0.3, 64  # threshold and length of Gu et al. (2024)


class LayerValues(NamedTuple):
    """One layer's values for one text; queries and keys before `rotate`. `weights` are [H, T, T], or their scores."""

    weights: Any
    query: Float[Array, "T H D"]
    key: Float[Array, "T K D"]
    value: Float[Array, "T K E"]


def look_into(
    model: Any, score: Callable[[int, Array], Any] = lambda layer, weights: weights
) -> Callable[[Any, Int32[Array, " T"], Site], list[LayerValues]]:
    """Returns a compiled function (parameters, tokens, site) -> `LayerValues` of each layer; attention is dense.

    Args:
      score: is kept of a layer's weights [H, T, T], which are large; compiled too.
    """
    method = model.features if isinstance(model, Decoder) else None

    @jax.jit
    def look(params, tokens, site):
        _, seen = model.apply({"params": params}, tokens[None], site, method=method, mutable=["intermediates"])
        blocks = [seen["intermediates"]["trunk"][f"block_{layer}"]["attention"] for layer in range(model.depth)]
        values = [[block[name][0][0] for name in ("weights", "queries", "keys", "values")] for block in blocks]
        return [LayerValues(score(layer, weights), *rest) for layer, (weights, *rest) in enumerate(values)]

    return look


def sink(weights: Float[Array, "H T T"], token: int = 0) -> Float[Array, " H"]:
    """Returns each head's mean attention to a token, of the queries from it on, within the first 64 tokens.

    Gu et al. (2024), arXiv 2410.10781, section 3: alpha_k = sum_{i >= k} A_ik / (T - k), T = 64. A head is a sink if alpha_0
    is above 0.3; the share of such heads is the sink rate.
    """
    return weights[:, token:SINK_TOKENS, token].mean(axis=1)


def previous(weights: Float[Array, "H T T"]) -> Float[Array, " H"]:
    """Returns each head's mean attention to the token before."""
    return jnp.diagonal(weights, offset=-1, axis1=1, axis2=2).mean(axis=1)


def induction_score(weights: Float[Array, "H T T"], length: int) -> Float[Array, " H"]:
    """Returns each head's mean attention to the token behind the earlier copy, where `length` tokens stand twice.

    Olsson et al. (2022), arXiv 2209.11895: a query at i in the second copy and the key at i - length + 1.
    """
    return jnp.diagonal(weights, offset=1 - length, axis1=1, axis2=2)[:, -length:].mean(axis=1)


def oldest(weights: Float[Array, "H T T"], window: int) -> Float[Array, " H"]:
    """Returns each head's mean attention to the oldest token in its window, of the queries that no longer see the first.

    nan if the window holds the whole text.
    """
    if weights.shape[1] <= window:
        return jnp.full(weights.shape[0], jnp.nan)
    return jnp.diagonal(weights, offset=1 - window, axis1=1, axis2=2)[:, 1:].mean(axis=1)


def edges_of(length: int) -> list[int]:
    """Returns the edges of bins of distance: 0, 1, 2, 4, 8 ... and the length."""
    return [0, *(2**i for i in range(length.bit_length()) if 2**i < length), length]


def by_distance(weights: Float[Array, "H T T"]) -> Float[Array, "H N"]:
    """Returns each head's attention by the distance of the key, in the bins of `edges_of`, as the mean over all queries."""
    length = weights.shape[1]
    distance = np.subtract.outer(np.arange(length), np.arange(length))
    edges = edges_of(length)
    inside = [(distance >= low) & (distance < high) for low, high in itertools.pairwise(edges)]
    return jnp.stack([jnp.where(mask, weights, 0).sum((1, 2)) / length for mask in inside], axis=1)


def lead_of_previous(
    query: Float[Array, "T H D"], key: Float[Array, "T H D"], pairs: list[tuple[int, int]], others: int = 32
) -> Float[np.ndarray, "H P"]:
    """Returns each pair's lead at the token before: its part of that logit, minus its mean part at distances 2 to `others`.

    The pairs that lead make a head look at the token before: the fast ones in Barbero et al. (2024), arXiv 2410.06205,
    section 5.

    Args:
      query, key: behind `rotate`, one key head for each query head, before the scale of logits.
    """
    pairs = np.asarray(pairs).T
    query, key = (np.asarray(x)[..., pairs] for x in (query, key))  # [T, H, 2, P]

    def part(distance: int) -> np.ndarray:
        return (
            (query[others:] * key[others - distance : len(key) - distance]).sum(axis=2).mean(axis=0, dtype=np.float64)
        )

    return part(1) - np.mean([part(distance) for distance in range(2, others + 1)], axis=0)
