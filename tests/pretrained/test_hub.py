"""Names of the hub in place of paths: a cache laid out by hand, without a network."""

import shutil

import jax
import numpy as np
import pytest
from goldens.language_cases import written

from posjax import pretrained
from posjax.describe.explain.turning import model_of
from posjax.hub import local
from posjax.training.initial import Start

NAME, COMMIT = "somebody/small-llama", "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache with one model; as a user's in which it was downloaded."""
    constants = pytest.importorskip("huggingface_hub.constants", reason="the extra hub is not installed")
    model = tmp_path / "hub" / "models--somebody--small-llama"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text(COMMIT)
    (model / "snapshots").mkdir()
    folder = written("llama", model / "snapshots" / COMMIT)
    (folder / "tokenizer.json").write_text("{}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    return folder


def test_a_name_is_the_folder_in_the_cache(cache):
    assert local(NAME).samefile(cache)
    (model, params), (same, others) = pretrained.load(NAME), pretrained.load(cache)
    assert model == same
    assert jax.tree.all(jax.tree.map(np.array_equal, params, others))
    start = Start(NAME)
    assert start.model == model
    assert start.tokenizer == str(local(NAME) / "tokenizer.json")
    assert model_of(NAME).depth == model.depth


def test_a_folder_of_that_name_comes_first(cache, tmp_path):
    shutil.copytree(cache, tmp_path / NAME)
    assert local(NAME).samefile(tmp_path / NAME)


@pytest.mark.parametrize("name", ["somebody/other", "runs/decoder"])
def test_a_name_that_is_nowhere_is_one_line(name, cache):
    with pytest.raises(
        FileNotFoundError, match=f"there is no file or folder '{name}', and the hub does not"
    ) as refused:
        pretrained.load(name)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("path", ["a/b/c", "weights.npz", "x/model.safetensors", "/tmp/nothing-here"])
def test_paths_are_left_alone(path):
    assert str(local(path)) == path
