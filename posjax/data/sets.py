"""The data sets, posjax's own and a user's, and the tensorflow-datasets builder of a name."""

from __future__ import annotations

import difflib
import os
import pathlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from posjax.data.subsets import split_among
from posjax.remote import is_remote, local_copy

if TYPE_CHECKING:
    from tensorflow_datasets.core import DatasetBuilder

# TFDS also takes "community:name" and paths; both would run foreign code.
_NAME = re.compile(r"[a-z][a-z0-9_]*(/[a-z0-9_.\-]+)?")


@dataclass(frozen=True)
class Entry:
    """A set that posjax is tested with: its kind, whether it needs a download, and a line about it."""

    kind: str
    bundled: bool
    about: str


SETS = {
    "digits": Entry("images", True, "1,797 grey 8x8 digits, shipped with scikit-learn"),
    "mnist": Entry("images", False, "70,000 grey 28x28 digits"),
    "fashion_mnist": Entry("images", False, "70,000 grey 28x28 articles of clothing"),
    "cifar10": Entry("images", False, "60,000 colour 32x32 photographs"),
    "caltech101": Entry("images", False, "9,144 colour photographs, about 300x200, of different sizes"),
    "pydoc_topics": Entry("text", True, "0.5 MB of English, the reference manual inside Python"),
    "tiny_shakespeare": Entry("text", False, "1.1 MB of plays, one document"),
}


# A user's own data: {flag: its kind}.
OWN = {
    "--config.data.name=folder --config.data.data_dir=DIR": Entry("images", True, "pictures, DIR/<class>/<picture>"),
    "--config.data.files=DIR": Entry(
        "text", True, "texts, tables or shards of tokens in DIR and below, or what a glob names"
    ),
}

# Random data, for speeds and plans.
SYNTHETIC = SYNTHETIC_IMAGES, SYNTHETIC_TOKENS = ("synthetic_images", "synthetic_tokens")

Read = Callable[[str, Any], Any]


@dataclass(frozen=True)
class Source:
    """A registered set; `classes` is None for text."""

    name: str
    read: Read
    classes: tuple[str, ...] | None
    splits: tuple[str, ...]

    @property
    def kind(self) -> str:
        return "text" if self.classes is None else "images"

    def content(self, split: str, data_dir: str | os.PathLike | None, kind: str) -> Any:
        """The value of the function for a split.

        Raises:
          ValueError: the set is of another kind, or lacks the split.
        """
        if kind != self.kind:
            raise ValueError(f"{self.name!r} is registered as a set of {self.kind}, not of {kind}")
        return self.read(split_among(split, self.splits, repr(self.name)), data_dir)


SOURCES: dict[str, Source] = {}


def register(
    name: str, *, classes: int | Sequence[str] | None = None, splits: Sequence[str] = ("train", "test")
) -> Callable[[Read], Read]:
    """Registers the decorated function as the data set `name`.

    The function is called with (split, data_dir) each time a split is loaded. It must always return the same data: a run
    resumes only with the data of its start.

    Args:
      name: the set's name for `config.data.name`.
      classes: names or number of the classes of labelled images; None for text. The function returns (images, labels):
        images [N, h, w] or [N, h, w, c] uint8 (c = 1, 3 or 4), or a list of images of different sizes; labels [N], integers
        below the number of classes. For text it returns a list of documents, each str or bytes.
      splits: names of the splits that the function returns.

    Raises:
      ValueError: the name belongs to a set of posjax, or is registered already.
    """
    if not isinstance(name, str) or not name:
        raise ValueError(f"a data set is registered under a name, as in @register('mine'); got {name!r}")
    if name in ("folder", *SYNTHETIC, *SETS, *SOURCES):
        raise ValueError(f"a data set named {name!r} exists already; choose another name")
    known = tuple(map(str, range(classes))) if isinstance(classes, int) else classes and tuple(classes)

    def add(read: Read) -> Read:
        SOURCES[name] = Source(name, read, known, tuple(splits))
        return read

    return add


def registered() -> list[str]:
    """Returns the names of all registered sets."""
    return list(SOURCES)


def source_of(name: str) -> Source | None:
    """Returns the registered set of a name, or None."""
    return SOURCES.get(name)


def resolve_data_dir(data_dir: str | os.PathLike | None, name: str = "") -> pathlib.Path:
    """Returns the directory of prepared sets: `data_dir`, or TFDS's default ($TFDS_DATA_DIR or ~/tensorflow_datasets).

    Of an address, the set `name` (without a name, everything) is copied to this machine, see `posjax.remote.local_copy`.
    """
    if data_dir is None:
        from tensorflow_datasets.core import constants

        data_dir = constants.DATA_DIR
    if is_remote(data_dir):
        copy = pathlib.Path(local_copy("/".join([os.fspath(data_dir).rstrip("/"), *name.split("/")[:1]]).rstrip("/")))
        return copy.parent if name else copy
    return pathlib.Path(data_dir).expanduser()


def command(name: str, data_dir: str | os.PathLike | None, source: str | None = None) -> str:
    """Returns the command line that prepares a set."""
    words = ["python -m experiments.prepare", f"--name={name}"]
    words += [f"--from={source}"] if source else []
    words += [f"--data_dir={os.fspath(data_dir)}"] if data_dir is not None else []
    return " ".join(words)


def find_builder(name: str, data_dir: str | os.PathLike | None = None) -> DatasetBuilder:
    """Returns the TFDS builder of a set, prepared or not, that reads and writes array_record files.

    Args:
      name: a name of `SETS`, or any other TFDS set ("kmnist", "emnist/balanced").
      data_dir: directory of prepared sets; None is TFDS's default.

    Raises:
      ValueError: the set is unknown.
    """
    import tensorflow_datasets as tfds

    from posjax.data import builders

    bundled = {"digits": builders.Digits, "pydoc_topics": builders.PydocTopics}
    if name in bundled:
        return bundled[name](data_dir=resolve_data_dir(data_dir, name), file_format="array_record")
    if source_of(name):
        raise ValueError(f"{name!r} is registered by your own code, which is read as it is: prepare nothing")
    if name == "folder":
        raise ValueError("a folder is read as it is: set data.data_dir for pictures, data.files for texts")
    if name in SYNTHETIC:
        raise ValueError(
            f"{name!r} is random: {SYNTHETIC_IMAGES} for classification, {SYNTHETIC_TOKENS} for language models"
        )
    if not _NAME.fullmatch(name):
        raise ValueError(_unknown(name))
    try:
        return tfds.builder(name, data_dir=resolve_data_dir(data_dir, name), file_format="array_record")
    except tfds.core.DatasetNotFoundError as error:
        raise ValueError(_unknown(name)) from error


def is_prepared(builder: DatasetBuilder) -> bool:
    """Whether the set is prepared completely: TFDS writes the info file last and then renames the directory."""
    return (builder.data_path / "dataset_info.json").exists()


def _unknown(name: str) -> str:
    from tensorflow_datasets.core import registered as of_tfds

    known = [*SETS, *registered()]
    near = difflib.get_close_matches(name, [*known, *of_tfds.list_imported_builders()], n=1, cutoff=0.7)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return (
        f"unknown data set {name!r}; {hint}posjax knows {', '.join(known)}, "
        "the sets of tensorflow-datasets that do not need Apache Beam, what --import=FILE registers, and your own "
        + " and ".join(f"{entry.kind}: {flags}" for flags, entry in OWN.items())
    )
