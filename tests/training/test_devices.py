"""Devices that share batches, or sequences too, train what one device trains."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from jax.sharding import PartitionSpec

from posjax.training.devices import make_context, shardings

TESTS = pathlib.Path(__file__).parents[1]
CURVES = """
import json, pathlib, sys
from small import small_decoder
from test_tasks import make_task
from posjax.training.loop import train
data_dir, workdir, context_parallel = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3])
config = small_decoder(
    data_dir, context_parallel=context_parallel, accumulate=2, steps=4, checkpoint_every=2, model__dropout=0.1,
    model__encoding="(randomized(128) >> alibi()) + fox() + t5()", data__positions="document",
)
curve = []
done = train(make_task(config), config, (0, 1), workdir, on_step=lambda step, report: curve.append(list(report.values())))
print(json.dumps([*curve, done.metrics["loss"]["64"]], default=lambda values: values.tolist()))
"""


def curve(devices: int, *arguments) -> list:
    """Losses and gradient norms of each step, and the final scores, of two seeds."""
    flags = {"JAX_NUM_CPU_DEVICES": str(devices), "JAX_PLATFORMS": "cpu"}
    paths = os.pathsep.join(str(path) for path in (TESTS.parent, TESTS, TESTS / "training"))
    done = subprocess.run(
        [sys.executable, "-c", CURVES, *map(str, arguments)],
        env=os.environ | flags | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_devices_that_share_sequences_train_what_one_trains(tmp_path):
    """8 devices in 2 groups of 4, with gradients accumulated, drawn positions and dropout, for two seeds."""
    one = curve(1, tmp_path, tmp_path / "one", 1)
    shared = curve(8, tmp_path, tmp_path / "shared", 4)
    for a, b in zip(one, shared, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4)


def test_one_device_shares_nothing():
    assert make_context(1) is None
    replicated, split = shardings(None)
    assert replicated.is_fully_replicated
    assert split.spec == PartitionSpec(None, "data")


@pytest.mark.parametrize("count", [0, -1, 2])
def test_devices_that_there_are_not_are_refused(count):
    with pytest.raises(ValueError, match=rf"context_parallel={count} does not divide 1 devices: it may be \[1\]"):
        make_context(count)
