"""Massive values: channels of queries, keys and values that are large in every token, and models in which they are fixed.

Jin et al. (2025), arXiv 2502.01563.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from experiments.analysis.language.heads import LayerValues
from posjax.encoding import Array, Encoding, Sum

FACTOR = 5.0  # lambda of the paper: a channel is massive if its norm is this often the mean of its head's channels


def channel_norms(x: Float[Array, "T H D"]) -> Float[np.ndarray, "H D"]:
    """Returns the 2-norm over the tokens of each head's channels (section 3, eq. 2)."""
    return np.linalg.norm(np.asarray(x, np.float64), axis=0)


def is_massive(norms: Float[np.ndarray, "H D"]) -> Bool[np.ndarray, "H D"]:
    """Marks the channels whose norm is above `FACTOR` times the mean of their head (section 3, eq. 3)."""
    return norms > FACTOR * norms.mean(axis=1, keepdims=True)


@dataclass(frozen=True)
class Fixed(Encoding):
    """Queries and keys, before they are rotated, with some channels at constants.

    A part of a sum before the rotary encoding: ``Sum((Fixed(...), rope()))``.

    Attributes:
      query, key: (head, channel, number) of each such channel.
    """

    query: tuple[tuple[int, int, float], ...] = ()
    key: tuple[tuple[int, int, float], ...] = ()

    def rotate(self, params, q, q_site, k, k_site):
        return _fixed(q, self.query), _fixed(k, self.key)


def _fixed(x, constants):
    if not constants:
        return x
    head, channel, number = (np.array(each) for each in zip(*constants, strict=True))
    return jnp.asarray(x).at[:, head, channel].set(jnp.asarray(number, x.dtype))


def fixed_pattern(
    layers: Sequence[Encoding], seen: Sequence[LayerValues], which: str, rng: np.random.Generator
) -> tuple[Encoding, ...]:
    """Returns the encodings of all layers with channels of queries and keys at their mean over the tokens.

    Args:
      layers: the encodings of the layers.
      seen: values of the layers, whose means are taken.
      which: "massive" channels, or as many "other" channels of each head.
      rng: draws the other channels.
    """
    made = []
    for encoding, layer in zip(layers, seen, strict=True):
        constants = {}
        for name, x in (("query", layer.query), ("key", layer.key)):
            mask, mean = is_massive(channel_norms(x)), np.asarray(x, np.float64).mean(axis=0)
            chosen = [np.flatnonzero(each) for each in mask]
            if which == "other":
                chosen = [rng.choice(np.flatnonzero(~each), each.sum(), replace=False) for each in mask]
            constants[name] = tuple((h, int(c), float(mean[h, c])) for h, each in enumerate(chosen) for c in each)
        parts = encoding.parts if isinstance(encoding, Sum) else (encoding,)
        made.append(Sum((Fixed(**constants), *parts)) if any(constants.values()) else encoding)
    return tuple(made)
