"""Single runs made small: their configs, the state that one has saved, and runs that nobody trained."""

import jax
import numpy as np
import orbax.checkpoint as ocp

from experiments.cli import load
from posjax.jsonl import read_jsonl
from posjax.training.checkpoints import Checkpoints
from posjax.training.identity import describe_run, write_run
from posjax.training.step import starter
from posjax.training.tasks import make_task

SMALL = {"model.width": 8, "model.depth": 1, "model.num_heads": 2, "optimizer.warmup_steps": 2}


def small_vit(data_dir, **overrides):
    """configs/vit.py, small; `model__width=4` overrides model.width."""
    return _small(
        "vit", {**SMALL, "model.patch_size": 4, "batch_size": 16, "eval_batch_size": 364}, data_dir, overrides
    )


def small_decoder(data_dir, **overrides):
    """configs/decoder.py, small."""
    sizes = {"data.length": 16, "data.positions": "window", "eval_lengths": (16, 64), "eval_batch_size": 512}
    return _small("decoder", {**SMALL, **sizes, "batch_size": 8}, data_dir, overrides)


def small_problems(**overrides):
    """configs/algorithmic.py, small."""
    sizes = {
        "data.length": 3,
        "model.encoding": "rope",
        "eval_lengths": (3, 4, 6),
        "eval_examples": 6,
        "eval_batch_size": 4,
    }
    return _small("algorithmic", {**SMALL, **sizes, "batch_size": 4}, None, overrides)


def _small(name, sizes, data_dir, overrides):
    config = load(f"configs/{name}.py")
    loop = {"steps": 12, "log_every": 1, "eval_every": 0, "checkpoint_every": 5}
    loop |= {} if data_dir is None else {"data.data_dir": str(data_dir)}  # problems are drawn
    overrides = {key.replace("__", "."): value for key, value in overrides.items()}
    config.update_from_flattened_dict({**sizes, **loop, **overrides})
    return config


def saved(workdir):
    """{path: bytes} of the state in the newest checkpoint of a run, as orbax reads it."""
    newest = max((workdir / "checkpoints").iterdir(), key=lambda path: int(path.name) if path.name.isdigit() else -1)
    with ocp.StandardCheckpointer() as checkpointer:
        leaves = checkpointer.restore(newest / "tree")
    keys = {path: jax.random.key_data(leaf) for path, leaf in leaves.items() if path.endswith(".key")}
    return {path: np.asarray(leaf).tobytes() for path, leaf in (leaves | keys).items() if "times" not in path}


def metrics_of(workdir):
    """The lines of metrics.jsonl, without the times and speeds, which no two runs share."""
    own = ("tokens_per_s", "images_per_s", "data_wait", "elapsed")
    return [{k: x for k, x in line.items() if k not in own} for line in read_jsonl(workdir / "metrics.jsonl")]


def write_trained(config, seeds, workdir, *steps):
    """Writes what `train` leaves of a run, with drawn numbers for learned ones: nothing is compiled. Returns its task."""
    task = make_task(config)
    shapes = jax.eval_shape(starter(task, config, seeds))
    write_run(workdir, describe_run(task, config, seeds))
    with Checkpoints(workdir / "checkpoints") as checkpoints:
        for step in steps or (config.steps,):
            rng = np.random.default_rng(step)
            state = jax.tree.map(lambda leaf, rng=rng: _drawn_leaf(leaf, rng), shapes)._replace(
                step=np.array(step, np.int32)
            )
            checkpoints.save(step, {"state": state, "times": {"elapsed": 1.0, "step_time": 0.5, "in_steps": 1.0}})
    return task


def _drawn_leaf(leaf, rng):
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(rng.integers(0, 2**32, (*leaf.shape, 2), np.uint32))
    return np.asarray(rng.normal(size=leaf.shape)).astype(leaf.dtype)
