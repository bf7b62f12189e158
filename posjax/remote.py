"""Buckets: data and workdirs at addresses such as s3://bucket/run and gs://bucket/texts.

Programs see folders of this machine alone. `local_copy` downloads data once. `mirrored` gives a folder for a workdir and
uploads its changes; the bucket is the truth, and a start reads the folder anew from it. Both reach every store that fsspec
reaches. Its packages find endpoints and credentials for themselves, as in AWS_ENDPOINT_URL.

A save is whole once its seal is in the bucket: the seal is the last object of a save that is written and the first that is
removed, and a start passes over saves without one. So a kill between any two writes loses no save that was whole.

    $POSJAX_CACHE (~/.cache/posjax)/data/<digest>/...       copies of data; the digest is of names, sizes and versions
    $POSJAX_CACHE (~/.cache/posjax)/workdirs/s3/bucket/run  the folder of a workdir
"""

import contextlib
import errno
import functools
import hashlib
import importlib
import json
import logging
import os
import pathlib
import re
import shutil
import threading
from collections.abc import Iterator
from glob import has_magic
from typing import Any

from posjax.extras import require
from posjax.files import free_bytes, locked, room, size_of

_log = logging.getLogger(__name__)
_ADDRESS = re.compile(r"(\w[\w+.-]*)://")
# By scheme: the package that fsspec needs, and its errors that are no OSError.
PACKAGES = {
    "s3": ("s3fs", [("botocore.exceptions", "BotoCoreError")]),
    "gs": ("gcsfs", [("gcsfs.retry", "HttpError"), ("google.auth.exceptions", "GoogleAuthError")]),
}
_AT_ONCE = 8  # files of a workdir that are sent together: of a large one, s3fs holds 500 MB
_VERSIONS = ("ETag", "md5Hash", "etag", "mtime", "created")  # fields by which stores tell versions of an object
_UNFINISHED = re.compile(r"\.orbax-checkpoint-tmp[^/]*")  # in names of a save that has no final name yet
_STEP = re.compile(r"((?:.*/)?checkpoints/)(\d+)/")  # beginning of the name of a file of a save
_SEAL = "record/seal.json"  # of a step, see `posjax.training.checkpoints`


def is_remote(path: str | os.PathLike) -> bool:
    """Says whether a path is an address in a bucket."""
    return _ADDRESS.match(os.fspath(path)) is not None


@functools.cache
def local_copy(path: str) -> str:
    """Returns a path as it is, or that of a copy on this machine if it is an address.

    Each state of the objects (names, sizes, versions) is copied once; all readers of a process see the first that it met.

    Args:
      path: a folder or file, also an address of one, or a glob of addresses.

    Raises:
      FileNotFoundError: there is nothing at the address.
      ValueError: no package knows the scheme; a name leads out of the folder.
      ImportError: the package of the scheme is not installed.
      OSError: the store does not answer, or refuses; the disk has no room.
    """
    if not is_remote(path):
        return path
    files, root = _opened(path)
    with _naming(path):
        objects = files.find(root, detail=True) or files.glob(root, detail=True)
    objects = {key: about for key, about in objects.items() if about["type"] == "file"}
    if not objects:
        raise FileNotFoundError(errno.ENOENT, "there is nothing at this address", path)
    parts = root.split("/")
    plain = parts if root in objects or not has_magic(root) else parts[: [*map(has_magic, parts)].index(True)]
    names = _names(objects, "/".join(plain[:-1]), path)
    versions = {key: next((str(has[field]) for field in _VERSIONS if field in has), "") for key, has in objects.items()}
    about = [[name, objects[key]["size"], versions[key]] for name, key in sorted(names.items())]
    folder = _cache() / "data" / hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]
    if not folder.exists():
        _download(files, {name: (key, objects[key]["size"]) for name, key in names.items()}, folder, path)
    return os.path.join(folder, *parts[len(plain) - 1 :])


