"""Another encoding in a trained model."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import flax.linen as nn
import jax

from posjax.encoding import Encoding, Placed, Sum
from posjax.encodings.rotary import Rope
from posjax.encodings.views import Viewed
from posjax.spec import layers_text, parse, parse_layers


def with_encoding(
    model: nn.Module, params: Any, spec: str | tuple[Encoding, ...], init: Callable[[nn.Module], Any]
) -> tuple[nn.Module, Any]:
    """Returns the model with another encoding, and its parameters.

    The new encoding takes over the parameters of the old encoding in their order: `t5 + window(64)` has the same as `t5`.

    Args:
      params: of the model; leaves may have further leading axes, if the leaves of `init` have them too.
      spec: of the encoding, or the encodings of a pattern over the layers.
      init: makes parameters of a model; only their shapes are computed.

    Raises:
      ValueError: the new encoding has parameters of other names or shapes.
    """
    changed = model.clone(encoding=spec)
    wanted = jax.eval_shape(lambda: init(changed))
    old, new = (dict(_leaves(tree, encoding=True)) for tree in (params, wanted))
    if _shapes(old) != _shapes(new):
        names = [layers_text(parse_layers(each)) for each in (model.encoding, spec)]
        raise ValueError(
            f"{names[1]} cannot take over what {names[0]} has learned: its parameters are {_shapes(new)}, those there are "
            f"{_shapes(old)}; train it, or choose one with the same parameters"
        )
    others = dict(_leaves(params, encoding=False)) | dict(zip(new, old.values(), strict=True))
    return changed, jax.tree_util.tree_map_with_path(lambda path, _: others[path], wanted)


def _leaves(params: Any, *, encoding: bool) -> Iterator[tuple[Any, Any]]:
    """Yields (path, leaf) of the parameters of encodings, or of all other parameters."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if any(str(getattr(key, "key", "")).split("_")[0] == "encoding" for key in path) == encoding:
            yield path, leaf


def _shapes(leaves: dict) -> str:
    """The names and shapes of an encoding's parameters, ``slope (4,)``; places in a composition do not count."""
    named = []
    for path, leaf in leaves.items():
        keys = [str(getattr(key, "key", getattr(key, "name", ""))) for key in path]
        start = next(index for index, key in enumerate(keys) if key.split("_")[0] == "encoding")
        named.append(f"{'.'.join(filter(None, keys[start + 1 :]))} {leaf.shape}".strip())
    return ", ".join(named) or "none"


def scaled_ropes(layers: Sequence[Encoding], scaling: str, factor: float, trained: int) -> tuple[Encoding, ...]:
    """Returns the layers with this scaling in each rope, in whatever composition; layers with a window stay as they are.

    Args:
      layers: encodings of a pattern.
      scaling: its name: "linear", "ntk", "yarn" or "llama3".
      factor: how much longer than the trained length sequences are, at least 1.
      trained: tokens of a sequence in training.

    >>> layers = parse_layers("rope + window(512), rope")
    >>> print(*scaled_ropes(layers, "linear", 4.0, trained=2048), sep="\\n")
    rope() + window(size=512)
    rope(scaling=linear(factor=4))
    """
    length = "" if scaling in ("linear", "ntk") else f", original_length={trained}"
    made = parse(f"rope(scaling={scaling}(factor={factor}{length}))").scaling
    return tuple(each if is_windowed(each) else _with_scaling(each, made) for each in layers)


def is_windowed(layer: Encoding) -> bool:
    """Whether a layer sees so many tokens at most, however long the text is."""
    return math.isfinite(layer.mask().memory.last)


def _with_scaling(encoding: Encoding, scaling: Any) -> Encoding:
    """The encoding with this scaling in each of its ropes."""
    if isinstance(encoding, Rope):
        return dataclasses.replace(encoding, scaling=scaling)
    if isinstance(encoding, Sum):
        return Sum(tuple(_with_scaling(part, scaling) for part in encoding.parts))
    if isinstance(encoding, Placed | Viewed):
        return dataclasses.replace(encoding, encoding=_with_scaling(encoding.encoding, scaling))
    return encoding
