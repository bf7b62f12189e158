"""Tasks train as their config says, and every evaluated length scores the same tokens."""

import jax
import numpy as np
import pytest
from drawn import drawn
from small import small_decoder, small_vit

from posjax import data
from posjax.training.optimizer import make_optimizer
from posjax.training.tasks import make_task


def perturbed(task):
    """Parameters away from their initial values: a head of zeros would hide everything."""
    return drawn(task.init, jax.random.key(0), spread=0.5)


def losses(task, params, *keys):
    """The loss of the first batch under each of these keys."""
    batch, loss = task.batches(0)[0], jax.jit(task.loss)
    sums = [loss(params, batch, jax.random.key(key)) for key in keys]
    return [float(total / weight) for total, weight in sums]


@pytest.fixture(scope="module")
def plain(data_dir):
    """Parameters, and of a task without options the loss, a batch to be scored and its scores."""
    task = make_task(small_vit(data_dir))
    params, batch = perturbed(task), next(task.evaluation()[None])
    return params, losses(task, params, 0), batch, jax.jit(task.score)(params, batch)


@pytest.mark.parametrize(
    "overrides",
    [
        {"label_smoothing": 0.2},
        {"data__mixup": 0.5},
        {"data__least_area": 0.3},
        pytest.param({"data__crop_padding": 2}, marks=pytest.mark.slow),
        pytest.param({"data__flip": True}, marks=pytest.mark.slow),
        {"model__dropout": 0.5},
    ],
    ids=lambda overrides: "+".join(overrides),
)
def test_options_of_training_act_in_training_and_not_in_scores(data_dir, plain, overrides):
    task = make_task(small_vit(data_dir, **overrides))
    params, (exact,), batch, scores = plain
    first, again, other = losses(task, params, 0, 0, 1)
    assert abs(first - exact) > 1e-4
    assert first == again
    assert (first == other) == ("label_smoothing" in overrides)  # which draws nothing
    scored = jax.jit(task.score)(params, batch)
    for name, value in scores.items():
        np.testing.assert_allclose(scored[name], value, rtol=1e-6, err_msg=name)


def test_reflected_and_black_padding_differ(data_dir):
    tasks = [make_task(small_vit(data_dir, data__crop_padding=2, data__padding=kind)) for kind in ("black", "reflect")]
    black, reflected = (losses(task, perturbed(task), 0) for task in tasks)
    assert black != reflected


def test_an_untrained_vit_is_undecided(data_dir):
    task = make_task(small_vit(data_dir))
    np.testing.assert_allclose(losses(task, jax.jit(task.init)(jax.random.key(0)), 0), np.log(10), rtol=1e-6)


