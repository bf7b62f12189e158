"""A run that was stopped, or that shares a step with other seeds, is the run it would have been otherwise."""

import copy
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import drawn
from small import metrics_of, saved, small_decoder, small_vit

from posjax.jsonl import config_hash, read_jsonl
from posjax.training import loop
from posjax.training.checkpoints import CheckpointError, Checkpoints
from posjax.training.identity import describe_run, identity, refuse_other_run
from posjax.training.loop import Programs, Stopped, train
from posjax.training.mesh import on_devices
from posjax.training.optimizer import make_optimizer
from posjax.training.step import State, init_state, make_step, over_runs
from posjax.training.tasks import make_task

PROGRAMS = {}


@pytest.fixture(scope="module", autouse=True)
def _forgotten():
    yield
    PROGRAMS.clear()


def decoder(data_dir, **overrides):
    """With everything that draws at random, so that a run resumed with another key would differ."""
    sizes = {"eval_batch_size": 8, "eval_tokens": 257, "model__encoding": "learned", "model__dropout": 0.1}
    sizes |= {"optimizer__learning_rate": 0.02, "ema": 0.75}
    return small_decoder(data_dir, **sizes | overrides)


def programs_of(config, seeds=(0, 1)):
    """Returns the programs of all runs that compute the same: compiled once."""
    key = config_hash(identity(config)), seeds
    if key not in PROGRAMS:
        PROGRAMS[key] = Programs(make_task(config), config, seeds)
    return PROGRAMS[key]


def run(config, workdir, seeds=(0, 1), task=None, **options):
    programs = programs_of(config, seeds)
    return train(task or programs.task, config, seeds, workdir, programs=programs, **options)


def stop_after(*counts):
    """A should_stop that says True at the n-th time it is asked, then no more."""
    asked = iter(range(1, 1000))
    return lambda: next(asked) in counts


@pytest.fixture(scope="module")
def whole(data_dir, tmp_path_factory):
    """(result, workdir) of an uninterrupted run of two seeds."""
    workdir = tmp_path_factory.mktemp("whole")
    return run(decoder(data_dir), workdir), workdir


def curve(workdir):
    """[steps, seeds] training losses."""
    lines = [line for line in read_jsonl(workdir / "metrics.jsonl") if "loss" in line]
    assert len({line["step"] for line in lines}) == len(lines)
    return np.array([line["loss"] for line in lines])


def steps(workdir):
    return Checkpoints(workdir / "checkpoints").steps()


