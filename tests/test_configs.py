"""No field of a config is dead: each one is read by some run."""

import json
import pathlib

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict, config_dict

from experiments import train
from experiments.cli import load
from experiments.studies import environment
from experiments.studies.engine import plan
from experiments.studies.weights import row_hash
from posjax.training import loop
from posjax.training.identity import identity, read_run, write_run

CONFIGS = pathlib.Path(__file__).parents[1] / "configs"


@pytest.fixture
def read(monkeypatch):
    """The (config, field) pairs that were read, except by those who copy a whole config."""
    seen, copying = set(), []
    get, to_dict = ConfigDict.__getitem__, ConfigDict.to_dict

    def recorded(self, key):
        if not copying:
            seen.add((id(self), key))
        return get(self, key)

    def copied(self, *arguments, **options):
        copying.append(True)
        try:
            return to_dict(self, *arguments, **options)
        finally:
            copying.pop()

    monkeypatch.setattr(ConfigDict, "__getitem__", recorded)
    monkeypatch.setattr(ConfigDict, "to_dict", copied)
    return seen


class Traced(loop.Programs):
    """Programs that are traced and computed by nobody: every step returns the state as it was."""

    def trace(self):
        super().trace()
        state, batch = self.shapes(), next(iter([*self.task.evaluation().values()][-1]))
        scores = jax.eval_shape(self.score, state.params, batch)
        zeros = jax.tree.map(lambda leaf: leaf if leaf.dtype.name.startswith("key") else np.zeros(leaf.shape), state)
        self.start = lambda initial: zeros._replace(
            step=np.zeros((), np.int32), key=jax.random.split(jax.random.key(0), 1)
        )
        report = dict.fromkeys(("loss", "grad_norm"), np.ones(1))
        self.step = lambda state, batch: (state._replace(step=np.asarray(state.step + 1, np.int32)), report)
        self.score = lambda params, batch: dict.fromkeys(scores, np.ones(1))


SMALL = {"steps": 2, "batch_size": 4, "model.width": 8, "model.depth": 1, "model.num_heads": 2}
SMALL |= {"optimizer.warmup_steps": 1, "checkpoint_every": 2, "eval_every": 0}
SMALL_TEXT = {"data.length": 16, "eval_lengths": (16,), "data.positions": "window", "eval_batch_size": 512}
SMALL_VIT = {"model.patch_size": 4}


@pytest.mark.parametrize(
    ("name", "kinds"), [("vit", [SMALL_VIT, SMALL_VIT | {"data.mode": "native"}]), ("decoder", [SMALL_TEXT])]
)
def test_every_field_of_a_config_is_read(name, kinds, read, tmp_path, monkeypatch):
    """Every field is read by some kind of run."""
    monkeypatch.setattr(environment, "compilation_cache", lambda directory: None)  # it would stay on for other tests
    monkeypatch.setattr(loop, "Programs", Traced)
    dead = None
    for kind, sizes in enumerate(kinds):
        config = load(f"configs/{name}.py")
        config.update_from_flattened_dict({**SMALL, **sizes, "data.data_dir": str(tmp_path / "data")})
        groups = {"": config, **{key: value for key, value in config.items() if isinstance(value, ConfigDict)}}
        read.clear()
        train.main(config.lock(), tmp_path / f"run{kind}")
        unread = {
            f"{name}.{key}".lstrip(".")
            for name, group in groups.items()
            for key in group
            if (id(group), key) not in read
        }
        dead = unread if dead is None else dead & unread
    assert sum(len(group) for group in groups.values()) > 30
    assert dead == set()


def hashes(study):
    """{label of a row: hash} of what a committed config trains."""
    config = load(f"configs/{study}.py")
    return {(row.study, row.label): row_hash(row.training) for row in plan(config).rows}


@pytest.mark.parametrize(
    ("study", "rows"),  # others are trained at a rate that was chosen for them
    [("quickstart", 12), ("trained", 40), ("fashion_vit", 6), ("papers/vit_table8", 8), ("papers/state_tracking", 6)],
)
def test_committed_results_keep_their_hashes(study, rows):
    path = CONFIGS.parent / "results" / pathlib.Path(study).name / "results.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    committed = {(each["study"], each["row"], each["config_hash"]) for each in records}
    assert len(committed & {(*row, name) for row, name in hashes(study).items()}) == rows


@pytest.mark.parametrize("name", ["decoder", "vit", "algorithmic", "extrapolate", "papers/retrieval"])
def test_a_new_field_counts_where_it_is_set(name):
    config = load(f"configs/{name}.py")
    before = identity(config)
    for group in (config, config.data, config.model, config.optimizer):
        group.new = config_dict.placeholder(str)  # its default is None, as of every field that is added
    assert identity(config) == before
    config.model.new = "x"
    assert identity(config) == before | {"model.new": "x"}


def test_augmentation_counts_as_in_committed_results_and_saved_runs_are_read(tmp_path):
    """Five fields said it before data.augment; a text that they cannot say counts as it is."""
    config = load("configs/vit.py")
    was = {"crop_padding": 0, "flip": False, "least_area": 1.0, "mixup": 0.0, "padding": "black"}
    for text, given in (
        (None, {}),
        ("resized_crop(least_area=0.3) + flip()", dict(least_area=0.3, flip=True)),
        ("shift(padding=2, fill='reflect') + mixup(alpha=0.2)", dict(crop_padding=2, padding="reflect", mixup=0.2)),
    ):
        config.data.augment, earlier = text, was | given
        counted = {name.removeprefix("data."): value for name, value in identity(config).items()}
        assert counted.items() >= earlier.items()
        flat = {f"data.{name}": value for name, value in earlier.items()}
        write_run(tmp_path, {"fields": flat, "config": {"data": earlier}})
        assert read_run(tmp_path) == {"fields": {"data.augment": text}, "config": {"data": {"augment": text}}}
    for text in ("randaug(n=2, m=10)", "flip() + shift(padding=2)", "flip() + color_jitter(strength=0.3)"):
        config.data.augment = text
        assert identity(config)["data.augment"] == text
        assert not identity(config).keys() & {"data.flip", "data.mixup"}


def test_a_field_with_another_default_counts_where_it_differs():
    config = load("configs/decoder.py")
    before = identity(config)
    config.data.files, config.data.text_field, config.data.ladder.steps = "DIR", "content", 5
    config.model.latent, config.model.remat, config.model.scan = "latent(4, 4, 4, 4)", "full", True
    changes = {"data.files": "DIR", "data.text_field": "content", "data.ladder.steps": 5}
    changes |= {"model.latent": "latent(4, 4, 4, 4)", "model.remat": "full", "model.scan": True}
    assert identity(config) == before | changes