def test_scores_of_images_are_those_of_each_alone(data_dir):
    task = make_task(small_vit(data_dir, eval_batch_size=100))
    params, batches = perturbed(task), list(task.evaluation()[None])
    assert [len(batch["label"]) for batch in batches] == [100] * 4
    last = batches[-1]
    assert last["weight"].sum() == 64  # 364 images
    score = jax.jit(task.score)
    whole = score(params, last)
    for name, value in score(params, {name: x[:64] for name, x in last.items()}).items():
        np.testing.assert_allclose(whole[name], value, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("positions", ["window", "document"])
def test_every_length_scores_the_same_tokens(data_dir, positions):
    config = small_decoder(data_dir, eval_lengths=(64, 16, 32), data__positions=positions, model__encoding="rope")
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


def test_only_as_many_tokens_are_evaluated_as_are_asked_for(data_dir):
    whole, part = (make_task(small_decoder(data_dir, eval_tokens=tokens)) for tokens in (None, 129))
    scored = [np.concatenate([b["targets"][b["segment"] > 0] for b in t.evaluation()["16"]]) for t in (whole, part)]
    assert len(scored[1]) == 128
    assert np.array_equal(scored[0][:128], scored[1])


def test_a_table_for_every_byte_of_a_long_document_is_not_made_unasked(data_dir, monkeypatch):
    monkeypatch.setattr("posjax.training.tasks.LARGEST_TABLE", 1000)
    task = make_task(small_decoder(data_dir, data__positions="document", model__encoding="learned"))
    with pytest.raises(ValueError, match=r"config\.model\.length, or data\.positions='window'"):
        task.init(jax.random.key(0))


def test_weights_divide_the_loss_of_text(data_dir):
    task = make_task(small_decoder(data_dir))
    params, batch = perturbed(task), task.batches(0)[0]
    batch["weight"][:4] = 0.0
    score, loss = jax.jit(task.score), jax.jit(task.loss)
    total, weight = loss(params, batch, jax.random.key(0))
    assert weight == batch["weight"].sum() == score(params, batch)["weight"] > 0
    other = {**batch, "targets": np.concatenate([1 + batch["targets"][:4], batch["targets"][4:]])}
    assert loss(params, other, jax.random.key(0))[0] == total
    np.testing.assert_allclose(score(params, other)["loss"], total, rtol=1e-5)


def test_a_table_holds_as_many_positions_as_the_data_have(data_dir):
    def rows(**overrides):
        task = make_task(small_decoder(data_dir, model__encoding="learned", **overrides))
        return task.model.length

    assert rows() == 64
    assert rows(data__length=128) == 128
    assert rows(model__length=100) == 100
    text = data.load_text("pydoc_topics", "train", data_dir)  # each Python has its own
    longest = int(np.diff([*text.starts, len(text)]).max())
    assert rows(data__positions="document") == longest > 10_000


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"model__length": 63}, r"model\.length=63 is below the 64 positions .*eval_lengths=\(16, 64\)"),
        ({"model__length": 64, "data__positions": "document"}, r"model\.length=64 is below the \d+ positions"),
        ({"eval_lengths": (16, 24)}, r"align=24 must be a positive multiple of length=16"),
        ({"eval_tokens": 1}, r"eval_tokens=1 must lie in 2\.\.\d+"),
        ({"eval_lengths": ()}, r"eval_lengths=\(\) must be lengths"),
        ({"eval_lengths": (0, 16)}, r"eval_lengths=\(0, 16\) must be lengths of at least 1"),
        ({"eval_lengths": (16, 16 * 4096)}, r"'pydoc_topics' has [\d,]+ tokens, fewer than one window of length=65536"),
        ({"data__positions": "offset"}, r"positions='offset' must be one of 'document', 'window'"),
        ({"data__name": "digits"}, r"'digits' is not a set of text: .*load_images"),
        ({"data__eval_split": "validaton"}, r"no split 'validaton', .* did you mean 'validation'\?"),
        (
            {"data__ladder": {"start": 99, "steps": 2}},
            r"data\.ladder: start=99, the first context, must lie in 1\.\.16",
        ),
        ({"data__ladder": {"start": 4, "steps": 999}}, r"data\.ladder\.steps=999 are more than steps="),
        ({"data__ladder": {"steps": -1}}, r"data\.ladder: steps=-1 in which a context grows must not be negative"),
        ({"data__ladder": {"schedule": "linaer"}}, r"no schedule is named 'linaer'; known: linear, sin"),
        ({"task": "language_modle"}, r"no task is named 'language_modle'; did you mean 'language_model'\?"),
    ],
)
def test_sizes_of_text_that_cannot_be_are_refused_before_training(data_dir, overrides, message):
    with pytest.raises(ValueError, match=message):
        make_task(small_decoder(data_dir, **overrides))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"model__patch_size": 3},
            r"patches of 3x3 do not tile an image of 8x8: crop .* to 6 x 6, .*patch_size of a model .* may be \[1, 2, 4, 8\]",
        ),
        ({"eval_batch_size": 0}, r"batch_size=0 must be at least 1"),
        ({"label_smoothing": 1.5}, r"label_smoothing=1\.5 must lie in \[0, 1\)"),
        ({"data__name": "pydoc_topics"}, r"'pydoc_topics' is not a set of images"),
    ],
)
def test_sizes_of_images_that_cannot_be_are_refused_before_training(data_dir, overrides, message):
    with pytest.raises(ValueError, match=message):
        make_task(small_vit(data_dir, **overrides))


@pytest.mark.parametrize("injection", ["stem", "every_layer"])
@pytest.mark.parametrize("small", [small_vit, small_decoder], ids=["vit", "decoder"])
def test_weight_decay_leaves_tables_and_offsets_alone(data_dir, small, injection):
    """With gradients of zero nothing moves but what decays."""
    config = small(data_dir, model__encoding="learned + t5", model__injection=injection)
    if small is small_vit:
        config.model.num_registers = 2
    params = perturbed(make_task(config))

    def moved(**options):
        optimizer, _ = make_optimizer(
            total_steps=9, learning_rate=1.0, weight_decay=0.1, schedule="constant", **options
        )
        zeros = jax.tree.map(np.zeros_like, params)
        updates = jax.jit(lambda params: optimizer.update(zeros, optimizer.init(params), params)[0])(params)
        leaves = jax.tree_util.tree_leaves_with_path(jax.tree.map(np.asarray, updates))
        return {jax.tree_util.keystr(path, simple=True, separator="/") for path, leaf in leaves if leaf.any()}

    everything = {
        jax.tree_util.keystr(path, simple=True, separator="/")
        for path, _ in jax.tree_util.tree_leaves_with_path(params)
    }
    tables = {name for name in everything if "/encoding" in name}
    own = "encoding_0" if injection == "every_layer" else "encoding"
    assert len(tables) == 2
    assert all(name.startswith(f"trunk/{own}/") for name in tables)
    kernels = {name for name in everything if name.endswith(("/kernel", "/embedding"))}
    assert moved() == kernels
    assert moved(decay_encoding=True) == kernels | tables
