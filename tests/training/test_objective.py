"""Losses and reports against sums by hand: draws, weights, labels, pixels, seeds and seconds."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from ml_collections import ConfigDict
from PIL import Image
from small import small_decoder, small_vit
from test_tasks import answering, of_pixels

from posjax.training import loop
from posjax.training.clock import UNKNOWN_TIMES, Clock
from posjax.training.evaluate import evaluate, headline
from posjax.training.long_task import LongDocuments
from posjax.training.optimizer import make_optimizer
from posjax.training.step import init_state, make_step, optimizer_of
from posjax.training.tasks import make_task


def task_of(**parts):
    """A task that has these parts and can do nothing else."""
    fields = dict.fromkeys(("headline", "headline_mode", "digest", "context"))
    methods = dict.fromkeys(
        ("batches", "evaluation", "init", "loss", "score"), lambda *arguments: pytest.fail("called")
    )
    return types.SimpleNamespace(**fields | methods | parts)


def stepped(loss, accumulate=1, weight=1.0):
    """(parameters, report) after a step of plain descent on a batch of four, from 1."""
    task = task_of(init=lambda key: jnp.float32(1.0), loss=loss)
    optimizer = optax.sgd(1.0)
    batch = {"x": jnp.arange(4.0)[None], "weight": jnp.full((1, 4), weight)}
    step = jax.jit(lambda: make_step(task, optimizer, accumulate)(init_state(task, optimizer, (0,)), batch))
    state, report = step()
    return float(state.params[0]), {name: float(x[0]) for name, x in report.items()}


def test_a_batch_of_nothing_moves_nothing():
    """A batch of document ends, for example: all targets weigh 0."""
    params, report = stepped(
        lambda p, batch, key: ((p * batch["x"] * batch["weight"]).sum(), batch["weight"].sum()), 1, 0.0
    )
    assert (params, report) == (1.0, {"loss": 0.0, "grad_norm": 0.0})


def test_runs_of_one_ensemble_may_have_learning_rates_of_their_own():
    task = task_of(
        init=lambda key: {"w": jnp.full((2, 2), 1.0)},
        loss=lambda p, batch, key: (((p["w"] - batch["x"]) ** 2).sum(), jnp.float32(1)),
    )
    given = dict(total_steps=4, warmup_steps=1, weight_decay=0.3, clip_norm=1.0)

    def trained(rate, runs):
        rates = None if isinstance(rate, float) else rate
        step = jax.jit(make_step(task, make_optimizer(learning_rate=rate, **given)[0], rates=rates))
        state = jax.jit(lambda: init_state(task, make_optimizer(learning_rate=rate, **given)[0], (0,) * runs))()
        for _ in range(3):
            state, _ = step(state, {"x": jnp.full((runs, 1), 5.0)})
        return state.params["w"]

    np.testing.assert_allclose(trained((0.01, 0.1), 2), jnp.concatenate([trained(0.01, 1), trained(0.1, 1)]), rtol=1e-6)


def test_runs_at_several_rates_may_diverge():
    config = ConfigDict({"optimizer": {"learning_rate": (0.1, 0.9)}, "model": {"encoding": "rope"}})
    loop.refuse_non_finite({"loss": np.array([1.0, np.nan])}, 3, (7, 7), config)
    loop.refuse_non_finite({"loss": np.array([np.nan])}, 3, (7,), config)  # one rate, run after the others
    config.optimizer = {"learning_rate": 0.9}
    with pytest.raises(FloatingPointError, match="step 3: loss of seed 7 with encoding rope is nan"):
        loop.refuse_non_finite({"loss": np.array([np.nan, np.inf])}, 3, (7, 7), config)


@pytest.mark.parametrize("accumulate", [1, 4])
def test_steps_and_their_moving_average_by_hand(accumulate):
    """Parts of a batch weigh differently; the average moves once a step, and is float32 beside bfloat16 parameters."""
    xs, weights, decay = np.array([[1.0, 2, 3, 4], [4, 0, 1, 2]]), np.array([[1.0, 0, 3, 0.5], [2, 2, 0, 1]]), 0.7
    init = lambda key: {"w": jnp.float32(1.0), "half": jnp.bfloat16(1.01)}  # noqa: E731
    loss = lambda p, b, key: ((b["weight"] * (p["w"] - b["x"]) ** 2).sum(), b["weight"].sum())  # noqa: E731
    task, optimizer = task_of(init=init, loss=loss), optax.sgd(0.1)
    batch = {"x": jnp.asarray(xs, jnp.float32), "weight": jnp.asarray(weights, jnp.float32)}
    step = jax.jit(make_step(task, optimizer, accumulate, ema=decay), donate_argnums=0)
    state = jax.jit(lambda: init_state(task, optimizer, (0, 1), averages=True))()
    w = mean = np.ones(2)
    for _ in range(3):
        state, report = step(state, batch)
        np.testing.assert_allclose(
            report["loss"], (weights * (w[:, None] - xs) ** 2).sum(1) / weights.sum(1), rtol=1e-6
        )
        w = w - 0.1 * (2 * weights * (w[:, None] - xs)).sum(1) / weights.sum(1)
        mean = decay * mean + (1 - decay) * w
    np.testing.assert_allclose(state.params["w"], w, rtol=1e-6)
    np.testing.assert_allclose(state.ema["w"], mean, rtol=1e-6)
    np.testing.assert_allclose(state.ema["half"], 1.0078125, rtol=1e-6)
    assert jax.tree.map(lambda x: x.dtype, state.scored) == jax.tree.map(lambda x: x.dtype, state.params)
    np.testing.assert_array_equal(state.scored["w"], state.ema["w"])


def test_warm_up_is_counted_in_the_data():
    """Adam's update by a gradient that does not change is its rate."""
    config = ConfigDict({"steps": 40, "batch_size": 4, "task": "language_model", "data": {"length": 8}})
    config.optimizer = dict(learning_rate=1.0, schedule="constant", warmup_steps=1, warmup=None)

    def warmup(task, text):
        config.optimizer.warmup = text
        optimizer, w = optimizer_of(task, config), {"w": jnp.ones(())}
        _, state = optimizer.update(w, optimizer.init(w), w)
        updates, _ = optimizer.update(w, state, w)
        return round(-1 / float(updates["w"]), 3)

    task = task_of(train_data=range(160))
    assert [warmup(task, text) for text in (None, "4 epochs", "1Ki tokens", "0.5k tokens")] == [1, 20, 32, 16]
    config.task = "classification"
    assert warmup(task, "0.5 epochs") == 20
    for text, message in (
        ("3 tokens", "no number of tokens; set"),
        ("5 epoch", "must be epochs or tokens"),
        ("-1 epochs", "must"),
    ):
        with pytest.raises(ValueError, match=f"warmup='{text}'.*{message}"):
            warmup(task, text)
    with pytest.raises(ValueError, match="warmup_steps=40 leaves nothing"):
        warmup(task, "1 epochs")


