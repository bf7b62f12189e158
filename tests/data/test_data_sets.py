"""The bundled sets, the cache beside them, and what a user's mistakes say."""

import importlib.util
import pydoc_data.topics
import shutil
import socket
import subprocess
import sys

import numpy as np
import pytest
from tensorflow_datasets.core.utils import lazy_imports_utils

from experiments.prepare import main
from posjax import data
from posjax.data import builders, preparing, tensorflow_free
from posjax.data.sets import find_builder


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """Holds digits and pydoc_topics, made on first use."""
    return tmp_path_factory.mktemp("sets")


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError(f"a connection was tried: {args}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_digits(data_dir):
    train, test = (data.load_images("digits", split, data_dir) for split in ("train", "test"))
    assert train.image.shape == (1433, 8, 8, 1)
    assert test.image.shape == (364, 8, 8, 1)
    assert (train.image.dtype, train.label.dtype, train.num_classes) == (np.uint8, np.int32, 10)
    assert (train.image.min(), train.image.max()) == (0, 255)
    assert np.bincount(test.label).tolist() == [36, 37, 36, 37, 37, 37, 37, 36, 35, 36]
    # The content, its split and its order are the same on every machine and Python.
    assert (train.digest, test.digest) == ("a26f1c73ceb5", "f6fd51647dc4")


def test_pydoc_topics(data_dir):
    train, validation = (data.load_text("pydoc_topics", split, data_dir) for split in ("train", "validation"))
    topics = pydoc_data.topics.topics
    documents = []
    for text in (train, validation):
        assert (text.tokens.dtype, text.starts.dtype, text.vocab_size) == (np.uint8, np.int64, 256)
        assert text.starts[0] == 0
        documents += [part.tobytes().decode() for part in np.split(text.tokens, text.starts[1:])]
    assert sorted(documents) == sorted(topics.values())
    assert 0.08 < len(validation) / (len(train) + len(validation)) <= 0.101
    assert len(validation.starts) >= 10


def test_held_out_topics_share_no_paragraph_with_the_others():
    topics = pydoc_data.topics.topics
    held = builders.held_out_topics(topics)
    assert held == builders.held_out_topics(topics)
    train, validation = (
        {p.strip() for name in names for p in topics[name].split("\n\n") if len(p) >= 100}
        for names in (set(topics) - held, held)
    )
    assert validation
    assert not train & validation


def test_cache_of_another_preparation_is_not_used(tmp_path, monkeypatch):
    folder = tmp_path / "digits" / "1.0.0"
    data.load_images("digits", "train", tmp_path)
    kept = {path.name: path.read_bytes() for path in folder.glob("posjax-train-*")}
    shutil.rmtree(tmp_path / "digits")
    table, test = builders.read_digits()
    monkeypatch.setattr(builders, "read_digits", lambda: (table[::-1], test))
    data.prepare("digits", tmp_path)
    for name, content in kept.items():
        (folder / name).write_bytes(content)
    assert data.load_images("digits", "train", tmp_path).digest != "a26f1c73ceb5"
    assert not {path.name for path in folder.glob("posjax-train-*")} & set(kept)


@pytest.mark.slow
def test_two_processes_may_prepare_at_once(tmp_path):
    program = f"from posjax import data; print(data.load_images('digits', 'test', {str(tmp_path)!r}).digest)"
    running = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) for _ in range(2)]
    assert [process.communicate(timeout=60)[0].decode().strip() for process in running] == ["f6fd51647dc4"] * 2


def test_a_set_that_is_not_there_is_named(data_dir, tmp_path):
    for load, name, split, message in (
        (data.load_images, "fashion_mnits", "train", "did you mean 'fashion_mnist'"),
        (data.load_images, "../digits", "train", "unknown data set"),
        (data.load_images, "digits", "tset", "did you mean 'test'"),
        (data.load_images, "tiny_shakespeare", "train", "load_text"),
        (data.load_text, "digits", "train", "load_images"),
    ):
        with pytest.raises(ValueError, match=message):
            load(name, split, data_dir)
    for name in ("fashion_mnist", "kmnist"):
        with pytest.raises(FileNotFoundError, match=f"experiments.prepare --name={name} --data_dir={tmp_path}"):
            data.load_images(name, "train", tmp_path)