def _download(files: Any, names: dict[str, tuple[str, int]], folder: pathlib.Path, address: str) -> None:
    """Copies objects into a folder, which gets its name once all are there; a download that was killed goes on."""
    from fsspec.callbacks import TqdmCallback

    part = folder.with_name(f"{folder.name}.part")
    part.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(f".{folder.name}.lock")):
        if folder.exists():  # made by another process while this one waited
            return

        def left() -> dict[str, tuple[str, int]]:
            sizes = {name: (part / name).stat().st_size if (part / name).is_file() else -1 for name in names}
            return {name: (key, size) for name, (key, size) in names.items() if sizes[name] != size}

        needed = sum(size for _, size in left().values())
        if free_bytes(part) < needed:
            raise OSError(errno.ENOSPC, f"the disk is full: {room(part, needed)}", str(part))
        _log.warning("%s: %d files, %s, are copied to %s, once", address, len(left()), size_of(needed), folder)
        bar = TqdmCallback(tqdm_kwargs=dict(desc=address, unit="file", disable=None, delay=1))
        with _naming(address):
            files.get([key for key, _ in left().values()], [str(part / name) for name in left()], callback=bar)
        if short := left():
            raise OSError(errno.EIO, f"{min(short)} changed while it was copied: run it again", address)
        part.rename(folder)


class Mirror:
    """A folder of this machine whose changes go to a workdir in a bucket.

    Args:
      address: of the workdir.
      folder: which nobody else uses.

    Attributes:
      failed: whether a `push` has failed, so that the folder has changes that the bucket lacks.
    """

    def __init__(self, address: str, folder: pathlib.Path):
        self.folder, self.failed, self._address = folder, False, address
        self._files, self._root = _opened(address)
        self._files.batch_size = _AT_ONCE
        self._known: dict[str, tuple[int, int]] = {}  # of the objects that are in the bucket by this process
        self._alone = threading.Lock()

    def pull(self) -> None:
        """Makes the folder what the bucket holds, without saves that are not whole."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        with _naming(self._address):
            objects = self._files.find(self._root, detail=True)
            objects = {key: about for key, about in objects.items() if about["type"] == "file"}
            names = _names(objects, self._root, self._address)
            names, left_over = _sorted_out(names)
            needed = sum(objects[key]["size"] for key in names.values())
            if free_bytes(self.folder) < needed:
                raise OSError(errno.ENOSPC, f"the disk is full: {room(self.folder, needed)}", str(self.folder))
            self._files.get([*names.values()], [str(self.folder / name) for name in names])
        self._known = {name: _state(self.folder / name) for name in names} | dict.fromkeys(left_over, (0, 0))
        _log.warning("%s is mirrored in %s: %d files, %s", self._address, self.folder, len(names), size_of(needed))

    def push(self, sealed: pathlib.Path | None = None) -> None:
        """Uploads the files that changed since the last time, seals last; removes objects whose files are gone, seals first.

        Objects of other writers stay: other parts of a study may be at work.

        Args:
          sealed: folder of a save that has its seal, but not yet its final name.

        Raises:
          OSError: the store does not answer, or refuses.
        """
        with self._alone, _naming(self._address):
            self.failed = True
            paths = {_UNFINISHED.sub("", name): path for name, path in self._there(sealed)}
            states = {name: _state(path) for name, path in paths.items()}
            changed = [name for name in states if self._known.get(name) != states[name]]
            for step in {_step_of(name) for name in changed} - {""}:
                if step + _SEAL in changed:  # a new save: removes what a kill left of an earlier try
                    with contextlib.suppress(FileNotFoundError):
                        self._files.rm(f"{self._root}/{step}".rstrip("/"), recursive=True)
            for names in _by_seal(changed):
                self._files.put([str(paths[name]) for name in names], [f"{self._root}/{name}" for name in names])
            for names in reversed(_by_seal(sorted(self._known.keys() - states.keys()))):
                self._files.rm([f"{self._root}/{name}" for name in names])
            self._known, self.failed = states, False

    def _there(self, sealed: pathlib.Path | None) -> Iterator[tuple[str, pathlib.Path]]:
        """Yields (name, path) of every file; hidden ones, but for .lock, are of this machine alone."""
        for path in self.folder.rglob("*"):
            unfinished = _UNFINISHED.search(str(path)) and not (sealed and path.is_relative_to(sealed))
            hidden = path.name.startswith(".") and path.name != ".lock"
            if not unfinished and not hidden and path.is_file():
                yield path.relative_to(self.folder).as_posix(), path


_mirrors: list[Mirror] = []  # of this process


def folder_of(address: str, own: str = "") -> pathlib.Path:
    """Returns the folder of this machine for a workdir in a bucket; see `mirrored`."""
    scheme, _, rest = address.partition("://")
    return pathlib.Path(_cache() / "workdirs" / own / scheme, *_parts(rest, address))


@contextlib.contextmanager
def mirrored(address: str, own: str = "") -> Iterator[pathlib.Path]:
    """Yields the folder of a workdir in a bucket; its changes are there at the end, and at each `publish`.

    Args:
      address: of the workdir.
      own: name of this work among works of this machine on the same address; each has its folder.

    Raises:
      ValueError: another process of this machine is at work there; otherwise as `local_copy`.
    """
    folder = folder_of(address, own)
    mirror = Mirror(address, folder)
    with locked(folder.with_name(f".{folder.name}.lock"), busy=f"another process is at work in {address}"):
        mirror.pull()
        _mirrors.append(mirror)
        try:
            yield folder
        finally:
            _mirrors.remove(mirror)
            if not mirror.failed:
                mirror.push()


def publish(path: pathlib.Path, sealed: pathlib.Path | None = None) -> None:
    """Uploads the changes of the mirrored workdir that holds a path, see `Mirror.push`; does nothing for other folders."""
    for mirror in _mirrors:
        if path.is_relative_to(mirror.folder):
            mirror.push(sealed)


def _cache() -> pathlib.Path:
    return pathlib.Path(os.environ.get("POSJAX_CACHE") or "~/.cache/posjax").expanduser().absolute()


def _opened(address: str) -> tuple[Any, str]:
    """Returns the file system of an address, and the address in its terms."""
    scheme = _ADDRESS.match(address)[1]
    package, _ = PACKAGES.get(scheme, (None, ()))
    require(address, "fsspec", *([package] if package else []))
    from fsspec.core import url_to_fs

    try:
        files, root = url_to_fs(address, use_listings_cache=False, skip_instance_cache=True)
    except ImportError as error:
        raise ImportError(f"{address}: {error}") from None
    except ValueError as error:
        raise ValueError(f"{address}: {error}; give s3://BUCKET/PATH or gs://BUCKET/PATH") from None
    return files, root.rstrip("/")


def _names(objects: dict[str, Any], root: str, address: str) -> dict[str, str]:
    return {"/".join(_parts(key[len(root) :], address)): key for key in objects}


def _parts(name: str, address: str) -> list[str]:
    """Returns the parts of an object's name; refuses names that would lie elsewhere on a disk."""
    parts = name.strip("/").split("/")
    if {"", ".", ".."} & {*parts}:
        raise ValueError(f"{address} holds {name!r}, which is no path of a file: give another address, or rename it")
    return parts


