"""Tasks train as their config says, and every evaluated length scores the same tokens."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from drawn import drawn
from small import small_decoder, small_vit

import posjax as pj
from posjax import data
from posjax.training.optimizer import decays
from posjax.training.tasks import make_task

DRAWS = {"dropout", "place"}


def answering(task, logits):
    """The task with `logits(input)` for a model: what it computes beside a model compiles at once."""

    def apply(variables, x, site, train=False, rngs=None):
        assert {*(rngs or {})} == (DRAWS if train else set())
        return logits(x)

    task.model = types.SimpleNamespace(apply=apply, vocab_size=getattr(task.model, "vocab_size", None))
    return task


def of_pixels(image):
    return image.reshape(len(image), -1)[:, 20:30]


@pytest.mark.slow
def test_options_of_training_act_in_training_and_not_in_scores(data_dir):
    plain = answering(make_task(small_vit(data_dir)), of_pixels)
    batch, scored = plain.batches(0)[0], next(plain.evaluation()[None])
    losses = {round(float(jax.jit(plain.loss)({}, batch, jax.random.key(0))[0]), 3)}
    for overrides in (
        {"label_smoothing": 0.2},
        {"loss": "bce"},
        {"data__augment": "mixup(0.5)"},
        {"data__augment": "cutmix(1)"},
        {"data__augment": "mixup(0.5) + cutmix(1)"},
        {"data__augment": "resized_crop(0.3)"},
        {"data__augment": "shift(2)"},
        {"data__augment": "shift(2, fill='reflect')"},
        {"data__augment": "flip"},
    ):
        task = answering(make_task(small_vit(data_dir, **overrides)), of_pixels)
        loss = jax.jit(task.loss)
        first, again, other = (float(loss({}, batch, jax.random.key(each))[0]) for each in (0, 0, 1))
        assert first == again
        assert (first == other) == ("data__augment" not in overrides)  # the others draw nothing
        losses.add(round(first, 3))
        assert str(jax.make_jaxpr(task.score)({}, scored)) == str(jax.make_jaxpr(plain.score)({}, scored))
    assert len(losses) == 10


def test_rows_that_fill_up_a_batch_score_nothing(data_dir):
    task = answering(make_task(small_vit(data_dir, eval_batch_size=100)), of_pixels)
    batches = list(task.evaluation()[None])
    assert [len(batch["label"]) for batch in batches] == [100] * 4
    last = batches[-1]
    assert last["weight"].sum() == 64  # 364 images
    score = jax.jit(task.score)
    whole, part = score({}, last), score({}, {name: x[:64] for name, x in last.items()})
    for name, value in part.items():
        np.testing.assert_allclose(whole[name], value, rtol=1e-5, err_msg=name)


def test_every_length_scores_the_same_tokens(data_dir):
    config = small_decoder(data_dir, eval_lengths=(64, 16, 32), data__positions="document", model__encoding="rope")
    scored = {}
    for name, batches in make_task(config).evaluation().items():
        batches = list(batches)
        assert {batch["tokens"].shape[1] for batch in batches} == {int(name)}
        assert len({batch["tokens"].size for batch in batches}) == 1
        targets = [batch["targets"][batch["weight"] > 0] for batch in batches]
        scored[name] = np.concatenate(targets)
    assert list(scored) == ["16", "32", "64"]
    assert len(scored["64"]) > 46_000
    assert np.array_equal(scored["16"], scored["64"])
    assert np.array_equal(scored["32"], scored["64"])


@pytest.mark.parametrize("positions", ["window", "stream"])
def test_known_sites_are_those_of_the_batch(data_dir, positions):
    """A window hides what a kernel needs known positions for; losses are as with all sites traced."""
    task = make_task(small_decoder(data_dir, model__encoding="rope + window(5)", data__positions=positions))
    params = drawn(task.init, jax.random.key(0), spread=0.1, encoding="rope + window(5)")
    batch = task.batches(0)[0]
    site = task.site(batch)
    assert isinstance(site.position, np.ndarray)
    assert site.segment.ndim == (2 if positions == "window" else 1)

    def losses(params, batch, site):
        logits = task.model.apply({"params": params}, batch["tokens"], site)
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"]) * batch["weight"]

    traced = pj.Site(batch["position"], batch["segment"], np.zeros_like(batch["segment"]))
    both = jax.jit(lambda params, batch, traced: (losses(params, batch, traced), losses(params, batch, site)))
    np.testing.assert_allclose(*both(params, batch, traced), atol=1e-5)


def test_only_as_many_tokens_are_evaluated_as_are_asked_for(data_dir):
    whole, part = (make_task(small_decoder(data_dir, eval_tokens=tokens)) for tokens in (None, 129))
    scored = [np.concatenate([b["targets"][b["segment"] > 0] for b in t.evaluation()["16"]]) for t in (whole, part)]
    assert len(scored[1]) == 128
    assert np.array_equal(scored[0][:128], scored[1])


def test_a_table_holds_as_many_positions_as_the_data_have(data_dir, monkeypatch):
    def rows(**overrides):
        return make_task(small_decoder(data_dir, model__encoding="learned", **overrides)).model.length

    assert rows() == 64
    assert rows(model__length=100) == 100
    text = data.load_text("pydoc_topics", "train", data_dir)  # each Python has its own
    longest = int(np.diff([*text.starts, len(text)]).max())
    assert rows(data__positions="document") == longest > 10_000
    monkeypatch.setattr("posjax.training.tasks.LARGEST_TABLE", 1000)  # one of a row for every byte is not made unasked
    task = make_task(small_decoder(data_dir, data__positions="document", model__encoding="learned"))
    with pytest.raises(ValueError, match=r"config\.model\.length"):
        task.init(jax.random.key(0))


def test_weights_divide_the_loss_of_text(data_dir, monkeypatch):
    def losses(model, params, tokens, site, targets, **options):
        return (tokens + 2 * targets).astype(np.float32)

    for module in ("tasks", "losses"):
        monkeypatch.setattr(f"posjax.training.{module}.token_losses", losses)
    task = make_task(small_decoder(data_dir))
    batch = task.batches(0)[0]
    batch["weight"][:4] = 0.0
    total, weight = task.loss({}, jax.tree.map(jnp.asarray, batch), jax.random.key(0))
    assert weight == batch["weight"].sum() == task.score({}, batch)["weight"] > 0
    other = {**batch, "targets": np.concatenate([1 + batch["targets"][:4], batch["targets"][4:]])}
    arrays = jax.tree.map(jnp.asarray, other)
    assert task.loss({}, arrays, jax.random.key(0))[0] == task.score({}, other)["loss"] == total


def test_what_cannot_be_is_refused_before_training(data_dir):
    for small, overrides, message in (
        (small_decoder, {"model__length": 63}, r"model\.length=63"),
        (small_decoder, {"eval_lengths": (16, 24)}, "align=24"),
        (small_decoder, {"eval_lengths": (0, 16)}, "eval_lengths"),
        (small_decoder, {"eval_tokens": 1}, "eval_tokens=1"),
        (small_decoder, {"data__ladder": {"start": 4, "steps": 999}}, r"data\.ladder\.steps=999"),
        (small_decoder, {"data__ladder": {"schedule": "linaer"}}, r"data\.ladder"),
        (small_decoder, {"task": "language_modle"}, "task"),
        (small_vit, {"model__patch_size": 3}, "patch_size"),
        (small_vit, {"label_smoothing": 1.5}, "label_smoothing=1.5"),
        (small_vit, {"loss": "bcee"}, "no loss is named 'bcee'; did you mean 'bce'"),
        (small_vit, {"data__augment": "flop"}, "no augmentation is named 'flop'; did you mean 'flip'"),
        (small_vit, {"data__augment": "inception_crop(9)"}, "differs from the model's images of 8x8"),
        (small_vit, {"model__dtype": "float33"}, r"model\.dtype"),
    ):
        with pytest.raises(ValueError, match=message):
            make_task(small(data_dir, **overrides))


@pytest.mark.parametrize("small", [small_vit, small_decoder], ids=["vit", "decoder"])
def test_weight_decay_leaves_tables_and_offsets_alone(data_dir, small):
    for injection, own in (("stem", "encoding"), ("every_layer", "encoding_0")):
        task = make_task(small(data_dir, model__encoding="learned + t5", model__injection=injection))
        shapes = jax.eval_shape(lambda task=task: task.init(jax.random.key(0)))
        leaves = jax.tree_util.tree_leaves_with_path(shapes)
        names = {jax.tree_util.keystr(path, simple=True, separator="/"): decays(path, leaf) for path, leaf in leaves}
        tables = [name for name in names if name.startswith(f"trunk/{own}/")]
        assert len(tables) == 2
        assert not any(names[name] for name in tables)
        assert {name for name, decayed in names.items() if decayed} == {
            name for name in names if name.endswith(("/kernel", "/embedding"))
        }
