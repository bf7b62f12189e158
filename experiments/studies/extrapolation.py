"""Extrapolation: decoders trained at one length, read at many others: as trained, under other encodings, and fine-tuned."""

import functools
import json
import math
import pathlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from experiments.studies.long_context import Reader, Reading, read_tokens, retrieved, text_loss, with_encoding
from experiments.studies.records import bos_of, finite, row_hash
from experiments.studies.running import bar, caption
from experiments.studies.search import (
    METHODS,
    Budget,
    critical_frequencies,
    known_factors,
    loss_of_factors,
    search_critical,
    search_factors,
)
from experiments.studies.study import (
    AT_EVALUATION,
    FINE_TUNED,
    TRAINED,
    Row,
    Study,
    Weights,
    labels_differ,
    read_under,
    set_fields,
    write_json,
)
from posjax import data
from posjax.encoding import sites
from posjax.encodings import rope
from posjax.jsonl import config_hash
from posjax.spec import layers_text, nearest, parse, parse_layers
from posjax.training.identity import digest, identity
from posjax.training.initial import AS_INIT, Start, as_started, of_own, renewed
from posjax.training.long_task import LongDocuments, decoding_task
from posjax.training.runs import Run, is_run, load_run
from posjax.training.tasks import LanguageModel, Task

_OWN = ("name", "title", "point", "notes", "seeds", "encoding", "encodings", "variants", "finetune", "evaluation")
_OWN += ("retrieval", "trained_length", "tune", "rows", "paper", "search", "page")
AS_LOADED = "loaded"  # the row of pretrained weights, and the base of what is read or tuned of them
_PLACEHOLDER = re.compile(r"\{(?:(\d+)\*)?(factor|length|trained)(?:/(\d+))?\}")
_RAMP = re.compile(r"\{(ramp|ones)\}")
_SEARCHED, _LONGROPE = "{searched}", "{longrope}"
_TEXT = "text"  # what a search reads, if no retrieval task


class Sizes(NamedTuple):
    """What placeholders stand for."""

    trained: int  # length in training
    frequencies: int  # half a head's dim


