"""The model of costs, against what XLA compiles and against arithmetic."""

import functools
import pathlib

import jax
import jax.numpy as jnp
import pytest

from experiments import cli
from experiments.cost.model import Cost, cost, fit_memory, fit_times, longest, sizes_of, tile_of
from experiments.cost.plots import Curve, Panel, against_length
from experiments.cost.programs import decoder, program
from posjax.encoding import sites
from posjax.models import Decoder

CONFIGS = pathlib.Path(__file__).parents[3] / "configs"
SMALL = dict(vocab_size=32, width=32, depth=2, num_heads=2)
LATENT = "latent(kv_lora_rank=24, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=12, q_lora_rank=20)"


sizes_once = functools.cache(sizes_of)


def cost_of(length=64, *, model=None, attention="dense", work="forward", **options):
    return cost(sizes_once(model or Decoder.from_config(SMALL)), length, attention=attention, work=work, **options)


def test_parameters_are_those_of_the_model():
    model = Decoder.from_config(SMALL, encoding="t5", mlp="swiglu")
    variables = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 2), jnp.int32), sites(2))
    assert sizes_of(model).parameters == sum(leaf.size for leaf in jax.tree.leaves(variables))


@pytest.mark.parametrize(
    "more",
    [
        dict(mlp="gelu"),
        dict(mlp="geglu"),
        dict(head_dim=40, num_kv_heads=1),
        dict(num_experts=3),
        dict(latent=LATENT),
        dict(latent=LATENT.replace(", q_lora_rank=20", "")),
    ],
)
def test_operations_are_those_that_xla_counts(more):
    model, tokens = (
        Decoder.from_config(SMALL | more, encoding="none", implementation="dense"),
        jnp.zeros((1, 64), jnp.int32),
    )
    variables = jax.eval_shape(lambda: model.init(jax.random.key(0), tokens, sites(64)))
    counted = jax.jit(model.apply).lower(variables, tokens, sites(64)).cost_analysis()["flops"]
    predicted = cost_of(model=model)
    # Softmax, norms and activations are left out of the model.
    assert 0.75 * counted < predicted.linear_flops + predicted.attention_flops < counted


def test_memory_of_dense_attention_is_what_xla_holds():
    model, tokens = Decoder.from_config(SMALL, implementation="dense"), jax.ShapeDtypeStruct((1, 512), jnp.int32)
    variables = jax.eval_shape(lambda: model.init(jax.random.key(0), jnp.zeros((1, 2), jnp.int32), sites(2)))
    memory = jax.jit(model.apply).lower(variables, tokens, sites(512)).compile().memory_analysis()
    held = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    assert cost_of(512, model=model).bytes == pytest.approx(held, rel=0.25)


def test_growth_by_attention():
    lengths = (2**14, 2**15)
    for attention, memory, time in (("dense", 4, 4), ("blockwise", 2, 4), ("window", 2, 2)):
        for work in ("forward", "training"):
            short, long = (cost_of(length=n, attention=attention, work=work, window=512) for n in lengths)
            assert long.attention_flops / short.attention_flops == pytest.approx(time, rel=0.1)
            assert (long.bytes - long.state) / (short.bytes - short.state) == pytest.approx(memory, rel=0.15)


def test_a_window_bounds_the_cache_and_nothing_is_free():
    steps = [cost_of(length=n, attention="window", work="decoding", window=64) for n in (32, 64, 128)]
    assert steps[0].cache < steps[1].cache == steps[2].cache
    assert cost_of(length=128, work="decoding").cache == 2 * steps[1].cache
    # 64 tokens, 2 layers, keys and values of 32 floats, three words of a site and one of the order
    assert steps[1].cache == 64 * 2 * (2 * 32 * 4 + 4 * 4)


@pytest.mark.parametrize("more", [dict(num_kv_heads=1), dict(head_dim=40), dict(latent=LATENT)])
def test_the_cache_has_the_bytes_that_the_model_makes(more):
    model, token = Decoder.from_config(SMALL | more), jnp.zeros((1, 1), jnp.int32)
    variables = jax.eval_shape(lambda: model.init(jax.random.key(0), token, sites(1)))
    prefill = functools.partial(model.apply, cache_size=256, method=Decoder.prefill)
    caches = jax.eval_shape(prefill, variables, token, sites(1))[1]
    held = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(caches))
    assert cost_of(256, model=model, work="decoding").cache == pytest.approx(held, rel=0.01)


