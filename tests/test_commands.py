"""The real commands, as a person runs them: killed, stopped, started again, on several devices, and misused."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest
from forked import Command
from small import metrics_of, saved

from experiments.cli import EXIT_STOPPED
from posjax.training.checkpoints import Checkpoints

REPO = pathlib.Path(__file__).parents[1]
SMALL = {"model.width": 8, "model.depth": 1, "model.num_heads": 2, "model.patch_size": 4, "model.dropout": 0.1}
SMALL |= {"batch_size": 16, "optimizer.warmup_steps": 2}
SMALL |= {"steps": 100, "log_every": 1, "checkpoint_every": 10, "eval_every": 20}
ABLATION = """
import runpy
from ml_collections import ConfigDict

def get_config():
    config = runpy.run_path({quickstart!r})["get_config"]()
    config.name, config.seeds = "small", (0, 1)
    rows = {{"digits_vit": {{"plain": "none", "rope 100": "rope(base=100)"}}, "pydoc_decoder": {{"t5": "t5"}}}}
    for name, study in config.studies.items():
        study.encodings = ConfigDict(rows[name], sort_keys=False)
        study.data.data_dir = {data_dir!r}
        sizes = {{"width": 8, "depth": 1, "num_heads": 2}}
        study.model.update(sizes)
        study.batch_size, study.steps, study.log_every, study.checkpoint_every = 8, 60, 1, 10
        study.optimizer.warmup_steps = 2
    config.studies.digits_vit.model.patch_size = 4
    config.studies.pydoc_decoder.update(dict(steps=20, eval_lengths=(16, 64), eval_batch_size=512))
    config.studies.pydoc_decoder.data.length = 16
    return config
"""


def start(module, *arguments, **more):
    if not more:
        return Command(module, *arguments)
    command = [sys.executable, "-m", f"experiments.{module}", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(REPO), "JAX_PLATFORMS": "cpu"} | more
    return subprocess.Popen(command, cwd=REPO, env=environment, stdout=-1, stderr=-1, text=True)  # -1: PIPE


def call(module, *arguments, **more):
    """(exit code, stdout, stderr) of a command that runs to its end."""
    process = start(module, *arguments, **more)
    out, err = process.communicate(timeout=300)
    return process.poll(), out, err


def succeed(module, *arguments, **more):
    code, out, err = call(module, *arguments, **more)
    assert code == 0, err[-3000:]
    return out


def interrupt(number, metrics, lines, module, *arguments):
    """Sends a signal once `metrics` has so many lines; (exit code, stdout, stderr)."""
    process = start(module, *arguments)
    deadline = time.monotonic() + 200
    while process.poll() is None and count(metrics()) < lines and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(number)
    out, err = process.communicate(timeout=100)
    return process.poll(), out, err


def count(path):
    return 0 if path is None or not path.exists() else path.read_bytes().count(b"\n")


def records(path):
    """Returns measured results without fields that differ from run to run (also the commit, which may change meanwhile)."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines = [line | {"versions": line["versions"] | {"commit": None}} for line in lines]
    return [{name: x for name, x in line.items() if name not in ("step_time", "wall_time", "speed")} for line in lines]


