"""A saved tree comes back bit for bit or is passed over; a save that fails is one line, and earlier steps are whole."""

import errno
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax.training import checkpoints as module
from posjax.training.checkpoints import CheckpointError, Checkpoints

REPO = pathlib.Path(__file__).parents[2]


class Pair(NamedTuple):
    first: object
    second: object


def small(step=0):
    """One of every kind of leaf that a state may hold."""
    return {
        "params": {"a/b": {"w": np.linspace(step, 1, 40, dtype=np.float32)}, "encoding": {}},
        "pair": Pair(np.arange(4, dtype=np.int8), None),
        "keys": jax.random.wrap_key_data(np.array([[step, 1], [2, 3]], np.uint32)),
        "bfloat16": jnp.asarray(np.array([1.5, np.nan], jnp.bfloat16)),
        "scalar": jnp.asarray(np.float32(step)),
        "rate": 0.1,
        "flag": True,
        "step": step,
    }


def data(leaf):
    return jax.random.key_data(leaf) if isinstance(leaf, jax.Array) and leaf.dtype.name.startswith("key") else leaf


def assert_same(tree, expected):
    assert jax.tree.structure(tree) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(tree), jax.tree.leaves(expected), strict=True):
        assert (type(a), getattr(a, "dtype", None)) == (type(b), getattr(b, "dtype", None))
        assert np.asarray(data(a)).tobytes() == np.asarray(data(b)).tobytes()


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


def test_every_kind_of_leaf_comes_back_bit_for_bit(two_steps, tmp_path):
    step, tree = Checkpoints(two_steps).restore(small())
    assert step == 2
    assert_same(tree, small(2))
    abstract = small() | {"scalar": jax.ShapeDtypeStruct((), jnp.float32)}
    assert_same(Checkpoints(two_steps).restore(abstract, step=1)[1], small(1))
    assert Checkpoints(tmp_path / "new").restore(small()) is None
    assert not (tmp_path / "new").exists()  # reading makes nothing


def test_buffers_may_be_donated_and_overwritten_during_the_save(tmp_path):
    add = jax.jit(lambda x: x + 1, donate_argnums=0)
    tree = {"jax": jnp.asarray(np.zeros((512, 512))), "numpy": np.zeros((512, 512))}
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(0, tree)
        tree["jax"] = add(tree["jax"])
        tree["numpy"] += 1
        _, restored = checkpoints.restore(tree)
    assert not np.any(restored["jax"])
    assert not np.any(restored["numpy"])


@pytest.mark.parametrize(
    ("change", "path"),
    [({"params": {"w": np.zeros(41)}}, "'w'"), ({"scalar": 3}, "'scalar'"), ({"x": 1}, "'x'")],
)
def test_a_changed_config_is_an_error_and_touches_nothing(two_steps, change, path):
    before = sorted(two_steps.rglob("*"))
    with pytest.raises(CheckpointError, match=path):
        Checkpoints(two_steps).restore(small() | change)
    assert sorted(two_steps.rglob("*")) == before


