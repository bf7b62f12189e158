"""A run that was stopped, or that shares a step with other seeds, is the run it would have been otherwise."""

import contextlib
import copy
import json

import jax
import numpy as np
import pytest
from small import saved, small_decoder, small_vit

from experiments.studies.environment import compilation_cache
from posjax.jsonl import config_hash, read_jsonl
from posjax.training import loop
from posjax.training.checkpoints import CheckpointError, Checkpoints
from posjax.training.evaluate import make_score
from posjax.training.identity import identity
from posjax.training.loop import Stopped, train
from posjax.training.optimizer import make_optimizer
from posjax.training.step import State, init_state, make_step
from posjax.training.tasks import make_task

TASKS, STEPS, SCORES = {}, {}, {}


def task_of(config):
    """One task for all runs that compute the same."""
    key = config_hash(identity(config))
    if key not in TASKS:
        TASKS[key] = make_task(config)
        TASKS[key].key = key
    return TASKS[key]


@pytest.fixture(scope="module", autouse=True)
def _compiled_once(tmp_path_factory):
    """The same step is traced and compiled for many runs: once, even where they are runs of several processes."""
    with pytest.MonkeyPatch.context() as patch:

        def step(task, optimizer, accumulate):
            return STEPS.setdefault((task.key, accumulate), make_step(task, optimizer, accumulate))

        patch.setattr(loop, "make_step", step)
        patch.setattr(loop, "make_score", lambda task, mesh: SCORES.setdefault(task.key, make_score(task, mesh)))
        with _compilation_cache(tmp_path_factory.mktemp("compiled")):
            yield
    for kept in (TASKS, STEPS, SCORES):
        kept.clear()


@contextlib.contextmanager
def _compilation_cache(directory):
    from jax.experimental.compilation_cache.compilation_cache import reset_cache

    names = ["jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs"]
    names.append("jax_persistent_cache_min_entry_size_bytes")
    before = {name: getattr(jax.config, name) for name in names}
    reset_cache()
    compilation_cache(directory)
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    reset_cache()


# Both with everything that draws at random, so that a run resumed with another key would differ.
def vit(data_dir, **overrides):
    return small_vit(data_dir, **{"data__mixup": 0.5, "data__crop_padding": 1, "model__dropout": 0.1, **overrides})


def decoder(data_dir, **overrides):
    return small_decoder(data_dir, **{"model__encoding": "learned", "model__dropout": 0.1, **overrides})


def run(config, workdir, seeds=(0, 1), task=None, **options):
    return train(task or task_of(config), config, seeds, workdir, **options)


def stop_after(*counts):
    """A should_stop that says True at the n-th time it is asked, then no more."""
    asked = iter(range(1, 1000))
    return lambda: next(asked) in counts


@pytest.fixture(scope="module")
def whole(data_dir, tmp_path_factory):
    """{"vit" or "decoder": (result, workdir)} of two seeds' uninterrupted runs."""
    found = {}
    for config_of in (vit, decoder):
        workdir = tmp_path_factory.mktemp("whole")
        found[config_of.__name__] = run(config_of(data_dir), workdir), workdir
    return found


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


@pytest.mark.parametrize(
    "config_of", [pytest.param(vit, id="vit", marks=pytest.mark.slow), pytest.param(decoder, id="decoder")]
)
def test_a_stopped_run_goes_on_as_if_it_had_not_stopped(data_dir, whole, tmp_path, config_of):
    config, (whole, workdir) = config_of(data_dir), whole[config_of.__name__]
    for stops in (3, 4, 1):  # at steps 3, 7 and 8: between checkpoints, after none, and right after another stop
        with pytest.raises(Stopped) as stopped:
            run(config, tmp_path / "parts", should_stop=stop_after(stops))
        assert steps(tmp_path / "parts")[-1] == stopped.value.step
    parts = run(config, tmp_path / "parts")
    assert int(parts.state.step) == 12
    assert_same((whole.state, whole.metrics), (parts.state, parts.metrics))
    assert saved(workdir) == saved(tmp_path / "parts")
    assert all(any(f".{part}" in path for path in saved(workdir)) for part in State._fields)
    lines = [(path / "metrics.jsonl").read_text() for path in (workdir, tmp_path / "parts")]
    assert lines[0] == lines[1]
    assert [json.loads(line)["step"] for line in lines[0].splitlines() if '"loss"' in line] == list(range(1, 13))
    # A third start of a finished run takes no step.
    again = run(config, tmp_path / "parts", on_step=lambda *_: pytest.fail("took a step"))
    assert_same((again.state, again.metrics), (whole.state, whole.metrics))


