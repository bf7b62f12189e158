"""One look into a trained model: the attention weights, queries, keys, values and tokens of its layers."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jaxtyping import Float

from posjax.encoding import Array, Site
from posjax.models import Decoder

Score = Callable[[int, Float[Array, "B H T T"]], Any]


class Layers(NamedTuple):
    """The values of a model for one batch, with an entry for each layer.

    Attributes:
      output: what the model returns; the features of a decoder, logits of a model with a head.
      weights: attention weights, or their scores.
      query, key: before `rotate`, which acts on the last `Subject.dims.head_dim` channels.
      tokens: depth + 1 entries: the input of the first block, and the output of each.
    """

    output: Float[Array, "B ..."]
    weights: list[Any]
    query: list[Float[Array, "B T H D"]]
    key: list[Float[Array, "B T K D"]]
    value: list[Float[Array, "B T K E"]]
    tokens: list[Float[Array, "B T M"]]


@functools.partial(jax.jit, static_argnums=(0, 4))
def look(model: Any, params: Any, batch: Array, site: Site, score: Score | None = None) -> Layers:
    """Returns the layers of a decoder, an encoder or a ViT; attention is dense, whatever the model's implementation.

        layers = look(model, params, images, model.sites(28, 28))
        distance = attention_distance(layers.weights[0], model.sites(28, 28), model.patch_size)

    Args:
      batch: tokens [B, T] or images [B, h, w, C].
      site: of all texts or images.
      score: (layer, weights) -> what is kept of a layer's weights, which are large; one function is compiled once.
    """
    method = "features" if isinstance(model, Decoder) else None
    output, variables = model.apply({"params": params}, batch, site, method=method, mutable=["intermediates"])
    trunk = variables["intermediates"]["trunk"]
    blocks = [trunk[f"block_{layer}"]["attention"] for layer in range(model.depth)]
    weights, *rest = ([block[name][0] for block in blocks] for name in ("weights", "queries", "keys", "values"))
    if score is not None:
        weights = [score(layer, each) for layer, each in enumerate(weights)]
    tokens = [trunk[name][0] for name in ("tokens_in", *(f"tokens_{layer}" for layer in range(model.depth)))]
    return Layers(output, weights, *rest, tokens)


def no_weights(layer: int, weights: Array) -> None:
    """Keeps nothing of a layer's weights: a score of `look`."""
