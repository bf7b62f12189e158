"""The user's own pictures: a folder per class, in a folder or zip per split or without splits."""

import hashlib
import os
import pathlib
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from posjax.data.subsets import SPLITS, split_among

_ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
_HELD_OUT = 5  # a fifth of each class is held out where there are no splits
# Errors of zipfile for a damaged zip: OSError and OverflowError for offsets outside the file.
_DAMAGED = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, OSError, OverflowError)
_DAMAGED += (RuntimeError, UnicodeDecodeError)


class Picture(NamedTuple):
    """An undecoded picture: its class, its name for messages, and its bytes."""

    label: str
    name: str
    content: bytes


def class_names(data_dir: pathlib.Path, split: str) -> tuple[str, ...]:
    """The classes, sorted; of the split "train" if there is one, so that splits number them alike."""
    split = "train" if data_dir.is_dir() and "train" in _splits(data_dir) else split
    path, _ = _path(data_dir, split)
    return tuple(sorted({label for label, _ in _listed(path, None)}))


def pictures(data_dir: pathlib.Path, split: str) -> Iterator[Picture]:
    """Returns the pictures of a split by class and name: listed and checked at once, read one by one.

    `data_dir` holds a folder or a zip named after the split (the folder counts where both are there), and that
    <class>/<picture>. Where it holds <class>/<picture> itself, "train" is four fifths of each class and any other split the
    other fifth, by a hash of the pictures' names. Hidden files and files that are no pictures by name are passed over.

    Raises:
      FileNotFoundError: the folder is missing or empty.
      ValueError: the split is unknown, it has no pictures or has pictures outside <class>/, or its zip cannot be read.
    """
    path, share = _path(data_dir, split)
    return _read(path, _listed(path, share))


def _splits(data_dir: pathlib.Path) -> dict[str, pathlib.Path]:
    """Returns the folders and zips in a folder, by the names of the splits that they may be."""
    shown = sorted(path for path in data_dir.iterdir() if not is_hidden([path.name]))
    zips = {path.stem: path for path in shown if path.suffix == ".zip"}
    return zips | {path.name: path for path in shown if path.is_dir()}


def _path(data_dir: pathlib.Path, split: str) -> tuple[pathlib.Path, str | None]:
    """Returns the folder or zip of a split, and the split's name if all splits share the folder (else None)."""
    there = _splits(data_dir) if data_dir.is_dir() else {}
    if not there:
        raise FileNotFoundError(
            f"{data_dir} holds no folders of pictures: --config.data.data_dir= names one with <class>/<picture>, or with "
            f"<split>/<class>/<picture> or <split>.zip in it, as {split}.zip"
        )
    named = [path for name, path in there.items() if name.lower() in (split, *SPLITS)]
    holding = [path for path in there.values() if _has_pictures(path)]
    if len(named) < 2 and {*named} < {*holding}:  # no split is named, or one class is called "train"
        return data_dir, split
    return there[split_among(split, there, str(data_dir))], None


def _has_pictures(path: pathlib.Path) -> bool:
    return path.is_dir() and any(each.is_file() and _counts(each.name) for each in path.iterdir())


def _listed(path: pathlib.Path, share: str | None) -> list[tuple[str, str]]:
    """Returns (class, file) of each picture, sorted: all pictures, or a split's share of each class."""
    listed = sorted(_in_zip(path) if path.suffix == ".zip" else _in_folder(path))
    if not listed:
        raise ValueError(f"{path} holds no pictures <class>/<picture> that end in {', '.join(_ENDINGS)}")
    if share is None:
        return listed
    held = _held_out(listed)
    if not held and share != "train":
        raise ValueError(f"{path} has one picture of each class, which is trained on: {share!r} needs a second one")
    return [each for each in listed if (each in held) != (share == "train")]


def _held_out(listed: list[tuple[str, str]]) -> set[tuple[str, str]]:
    """Returns the fifth of each class whose names have the smallest hashes: at least one picture, but never the only one."""
    classes: dict[str, list[tuple[str, str]]] = {}
    for each in sorted(
        listed, key=lambda each: hashlib.sha256("/".join(each).encode(errors="surrogateescape")).digest()
    ):
        classes.setdefault(each[0], []).append(each)
    shares = {label: max(len(own) // _HELD_OUT, int(len(own) > 1)) for label, own in classes.items()}
    return {each for label, own in classes.items() for each in own[: shares[label]]}


def pictures_in(folder: pathlib.Path) -> list[pathlib.Path]:
    """Returns the pictures in a folder and the folders below it, sorted; skips the same files as `pictures`.

    Raises:
      ValueError: the folder is missing or holds no pictures.
    """
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}")
    found = sorted(
        path for path in folder.rglob("*") if path.is_file() and _counts(path.relative_to(folder).as_posix())
    )
    if not found:
        raise ValueError(f"{folder} holds no pictures that end in {', '.join(_ENDINGS)}")
    return found


def _counts(name: str) -> bool:
    """Whether a file is a picture by its name, and not hidden."""
    return name.lower().endswith(_ENDINGS) and not is_hidden(name.split("/"))


def is_hidden(parts: Iterable[str]) -> bool:
    """Whether a path, by its parts, is hidden or a copy that archivers, desktops or notebooks leave behind."""
    return any(part.startswith((".", "__MACOSX")) for part in parts)


def _in_folder(path: pathlib.Path) -> Iterator[tuple[str, str]]:
    for folder, _, files in os.walk(path, followlinks=True):
        for file in files:
            name = pathlib.Path(folder, file).relative_to(path)
            if not _counts(name.as_posix()):
                continue
            if len(name.parts) != 2:
                raise ValueError(f"{path} holds {name}, not <class>/<picture>: move it into a class, or away")
            yield name.parts


def _in_zip(path: pathlib.Path) -> Iterator[tuple[str, str]]:
    with _opened(path) as archive:
        for member in archive.infolist():
            parts = member.filename.split("/")
            unsafe = {"", ".", ".."} & set(parts[:-1]) or "\\" in member.filename
            if not unsafe and not _counts(member.filename):
                continue
            if unsafe or len(parts) != 2:
                raise ValueError(f"{path} holds {member.filename!r}, not <class>/<picture>: pack it anew, from inside")
            yield parts[0], parts[1]


def _opened(path: pathlib.Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except _DAMAGED as error:
        raise ValueError(f"{path} is not a whole zip ({error}): fetch or pack it again") from error


def _read(path: pathlib.Path, listed: list[tuple[str, str]]) -> Iterator[Picture]:
    if path.suffix != ".zip":
        for label, file in listed:
            yield Picture(label, str(path / label / file), (path / label / file).read_bytes())
        return
    with _opened(path) as archive:
        for label, file in listed:
            name = f"{label}/{file} in {path}"
            try:
                content = archive.read(f"{label}/{file}")
            except _DAMAGED as error:
                raise ValueError(f"{name} is damaged ({error}): fetch or pack the zip again") from error
            yield Picture(label, name, content)