@pytest.mark.parametrize(
    ("encoding", "tile"), [("rope", (256, 256)), ("rope + window(512)", (128, 128)), ("cope", (64, 4096))]
)
def test_tiles_are_those_of_attention(encoding, tile):
    sizes = sizes_once(Decoder.from_config(SMALL, encoding=encoding))
    assert tile_of(sizes, 4096) == tile
    rows, columns = 4096 // tile[0], 4096 // tile[1]
    computed = cost(sizes, 4096, attention="blockwise", work="forward").attention_flops / (4 * SMALL["width"])
    assert computed == tile[0] * tile[1] * (rows * (rows + 1) / 2 if columns > 1 else rows)


def test_tiles_take_the_same_memory_at_every_length():
    short, long = (cost_of(n, attention="blockwise").tiles for n in (2**20, 2**21))
    assert short == long


@pytest.mark.slow
@pytest.mark.parametrize(("attention", "work"), [("blockwise", "forward"), ("blockwise", "training")])
def test_memory_of_short_programs_tells_that_of_long_ones(attention, work):
    config = cli.load(str(CONFIGS / "decoder.py"))
    config.update_from_flattened_dict({"model.depth": 2})
    lengths = (4096, 16384)
    costs = [cost(sizes_once(decoder(config, attention, 1, 512)), n, attention=attention, work=work) for n in lengths]
    short, long = (program(config, attention, work, n, batch=1, window=512).held_bytes for n in lengths)
    assert costs[1].bytes_if(fit_memory(costs[:1], [short])) == pytest.approx(long, rel=0.15)


def test_batches_multiply_all_but_the_state():
    one, four = (cost_of(work="training", batch=n) for n in (1, 4))
    assert four.bytes - four.state == 4 * (one.bytes - one.state)
    assert four.linear_flops == 4 * one.linear_flops


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(attention="sparse"), "no attention is named 'sparse'"),
        (dict(work="trainin"), "training"),
        (dict(length=0), "length=0"),
        (dict(attention="window"), "needs a window"),
    ],
)
def test_bad_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        cost_of(**options)


def made(linear, attention, activations=10.0):
    return Cost(100.0, activations, 0.0, 0.0, 0.0, 5.0, linear, attention)


def test_times_find_the_rates_that_were_used():
    costs = [made(1e9, 1e8), made(2e9, 4e8), made(4e9, 16e8)]
    found = fit_times(costs, [1e-9 * c.linear_flops + 2e-9 * c.attention_flops + 0.01 for c in costs])
    assert found == pytest.approx((1e-9, 2e-9, 0.01), rel=1e-3)
    assert found.seconds(made(8e9, 64e8)) == pytest.approx(8 + 12.8 + 0.01, rel=1e-3)
    slower = fit_times(costs, [0.1, 0.2, 5.0])
    assert slower.seconds(costs[2]) == pytest.approx(5.0)
    with pytest.raises(ValueError, match="positive ones, got"):
        fit_times(costs, [None] * 3)


def test_what_programs_keep_is_told_by_the_costliest():
    costs = [made(1e9, 1e8), made(2e9, 4e8, 40.0), made(4e9, 16e8, 90.0)]
    kept = fit_memory(costs, [115.0, 225.0, None])
    assert kept == 3.0
    assert costs[1].bytes_if(kept) == 225.0
    assert costs[1].bytes == 145.0
    assert fit_memory(costs, [None] * 3) == 1.0


def test_the_longest_input_is_the_last_that_fits():
    assert longest(lambda n: n**2, 1_000_000) == 1000
    assert longest(lambda n: n + 5, 5) == 0
    assert longest(lambda n: 0, 1, most=2**20) == 2**20
    assert all(longest(lambda n: n, limit) == limit for limit in range(1, 40))


def test_plots_refuse_what_they_cannot_show():
    figure = against_length(
        [Panel("t", "s", [Curve("a", {1: 1.0, 2: 3.0}), Curve("a", {1: 2.0}, True)], (2.0, "limit"))]
    )
    assert [line.get_linestyle() for line in figure.axes[0].get_lines()] == ["-", "--", ":"]
    with pytest.raises(ValueError, match="nothing to draw"):
        against_length([Panel("t", "s", [Curve("a", {})])])
    with pytest.raises(ValueError, match="positive"):
        against_length([Panel("t", "s", [Curve("a", {1: 0.0})])])
