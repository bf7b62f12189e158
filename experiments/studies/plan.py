"""The plan of a study: the rows that its config lists, checked before anything is trained.

A config has `studies`, {name: table}, or is one table itself. A table is the config of a single run with its rows:
`encodings` {label: spec} and `rows` {label: fields} are trained, `variants` {base: {label: reading}} read their weights under
other encodings, `finetune` {base: {label: fields}} train them further. `measures` {name: options} lists the measures.
"""

import difflib
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from absl import logging
from ml_collections import ConfigDict

from experiments.studies.readings import RESIZED, Reading
from posjax.data import SYNTHETIC
from posjax.models.kinds import KINDS
from posjax.spec import layers_text, nearest, parse_layers
from posjax.training.classification import task_class
from posjax.training.initial import AS_INIT, OWN, Start, as_started, start_of

AS_LOADED = "loaded"  # the row of pretrained weights, and the base of their variants and fine-tunes


# The kinds of the fields of a study, and of its tables: docs/experiments.md describes them.
FIELDS: Mapping[str, type] = {
    "seeds": tuple,
    **dict.fromkeys(("name", "title", "point", "notes"), str),
    **dict.fromkeys(("page", "studies", "tune", "axis", "paper", "curves"), ConfigDict),
}
TABLE: Mapping[str, type] = {
    **dict.fromkeys(("encodings", "rows", "variants", "finetune", "measures", "tune", "search"), ConfigDict),
    "checkpoints": str,
}
_PARTS = {"tune": ("seeds", "share"), "axis": ("title", "values"), "paper": ("source",), "curves": ("source",)}
_OPTIONS = ("trained_length",)  # of --checkpoint
# Of the training of a row, beside the fields of its task: these are first read after steps have been taken.
TRAINING = ("task", "data", "model", "optimizer", "steps", "batch_size", "accumulate", "mesh")
TRAINING += ("log_every", "eval_every", "checkpoint_every", "keep_last")


def named(specs: str) -> dict[str, str]:
    """Returns the rows of a study, {name: spec}, of specs with spaces between them."""
    return {spec.partition("(")[0]: spec for spec in specs.split()}


class Row(NamedTuple):
    """One line of a table.

    Attributes:
      base: label of the training whose weights it reads; rows of one base stand together.
      training: the configuration of that training.
      read: how the weights are read; None as they were trained.
      finetune: a further training: its `read`, `size` (length or resolution), `steps` and `learning_rate`.
      start: the weights that the training starts from; None for random ones.
    """

    study: str
    label: str
    base: str
    training: ConfigDict
    read: Reading = None
    finetune: ConfigDict | None = None
    start: Start | None = None

    def __str__(self) -> str:
        return f"row {self.label!r} of {self.study!r}"


def tables_of(config: ConfigDict) -> dict[str, ConfigDict]:
    """The tables of a study's config by name."""
    return dict(config.studies.items()) if "studies" in config else {config.get("name") or "study": config}


def measures_of(table: ConfigDict) -> dict[str, ConfigDict]:
    """Returns the measures of a table: {name: options}."""
    return dict((table.get("measures") or ConfigDict({"scores": {}})).items())


def seeds_of(config: ConfigDict, table: ConfigDict) -> tuple[int, ...]:
    """The seeds of a table's rows.

    Raises:
      ValueError: none, one given twice, or one that is no whole number.
    """
    seeds = tuple(table.get("seeds") or config.seeds)
    if not all(isinstance(seed, int) for seed in seeds):
        raise ValueError(f"seeds={seeds} must be whole numbers")
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must be non-empty and distinct, got {seeds}")
    return seeds


