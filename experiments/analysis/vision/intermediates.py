"""The inside of a ViT: its attention weights, queries, keys and tokens, and the encodings that it hosts."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jaxtyping import Float

from posjax.encoding import Array, Dims, Encoding, Params, Site
from posjax.models.transformer import layer_hosts
from posjax.models.vit import ViT
from posjax.spec import parse_layers


class Intermediates(NamedTuple):
    """The layers' values for one batch.

    `tokens` has depth + 1 entries: the input of the first block, and the output of each.
    """

    output: Float[jax.Array, "B ..."]  # logits, or the pooled output of a model without head
    weights: list[Float[jax.Array, "B H T T"]]
    query: list[Float[jax.Array, "B T H D"]]  # before `rotate`, which acts on its `turning` channels
    key: list[Float[jax.Array, "B T K D"]]
    tokens: list[Float[jax.Array, "B T M"]]


class LayerEncoding(NamedTuple):
    """A layer's encoding; layers that share parameters share `name`."""

    name: str
    encoding: Encoding
    params: Params


def intermediates_of(model: ViT, site: Site) -> Callable[[Any, jax.Array], Intermediates]:
    """Returns a compiled function (parameters, images [B, h, w, C]) -> Intermediates.

        look = intermediates_of(model, model.sites(28, 28))
        distance = attention_distance(look(params, images).weights[0], model.sites(28, 28), model.patch_size)

    Attention is dense, whatever the model's implementation.

    Args:
      model: the model.
      site: the site of all images, from `model.sites`.
    """

    def look(params: Any, images: jax.Array) -> Intermediates:
        output, variables = model.apply({"params": params}, images, site, mutable=["intermediates"])
        trunk = variables["intermediates"]["trunk"]
        attention = [trunk[f"block_{layer}"]["attention"] for layer in range(model.depth)]
        tokens = ["tokens_in", *(f"tokens_{layer}" for layer in range(model.depth))]
        weights, query, key = ([each[name][0] for each in attention] for name in ("weights", "queries", "keys"))
        return Intermediates(output, weights, query, key, [trunk[name][0] for name in tokens])

    return jax.jit(look)


def layer_encodings(model: ViT, params: Any) -> list[LayerEncoding]:
    """Returns the encoding of every layer with its parameters."""
    found = layer_hosts(parse_layers(model.encoding), model.depth, model.injection)
    return [LayerEncoding(name, encoding, params["trunk"].get(name, ())) for name, encoding in found]


def dims_of(model: ViT) -> Dims:
    """Returns the sizes of the model for its encodings; `head_dim` is the number of a head's channels that may rotate."""
    grid = model.patches(*model.image_size)
    return Dims(
        model.block.width, model.block.num_heads, model.block.turning_channels, grid=grid, prefix=model.num_prefix
    )


def turning(model: ViT, x: Float[Array, "B T H D"]) -> Float[Array, "B T H C"]:
    """Returns the channels of queries or keys that encodings may rotate: all, or the last ones in latent attention."""
    return x[..., -model.block.turning_channels :]
