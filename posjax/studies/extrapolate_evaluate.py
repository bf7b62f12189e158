"""Reads one row of `experiments.extrapolate` at every length, and says what its records hold."""

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from posjax.studies.extrapolate_plan import Row, Sizes, fill, first_scored, lengths_of, stride_of
from posjax import data
from posjax.studies.long_context import Reader, Reading, retrieved, text_loss, with_encoding


class Trained(NamedTuple):
    """What is evaluated: a model with the parameters of each seed, and what records say of how it was trained."""

    model: Any
    params: dict[int, Any]
    about: dict[str, Any]


def evaluate_row(
    row: Row,
    trained: Trained,
    config: ConfigDict,
    documents: data.Documents,
    sizes: Sizes,
    seeds: tuple[int, ...],
    on_cell: Callable[[int], None],
) -> list[dict[str, Any]]:
    """What was measured of a row, one for each seed; `on_cell` is told how many bytes have been read."""
    began = time.perf_counter()
    found = [{"metrics": {"sliding": {}, "chunked": {}}, "by_position": {}, "retrieval": {}, "cost": {}} for _ in seeds]
    for length in lengths_of(row, config.evaluation):
        spec = fill(row.spec, length, sizes)
        hosts = [with_encoding(trained.model, trained.params[seed], spec) for seed in seeds]
        reader = Reader(*hosts[0], max(1, config.evaluation.batch_tokens // length), length)
        for (_, params), measured in zip(hosts, found, strict=True):
            _read_text(reader, params, measured, documents, config.evaluation)
            if length in config.retrieval.lengths:
                for task in config.retrieval.tasks:
                    cells = _read_task(reader, params, task, documents, config.retrieval)
                    measured["retrieval"].setdefault(task, {})[str(length)] = cells
            measured["cost"][str(length)] = reader.cost()
            on_cell(bytes_read(length, config, documents))
    return [measured | {"evaluation_time": (time.perf_counter() - began) / len(seeds)} for measured in found]


def bytes_read(length: int, config: ConfigDict, documents: data.Documents) -> int:
    """How many bytes one seed of one row reads at a length."""
    windows = len(documents.texts) * config.evaluation.bytes // stride_of(length, config.evaluation)
    if length in config.retrieval.lengths:
        windows += len(config.retrieval.tasks) * len(config.retrieval.depths) * config.retrieval.examples
    return windows * length


def _read_text(reader: Reader, params, measured: dict, documents: data.Documents, evaluation: ConfigDict) -> None:
    length = reader.length
    sizes = dict(stride=stride_of(length, evaluation), first=first_scored(evaluation), count=evaluation.bytes)
    loss = text_loss(reader, params, documents.texts, **sizes)
    measured["metrics"]["sliding"][str(length)] = _finite(loss.sliding)
    measured["metrics"]["chunked"][str(length)] = _finite(loss.chunked)
    measured["by_position"][str(length)] = [[x, _finite(y)] for x, y in loss.by_position]


def _read_task(reader: Reader, params, task: str, documents: data.Documents, wanted: ConfigDict) -> list[dict]:
    """A cell for each depth; the examples are the same for every row and seed."""
    batches = [
        data.retrieval_batch(
            task,
            length=reader.length,
            count=wanted.examples,
            seed=(wanted.seed, reader.length, index),
            depth=depth,
            haystack=documents.texts[0],
        )
        for index, depth in enumerate(wanted.depths)
    ]
    reading = reader(params, *(np.concatenate([batch[name] for batch in batches]) for name in ("tokens", "targets")))
    parts = zip(*(np.split(x, len(batches)) for x in reading), strict=True)
    return [
        {"depth": depth} | {name: _finite(value) for name, value in retrieved(Reading(*part), batch)._asdict().items()}
        for depth, batch, part in zip(wanted.depths, batches, parts, strict=True)
    ]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
