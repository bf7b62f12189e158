"""The encodings of the layers of well-known models, as `posjax.from_hf_layers` reads their configurations.

The configurations are in models.json, which tests/goldens/make_atlas_models.py writes: defaults of transformers'
classes, each made after a published checkpoint.
"""

import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from posjax.encoding import Encoding, parts
from posjax.hf import from_hf_layers

FILE = pathlib.Path(__file__).with_name("models.json")
_STACKS = {"t5": False, "mt5": False, "umt5": False}  # of two stacks the encoder is shown


class Use(NamedTuple):
    """An encoding in some layers of a model.

    Attributes:
      model: the class of its configuration.
      after: the checkpoint that the class was made after.
      spec: canonical spec of these layers.
      names: registered names of all parts of the spec.
      layers: indices of the layers.
      depth: number of layers of the model.
    """

    model: str
    after: str
    spec: str
    names: tuple[str, ...]
    layers: tuple[int, ...]
    depth: int


def source() -> str:
    """Returns the library, with its version, whose defaults the configurations are."""
    return json.loads(FILE.read_text())["source"]


def uses() -> Iterator[Use]:
    """Yields every encoding of every model, once for all its layers.

    Raises:
      ValueError: `from_hf_layers` cannot read a configuration.
    """
    for told in json.loads(FILE.read_text())["models"]:
        config = told["config"]
        layers = from_hf_layers(config, decoder=_STACKS.get(config["model_type"]))
        for encoding in dict.fromkeys(layers):
            where = tuple(index for index, each in enumerate(layers) if each == encoding)
            yield Use(told["class"], told["after"], str(encoding), names_in(encoding), where, len(layers))


def names_in(encoding: Encoding) -> tuple[str, ...]:
    """Returns the registered names of an encoding's parts and of their values, such as a scaling of frequencies."""
    found = []
    for part in parts(encoding):
        found += [part.spec_name, getattr(getattr(part, "scaling", None), "spec_name", "")]
    return tuple(dict.fromkeys(filter(None, found)))


def told(layers: Sequence[int], depth: int) -> str:
    """Returns ``all layers``, or ``3 of 4 layers: 0, 1, 2``."""
    if len(layers) == depth:
        return "all layers"
    return f"{len(layers)} of {depth} layers: {', '.join(_runs(layers))}"


def _runs(layers: Sequence[int]) -> list[str]:
    """Returns stretches of neighbours as text: ``0-2``, ``4-6`` ..."""
    found: list[list[int]] = []
    for layer in layers:
        if found and layer == found[-1][-1] + 1:
            found[-1].append(layer)
        else:
            found.append([layer])
    return [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in found]


def by_name() -> dict[str, list[dict[str, Any]]]:
    """Returns the models that use each registered name."""
    found: dict[str, list[dict[str, Any]]] = {}
    for use in uses():
        shown = {"model": use.model, "after": use.after, "spec": use.spec, "layers": told(use.layers, use.depth)}
        for name in use.names:
            found.setdefault(name, []).append(shown)
    return found
