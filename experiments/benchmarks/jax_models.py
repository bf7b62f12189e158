"""The contenders that are whole models: a training step, steps of decoding, the loss of a long document."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import posjax
from experiments.benchmarks.compiling import compiled_call
from experiments.benchmarks.contender import Call
from posjax import pretrained
from posjax.models import BlockConfig, Decoder, ViT

_VOCABULARY = 256  # bytes


def training(case: Mapping[str, Any], model: str) -> tuple:
    """Returns a training step by AdamW of a "decoder" or a "vit", and its first arguments.

    The step is (variables, optimizer's state, batch) -> (variables, state, loss). It takes the batch in `case["parts"]` equal
    parts one after the other (default: 1). A ViT's images have 32x32 pixels in patches of 4x4.
    """
    loss, variables, batch = {"decoder": _decoder, "vit": _vit}[model](case)
    optimizer, count = optax.adamw(1e-3), case.get("parts", 1)
    parts = jax.tree.map(lambda x: np.asarray(x).reshape(count, -1, *x.shape[1:]), batch)

    def step(variables, state, parts):
        def add(sums, part):
            return jax.tree.map(jnp.add, sums, jax.value_and_grad(loss)(variables, part)), None

        zeros = jnp.float32(0), jax.tree.map(jnp.zeros_like, variables)
        if count == 1:
            value, grads = jax.value_and_grad(loss)(variables, jax.tree.map(lambda x: x[0], parts))
        else:
            value, grads = jax.tree.map(lambda x: x / count, jax.lax.scan(add, zeros, parts)[0])
        updates, state = optimizer.update(grads, state, variables)
        return optax.apply_updates(variables, updates), state, value

    return step, variables, optimizer.init(variables), parts


def _decoder(case: Mapping[str, Any]):
    """(loss of the variables and a batch, the variables, the batch)."""
    model, variables, tokens, site = _model(case)

    def loss(variables, tokens):
        logits = model.apply(variables, tokens, site)[:, :-1]
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    return loss, variables, tokens


def _vit(case: Mapping[str, Any]):
    block = BlockConfig(width=case["width"], num_heads=case["heads"], dtype=jnp.dtype(case.get("dtype", "float32")))
    model = ViT(10, case["spec"], block=block, depth=case["depth"])
    rng, site = np.random.default_rng(0), model.sites(32, 32)
    images = rng.standard_normal((case["batch"], 32, 32, 3), np.float32)
    labels = rng.integers(10, size=case["batch"])
    variables = model.init(jax.random.key(0), images[:1], site)

    def loss(variables, batch):
        logits = model.apply(variables, batch[0], site)
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch[1]).mean()

    return loss, variables, (images, labels)


def llama(case: Mapping[str, Any]) -> Call:
    """A model in Llama's form: reads `length` tokens into a cache (mode "prefill"), or decodes."""
    dtype = jnp.dtype(case["dtype"])
    kind = dict(mlp="swiglu", norm="rms", attention_bias=(), dtype=dtype, param_dtype=dtype)
    block = BlockConfig(width=case["width"], num_heads=case["heads"], mlp_dim=case["mlp"], **kind)
    head = dict(embedding_scale=1.0, tied_embedding=False)
    model = Decoder(case["vocabulary"], "rope", block=block, depth=case["depth"], **head)
    tokens = np.random.default_rng(0).integers(case["vocabulary"], size=(case["batch"], case["length"]), dtype=np.int32)
    site = posjax.sites(case["length"])
    variables = jax.jit(model.init)(jax.random.key(0), tokens[:, :2], posjax.sites(2))
    if case["mode"] != "prefill":
        return decode(case, model, variables, tokens, site)

    def prefill(variables, tokens, site):
        return model.apply(variables, tokens, site, cache_size=case["length"], method=Decoder.prefill)

    return compiled_call(prefill, variables, tokens, site)


def published(case: Mapping[str, Any]) -> Call:
    """A decoder from a folder: reads a prompt of `length` tokens into a cache and chooses the next, or decodes `steps`."""
    model, variables = pretrained.load(case["folder"])
    tokens = np.random.default_rng(0).integers(model.vocab_size, size=(case["batch"], case["length"]), dtype=np.int32)
    if case["mode"] != "prompt":
        return decode(case, model, variables, tokens, posjax.sites(case["length"]))
    site = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (len(tokens), *leaf.shape)), posjax.sites(case["length"]))

    def prompt(variables, tokens, site):
        at = jnp.full(len(tokens), case["length"] - 1, jnp.int32)
        options = dict(cache_size=case["length"] + 64, at=at, method=Decoder.prefill)
        logits, caches = model.apply(variables, tokens, site, **options)
        return jnp.argmax(logits, axis=-1), caches

    return compiled_call(prompt, variables, tokens, site)


def decode(case: Mapping[str, Any], *given: Any) -> Call:
    """`steps` greedy steps of a decoder, of the case's sizes if none is given, from a cache that has so many slots left."""
    model, variables, tokens, site = given or _model(case)
    size, steps, batch = case["length"], case["steps"], case["batch"]
    prompt = jax.tree.map(lambda leaf: leaf[: size - steps], site)
    prefill = jax.jit(lambda *inputs: model.apply(*inputs, cache_size=size, method=Decoder.prefill))
    _, caches = prefill(variables, tokens[:, : size - steps], prompt)
    last = jax.tree.map(lambda leaf: np.broadcast_to(leaf[-1:], (batch, 1, *leaf.shape[1:])), prompt)

    def run(variables, token, site, caches):
        def step(carry, _):
            token, site, caches = carry
            site = site._replace(position=site.position + 1)
            logits, caches = model.apply(variables, token, site, caches, method=Decoder.extend)
            return (jnp.argmax(logits, axis=-1).astype(jnp.int32), site, caches), None

        return jax.lax.scan(step, (token, site, caches), length=steps)[0][0]

    return compiled_call(run, variables, tokens[:, -1:], last, caches)


def score(case: Mapping[str, Any]) -> Call:
    """The losses of one document of `length` tokens, as `experiments.ablate` reads it: only compiled."""
    from experiments.studies.long_context import Reader  # needs what reads data sets, which no other contender does

    model, variables, *_ = _model(case)
    reader = Reader(model, variables["params"], case["batch"], case["length"])
    return Call(None, reader.temp_bytes)


def _model(case: Mapping[str, Any]):
    """A decoder, its parameters, tokens and sites."""
    length = case["length"]
    options = dict(implementation=case.get("implementation", "auto"), dtype=jnp.dtype(case.get("dtype", "float32")))
    block = BlockConfig(width=case["width"], num_heads=case["heads"], **options)
    model = Decoder(_VOCABULARY, case["spec"], length=length, block=block, depth=case.get("depth", 4))
    tokens = np.random.default_rng(0).integers(_VOCABULARY, size=(case["batch"], length), dtype=np.int32)
    variables = model.init(jax.random.key(0), jnp.zeros((1, 2), jnp.int32), posjax.sites(2))
    return model, variables, tokens, posjax.sites(length)
