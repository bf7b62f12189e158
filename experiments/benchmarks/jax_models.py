"""The contenders that are whole models: a training step, steps of decoding, the loss of a long document."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import posjax
from experiments.benchmarks.compiling import compiled
from experiments.benchmarks.contender import Call
from posjax.models import Decoder
from posjax.studies.long_context import Reader

_VOCABULARY = 256  # bytes


def train_step(case: Mapping[str, Any]) -> Call:
    """Gradients and an AdamW update of a decoder of depth 4."""
    model, variables, tokens, site = _model(case)
    optimizer = optax.adamw(1e-3)

    def step(variables, state, tokens, site):
        loss, grads = jax.value_and_grad(lambda v: _loss(model, v, tokens, site))(variables)
        updates, state = optimizer.update(grads, state, variables)
        return optax.apply_updates(variables, updates), state, loss

    return compiled(step, variables, optimizer.init(variables), tokens, site)


def decode(case: Mapping[str, Any]) -> Call:
    """`steps` greedy steps from a cache that has just so many slots left."""
    model, variables, tokens, site = _model(case)
    size, steps, batch = case["length"], case["steps"], case["batch"]
    prompt = jax.tree.map(lambda leaf: leaf[: size - steps], site)
    prefill = jax.jit(lambda *given: model.apply(*given, cache_size=size, method=Decoder.prefill))
    _, caches = prefill(variables, tokens[:, : size - steps], prompt)
    last = jax.tree.map(lambda leaf: np.broadcast_to(leaf[-1:], (batch, 1, *leaf.shape[1:])), prompt)

    def run(variables, token, site, caches):
        def step(carry, _):
            token, site, caches = carry
            site = site._replace(position=site.position + 1)
            logits, caches = model.apply(variables, token, site, caches, method=Decoder.extend)
            return (jnp.argmax(logits, axis=-1).astype(jnp.int32), site, caches), None

        return jax.lax.scan(step, (token, site, caches), length=steps)[0][0]

    return compiled(run, variables, tokens[:, -1:], last, caches)


def score(case: Mapping[str, Any]) -> Call:
    """The losses of one document of `length` tokens, as `experiments.extrapolate` reads it: only compiled."""
    model, variables, *_ = _model(case)
    reader = Reader(model, variables["params"], case["batch"], case["length"])
    return Call(None, reader.temp_bytes)


def _model(case: Mapping[str, Any]):
    """A decoder, its parameters, tokens and sites."""
    length = case["length"]
    sizes = dict(width=case["width"], num_heads=case["heads"], implementation=case.get("implementation", "auto"))
    model = Decoder(_VOCABULARY, case["spec"], length=length, **sizes)
    tokens = np.random.default_rng(0).integers(_VOCABULARY, size=(case["batch"], length), dtype=np.int32)
    variables = model.init(jax.random.key(0), jnp.zeros((1, 2), jnp.int32), posjax.sites(2))
    return model, variables, tokens, posjax.sites(length)


def _loss(model: Decoder, variables, tokens, site) -> jax.Array:
    logits = model.apply(variables, tokens, site)[:, :-1]
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()
