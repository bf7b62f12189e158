"""A person's own pictures: a folder, or a zip, per split, with a folder per class in it."""

import os
import pathlib
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import NamedTuple

_ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
LARGEST_IMAGE = 2**28  # bytes of one picture in a zip, unpacked


# What zipfile raises for a zip that is damaged, by where: OSError and OverflowError for offsets out of the file.
_DAMAGED = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, OSError, OverflowError)
_DAMAGED += (RuntimeError, UnicodeDecodeError)


class Picture(NamedTuple):
    """A picture file that was not decoded yet: its class, what to call it in messages, and its bytes."""

    label: str
    name: str
    content: bytes


def class_names(data_dir: pathlib.Path, split: str) -> tuple[str, ...]:
    """The classes, sorted: those of the split "train" where there is one, so that splits number them alike."""
    return tuple(sorted({label for label, _ in _listed(data_dir, _split_of_classes(data_dir, split))}))


def pictures(data_dir: pathlib.Path, split: str) -> Iterator[Picture]:
    """The pictures of a split, by class and name; they are listed, and so checked, at once, and read one by one.

    `data_dir` holds a folder or a zip named after the split (the folder counts where both are there), and that
    <class>/<picture>. Hidden files and what does not end like a picture are passed over.

    Raises:
      FileNotFoundError: neither is there.
      ValueError: there are no pictures in it, or some elsewhere than in <class>/, or the zip is damaged or encrypted; a
        picture of it is larger than 256 MiB.
    """
    return _read(_path(data_dir, split), _listed(data_dir, split))


def _split_of_classes(data_dir: pathlib.Path, split: str) -> str:
    return "train" if (data_dir / "train").is_dir() or (data_dir / "train.zip").is_file() else split


def _path(data_dir: pathlib.Path, split: str) -> pathlib.Path:
    for path in (data_dir / split, data_dir / f"{split}.zip"):
        if path.exists():
            return path
    there = sorted(path.name for path in data_dir.iterdir()) if data_dir.is_dir() else []
    raise FileNotFoundError(
        f"{data_dir} holds neither a folder {split} nor {split}.zip, with <class>/<picture> in it, "
        f"but {', '.join(there[:8]) or 'nothing'}"
    )


def _listed(data_dir: pathlib.Path, split: str) -> list[tuple[str, str]]:
    """(class, file) of each picture, sorted."""
    path = _path(data_dir, split)
    listed = sorted(_in_zip(path) if path.suffix == ".zip" else _in_folder(path))
    if not listed:
        raise ValueError(f"{path} holds no pictures <class>/<picture> that end in {', '.join(_ENDINGS)}")
    return listed


def pictures_in(folder: pathlib.Path) -> list[pathlib.Path]:
    """The pictures that lie in a folder itself, sorted; hidden files and others are passed over as by `pictures`.

    Raises:
      ValueError: there is none.
    """
    found = sorted(path for path in folder.iterdir() if path.is_file() and _counts(path.name))
    if not found:
        raise ValueError(f"{folder} holds no pictures that end in {', '.join(_ENDINGS)}")
    return found


def _counts(name: str) -> bool:
    """Whether a file is a picture, and not what archivers and desktops leave behind."""
    return name.lower().endswith(_ENDINGS) and not any(part.startswith((".", "__MACOSX")) for part in name.split("/"))


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
            if member.flag_bits & 1 or member.file_size > LARGEST_IMAGE:
                what = (
                    "is encrypted"
                    if member.flag_bits & 1
                    else f"has {member.file_size:,} bytes, over {LARGEST_IMAGE:,}"
                )
                raise ValueError(f"{member.filename} in {path} {what}")
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ValueError(
                    f"{member.filename} in {path} is packed in a way that only some can read: pack it by deflate"
                )
            yield parts[0], parts[1]


def _opened(path: pathlib.Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except _DAMAGED as error:
        raise ValueError(f"{path} is no whole zip ({error}): fetch or pack it again") from error


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
