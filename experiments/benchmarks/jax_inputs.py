"""Decoders of a config by length and kind of attention: a forward pass, a training step, and a step of cached decoding."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.benchmarks.compiling import held_bytes
from experiments.benchmarks.contender import Call
from posjax.encoding import sites
from posjax.models import Decoder
from posjax.spec import parse, parse_layers
from posjax.user_code import import_user_code

VOCABULARY = 256  # bytes


def read_input(case: Mapping[str, Any]) -> Call:
    """The program of a case, with the bytes that it holds; it is not run where it holds more than `memory` bytes.

    The case says `model` and `optimizer` of a config, `steps`, `attention`, `mode` (forward, training or decoding), `length`,
    `batch`, `window`, `memory`, `imports` (modules that register encodings), and `run`: False if it is only compiled.
    """
    _import(tuple(case["imports"]))
    model = decoder(case["model"], case["attention"], case["length"], case["window"])
    function, kept, given = _WORKS[case["mode"]](case, model)
    program = jax.jit(function, donate_argnums=0).lower(kept, *given).compile()
    held = held_bytes(program)
    figures = {"held_bytes": held}
    if not case["run"] or held > case["memory"]:
        return Call(None, program.memory_analysis().temp_size_in_bytes, figures=figures)
    state = list(jax.tree.map(_filled, (kept, given)))

    def run():
        state[0], out = program(state[0], *state[1])
        jax.block_until_ready((state[0], out))

    return Call(run, program.memory_analysis().temp_size_in_bytes, figures=figures)


@functools.cache
def _import(sources: tuple[str, ...]) -> None:
    import_user_code(sources)


def decoder(model: Mapping[str, Any], attention: str, length: int, window: int) -> Decoder:
    """The decoder of a config's `model`, with this attention in all of its layers and tables for `length` positions."""
    sizes = {name: value for name, value in model.items() if name != "kind"}
    encodings = parse_layers(sizes.pop("encoding"))
    if attention == "window":
        encodings = tuple(encoding + parse(f"window(size={window})") for encoding in encodings)
    sizes["implementation"] = "dense" if attention == "dense" else "blockwise"
    sizes["length"] = max(length, sizes["length"] or 0)
    return Decoder.from_config(sizes, vocab_size=VOCABULARY, encoding=encodings)


def _forward(case: Mapping[str, Any], model: Decoder) -> tuple[Callable, Any, tuple]:
    def forward(variables, tokens, site):
        return variables, model.apply(variables, tokens, site)

    return forward, _variables(model), (_tokens(case["batch"], case["length"]), sites(case["length"]))


def _training(case: Mapping[str, Any], model: Decoder) -> tuple[Callable, Any, tuple]:
    from posjax.training.optimizer import make_optimizer

    optimizer, _ = make_optimizer(total_steps=case["steps"], **case["optimizer"])
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
    given = _tokens(case["batch"], case["length"]), sites(case["length"])
    return step, (variables, jax.eval_shape(optimizer.init, variables)), given


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