def _step_of(name: str) -> str:
    """Returns the part of a name up to the folder of a save, with a slash; "" outside of saves."""
    found = _STEP.match(name)
    return found[0] if found else ""


def _sorted_out(names: dict[str, str]) -> tuple[dict[str, str], list[str]]:
    """Returns the names outside of broken saves, and the names that a kill has left over.

    Left over are saves older than one that is whole; a newer one may be another process's, which is writing it.
    """
    newest: dict[str, int] = {}
    for name in names:
        if (found := _STEP.match(name)) and name == found[0] + _SEAL:
            newest[found[1]] = max(newest.get(found[1], -1), int(found[2]))
    broken = {name: step for name in names if (step := _STEP.match(name)) and step[0] + _SEAL not in names}
    left_over = [name for name, step in broken.items() if int(step[2]) < newest.get(step[1], -1)]
    return {name: key for name, key in names.items() if name not in broken}, left_over


def _by_seal(names: list[str]) -> list[list[str]]:
    seals = [name for name in names if name.endswith(_SEAL)]
    return [each for each in ([name for name in names if name not in seals], seals) if each]


def _state(path: pathlib.Path) -> tuple[int, int]:
    about = path.stat()
    return about.st_size, about.st_mtime_ns


@contextlib.contextmanager
def _naming(address: str) -> Iterator[None]:
    """Turns the errors of a store into one OSError that names the address."""
    _, named = PACKAGES.get(_ADDRESS.match(address)[1], (None, ()))
    kinds = tuple(getattr(importlib.import_module(module), name) for module, name in named)
    try:
        yield
    except (OSError, *kinds) as error:
        if getattr(error, "filename", None) is not None and not isinstance(error, FileNotFoundError | PermissionError):
            raise
        why = " ".join(str(error).split()) or type(error).__name__
        raise OSError(getattr(error, "errno", None) or errno.EIO, why, address) from error
