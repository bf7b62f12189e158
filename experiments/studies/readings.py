"""Readings: trained weights under another encoding, at another size, or with resized tables.

    "alibi"                                                            # a spec; {own} in it is the model's own encoding
    lambda layers, at: f"rope(scaling=linear(factor={at.factor}))"     # of the model's layers and of where it is read
    RESIZED                                                            # tables of a ViT, for the grid of the images

A function gets the encodings of the layers, one for each kind of layer in a pattern, and a `Place`; it returns a spec, or
the encodings of the new pattern. Configs write such functions where a reading depends on the length or the resolution.
"""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from posjax.encoding import Encoding, Params, sites
from posjax.encodings import rope
from posjax.hosting import host
from posjax.models import Decoder, ViT
from posjax.models.block import BlockConfig
from posjax.models.replacing import scaled_ropes, with_encoding
from posjax.models.resizing import resize_params
from posjax.models.transformer import layer_hosts
from posjax.models.vit import image_channels
from posjax.pretrained.parameters import tree_of
from posjax.spec import layers_text, parse, parse_layers
from posjax.training.initial import of_own, renewed

RESIZED = "resized"


class Place(NamedTuple):
    """The size at which a model is read.

    Attributes:
      trained: length or resolution in training.
      size: length or resolution that is read.
      scale: how much longer inputs, or the sides of images, are than in training.
      grid: (rows, columns) of patches in training.
      frequencies: half the channels of a head.
      factors: of a rope's frequencies, where a search has found them; ones before.
      searched: the length that was searched at.
    """

    trained: int
    size: int
    scale: float
    grid: tuple[int, int] | None = None
    frequencies: int | None = None
    factors: tuple[float, ...] = ()
    searched: int | None = None

    @property
    def factor(self) -> float:
        """The scale, at least 1."""
        return max(1.0, self.scale)


Layers = tuple[Encoding, ...]
Reading = str | Callable[[Layers, Place], "str | Sequence[Encoding]"] | None


