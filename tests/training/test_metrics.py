"""metrics.jsonl stays strict JSON, and after a kill and a resume it is the file of an uninterrupted run."""

import errno
import json
import os
import sqlite3
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from posjax.extras import message_of
from posjax.jsonl import append_jsonl, read_jsonl
from posjax.training.metrics import MetricsWriter


def write(directory, steps, **options):
    with MetricsWriter(directory, **options) as writer:
        for step in steps:
            writer.write(step, {"loss": 1 / (step + 1), "per_seed": [step, step + 0.5]})


def test_a_line_is_there_as_soon_as_it_is_written(tmp_path):
    writer = MetricsWriter(tmp_path / "new")
    writer.write(3, {"loss": 0.5})
    assert writer.path.read_text() == '{"step": 3, "loss": 0.5}\n'
    writer.close()


@pytest.mark.parametrize("cut", [0, 5])
def test_a_resumed_file_equals_an_uninterrupted_one(tmp_path, cut):
    write(tmp_path / "whole", range(10))
    write(tmp_path / "killed", range(8))
    killed, whole = (tmp_path / name / "metrics.jsonl" for name in ("killed", "whole"))
    killed.write_bytes(killed.read_bytes()[: -cut or None])
    write(tmp_path / "killed", range(5, 10), resume_step=4)
    assert killed.read_bytes() == whole.read_bytes()
    assert list(killed.parent.iterdir()) == [killed]


def test_every_value_is_strict_json_and_reads_back(tmp_path):
    values = {
        "nan": float("nan"),
        "inf": [np.inf, -np.inf],
        "jax": jnp.array([1.5, jnp.nan]),
        "numpy": np.float32(0.25),
        "int": np.int64(3),
        "bfloat16": jnp.bfloat16(2),
    }
    with MetricsWriter(tmp_path) as writer:
        writer.write(1, values)

    def refuse(constant):
        raise AssertionError(constant)

    found = json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=refuse)
    assert found == {
        "step": 1,
        "nan": "NaN",
        "inf": ["Infinity", "-Infinity"],
        "jax": [1.5, "NaN"],
        "numpy": 0.25,
        "int": 3,
        "bfloat16": 2.0,
    }
    assert [float(text) for text in found["inf"]] == [np.inf, -np.inf]


