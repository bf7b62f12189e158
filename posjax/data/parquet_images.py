"""Packs parquet shards of pictures into tars, from which pictures are read by index.

A parquet file is read by row groups of a hundred pictures or more, compressed as one: to read one of them by index costs a
hundred times its bytes, and a cache does not help where the order is random. So each shard becomes a tar, once.
"""

from __future__ import annotations

import contextlib
import io
import pathlib
import tarfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

from posjax.data.folders import CLASSES
from posjax.extras import require
from posjax.files import replace_file
from posjax.jsonl import parse_json

if TYPE_CHECKING:
    import pyarrow.parquet

_ROWS = 64  # that are read together
_PNG = b"\x89PNG"


def tars_of(source: pathlib.Path, data_dir: pathlib.Path) -> dict[pathlib.Path, int]:
    """Writes <shard>.tar for every <shard>.parquet of a folder, as WebDataset has it: <row>.jpg beside <row>.cls.

    Shards are as `datasets` saves image sets: a column `image` of structs with `bytes`, and a column `label` of integers. The
    names of a ClassLabel are written to `posjax.data.folders.CLASSES`. A tar appears when it is whole; the same call goes on
    with the shards that are left.

    Returns:
      The number of pictures of each tar that this call wrote.

    Raises:
      ValueError: there are no shards, a shard is damaged, has other columns or names its classes otherwise than the first
        one, or a row has no picture or no label.
      ImportError: pyarrow is not installed.
    """
    shards = sorted(source.glob("*.parquet"))
    if not shards:
        raise ValueError(f"--from={source} holds no .parquet files of pictures")
    require(source.name, "pyarrow")
    data_dir.mkdir(parents=True, exist_ok=True)
    names = _names(shards[0])
    for shard in shards[1:]:
        if _names(shard) != names:
            raise ValueError(f"{shard} and {shards[0]} name their classes differently: prepare them apart")
    if names:
        replace_file(data_dir / CLASSES, "".join(f"{name}\n" for name in names).encode())
    left = [shard for shard in shards if not (data_dir / f"{shard.stem}.tar").exists()]
    return {data_dir / f"{shard.stem}.tar": _pack(shard, data_dir / f"{shard.stem}.tar") for shard in left}


@contextlib.contextmanager
def _opened(shard: pathlib.Path) -> Iterator[pyarrow.parquet.ParquetFile]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(shard) as file:
            yield file
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{shard} cannot be read as a table: {error}") from None


def _names(shard: pathlib.Path) -> tuple[str, ...]:
    """Returns the names of the classes, which `datasets` keeps in the schema, or () without such."""
    with _opened(shard) as file:
        names = parse_json((file.schema_arrow.metadata or {}).get(b"huggingface", b"{}"), shard)
    for key in ("info", "features", "label", "names"):
        names = names.get(key) if isinstance(names, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return ()
    return tuple(" ".join(name.split()) for name in names)  # a line each


def _pack(shard: pathlib.Path, path: pathlib.Path) -> int:
    part, count = path.with_name(f".{path.name}.part"), 0
    try:
        with tarfile.open(part, "w") as archive:
            for count, (content, label) in enumerate(_rows(shard), 1):
                if not content or label is None or label < 0:
                    raise ValueError(f"{shard}, row {count} has no picture, or no label: {label}")
                key = f"{shard.stem}/{count:08}".replace(".", "-")
                _add(archive, f"{key}.{'png' if content.startswith(_PNG) else 'jpg'}", content)
                _add(archive, f"{key}.cls", str(label).encode())
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)
    return count


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def _rows(shard: pathlib.Path) -> Iterator[tuple[bytes | None, int | None]]:
    import pyarrow

    with _opened(shard) as file:
        columns = {field.name: field.type for field in file.schema_arrow}
        image, label = (columns.get(name, pyarrow.null()) for name in ("image", "label"))
        has_bytes = pyarrow.types.is_struct(image) and image.get_field_index("bytes") >= 0
        if not has_bytes or not pyarrow.types.is_integer(label):
            raise ValueError(f"{shard} needs columns image, with bytes, and label, of integers; it has {[*columns]}")
        for batch in file.iter_batches(_ROWS, columns=["image", "label"]):
            batch.validate(full=True)
            for row in batch.to_pylist():
                yield (row["image"] or {}).get("bytes"), row["label"]