def text_place(training: ConfigDict, size: int, search: int | None = None, factors: tuple[float, ...] = ()) -> Place:
    """Returns the place of a length for the decoders of a training.

    Args:
      search: the length at which factors are searched.
      factors: of a rope's frequencies, where a search has found them.
    """
    model, trained = training.model, training.data.length
    frequencies = (model.get("head_dim") or model.width // max(model.num_heads, 1)) // 2
    return Place(trained, size, size / trained, None, frequencies, factors, search)


def is_searched(reading: Reading) -> bool:
    """Whether a reading asks for the factors that a search finds."""
    return getattr(reading, "searched", False)


def spec_of(reading: Reading, own: str, place: Place) -> str:
    """The spec that a model with the encodings `own` is read under; the canonical one.

    Raises:
      ValueError: a spec that cannot be read.
    """
    layers = parse_layers(own)
    if reading is None:
        return layers_text(layers)
    made = of_own(reading, own) if isinstance(reading, str) else reading(layers, place)
    return layers_text(parse_layers(made) if isinstance(made, str) else tuple(made))


def read_as(model: Any, params: Any, spec: str, *, anew: bool = False) -> tuple[Any, Any]:
    """The same weights under another encoding.

    Args:
      params: of an ensemble, leaves [R, ...].
      anew: whether an encoding that cannot take over the learned parameters starts from seed 0.

    Raises:
      ValueError: the encoding learns something else, and not anew.
    """
    keys = jax.random.split(jax.random.key(0), len(jax.tree.leaves(params)[0]))

    def init(changed: Any) -> Any:
        example = changed.example(image_channels(params)) if isinstance(model, ViT) else changed.example()
        return jax.vmap(lambda key: changed.init(key, *example)["params"])(keys)

    try:
        return with_encoding(model, params, spec, init)
    except ValueError:
        if not anew:
            raise
        changed = model.clone(encoding=spec)
        wanted = jax.eval_shape(lambda: init(changed))
        return changed, tree_of(wanted, renewed(params, lambda: init(changed)))


def encoded(model: Decoder, params: Any, length: int) -> list[np.ndarray]:
    """Returns the outputs of the encodings of a decoder's layers at all positions of a text, each [T, 2 H + 1].

    Two readings of one model whose outputs are `alike` score each text of this length alike. Tokens, queries, keys and values
    are drawn. Attention to few keys shows phases and biases, attention to nearly all of them a single pair that is hidden or
    turned otherwise; the last column is the code that is added to tokens. The unit is the largest effect of rounding.

    Args:
      params: of an ensemble, leaves [R, ...]; with learned encodings T is R times as long.
    """
    found: dict[Any, np.ndarray] = {}
    layers = layer_hosts(parse_layers(model.encoding), model.depth, model.injection)
    for name, encoding in set(layers):
        own = params["trunk"].get(name, ())
        count = len(leaves[0]) if (leaves := jax.tree.leaves(own)) else 1
        seeds = [jax.tree.map(lambda leaf, index=index: jnp.asarray(leaf[index]), own) for index in range(count)]
        found[name, encoding] = np.concatenate([_outputs(encoding, one, model.block, length) for one in seeds])
    return [found[layer] for layer in layers]


def equal_readings(
    readings: Mapping[str, Callable[[int], tuple[Decoder, Any]]], lengths: Sequence[int]
) -> dict[str, str]:
    """Returns {name: an earlier name} of readings whose encodings compute the same at every length.

    Args:
      readings: functions from a length to the model and the parameters that read it.
    """
    outputs = functools.cache(lambda name, length: encoded(*readings[name](length), length))
    equal: dict[str, str] = {}
    for name in readings if lengths else ():
        earlier = (other for other in itertools.takewhile(name.__ne__, readings) if other not in equal)
        for other in earlier:
            if all(alike(outputs(name, length), outputs(other, length)) for length in lengths):
                equal[name] = other
                break
    return equal


def alike(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> bool:
    """Whether the outputs of `encoded` differ by rounding alone."""
    return all(np.abs(a - b).max() <= 1 for a, b in zip(one, other, strict=True))


def _outputs(encoding: Encoding, params: Params, block: BlockConfig, length: int) -> np.ndarray:
    """Returns one layer's outputs, see `encoded`; nan for an encoding that reads the layer's own matrices."""
    heads, channels = block.num_heads, block.turning_channels
    if "in_layer" in encoding.hooks:
        return np.full((length, 2 * heads + 1), np.nan)
    keys, site = jax.random.split(jax.random.key(0), 4), sites(length)

    @jax.jit
    def run(params: Params) -> jax.Array:
        x = jax.random.normal(keys[0], (length, block.width))
        q = jax.random.normal(keys[1], (length, heads, channels))
        k = jax.random.normal(keys[2], (length, block.key_heads, channels))
        v = jax.random.rademacher(keys[3], (length, block.key_heads, 1), jnp.float32) * jnp.ones(channels)
        coded, hosted = host(encoding, params, x, site, key=None)
        few, nearly_all = (hosted.attend(scale * q, k, v, x=coded, causal=True).mean(-1) for scale in (4.0, 1.0))
        code = (coded - x).mean(-1, keepdims=True)
        # Frequencies in float32 err by 1e-7 of the angle; a key among all has a weight of 1 / length.
        return jnp.concatenate([few / (1e-6 * length), nearly_all * (length / 0.05), code / 1e-6], axis=-1)

    return np.asarray(run(params))


def resized(model: ViT, params: Any, image_size: tuple[int, int], method: str) -> tuple[ViT, Any]:
    """A ViT with its tables resized for images of another size; `method` is one of `posjax.encodings.resize`."""
    first = jax.tree.map(lambda leaf: leaf[0], params)
    changed, _ = resize_params(model, first, image_size, method)
    return changed, jax.vmap(lambda one: resize_params(model, one, image_size, method)[1])(params)


def scaled_rope(scaling: str) -> Callable[[Layers, Place], tuple[Encoding, ...]]:
    """The reading that scales the ropes of all layers without a window; `scaling` is its name, as in `scaled_ropes`."""
    return lambda layers, at: scaled_ropes(layers, scaling, at.factor, at.trained)


def in_layers(
    which: Callable[[int, Encoding], bool], change: Callable[[Encoding, Place], Any]
) -> Callable[[Layers, Place], tuple[Encoding, ...]]:
    """The reading that changes some layers of a pattern.

    Args:
      which: whether the layer of this index in the pattern, with this encoding, is changed.
      change: its encoding there, or a spec of it.
    """

    def read(layers: Layers, at: Place) -> tuple[Encoding, ...]:
        made = [change(layer, at) if which(index, layer) else layer for index, layer in enumerate(layers)]
        return tuple(parse(layer) if isinstance(layer, str) else layer for layer in made)

    return read


def longrope(layers: Layers, at: Place) -> str:
    """Returns the model's own rope under the factors of a search; as trained within the trained length."""
    own, length = plain_rope(layers, at), at.searched
    factors = ", ".join(f"{factor:.6g}" for factor in at.factors or (1.0,) * at.frequencies)
    ones = ", ".join(["1.0"] * at.frequencies)
    scaling = f"longrope(short_factor=({ones},), long_factor=({factors},), factor={length / at.trained:.8g}, "
    plain = ", ".join(f"{name}={getattr(own, name)!r}" for name in ("base", "layout", "fraction"))
    return f"rope({plain}, scaling={scaling}original_length={at.trained}))"


longrope.searched = True


def plain_rope(layers: Layers, at: Place) -> rope:
    """Returns the only encoding of a model whose rope is to be scaled by a search.

    Raises:
      ValueError: there is another one, or the searched length is not above the trained one.
    """
    if len(layers) != 1 or not isinstance(layers[0], rope) or at.searched <= at.trained:
        raise ValueError(
            f"factors are searched for a plain rope and a length above the trained {at.trained}, not for "
            f"{layers_text(layers)!r} and search.length={at.searched}"
        )
    return layers[0]
