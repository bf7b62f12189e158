"""Pictures in folders, zips and tars, listed at once and read one by one: archives are not unpacked.

A listing is a table, a row for each picture: where its bytes lie, and its class. Tars are listed by their headers alone,
once; the listing is kept beside them.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import pathlib
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from posjax.data.containers import digest_of
from posjax.files import HEADER_ERRORS, replace_file

_log = logging.getLogger(__name__)
ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
# Errors of zipfile and tarfile for a damaged archive: OSError and OverflowError for offsets outside the file.
_DAMAGED = (zipfile.BadZipFile, tarfile.TarError, zlib.error, struct.error, EOFError, NotImplementedError, OSError)
_DAMAGED += (OverflowError, RuntimeError, UnicodeDecodeError)
_LOCAL_HEADER = struct.Struct("<26xHH")  # of a zip's member: the lengths of its name and of the extra field
_LABEL = ".cls"  # ending of the file of a label in WebDataset's tars
# The class and the name of a picture, the number of its archive, its bytes there, and for zips their checksum and packing.
_COLUMNS = [("shard", "<i4"), ("offset", "<i8"), ("size", "<i8"), ("crc", "<u4"), ("deflated", "?"), ("numbered", "?")]
Row = tuple[str, str, int, int, int, int, bool, bool]  # label, name and _COLUMNS


class Pictures:
    """The undecoded pictures of a split. It holds their table and opens no file before `read`.

    Attributes:
      classes: names of the classes.
      label: [N] int32.
      digest: short sha256 of names, classes and sizes; the pictures themselves are not read for it.
    """

    def __init__(self, paths: list[pathlib.Path], table: np.ndarray, classes: tuple[str, ...], label: np.ndarray):
        self._paths, self._table = [os.fspath(path) for path in paths], table
        self._in_archives, self.classes, self.label = paths[0].is_file(), classes, label
        names = "\n".join(f"{label}/{name} {size}" for label, name, size in table[["label", "name", "size"]].tolist())
        self.digest = digest_of(np.frombuffer(names.encode(), np.uint8), label)

    def __len__(self) -> int:
        return len(self._table)

    def name(self, index: int) -> str:
        """Returns the name of a picture for messages."""
        row = self._table[index]
        name = os.fsdecode(row["name"] if row["numbered"] else row["label"] + b"/" + row["name"])
        path = self._paths[row["shard"]]
        return f"{name} in {path}" if self._in_archives else os.path.join(path, name)

    def read(self, index: int) -> bytes:
        """Returns the bytes of a picture.

        Raises:
          ValueError: the file or archive is damaged, or shorter than when it was listed.
          OSError: the file cannot be read.
        """
        row, name = self._table[index], self.name(index)
        path = self._paths[row["shard"]] if self._in_archives else name
        with open(path, "rb") as file:
            file.seek(row["offset"])
            content = file.read(row["size"])
        why = "" if len(content) == row["size"] else "it ends early"
        if not why and path.endswith(".zip"):
            try:
                content = zlib.decompress(content, -zlib.MAX_WBITS) if row["deflated"] else content
                why = "" if zlib.crc32(content) == row["crc"] else "its CRC-32 differs"
            except zlib.error as error:
                why = str(error)
        if why:
            raise ValueError(f"{name} is damaged ({why}): fetch or pack it again")
        return content


def listed(paths: list[pathlib.Path]) -> np.ndarray:
    """Returns the table of the pictures <class>/<picture> in a folder, a zip or tars, sorted by class and name.

    Raises:
      ValueError: there is no picture, some lie outside <class>/, or an archive is damaged or cannot be read by index.
    """
    if paths[0].suffix == ".tar" and paths[0].is_file():
        rows = lambda: _table(row for shard, path in enumerate(paths) for row in _in_tar(path, shard))  # noqa: E731
        table = kept_beside(paths, paths[0].stem, rows, "listing the pictures")
    else:
        table = _table(_in_zip(paths[0]) if paths[0].is_file() else _in_folder(paths[0]))
    if not len(table):
        raise ValueError(f"{paths[0]} holds no pictures <class>/<picture> that end in {', '.join(ENDINGS)}")
    if 0 < table["numbered"].sum() < len(table):
        raise ValueError(f"{paths[0].parent} mixes tars with <key>{_LABEL} and tars with <class>/<picture>")
    label = table["label"].astype(np.int64) if table["numbered"][0] else table["label"]
    return table[np.lexsort((table["offset"], table["shard"], table["name"], label))]


def _table(rows: Iterable[Row]) -> np.ndarray:
    rows = [(os.fsencode(label), os.fsencode(name), *rest) for label, name, *rest in rows]
    width = [max((len(row[i]) for row in rows), default=1) for i in range(2)]
    return np.array(rows, [("label", f"S{width[0]}"), ("name", f"S{width[1]}"), *_COLUMNS])


def counts(name: str) -> bool:
    """Whether a file is a picture by its name, and not hidden."""
    return name.lower().endswith(ENDINGS) and not is_hidden(name.split("/"))


def is_hidden(parts: Iterable[str]) -> bool:
    """Whether a path, by its parts, is hidden or a copy that archivers, desktops or notebooks leave behind."""
    return any(part.startswith((".", "__MACOSX")) for part in parts)


def _in_folder(path: pathlib.Path) -> Iterator[Row]:
    for folder, _, files in os.walk(path, followlinks=True):
        for file in files:
            name = pathlib.Path(folder, file).relative_to(path)
            if not counts(name.as_posix()):
                continue
            if len(name.parts) != 2:
                raise ValueError(f"{path} holds {name}, not <class>/<picture>: move it into a class, or away")
            yield (*name.parts, 0, 0, os.stat(path / name).st_size, 0, False, False)


def _parts(name: str, more: tuple[str, ...] = ()) -> list[str] | None:
    """Returns the parts of a member's name; None for one that is no picture and does not end in `more`."""
    parts = name.removeprefix("./").split("/")
    return parts if counts("/".join(parts)) or (name.endswith(more) and not is_hidden(parts)) else None


