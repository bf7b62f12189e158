"""Prepares sets as array_record files without TensorFlow, from the network or from raw files that are already here."""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING

from posjax.data.parquet_images import tars_of
from posjax.data.sets import command, find_builder, is_prepared
from posjax.data.tensorflow_free import TensorFlowNeeded, without_tensorflow
from posjax.extras import install_command
from posjax.files import locked

if TYPE_CHECKING:
    from tensorflow_datasets.core import DatasetBuilder

_CIFAR10 = "cifar-10-batches-bin"


@dataclass(frozen=True)
class Prepared:
    """A prepared set: its folder, the number of examples of each split, and whether this call made it."""

    name: str
    path: pathlib.Path
    splits: dict[str, int]
    made_now: bool


def prepare(
    name: str,
    data_dir: str | os.PathLike | None = None,
    source: str | os.PathLike | None = None,
    *,
    progress: bool = False,
) -> Prepared:
    """Prepares a set; does nothing if it is prepared already.

    Args:
      name: see `posjax.data.SETS`; other TFDS sets work if they use TensorFlow only to open files.
      data_dir: directory of prepared sets; None is TFDS's default.
      source: directory that holds the raw files under their original names (TFDS compares their sha256); None downloads.
        For cifar10 it may instead hold the unpacked folder `cifar-10-batches-bin`. For "folder" it holds parquet shards of
        pictures, which become tars in `data_dir`, see `posjax.data.parquet_images.tars_of`.
      progress: whether TFDS shows its progress bars on stderr.

    Raises:
      ValueError: no such set, a raw file that is not the published one, or a builder that needs a missing package.
      FileNotFoundError: raw files are missing in `source`.
      ConnectionError: the network, which has the raw files, does not answer.
    """
    if name == "folder" and source is not None and data_dir is not None:
        made = tars_of(pathlib.Path(source), pathlib.Path(data_dir))
        return Prepared(name, pathlib.Path(data_dir), {path.name: count for path, count in made.items()}, bool(made))
    builder = find_builder(name, data_dir)
    made_now = False
    if not is_prepared(builder):
        with locked(_downloads(builder) / f"{name.replace('/', '-')}.lock"):
            builder = find_builder(name, data_dir)  # another process may have made it while this one waited
            made_now = not is_prepared(builder)
            if made_now:
                _prepare(builder, name, data_dir, source, progress)
    splits = {str(split): info.num_examples for split, info in builder.info.splits.items()}
    return Prepared(name, pathlib.Path(builder.data_path), splits, made_now)


def _downloads(builder: DatasetBuilder) -> pathlib.Path:
    return pathlib.Path(builder.data_dir_root, "downloads")


def _prepare(builder: DatasetBuilder, name: str, data_dir, source, progress: bool) -> None:
    root = _downloads(builder)
    if source is not None and name == "cifar10" and (folder := _unpacked(pathlib.Path(source).absolute())):
        # TFDS would fetch and unpack an archive here; give it the unpacked folder instead.
        manager = SimpleNamespace(downloaded_size=0, download_and_extract=lambda url: str(folder.parent))
        builder._make_download_manager = lambda **_: manager
    elif builder.MANUAL_DOWNLOAD_INSTRUCTIONS:  # a licence must be signed before the download
        if source is None or not pathlib.Path(source).is_dir():
            instructions = " ".join(builder.MANUAL_DOWNLOAD_INSTRUCTIONS.split())
            again = command(name, data_dir, source="DIR")
            raise FileNotFoundError(f"{name} has to be fetched by hand ({instructions}), then: {again}")
    elif source is not None:
        check_raw_files(builder, name, pathlib.Path(source))
    else:
        source = root / "manual" / builder.name
    # TFDS finds earlier unpacked files by name only, and MNIST's files are named like Fashion-MNIST's.
    with tempfile.TemporaryDirectory(prefix=f"{builder.name}-", dir=root) as extracted:
        run_builder(builder, name, data_dir, source, extracted, progress)


def _unpacked(source: pathlib.Path) -> pathlib.Path | None:
    """Returns the folder of CIFAR-10's binary batches, `source` itself or a folder in it, or None."""
    folders = (source, source / _CIFAR10)
    return next((folder for folder in folders if folder.name == _CIFAR10 and folder.is_dir()), None)


def run_builder(builder: DatasetBuilder, name: str, data_dir, source, extracted, progress: bool) -> None:
    import tensorflow_datasets as tfds
    from requests.exceptions import RequestException
    from tensorflow_datasets.core.download import extractor
    from tensorflow_datasets.core.download.download_manager import NonMatchingChecksumError
    from tensorflow_datasets.core.download.util import DownloadError

    config = tfds.download.DownloadConfig(manual_dir=source, extract_dir=extracted, try_download_gcs=False)
    try:
        with without_tensorflow(), _quiet(progress):
            builder.download_and_prepare(
                download_dir=_downloads(builder), download_config=config, file_format="array_record"
            )
    except (TensorFlowNeeded, ImportError) as error:
        raise _not_installed(name, error) from error
    except extractor.ExtractError as error:
        if isinstance(error.__cause__, TensorFlowNeeded):
            raise _not_installed(name, error.__cause__) from error
        raise ValueError(f"cannot unpack the raw files of {name}: {error}") from error
    except NonMatchingChecksumError as error:
        raise ValueError(f"a raw file of {name} is not the published one: {' '.join(str(error).split())}") from error
    except (DownloadError, RequestException) as error:
        again = command(name, data_dir, source="DIR")
        raise ConnectionError(f"no download of {name} ({error}): retry, or fetch it elsewhere: {again}") from error


def _not_installed(name: str, error: TensorFlowNeeded | ImportError) -> ValueError:
    module = getattr(error, "name", None) if isinstance(error, ImportError) else "tensorflow"
    mend = install_command(module or "tensorflow") or f"pip install {module}"
    return ValueError(f"the builder of {name!r} needs a missing package ({error}): {mend}")


@contextlib.contextmanager
def _quiet(progress: bool) -> Iterator[None]:
    """Silences the two lines that TFDS prints, and its progress bars unless `progress`."""
    from tensorflow_datasets.core.utils import tqdm_utils

    before = tqdm_utils._active
    tqdm_utils.display_progress_bar(progress)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        tqdm_utils.display_progress_bar(before)


def check_raw_files(builder: DatasetBuilder, name: str, source: pathlib.Path) -> None:
    """Checks that every raw file exists before anything is written; TFDS compares their sha256."""
    if not source.is_dir():
        raise FileNotFoundError(f"--from={source} is not a directory")
    named = [(url, info.filename) for url, info in (builder.url_infos or {}).items() if info.filename]
    missing = [f"{file} ({url})" for url, file in named if not (source / file).is_file()]
    if missing:
        raise FileNotFoundError(f"raw files of {name} are missing in {source}: {', '.join(missing)}")