def rows_of(name: str, table: ConfigDict, restored: Mapping[str, ConfigDict] | None = None) -> list[Row]:
    """All rows of a table: each base, then its weights read otherwise, then trained further.

    Args:
      restored: the trainings, by label, of weights that are there; then nothing is trained but fine-tunes, and what the
        table has for "loaded" is read and tuned too.

    Raises:
      ValueError: names a row that cannot be: a spec that cannot be read, a label given twice, variants of no base.
    """
    known = [*table.get("encodings", {}), *table.get("rows", {})]
    planned = _trainings(name, table) if restored is None else {label: (x, None) for label, x in restored.items()}
    for section in ("variants", "finetune"):
        for base in table.get(section) or ():
            if base not in known and base != AS_LOADED:
                raise ValueError(f"there is no base {base!r} for its {section} in {name!r}; {nearest(base, known)}")
    rows = []
    for base, (training, start) in planned.items():
        bases = dict.fromkeys((base,) if restored is None else (base, AS_LOADED))
        variants = {label: x for each in bases for label, x in (table.get("variants") or {}).get(each, {}).items()}
        if base in variants and variants[base] is None:  # the base is not read as it was trained
            del variants[base]
        else:
            rows.append(Row(name, base, base, training, start=start))
        rows += [Row(name, label, base, training, read, start=start) for label, read in variants.items()]
        for each in bases:
            for label, tuning in (table.get("finetune") or {}).get(each, {}).items():
                finetune = ConfigDict(tuning.to_dict())
                finetune.size = finetune.get("size") or training.data.length
                rows.append(Row(name, label, base, training, tuning.get("read"), finetune, start))
    for row in rows:
        if isinstance(row.read, str) and row.read != RESIZED:
            parse_layers(row.read.replace(OWN, "none"))
    labels = [row.label for row in rows]
    if twice := {label for label in labels if labels.count(label) > 1}:
        raise ValueError(f"two rows of {name!r} are labelled {min(twice)!r}: give each a label of its own")
    return rows


def _trainings(name: str, table: ConfigDict) -> dict[str, tuple[ConfigDict, Start | None]]:
    """{label: the config of its training, the weights that it starts from}."""
    encodings, rows = table.get("encodings") or {}, table.get("rows") or {}
    if twice := [label for label in rows if label in encodings]:
        raise ValueError(f"rows and encodings both have {twice[0]!r}: give each a label of its own")
    changes = {label: {"model": {"encoding": spec}} for label, spec in encodings.items()}
    changes |= {label: fields.to_dict() for label, fields in rows.items()}
    if not changes:
        raise ValueError(
            f"study {name!r} has no rows: give encodings, {{label: spec}}, rows, {{label: fields}}, or --checkpoint"
        )
    shared, made = start_of(table), {}
    for label, change in changes.items():
        start = start_of(ConfigDict({**table.to_dict(), **change})) if "init_from" in change else shared
        made[label] = training_of(table, change, f"row {label!r} of {name!r}", start), start
    for label in changes if len({id(start) for _, start in made.values()}) > 1 else ():
        first, (training, _) = next(iter(made)), made[label]
        for field in ("image_size", "mean", "std"):
            seen, other = (each.data.get(field) for each in (made[first][0], training))
            if seen != other:
                raise ValueError(
                    f"rows {first!r} and {label!r} of {name!r} start from weights for other images, data.{field}={seen} "
                    f"and {other}: set it, or give each a table of its own"
                )
    return made


def training_of(table: ConfigDict, change: Mapping[str, Any], whose: str, start: Start | None = None) -> ConfigDict:
    """The configuration of a row's training: the fields of the table that are of no study, changed.

    Args:
      start: the weights that `init_from` names; {own} in an encoding is theirs.

    Raises:
      ValueError: a change of no field; says `whose`.
    """
    own = {*FIELDS, *TABLE, *_OPTIONS, "seed", "encoding"}
    training = ConfigDict({name: value for name, value in table.to_dict().items() if name not in own})
    set_fields(training, change, whose)
    if missing := [name for name in TRAINING if name not in training]:
        raise ValueError(
            f"{whose}: its training has no field {missing[0]!r}: begin with the config of a single run, as that of "
            "configs/vit.py"
        )
    if (data := training.data.get("name")) in SYNTHETIC:
        raise ValueError(f"{whose}: data.name={data!r} is random, for speed and plans: give a study real data")
    training = as_started(training, start)
    if start is not None:
        training = ConfigDict(training.to_dict() | {"init_digest": start.digest})
    if training.model.get("encoding") is not None:
        encoding_of(training)
    return training.lock()


def encoding_of(config: ConfigDict) -> str:
    """The canonical spec of the model that a config trains; "-" for a model that hosts none."""
    hosts = hasattr(KINDS[config.model.get("kind", "vit")], "encoding")
    return layers_text(parse_layers(config.model.encoding)) if hosts else "-"


