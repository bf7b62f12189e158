"""The programs of a config: a decoder's by length and kind of attention, and the training step as `train` would run it."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.benchmarks.compiling import held_bytes
from experiments.benchmarks.contender import Call
from experiments.benchmarks.plan import config_of_row
from posjax.encoding import sites
from posjax.models import Decoder
from posjax.spec import parse, parse_layers
from posjax.user_code import import_user_code

if TYPE_CHECKING:
    from ml_collections import ConfigDict

VOCABULARY = 256  # bytes


def read_input(case: Mapping[str, Any]) -> Call:
    """The program of a case, with the bytes that it holds; it is not run where it holds more than `memory` bytes.

    The case says `model` and `optimizer` of a config, `steps`, `attention`, `mode` (forward, training or decoding), `length`,
    `batch`, `window`, `memory`, `imports` (modules that register encodings), and `run`: False if it is only compiled.
    """
    import_user_code(case["imports"])
    function, kept, inputs = _WORKS[case["mode"]](case, _decoder(case))
    program = jax.jit(function, donate_argnums=0).lower(kept, *inputs).compile()
    held, temp = held_bytes(program), program.memory_analysis().temp_size_in_bytes
    if not case["run"] or held > case["memory"]:
        return Call(None, temp, figures={"held_bytes": held})
    state = list(jax.tree.map(_filled, (kept, inputs)))

    def run():
        state[0], out = program(state[0], *state[1])
        jax.block_until_ready((state[0], out))

    return Call(run, temp, figures={"held_bytes": held})


def _decoder(case: Mapping[str, Any]) -> Decoder:
    """Returns the decoder of a config's `model`, with the case's attention in all layers and tables for its length."""
    sizes = {name: value for name, value in case["model"].items() if name != "kind"}
    encodings = parse_layers(sizes.pop("encoding"))
    if case["attention"] == "window":
        encodings = tuple(encoding + parse(f"window(size={case['window']})") for encoding in encodings)
    sizes["implementation"] = "dense" if case["attention"] == "dense" else "blockwise"
    sizes["length"] = max(case["length"], sizes["length"] or 0)
    return Decoder.from_config(sizes, vocab_size=VOCABULARY, encoding=encodings)


def _forward(case: Mapping[str, Any], model: Decoder) -> tuple[Callable, Any, tuple]:
    def forward(variables, tokens, site):
        return variables, model.apply(variables, tokens, site)

    return forward, _variables(model), (_tokens(case["batch"], case["length"]), sites(case["length"]))


def _training(case: Mapping[str, Any], model: Decoder) -> tuple[Callable, Any, tuple]:
    from posjax.training.optimizer import make_optimizer

    options = {name: value for name, value in case["optimizer"].items() if name != "warmup"}  # changes no time
    optimizer, _ = make_optimizer(total_steps=case["steps"], **options)
    rngs = {"place": jax.random.key(0), "dropout": jax.random.key(1)}

    def loss(variables, tokens, site):
        logits = model.apply(variables, tokens, site, train=True, rngs=rngs)[:, :-1]
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    def step(kept, tokens, site):
        variables, state = kept
        value, grads = jax.value_and_grad(loss)(variables, tokens, site)
        updates, state = optimizer.update(grads, state, variables)
        return (optax.apply_updates(variables, updates), state), value

    variables = _variables(model)
    inputs = _tokens(case["batch"], case["length"]), sites(case["length"])
    return step, (variables, jax.eval_shape(optimizer.init, variables)), inputs


def _decoding(case: Mapping[str, Any], model: Decoder) -> tuple[Callable, Any, tuple]:
    batch, length, variables = case["batch"], case["length"], _variables(model)
    caches = cache_shapes(model, variables, batch, length)
    site = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (batch, 1)), sites(1, start=length - 1))

    def step(caches, variables, token, site):
        logits, caches = model.apply(variables, token, site, caches, method=Decoder.extend)
        return caches, logits

    return step, caches, (variables, _tokens(batch, 1), site)


_WORKS = {"forward": _forward, "training": _training, "decoding": _decoding}


def cache_shapes(model: Decoder, variables: Any, batch: int, length: int) -> Any:
    """Shapes of the caches of all layers with `length` slots for each of `batch` sequences."""

    def prefill(variables, token):
        return model.apply(variables, token, sites(1), cache_size=length, method=Decoder.prefill)

    return jax.eval_shape(prefill, variables, _tokens(batch, 1))[1]


def _variables(model: Decoder) -> Any:
    return jax.eval_shape(lambda: model.init(jax.random.key(0), jnp.zeros((1, 2), jnp.int32), sites(2)))


def _tokens(batch: int, length: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((batch, length), jnp.int32)


def _filled(leaf: Any) -> jax.Array:
    """An array for a shape; zeros would leave no token in a cache, and no signal in a layer."""
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return jnp.asarray(leaf)
    return jnp.full(leaf.shape, 0.01 if jnp.issubdtype(leaf.dtype, jnp.floating) else 1, leaf.dtype)


def config_of(case: Mapping[str, Any]) -> tuple["ConfigDict", tuple[int, ...]]:
    """Returns the config that the arguments of a command line name, as `train` starts it, and its seeds."""
    from experiments import benchmark, cli
    from posjax.training.initial import as_started, start_of

    import_user_code(case["imports"])
    config, args = cli.read(benchmark.parser(benchmark.PLAN), case["arguments"])
    config = config_of_row(config, args.row, args.checkpoint)
    config = as_started(config, start_of(config))
    return config, tuple(config.seeds) if "seeds" in config else (config.seed,)


def plan(config: "ConfigDict", seeds: Sequence[int]) -> dict[str, Any]:
    """Returns the needs of a training of these seeds on all devices of this process.

    Bytes on each device: "parameters", "optimizer" (its state), "batch", "held_bytes" (all of the step, as compiled),
    "temporaries" (gradients and activations among them) and "cache" (keys, values and sites of one sequence of the longest
    evaluated length; None but for decoders). And "flops", operations of a step on all devices; "half", whether products are
    of half precision; "tokens", the length of the cache.
    """
    from posjax.training.loop import Programs
    from posjax.training.tasks import make_task

    splits: dict = {}
    task = make_task(config, splits)
    programs = Programs(task, config, tuple(seeds))
    state, batch = programs.arguments()
    held = held_bytes(programs.step.lower(state, batch).compile())
    parts = {"parameters": state.params, "optimizer": (state.opt_state, state.ema), "batch": batch}
    sizes = {name: held_by(part) for name, part in parts.items()}
    cache = tokens = None
    if isinstance(task.model, Decoder):
        tokens = max(config.eval_lengths)
        one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), state.params)
        cache = held_by(cache_shapes(task.model.with_fields(context=None), {"params": one}, 1, tokens))
    half = jnp.dtype(config.model.get("dtype") or "float32").itemsize == 2
    operations = _operations(config, tuple(seeds), splits)
    memory = {**sizes, "temporaries": held - sum(sizes.values()), "held_bytes": held, "cache": cache}
    return {**memory, "tokens": tokens, "flops": operations, "half": half}


def _operations(config: "ConfigDict", seeds: tuple[int, ...], splits: dict) -> float:
    """XLA's count of the operations of a step's gradients on all devices together.

    Counted of a program without loops, whose bodies XLA counts once: dense attention over all pairs of tokens, and a copy
    of each layer. Loops within an encoding are still counted once.
    """
    from posjax.models.transformer import BlockModel
    from posjax.training.loop import Programs
    from posjax.training.tasks import make_task

    config = config.copy_and_resolve_references()
    config.model.update({name: x for name, x in (("implementation", "dense"), ("scan", False)) if name in config.model})
    task = make_task(config, splits)
    state, batch = Programs(task, config, seeds).arguments()
    alone = copy.copy(task)
    if isinstance(task.model, BlockModel):
        alone.model = task.model.with_fields(context=None)

    def gradients(params, batch, key):
        return jax.value_and_grad(lambda params: alone.loss(params, batch, key), has_aux=True)(params)

    params, batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (state.params, batch))
    key = jax.eval_shape(lambda: jax.random.key(0))
    return jax.jit(jax.vmap(gradients, (0, 0, None))).lower(params, batch, key).cost_analysis()["flops"]


def held_by(tree: Any) -> int:
    """Bytes of an array tree on each device."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape) if leaf.sharding else leaf.shape) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
        if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    )
