"""Measures of a row: scores, loss by length, retrieval, accuracy by resolution, positions in features.

A measure is a function of a `Subject` and its options, in the config `measures.NAME`; it returns {metric: value} or {metric:
{at: value}} for each seed. A new one is a function here and a line of `MEASURES`.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from experiments.analysis import heads
from experiments.analysis.layers import look, no_weights
from experiments.analysis.readout import position_error
from experiments.progress import bar, caption
from experiments.records import finite
from experiments.report.units import PER_BYTE
from experiments.studies import images
from experiments.studies.long_context import Reader, TokenScores, read_tokens, retrieved, text_loss
from experiments.studies.plan import Row, measures_of
from experiments.studies.readings import RESIZED, Place, read_as, resized, spec_of, text_place
from experiments.studies.weights import Weights
from posjax import data
from posjax.encoding import sites
from posjax.jsonl import read_jsonl
from posjax.models.vit import image_channels
from posjax.training.evaluate import evaluate, make_score
from posjax.training.tasks import Evaluated, Task

SLIDING, SEPARATE = "loss in sliding windows", "loss in separate windows"
PERPLEXITY = "perplexity in sliding windows"
SECONDS, BYTES = COSTS = "seconds per window", "temporary bytes"
_CURVE_POINTS = 100
Metrics = dict[str, Any]


@dataclasses.dataclass
class Subject:
    """A row with the weights that it is measured on.

    Attributes:
      row, table: the row, and the config of its table.
      base: the weights as they were trained.
      weights: the fine-tuned weights of a row with a fine-tune, else `base`.
      seeds: the seeds to measure.
      factors: of a rope's frequencies, where the row's reading asks for a search.
      documents: the texts that are read.
      shared: data that the rows of a table share, as the images of a split.
      where: its number among the rows, "3/18", for progress.
    """

    row: Row
    table: ConfigDict
    base: Weights
    weights: Weights
    seeds: Sequence[int] = ()
    factors: tuple[float, ...] = ()
    documents: data.Documents | None = None
    shared: dict[Any, Any] = dataclasses.field(default_factory=dict)
    where: str = ""
    _read: dict[int, tuple[Any, Any]] = dataclasses.field(default_factory=dict)
    _readers: dict[tuple[int, int], Reader] = dataclasses.field(default_factory=dict)

    def place(self, size: int) -> Place:
        """Returns the place of a length or a resolution."""
        return place_of(self.row.training, self.base.run.task, size, self.table, self.factors)

    def spec(self, size: int) -> str:
        """The spec it is read under at a length or a resolution; `RESIZED` where its tables are resized."""
        if self.row.read == RESIZED:
            return RESIZED
        tuning = self.row.finetune
        size = size if tuning is None else tuning.get("target") or tuning.size
        return spec_of(self.row.read, self.base.run.model.encoding, self.place(size))

    def at(self, size: int, params: Any = None) -> tuple[Any, Any]:
        """(model, parameters [R, ...]) that read inputs of a size as the row says."""
        model, params = self.weights.run.model, self.weights.run.params if params is None else params
        if self.row.read == RESIZED:
            method = self.table.measures.resolutions.resize
            return resized(model, params, self.base.run.task.table_size_at(size), method)
        if self.row.finetune is not None or self.row.read is None:
            return model, params
        return read_as(model, params, self.spec(size), anew=self.table.get("init_encoding") == "new")

    def reader(self, length: int, batch_tokens: int) -> tuple[Reader, Callable[[int], Any]]:
        """The compiled program that reads texts of a length, and the parameters of a seed for it."""
        batch, run = max(1, batch_tokens // length), self.weights.run
        if length not in self._read:
            self._read[length] = self.at(length)
        model, params = self._read[length]

        def of(seed: int) -> Any:
            return jax.device_put(jax.tree.map(lambda leaf: leaf[run.seeds.index(seed)], params))

        if (length, batch) not in self._readers:
            self._readers[length, batch] = Reader(model, of(self.seeds[0]), batch, length)
        return self._readers[length, batch], of


def place_of(training: ConfigDict, task: Task, size: int, table: ConfigDict, factors: tuple[float, ...] = ()) -> Place:
    """The place of a length or a resolution for the models of a training."""
    if training.task == "classification":
        model = task.model
        return Place(task.resolution, size, task.times(size), model.patches(*model.image_size))
    return text_place(training, size, (table.get("search") or {}).get("length"), factors)


def scores(subject: Subject, options: ConfigDict) -> list[Metrics]:
    """The scores at the end of training, and the curve of its loss."""
    del options
    run, metrics = subject.weights.run, subject.weights.metrics
    lines = [line for line in read_jsonl(subject.weights.directory / "metrics.jsonl") if "loss" in line]
    every = max(1, -(-len(lines) // _CURVE_POINTS))
    curve = {line["step"]: line["loss"] for line in lines[::-1][::every][::-1]}
    made = []
    for index in map(run.seeds.index, subject.seeds):
        of_seed: Metrics = {}
        for name, values in metrics.items():
            sets = isinstance(values, Mapping)
            of_seed[name] = {int(at): finite(x[index]) for at, x in values.items()} if sets else finite(values[index])
        tokenizer = getattr(run.task, "tokenizer", None)
        if tokenizer is not None and tokenizer.rust and "loss" in of_seed:
            share = tokens_per_byte(tokenizer, run.task.eval_data.tokens)
            of_seed[PER_BYTE] = {at: finite(share * (x or math.nan)) for at, x in of_seed["loss"].items()}
        curve_of_seed = {"training loss": {step: loss[index] for step, loss in curve.items()}} if curve else {}
        made.append(of_seed | curve_of_seed)
    return made


def lengths(subject: Subject, options: ConfigDict) -> list[Metrics]:
    """The loss of the same tokens at every length, in sliding and in separate windows; loss by position; time and memory."""
    documents, made = subject.documents, [{} for _ in subject.seeds]
    all_lengths = sorted(options.lengths)
    first = 1 + all_lengths[-1]
    scored = np.concatenate([text[first : first + options.bytes] for text in documents.texts])
    windows = {n: len(documents.texts) * options.bytes // stride_of(n, options) for n in all_lengths}
    total = len(subject.seeds) * sum(n * count for n, count in windows.items())
    with bar(total, "tok" if documents.tokenizer.digest else "B", unit_scale=True, leave=False) as b:
        caption(b, f"{subject.where} {subject.row.label}")
        for length in all_lengths:
            reader, params_of = subject.reader(length, options.batch_tokens)
            sizes = dict(stride=stride_of(length, options), first=max(options.lengths), count=options.bytes)
            for seed, metrics in zip(subject.seeds, made, strict=True):
                loss = text_loss(reader, params_of(seed), documents.texts, **sizes, bos=documents.tokenizer.bos)
                at = {SLIDING: loss.sliding, SEPARATE: loss.chunked, SECONDS: reader.seconds / reader.batch}
                if documents.tokenizer.digest:
                    at[PERPLEXITY] = math.exp(loss.sliding)
                if documents.tokenizer.rust:
                    at[f"{PER_BYTE} in sliding windows"] = loss.sliding * tokens_per_byte(documents.tokenizer, scored)
                at |= {} if reader.temp_bytes is None else {BYTES: reader.temp_bytes}
                for name, value in at.items():
                    metrics.setdefault(name, {})[length] = finite(value)
                by_position = {(length, whole(x)): finite(y) for x, y in loss.by_position}
                metrics.setdefault("loss by position", {}).update(by_position)
                b.update(length * windows[length])
    return made


def tokens_per_byte(tokenizer: data.Tokenizer, tokens: np.ndarray) -> float:
    """Returns the number of tokens over that of the bytes that they stand for."""
    return len(tokens) / len(tokenizer.decode(tokens).encode())


def retrieval(subject: Subject, options: ConfigDict) -> list[Metrics]:
    """Scores of answers by length and by depth; the examples are the same for every row and seed."""
    documents, made = subject.documents, [{} for _ in subject.seeds]
    for length in options.lengths:
        if not options.tasks:
            break
        reader, params_of = subject.reader(length, options.batch_tokens)
        for task in options.tasks:
            given = dict(
                length=length, count=options.examples, haystack=documents.texts[0], tokenizer=documents.tokenizer
            )
            batches = [
                data.retrieval_batch(task, **given, seed=(options.seed, length, index), depth=depth)
                for index, depth in enumerate(options.depths)
            ]
            tokens, targets = (np.concatenate([batch[name] for batch in batches]) for name in ("tokens", "targets"))
            for seed, metrics in zip(subject.seeds, made, strict=True):
                parts = zip(*(np.split(x, len(batches)) for x in reader(params_of(seed), tokens, targets)), strict=True)
                cells = [retrieved(TokenScores(*part), batch) for part, batch in zip(parts, batches, strict=True)]
                for name in ("exact", "accuracy", "log_prob"):
                    values = [finite(getattr(cell, name)) for cell in cells]
                    words = f"{task} {_RETRIEVED[name]}"
                    metrics.setdefault(words, {})[length] = None if None in values else sum(values) / len(values)
                    depths = ((length, whole(depth)) for depth in options.depths)
                    metrics.setdefault(f"{words} by depth", {}).update(zip(depths, values, strict=True))
    return made


_RETRIEVED = {"exact": "exact match", "accuracy": "accuracy", "log_prob": "log probability"}


def resolutions(subject: Subject, options: ConfigDict) -> list[Metrics]:
    """Accuracy and loss by resolution."""
    task, run, made = subject.base.run.task, subject.weights.run, [{} for _ in subject.seeds]
    shared = subject.shared
    if "images" not in shared:
        channels = image_channels(run.params)
        shared["images"] = images.Originals(subject.row.training.data, options.images, channels)
    for resolution in sorted(options.resolutions):
        if resolution not in shared:
            shared[resolution] = task.tested_at(shared["images"], resolution)
        model, params = subject.at(resolution)
        tokens = model.num_prefix + task.patches_at(resolution)
        batch = max(1, min(len(shared["images"].images), options.batch_tokens // tokens))
        sized = shared[resolution](model, batch)
        for name, values in evaluate(sized, make_score(sized), params).items():
            for metrics, index in zip(made, map(run.seeds.index, subject.seeds), strict=True):
                metrics.setdefault(name, {})[resolution] = finite(values[index])
    return made


def positions(subject: Subject, options: ConfigDict) -> list[Metrics]:
    """The error of a probe that reads positions off the tokens after each block: of text, and of tokens drawn at random
    from it, whose order says nothing. Half of the windows fit the probe."""
    run, made = subject.weights.run, []
    text = windows_of(run.task, options.windows)
    given = {"": text, ", random tokens": np.random.default_rng(options.seed).choice(text.ravel(), text.shape)}
    site, half = sites(text.shape[1]), len(text) // 2
    for index in map(run.seeds.index, subject.seeds):
        params, errors = run.of(index), {}
        for name, tokens in given.items():
            features = map(np.asarray, look(run.model, params, tokens, site, no_weights).tokens)
            of_blocks = (position_error(x[:half], x[half:], options.seed) for x in features)
            errors[f"position error{name}"] = dict(enumerate(of_blocks))
        made.append(errors)
    return made


def first_token(subject: Subject, options: ConfigDict) -> list[Metrics]:
    """The attention on the first token of windows of text in each layer, a mean over heads: see `heads.sink`."""
    run = subject.weights.run
    text, score = windows_of(run.task, options.windows), lambda layer, weights: heads.sink(weights)
    shares = [
        look(run.model, run.of(index), text, sites(text.shape[1]), score).weights
        for index in map(run.seeds.index, subject.seeds)
    ]
    return [{heads.FIRST: {layer: finite(x.mean()) for layer, x in enumerate(of_layers)}} for of_layers in shares]


class Measure(NamedTuple):
    """A measure.

    Attributes:
      function: (subject, options) -> metrics of each seed.
      check: (subject, options) -> None: refuses what could not be measured, parameters being shapes; None checks nothing.
      sizes: the option that lists the lengths or resolutions of the measure; None has none.
    """

    function: Callable[[Subject, ConfigDict], list[Metrics]]
    check: Callable[[Subject, ConfigDict], None] | None = None
    sizes: str | None = None


def stride_of(length: int, options: ConfigDict) -> int:
    """Returns the distance between the beginnings of sliding windows: a share of the length, at most `bytes`."""
    return min(max(1, int(length * options.stride)), options.bytes)


def check_lengths(options: ConfigDict) -> None:
    """Refuses lengths, strides and numbers of bytes that do not divide, with a ValueError."""
    if not options.lengths or min(options.lengths) < 2:
        raise ValueError(f"measures.lengths.lengths={tuple(options.lengths)} must be one or more, each at least 2")
    if not 0 < options.stride <= 1:
        raise ValueError(f"measures.lengths.stride={options.stride} is a share of the length: it must lie in (0, 1]")
    for length in options.lengths:
        stride = stride_of(length, options)
        if length % stride or options.bytes % stride or (length <= options.bytes and options.bytes % length):
            raise ValueError(
                f"measures.lengths.bytes={options.bytes} must be a multiple of length={length} (or its divisor) and of the "
                f"stride {stride}: powers of two do"
            )


def _check_reading(subject: Subject, options: ConfigDict) -> None:
    """Traces the model at the row's longest length."""
    length = max(options.lengths)

    def traced(params: Any) -> Any:
        model, params = subject.at(length, params)
        first = jax.tree.map(lambda leaf: leaf[0], params)
        tokens = jnp.zeros((1, length), jnp.int32)
        return read_tokens(model, first, tokens, tokens, sites(length))

    jax.eval_shape(traced, subject.weights.run.params)