def test_each_part_of_a_batch_draws_for_itself():
    """The mean square of two draws is the square of their mean only if they are one."""

    def drawn(power):
        return lambda p, batch, key: (p * jax.random.uniform(key) ** power, jnp.float32(1))

    (_, mean), (_, square) = (stepped(drawn(power), accumulate=2) for power in (1, 2))
    assert square["loss"] > mean["loss"] ** 2 + 1e-3


def test_the_best_checkpoint_is_that_of_the_mean_over_seeds_at_the_shortest_length():
    task = task_of(headline="loss")
    assert headline(task, {"loss": {"128": np.array([9.0, 9.0]), "64": np.array([1.0, 4.0])}}) == 2.5
    assert headline(task, {"loss": {"1024": np.array([9.0]), "64": np.array([1.0])}}) == 1.0  # as numbers, not as text
    assert headline(task, {"loss": np.array([1.0, 4.0])}) == 2.5


def test_scores_are_summed_in_double_precision():
    """float32 does not hold 16,777,217."""
    batches = [2.0**24, 1.0, 1.0, 1.0]
    task = task_of(evaluation=lambda: {None: iter(batches)})
    score = lambda params, batch: {"loss": jnp.full(2, batch, jnp.float32), "weight": jnp.full(2, 1.0)}  # noqa: E731
    np.testing.assert_array_equal(evaluate(task, score, None)["loss"], np.full(2, (2**24 + 3) / 4))