def test_half_a_last_line_is_left_out_but_an_earlier_one_is_an_error(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n{"a": 2')
    assert read_jsonl(path) == [{"a": 1}]
    path.write_text('{"a": 1}\n{"a": 2}')  # an editor's missing newline is no reason to lose a line
    assert read_jsonl(path) == [{"a": 1}, {"a": 2}]
    path.write_text("")
    assert read_jsonl(path) == []
    for text, message in [('{"a": 1}\n{"a": \n{"a": 3}\n', "line 2 is not JSON"), ("1\n", "line 1 is not a JSON obj")]:
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            read_jsonl(path)
    (tmp_path / "metrics.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(ValueError, match="line 1 has no step"):
        MetricsWriter(tmp_path)


@pytest.mark.parametrize(("before", "kept"), [("", ""), ('{"a": 0}\n{"a', '{"a": 0}\n'), ('{"a": 0}', '{"a": 0}\n')])
def test_append_repairs_the_end_and_writes_all_lines(tmp_path, before, kept):
    path = tmp_path / "results" / "a.jsonl"
    append_jsonl(path, [{"a": 0}])
    path.write_text(before)
    append_jsonl(path, [{"a": 1}, {"a": (2, float("nan"))}])
    assert path.read_text() == kept + '{"a": 1}\n{"a": [2, "NaN"]}\n'


def test_tensorboard_gets_one_curve_per_seed(tmp_path, monkeypatch):
    class Events:
        def __init__(self, directory, purge_step):
            self.seen = [(directory, purge_step)]
            seen.append(self)

        def add_scalar(self, *scalar):
            self.seen.append(scalar)

        def flush(self):
            pass

        def close(self):
            self.seen.append("closed")

    seen = []
    monkeypatch.setitem(sys.modules, "tensorboardX", type(sys)("tensorboardX"))
    monkeypatch.setattr(sys.modules["tensorboardX"], "SummaryWriter", Events, raising=False)
    with MetricsWriter(tmp_path, resume_step=3, logger="tensorboard") as writer:
        writer.write(4, {"loss": 0.5, "per_seed": [1, 2]})
    expected = [("loss", 0.5, 4), ("per_seed/0", 1.0, 4), ("per_seed/1", 2.0, 4)]
    assert seen[0].seen == [(str(tmp_path), 4), *expected, "closed"]


@pytest.fixture
def wandb(monkeypatch):
    """The calls of a wandb that only takes notes."""
    told = []

    class Run:
        id = "abc123"

        def log(self, scalars, step):
            told.append((step, scalars))

        def finish(self):
            told.append("finished")

    def init(**options):
        told.append(options)
        return Run()

    monkeypatch.setitem(sys.modules, "wandb", type(sys)("wandb"))
    monkeypatch.setattr(sys.modules["wandb"], "init", init, raising=False)
    return told


def test_wandb_gets_the_same_numbers_and_a_resumed_run_goes_on_under_its_id(tmp_path, wandb):
    with MetricsWriter(tmp_path / "run", logger="wandb_offline") as writer:
        writer.write(4, {"loss": 0.5, "per_seed": [1, 2]})
    where = {"project": "posjax", "name": "run", "dir": str(tmp_path / "run"), "config": None}
    numbers = {"loss": 0.5, "per_seed/0": 1.0, "per_seed/1": 2.0}
    assert wandb == [where | {"mode": "offline"}, (4, numbers), "finished"]
    MetricsWriter(tmp_path / "run", resume_step=4, logger="wandb").close()
    assert wandb[3] == where | {"mode": None, "id": "abc123", "resume": "allow"}
    (tmp_path / "run" / "run.json").write_text('{"config": {"steps": 5}}')
    where["config"] = {"steps": 5}
    MetricsWriter(tmp_path / "run", logger="wandb").close()  # from the start again: another run
    assert wandb[5] == where | {"mode": None}


def test_trackio_gets_the_same_numbers_and_a_resumed_run_goes_on_under_its_name(tmp_path, wandb, monkeypatch):
    trackio = type(sys)("trackio")
    trackio.init = lambda project, **options: sys.modules["wandb"].init(project=project, **options)
    monkeypatch.setitem(sys.modules, "trackio", trackio)
    with MetricsWriter(tmp_path / "run", logger="trackio") as writer:
        writer.write(4, {"loss": 0.5, "per_seed": [1, 2]})
    where = {"project": "posjax", "name": "run", "config": None}
    assert wandb == [where | {"resume": "never"}, (4, {"loss": 0.5, "per_seed/0": 1.0, "per_seed/1": 2.0}), "finished"]
    (tmp_path / "run" / "run.json").write_text('{"config": {"steps": 5}}')
    MetricsWriter(tmp_path / "run", resume_step=4, logger="trackio").close()
    assert wandb[3] == where | {"resume": "allow", "config": {"steps": 5}}


@pytest.mark.slow
def test_the_real_trackio_keeps_what_it_is_given(tmp_path, monkeypatch):
    pytest.importorskip("trackio")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    code = (
        "from posjax.training.metrics import MetricsWriter\n"
        "for step in (None, 1):\n"
        f"    with MetricsWriter({str(tmp_path / 'run')!r}, resume_step=step, logger='trackio') as writer:\n"
        "        writer.write(2 if step else 1, {'loss': [0.5, 0.25]})\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)  # trackio reads its environment when it is imported
    (base,) = (tmp_path / "trackio").glob("posjax*.db")
    rows = sqlite3.connect(base).execute("select run_name, step, metrics from metrics order by step").fetchall()
    assert [row[:2] for row in rows] == [("run", 1), ("run", 2)]
    assert all("loss/1" in str(metrics) for _, _, metrics in rows)


@pytest.mark.slow
def test_the_real_wandb_writes_offline(tmp_path):
    pytest.importorskip("wandb")
    with MetricsWriter(tmp_path, logger="wandb_offline") as writer:
        writer.write(1, {"loss": [0.5, 0.25]})
        writer.write(2, {"loss": [0.4, 0.2]})
    (log,) = tmp_path.rglob("*.wandb")
    assert b"loss/1" in log.read_bytes()


def test_a_logger_that_is_not_installed_is_one_line_and_writes_nothing(tmp_path, monkeypatch):
    for name, package in (("wandb_offline", "wandb"), ("tensorboard", "tensorboardX")):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(ImportError, match=rf"logger='{name}' .*\[{name.partition('_')[0]}\]'"):
            MetricsWriter(tmp_path / "run", logger=name)
    with pytest.raises(ValueError, match="tensorbord"):
        MetricsWriter(tmp_path / "run", logger="tensorbord")
    assert not (tmp_path / "run").exists()


def test_a_file_that_does_not_fit_names_itself(tmp_path, monkeypatch):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def no_room(_):
        raise full

    append_jsonl(tmp_path / "results.jsonl", [{"a": 1}])
    monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(OSError, match=r"results\.jsonl") as raised:
        append_jsonl(tmp_path / "results.jsonl", [{"a": 2}])
    assert "are needed" in message_of(raised.value)
    assert [path.name for path in tmp_path.iterdir()] == ["results.jsonl"]
    assert read_jsonl(tmp_path / "results.jsonl") == [{"a": 1}]