class Extrapolation(Study):
    """`config.encodings` trained at `config.data.length`, with `variants` and `finetune` of them, and `evaluation`.

    `config.rows`, {label: fields}, are trainings that differ in more than the encoding, as in their length.

    Args:
      checkpoint: a run, or weights that `posjax.pretrained.load` reads, whose decoder is read instead of training some; under
        `config.encoding` too, if that is given. The `variants` and `finetune` of "loaded" are those of any checkpoint.

      variants: labels of the config's `variants` and `finetune`, and of a checkpoint specs: these alone are read beside the
        model as it was trained. None: all of the config's.
      finetune: whether there are fine-tunes.

    Raises:
      ValueError: there is no decoder in the checkpoint, or no document is long enough.
    """

    task = "extrapolate"

    def __init__(
        self,
        config: ConfigDict,
        checkpoint: pathlib.Path | None = None,
        variants: Sequence[str] | None = None,
        finetune: bool = True,
    ):
        self._chosen, self._finetune = variants, finetune
        known = {label for part in (config.variants, config.finetune) for own in part.values() for label in own}
        if checkpoint is not None and (specs := [text for text in variants or () if text not in known]):
            config = ConfigDict(config)
            with config.unlocked(), config.ignore_type():
                read = {**config.variants.get(AS_LOADED, {}), **{spec: spec for spec in specs}}
                config.variants = ConfigDict({**config.variants, AS_LOADED: ConfigDict(read, allow_dotted_keys=True)})
        super().__init__(config)
        if config.get("init_from") is not None or (checkpoint is None and config.get("encoding") is not None):
            raise ValueError(
                "config.encoding is how a checkpoint is read, and config.init_from is for trainings: give --checkpoint"
            )
        self._restored = None if checkpoint is None else _restored(checkpoint, config)
        self._anew, self._factors = config.get("init_encoding") == "new", {}
        source = dict(
            data_dir=config.data.data_dir, files=config.data.files, field=config.data.get("text_field", "text")
        )
        bos = config.data.get("bos")
        given = data.load_tokenizer(config.data.get("tokenizer"), bos)
        tokenizer = given if checkpoint is None else self._restored.run.task.tokenizer
        if config.data.get("tokenizer") is not None and given.digest != tokenizer.digest:
            raise ValueError(f"data.tokenizer={config.data.tokenizer} is not the one of the run, {tokenizer.name}")
        if bos is not None:  # how it is read, whatever it was trained on
            tokenizer = data.load_tokenizer(tokenizer.name, bos)
        documents = data.load_documents(config.data.name, config.data.eval_split, **source, tokenizer=tokenizer)
        least = first_scored(config.evaluation) + config.evaluation.bytes + 1
        self.documents = documents.longest(config.evaluation.documents, least)

    @property
    def seeds(self) -> tuple[int, ...]:
        return super().seeds if self._restored is None else self._restored.run.seeds

    def rows(self) -> list[Row]:
        if self._restored is None:
            trainings = {label: training_config(self.config, spec) for label, spec in self.config.encodings.items()}
            for label, fields in self.config.get("rows", {}).items():
                trainings[label] = _with_fields(self.config, label, fields.to_dict())
            if not trainings:
                raise ValueError("there is nothing to train: give encodings, {label: spec}, or --checkpoint")
        else:
            training = self._restored.run.config
            known = {layers_text(parse_layers(text)): label for label, text in self.config.encodings.items()}
            spec = layers_text(parse_layers(training.model.encoding))
            trainings = {known.get(spec, AS_LOADED if training.steps == 0 else spec): training}
        rows = plan(self.config, trainings, loaded=self._restored is not None)
        rows = chosen_rows(rows, self._chosen, self._finetune, self.config.get("encoding"))
        if any(_SEARCHED in row.reading for row in rows):
            self._search_batch(windows=1)  # what does not fit is told now
        for task in self.config.retrieval.tasks:
            for length in {*self.config.retrieval.lengths} & {*self.config.evaluation.lengths}:
                given = dict(length=length, count=1, seed=0, depth=0.0, haystack=self.documents.texts[0])
                data.retrieval_batch(task, **given, tokenizer=self.documents.tokenizer)
        return rows

    def make_task(self, config: ConfigDict) -> Task:
        return LongDocuments(config, self.splits)

    def restored(self, row: Row) -> Weights | None:
        del row
        return self._restored

    def tuned(self, row: Row, base: Weights) -> tuple[ConfigDict, Callable[[Any], Any]]:
        """As many tokens a step, at another length, under the row's encoding."""
        reading, model = self._filled(row.reading, base), base.run.model
        config = finetune_config(row.training, row.tuning, reading)

        def init(changed: Any, key: jax.Array) -> Any:
            return changed.init(key, *changed.example())["params"]

        def change(params: Any) -> Any:
            try:
                return read_under(model, params, reading, init)[1]
            except ValueError:
                if not self._anew:
                    raise
                keys = jax.random.split(jax.random.key(0), len(base.run.seeds))
                drawn = jax.vmap(functools.partial(init, model.clone(encoding=reading)))
                return renewed(params, lambda: drawn(keys))

        return config, change

    def hash_of_tuning(self, config: ConfigDict, start: str) -> str:
        loaded = self._restored is not None and self._restored.run.step == 0  # no config tells what was loaded
        if loaded or self.config.get("tune") is not None:  # nor, of a fine-tune, the rate at which its base was trained
            return config_hash({**identity(config), "initial": start})
        return row_hash(config)  # data and base tell the start

    def hash_of_row(self, row: Row, training: str, digest: Callable[[], str]) -> str:
        """Names the weights, the encoding that they are read under, and where."""
        evaluation = {**self.config.evaluation.to_dict(), "long_rows": row.label in self.config.evaluation.long_rows}
        asked = {"evaluation": evaluation, "retrieval": self.config.retrieval.to_dict()}
        asked |= {"spec": row.reading, "kind": row.kind}
        if _SEARCHED in row.reading:
            asked["search"] = self.config.search.to_dict()
        if bos := self.documents.tokenizer.bos:
            asked["bos"] = bos
        return config_hash({**asked, "training": training, "data": digest()})

    def is_current(self, row: Row, record: Any) -> bool:
        """A checkpoint says nothing of the documents that it is read on."""
        del row
        return record.more.get("documents") == list(self.documents.titles)

    def check(self, row: Row, base: Weights, weights: Weights) -> None:
        """Traces the model at the row's longest length."""
        run, length = weights.run, lengths_of(row, self.config.evaluation)[-1]
        params = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), run.params)
        spec = fill(self._filled(row.reading, base), length, sizes_of(row.training))
        model, params = with_encoding(run.model, params, spec, self._anew)
        tokens = jax.ShapeDtypeStruct((1, length), np.int32)
        jax.eval_shape(functools.partial(read_tokens, model, site=sites(length)), params, tokens, tokens)

    def about(self, row: Row, base: Weights, weights: Weights) -> dict[str, Any]:
        searched = {}
        if _SEARCHED in row.reading:
            length, sizes = self.config.search.length, sizes_of(row.training)
            searched["searched"] = self._searched(base)
            searched["spec"] = str(parse(fill(self._filled(row.reading, base), length, sizes)))
        return searched | {
            **bos_of(self.documents.tokenizer),
            "base": row.base,
            "kind": row.kind,
            "data": self.config.data.name,
            "documents": list(self.documents.titles),
            # What counts as 1 in tables; a row may have been trained at a length of its own.
            "train_length": (row.training if self._restored else self.config).data.length,
            "trained_at": row.training.data.length,
            "training_hash": weights.hash,
        }

    def measure(self, row: Row, base: Weights, weights: Weights, seeds: Sequence[int]) -> list[dict[str, Any]]:
        """Loss and retrieval by length, loss by position, and what a length costs."""
        config, documents, run = self.config, self.documents, weights.run
        began, lengths = time.perf_counter(), lengths_of(row, config.evaluation)
        found = [
            {"metrics": {"sliding": {}, "chunked": {}}, "by_position": {}, "retrieval": {}, "cost": {}} for _ in seeds
        ]
        total = len(seeds) * sum(bytes_read(length, config, documents) for length in lengths)
        with bar(total, "B", unit_scale=True, leave=False) as progress:
            caption(progress, f"{self.where} {row.label}")
            for length in lengths:
                spec = fill(self._filled(row.reading, base), length, sizes_of(row.training))
                weights_of = [jax.device_put(run.of(run.seeds.index(seed))) for seed in seeds]
                hosts = [with_encoding(run.model, params, spec, self._anew) for params in weights_of]
                reader = Reader(*hosts[0], max(1, config.evaluation.batch_tokens // length), length)
                for (_, params), measured in zip(hosts, found, strict=True):
                    _read(reader, params, measured, documents, config)
                    progress.update(bytes_read(length, config, documents))
        elapsed = (time.perf_counter() - began) / len(seeds)
        return [measured | {"evaluation_time": elapsed} for measured in found]

    def _filled(self, spec: str, base: Weights) -> str:
        """The spec with the factors that are searched for on a base, where it asks for them: {searched}."""
        return with_factors(spec, self._searched(base)) if _SEARCHED in spec else spec

    def _searched(self, base: Weights) -> tuple[float, ...]:
        """Those of the base for `config.search`, kept beside its checkpoints; ones while rows are checked."""
        sizes, search = sizes_of(base.run.config), self.config.search
        if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(base.run.params)):
            return (1.0,) * sizes.frequencies
        if base.hash not in self._factors:
            path = base.directory / f"factors-{config_hash({**search.to_dict(), 'training': base.hash})}.json"
            if not path.exists():
                found = searched_factors(base.run, self._search_batch(search.windows), search.length, search)
                write_json(path, {"factors": found})
            self._factors[base.hash] = tuple(json.loads(path.read_text())["factors"])
        return self._factors[base.hash]

    def _search_batch(self, windows: int) -> data.windows.Batch:
        """What is searched on: windows of a split, evenly spread, or a retrieval task whose needle stands first in them."""
        search, given, tokenizer = self.config.search, self.config.data, self.documents.tokenizer
        source = dict(data_dir=given.data_dir, files=given.files, field=given.get("text_field", "text"))
        text = data.load_stream(given.name, search.split, **source, tokenizer=tokenizer).tokens
        task = search.get("task", _TEXT)
        if task != _TEXT:
            asked = dict(length=search.length, count=windows, seed=search.seed, depth=0.0, haystack=text)
            return data.retrieval_batch(task, **asked, tokenizer=tokenizer)
        if len(text) < search.length + 1:
            raise ValueError(
                f"search.length={search.length} needs as many tokens and one more, and {search.split!r} of {given.name!r} "
                f"has {len(text)}: choose another search.split or a shorter length"
            )
        starts = np.linspace(0, len(text) - search.length - 1, windows).astype(int)
        read = np.stack([text[start : start + search.length + 1] for start in starts]).astype(np.int32)
        batch = {"tokens": read[:, :-1], "targets": read[:, 1:], "weight": np.ones(read[:, 1:].shape, np.float32)}
        return data.windows.with_bos(batch, tokenizer.bos)


def plan(config: ConfigDict, trainings: Mapping[str, ConfigDict], loaded: bool = False) -> list[Row]:
    """All rows: each base, then it under other encodings, then fine-tuned; specs are read now, so that typos cost nothing.

    Args:
      trainings: of what is trained, or was, by label.
      loaded: whether it was: what there is for AS_LOADED is then read and tuned, too, and `config.encoding`.

    Raises:
      ValueError: a spec that cannot be read, a label given twice, variants of a base that there is not, or lengths that
        cannot be.
    """
    _check_evaluation(config)
    for section in (config.variants, config.finetune):
        for base in section:
            if base not in (known := [*config.encodings, *config.get("rows", {})]) and base != AS_LOADED:
                raise ValueError(f"there is no base {base!r} for its variants; {nearest(base, known)}")
    rows = []
    for base, training in trainings.items():
        sizes, spec = sizes_of(training), training.model.encoding
        read = [(base, TRAINED, spec, None)]
        bases = dict.fromkeys((base, AS_LOADED) if loaded else (base,))
        variants = {label: text for each in bases for label, text in config.variants.get(each, {}).items()}
        if loaded and config.get("encoding") is not None:
            variants[config.encoding] = config.encoding
        read += [(label, AT_EVALUATION, of_own(text, spec), None) for label, text in variants.items()]
        tunings = {label: tuning for each in bases for label, tuning in config.finetune.get(each, {}).items()}
        for label, tuning in tunings.items():
            tuning = whole_tuning(tuning, training)
            text = fill(of_own(tuning.spec, spec), tuning.target, sizes)
            read.append((label, FINE_TUNED, text, tuning))
        for label, kind, text, tuning in read:
            if _LONGROPE in text or _SEARCHED in text:
                _check_search(config, training, label)
            text = _with_longrope(text, training, config)
            encoding = text if "{" in text else layers_text(parse_layers(text))
            folder = "models" if tuning is None else f"finetuned-{row_hash(training)}"
            rows.append(Row(name_of(config), label, base, training, encoding, kind, text, tuning, folder))
            for length in config.evaluation.lengths:
                parse_layers(fill(with_factors(text, (1.0,) * sizes.frequencies), length, sizes))
    labels_differ(rows)
    return rows


def chosen_rows(
    rows: Sequence[Row], variants: Sequence[str] | None, finetune: bool = True, also: str | None = None
) -> list[Row]:
    """The models as they were trained, and of the other rows those that are asked for.

    Args:
      variants: labels; None for all.
      finetune: whether rows are that are trained further.
      also: a label that is asked for whatever the variants.

    Raises:
      ValueError: there is no such row.
    """
    rows = [row for row in rows if finetune or row.kind != FINE_TUNED]
    if variants is None:
        return rows
    read = [row.label for row in rows if row.kind != TRAINED]
    for label in variants:
        if label not in read:
            raise ValueError(
                f"--variants {label}: there is no such variant of {rows[0].encoding!r}; {nearest(label, read)}; of a "
                "checkpoint a spec is read as it is"
            )
    return [row for row in rows if row.kind == TRAINED or row.label in (*variants, also)]


def _with_longrope(text: str, training: ConfigDict, config: ConfigDict) -> str:
    """The spec with {longrope} filled: the base's own rope under the factors searched for, as trained within that length."""
    if _LONGROPE not in text:
        return text
    own, length, trained = _scaled(training.model.encoding, training.data.length, config.search.length)
    factors = f"short_factor={{ones}}, long_factor={_SEARCHED}"
    scaling = f"longrope({factors}, factor={length / trained:.8g}, original_length={trained})"
    plain = ", ".join(f"{name}={getattr(own, name)!r}" for name in ("base", "layout", "fraction"))
    return text.replace(_LONGROPE, f"rope({plain}, scaling={scaling})")


def _check_search(config: ConfigDict, training: ConfigDict, label: str) -> None:
    if "search" not in config:
        raise ValueError(f"row {label!r} asks for factors to be searched for: give config.search")
    method, task = config.search.get("method", METHODS[0]), config.search.get("task", _TEXT)
    for name, given, known in (("method", method, METHODS), ("task", task, (_TEXT, *data.retrieval.TASKS))):
        if given not in known:
            raise ValueError(f"no search.{name} is named {given!r}; {nearest(given, list(known))}")
    _scaled(training.model.encoding, training.data.length, config.search.length)


def _scaled(spec: Any, trained: int, length: int) -> tuple[rope, int, int]:
    """The rope whose factors are searched for, the length to be read and the trained one.

    Raises:
      ValueError: the model is read under no rope that could be scaled, or the length is not above the trained one.
    """
    encoding = parse_layers(spec)
    if len(encoding) != 1 or not isinstance(encoding[0], rope) or length <= trained:
        raise ValueError(
            f"factors are searched for a plain rope and a length above the trained {trained}, not for "
            f"{layers_text(encoding)!r} and search.length={length}"
        )
    return encoding[0], length, trained


def name_of(config: ConfigDict) -> str:
    """What the rows of a study call it."""
    return config.get("name") or Extrapolation.task


def training_config(config: ConfigDict, spec: str) -> ConfigDict:
    """The configuration of a training run: the study's without what is about evaluating."""
    row = ConfigDict({name: value for name, value in config.to_dict().items() if name not in _OWN})
    row.task = "language_model"
    row.model.encoding = spec
    return row.lock()


def _with_fields(config: ConfigDict, label: str, fields: Mapping[str, Any]) -> ConfigDict:
    """The configuration of a training that differs in more than its encoding."""
    if label in config.encodings:
        raise ValueError(f"rows and encodings both have {label!r}: give each a label of its own")
    made = ConfigDict(training_config(config, "none").to_dict())
    set_fields(made, fields, f"row {label!r} of {name_of(config)!r}")
    return made.lock()


def whole_tuning(tuning: ConfigDict, training: ConfigDict) -> ConfigDict:
    """A fine-tune with its length and target, which are those of training where they are None."""
    made = ConfigDict(tuning.to_dict())
    for name in ("length", "target"):
        if made.get(name) is None:
            made[name] = training.data.length
    return made


def finetune_config(base: ConfigDict, tuning: ConfigDict, spec: str) -> ConfigDict:
    """The configuration of a fine-tune: the base's, at another length, with as many tokens a step or as many sequences as
    `tuning.batch_size` says, of which `tuning.retrieval_share`, or the base's share, are retrieval tasks."""
    row = ConfigDict(base.to_dict())
    row.model.encoding = spec
    row.batch_size = tuning.get("batch_size") or max(1, base.batch_size * base.data.length // tuning.length)
    row.data.length, row.steps = tuning.length, tuning.steps
    row.eval_lengths, row.eval_every = (tuning.length,), 0
    if "ladder" in row.data:
        row.data.ladder.steps = 0
    if "first_steps" in row.data.retrieval:
        row.data.retrieval.first_steps = 0
    row.data.retrieval.share = tuning.get("retrieval_share", base.data.retrieval.share)
    row.optimizer.learning_rate, row.optimizer.warmup_steps = tuning.learning_rate, tuning.steps // 10
    return row.lock()


def sizes_of(training: ConfigDict) -> Sizes:
    """What the placeholders of a base's rows stand for.

    Raises:
      ValueError: the width is not that of whole heads.
    """
    width, heads, own = training.model.width, training.model.num_heads, training.model.get("head_dim")
    if own is None and (heads < 1 or width % heads):
        raise ValueError(f"model.width={width} is not divisible by model.num_heads={heads}")
    return Sizes(training.data.length, (own or width // heads) // 2)


def fill(spec: str, length: int, sizes: Sizes) -> str:
    """The spec with its placeholders filled for one evaluated length.

    {length} is that length, {trained} the one in training, {factor} their quotient, at least 1; a whole number may stand
    before or behind, as in {2*factor} or {trained/2} (rounded down). {ramp} are as many numbers as a head has frequencies,
    rising geometrically from 1 to the factor, and {ones} as many ones: for longrope, whose authors search for such numbers,
    as a study does for {searched} (see `with_factors`). {longrope} is a whole spec: the model's rope with these.
    """
    factor = max(1.0, length / sizes.trained)

    def number(match: re.Match) -> str:
        times, name, parts = match.groups()
        value = {"factor": factor, "length": length, "trained": sizes.trained}[name] * int(times or 1)
        value = value // int(parts) if parts else value
        return str(int(value)) if value == int(value) else repr(value)

    def numbers(match: re.Match) -> str:
        last = max(sizes.frequencies - 1, 1)
        ramp = [1.0 if match[1] == "ones" else factor ** (c / last) for c in range(sizes.frequencies)]
        return f"({', '.join(f'{x:.6g}' for x in ramp)},)"

    return _RAMP.sub(numbers, _PLACEHOLDER.sub(number, spec))


def with_factors(spec: str, factors: Sequence[float]) -> str:
    """The spec with {searched} filled."""
    return spec.replace(_SEARCHED, f"({', '.join(f'{x:.6g}' for x in factors)},)")


def searched_factors(run: Run, batch: data.windows.Batch, length: int, search: ConfigDict) -> list[float]:
    """The factors that read a batch best, of all seeds together, by the method and within the budget of `search`.

    Raises:
      ValueError: the model is read under no rope that could be scaled, or the length is not above the trained one.
    """
    encoding, length, trained = _scaled(run.model.encoding, run.config.data.length, length)
    factor, count = length / trained, sizes_of(run.config).frequencies
    score = loss_of_factors(run.model, run.params, batch, factor, trained)
    given = dict(budget=Budget(**{name: search[name] for name in Budget._fields}), seed=search.seed)
    if search.get("method", METHODS[0]) == "longrope2":
        found, _ = search_critical(score, critical_frequencies(encoding, count, trained), count, factor, **given)
    else:
        found, _ = search_factors(score, known_factors(encoding, count, factor, trained), 1 + factor, **given)
    return found.tolist()


def stride_of(length: int, evaluation: ConfigDict) -> int:
    """How far apart sliding windows begin: the share of the length that the config says, and no more than is scored."""
    return min(max(1, int(length * evaluation.stride)), evaluation.bytes)


def lengths_of(row: Row, evaluation: ConfigDict) -> list[int]:
    """The lengths at which a row is evaluated, ascending."""
    long = evaluation.long_lengths if row.label in evaluation.long_rows else ()
    return sorted({*evaluation.lengths, *long})


def first_scored(evaluation: ConfigDict) -> int:
    """How many bytes stand before those that are scored: the same bytes at every length, with room for the longest."""
    return max(*evaluation.lengths, *evaluation.long_lengths, 0)


def bytes_read(length: int, config: ConfigDict, documents: data.Documents) -> int:
    """How many bytes one seed of one row reads at a length."""
    windows = len(documents.texts) * config.evaluation.bytes // stride_of(length, config.evaluation)
    if length in config.retrieval.lengths:
        windows += len(config.retrieval.tasks) * len(config.retrieval.depths) * config.retrieval.examples
    return windows * length


def _check_evaluation(config: ConfigDict) -> None:
    evaluation: Any = config.evaluation
    if not evaluation.lengths or min(evaluation.lengths) < 2:
        raise ValueError(
            f"evaluation.lengths={tuple(evaluation.lengths)} must be lengths of at least 2, and one at least"
        )
    if not 0 < evaluation.stride <= 1:
        raise ValueError(f"evaluation.stride={evaluation.stride} is a share of the length: it must lie in (0, 1]")
    for length in (*evaluation.lengths, *evaluation.long_lengths):
        stride = stride_of(length, evaluation)
        if length % stride or evaluation.bytes % stride or (length <= evaluation.bytes and evaluation.bytes % length):
            raise ValueError(
                f"evaluation.bytes={evaluation.bytes} must be a multiple of length={length} (or its divisor) and of the "
                f"stride {stride}: powers of two do"
            )


def _restored(checkpoint: pathlib.Path, study: ConfigDict) -> Weights:
    """What the seeds of a training run have in its newest checkpoint, or what a file of weights holds."""
    if not is_run(checkpoint):
        if checkpoint.is_dir() and not (checkpoint / "config.json").exists():
            raise ValueError(
                f"there is no checkpoint in {checkpoint}: give the workdir of a run, or a folder of transformers, which "
                "holds a config.json"
            )
        return _loaded(checkpoint, study)
    run = load_run(checkpoint, task_of=decoding_task)
    if not isinstance(run.task, LanguageModel):
        raise ValueError(f"{checkpoint} holds no decoder but the task {run.config.task!r}")
    config = ConfigDict(run.config.to_dict())
    if "retrieval" not in config.data:  # a fine-tune then is on text alone
        config.data.update(files=config.data.get("files"), retrieval=_no_retrieval())
    config.steps = run.step
    return Weights(run._replace(config=config), row_hash(config), {}, checkpoint)


def _loaded(path: pathlib.Path, study: ConfigDict) -> Weights:
    """Pretrained weights as a run of no steps; fine-tunes of them see the text of the study, and no retrieval."""
    config, start = ConfigDict(training_config(study, AS_INIT).to_dict()), Start(path, study.get("init_ignore"))
    config.model = ConfigDict({"kind": AS_INIT, "implementation": study.model.implementation})
    config = ConfigDict(as_started(config, start).to_dict())
    trained = study.get("trained_length") or getattr(start.model, "length", None)
    if trained is None:
        raise ValueError(f"{path} does not say how long sequences in training were: set config.trained_length")
    config.data.length, config.data.retrieval = trained, _no_retrieval()
    config.steps, config.eval_tokens, config.eval_lengths = 0, None, (min(study.evaluation.lengths),)
    task = LongDocuments(config)
    params = jax.tree.map(lambda leaf: np.asarray(leaf)[None], start.of_seeds((0,))[0])
    run = Run(task, task.model, params, (0,), config.lock(), 0, {"elapsed": 0.0, "step_time": math.nan})
    named = config_hash({**identity(config), "initial": digest(params)})
    return Weights(run, named, {}, path)


def _no_retrieval() -> ConfigDict:
    return ConfigDict(dict(share=0.0, weight=0.0, tasks=()))


def _read(reader: Reader, params: Any, measured: dict, documents: data.Documents, config: ConfigDict) -> None:
    """Adds what one seed of a row makes of the documents at one length."""
    evaluation, length = config.evaluation, str(reader.length)
    sizes = dict(stride=stride_of(reader.length, evaluation), first=first_scored(evaluation), count=evaluation.bytes)
    loss = text_loss(reader, params, documents.texts, **sizes, bos=documents.tokenizer.bos)
    measured["metrics"]["sliding"][length] = finite(loss.sliding)
    measured["metrics"]["chunked"][length] = finite(loss.chunked)
    measured["by_position"][length] = [[x, finite(y)] for x, y in loss.by_position]
    if reader.length in config.retrieval.lengths:
        for task in config.retrieval.tasks:
            cells = _read_task(reader, params, task, documents, config.retrieval)
            measured["retrieval"].setdefault(task, {})[length] = cells
    measured["cost"][length] = reader.cost()


def _read_task(reader: Reader, params: Any, task: str, documents: data.Documents, wanted: ConfigDict) -> list[dict]:
    """A cell for each depth; the examples are the same for every row and seed."""
    batches = [
        data.retrieval_batch(
            task,
            length=reader.length,
            count=wanted.examples,
            seed=(wanted.seed, reader.length, index),
            depth=depth,
            haystack=documents.texts[0],
            tokenizer=documents.tokenizer,
        )
        for index, depth in enumerate(wanted.depths)
    ]
    reading = reader(params, *(np.concatenate([batch[name] for batch in batches]) for name in ("tokens", "targets")))
    parts = zip(*(np.split(x, len(batches)) for x in reading), strict=True)
    return [
        {"depth": depth} | {name: finite(value) for name, value in retrieved(Reading(*part), batch)._asdict().items()}
        for depth, batch, part in zip(wanted.depths, batches, parts, strict=True)
    ]
