"""Texts become shards of tokens, once: by several processes, and after a kill from the shards on that are whole."""

import hashlib
import itertools
import json
import multiprocessing
import os
import pathlib
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, NamedTuple

import numpy as np

from posjax.data.documents import text_files
from posjax.data.text_files import read_texts
from posjax.data.token_shards import HEADER_BYTES, INDEX, header, open_shard, read_index, starts_path, write_starts
from posjax.data.tokens import FILE, Tokenizer, load_tokenizer
from posjax.files import naming, replace_file
from posjax.jsonl import parse_json

SHARD = 2**29  # bytes of text in a shard: some 250 MB of tokens. A kill loses no more of each process
BATCH = 2**20  # bytes of text that a thread encodes at once
GROUP = 2**28  # bytes of files that are read one after another into the same shards
_EVERY = 0.5  # seconds between reports

Report = Callable[[int], Any]  # called with bytes that were read since


class _Group(NamedTuple):
    """Files that one process reads into shards <stem>_000.bin, <stem>_001.bin, ..."""

    stem: str
    paths: tuple[pathlib.Path, ...]


class Tokenised(NamedTuple):
    """Numbers of shards, documents and tokens in a folder, and the digest of all of them."""

    shards: int
    documents: int
    tokens: int
    digest: str


def tokenise(
    files: str,
    out: pathlib.Path,
    tokenizer: str,
    field: str = "text",
    *,
    processes: int | None = None,
    begin: Callable[[int], Callable[[int], Any]] = lambda total: lambda read: None,
) -> Tokenised:
    """Writes the tokens of text files as shards that `data.files=out` reads; the same call again goes on where it was.

    The stream is that of `load_stream(files=files, tokenizer=tokenizer)`. A split that files name is in the names of the
    shards too.

    Args:
      files, field: as in `load_documents`.
      out: the folder, which is made.
      tokenizer: as in `load_tokenizer`. A tokenizer.json is copied into the folder.
      processes: number of processes; None: one for each core. Their threads use all cores.
      begin: called with the bytes of all files; returns a function that is called with bytes that were read since.

    Raises:
      ValueError: no text; a file that cannot be read; the folder holds tokens of other files or of another tokenizer.
    """
    made = load_tokenizer(tokenizer)
    found = text_files(files)
    sources = [[path.name, path.stat().st_size] for path, _ in found]
    about = {"tokenizer": made.digest, "name": made.name, "vocab_size": made.vocab_size, "bos": list(made.bos)}
    about |= {"field": field, "sources": sources}
    if whole := _begin(out, about):
        return whole
    if made.rust is not None and made.name.endswith(".json"):
        replace_file(out / FILE, pathlib.Path(made.name).read_bytes())
    groups = _groups(found)
    left = [group for group in groups if not _record(out, group).exists()]
    advance = begin(sum(size for _, size in sources))
    advance(sum(path.stat().st_size for group in groups if group not in left for path in group.paths))
    cores = len(os.sched_getaffinity(0))
    if (count := min(processes or cores, len(left))) <= 1:
        for group in left:
            _write_group(group, out, made, field, cores, advance)
    else:
        _in_processes(left, (out, tokenizer, field, -(-2 * cores // count)), count, advance)
    return _end(out, about, groups)


def _begin(out: pathlib.Path, about: dict[str, Any]) -> Tokenised | None:
    """Writes the index of a folder without shards; returns the numbers of one that is finished."""
    for left in out.glob(".*.bin.*"):  # of processes that were killed
        left.unlink()
    index = out / INDEX
    if not index.exists() or not any(out.glob("[!.]*.bin")):
        out.mkdir(parents=True, exist_ok=True)
        for record in out.glob(".*.json"):
            record.unlink()
        replace_file(index, json.dumps(about | {"shards": None}).encode())
        return None
    before = read_index(index)
    if differ := [name for name, value in about.items() if name != "name" and before.get(name) != value]:
        raise ValueError(f"the tokens in {out} differ in their {differ[0]}: give another --out, or remove it")
    return None if before["shards"] is None else _numbers(before)


def _end(out: pathlib.Path, about: dict[str, Any], groups: Sequence[_Group]) -> Tokenised:
    """Writes the index of all shards and removes the records of the groups."""
    records = [_record(out, group) for group in groups]
    shards: dict[str, Any] = {}
    for path in records:
        shards |= parse_json(path.read_bytes(), path)
    if not shards:
        raise ValueError(f"the {len(about['sources'])} files hold no text")
    about = about | {"shards": shards}
    replace_file(out / INDEX, json.dumps(about, indent=1).encode())
    for path in records:
        path.unlink()
    return _numbers(about)


def _numbers(about: dict[str, Any]) -> Tokenised:
    shards = about["shards"].values()
    digest = hashlib.sha256("".join(each["sha256"] for each in shards).encode()).hexdigest()[:12]
    return Tokenised(len(shards), *(sum(each[name] for each in shards) for name in ("documents", "tokens")), digest)


def _groups(found: Iterable[tuple[pathlib.Path, str | None]]) -> list[_Group]:
    """Returns the files of each split in groups that are large enough for a process."""
    groups, by_split = [], {}
    for path, split in found:
        by_split.setdefault(split, []).append(path)
    for split, paths in by_split.items():
        before = itertools.accumulate((path.stat().st_size for path in paths[:-1]), initial=0)
        pairs = zip(before, paths, strict=True)
        for _, group in itertools.groupby(pairs, lambda pair: pair[0] // GROUP):
            stem = f"{split}__{len(groups):05d}" if split else f"tokens_{len(groups):05d}"
            groups.append(_Group(stem, tuple(path for _, path in group)))
    return groups


def _record(out: pathlib.Path, group: _Group) -> pathlib.Path:
    return out / f".{group.stem}.json"


def _write_group(
    group: _Group, out: pathlib.Path, tokenizer: Tokenizer, field: str, threads: int, report: Report
) -> None:
    """Writes the shards of a group that are not there, then its record."""
    shards, texts = {}, _sized(group.paths, field, report)
    for number, part in itertools.groupby(texts, lambda pair: pair[0] // SHARD):
        path = out / f"{group.stem}_{number:03d}.bin"
        if not path.exists():  # groupby skips the rest of a part
            _write_shard(path, (text for _, text in part), tokenizer, threads)
        if path.exists():  # not if all texts of it were empty
            _, tokens = open_shard(path)
            documents = len(np.load(starts_path(path), "r", allow_pickle=False))
            digest = hashlib.sha256(tokens.data).hexdigest()
            shards[path.name] = {"tokens": len(tokens), "documents": documents, "sha256": digest}
    replace_file(_record(out, group), json.dumps(shards).encode())


def _sized(paths: Sequence[pathlib.Path], field: str, report: Report) -> Iterator[tuple[int, bytes]]:
    """Yields each text of files, with the bytes of all texts before it."""
    before, unsaid = 0, 0
    for path in paths:
        told = 0
        for _, text, read in read_texts(path, field):
            yield before, text
            before, unsaid = before + len(text), unsaid + len(text)
            if unsaid >= BATCH:
                report(read - told)
                told, unsaid = read, 0
        report(path.stat().st_size - told)


def _write_shard(path: pathlib.Path, texts: Iterator[bytes], tokenizer: Tokenizer, threads: int) -> None:
    """Writes a shard and the starts of its documents; it has its name only when it is whole."""
    dtype = np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32
    new, starts, count = path.with_name(f".{path.name}.{os.getpid()}"), [], 0
    bos = np.array(tokenizer.bos, dtype)
    with naming(path, SHARD // 2), new.open("wb") as file:
        file.seek(HEADER_BYTES)
        for batch in _batches(texts, BATCH * threads):
            for each in filter(len, tokenizer.encode(batch)):
                starts.append(count)
                count += file.write(np.concatenate([bos, each.astype(dtype)]).data) // bos.itemsize
        file.seek(0)
        file.write(header(count, dtype))
        file.flush()
        os.fsync(file.fileno())
    if not count:
        new.unlink()
        return
    write_starts(path, np.array(starts, np.int64))
    new.replace(path)


def _batches(texts: Iterator[bytes], most: int) -> Iterator[list[bytes]]:
    """Yields texts of `most` bytes together, so that every thread has some to encode."""
    batch, size = [], 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= most:
            yield batch
            batch, size = [], 0
    yield batch


class Stopped(Exception):
    """The first process is at its end."""


_worker: dict[str, Any] = {}  # of a process of `_in_processes`


def _in_processes(groups: Sequence[_Group], given: tuple, count: int, advance: Callable) -> None:
    """Writes groups in several processes, and reports the bytes that they read."""
    spawn = multiprocessing.get_context("spawn")  # jax has threads, which a fork would leave behind
    read, stop, told = spawn.Value("q", 0), spawn.Event(), 0
    with ProcessPoolExecutor(count, spawn, _begin_worker, (*given, read, stop)) as pool:
        waiting = {pool.submit(_in_worker, group) for group in groups}
        try:
            while waiting:
                done, waiting = wait(waiting, _EVERY, FIRST_EXCEPTION)
                advance(read.value - told)
                told = read.value
                for each in done:
                    each.result()
        except BrokenProcessPool:
            raise ValueError("a process was killed, perhaps for its memory: go on with fewer --processes") from None
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


def _begin_worker(out: pathlib.Path, tokenizer: str, field: str, threads: int, read: Any, stop: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process stops the others
    os.environ["RAYON_NUM_THREADS"] = str(threads)  # read when the first texts are encoded
    _worker.update(out=out, tokenizer=load_tokenizer(tokenizer), field=field, threads=threads, read=read, stop=stop)


def _in_worker(group: _Group) -> None:
    def report(read: int) -> None:
        with _worker["read"].get_lock():
            _worker["read"].value += read
        if _worker["stop"].is_set() or not multiprocessing.parent_process().is_alive():
            raise Stopped

    _write_group(group, *(_worker[name] for name in ("out", "tokenizer", "field", "threads")), report)