def _check_retrieval(subject: Subject, options: ConfigDict) -> None:
    """Refuses tasks that do not fit into a length."""
    documents = subject.documents
    for task in options.tasks:
        for length in options.lengths:
            given = dict(length=length, count=1, seed=0, depth=0.0, haystack=documents.texts[0])
            data.retrieval_batch(task, **given, tokenizer=documents.tokenizer)


def _check_resolutions(subject: Subject, options: ConfigDict) -> None:
    """Traces the model at the smallest and the largest resolution."""
    if not options.resolutions or min(options.resolutions) < 1:
        raise ValueError(
            f"measures.resolutions.resolutions={tuple(options.resolutions)} must be one or more, each at least 1"
        )
    if options.images is not None and options.images < 1:
        raise ValueError(f"measures.resolutions.images={options.images} must be at least 1; None takes all")
    task = subject.base.run.task
    if subject.row.finetune is not None and subject.row.read == RESIZED and not task.tables_fit_images:
        raise ValueError(
            f"the fine-tune {subject.row.label!r} would resize tables, which in native aspects are not of the size of any "
            "image: leave `read` out, and take an encoding as learned(resize='jax_linear')"
        )
    for resolution in {min(options.resolutions), max(options.resolutions)}:

        def logits(params, resolution=resolution):
            model, params = subject.at(resolution, params)
            if (size := task.uniform_size(resolution)) is None:  # images need not have one grid
                return params
            image, first = jnp.zeros((1, *size, image_channels(params))), jax.tree.map(lambda leaf: leaf[0], params)
            return model.apply({"params": first}, image, model.sites(*size))

        jax.eval_shape(logits, subject.weights.run.params)