def test_a_run_killed_between_checkpoints_repeats_the_steps_since(data_dir, whole, tmp_path):
    config, (_, workdir) = vit(data_dir), whole["vit"]

    def die(taken, report):
        if taken == 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "killed", on_step=die)
    assert steps(tmp_path / "killed") == [5]
    taken = []
    run(config, tmp_path / "killed", on_step=lambda step, report: taken.append(step))
    assert taken == list(range(6, 13))
    assert saved(tmp_path / "killed") == saved(workdir)
    lines = [(path / "metrics.jsonl").read_text() for path in (workdir, tmp_path / "killed")]
    assert lines[0] == lines[1]


@pytest.mark.slow
def test_a_member_of_an_ensemble_is_the_run_it_would_be_alone(data_dir, tmp_path):
    config = vit(data_dir)
    together, alone = run(config, tmp_path / "together", (3, 7)), run(config, tmp_path / "alone", (7,))
    np.testing.assert_allclose(curve(tmp_path / "together")[:, 1], curve(tmp_path / "alone")[:, 0], rtol=1e-5)
    np.testing.assert_allclose(together.metrics["loss"][1], alone.metrics["loss"][0], rtol=1e-5)
    trees = (jax.tree.map(np.asarray, result.state.params) for result in (together, alone))
    first, other = (dict(jax.tree_util.tree_leaves_with_path(tree)) for tree in trees)
    for path, leaf in first.items():
        if "['key']['bias']" in jax.tree_util.keystr(path):
            continue  # softmax cannot see it: its gradient is rounding, which Adam makes large
        np.testing.assert_allclose(leaf[1], other[path][0], rtol=1e-4, atol=1e-5, err_msg=jax.tree_util.keystr(path))
    assert together.metrics["loss"][0] != together.metrics["loss"][1]


def test_accumulated_gradients_are_those_of_the_whole_batch(data_dir):
    """Parts of a text batch weigh differently, so a mean of their means would not do."""
    config = small_decoder(data_dir)
    task = make_task(config)
    optimizer, _ = make_optimizer(total_steps=9, learning_rate=1e-3)
    batch = {name: x[None] for name, x in task.batches(0)[0].items()}
    batch["weight"][0, :3] = 0.0
    state = jax.jit(lambda: init_state(task, optimizer, (0,)))()
    (one, once), (two, twice) = (jax.jit(make_step(task, optimizer, parts))(state, batch) for parts in (1, 2))
    np.testing.assert_allclose(once["loss"], twice["loss"], rtol=1e-5)
    np.testing.assert_allclose(once["grad_norm"], twice["grad_norm"], rtol=1e-4)
    moments = [jax.tree.leaves(result.opt_state) for result in (one, two)]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-7), *moments)


@pytest.mark.slow
def test_each_step_and_each_seed_draws_for_itself(data_dir):
    task = make_task(vit(data_dir))
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


@pytest.mark.parametrize("bad", [pytest.param(9, marks=pytest.mark.slow), 10])
def test_a_loss_that_is_not_finite_stops_the_run_and_spoils_nothing(data_dir, whole, tmp_path, bad):
    """The checkpoint that is due at step 10 must not be written."""
    config = decoder(data_dir)
    message = rf"step {bad}: loss of seed 0 with encoding learned is nan; the last good checkpoint is kept"
    with pytest.raises(FloatingPointError, match=message):
        run(config, tmp_path / "bad", task=with_nan_at(task_of(config), bad))
    assert steps(tmp_path / "bad") == [5]
    assert len(curve(tmp_path / "bad")) == bad - 1
    run(config, tmp_path / "bad")  # the cause mended
    assert saved(tmp_path / "bad") == saved(whole["decoder"][1])


