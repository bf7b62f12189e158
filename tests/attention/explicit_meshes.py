"""A program for 4 devices that compares meshes with explicit axes with no mesh; it prints the largest differences."""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
from drawn import drawn
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import posjax as pj
from posjax.models import BlockConfig, Decoder, ViT, generate

MESH = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
BATCH, LENGTH, HEADS, DIM = 2, 72, 4, 8
SITE = pj.sites(LENGTH)


def put(tree, *spec):
    return jax.device_put(tree, NamedSharding(MESH, PartitionSpec(*spec)))


def difference(one, other) -> float:
    """The largest difference of two trees; of an array whose largest number is above 1, in relation to that."""
    pairs = [map(np.asarray, both) for both in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)]
    return max(float(np.max(np.abs(a - b)) / max(np.max(np.abs(b)), 1)) for a, b in pairs)


def attention(spec: str, implementation: str, split: str) -> float:
    """Returns the difference in the output and all gradients of one layer; devices share its batch, and heads or tokens."""
    encoding = pj.parse(spec)
    params = encoding.init(jax.random.key(0), pj.Dims(HEADS * DIM, HEADS, DIM))
    x = jax.random.normal(jax.random.key(1), (BATCH, LENGTH, HEADS * DIM))
    qkv = jax.random.normal(jax.random.key(2), (3, BATCH, LENGTH, HEADS, DIM))

    def loss(params, x, q, k, v, implementation):
        x, hosted = pj.host(encoding, params, x, SITE, key=None)
        out = hosted.attend(q, k, v, x=x, causal=True, implementation=implementation)
        return jnp.sum(jnp.sin(out)), out

    run = jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3, 4), has_aux=True), static_argnums=5)
    parts = ("data", "model" if split == "tokens" else None, "model" if split == "heads" else None)
    with jax.set_mesh(MESH):
        found = run(put(params), put(x, "data"), *(put(each, *parts) for each in qkv), implementation)
    assert jax.typeof(found[0][1]).sharding.spec[:3] == parts
    return difference(found, run(params, x, *qkv, "dense"))


def decoder(spec: str) -> float:
    """Returns the difference in logits, gradients and generated tokens."""
    model = Decoder(11, encoding=spec, length=LENGTH + 3, block=BlockConfig(width=32, num_heads=4), depth=1)
    tokens = jnp.arange(BATCH * LENGTH).reshape(BATCH, LENGTH) % 11
    variables = drawn(model.init, jax.random.key(0), tokens, SITE)

    def loss(variables, tokens, site):
        logits = model.apply(variables, tokens, site)
        return jnp.sum(jnp.sin(logits)), logits

    run = jax.jit(jax.value_and_grad(loss, has_aux=True))
    site = jax.tree.map(lambda leaf: np.stack([leaf] * BATCH), SITE)

    expected = run(variables, tokens, site), generate(model, variables, tokens, SITE, steps=3)
    variables, tokens = put(variables), put(tokens, "data")
    with jax.set_mesh(MESH):
        found = generate(model, variables, tokens, SITE, steps=3)
        jax.eval_shape(run, variables, tokens, site)  # whole, and split as the tokens are
        return difference((run(variables, tokens, jax.tree.map(lambda leaf: put(leaf, "data"), site)), found), expected)


def vit(spec: str) -> float:
    """Returns the difference in logits and gradients."""
    model = ViT(5, encoding=spec, patch_size=4, block=BlockConfig(width=32, num_heads=4), depth=1)
    images, site = jax.random.normal(jax.random.key(1), (BATCH, 36, 36, 3)), pj.grid(9, 9, 1)
    variables = drawn(model.init, jax.random.key(0), images, site)

    def loss(variables, images):
        logits = model.apply(variables, images, site)
        return jnp.sum(jnp.sin(logits)), logits

    run = jax.jit(jax.value_and_grad(loss, has_aux=True))
    with jax.set_mesh(MESH):
        found = run(put(variables), put(images, "data"))
    return difference(found, run(variables, images))


if __name__ == "__main__":
    checks = {f.__name__: f for f in (attention, decoder, vit)}
    print(json.dumps([checks[name](*arguments) for name, *arguments in json.loads(sys.argv[1])]))
