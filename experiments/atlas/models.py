"""The encodings of the layers of well-known models, as `posjax.from_hf_layers` reads their configurations.

The configurations are in models.json, which tests/goldens/make_atlas_models.py writes: defaults of transformers'
classes, each made after a published checkpoint.
"""

import pathlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from posjax.describe.explain.text import spans
from posjax.encoding import Encoding, parts
from posjax.hf import from_hf_layers
from posjax.jsonl import parse_json

FILE = pathlib.Path(__file__).with_name("models.json")
_STACKS = {"t5": False, "mt5": False, "umt5": False}  # of two stacks the encoder is shown


class LayersOfModel(NamedTuple):
    """The layers of a model that have one encoding.

    Attributes:
      model: the class of its configuration.
      after: the checkpoint that the class was made after.
      encoding: of these layers.
      layers: indices of the layers.
      depth: number of layers of the model.
    """

    model: str
    after: str
    encoding: Encoding
    layers: tuple[int, ...]
    depth: int

    @property
    def names(self) -> tuple[str, ...]:
        """Registered names of the encoding's parts and of their values, such as a scaling of frequencies."""
        found = [
            getattr(each, "spec_name", "") for p in parts(self.encoding) for each in (p, getattr(p, "scaling", None))
        ]
        return tuple(dict.fromkeys(filter(None, found)))

    def __str__(self) -> str:
        """Returns ``all layers``, or ``4 of 8 layers: 0-2, 5``."""
        if len(self.layers) == self.depth:
            return "all layers"
        return f"{len(self.layers)} of {self.depth} layers: {spans(self.layers)}"


def layers_of_models() -> Iterator[LayersOfModel]:
    """Yields every encoding of every model, once for all its layers.

    Raises:
      ValueError: `from_hf_layers` cannot read a configuration.
    """
    for model in parse_json(FILE.read_bytes(), FILE)["models"]:
        config = model["config"]
        encodings = from_hf_layers(config, decoder=_STACKS.get(config["model_type"]))
        for encoding in dict.fromkeys(encodings):
            layers = tuple(index for index, each in enumerate(encodings) if each == encoding)
            yield LayersOfModel(model["class"], model["after"], encoding, layers, len(encodings))


def models() -> dict[str, Any]:
    """Returns the source of the configurations, and the layers of each model, by encoding."""
    layers = [
        {"model": use.model, "after": use.after, "spec": str(use.encoding), "layers": str(use), "names": use.names}
        for use in layers_of_models()
    ]
    return {"source": parse_json(FILE.read_bytes(), FILE)["source"], "layers": layers}
