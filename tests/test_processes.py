"""Several processes on loopback train what one process trains, also when one of them dies or is asked to stop."""

import shutil
import signal
import socket
import time

import pytest
from small import metrics_of
from test_commands import REPO, SMALL, count, start, succeed

from experiments.cli import EXIT_STOPPED
from posjax.training.checkpoints import Checkpoints
from posjax.training.processes import is_shared, join


@pytest.fixture
def training(tmp_path):
    """The arguments of a small run but for its workdir."""
    fields = {**SMALL, "data.data_dir": tmp_path / "data", "steps": 60, "checkpoint_every": 10}
    return [f"--config={REPO / 'configs' / 'vit.py'}", *(f"--config.{name}={value}" for name, value in fields.items())]


def free_port():
    with socket.socket() as made:
        made.bind(("localhost", 0))
        return made.getsockname()[1]


def together(arguments, workdir, processes=2):
    """The processes of one run."""
    where = [f"--workdir={workdir}", f"--coordinator=localhost:{free_port()}", f"--processes={processes}"]
    return [start("train", *arguments, *where, f"--process={index}") for index in range(processes)]


def ended(processes):
    """[(exit code, stdout, stderr)]"""
    outputs = [process.communicate(timeout=150) for process in processes]
    return [(process.poll(), *output) for process, output in zip(processes, outputs, strict=True)]


def wait_for(lines, metrics, processes):
    deadline = time.monotonic() + 150
    while count(metrics) < lines and time.monotonic() < deadline and all(each.poll() is None for each in processes):
        time.sleep(0.002)


def assert_same(found, wanted):
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        assert a.keys() == b.keys()
        assert all(a[name] == pytest.approx(b[name], rel=1e-4, abs=1e-5) for name in a if name != "eval_accuracy")


@pytest.mark.slow
def test_a_run_killed_in_one_process_and_stopped_in_another_ends_as_it_would_have(training, tmp_path):
    """Two processes, one killed; two again, one asked to stop; then one alone to the end."""
    workdir, alone = tmp_path / "run", tmp_path / "alone"
    metrics = workdir / "metrics.jsonl"
    processes = together(training, workdir)
    wait_for(15, metrics, processes)
    processes[1].send_signal(signal.SIGKILL)
    began = time.monotonic()
    (code, _, err), _ = ended(processes)
    assert code == EXIT_STOPPED, err[-3000:]
    assert time.monotonic() - began < 60
    assert "process 0: another process of this run is gone; the same command" in err
    assert "Traceback" not in err

    processes = together(training, workdir)
    wait_for(25, metrics, processes)
    processes[1].send_signal(signal.SIGTERM)
    found = ended(processes)
    assert [code for code, *_ in found] == [EXIT_STOPPED, EXIT_STOPPED], found
    steps = {out.split("stopped at step ")[1].split(";")[0] for _, out, _ in found}
    assert steps == {str(Checkpoints(workdir / "checkpoints").steps()[-1])}

    succeed("train", *training, f"--workdir={workdir}")
    shutil.copytree(workdir / "compiled", alone / "compiled")
    succeed("train", *training, f"--workdir={alone}")
    assert_same(metrics_of(workdir), metrics_of(alone))
    assert len((workdir / "result.jsonl").read_text().splitlines()) == 1


def test_a_folder_of_its_own_disk_is_told_from_a_shared_one(tmp_path, monkeypatch):
    assert is_shared(tmp_path)  # of one process
    monkeypatch.setattr("jax.process_count", lambda: 2)
    monkeypatch.setattr("jax.experimental.multihost_utils.broadcast_one_to_all", lambda _: 7)
    monkeypatch.setattr("posjax.training.processes.synced", lambda _: None)
    monkeypatch.setattr("posjax.training.processes.any_process", lambda found: found)
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr("posjax.training.processes.PATIENCE", 0.01)
    for process, name, shared in ((0, "one", True), (1, "one", True), (1, "other", False)):
        monkeypatch.setattr("jax.process_index", lambda process=process: process)
        assert is_shared(tmp_path / name) == shared
        assert not (process == 0 and any((tmp_path / name).iterdir()))
        (tmp_path / "one/.shared").write_text("7")  # as the first process does


@pytest.mark.parametrize("numbers", [dict(processes=2), dict(processes=2, process=2)])
def test_numbers_that_do_not_fit_are_refused(numbers, monkeypatch):
    monkeypatch.setattr("jax.config.update", lambda *_: None)
    with pytest.raises(ValueError, match="must be N and one of 0 to N - 1"):
        join("localhost:1", **numbers)