def assert_nothing_prepared(data_dir):
    assert not list(data_dir.rglob("*.array_record*"))
    assert not list(data_dir.rglob("dataset_info.json"))


def test_missing_raw_files_are_listed_with_their_addresses(tmp_path):
    source = tmp_path / "raw"
    source.mkdir()
    (source / "train-images-idx3-ubyte.gz").touch()
    with pytest.raises(FileNotFoundError) as caught:
        data.prepare("fashion_mnist", tmp_path / "sets", source)
    message = str(caught.value)
    assert str(source) in message
    assert "train-labels-idx1-ubyte.gz (http://fashion-mnist.s3-website" in message
    assert "train-images" not in message
    with pytest.raises(FileNotFoundError, match="not a directory"):
        data.prepare("fashion_mnist", tmp_path / "sets", tmp_path / "nowhere")
    assert_nothing_prepared(tmp_path / "sets")


def test_a_corrupted_raw_file_is_refused(tmp_path):
    (tmp_path / "input.txt").write_text("Before we proceed any further, hear me speak.")
    with pytest.raises(ValueError, match=r"a raw file of tiny_shakespeare is not the published one"):
        data.prepare("tiny_shakespeare", tmp_path / "sets", tmp_path)
    assert_nothing_prepared(tmp_path / "sets")


def test_sets_that_need_more_of_tensorflow_say_so(tmp_path):
    if importlib.util.find_spec("tensorflow"):
        pytest.skip("TensorFlow is installed, so nothing is missing")
    with pytest.raises(ValueError, match=r"'pg19' needs a missing package.*pip install .*\[tf\]'"):
        data.prepare("pg19", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"imagenet2012 has to be fetched by hand.*--from=DIR"):
        data.prepare("imagenet2012", tmp_path)


def test_raw_files_of_the_same_name_are_unpacked_into_different_folders(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        preparing,
        "run_builder",
        lambda builder, name, data_dir, source, extracted, progress: seen.append((name, str(source), str(extracted))),
    )
    for name in ("mnist", "fashion_mnist"):
        data.prepare(name, tmp_path)
    (_, manual, extracted), (_, other_manual, other_extracted) = seen
    assert manual != other_manual
    assert extracted != other_extracted


def test_stand_in_comes_and_goes():
    if importlib.util.find_spec("tensorflow"):
        pytest.skip("TensorFlow is installed, so the stand-in is not used")
    lazy = lazy_imports_utils.tensorflow
    with tensorflow_free.without_tensorflow():
        assert lazy.io.gfile.exists("/")
        with pytest.raises(tensorflow_free.TensorFlowNeeded, match="constant"):
            lazy.constant(1)
        with pytest.raises(tensorflow_free.TensorFlowNeeded, match="gs://bucket"):
            lazy.io.gfile.exists("gs://bucket")
    assert "_module" not in vars(lazy)
    assert "tensorflow" not in sys.modules


def test_command_line(data_dir, capsys):
    assert main(["--list"]) == 0
    known, own = capsys.readouterr().out.split("your own, read as they are:\n")
    assert {line.split()[0] for line in known.splitlines()} == set(data.SETS)
    assert all(
        flag in own for flag in ("--config.data.name=folder --config.data.data_dir=DIR", "--config.data.files=DIR")
    )
    data.load_images("digits", "train", data_dir)
    assert main(["--name=digits", f"--data_dir={data_dir}"]) == 0
    out = capsys.readouterr().out
    assert "was prepared already" in out
    assert "1,433" in out
    assert str(find_builder("digits", data_dir).data_path) in out
    assert main(["--name=digts"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: unknown data set 'digts'; did you mean 'digits'")
    assert err.count("\n") == 1
