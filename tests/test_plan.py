"""Plans of a training beside the compiler, the bytes of arrays, and arithmetic."""

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

from experiments import cli
from experiments import plan as command
from experiments.plan import ACCELERATORS, Accelerator, Plan, plan, predict
from posjax.encoding import sites
from posjax.models import BlockConfig, Decoder
from posjax.training.loop import Programs
from posjax.training.tasks import make_task

REPO = pathlib.Path(__file__).parents[1]
SEEDS = (0, 1)


def test_a_prediction_is_arithmetic():
    one = Plan(2, 10, 20, 1, 100, 131, None, 4e3, half=False)
    slow = predict(one, Accelerator(half=200.0, single=100.0, bandwidth=1e3, memory=262.0))
    assert slow == pytest.approx((20.0, 50.0, 0.5))
    starved = predict(one, Accelerator(200.0, 100.0, 1.0, 262.0))
    assert starved.at_best == starved.typical == 2 * 130
    assert predict(one._replace(half=True), Accelerator(200.0, 100.0, 1e3, 262.0)).at_best == 10
    with pytest.raises(ValueError, match="h100"):
        command.main(cli.load("configs/decoder.py"), pathlib.Path("unused"), accelerators=["h10"])
    assert all(0 < each.bandwidth < each.single <= each.half for each in ACCELERATORS.values())


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    """The config of a decoder with a large share of attention, and its plan."""
    sizes = dict(model__width=32, data__length=96, eval_lengths=(96,), eval_batch_size=64)
    config = small_decoder(tmp_path_factory.mktemp("data"), batch_size=4, model__implementation="dense", **sizes)
    return config, plan(config, SEEDS)


def bytes_of(tree):
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree) if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def test_the_state_and_the_batch_have_the_bytes_of_their_arrays(decoder):
    config, found = decoder
    task = make_task(config)
    state = Programs(task, config, SEEDS).start(None)
    assert (found.parameters, found.optimizer) == (bytes_of(state.params), bytes_of(state.opt_state))
    assert found.batch == len(SEEDS) * sum(jnp.asarray(leaf).nbytes for leaf in task.batches(0)[0].values())


def test_operations_are_those_that_xla_counts(decoder):
    """Operations of gradients alone are those of the whole step, to a tenth."""
    config, found = decoder
    programs = Programs(make_task(config), config, SEEDS)
    counted = programs.step.lower(*programs.arguments()).cost_analysis()["flops"]
    assert found.flops == pytest.approx(counted, rel=0.1)


@pytest.mark.slow
def test_the_cache_has_the_bytes_of_its_arrays(decoder):
    config, found = decoder
    model, token = (
        Decoder(256, config.model.encoding, block=BlockConfig(width=32, num_heads=2), depth=1),
        jnp.zeros((1, 1), jnp.int32),
    )
    variables = jax.jit(model.init)(jax.random.key(0), token, sites(1))
    prefill = functools.partial(model.apply, cache_size=96, method=Decoder.prefill)
    assert found.cache == bytes_of(jax.jit(prefill)(variables, token, sites(1))[1])


MEASURED = """
import gc, json, sys
from experiments.benchmarks.worker import _forget_peak, _status, _resident
import jax, numpy as np
sys.path.insert(0, "tests")
from small import small_decoder
from experiments.plan import plan
from posjax.training.loop import Programs
from posjax.training.tasks import make_task
sizes = dict(model__width=64, data__length=256, eval_lengths=(256,), eval_batch_size=64)
config = small_decoder(sys.argv[1], batch_size=32, model__implementation=sys.argv[2], **sizes)
found = plan(config, (0,))
task = make_task(config)
programs = Programs(task, config, (0,))
step = programs.step.lower(*programs.arguments()).compile()
batch = {name: np.asarray(x)[None] for name, x in task.batches(0)[0].items()}

def taken():  # bytes that a process grows by for the state, the batch and a step
    gc.collect()
    before, state = _resident(), programs.start(None)
    given = jax.device_put(batch)
    jax.block_until_ready((state, given))
    _forget_peak()
    jax.block_until_ready(step(state, given))
    return _status("VmHWM") - before

taken()  # compiles what starts, and the pools of threads
print(json.dumps([found.held, taken()]))
"""


@pytest.mark.thorough
def test_memory_is_what_a_running_step_takes(tmp_path):
    """Agrees within a tenth with a warm process: its peak over its memory without state and step.

    Uses blockwise attention: XLA's products on a CPU need arrays that its count leaves out, large ones in dense attention.
    """
    line = [sys.executable, "-c", MEASURED, str(tmp_path), "blockwise"]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(REPO), "POSJAX_ALLOCATOR": "default"}
    done = subprocess.run(line, cwd=REPO, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    predicted, measured = json.loads(done.stdout.splitlines()[-1])
    assert predicted > 2**26
    assert predicted == pytest.approx(measured, rel=0.1)


@pytest.mark.slow
def test_the_command_plans_for_devices_that_are_not_there(tmp_path):
    """Four devices share the batch: its rows and temporaries are a fourth on each, but the state is not."""
    sizes = [
        "--config=configs/decoder.py",
        "--config.model.width=32",
        "--config.model.depth=1",
        "--config.batch_size=16",
        "--config.data.length=64",
        "--config.model.implementation=blockwise",  # as on several devices
    ]
    sizes += [f"--config.data.data_dir={tmp_path}", "--accelerators=h100,tpu-v5e"]
    found = []
    for devices in (1, 4):
        line = [sys.executable, "-m", "experiments.plan", *sizes, f"--devices={devices}", f"--workdir={tmp_path}"]
        done = subprocess.run(line, cwd=REPO, env=os.environ, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        assert "| tpu-v5e |" in (tmp_path / "plan.md").read_text()
        found.append(json.loads((tmp_path / "plan.json").read_text()))
    one, four = found
    assert one["parameters"] == four["parameters"]
    assert one["flops"] == pytest.approx(four["flops"], rel=0.05)  # what each device does for itself counts four times
    assert one["batch"] == 4 * four["batch"]
    assert one["temporaries"] > 2.5 * four["temporaries"]
