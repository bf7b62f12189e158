"""A full disk, a file for a folder, a clock that jumps: one line, earlier steps are whole, the run goes on."""

import errno
import itertools
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import time

import jax
import numpy as np
import pytest

from experiments.cli import EXIT_MISTAKE
from posjax.extras import message_of
from posjax.files import replace_file
from posjax.jsonl import append_jsonl, read_jsonl
from posjax.training import checkpoints as module
from posjax.training.checkpoints import CheckpointError, Checkpoints
from posjax.training.metrics import MetricsWriter

REPO = pathlib.Path(__file__).parents[2]
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def tree(step):
    return {"w": np.full(200_000, step, np.float32), "key": jax.random.key(step), "step": step}


def assert_goes_on(directory):
    """Step 1 is whole, nothing of a step 2 is left, and one can be saved."""
    assert [path.name for path in directory.iterdir()] == ["1"]
    with Checkpoints(directory) as checkpoints:
        step, found = checkpoints.restore(tree(1))
        assert (step, found["w"][0], found["step"]) == (1, 1, 1)
        checkpoints.save(2, tree(2))
        assert checkpoints.steps() == [1, 2]


@pytest.fixture
def started(tmp_path):
    with Checkpoints(tmp_path / "c") as checkpoints:
        checkpoints.save(1, tree(1))
        checkpoints.wait()
        yield checkpoints


def test_a_disk_without_room_is_told_before_anything_is_written(started, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(module, "free_bytes", lambda directory: 300 * 2**10)
        patch.setattr("posjax.files.free_bytes", lambda directory: 300 * 2**10)
        message = (
            r"cannot be saved in .*/c, the disk is full: 845.. KiB are needed, 300.0 KiB are free; make room, and the same "
            "command goes on from step 1, which is whole"
        )
        with pytest.raises(CheckpointError, match="step 2 " + message):
            started.save(2, tree(2))
        with pytest.raises(CheckpointError, match="a checkpoint " + message):
            started.refuse_full(tree(2))
        with pytest.raises(CheckpointError, match="goes on from its start"):
            Checkpoints(started.directory.parent / "new" / "run").refuse_full(tree(0))
    started.refuse_full(tree(2))
    assert_goes_on(started.directory)


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("finalize", FULL),  # in orbax's thread
        ("finalize", ValueError("RESOURCE_EXHAUSTED: Error writing\nmore of it")),  # as tensorstore says it
        ("save", FULL),  # in the call
    ],
)
def test_a_save_that_fails_is_one_line_at_once_and_leaves_nothing(started, monkeypatch, caplog, capfd, where, error):
    def failing(*_, **__):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(module.RecordHandler, where, failing)
        before = time.monotonic()
        with pytest.raises(CheckpointError, match=r"step 2 could not be saved in .*/c \((No space|RESOURCE_)") as told:
            started.save(2, tree(2))
            while time.monotonic() < before + 20:
                started.check()
        assert "\n" not in str(told.value)
        assert "845" in str(told.value)  # KiB
    started.close()
    assert not [record for record in caplog.records if record.exc_info]
    assert "Traceback" not in capfd.readouterr().err
    assert_goes_on(started.directory)


def test_check_waits_for_nothing(started, monkeypatch):
    release = threading.Event()
    whole = module.RecordHandler.finalize
    monkeypatch.setattr(module.RecordHandler, "finalize", lambda *args: (release.wait(20), whole(*args)))
    started.save(2, tree(2))
    started.check()
    assert [path.name for path in started.directory.iterdir() if path.name.isdigit()] == ["1"]
    release.set()
    started.wait()
    assert started.steps() == [1, 2]


def test_a_clock_that_jumps_ends_no_save(tmp_path, monkeypatch):
    days = itertools.count(0, 40 * 24 * 3600)
    wall = time.time()
    monkeypatch.setattr(time, "time", lambda: wall + next(days))
    with Checkpoints(tmp_path) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, tree(step))
        assert checkpoints.steps() == [1, 2]
    monkeypatch.setattr(time, "time", lambda: wall - next(days))
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(3, tree(3))
        assert checkpoints.steps() == [2, 3]


def test_a_file_where_a_folder_should_be_is_named(tmp_path):
    (tmp_path / "file").touch()
    for directory in (tmp_path / "file", tmp_path / "file" / "checkpoints"):
        with pytest.raises((CheckpointError, NotADirectoryError)) as told:
            Checkpoints(directory).save(1, tree(1))
        assert str(tmp_path / "file") in message_of(told.value)
    with pytest.raises(NotADirectoryError, match="file"):  # orbax waits five minutes, and then speaks of signals
        Checkpoints(tmp_path / "file").restore(tree(1))
    with pytest.raises(CheckpointError, match=r"cannot be saved in .*: .*/file is a file; move it away"):
        Checkpoints(tmp_path / "file" / "checkpoints").refuse_full(tree(1))
    (tmp_path / "2.orbax-checkpoint-tmp").touch()
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, tree(1))
        assert checkpoints.steps() == [1]