def snapshot(directory):
    return {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in directory.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def training(data_dir):
    """The arguments of a small training run but for its workdir."""
    overrides = SMALL | {"data.data_dir": data_dir}
    return ["--config=configs/vit.py", *(f"--config.{name}={value}" for name, value in overrides.items())]


@pytest.fixture(scope="module")
def whole_run(training, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("whole")
    out = succeed("train", *training, f"--workdir={workdir}")
    assert "'accuracy': " in out
    assert f"after 100 steps, in {workdir}" in out
    return workdir


@pytest.mark.slow
def test_a_training_run_that_was_killed_and_stopped_ends_bit_identical(training, whole_run, tmp_path):
    arguments = ["train", *training, f"--workdir={tmp_path}"]
    shutil.copytree(whole_run / "compiled", tmp_path / "compiled")

    def metrics():
        return tmp_path / "metrics.jsonl"

    code, _, _ = interrupt(signal.SIGKILL, metrics, 36, *arguments)
    assert code == -signal.SIGKILL
    assert not (tmp_path / "result.jsonl").exists()
    before = count(metrics())
    code, out, err = interrupt(signal.SIGTERM, metrics, before + 15, *arguments)
    assert code == EXIT_STOPPED, err[-3000:]
    assert "\r" not in err
    assert out.startswith("stopped at step ")
    assert out.endswith("; the same command goes on from there\n")
    step = int(out.split()[3].strip(";"))
    assert 40 < step < 100
    assert Checkpoints(tmp_path / "checkpoints").steps()[-1] == step
    succeed(*arguments)
    assert saved(tmp_path) == saved(whole_run)
    assert metrics_of(tmp_path) == metrics_of(whole_run)
    assert json.loads((tmp_path / "run.json").read_text())["config"]["model"]["width"] == 8
    assert records(tmp_path / "result.jsonl") == records(whole_run / "result.jsonl")


@pytest.mark.thorough
def test_four_devices_compute_what_one_does(training, whole_run, tmp_path):
    short = [*training, "--config.checkpoint_every=100", f"--workdir={tmp_path}"]
    out = succeed("train", *short, "--fast_flags", JAX_NUM_CPU_DEVICES="4")
    assert "JAX_NUM_CPU_DEVICES=4" in out
    one, four = map(metrics_of, (whole_run, tmp_path))
    assert len(one) == len(four)
    for a, b in zip(one, four, strict=True):
        assert a.keys() == b.keys()
        assert all(a[name] == pytest.approx(b[name], rel=1e-4, abs=1e-5) for name in a if name != "eval_accuracy")
    assert records(tmp_path / "result.jsonl")[0]["versions"]["devices"] == 4


@pytest.mark.slow
def test_fast_flags_make_as_many_devices_of_cores_as_share_every_batch():
    batches = "{'batch_size': 16, 'accumulate': 2}, {'batch_size': 12}"
    code = f"""import os; os.sched_getaffinity = lambda pid: range(12)
from experiments.studies.environment import set_fast_flags; set_fast_flags({batches})
import jax; print(jax.device_count())"""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(REPO)}
    environment.pop("JAX_NUM_CPU_DEVICES", None)
    out = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert out.splitlines()[-2:] == ["JAX_NUM_CPU_DEVICES=4", "4"]


@pytest.mark.thorough
def test_an_ablation_killed_in_its_second_row_ends_as_if_it_had_not_been(data_dir, tmp_path, tmp_path_factory):
    """Two rows of a ViT and one of a decoder."""
    whole = tmp_path_factory.mktemp("ablation")
    config = whole / "small.py"
    config.write_text(ABLATION.format(quickstart=str(REPO / "configs" / "quickstart.py"), data_dir=str(data_dir)))
    shown = succeed("ablate", f"--config={config}", f"--workdir={whole / 'run'}")
    whole, arguments = whole / "run", ["ablate", f"--config={config}", f"--workdir={tmp_path}"]

    def row(name):
        return next((tmp_path / "digits_vit").glob(f"{name}-*"), None)

    def metrics():
        return row("rope-100") and row("rope-100") / "metrics.jsonl"

    code, _, _ = interrupt(signal.SIGKILL, metrics, 25, *arguments)
    assert code == -signal.SIGKILL
    assert [record["row"] for record in records(tmp_path / "results.jsonl")] == ["plain", "plain"]
    finished, step = snapshot(row("plain")), Checkpoints(row("rope-100") / "checkpoints").steps()[-1]
    assert 10 <= step < 60
    out = succeed(*arguments)
    assert snapshot(row("plain")) == finished
    assert records(tmp_path / "results.jsonl") == records(whole / "results.jsonl")
    assert saved(row("rope-100")) == saved(next((whole / "digits_vit").glob("rope-100-*")))
    assert table(out) == table(shown)
    everything = snapshot(tmp_path / "digits_vit") | snapshot(tmp_path / "pydoc_decoder")
    assert table(succeed(*arguments)) == table(shown)
    assert snapshot(tmp_path / "digits_vit") | snapshot(tmp_path / "pydoc_decoder") == everything
    assert len(records(tmp_path / "results.jsonl")) == 6


def table(out):
    """The labels and scores that are printed, without times (and numbers computed from them) and paths."""
    lines = [line for line in out.splitlines() if any(label in line for label in ("plain", "rope 100", "t5"))]
    cells = [line.replace("│", " ").split()[:3] for line in lines if "/" not in line]
    assert len(cells) >= 3
    return cells
