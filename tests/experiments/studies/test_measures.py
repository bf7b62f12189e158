"""The values of measures for models with known answers."""

import types

import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from experiments.report.units import title_of
from experiments.studies.measures import Subject, first_token, positions, scores, tokens_per_byte, windows_of
from experiments.studies.plan import Row
from experiments.studies.weights import Weights
from posjax.jsonl import append_jsonl
from posjax.training.classification import Classification
from posjax.training.runs import Run

LENGTH = 8


def task():
    tokens = np.random.default_rng(0).integers(0, 5, (60, LENGTH), np.int32)
    segment = np.ones((60, LENGTH), np.int32)
    segment[0, 4:] = 0
    batches = [{"tokens": tokens, "segment": segment}]
    return types.SimpleNamespace(evaluation=lambda: {"8": iter(batches)}, score=len)


class Model:
    """Two layers: tokens alone, and tokens beside where they stand."""

    depth = 1

    def apply(self, variables, tokens, site, method, mutable):
        x = jnp.stack([tokens, tokens**2], axis=-1).astype(jnp.float32)
        place = jnp.broadcast_to(jnp.asarray(site.position, jnp.float32), tokens.shape)
        knows = jnp.concatenate([x, place[..., None] * variables["params"]], axis=-1)
        attention = dict.fromkeys(("queries", "keys", "values"), (x,))
        attention["weights"] = (jnp.repeat(x[:, None, :, :1], tokens.shape[1], axis=-1),)
        trunk = {"tokens_in": (x,), "tokens_0": (knows,), "block_0": {"attention": attention}}
        return None, {"intermediates": {"trunk": trunk}}


def subject(metrics, directory):
    run = Run(task(), Model(), np.array([1.0, 0.0], np.float32), (3, 4), ConfigDict(), 1, {})
    weights = Weights(run, "", metrics, directory)
    return Subject(Row("text", "none", "none", ConfigDict()), ConfigDict(), weights, weights, (3, 4))


def test_the_error_of_a_probe_after_each_block_of_text_and_of_random_tokens(tmp_path):
    knows, does_not = positions(subject({}, tmp_path), ConfigDict({"windows": 40, "seed": 0}))
    assert set(knows) == {"position error", "position error, random tokens"}
    for name, found in knows.items():
        assert found[1] < 0.2
        assert does_not[name][1] > 1.7  # a guess errs by 2
        assert found[0] > 1.7


def test_attention_on_the_first_token_is_a_mean_over_queries_and_windows(tmp_path):
    """The model's queries attend to the first token with a weight that is their own token."""
    found = first_token(subject({}, tmp_path), ConfigDict({"windows": 40}))
    assert [[*metrics] for metrics in found] == [["attention on the first token"]] * 2
    assert found[1]["attention on the first token"] == {0: pytest.approx(windows_of(task(), 40).mean())}


def test_windows_that_are_whole_are_taken():
    assert windows_of(task(), 59).shape == (59, LENGTH)
    with pytest.raises(ValueError, match=r"windows=60 of a measure must lie in 2\.\.59"):
        windows_of(task(), 60)


def test_scores_are_those_of_the_seeds_with_a_thinned_curve(tmp_path):
    lines = [{"step": step, "loss": [step / 2, -step]} for step in range(1, 251)]
    append_jsonl(tmp_path / "metrics.jsonl", [*lines, {"step": 250, "eval_loss": [0, 0]}])
    metrics = {"accuracy": np.array([0.5, np.nan]), "loss": {"8": np.array([1.0, 2.0]), "16": np.array([3.0, np.inf])}}
    one, other = scores(subject(metrics, tmp_path), ConfigDict())
    assert (one["accuracy"], other["accuracy"]) == (0.5, None)
    assert (one["loss"], other["loss"]) == ({8: 1.0, 16: 3.0}, {8: 2.0, 16: None})
    curve = other["training loss"]
    assert curve[250] == -250
    assert len(curve) == 84
    assert set(np.diff([*curve])) == {3}


def test_the_loss_per_byte_counts_the_bytes_of_tokens():
    """Four bytes, and a letter of two bytes that is one token here."""
    tokenizer = types.SimpleNamespace(decode=lambda tokens: "".join("aé"[token] for token in tokens))
    assert tokens_per_byte(tokenizer, np.array([0, 1, 0])) == 3 / 4
    assert title_of("loss per byte in sliding windows", "token") == "loss per byte in sliding windows (nats)"


def test_guessing_is_one_answer_for_all_test_images():
    images = type("Images", (), {"label": np.array([0, 0, 1, 2]), "__len__": lambda self: 4})
    task = types.SimpleNamespace(eval_data=images(), classes=3)
    expected = {"accuracy": 0.5, "loss": 1.5 * np.log(2), "classes": 3, "examples": 4}
    assert Classification.guess.fget(task) == pytest.approx(expected)
