"""A checkpoint with damaged files is passed over: a restored tree is exactly a saved one."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax.training.checkpoints import CheckpointError, Checkpoints

REPO = pathlib.Path(__file__).parents[2]


def small(step=0):
    return {"w": jax.random.normal(jax.random.key(step), (40,)), "step": step}


def assert_is(step, tree):
    assert tree["step"] == step
    np.testing.assert_array_equal(tree["w"], small(step)["w"])


@pytest.fixture(scope="module")
def two_steps(tmp_path_factory):
    directory = tmp_path_factory.mktemp("two")
    with Checkpoints(directory) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, small(step))
    return directory


@pytest.fixture
def copy(two_steps, tmp_path):
    return pathlib.Path(shutil.copytree(two_steps, tmp_path / "copy"))


FILES = ("record/record.json", "record/seal.json", "tree/_METADATA", "tree/_sharding", "tree/manifest.ocdbt")


def damage(path, how):
    content = bytearray(path.read_bytes())
    if how == "deleted":
        return path.unlink()
    if how == "flipped":
        content[len(content) // 2] ^= 4
    return path.write_bytes(content[: len(content) // 2] if how == "truncated" else content)


@pytest.mark.parametrize("how", ["flipped", "truncated", "deleted"])
def test_damage_to_any_file_is_found_or_harmless(copy, how, warnings, two_steps):
    directory = copy / "2"
    files = [path for path in directory.rglob("*") if path.is_file() and path.stat().st_size]
    assert {str(path.relative_to(directory)) for path in files} > set(FILES)
    found_in = set()
    for path in files:
        warnings.clear()
        damage(path, how)
        with Checkpoints(copy) as checkpoints:
            step, tree = checkpoints.restore(small())
        assert_is(step, tree)
        name = str(path.relative_to(directory))
        if step == 1:
            assert len(warnings) == 1
            assert "checkpoint 2 in" in warnings[0]
            # A flip in the seal accuses the file that the flipped line is about.
            assert name in warnings[0] or (name, how) == ("record/seal.json", "flipped")
            found_in.add(name)
        path.parent.mkdir(exist_ok=True)
        shutil.copy(two_steps / "2" / name, path)
    missed = {str(path.relative_to(directory)) for path in files} - found_in
    assert missed <= {"_CHECKPOINT_METADATA", "commit_success.txt", "record/commit_success.txt"}


def test_every_single_bit_of_the_record_and_the_seal_counts(copy):
    for name in ("record.json", "seal.json"):
        path = copy / "2" / "record" / name
        content = path.read_bytes()
        for index in range(0, len(content), 13):
            changed = bytearray(content)
            changed[index] ^= 1 << (index % 8)
            path.write_bytes(changed)
            step, tree = Checkpoints(copy).restore(small())
            assert_is(step, tree)
            # White space in the seal is the only thing that carries nothing.
            assert step == 1 or (name == "seal.json" and content[index : index + 1].isspace())
        path.write_bytes(content)


def test_sound_files_of_other_values_are_damage(copy, warnings):
    """Orbax reads them without complaint; the seal is of others."""
    with Checkpoints(copy.parent / "other") as checkpoints:
        checkpoints.save(2, small(3) | {"step": 2})
    shutil.rmtree(copy / "2" / "tree")
    shutil.copytree(copy.parent / "other" / "2" / "tree", copy / "2" / "tree")
    assert Checkpoints(copy).restore(small())[0] == 1
    assert "checkpoint 2 in" in warnings[0]


def test_a_tree_without_a_manifest_is_no_step(copy, tmp_path, monkeypatch, capfd):
    """Orbax leaves it out where it reads a path as a pattern, and reads it again with pages of "Event loop is closed"."""
    (copy / "2" / "tree" / "manifest.ocdbt").unlink()
    seal = copy / "2" / "record" / "seal.json"
    kept = {name: digest for name, digest in json.loads(seal.read_text()).items() if name != "tree/manifest.ocdbt"}
    seal.write_text(json.dumps(kept))
    assert Checkpoints(copy).restore(small())[0] == 1
    assert "Event loop" not in capfd.readouterr().err
    (tmp_path / "y[1]").mkdir()
    monkeypatch.setattr(tempfile, "TemporaryDirectory", lambda **_: contextlib.nullcontext(tmp_path / "y[1]"))
    refused = pytest.raises(CheckpointError, match=r"step 1 could not be saved in .*x\[1\]")
    with refused, Checkpoints(tmp_path / "x[1]") as checkpoints:
        checkpoints.save(1, small(1))
    assert Checkpoints(tmp_path / "x[1]").steps() == []


def test_a_run_goes_on_after_damage_and_nothing_is_deleted(copy, warnings):
    damage(copy / "2" / "tree" / "manifest.ocdbt", "truncated")
    with Checkpoints(copy) as checkpoints:
        assert checkpoints.restore(small())[0] == 1
        checkpoints.save(2, small(2))
        assert checkpoints.restore(small())[0] == 2
        assert checkpoints.steps() == [1, 2]
    assert len(list(copy.glob("damaged-2-*"))) == 1


def test_never_starts_afresh_when_every_checkpoint_is_damaged(copy):
    for step in (1, 2):
        damage(copy / str(step) / "record" / "record.json", "deleted")
    with pytest.raises(CheckpointError, match=r"no usable checkpoint in .*step 2: .*step 1: .*record.json.*afresh"):
        Checkpoints(copy).restore(small())
    with pytest.raises(CheckpointError, match="no usable checkpoint"):
        Checkpoints(copy).restore(small(), step=1)


SAVE_FOREVER = """
import sys
import jax
from posjax.training.checkpoints import Checkpoints
checkpoints = Checkpoints(sys.argv[1], keep_last=2)
tree = {"w": jax.random.normal(jax.random.key(0), (200_000,)), "step": 0}
found = checkpoints.restore(tree)
start = 0 if found is None else found[0]
assert found is None or found[1]["step"] == start
print("ready", flush=True)
for step in range(start + 1, start + 10_000):
    checkpoints.save(step, {"w": tree["w"] + step, "step": step})
"""


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_a_directory_that_restores(tmp_path):
    last = 0
    # Saves follow each other without a pause, so that any moment is a bad one.
    for milliseconds in (40, 130, 310, 470):
        command = [sys.executable, "-c", SAVE_FOREVER, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=REPO, text=True) as process:
            assert process.stdout.readline() == "ready\n"
            time.sleep(milliseconds / 1000)
            os.kill(process.pid, signal.SIGKILL)
        abstract = {"w": jax.ShapeDtypeStruct((200_000,), jnp.float32), "step": 0}
        found = Checkpoints(tmp_path).restore(abstract)
        if found is not None:
            step, tree = found
            assert tree["step"] == step >= last
            w = jax.random.normal(jax.random.key(0), (200_000,))
            np.testing.assert_array_equal(tree["w"], w + step)
            last = step
    assert last > 0
    (tmp_path / "99.orbax-checkpoint-tmp").mkdir()
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(last + 1, tree)
    assert not list(tmp_path.glob("*tmp*"))