def test_the_best_and_the_newest_checkpoints_are_kept(data_dir, tmp_path, monkeypatch):
    accuracies = iter([0.1, 0.9, 0.5, 0.3])
    monkeypatch.setattr(loop, "headline", lambda task, metrics: next(accuracies))
    run(vit(data_dir, eval_every=3, checkpoint_every=2, keep_last=1), tmp_path)
    assert steps(tmp_path) == [6, 12]
    config = vit(data_dir)
    task = make_task(config)
    optimizer, _ = make_optimizer(total_steps=config.steps, **config.optimizer)
    abstract = jax.eval_shape(lambda: init_state(task, optimizer, (0, 1)))
    tree = {"state": abstract, "times": {"elapsed": 0.0, "step_time": 0.0}}
    checkpoints = Checkpoints(tmp_path / "checkpoints", best="accuracy", best_mode="max")
    assert (checkpoints.restore_best(tree)[0], checkpoints.restore(tree)[0]) == (6, 12)


@pytest.mark.parametrize(
    ("config_of", "good"),
    [
        pytest.param(small_vit, 1.8, id="vit"),
        pytest.param(small_decoder, 3.3, id="text", marks=pytest.mark.slow),
    ],
)
def test_a_learnable_task_is_learned(data_dir, tmp_path, config_of, good):
    config = config_of(data_dir, steps=100, log_every=10, checkpoint_every=100, optimizer__learning_rate=0.02)
    result = run(config, tmp_path, (0,))
    loss = curve(tmp_path)[:, 0]
    assert len(loss) == 10
    assert loss[-1] < good
    assert loss[-1] < loss[0] - 0.3
    scored = result.metrics["loss"]
    assert all(value[0] < good for value in (scored.values() if isinstance(scored, dict) else [scored]))


@pytest.mark.slow
def test_half_precision_trains_finitely(data_dir, finished, tmp_path):
    exact, _ = finished
    rough = run(vit(data_dir, model__dtype="bfloat16"), tmp_path, (0,))
    assert {leaf.dtype.name for leaf in jax.tree.leaves(rough.state.params)} == {"float32"}
    assert rough.metrics["loss"] != exact.metrics["loss"]
    np.testing.assert_allclose(rough.metrics["loss"], exact.metrics["loss"], rtol=0.05)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"accumulate": 0}, r"accumulate=0 must be at least 1"),
        ({"accumulate": 3}, r"batch_size=16 cannot be split into accumulate=3 parts on 1 devices: .*divisible by 3"),
        ({"log_every": 0}, r"log_every=0 must be at least 1"),
        ({"checkpoint_every": 0}, r"checkpoint_every=0 must be at least 1"),
        ({"keep_last": 0}, r"keep_last=0 must be at least 1"),
        ({"batch_size": 2000}, r"batch_size=2000 exceeds the 1433 images of 'digits'"),
    ],
)
def test_sizes_that_cannot_be_are_refused(data_dir, tmp_path, overrides, message):
    with pytest.raises(ValueError, match=message):
        run(small_vit(data_dir, **overrides), tmp_path, (0,))
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize(
    ("overrides", "seeds", "message"),
    [
        ({"model__width": 4}, (0,), r"model\.width was 8 in .*run\.json, but is 4 in this run; use the config"),
        ({"model__encoding": "rope"}, (0,), r"model\.encoding was learned in .*, but is rope in this run"),
        ({"optimizer__learning_rate": 0.5}, (0,), r"optimizer\.learning_rate was 0\.001 in .*, but is 0\.5"),
        ({"model__pooling": "mean"}, (0,), r"model\.pooling was cls in"),
        ({"steps": 24}, (0,), r"steps was 12 in .*, but is 24"),
        (
            {"steps": 24, "optimizer__b1": 0.5},
            (0,),
            r"optimizer\.b1 was 0\.9, steps was 12 in .*, but optimizer\.b1 is 0\.5, steps is 24 in this run",
        ),
        ({}, (1,), r"seeds was \[0\] in .*, but is \[1\] in this run; .*, or another workdir"),
        ({}, (0, 1), r"seeds was \[0\] in .*, but is \[0, 1\] in this run"),
    ],
)
def test_another_configuration_is_not_taken_for_this_one(data_dir, finished, overrides, seeds, message):
    _, finished = finished
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    with pytest.raises(CheckpointError, match=message):
        run(vit(data_dir, **overrides), finished, seeds)
    assert {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()} == before


@pytest.fixture(scope="module")
def finished(data_dir, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("finished")
    return run(vit(data_dir), workdir, (0,)), workdir


def test_what_is_only_written_may_change(data_dir, finished):
    config = vit(data_dir, log_every=2, checkpoint_every=3, keep_last=5, eval_every=4)
    assert int(run(config, finished[1], (0,)).state.step) == 12
