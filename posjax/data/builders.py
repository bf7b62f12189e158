"""Two tensorflow-datasets builders whose raw data every installation already has: no download, no TensorFlow.

Importing this module imports tensorflow-datasets and registers `digits` and `pydoc_topics` with it.
"""

import hashlib
import importlib.util
import pathlib
import platform
import pydoc_data.topics
from collections.abc import Iterator

import numpy as np
import tensorflow_datasets as tfds

from posjax.data.tensorflow_free import encode_png
from posjax.extras import require


def digits_path() -> pathlib.Path:
    require("digits.csv.gz", "sklearn")
    spec = importlib.util.find_spec("sklearn")  # importing the package would take more than a second
    return pathlib.Path(spec.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")


class Digits(tfds.core.GeneratorBasedBuilder):
    """The 1,797 handwritten 8x8 digits that scikit-learn ships (UCI Optical Recognition of Handwritten Digits)."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description=(self.__doc__ or "") + " Grey levels 0..16 scaled to 0..255; stratified split, fixed for ever.",
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(shape=(8, 8, 1), encoding_format="png"),
                    "label": tfds.features.ClassLabel(num_classes=10),
                }
            ),
            supervised_keys=("image", "label"),
            homepage="https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits",
        )

    def _split_generators(self, dl_manager):
        table, test = read_digits()
        return {
            "train": self._generate_examples(table, np.flatnonzero(~test)),
            "test": self._generate_examples(table, np.flatnonzero(test)),
        }

    def _generate_examples(self, table: np.ndarray, rows: np.ndarray) -> Iterator[tuple[int, dict]]:
        for row in rows.tolist():
            grey = np.round(table[row, :64].reshape(8, 8) * (255 / 16)).astype(np.uint8)
            yield row, {"image": encode_png(grey[..., None]), "label": int(table[row, 64])}


def read_digits() -> tuple[np.ndarray, np.ndarray]:
    """Returns the table [1797, 65] (64 grey levels 0..16, the digit) and the mask [1797] of its 364 test rows."""
    table = np.loadtxt(digits_path(), delimiter=",").astype(np.int64)
    # Every fifth example of each digit, in file order; the file mixes its writers well enough for that to be fair.
    nth = np.zeros(len(table), np.int64)
    for digit in range(10):
        of_digit = np.flatnonzero(table[:, 64] == digit)
        nth[of_digit] = np.arange(len(of_digit))
    return table, nth % 5 == 0


def topic_families(topics: dict[str, str]) -> list[tuple[str, ...]]:
    """Groups topics that share a paragraph of 100 characters or more; each group is sorted by name."""
    family = {name: {name} for name in topics}
    first_with: dict[str, str] = {}
    for name, text in topics.items():
        for paragraph in text.split("\n\n"):
            if len(paragraph) >= 100:
                other = first_with.setdefault(paragraph.strip(), name)
                merged = family[other] | family[name]
                family.update(dict.fromkeys(merged, merged))
    return sorted({tuple(sorted(members)) for members in family.values()})


def held_out_topics(topics: dict[str, str]) -> set[str]:
    """Chooses the validation topics: whole families in the order of a hash, at most a tenth of all characters.

    The manual quotes itself: a third of it stands in two topics or more, and would leak if families were split.
    """
    budget = sum(len(text) for text in topics.values()) // 10
    held: set[str] = set()
    for members in sorted(topic_families(topics), key=lambda m: hashlib.sha256(m[0].encode()).digest()):
        size = sum(len(topics[name]) for name in members)
        if size <= budget:
            held.update(members)
            budget -= size
    return held


def _topics_config() -> tfds.core.BuilderConfig:
    # The text differs even between patch versions of Python, so its digest is part of the name.
    sha = hashlib.sha256("".join(f"{k}\0{v}\0" for k, v in sorted(pydoc_data.topics.topics.items())).encode())
    version = "".join(platform.python_version_tuple()[:2])
    return tfds.core.BuilderConfig(
        name=f"py{version}_{sha.hexdigest()[:8]}",
        description=f"pydoc_data.topics of Python {platform.python_version()}",
    )


class PydocTopics(tfds.core.GeneratorBasedBuilder):
    """The English of Python's own reference manual as `help()` shows it, one example per topic."""

    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS = [_topics_config()]  # noqa: RUF012 (the name and the kind are TFDS's)

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description=self.__doc__,
            features=tfds.features.FeaturesDict({"text": tfds.features.Text(), "topic": tfds.features.Text()}),
            homepage="https://docs.python.org/3/reference/",
        )

    def _split_generators(self, dl_manager):
        topics = pydoc_data.topics.topics
        held = held_out_topics(topics)
        return {
            "train": self._generate_examples(topics, sorted(set(topics) - held)),
            "validation": self._generate_examples(topics, sorted(held)),
        }

    def _generate_examples(self, topics: dict[str, str], names: list[str]) -> Iterator[tuple[str, dict]]:
        for name in names:
            yield name, {"text": topics[name], "topic": name}