def test_where_nothing_can_be_written_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write to any disk but a read-only one
    with pytest.raises(CheckpointError, match=r"cannot be saved in .*: nothing can be written there"):
        Checkpoints(tmp_path).save(1, tree(1))


def limited(code, *arguments, limit):
    """A Python process whose files may not grow beyond `limit` bytes, for what a full disk is."""
    setting = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    setting += f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}));"
    command = [sys.executable, "-c", setting + code, *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(REPO), "JAX_PLATFORMS": "cpu"}
    return subprocess.run(command, cwd=REPO, env=environment, capture_output=True, text=True, timeout=120)


def test_a_line_and_a_file_that_do_not_fit_name_themselves(tmp_path, monkeypatch):
    class Full:
        def __init__(self, room):
            self.room, self.written = room, b""

        def write(self, line):
            if not self.room:
                raise FULL
            taken, self.room = bytes(line[: self.room]), max(0, self.room - len(line))
            self.written += taken
            return len(taken)

        def close(self):
            pass

    writer = MetricsWriter(tmp_path)
    writer.file.close()
    writer.file = Full(20)
    with pytest.raises(OSError, match="No space left") as told:
        writer.write(1, {"loss": [0.123456789] * 9})
    assert len(writer.file.written) == 20
    assert message_of(told.value).startswith(
        f"{tmp_path / 'metrics.jsonl'}: No space left on device: 0.1 KiB are needed, "
    )

    append_jsonl(tmp_path / "results.jsonl", [{"a": 1}])

    def full(_):
        raise FULL

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left") as told:
            append_jsonl(tmp_path / "results.jsonl", [{"a": 2}])
    assert message_of(told.value).startswith(f"{tmp_path / 'results.jsonl'}: No space left")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "results.jsonl"]
    assert read_jsonl(tmp_path / "results.jsonl") == [{"a": 1}]
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError) as told:
        replace_file(tmp_path / "folder", b"x")
    assert message_of(told.value) == f"{tmp_path / 'folder'}: Is a directory"


SAVE = """
import sys, numpy as np
from posjax.training.checkpoints import Checkpoints, CheckpointError
try:
    with Checkpoints(sys.argv[1]) as checkpoints:
        for step in (1, 2):
            w = np.random.default_rng(step).random(50_000 if step == 1 else 900_000, np.float32)
            checkpoints.save(step, {"w": w, "step": step})
except CheckpointError as error:
    sys.exit(f"error: {error}")
"""


@pytest.mark.slow
def test_arrays_that_cannot_be_written_are_one_line(tmp_path):
    before = time.monotonic()
    done = limited(SAVE, tmp_path / "c", limit=2**20)
    assert time.monotonic() - before < 60
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert done.stderr.startswith(f"error: step 2 could not be saved in {tmp_path / 'c'} (")
    assert Checkpoints(tmp_path / "c").steps() == [1]


ON_A_SMALL_DISK = """
mount -t tmpfs -o size={size} none {disk}
dd if=/dev/zero of={disk}/filler bs=1k count={filler} 2>/dev/null
{python} -m experiments.train {arguments}; echo "first: $?" >&2
rm {disk}/filler
{python} -m experiments.train {arguments}; echo "second: $?" >&2
"""


def on_a_small_disk(disk, size, filler, arguments):
    if not shutil.which("unshare") or subprocess.run(["unshare", "-Urm", "true"], capture_output=True).returncode:
        pytest.skip("this system lets nobody mount a disk of its own")
    disk.mkdir()
    script = ON_A_SMALL_DISK.format(size=size, disk=disk, filler=filler, python=sys.executable, arguments=arguments)
    environment = os.environ | {"PYTHONPATH": str(REPO), "JAX_PLATFORMS": "cpu"}
    before = time.monotonic()
    command = ["unshare", "-Urm", "sh", "-c", script]
    done = subprocess.run(command, cwd=REPO, env=environment, capture_output=True, text=True, timeout=300)
    return done, time.monotonic() - before


SMALL = (
    "--config=configs/vit.py --config.model.width={width} --config.model.depth=1 --config.model.num_heads=2 "
    "--config.model.patch_size=4 --config.batch_size=16 --config.optimizer.warmup_steps=2 --config.steps=30 "
    "--config.eval_every=30 --config.log_every=1 --config.checkpoint_every=10 --workdir={disk}/run"
)


@pytest.mark.slow
def test_a_run_on_a_full_disk_ends_with_one_line_and_goes_on(tmp_path):
    """There is room for the first checkpoint, and not for all that are kept."""
    disk = tmp_path / "disk"
    done, seconds = on_a_small_disk(disk, "6m", 3900, SMALL.format(width=96, disk=disk))
    lines = [line for line in done.stderr.splitlines() if "step" not in line.partition(":")[0]]
    assert f"first: {EXIT_MISTAKE}" in lines, done.stderr[-3000:]
    assert "second: 0" in lines, done.stderr[-3000:]
    errors = [line for line in lines if line.startswith("error: ")]
    assert len(errors) == 1
    assert "be saved in" in errors[0]
    assert str(disk / "run" / "checkpoints") in errors[0]
    assert "are needed" in errors[0]
    assert "Traceback" not in done.stderr
    assert seconds < 120
