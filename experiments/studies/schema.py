"""The fields of a study's config, checked before anything is trained. docs/experiments.md shows them."""

import difflib
from collections.abc import Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict


class Field(NamedTuple):
    """A field of a study's config: its kind, what it holds, and of a group the fields that it must have."""

    kind: type
    about: str
    parts: tuple[str, ...] = ()


FIELDS: Mapping[str, Field] = {
    "seeds": Field(tuple, "whole numbers: each training is run once for each; the only field that has to be there"),
    "name": Field(str, "of the folder below runs/; the name of the file where it is left out"),
    "title": Field(str, "of the page; the name where it is left out"),
    "point": Field(str, "the question, a sentence at the head of the page"),
    "notes": Field(str, "what a reader must know, below the findings"),
    "studies": Field(ConfigDict, "of an ablation: {name: the config of a single run, with `encodings` or `rows`}"),
    "tune": Field(ConfigDict, "rates that are tried for each row", ("learning_rates", "seeds", "share")),
    "axis": Field(
        ConfigDict, "a quantity on which the studies lie: {study: number} and its title", ("title", "values")
    ),
    "paper": Field(ConfigDict, "a published table: see `experiments.report.paper`", ("source",)),
    "probe": Field(ConfigDict, "see `experiments.studies.position_probes`", ("checkpoints", "windows", "seed")),
}
# Of the training of a row, beside the fields of its task: what is first read after steps have been taken.
TRAINING = ("task", "data", "model", "optimizer", "steps", "batch_size", "accumulate", "mesh")
TRAINING += ("log_every", "eval_every", "checkpoint_every", "keep_last")


def check_study(config: ConfigDict) -> None:
    """Refuses the config of a study that could not be run or shown.

    Raises:
      ValueError: names the field: one that is missing, misspelt or of another kind, or studies without a value on the axis.
    """
    for name in config:
        near = difflib.get_close_matches(name, FIELDS, n=1, cutoff=0.8)
        if near and name not in FIELDS and near[0] not in config:
            raise ValueError(f"config.{name} is no field of a study: did you mean {near[0]!r}?")
    if config.get("seeds") is None:
        raise ValueError("the config of a study has no seeds: config.seeds = (0, 1, 2), or --seeds 0,1,2")
    for name, field in FIELDS.items():
        if config.get(name) is not None:
            _check_field(f"config.{name}", config[name], field)
    if not all(isinstance(seed, int) for seed in config.seeds):
        raise ValueError(f"config.seeds={tuple(config.seeds)} must be whole numbers")
    studies = config.get("studies") or {}
    for name, study in studies.items():
        where = f"config.studies.{name}"
        _check_field(where, study, Field(ConfigDict, ""))
        for part, kind, example in (("encodings", str, "{label: spec}"), ("rows", ConfigDict, "{label: fields}")):
            for label, value in (study.get(part) or {}).items():
                _check_field(f"{where}.{part}, {example}: {label!r}", value, Field(kind, ""))
    if (axis := config.get("axis")) is not None and (
        missing := [name for name in studies if name not in axis["values"]]
    ):
        raise ValueError(f"config.axis.values has no number for the study {missing[0]!r}")


def check_training(config: ConfigDict) -> None:
    """Refuses the config of a training without a field that would be missed once it has begun.

    Raises:
      ValueError: names the field.
    """
    if missing := [name for name in TRAINING if name not in config]:
        raise ValueError(
            f"its training has no field {missing[0]!r}: begin with the config of a single run, as that of configs/vit.py"
        )


def _check_field(name: str, value: Any, field: Field) -> None:
    kinds = (tuple, list) if field.kind is tuple else (ConfigDict, dict) if field.kind is ConfigDict else field.kind
    if not isinstance(value, kinds):
        words = {str: "a text", tuple: "a tuple", ConfigDict: "a group of fields"}
        raise ValueError(f"{name} is {words[field.kind]}, got {value!r}")
    if missing := [part for part in field.parts if part not in value]:
        raise ValueError(f"{name} has no {missing[0]!r}")
