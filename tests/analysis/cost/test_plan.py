"""What a plan predicts, against what the compiler says, what arrays hold and what arithmetic gives."""

import pathlib

import jax
import jax.numpy as jnp
import pytest
from small import small_decoder

from posjax.analysis.cost import flops
from posjax.analysis.cost.devices import ACCELERATORS, Accelerator, accelerator
from posjax.analysis.cost.plan import Plan, plan, predict
from posjax.encoding import sites
from posjax.models import Decoder
from posjax.training.loop import Programs
from posjax.training.tasks import make_task

REPO = pathlib.Path(__file__).parents[3]
SEEDS = (0, 1)


def counted(function, *shapes):
    given = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return flops.count(jax.make_jaxpr(function)(*given))


def test_products_loops_and_branches_are_counted():
    product = 2 * 3 * 4 * 5
    assert counted(jnp.dot, (3, 4), (4, 5)) == product
    assert counted(jax.vmap(jnp.dot, (0, None)), (7, 3, 4), (4, 5)) == 7 * product
    turns = counted(lambda x, w: jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0], (3, 4), (6, 4, 4))
    assert turns == 6 * 2 * 3 * 4 * 4
    assert counted(jax.checkpoint(jnp.dot), (3, 4), (4, 5)) == product
    assert counted(lambda x: jax.lax.cond(x[0] > 0, lambda: x @ x, lambda: x[0]), (9,)) == 2 * 9 + 1
    assert counted(lambda x: jnp.sum(x * x + 1), (9,)) == 27
    convolved = counted(lambda x, w: jax.lax.conv(x, w, (2, 2), "VALID"), (1, 3, 8, 8), (5, 3, 2, 2))
    assert convolved == 2 * (5 * 4 * 4) * 3 * 2 * 2


def test_a_prediction_is_arithmetic():
    one = Plan(2, 10, 20, 1, 100, 50, 10, 131, None, 4e3, half=False)
    slow = predict(one, Accelerator(half=200.0, single=100.0, bandwidth=1e3, memory=262.0))
    assert slow == pytest.approx((20.0, 50.0, 0.5))
    starved = predict(one, Accelerator(200.0, 100.0, 1.0, 262.0))
    assert starved.at_best == starved.typical == 2 * 130
    assert predict(one._replace(half=True), Accelerator(200.0, 100.0, 1e3, 262.0)).at_best == 10
    with pytest.raises(ValueError, match="h100"):
        accelerator("h10")
    assert all(0 < each.bandwidth < each.single <= each.half for each in ACCELERATORS.values())


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    """The config of a decoder of which attention is a good part, and its plan."""
    sizes = dict(model__width=32, model__depth=2, data__length=128, eval_lengths=(128,), eval_batch_size=64)
    config = small_decoder(tmp_path_factory.mktemp("data"), batch_size=4, model__implementation="dense", **sizes)
    return config, plan(config, SEEDS)


def bytes_of(tree):
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree) if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def test_the_state_and_the_batch_have_the_bytes_of_their_arrays(decoder):
    config, found = decoder
    task = make_task(config)
    state = Programs(task, config, SEEDS).start(None)
    assert (found.parameters, found.optimizer) == (bytes_of(state.params), bytes_of(state.opt_state))
    assert found.batch == len(SEEDS) * sum(jnp.asarray(leaf).nbytes for leaf in task.batches(0)[0].values())


def test_the_cache_has_the_bytes_of_its_arrays(decoder):
    config, found = decoder
    model = Decoder(256, config.model.encoding, width=32, depth=2, num_heads=2)
    variables = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 2), jnp.int32), sites(2))
    _, caches = model.apply(variables, jnp.zeros((1, 3), jnp.int32), sites(3), cache_size=128, method=Decoder.prefill)
    assert found.cache == bytes_of(caches)


def test_operations_are_those_that_xla_counts(decoder):
    """To a tenth."""
    config, found = decoder
    programs = Programs(make_task(config), config, SEEDS)
    counted = programs.step.lower(*programs.arguments()).cost_analysis()["flops"]
    assert found.flops == pytest.approx(counted, rel=0.1)


def test_memory_is_what_the_program_takes(decoder):
    """All that is held, and of the temporaries that the compiler tells, what the trace says is kept."""
    config, found = decoder
    assert found.held == found.state + found.batch + found.temporaries
    print(found)
    weights = 128 * 128 * 4 * 2 * 2 * 4 * len(SEEDS)  # of tokens by tokens: layers, heads, sequences, seeds
    assert found.attention % weights == 0
    assert 0 < found.attention < found.activations
    assert found.activations == pytest.approx(found.temporaries, rel=0.3)