def _in_zip(path: pathlib.Path) -> Iterator[Row]:
    try:
        with zipfile.ZipFile(path) as archive, path.open("rb") as file:
            for member in archive.infolist():
                if (parts := _parts(member.filename)) is None:
                    continue
                if len(parts) != 2 or member.flag_bits & 1 or member.compress_type not in (0, zipfile.ZIP_DEFLATED):
                    is_packed = "packed in a way that cannot be read" if len(parts) == 2 else "not <class>/<picture>"
                    raise ValueError(f"{path} holds {member.filename!r}, {is_packed}: pack it anew, from inside")
                file.seek(member.header_offset)
                start = member.header_offset + _LOCAL_HEADER.size + sum(_LOCAL_HEADER.unpack(file.read(30)))
                deflated = member.compress_type == zipfile.ZIP_DEFLATED
                yield (*parts, 0, start, member.compress_size, member.CRC, deflated, False)
    except _DAMAGED as error:
        raise ValueError(f"{path} is not a whole zip ({error}): fetch or pack it again") from error


def kept_beside(files: list[pathlib.Path], name: str, make: Callable[[], np.ndarray], what: str) -> np.ndarray:
    """Returns `make()`, saved in a hidden file beside these files, and read from there while none of them changes.

    Args:
      files: the files that the array is made of, in one folder.
      name: beginning of the name of the hidden file.
      what: name of this work in the log, which says that it is done once.
    """
    about = "\n".join(f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in files)
    path = files[0].with_name(f".{name}-{digest_of(np.frombuffer(about.encode(), np.uint8))}.npy")
    try:
        return np.load(path, allow_pickle=False)
    except FileNotFoundError:
        _log.warning("%s of %d files in %s, once", what, len(files), path.parent)
    except (OSError, EOFError, *HEADER_ERRORS) as error:
        _log.warning("%s is damaged (%s): %s again", path, error, what)
    made, buffer = make(), io.BytesIO()
    np.save(buffer, made, allow_pickle=False)
    try:
        replace_file(path, buffer.getbuffer())
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        _log.warning("%s is read-only: %s in every run", path.parent, what)
    return made


def _in_tar(path: pathlib.Path, shard: int) -> list[Row]:
    """Returns the pictures of a tar: <class>/<picture>, or WebDataset's <key>.jpg with the number of a class in <key>.cls."""
    found, labels = [], {}
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                if member.isdir() or (parts := _parts(member.name, (_LABEL,))) is None:
                    continue
                if not member.isreg() or member.issparse():
                    raise ValueError(f"{path} holds {member.name!r}, which is a link or no regular file: pack it anew")
                if member.offset_data + member.size > path.stat().st_size:
                    raise EOFError("it ends early")
                if member.name.endswith(_LABEL):
                    labels[_key(parts)] = archive.extractfile(member).read(20)
                else:
                    found.append((parts, member.offset_data, member.size))
    except _DAMAGED as error:
        raise ValueError(f"{path} is not a whole tar ({error}): fetch or pack it again") from error
    rows = []
    for parts, offset, size in found:
        name = "/".join(parts)
        label = labels.get(_key(parts), b"").strip()
        if labels and not (label.isdigit() and int(label) < 2**31):
            raise ValueError(f"{path}: {name!r} needs the number of its class in a {_LABEL} beside it, got {label!r}")
        if not labels and len(parts) != 2:
            raise ValueError(f"{path} holds {name!r}, not <class>/<picture>: pack it anew, from inside")
        own = (str(int(label)), name) if labels else parts
        rows.append((*own, shard, offset, size, 0, False, bool(labels)))
    return rows


def _key(parts: list[str]) -> str:
    """Returns the name without the endings, which WebDataset takes from the first point on."""
    return "/".join([*parts[:-1], parts[-1].partition(".")[0]])
