"""Sweeps: every row of an ablation at several values of some fields, the best chosen by data that are not reported.

    --sweep config.optimizer.learning_rate=1e-3,3e-3 --sweep config.optimizer.weight_decay=0,0.1      # four points a row

A point is a row with a label and records of its own. What it is chosen by is a share of the training split that is not
trained on, or a split of its own; what is reported, `config.data.eval_split`, chooses nothing.
"""

import ast
import copy
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from posjax import data
from posjax.spec import nearest

SEEDS = ("seed", "seeds")
_WORDS = {"true": True, "false": False, "none": None}
_OPEN, _CLOSE = "([{", ")]}"


class Sweep(NamedTuple):
    """One field and its values, as texts: what they are is up to the field."""

    field: str
    values: tuple[str, ...]


def parse_sweep(text: str) -> Sweep:
    """Reads "config.a.b=1,2"; commas within brackets or quotes part nothing: "config.model.encoding='rope, none',alibi".

    Raises:
      ValueError: for anything else.
    """
    name, equals, values = text.partition("=")
    found = _parted(values)
    if not name.startswith("config.") or not equals or not all(found) or len(set(found)) < len(found):
        raise ValueError(
            f"--sweep {text}: expected a field and its values, each once, as in config.optimizer.learning_rate=1e-3,3e-3"
        )
    return Sweep(name.removeprefix("config."), tuple(found))


def points(sweeps: Sequence[Sweep]) -> list[dict[str, str]]:
    """Every combination of values, {field: text}, the last field changing fastest.

    Raises:
      ValueError: a field is given twice.
    """
    fields = [sweep.field for sweep in sweeps]
    if twice := {field for field in fields if fields.count(field) > 1}:
        raise ValueError(f"--sweep config.{min(twice)} is given twice: list all of its values once")
    return [dict(zip(fields, values, strict=True)) for values in itertools.product(*(each.values for each in sweeps))]


def swept_seeds(sweeps: Sequence[Sweep]) -> tuple[int, ...] | None:
    """The seeds, where they are swept: those of every row, which has a record for each.

    Raises:
      ValueError: for what is no whole number.
    """
    given = [sweep for sweep in sweeps if sweep.field in SEEDS]
    if not given:
        return None
    values = given[0].values
    if not all(value.isdigit() for value in values):
        raise ValueError(f"--sweep config.{given[0].field}={','.join(values)}: seeds are whole numbers, 0 or above")
    return tuple(map(int, values))


def at_point(study: ConfigDict, point: Mapping[str, str]) -> ConfigDict:
    """A study with these fields set; what depends on them follows.

    Raises:
      ValueError: for a field that it does not have, or a value of the wrong kind.
    """
    changed = copy.deepcopy(study)  # keeps its references, which to_dict would not, and leaves the study its own
    for field, text in point.items():
        *above, last = field.split(".")
        group = changed
        for name in above:
            group = _inside(group, name, field)
        _inside(group, last, field)
        group[last] = _value(text, group.get_type(last), field)
    return changed


def has_field(study: ConfigDict, field: str) -> bool:
    """Whether a study has such a field, "optimizer.learning_rate"."""
    group: Any = study
    for name in field.split("."):
        if not isinstance(group, ConfigDict) or name not in group:
            return False
        group = group[name]
    return not isinstance(group, ConfigDict)


def short_names(fields: Sequence[str]) -> dict[str, str]:
    """What labels call each field: its last part, where no other one has the same."""
    last = [field.rpartition(".")[2] for field in fields]
    return {field: name if last.count(name) == 1 else field for field, name in zip(fields, last, strict=True)}


def chosen_by(training: ConfigDict, choose_by: str) -> ConfigDict:
    """The training of a point, and in `data.choose_split` what it is chosen by.

    Args:
      choose_by: a share of the training split, as "0.1", which is then not trained on; or another split.

    Raises:
      ValueError: for a split that is trained on or reported, a share outside (0, 1), or data that are drawn.
    """
    if "train_split" not in training.data:
        raise ValueError(
            f"task {training.task!r} has no data.train_split to hold a share out of: tune instead (config.tune)"
        )
    made = ConfigDict(training.to_dict())
    split = choose_by
    try:
        share = float(choose_by)
    except ValueError:
        if split in (training.data.train_split, training.data.eval_split):
            used = "trained on" if split == training.data.train_split else "reported"
            raise ValueError(
                f"--choose_by={split}: this split is {used}; choose by another one, or by a share of the training split, "
                "as 0.1"
            ) from None
    else:
        made.data.train_split, split = data.held_out_names(training.data.train_split, share)
    made.data.choose_split = split
    return made.lock()


def choosing(training: ConfigDict) -> ConfigDict:
    """The config of a task whose evaluation set is what a point is chosen by."""
    made = ConfigDict(training.to_dict())
    made.data.eval_split = training.data.choose_split
    if "eval_lengths" in made:
        made.eval_lengths, made.eval_tokens = (min(made.eval_lengths),), None
    return made.lock()


def _inside(group: ConfigDict, name: str, field: str) -> Any:
    if not isinstance(group, ConfigDict) or name not in group:
        known = list(group) if isinstance(group, ConfigDict) else []
        raise ValueError(f"--sweep config.{field}: there is no field {name!r}; {nearest(name, known)}")
    return group[name]


def _value(text: str, kind: type, field: str) -> Any:
    """The text as the field has it; a string may stand in quotes."""
    if kind is str:
        return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text
    try:
        value = _WORDS[text.lower()] if text.lower() in _WORDS else ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = text
    value = float(value) if kind is float and type(value) is int else value
    if value is not None and type(value) is not kind and kind is not type(None):
        raise ValueError(f"--sweep config.{field}: expected {kind.__name__}, got {text!r}")
    return value


def _parted(text: str) -> list[str]:
    """At the commas outside brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        else:
            depth += (character in _OPEN) - (character in _CLOSE)
        if character == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]
