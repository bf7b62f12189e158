"""Compares a measured encoding with the configuration beside it."""

import dataclasses
import functools
import operator
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from posjax.audits.fit import Lanes, fits
from posjax.encoding import Dims, Encoding, parts
from posjax.encodings import none
from posjax.encodings.bias import T5
from posjax.encodings.rotary import PRope, Rope, Rotary
from posjax.hf import LayersDiffer, from_hf, from_hf_layers
from posjax.hf.models import OTHERS, t5
from posjax.jsonl import parse_json

Config = Mapping[str, Any]


def read_config(config: Config | str | os.PathLike) -> Config:
    """The keys of a configuration, or of the text_config in it, where it has one.

    Raises:
      ValueError: the file is no JSON object.
    """
    if not isinstance(config, Mapping):
        config = parse_json(pathlib.Path(config).read_bytes(), config)
    return config["text_config"] if isinstance(config.get("text_config"), Mapping) else config


def meant_by(config: Config) -> list[Encoding]:
    """The encoding of each layer, one entry where all are the same; of T5, its encoder's and its decoder's."""
    if OTHERS.get(config.get("model_type")) is t5:
        return [from_hf(config, decoder=decoder) for decoder in (False, True)]
    try:
        return [from_hf(config)]
    except LayersDiffer:
        return list(from_hf_layers(config))


def judge_configs(configs: Sequence[Config | str | os.PathLike]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns what two configurations both mean, and where they differ, each as lines of text.

    Raises:
      ValueError: there are not two, or `from_hf` does not read one of them.
    """
    if len(configs) != 2:
        raise ValueError(f"audit(configs=...) compares two configurations, got {len(configs)}")
    names = [n if isinstance(c, Mapping) else str(c) for n, c in zip(("the first", "the second"), configs, strict=True)]
    first, second = (meant_by(read_config(config)) for config in configs)
    count = max(len(first), len(second))
    if 1 < min(len(first), len(second)) < count:
        return (), (f"{names[0]} has {len(first)} layers, {names[1]} {len(second)}",)
    layers: dict[tuple[Encoding, Encoding], list[int]] = {}
    for layer in range(count):
        layers.setdefault((first[layer % len(first)], second[layer % len(second)]), []).append(layer)
    where = {pair: f"layers {_listed(numbers)}: " if count > 1 else "" for pair, numbers in layers.items()}
    facts = (f"{where[one, two]}{one}" for one, two in layers if one == two)
    findings = (f"{where[one, two]}{one} in {names[0]}, {two} in {names[1]}" for one, two in layers if one != two)
    return tuple(facts), tuple(findings)


def rotation_of(encoding: Encoding) -> Encoding:
    """The part that rotates, or else the first part."""
    return next((part for part in parts(encoding) if isinstance(part, Rotary)), parts(encoding)[0])


def logits_of(encoding: Encoding) -> Encoding:
    """The parts that hide keys or add a bias: without parameters, or T5's."""
    kept = [part for part in parts(encoding) if "mask" in part.hooks or ("bias" in part.hooks and _is_fixed(part))]
    return functools.reduce(operator.add, kept) if kept else none()


def _is_fixed(part: Encoding) -> bool:
    learned = jax.eval_shape(lambda: part.init(jax.random.key(0), Dims(8, 1, 8, length=8)))
    return isinstance(part, T5) or not jax.tree.leaves(learned)


def against(
    layers: list[Encoding], encoding: Encoding | None, agrees: Callable[[Encoding], bool], layer: int | None
) -> list[str]:
    """Says how a configuration differs from a measured encoding: nothing where it means the same.

    Args:
      agrees: whether an encoding is the measured one.
      layer: the number of the layer that was measured; None where any layer of the configuration may be meant.

    Raises:
      ValueError: the configuration has no such layer.
    """
    if layer is not None and len(layers) > 1:
        if not 0 <= layer < len(layers):
            raise ValueError(f"layer={layer}: the configuration has layers 0 to {len(layers) - 1}")
        asked = [layers[layer]]
    else:
        asked = layers
    if any(agrees(each) for each in asked):
        return []
    meant = ", ".join(dict.fromkeys(str(each) for each in asked))
    where = f" in layer {layer}" if layer is not None else ""
    words = [f"config.json means {meant}{where}"]
    others = [n for n, each in enumerate(layers) if agrees(each)]
    if others:
        words.append(f"measured is its encoding of layers {_listed(others)}")
    elif len({*asked}) == 1 and encoding is not None:
        words += _differences(asked[0], encoding)
        scaling = getattr(encoding, "scaling", None)
        if scaled := [
            n for n, each in enumerate(layers) if scaling is not None and getattr(each, "scaling", None) == scaling
        ]:
            words.append(f"the configuration scales so in layers {_listed(scaled)} only")
    return ["; ".join(words)]


def rotates_as(meant: Encoding, encoding: Encoding | None, lanes: Lanes | None) -> bool:
    """Whether an encoding has the measured frequencies, or is the measured encoding where there are none."""
    if isinstance(meant, Rotary) and lanes is not None:
        return fits(meant, lanes)
    return type(meant) is type(encoding) and str(meant) == str(encoding)


def _differences(meant: Encoding, encoding: Encoding) -> list[str]:
    """The arguments that differ; a class that differs is said first."""
    if type(meant) is PRope and type(encoding) is Rope and encoding.fraction < 1:
        return ["measured are partial lanes as in GPT-NeoX, where it means proportional ones of the whole head"]
    if type(meant) is not type(encoding):
        return [f"measured is {encoding.spec_name}, and not {meant.spec_name}"]
    names = [field.name for field in dataclasses.fields(meant)]
    differing = [name for name in names if getattr(meant, name) != getattr(encoding, name)]
    if differing == ["scaling"] and encoding.scaling is None:
        return ["its scaling is not applied"]
    return [
        f"{name} is {_text(getattr(encoding, name))} instead of {_text(getattr(meant, name))}" for name in differing
    ]


def _listed(layers: list[int]) -> str:
    return ", ".join(map(str, layers[:8])) + ", ..." * (len(layers) > 8)


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