MEASURES: Mapping[str, Measure] = {
    "scores": Measure(scores),
    "lengths": Measure(lengths, _check_reading, "lengths"),
    "retrieval": Measure(retrieval, _check_retrieval, "lengths"),
    "resolutions": Measure(resolutions, _check_resolutions, "resolutions"),
    "positions": Measure(positions),
    "first_token": Measure(first_token),
}


def sizes_of(table: ConfigDict) -> list[int]:
    """All lengths or resolutions that the rows of a table are read at, ascending."""
    named = [(options, MEASURES[name].sizes) for name, options in measures_of(table).items()]
    return sorted({size for options, sizes in named if sizes for size in options[sizes]})


def load_documents(table: ConfigDict, tokenizer: data.Tokenizer | None) -> data.Documents:
    """The longest documents of the evaluation split, for the measure of lengths.

    Args:
      tokenizer: of a checkpoint, if the weights are one's.

    Raises:
      ValueError: no document is long enough, or `data.tokenizer` is not the checkpoint's.
    """
    given, options = table.data, table.measures.lengths
    check_lengths(options)
    source = dict(data_dir=given.data_dir, files=given.files, field=given.get("text_field", "text"))
    bos = given.get("bos")
    own = data.load_tokenizer(given.get("tokenizer"), bos)
    if tokenizer is not None and given.get("tokenizer") is not None and own.digest != tokenizer.digest:
        raise ValueError(f"data.tokenizer={given.tokenizer} is not the one of the run, {tokenizer.name}")
    tokenizer = tokenizer or own
    if bos is not None:  # how it is read, whatever it was trained on
        tokenizer = data.load_tokenizer(tokenizer.name, bos)
    documents = data.load_documents(given.name, given.eval_split, **source, tokenizer=tokenizer)
    return documents.longest(options.documents, max(options.lengths) + options.bytes + 1)


def windows_of(task: Evaluated, count: int) -> np.ndarray:
    """The first windows [count, T] of a task's evaluation split, of the shortest length that it is scored at.

    Raises:
      ValueError: there are not as many, or fewer than two are asked for.
    """
    windows: list[np.ndarray] = []
    for batch in next(iter(task.evaluation().values())):
        windows += list(np.asarray(batch["tokens"])[(np.asarray(batch["segment"]) > 0).all(axis=1)])
        if len(windows) >= count:
            break
    if not 2 <= count <= len(windows):
        raise ValueError(
            f"windows={count} of a measure must lie in 2..{len(windows)}, the whole windows of the evaluation split"
        )
    return np.stack(windows[:count]).astype(np.int32)


def whole(number: float) -> int | float:
    """2.0 as 2."""
    return int(number) if number == int(number) else number
