"""Files that appear whole or not at all, and errors that say which file and how much room it needs."""

import contextlib
import errno
import fcntl
import hashlib
import os
import pathlib
import shutil
import tokenize
from collections.abc import Iterator

# Errors of NumPy's parser of the headers of .npy files.
HEADER_ERRORS = (ValueError, TypeError, SyntaxError, tokenize.TokenError, OverflowError, RecursionError)
_FULL = (errno.ENOSPC, errno.EDQUOT)


def replace_file(path: pathlib.Path, content: bytes | memoryview) -> None:
    """Writes a file so that a kill leaves either the old or the new one; of several writers the last one wins whole.

    Raises:
      OSError: the file cannot be written. Names it, and on a full disk the room needed; the old file stays whole.
    """
    new = path.with_name(f".{path.name}.{os.getpid()}")
    with naming(path, len(content)):
        try:
            with new.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
        except OSError:
            with contextlib.suppress(OSError):  # the cause that stopped the write may stop this too
                new.unlink(missing_ok=True)
            raise


def sha256_of(path: str | os.PathLike) -> str:
    """Returns the checksum of a file, 64 hex digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def locked(path: pathlib.Path, *, busy: str | None = None) -> Iterator[None]:
    """Lets one process at a time do something; the lock ends with the process, even after a crash.

    Args:
      path: of the lock.
      busy: message for a second process, which otherwise waits.

    Raises:
      ValueError: another process has the lock, and `busy` is given.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (fcntl.LOCK_NB if busy else 0))
        except BlockingIOError:
            raise ValueError(busy) from None
        yield


@contextlib.contextmanager
def naming(path: pathlib.Path, needed: int) -> Iterator[None]:
    """Makes errors of the system within it name this file, and on a full disk the `needed` bytes."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        if error.errno in _FULL:
            why = f"{why}: {room(path.parent, needed)}; make room, and the same command goes on"
        raise OSError(error.errno, why, str(path)) from error


def room(directory: pathlib.Path, needed: int) -> str:
    """The words for the room needed in a directory and the room free there."""
    return f"{size_of(needed)} are needed, {size_of(free_bytes(directory))} are free"


def free_bytes(directory: pathlib.Path) -> int:
    """The free bytes of the disk of a directory, which need not exist yet."""
    there = next(path for path in (directory, *directory.absolute().parents) if path.is_dir())
    return shutil.disk_usage(there).free


def size_of(count: int) -> str:
    """The words for a number of bytes."""
    return f"{count / 2**20:,.1f} MiB" if count >= 2**20 else f"{count / 2**10:,.1f} KiB"