def test_smoothed_labels_by_hand(data_dir):
    """Whatever the image, this model answers the same: the target is 1 - s for the label, and s / 10 for all."""
    smoothing, logits = 0.3, np.linspace(-1, 2, 10, dtype=np.float32)
    task = make_task(small_vit(data_dir, label_smoothing=smoothing))
    batch = task.batches(0)[0]
    answering(task, lambda image: jnp.broadcast_to(logits, (len(image), 10)))
    log_prob = logits - np.log(np.exp(logits).sum())
    expected = -((1 - smoothing) * log_prob[batch["label"]] + smoothing / 10 * log_prob.sum())
    total, weight = jax.jit(task.loss)({}, batch, jax.random.key(0))
    np.testing.assert_allclose(total, expected.sum(), rtol=1e-5)
    assert weight == len(expected)


def test_training_sees_the_pixels_that_are_scored(data_dir):
    """The mean and deviation differ from 0.5; nothing is augmented."""
    task = answering(make_task(small_vit(data_dir, data__mean=(0.1,), data__std=(0.3,))), of_pixels)
    batch = task.batches(0)[0]
    np.testing.assert_allclose(task.standardised(np.array([[-1.0, 1.0]])), [[-1 / 3, 3.0]], atol=1e-6)
    total, _ = jax.jit(task.loss)({}, batch, jax.random.key(0))
    scored = jax.jit(task.score)({}, batch | {"weight": np.ones(16, np.float32)})
    np.testing.assert_allclose(total, scored["loss"], rtol=1e-5)


@pytest.fixture(scope="module")
def native(tmp_path_factory):
    """A task of five pictures, packed into rows with more room than they fill."""
    root, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for split in ("train", "test"):
        for number in range(5):
            path = root / split / "ab"[number % 2] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 255, (8, 12, 3), np.uint8)).save(path)
    sizes = dict(data__name="folder", data__mode="native", data__max_patches=6, data__tokens=20, data__augment="flip")
    return make_task(small_vit(root, **sizes, data__images_per_row=4, batch_size=2, model__encoding="rope(base=100)"))


def test_slots_without_an_image_weigh_nothing_and_images_are_flipped_if_asked(native, monkeypatch):
    batch, seen = native.batches(0)[0], []
    there = batch["weight"].sum()
    assert 0 < there < batch["weight"].size

    def outputs(model, params, batch, **options):
        seen.append(batch["patches"])
        return jnp.zeros((*batch["label"].shape, 2))

    monkeypatch.setattr(native, "outputs", outputs)
    loss = jax.jit(lambda key: (*native.loss({}, batch, key), seen.pop()))
    patches = []
    for key in range(4):
        total, weight, flipped = loss(jax.random.key(key))
        assert weight == there
        np.testing.assert_allclose(total, there * np.log(2), rtol=1e-6)
        np.testing.assert_array_equal(np.sort(flipped, axis=None), np.sort(batch["patches"], axis=None))
        patches.append(flipped)
    assert any((each != batch["patches"]).any() for each in patches)


def test_the_clock_counts_earlier_processes_and_takes_the_median(monkeypatch):
    """Three steps warm up; one of five was stuck for 100 seconds."""
    now = [1000.0]
    monkeypatch.setattr("posjax.training.clock.time.perf_counter", lambda: now[0])
    clock = Clock(elapsed=500.0, step_time=7.0, in_steps=400.0)
    assert clock.times() == {"elapsed": 500.0, "step_time": 7.0, "in_steps": 400.0}
    for seconds in (50, 50, 50, 1, 2, 100, 2, 3):
        now[0] += seconds
        clock.tick()
    assert clock.times() == {"elapsed": 758.0, "step_time": 2.0, "in_steps": 400 + 8 * 108 / 5}
    clock.go_on_from(600.0)  # a kill lost 100 seconds
    assert clock.efficiency() == {"goodput": pytest.approx((400 + 8 * 108 / 5) / 858)}
    assert Clock(**UNKNOWN_TIMES, began=0.0).efficiency() == {}


