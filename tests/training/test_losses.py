"""Chunks of tokens have the losses and gradients of all logits at once; logits are made once, and never all held."""

import re

import jax
import jax.numpy as jnp
import numpy as np
from drawn import drawn
from jax.sharding import AbstractDevice, AbstractMesh, NamedSharding, PartitionSpec

import posjax as pj
from posjax.models import Decoder
from posjax.training import losses
from posjax.training.losses import token_loss, token_losses

BATCH, LENGTH, VOCABULARY = 3, 40, 4096  # logits are larger than anything else
TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, VOCABULARY, (BATCH, LENGTH + 1), np.int32))


def test_chunks_give_the_losses_and_gradients_of_all_logits_and_never_hold_them(monkeypatch):
    """For two runs at once, with all that a head may have; memory is by XLA's analysis."""
    parts = dict(tied_embedding=False, head_bias=True, final_softcap=2.0, head_scale=0.5, dropout=0.5)
    model = Decoder.from_config(dict(vocab_size=VOCABULARY, width=8, num_heads=2, depth=1) | parts)
    site = pj.sites(LENGTH)
    params = drawn(model.init, jax.random.key(0), TOKENS[:, :-1], site)["params"]
    pair = jax.tree.map(lambda leaf: np.stack([leaf, 2 * leaf]), params)
    options = dict(train=True, rngs={"dropout": jax.random.key(1), "place": jax.random.key(2)})
    weight = np.linspace(0, 1, BATCH * LENGTH, dtype=np.float32).reshape(BATCH, LENGTH)

    given = TOKENS[:, :-1], site, TOKENS[:, 1:]

    def gradient(params):
        return jax.value_and_grad(lambda *own: token_loss(model, own[0], *given, own[1], **options), (0, 1))(
            params, weight
        )

    def compiled(most):
        monkeypatch.setattr(losses, "most_logits", lambda tokens: most)
        run = lambda params: (gradient(params), token_losses(model, params, *given, **options))  # noqa: E731
        return jax.jit(jax.vmap(run)).lower(pair).compile()

    whole, chunked = compiled(10**9), compiled(3 * BATCH * VOCABULARY)  # 3 positions at a time do not divide 40
    a, b = whole(pair), chunked(pair)
    assert b[1].shape == (2, BATCH, LENGTH)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6), a, b)
    assert len(re.findall(rf"\[{BATCH},3,{VOCABULARY}\] = dot_general", str(jax.make_jaxpr(gradient)(params)))) == 1
    held = [each.memory_analysis().temp_size_in_bytes for each in (whole, chunked)]
    assert held[0] > 2 * 4 * BATCH * LENGTH * VOCABULARY
    assert held[1] < held[0] / 2
    assert not np.array_equal(a[1][0], a[1][1])


def test_more_logits_are_held_where_there_is_more_memory():
    """In float32 a 32nd of each device's memory; axes that share no batch do not count."""

    def most(name, **sizes):
        mesh = AbstractMesh(tuple(sizes.values()), tuple(sizes), abstract_device=AbstractDevice(name, None, "gpu"))
        sharding = NamedSharding(mesh, PartitionSpec("data"))
        return losses.most_logits(jax.ShapeDtypeStruct((8, 4), jnp.int32, sharding=sharding)) * 4 * 32 / 2**30

    assert most("NVIDIA H100 80GB HBM3", data=1) == 80
    assert most("NVIDIA H100 80GB HBM3", data=2, fsdp=3, tensor=5) == 6 * 80
    assert (most("TPU v5 lite", data=1), most("TPU v5", data=1)) == (16, 95)
    assert losses.most_logits(TOKENS) == 2**26
