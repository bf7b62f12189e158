"""What is asked of the rows of an ablation of text, layer by layer."""

import types

import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from experiments.studies import position_probes
from experiments.studies.ablation import Ablation
from experiments.studies.position_probes import PositionProbes, windows_of
from experiments.studies.study import Row, Weights
from posjax.training.runs import Run

LENGTH = 8


def study(**probe):
    probe = {"windows": 40, "seed": 0, "checkpoints": {}} | probe
    return PositionProbes(ConfigDict({"seeds": (0, 1), "studies": {}, "probe": probe, "name": "toy"}))


def task():
    tokens = np.random.default_rng(0).integers(0, 5, (60, LENGTH), np.int32)
    segment = np.ones((60, LENGTH), np.int32)
    segment[0, 4:] = 0
    batches = [{"tokens": tokens, "segment": segment}]
    return types.SimpleNamespace(evaluation=lambda: {"8": iter(batches)}, score=len)


class Model:
    """Two layers: tokens alone, and tokens beside where they stand."""

    depth = 1

    def apply(self, variables, tokens, site, mutable):
        x = jnp.stack([tokens, tokens**2], axis=-1).astype(jnp.float32)
        place = jnp.broadcast_to(jnp.asarray(site.position, jnp.float32), tokens.shape)
        knows = jnp.concatenate([x, place[..., None] * variables["params"]], axis=-1)
        return None, {"intermediates": {"trunk": {"tokens_in": (x,), "tokens_0": (knows,)}}}


def test_rows_tell_the_error_after_each_block_of_text_and_of_random_tokens(tmp_path, monkeypatch):
    monkeypatch.setattr(Ablation, "measure", lambda *given: [{"metrics": {"loss": 1.0}} for _ in given[-1]])
    config = ConfigDict({"optimizer": {"learning_rate": 0.03}})
    run = Run(task(), Model(), np.array([1.0, 0.0], np.float32), (0, 1), config, 1, {})
    row = Row("text", "none", "none", ConfigDict(), "none()")
    weights = Weights(run, "", {}, tmp_path)
    knows, does_not = (each["metrics"] for each in study().measure(row, weights, weights, (0, 1)))
    assert set(knows) == {"loss"} | {
        f"position error after {block} blocks{name}" for block in (0, 1) for name in ("", ", random tokens")
    }
    for name in ("", ", random tokens"):
        assert knows[f"position error after 1 blocks{name}"] < 0.2
        assert does_not[f"position error after 1 blocks{name}"] > 1.7  # a guess errs by 2
        assert knows[f"position error after 0 blocks{name}"] > 1.7
    probed = study(checkpoints={"text": "elsewhere"}).measure(row, weights, weights, (0, 1))
    assert [each["learning_rate"] for each in probed] == [0.03, 0.03]  # that of the models, not of this study


def test_windows_that_are_whole_are_taken():
    assert windows_of(task(), 59).shape == (59, LENGTH)
    with pytest.raises(ValueError, match=r"probe\.windows=60 must lie in 2\.\.59"):
        windows_of(task(), 60)


def test_models_of_another_study_are_found_by_their_label(tmp_path, monkeypatch):
    run = types.SimpleNamespace(seeds=(0, 1, 2), config=ConfigDict({"steps": 1}))
    monkeypatch.setattr(position_probes, "load_run", lambda path, task_of: run)
    row = Row("causal", "none", "none", ConfigDict(), "none()")
    assert study().restored(row) is None
    probed = study(checkpoints={"causal": str(tmp_path)})
    with pytest.raises(ValueError, match="has 0 models of a row 'none'"):
        probed.restored(row)
    for name in ("none-0123456789ab", "none-rates-0123456789ab", "nonesuch-0123456789ab"):
        (tmp_path / "models" / name).mkdir(parents=True)
    assert probed.restored(row).directory.name == "none-0123456789ab"
    run.seeds = (1, 2)
    with pytest.raises(ValueError, match="has no seed 0"):
        probed.restored(row)