def test_an_answer_weighs_what_it_is_told_beside_text(data_dir):
    """The first row of a batch is a task, whose last byte is its answer; the other stays text."""
    config = small_decoder(data_dir, batch_size=2)
    with config.unlocked():
        config.data.retrieval = dict(share=0.5, tasks=("induction",), weight=2.5, first_steps=3)
    batches = LongDocuments(config).batches(0)
    np.testing.assert_array_equal(batches[3]["weight"], [[0] * 15 + [2.5], [1] * 16])
    # Within the first steps there is nothing but tasks.
    np.testing.assert_array_equal(batches[2]["weight"], [[0] * 15 + [2.5]] * 2)
    config.data.retrieval.share = 0.0
    np.testing.assert_array_equal(LongDocuments(config).batches(0)[3]["weight"], np.ones((2, 16)))
    config.data.retrieval.share = 0.25  # half a row: rounded it is none
    with pytest.raises(ValueError, match=r"share=0\.25 of 2 rows is no row"):
        LongDocuments(config)


def test_what_is_trained_on_answers_alone_is_scored_on_answers_of_other_problems(data_dir):
    """Scores on text would not say whether a rate suits retrieval."""
    retrieval = dict(share=1.0, tasks=("induction",), weight=1.0)
    config = small_decoder(data_dir, eval_lengths=(16, 32), eval_tokens=129)
    with config.unlocked():
        config.data.retrieval = retrieval
    task = LongDocuments(config)
    (batch,), (again,) = (list(task.evaluation()["16"]) for _ in range(2))
    np.testing.assert_array_equal(batch["weight"], np.tile(np.arange(16) == 15, (8, 1)))  # 129 bytes are 8 windows
    np.testing.assert_array_equal(batch["tokens"], again["tokens"])
    assert next(task.evaluation()["32"])["tokens"].shape == (4, 32)
    config.data.eval_split = config.data.train_split
    (other,) = LongDocuments(config).evaluation()["16"]
    assert (batch["tokens"] != other["tokens"]).any()
    config.data.retrieval.share = 0.5
    assert next(iter(LongDocuments(config).evaluation()["16"]))["weight"].sum() == 128  # all of the text
    config.data.retrieval.share, config.data.retrieval.tasks, config.eval_lengths = 1.0, ("recall",), (16, 64)
    config.data.length = 64
    with pytest.raises(ValueError, match="recall takes at least 32 tokens, not length=16"):
        LongDocuments(config)


def test_masked_tokens_alone_are_named_and_not_seen(data_dir):
    config = small_decoder(data_dir, model__kind="encoder", task="masked_language_model")
    with pytest.raises(ValueError, match=r"data\.masked=1\.5 is a share"):
        make_task(masked(config, 1.5))
    task = make_task(masked(config, 0.5))
    batch, seen, vocabulary = task.batches(0)[0], [], task.model.vocab_size
    # It names each token as it sees it.
    answering(task, lambda tokens: seen.append(tokens) or jax.nn.one_hot(tokens, vocabulary) * 50.0)
    loss, weight, tokens = jax.jit(lambda key: (*task.loss({}, batch, key), seen.pop()))(jax.random.key(1))
    hidden = np.asarray(tokens == vocabulary - 1)
    assert weight == hidden.sum()
    assert 0.3 < hidden.mean() < 0.7
    assert not (batch["tokens"] == vocabulary - 1).any()
    np.testing.assert_array_equal(np.asarray(tokens)[~hidden], batch["tokens"][~hidden])
    assert float(loss / weight) == pytest.approx(50.0, rel=1e-3)  # it sees the mask there
    score = jax.jit(lambda: (task.score({}, batch)["weight"], seen.pop()))
    first, again = score(), score()
    assert first[0] == again[0]
    np.testing.assert_array_equal(first[1], again[1])


def masked(config, share):
    with config.data.unlocked():
        config.data.masked = share
    return config
