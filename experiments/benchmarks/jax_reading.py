"""The pipelines of posjax."""

from collections.abc import Mapping
from typing import Any

from experiments.benchmarks import reading
from experiments.benchmarks.contender import Call

_MOST = 10**6  # steps


def images(case: Mapping[str, Any]) -> Call:
    """Streamed pictures, from a "folder" or "tars" as `case["packing"]` says, as training augments them on the host."""
    from posjax import data

    root, size = reading.pictures(case), (case["image"],) * 2
    host = data.parse_augment(case["augment"]).sized(*size).host
    streamed = data.stream_images("folder", "train", root / case["packing"])
    batches = data.image_batches(streamed, batch_size=case["batch"], seed=0, frame=data.Frame(size, host=host))
    return reading.reading(lambda: data.epoch(batches, 0, _MOST, case["workers"]), case, case["batch"], "images")


def tokens(case: Mapping[str, Any]) -> Call:
    """Windows of a shard of tokens, with the places of tokens in their documents."""
    from posjax import data

    text = data.load_stream("tokens", "train", files=str(reading.tokens(case)))
    batches = data.text_batches(text, length=case["length"], batch_size=case["batch"], seed=0)
    items = case["batch"] * case["length"]
    return reading.reading(lambda: data.epoch(batches, 0, _MOST, case["workers"]), case, items, "tokens")