def finetune_config(training: ConfigDict, tuning: ConfigDict, spec: str) -> ConfigDict:
    """The configuration of a fine-tune: the base's at another size, with as many tokens a step.

    Args:
      tuning: `size`, `steps` and `learning_rate`; of text perhaps `batch_size` and `retrieval_share`.
      spec: the encoding that is trained.
    """
    made = ConfigDict(training.to_dict())
    made.model.encoding = spec
    made.steps, made.eval_every = tuning.steps, 0
    made.optimizer.learning_rate, made.optimizer.warmup_steps = tuning.learning_rate, tuning.steps // 10
    if training.task == "classification":
        with made.data.ignore_type():
            made.data.update(task_class(training).data_at(training.data, tuning.size))
        return made.lock()
    made.batch_size = tuning.get("batch_size") or max(1, training.batch_size * training.data.length // tuning.size)
    made.data.length, made.eval_lengths = tuning.size, (tuning.size,)
    if "ladder" in made.data:
        made.data.ladder.steps = 0
    if "retrieval" in made.data:
        made.data.retrieval.share = tuning.get("retrieval_share", training.data.retrieval.share)
        if "first_steps" in made.data.retrieval:
            made.data.retrieval.first_steps = 0
    return made.lock()


def set_fields(group: ConfigDict, fields: Mapping[str, Any], whose: str) -> None:
    """Sets fields of a config, nested ones too: {"model": {"width": 8}}.

    Raises:
      ValueError: there is no such field; says `whose`.
    """
    for name, value in fields.items():
        if name not in group:
            raise ValueError(f"{whose} sets {name!r}: there is no such field; {nearest(name, list(group))}")
        if isinstance(value, Mapping):
            set_fields(group[name], value, whose)
        else:
            with group.ignore_type():
                group[name] = value


def with_rows(config: ConfigDict, encodings: Sequence[str] = (), seeds: str | None = None) -> ConfigDict:
    """The config with a row for each of these encodings, and with these seeds, where they are given.

    Args:
      config: of a study, or of a single run.
      encodings: specs, which are also the labels of their rows; they take the place of all rows that the config lists.
      seeds: "0,1,2".

    Raises:
      ValueError: seeds that are no whole numbers.
    """
    made = copied(config)
    if not {"studies", "encodings", "rows", "seeds"} & {*made}:
        made = _of_one(made)
    elif not encodings and seeds is None:
        return config
    if seeds is not None:
        if not re.fullmatch(r"\(?\s*\d+\s*(,\s*\d+\s*)*,?\s*\)?", seeds):
            raise ValueError(f"--seeds {seeds}: seeds are whole numbers, 0 or above, as in 0,1,2")
        for table in (made, *(each for each in tables_of(made).values() if "seeds" in each)):
            with table.ignore_type(), table.unlocked():
                table.seeds = tuple(int(value) for value in re.findall(r"\d+", seeds))
    for table in tables_of(made).values() if encodings else ():
        with table.unlocked(), table.ignore_type():
            table.encodings = ConfigDict({spec: spec for spec in encodings}, allow_dotted_keys=True, sort_keys=False)
            table.rows = table.variants = table.finetune = ConfigDict()
    return made


def copied(config: ConfigDict) -> ConfigDict:
    """A copy that can be changed, with its fields in their order; references stand for their values."""
    made = ConfigDict(sort_keys=False, allow_dotted_keys=True)
    for name, value in config.items():
        made[name] = copied(value) if isinstance(value, ConfigDict) else value
    return made


def _of_one(config: ConfigDict) -> ConfigDict:
    """The study whose only row is what the config of a single run trains."""
    if "task" not in config:
        raise ValueError("a study's config has studies, or rows; or it is the config of a single run")
    kind, start = config.model.get("kind", config.task), config.get("init_from")
    trained = kind if start is None else pathlib.Path(start).name.replace(".", "-")  # a dot parts the names of fields
    name = f"{config.data.name}_{trained}"
    label = config.model.get("encoding") or (OWN if kind == AS_INIT else "model")
    made = ConfigDict(dict(name=name, title=f"Encodings on {config.data.name}", seeds=(config.seed,), studies={}))
    with config.unlocked():
        config.rows = ConfigDict({label: {}}, allow_dotted_keys=True)
    made.studies[name] = config
    return made


def with_variants(table: ConfigDict, specs: Sequence[str] | None) -> ConfigDict:
    """A table in which a checkpoint is read under these specs too, if they are no labels of its variants."""
    sections = [table.get(name) or ConfigDict() for name in ("variants", "finetune")]
    known = {label for section in sections for own in section.values() for label in own}
    if new := [spec for spec in specs or () if spec not in known]:
        read = {**sections[0].get(AS_LOADED, {}), **{spec: spec for spec in new}}
        with table.unlocked(), table.ignore_type():
            loaded = ConfigDict(read, allow_dotted_keys=True, sort_keys=False)
            table.variants = ConfigDict({**sections[0], AS_LOADED: loaded}, sort_keys=False)
    return table


def chosen_rows(rows: Sequence[Row], variants: Sequence[str] | None, finetune: bool = True) -> list[Row]:
    """The models as they were trained, and of the other rows those with these labels; None takes all.

    Raises:
      ValueError: there is no such row.
    """
    rows = [row for row in rows if finetune or row.finetune is None]
    if variants is None:
        return rows
    read = [row.label for row in rows if row.label != row.base]
    for label in variants:
        if label not in read:
            raise ValueError(
                f"--variants {label}: there is no such variant; {nearest(label, read)}; of a --checkpoint a spec is read "
                "as it is"
            )
    return [row for row in rows if row.label == row.base or row.label in variants]


def distinct(rows: Sequence[Row]) -> list[Row]:
    """Returns the rows of --encodings, without {own} if another row is the same; says which rows are patterns over layers.

    Raises:
      ValueError: two rows are the same encoding.
    """
    labels: dict[tuple[str, str], str] = {}
    for row in sorted(rows, key=lambda row: row.label == OWN):
        label = labels.setdefault((row.study, encoding_of(row.training)), row.label)
        if label == row.label:
            if "," in label and len(parse_layers(row.training.model.encoding)) > 1:
                spaced = label.replace(",", " ")
                logging.warning("%s is one row, a pattern over layers; for a row each: --encodings %s", label, spaced)
        elif row.label == OWN:
            logging.warning("--encodings: %s is %r, one row", OWN, label)
        else:
            raise ValueError(f"--encodings: {label!r} and {row.label!r} are the same encoding, leave one out")
    return [row for row in rows if row.label in labels.values()]


def check_study(config: ConfigDict) -> None:
    """Refuses the config of a study that could not be run or shown.

    Raises:
      ValueError: names the field: one that is missing, misspelt or of another kind, or a table without a value on the axis.
    """
    known = FIELDS if "studies" in config else FIELDS | TABLE
    for name in config:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
        if near and name not in known and near[0] not in config:
            raise ValueError(f"config.{name} is no field of a study: did you mean {near[0]!r}?")
    if config.get("seeds") is None:
        raise ValueError("the config of a study has no seeds: config.seeds = (0, 1, 2), or --seeds 0,1,2")
    for name, kind in FIELDS.items():
        if config.get(name) is not None:
            _check_field(f"config.{name}", config[name], kind, _PARTS.get(name, ()))
    for name, table in tables_of(config).items():
        where = f"config.studies.{name}" if "studies" in config else "config"
        _check_field(where, table, ConfigDict)
        for part, kind in ({"seeds": tuple} | TABLE).items():
            if table.get(part) is not None:
                _check_field(f"{where}.{part}", table[part], kind, _PARTS.get(part, ()))
        for part, kind in (("encodings", str), ("rows", ConfigDict)):
            for label, value in (table.get(part) or {}).items():
                _check_field(f"{where}.{part}[{label!r}]", value, kind)
    if (axis := config.get("axis")) is not None:
        for name in axis["values"]:
            if name not in (known := [*tables_of(config)]):
                raise ValueError(f"config.axis.values: no study is named {name!r}; {nearest(name, known)}")


def _check_field(name: str, value: Any, kind: type, parts: Sequence[str] = ()) -> None:
    kinds = (tuple, list) if kind is tuple else (ConfigDict, dict) if kind is ConfigDict else kind
    if not isinstance(value, kinds):
        words = {str: "a string", tuple: "a tuple", ConfigDict: "a group of fields"}
        raise ValueError(f"{name} must be {words[kind]}, got {value!r}")
    if missing := [part for part in parts if part not in value]:
        raise ValueError(f"{name} has no {missing[0]!r}")
