"""The downloadable sets, really prepared from raw files that are already here, and compared with those files."""

import gzip
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from posjax import data

RAW = pathlib.Path(
    os.environ.get("POSJAX_RAW_DATA", pathlib.Path(__file__).parents[2].resolve().parent / "shared/data")
)

pytestmark = pytest.mark.slow


def raw(name):
    if not (RAW / name).is_dir():
        pytest.skip(f"no raw files of {name}: $POSJAX_RAW_DATA/{name} is not there")
    return RAW / name


def assert_same_examples(images, pixels, labels):
    """The set holds exactly these examples; TFDS shuffles them once while writing."""

    def as_sorted_rows(pixels, labels):
        rows = np.column_stack([pixels.reshape(len(labels), -1), labels.astype(np.uint8)])
        return np.sort(rows.view(f"V{rows.shape[1]}"), axis=0)

    assert (as_sorted_rows(images.image, images.label) == as_sorted_rows(pixels, labels)).all()


@pytest.mark.thorough
def test_fashion_mnist_in_spite_of_mnist_files_that_were_unpacked_before(tmp_path):
    source = raw("fashion_mnist")
    for kind in ("images-idx3", "labels-idx1"):
        for part in ("train", "t10k"):
            decoy = tmp_path / "downloads" / "extracted" / f"GZIP.{part}-{kind}-ubyte.gz"
            decoy.parent.mkdir(parents=True, exist_ok=True)
            decoy.write_bytes(bytes(16 + 60000 * 784))
    done = data.prepare("fashion_mnist", tmp_path, source)
    assert done.made_now
    assert done.splits == {"train": 60000, "test": 10000}
    assert not data.prepare("fashion_mnist", tmp_path).made_now
    test = data.load_images("fashion_mnist", "test", tmp_path)
    assert (test.image.shape, test.num_classes, test.digest) == ((10000, 28, 28, 1), 10, "5f23e171ccde")
    pixels = np.frombuffer(gzip.decompress((source / "t10k-images-idx3-ubyte.gz").read_bytes()), np.uint8, offset=16)
    labels = np.frombuffer(gzip.decompress((source / "t10k-labels-idx1-ubyte.gz").read_bytes()), np.uint8, offset=8)
    assert_same_examples(test, pixels.reshape(10000, -1), labels)


def test_tiny_shakespeare(tmp_path):
    source = raw("tinyshakespeare")
    data.prepare("tiny_shakespeare", tmp_path, source)
    parts = [data.load_text("tiny_shakespeare", split, tmp_path) for split in ("train", "validation", "test")]
    assert all(part.starts.tolist() == [0] for part in parts)
    assert b"".join(part.tokens.tobytes() for part in parts) == (source / "input.txt").read_bytes()


@pytest.mark.thorough
def test_cifar10_from_an_unpacked_folder(tmp_path):
    source = raw("cifar10")
    if not (source / "cifar-10-batches-bin").is_dir():
        if not (RAW / "unpack.py").exists():
            pytest.skip(f"{source} holds no cifar-10-batches-bin")
        unpack = [sys.executable, RAW / "unpack.py", "cifar10", tmp_path, "--binary"]
        subprocess.run(unpack, check=True)
        source = tmp_path
    data.prepare("cifar10", tmp_path / "sets", source)
    test = data.load_images("cifar10", "test", tmp_path / "sets")
    assert (test.image.shape, test.num_classes, test.digest) == ((10000, 32, 32, 3), 10, "1da19d752f9f")
    rows = np.frombuffer((source / "cifar-10-batches-bin" / "test_batch.bin").read_bytes(), np.uint8).reshape(-1, 3073)
    pixels = rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1).reshape(len(rows), -1)
    assert_same_examples(test, pixels, rows[:, 0])
