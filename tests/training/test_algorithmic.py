"""Lengths that were not trained judge a row, each problem weighs the same, and padding changes nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import drawn
from small import small_problems

from posjax.training.evaluate import evaluate, make_score
from posjax.training.tasks import held_out_by, make_task


@pytest.fixture(scope="module")
def decoder():
    """A task, its parameters and their metrics."""
    given = dict(model__kind="decoder", data__name="copy_string", data__symbols=5, data__others=("reverse_string",))
    task = make_task(small_problems(**given))
    params = drawn(task.init, jax.random.key(0), spread=0.5)
    return task, params, evaluate(task, make_score(task), jax.tree.map(lambda leaf: leaf[None], params))


def test_a_row_is_judged_by_what_was_not_trained(decoder):
    _, _, found = decoder
    for metric in ("accuracy", "exact match"):
        own, other = found[f"{metric} by length"], found[f"{metric} by length, reverse_string"]
        assert list(own) == list(other) == ["3", "4", "6"]
        np.testing.assert_allclose(found[metric], np.mean([own["4"], own["6"], *other.values()]), rtol=1e-6)
    assert 0 < found["accuracy"][0] < 1


def test_scores_and_losses_are_means_over_problems_however_they_are_padded(decoder):
    task, params, found = decoder
    forward, right, exact, losses = jax.jit(lambda *given: task.logits(*given)), [], [], []
    (batch, last), of_score = task.evaluation()["copy_string@4"], found["accuracy by length"]["4"]
    assert (last["weight"][2:] == 0).all()
    for name, values in last.items():
        batch[name] = np.concatenate([batch[name], values[:2]])
    shorter = {name: values[:, :9] for name, values in batch.items()}  # four symbols, a mark, and four again
    assert not batch["segment"][:, 9:].any()
    logits = forward(params, shorter)
    for row in range(6):
        at = np.flatnonzero(shorter["weight"][row])
        targets = shorter["targets"][row, at]
        hits = np.asarray(logits)[row, at].argmax(axis=-1) == targets
        right, exact = [*right, hits.mean()], [*exact, hits.all()]
        losses.append(-jax.nn.log_softmax(logits[row, at])[np.arange(len(at)), targets].mean())
    np.testing.assert_allclose(of_score, np.mean(right), rtol=1e-6)
    np.testing.assert_allclose(found["exact match by length"]["4"], np.mean(exact), rtol=1e-6)
    total, weight = jax.jit(task.loss)(params, batch, jax.random.key(0))
    np.testing.assert_allclose(weight, 6, rtol=1e-6)
    np.testing.assert_allclose(total, np.sum(losses), rtol=1e-5)


def test_a_rate_is_chosen_by_the_longest_length_that_is_trained():
    config = small_problems(data__name="flip_flop", data__others=("flip_flop_sparse",), model__kind="decoder")
    chosen = held_out_by("algorithmic")(config, 0.1)
    own, judged = make_task(chosen), make_task(config)
    assert list(own.evaluation()) == ["flip_flop@3"]
    assert own.summed_up({"accuracy": {"flip_flop@3": np.float32(0.5)}})["accuracy"] == 0.5
    one, other = (next(task.evaluation()["flip_flop@3"])["tokens"] for task in (own, judged))
    assert not np.array_equal(one[:, :3], other[:, :3])
    assert np.array_equal(own.batches(3)[4]["tokens"], judged.batches(3)[4]["tokens"])
    assert chosen.data.choose_split == "length 3"


def test_positions_of_two_axes_reach_the_encoding():
    spec = "(axis(index=0) >> rope()) + (axis(index=1) >> abacus(length=16, max_offset=4))"
    given = dict(data__name="addition_reversed", data__positions="digits", model__kind="decoder", model__encoding=spec)
    task = make_task(small_problems(**given))
    params = drawn(task.init, jax.random.key(0))
    batch = next(task.evaluation()["addition_reversed@3"])
    moved = batch | {"position": batch["position"] + np.array([0, 1]) * (batch["position"] > 0)}
    forward = jax.jit(lambda *given: task.logits(*given))
    assert jnp.abs(forward(params, batch) - forward(params, moved)).max() > 1e-3


def test_cameras_reach_the_encoding():
    given = dict(data__name="novel_view", data__positions="views", model__encoding="prope()", eval_lengths=(1,))
    task = make_task(small_problems(**given, data__shortest=1, data__length=1, model__num_heads=1))
    params = drawn(task.init, jax.random.key(0), spread=0.5)
    batch = next(task.evaluation()["novel_view@1"])
    blank = batch["tokens"] % 8 == 6
    assert (blank == (batch["position"][..., :1] == 0)).all()  # the new view
    assert (batch["tokens"] // 8 == np.arange(16)).all()  # each pixel of a patch has tokens of its own
    forward = jax.jit(lambda *given: task.logits(*given))
    out = forward(params, batch)
    assert out.shape == (*batch["targets"].shape, 8)
    np.testing.assert_allclose(forward(params, batch | {"tokens": batch["tokens"][..., ::-1]}), out, atol=1e-4)  # a sum
    for pixel in (0, 15):
        other = batch["tokens"].copy()
        other[..., pixel] ^= 1
        assert jnp.abs(forward(params, batch | {"tokens": other}) - out).max() > 1e-3
    asked = batch["weight"] > 0
    shares = [(out.argmax(axis=-1) == batch["targets"])[row][asked[row]].mean() for row in range(len(out))]
    score = task.score(params, batch)
    np.testing.assert_allclose(score["accuracy"], sum(shares), rtol=1e-5)
    assert score["weight"] == len(shares)
    for name in ("view", "lens"):
        assert jnp.abs(forward(params, batch | {name: batch[name][:, ::-1]}) - out).max() > 1e-3


def test_what_does_not_fit_is_refused_before_training():
    coupled = dict(data__name="copy_string", data__positions="coupled", model__kind="decoder", model__encoding="fox")
    for overrides, message in (
        ({"eval_lengths": ()}, "eval_lengths"),
        ({"model__kind": "vit"}, "'vit'"),
        ({"model__length": 5}, r"model\.length=5"),
        ({"data__others": ("modular_arithmetic",)}, r"data\.others"),
        (coupled, r"data\.positions='coupled'"),
    ):
        with pytest.raises(ValueError, match=message):
            make_task(small_problems(**overrides))
