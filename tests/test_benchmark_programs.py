"""The cost command's programs, compiled and run: plans of trainings, inputs of decoders, and the checks of an accelerator."""

import functools
import json
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from small import small_decoder
from test_benchmark import ABSENT

from experiments import benchmark
from experiments.benchmarks.jax_configs import plan, read_input
from experiments.benchmarks.table import agrees
from posjax.encoding import sites
from posjax.models import BlockConfig, Decoder
from posjax.training.loop import Programs
from posjax.training.tasks import make_task

REPO = pathlib.Path(__file__).parents[1]
SEEDS = (0, 1)
TINY = ["--config.model.width=8", "--config.model.depth=1", "--config.model.num_heads=2"]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    """The config of a decoder with a large share of attention, and its plan."""
    sizes = dict(model__width=32, data__length=96, eval_lengths=(96,), eval_batch_size=64)
    config = small_decoder(tmp_path_factory.mktemp("data"), batch_size=4, model__implementation="dense", **sizes)
    return config, plan(config, SEEDS)


@pytest.mark.slow
def test_bytes_are_those_of_the_arrays_and_operations_those_that_xla_counts(decoder):
    """Operations of gradients alone are those of the whole step, to a tenth."""
    config, figures = decoder
    task = make_task(config)
    one = sum(4 * leaf.size for leaf in jax.tree.leaves(jax.eval_shape(task.init, jax.random.key(0))))
    assert figures["parameters"] == len(SEEDS) * one
    assert 0 < figures["optimizer"] - 2 * figures["parameters"] < 100  # two moments, and counts of steps
    assert figures["batch"] == len(SEEDS) * sum(jnp.asarray(leaf).nbytes for leaf in task.batches(0)[0].values())
    programs = Programs(task, config, SEEDS)
    counted = programs.step.lower(*programs.arguments()).cost_analysis()["flops"]
    assert figures["flops"] == pytest.approx(counted, rel=0.1)


@pytest.mark.slow
def test_the_cache_has_the_bytes_of_its_arrays(decoder):
    config, figures = decoder
    token = jnp.zeros((1, 1), jnp.int32)
    model = Decoder(256, config.model.encoding, block=BlockConfig(width=32, num_heads=2), depth=1)
    variables = jax.eval_shape(model.init, jax.random.key(0), token, sites(1))
    prefill = functools.partial(model.apply, cache_size=96, method=Decoder.prefill)
    cache = jax.eval_shape(lambda variables: prefill(variables, token, sites(1))[1], variables)
    assert figures["cache"] == sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(cache))


@pytest.mark.slow
def test_the_command_plans_for_devices_that_are_not_there(tmp_path, capsys):
    """Four devices share the batch: its rows and temporaries are a fourth on each, but the state is not."""
    sizes = [
        *("--config=configs/decoder.py", "--config.model.width=32", "--config.model.depth=1", "--config.batch_size=16"),
        *("--config.data.length=64", f"--config.data.data_dir={tmp_path}"),
        "--config.model.implementation=blockwise",  # as on several devices
    ]
    line = ["plan", *sizes, "--accelerators=h100,tpu-v5e", f"--out={tmp_path}"]
    records = []
    for devices in (1, 4):
        assert benchmark.main([*line, f"--devices={devices}"]) == 0
        assert "| tpu-v5e |" in capsys.readouterr().out
        records.append(json.loads((tmp_path / "results.jsonl").read_text()))
    one, four = records
    assert one["parameters"] == four["parameters"]
    assert one["flops"] == pytest.approx(four["flops"], rel=0.05)  # what each device does for itself counts four times
    assert one["batch"] == 4 * four["batch"]
    assert one["temporaries"] > 2.5 * four["temporaries"]


def case(mode, attention, length, **more):
    model = dict(encoding="rope", width=8, depth=1, num_heads=2, length=None)
    optimizer = dict(learning_rate=1e-3)
    shared = dict(model=model, optimizer=optimizer, steps=10, batch=1, window=16, memory=2**30, imports=[], run=True)
    return {**shared, "mode": mode, "attention": attention, "length": length, **more}


@pytest.mark.slow
def test_memory_of_dense_attention_is_that_of_its_arrays():
    held = [read_input(case("forward", "dense", n, run=False)).figures["held_bytes"] for n in (256, 512)]
    assert read_input(case("forward", "dense", 256, memory=held[0] - 1)).run is None
    logits = 512**2 * 2 * 4
    assert logits < held[1] < 4 * logits
    assert held[1] > 3 * held[0]


@pytest.mark.slow
def test_a_tiny_decoder(tmp_path, capsys):
    line = [
        "context",
        "--config=configs/decoder.py",
        *TINY,
        "--lengths=32,64",
        "--window=16",
        "--cell_seconds=0.2",
        "--only=training: window;decoding: dense",
        f"--out={tmp_path}",
    ]
    assert benchmark.main([*line, "--memory=1GiB"]) == 0
    records = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert len(records) == 4
    assert all(min(r["held_bytes"], r["seconds"]) > 0 for r in records)
    assert "| dense | decoding | **" in capsys.readouterr().out


@pytest.mark.slow
def test_it_runs_in_small_on_a_cpu_and_goes_on_where_it_was(tmp_path):
    """The whole way, with what may be absent absent: workers, records, the table, and a second call."""
    (tmp_path / "sitecustomize.py").write_text(ABSENT)
    only = "kernel, kerple();attention, fb, 128: alibi"
    command = [sys.executable, "-m", "experiments.benchmark", "accelerator", f"--out={tmp_path}", f"--only={only}"]
    cheap = {name: os.environ[name] for name in ("JAX_DISABLE_MOST_OPTIMIZATIONS", "XLA_FLAGS") if name in os.environ}
    environment = {"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    environment |= {"JAX_PLATFORMS": "cpu", **cheap}
    outputs = [
        subprocess.run(command, cwd=REPO, capture_output=True, text=True, env=environment).stdout for _ in range(2)
    ]
    records = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    names = [(record["cell"]["title"], record["contender"]) for record in records]
    assert len(set(names)) == len(records) == 3
    assert not [record["skip"] for record in records if record["skip"]]
    (kernel,) = (record for record in records if "found" in record)
    ran = {name: result for name, result in kernel["found"].items() if "refused" not in result}
    assert {"blockwise", "dense", "pallas_interpret"} == set(ran)
    assert all(agrees(kernel, result) for result in ran.values())
    assert "This was run on a CPU, in small" in (tmp_path / "table.md").read_text()
    assert "0 to measure" in outputs[1]