def assert_same(one, other):
    """Bit for bit."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(one):
        same = dict(jax.tree_util.tree_leaves_with_path(other))[path]
        if jax.dtypes.issubdtype(getattr(leaf, "dtype", None), jax.dtypes.prng_key):
            leaf, same = jax.random.key_data(leaf), jax.random.key_data(same)
        np.testing.assert_array_equal(leaf, same, err_msg=jax.tree_util.keystr(path))


def test_a_stopped_run_goes_on_as_if_it_had_not_stopped(data_dir, whole, tmp_path):
    config, (whole, workdir) = decoder(data_dir), whole
    for stops in (3, 4, 1):  # at steps 3, 7 and 8: between checkpoints, after none, and right after another stop
        with pytest.raises(Stopped) as stopped:
            run(config, tmp_path / "parts", should_stop=stop_after(stops))
        assert steps(tmp_path / "parts")[-1] == stopped.value.step
    parts = run(config, tmp_path / "parts")
    assert int(parts.state.step) == 12
    assert_same((whole.state, whole.metrics), (parts.state, parts.metrics))
    assert saved(workdir) == saved(tmp_path / "parts")
    assert all(any(f".{part}" in path for path in saved(workdir)) for part in State._fields)
    loss = curve(workdir)
    assert (loss[-1] < loss[0] - 0.3).all()  # it learns
    lines = metrics_of(workdir)
    assert lines == metrics_of(tmp_path / "parts")
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 13))
    assert lines[-1]["last_eval_loss@16"] == programs_of(config).evaluate(whole.state.params)["loss"]["16"].tolist()
    assert lines[-1]["eval_loss@16"] == whole.metrics["loss"]["16"].tolist() != lines[-1]["last_eval_loss@16"]
    # A third start of a finished run takes no step, and what is only written may change.
    config = decoder(data_dir, log_every=2, checkpoint_every=3, keep_last=5, eval_every=4)
    again = run(config, tmp_path / "parts", on_step=lambda *_: pytest.fail("took a step"))
    assert_same((again.state, again.metrics), (whole.state, whole.metrics))


def test_a_run_averages_as_its_config_says(data_dir):
    programs = programs_of(decoder(data_dir))
    state = programs.start(None)
    before = jax.tree.map(np.array, state.params)
    batches = [programs.task.batches(seed)[0] for seed in (0, 1)]
    batch = on_devices(programs.mesh, jax.tree.map(lambda *x: np.stack(x), *batches), runs=True)
    for _ in range(2):  # the rate of the first step is 0
        state, _ = programs.step(state, batch)
    after = jax.tree.map(lambda old, new: 0.75 * old + 0.25 * np.asarray(new), before, state.params)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7), state.ema, after)


def test_a_full_disk_is_refused_before_the_first_step(data_dir, monkeypatch, tmp_path):
    monkeypatch.setattr("posjax.training.checkpoints.free_bytes", lambda directory: 300)
    with pytest.raises(CheckpointError, match=r"step 12 .*the disk is full: .* from its start"):
        run(decoder(data_dir), tmp_path, on_step=lambda *_: pytest.fail("took a step"))
    assert steps(tmp_path) == []


def test_a_run_killed_between_checkpoints_repeats_the_steps_since(data_dir, whole, tmp_path):
    config, (_, workdir) = decoder(data_dir), whole

    def die(taken, report):
        if taken == 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "killed", on_step=die)
    assert steps(tmp_path / "killed") == [5]
    lost, taken = read_jsonl(tmp_path / "killed" / "metrics.jsonl")[-1]["elapsed"], []
    run(config, tmp_path / "killed", on_step=lambda step, report: taken.append(step))
    assert taken == list(range(6, 13))
    elapsed = [line["elapsed"] for line in read_jsonl(tmp_path / "killed" / "metrics.jsonl") if "loss" in line]
    assert elapsed[4] < lost < elapsed[5]  # the seconds of steps 6 to 8 count twice
    assert saved(tmp_path / "killed") == saved(workdir)
    assert metrics_of(tmp_path / "killed") == metrics_of(workdir)


@pytest.mark.parametrize(("runs", "shape"), [(1, (2, 2)), (3, (3, 2, 2))])
def test_one_run_has_no_axis_of_runs(runs, shape):
    x, y = jnp.arange(4.0 * runs).reshape(runs, 2, 2), jnp.arange(4.0).reshape(2, 2)
    product = over_runs(jnp.matmul)
    np.testing.assert_array_equal(product(x, y), x @ y)
    products = [eqn for eqn in jax.make_jaxpr(product)(x, y).eqns if eqn.primitive.name == "dot_general"]
    assert [eqn.outvars[0].aval.shape for eqn in products] == [shape]


@pytest.mark.slow
def test_a_member_of_an_ensemble_is_the_run_it_would_be_alone(data_dir, whole, tmp_path):
    (together, workdir), alone = whole, run(decoder(data_dir), tmp_path, (1,))
    np.testing.assert_allclose(curve(workdir)[:, 1], curve(tmp_path)[:, 0], rtol=1e-5)
    for length, values in together.metrics["loss"].items():
        np.testing.assert_allclose(values[1], alone.metrics["loss"][length][0], rtol=1e-5)
        assert values[0] != values[1]


@pytest.mark.slow
def test_accumulated_gradients_are_those_of_the_whole_batch(data_dir):
    """Parts of a text batch weigh differently, so a mean of their means would not do."""
    config = small_decoder(data_dir)
    task = make_task(config)
    optimizer, _ = make_optimizer(total_steps=9, learning_rate=1e-3)
    batch = {name: x[None] for name, x in task.batches(0)[0].items()}
    batch["weight"][0, :3] = 0.0
    state = jax.eval_shape(lambda: init_state(task, optimizer, (0,)))
    params = jax.tree.map(lambda leaf: np.asarray(leaf)[None], drawn(task.init, jax.random.key(0)))
    state = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), state._replace(key=(), params=()))
    state = state._replace(params=params, key=jax.random.wrap_key_data(np.zeros((1, 2), np.uint32)))
    (one, once), (two, twice) = (jax.jit(make_step(task, optimizer, parts))(state, batch) for parts in (1, 2))
    np.testing.assert_allclose(once["loss"], twice["loss"], rtol=1e-5)
    np.testing.assert_allclose(once["grad_norm"], twice["grad_norm"], rtol=1e-4)
    moments = [jax.tree.leaves(result.opt_state) for result in (one, two)]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-7), *moments)


@pytest.mark.slow
def test_each_step_and_each_seed_draws_for_itself(data_dir):
    task = make_task(small_vit(data_dir, data__augment="shift(1) + mixup(0.5)", model__dropout=0.1))
    optimizer, _ = make_optimizer(total_steps=9, learning_rate=0.0)
    batch = {name: np.stack([x, x]) for name, x in task.batches(0)[0].items()}
    state = jax.jit(lambda: init_state(task, optimizer, (5, 6)))()
    # The same untrained parameters for both seeds but for the head, whose zeros would hide the draws.
    params = jax.tree.map(
        lambda x: (
            x[:1].repeat(2, axis=0) + np.float32(0.1) * np.sin(np.arange(x[0].size, dtype=x.dtype)).reshape(x[0].shape)
        ),
        jax.tree.map(np.asarray, state.params),
    )
    step = jax.jit(make_step(task, optimizer))
    first, report = step(state._replace(params=params), batch)
    _, later = step(first, batch)
    assert len({float(x) for x in [*report["loss"], *later["loss"]]}) == 4


def with_nan_at(task, step):
    """The task, with a weight that is not a number in the batch of that step (counted from 1)."""
    task, clean = copy.copy(task), task.batches

    def batches(seed, share):
        def spoil(index, batch):
            return {**batch, "weight": batch["weight"] * np.float32(np.nan if index + 1 == step else 1)}

        return clean(seed, share).map_with_index(spoil)

    task.batches = batches
    return task


@pytest.mark.slow
def test_a_loss_that_is_not_finite_stops_the_run_and_spoils_nothing(data_dir, whole, tmp_path):
    """The checkpoint that is due at step 10 must not be written."""
    config = decoder(data_dir)
    with pytest.raises(FloatingPointError, match="step 10: loss of seed 0 with encoding learned is nan"):
        run(config, tmp_path, task=with_nan_at(programs_of(config).task, 10))
    assert steps(tmp_path) == [5]
    assert len(curve(tmp_path)) == 9
    run(config, tmp_path)  # the cause mended
    assert saved(tmp_path) == saved(whole[1])


@pytest.mark.slow
def test_the_best_and_the_newest_checkpoints_are_kept(data_dir, tmp_path, monkeypatch):
    losses = iter([0.9, 0.1, 0.5, 0.3])
    monkeypatch.setattr(loop, "headline", lambda task, metrics: next(losses))
    run(decoder(data_dir, eval_every=3, checkpoint_every=2, keep_last=1), tmp_path)
    assert steps(tmp_path) == [6, 12]


def test_sizes_that_cannot_be_are_refused(data_dir):
    task = make_task(small_vit(data_dir))
    for overrides in ({"accumulate": 0}, {"accumulate": 3}, {"log_every": 0}, {"keep_last": 0}):
        with pytest.raises(ValueError, match=f"{next(iter(overrides))}="):
            Programs(task, small_vit(data_dir, **overrides), (0,))


@pytest.mark.slow
def test_another_configuration_is_not_taken_for_this_one(data_dir, whole):
    _, workdir = whole
    before = {path: path.read_bytes() for path in workdir.rglob("*") if path.is_file()}
    task = types.SimpleNamespace(digest=programs_of(decoder(data_dir)).task.digest)
    for overrides, seeds, message in (
        ({"model__width": 4}, (0, 1), r"model\.width was 8 in .*run\.json, but is 4 in this run"),
        ({"steps": 24, "optimizer__b1": 0.5}, (0, 1), r"optimizer\.b1 is 0\.5, steps is 24 in this run"),
        ({}, (1,), r"seeds was \[0, 1\] in .*, but is \[1\] in this run"),
    ):
        with pytest.raises(CheckpointError, match=message):
            refuse_other_run(workdir, describe_run(task, decoder(data_dir, **overrides), seeds))
    with pytest.raises(CheckpointError, match="data_digest"):
        task.digest = "other"
        refuse_other_run(workdir, describe_run(task, decoder(data_dir), (0, 1)))
    with pytest.raises(CheckpointError, match="seeds"):
        run(decoder(data_dir), workdir, (0,))
    assert {path: path.read_bytes() for path in workdir.rglob("*") if path.is_file()} == before