def test_what_cannot_be_saved_is_named(two_steps, tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        for leaf, error in (("text", TypeError), (np.zeros((0, 3)), ValueError)):
            with pytest.raises(error, match=r"\['x'\]\[0\]"):
                checkpoints.save(0, {"x": [leaf], "y": 1})
    assert not list(tmp_path.iterdir())
    with pytest.raises(CheckpointError, match="step 1"):
        Checkpoints(two_steps).save(1, small())
    with pytest.raises(CheckpointError, match=r"step 3 .*\[1, 2\]"):
        Checkpoints(two_steps).restore(small(), step=3)
    with pytest.raises(ValueError, match=r"x\[1\]"):  # orbax sees a pattern in it
        Checkpoints(tmp_path / "x[1]")


@pytest.mark.parametrize(("mode", "sign"), [("min", 1.0), ("max", -1.0)])
def test_best_and_newest_are_kept_also_across_reopening(tmp_path, mode, sign):
    values = {1: 3.0, 2: 1.0, 3: 2.0, 4: float("nan"), 5: 4.0, 6: 5.0}
    for part in ((1, 2, 3), (4, 5, 6)):
        with Checkpoints(tmp_path, keep_last=2, best="loss", best_mode=mode) as checkpoints:
            for step in part:
                checkpoints.save(step, {"step": step}, {"loss": sign * values[step]})
    assert Checkpoints(tmp_path).steps() == [2, 5, 6]


# Damage


def test_damage_to_any_file_is_passed_over_or_harmless(copy, warnings, two_steps):
    directory, noticed = copy / "2", set()
    files = [path for path in directory.rglob("*") if path.is_file() and path.stat().st_size]
    for path in files:
        name, content = str(path.relative_to(directory)), path.read_bytes()
        for how in ("flipped", "truncated", "deleted"):
            path.unlink()
            if how == "flipped":
                path.write_bytes(content[: len(content) // 2] + bytes([content[len(content) // 2] ^ 4]) + content[1:])
            elif how == "truncated":
                path.write_bytes(content[: len(content) // 2])
            warnings.clear()
            step, tree = Checkpoints(copy).restore(small())
            assert_same(tree, small(step))
            assert len(warnings) == (step == 1)
            noticed |= {name} if step == 1 else set()
            path.write_bytes(content)
    missed = {str(path.relative_to(directory)) for path in files} - noticed
    assert missed <= {"_CHECKPOINT_METADATA", "commit_success.txt", "record/commit_success.txt"}


def test_a_seal_that_leaves_a_file_out_is_no_seal(copy):
    seal = copy / "2" / "record" / "seal.json"
    listed = json.loads(seal.read_text())
    seal.write_text(json.dumps({name: listed[name] for name in listed if name != "tree/manifest.ocdbt"}))
    assert Checkpoints(copy).restore(small())[0] == 1


def test_a_run_goes_on_after_damage_and_nothing_is_deleted(copy):
    (copy / "2" / "tree" / "manifest.ocdbt").write_bytes(b"")
    with Checkpoints(copy) as checkpoints:
        assert checkpoints.restore(small())[0] == 1
        checkpoints.save(2, small(2))
        assert checkpoints.restore(small())[0] == 2
        assert checkpoints.steps() == [1, 2]
    assert len(list(copy.glob("damaged-2-*"))) == 1


def test_never_starts_afresh_when_every_checkpoint_is_damaged(copy):
    for step in (1, 2):
        (copy / str(step) / "record" / "record.json").unlink()
    for which in (None, 1):
        with pytest.raises(CheckpointError, match="step 1: "):
            Checkpoints(copy).restore(small(), step=which)


SAVE_FOREVER = """
import sys
import numpy as np
from posjax.training.checkpoints import Checkpoints
checkpoints = Checkpoints(sys.argv[1], keep_last=2)
tree = {"w": np.arange(200_000), "step": 0}
restored = checkpoints.restore(tree)
start = 0 if restored is None else restored[0]
print("ready", flush=True)
for step in range(start + 1, start + 10_000):
    checkpoints.save(step, {"w": tree["w"] + step, "step": step})
"""


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_a_directory_that_restores(tmp_path):
    """Saves follow each other without a pause, so that any moment is a bad one."""
    last, tree = 0, {"w": np.arange(200_000), "step": 0}
    for seconds in (0.04, 0.13):
        command = [sys.executable, "-c", SAVE_FOREVER, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=REPO, text=True) as process:
            assert process.stdout.readline() == "ready\n"
            deadline = time.monotonic() + 60
            while not (tmp_path / str(last + 1)).exists() and time.monotonic() < deadline:
                time.sleep(0.002)
            time.sleep(seconds)
            os.kill(process.pid, signal.SIGKILL)
        step, restored = Checkpoints(tmp_path).restore(tree) or (0, tree)
        assert restored["step"] == step >= last
        np.testing.assert_array_equal(restored["w"], tree["w"] + step)
        last = step
    assert last > 0
    (tmp_path / "99.orbax-checkpoint-tmp").mkdir()
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(last + 1, tree)
    assert not list(tmp_path.glob("*tmp*"))


# Saves that fail

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def started(tmp_path):
    with Checkpoints(tmp_path / "c") as checkpoints:
        checkpoints.save(1, small(1))
        checkpoints.wait()
        yield checkpoints


@pytest.mark.parametrize(
    ("where", "error"),
    [
        (
            "finalize",
            ValueError("RESOURCE_EXHAUSTED: Error writing\nmore of it"),
        ),  # in a thread, as tensorstore says it
        ("save", FULL),  # in the call
    ],
)
def test_a_save_that_fails_is_one_line_at_once_and_leaves_nothing(started, monkeypatch, caplog, capfd, where, error):
    def failing(*_, **__):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(module.RecordHandler, where, failing)
        before = time.monotonic()
        with pytest.raises(CheckpointError, match=r"step 2 could .*\((No space|RESOURCE_).* from step 1") as raised:
            started.save(2, small(2))
            while time.monotonic() < before + 20:
                started.check()
        assert "\n" not in str(raised.value)
        patch.setattr(module, "free_bytes", lambda directory: 300)
        with pytest.raises(CheckpointError, match=r"the disk is full: .* from step 1"):
            started.save(2, small(2))
    started.wait()
    assert not [record for record in caplog.records if record.exc_info]
    assert "Traceback" not in capfd.readouterr().err
    assert [path.name for path in started.directory.iterdir()] == ["1"]
    started.save(2, small(2))
    assert started.steps() == [1, 2]


def test_check_waits_for_nothing(started, monkeypatch):
    release = threading.Event()
    whole = module.RecordHandler.finalize
    monkeypatch.setattr(module.RecordHandler, "finalize", lambda *args: (release.wait(20), whole(*args)))
    started.save(2, small(2))
    started.check()
    assert [path.name for path in started.directory.iterdir() if path.name.isdigit()] == ["1"]
    release.set()
    assert started.steps() == [1, 2]
