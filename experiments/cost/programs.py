"""The programs of `experiments.context`, compiled for one length: what memory they take, and how long they run."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict

from posjax.encoding import sites
from posjax.models import Decoder
from posjax.spec import parse, parse_layers
from posjax.training.optimizer import make_optimizer

VOCABULARY = 256  # bytes
_BRIEF = 2.0  # seconds: what takes longer is timed once, without warming up


class Program(NamedTuple):
    """A compiled program: what it holds (arguments, results and temporaries; None if not told), and how to time it."""

    held_bytes: int | None
    seconds: Callable[[], float]


def decoder(config: ConfigDict, attention: str, length: int, window: int) -> Decoder:
    """The model of a config, with this attention in all of its layers and tables for so many positions."""
    sizes = {name: value for name, value in config.model.items() if name != "kind"}
    encodings = parse_layers(sizes.pop("encoding"))
    if attention == "window":
        encodings = tuple(encoding + parse(f"window(size={window})") for encoding in encodings)
    sizes["implementation"] = "dense" if attention == "dense" else "blockwise"
    sizes["length"] = max(length, sizes["length"] or 0)
    return Decoder.from_config(sizes, vocab_size=VOCABULARY, encoding=encodings)


def program(config: ConfigDict, attention: str, work: str, length: int, *, batch: int, window: int) -> Program:
    """The forward pass, the training step, or the step of cached decoding, of `batch` sequences of `length` tokens."""
    model = decoder(config, attention, length, window)
    make = {"forward": _forward, "training": _training, "decoding": _decoding}[work]
    function, kept, given = make(config, model, batch, length)
    compiled = jax.jit(function, donate_argnums=0).lower(kept, *given).compile()
    return Program(held_bytes(compiled), lambda: _timed(compiled, kept, given))


def held_bytes(compiled: jax.stages.Compiled) -> int | None:
    """Arguments, results and temporaries of a program on each of its devices; None where the compiler does not tell."""
    memory = compiled.memory_analysis()
    if memory is None:
        return None
    held = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    return held - memory.alias_size_in_bytes


def _forward(config: ConfigDict, model: Decoder, batch: int, length: int):
    def forward(variables, tokens, site):
        return variables, model.apply(variables, tokens, site)

    return forward, _abstract_variables(model), (_tokens(batch, length), sites(length))


def _training(config: ConfigDict, model: Decoder, batch: int, length: int):
    optimizer, _ = make_optimizer(total_steps=config.steps, **config.optimizer)
    rngs = {"place": jax.random.key(0), "dropout": jax.random.key(1)}

    def loss(variables, tokens, site):
        logits = model.apply(variables, tokens, site, train=True, rngs=rngs)[:, :-1]
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    def step(kept, tokens, site):
        variables, state = kept
        value, grads = jax.value_and_grad(loss)(variables, tokens, site)
        updates, state = optimizer.update(grads, state, variables)
        return (optax.apply_updates(variables, updates), state), value

    variables = _abstract_variables(model)
    return step, (variables, jax.eval_shape(optimizer.init, variables)), (_tokens(batch, length), sites(length))


def _decoding(config: ConfigDict, model: Decoder, batch: int, length: int):
    variables, token = _abstract_variables(model), _tokens(batch, 1)
    caches = cache_shapes(model, variables, batch, length)
    site = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (batch, 1)), sites(1, start=length - 1))

    def step(caches, variables, token, site):
        logits, caches = model.apply(variables, token, site, caches, method=Decoder.extend)
        return caches, logits

    return step, caches, (variables, token, site)


def cache_shapes(model: Decoder, variables: Any, batch: int, length: int) -> Any:
    """The caches of all layers with so many slots."""

    def prefill(variables, token):
        return model.apply(variables, token, sites(1), cache_size=length, method=Decoder.prefill)

    return jax.eval_shape(prefill, variables, _tokens(batch, 1))[1]


def _abstract_variables(model: Decoder):
    return jax.eval_shape(lambda: model.init(jax.random.key(0), jnp.zeros((1, 2), jnp.int32), sites(2)))


def _tokens(batch: int, length: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((batch, length), jnp.int32)


def _timed(compiled: Any, kept: Any, given: Any) -> float:
    """Seconds of a call, the fastest of five if it is brief; what comes of its values is of no account."""
    kept, given = jax.tree.map(_filled, (kept, given))
    times = []
    while not times or (len(times) < 6 and times[-1] < _BRIEF):
        began = time.perf_counter()
        kept, out = compiled(kept, *given)
        jax.block_until_ready((kept, out))
        times.append(time.perf_counter() - began)
    return min(times[1:] or times)


def _filled(leaf: Any) -> jax.Array:
    """An array for a shape; zeros would leave no token in a cache, and no signal in a layer."""
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return jnp.asarray(leaf)
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        return jnp.full(leaf.shape, 0.01, leaf.dtype)
    return jnp.ones(leaf.shape, leaf.dtype)
