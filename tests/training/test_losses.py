"""The losses of tokens in chunks are those of all logits at once, and so are their gradients; the logits are never held."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax as pj
from posjax.models import Decoder
from posjax.training import losses
from posjax.training.losses import token_losses

BATCH, LENGTH, VOCABULARY = 3, 10, 50
TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, VOCABULARY, (BATCH, LENGTH + 1), np.int32))
SITE = pj.sites(LENGTH)


def made(**fields):
    model = Decoder.from_config(dict(vocab_size=VOCABULARY, width=8, num_heads=2, depth=2) | fields)
    return model, model.init(jax.random.key(0), TOKENS[:, :-1], SITE)["params"]


def value_and_gradients(model, params, most, monkeypatch, **options):
    monkeypatch.setattr(losses, "MOST", most)
    total = lambda params: token_losses(model, params, TOKENS[:, :-1], SITE, TOKENS[:, 1:], **options)  # noqa: E731
    weight = jnp.linspace(0, 1, BATCH * LENGTH).reshape(BATCH, LENGTH)
    gradient = jax.grad(lambda params: (total(params) * weight).sum())
    return jax.jit(lambda params: (total(params), gradient(params)))(params)


@pytest.mark.parametrize(
    "fields",
    [{}, {"tied_embedding": False, "head_bias": True}, {"final_softcap": 2.0, "head_scale": 0.5}, {"dropout": 0.5}],
    ids=["tied", "head", "capped", "dropout"],
)
@pytest.mark.parametrize(
    "positions", [4, pytest.param(1, marks=pytest.mark.slow), pytest.param(9, marks=pytest.mark.slow)]
)
def test_chunks_give_the_losses_and_gradients_of_all_logits(fields, positions, monkeypatch):
    model, params = made(**fields)
    options = (
        dict(train=True, rngs={"dropout": jax.random.key(1), "place": jax.random.key(2)})
        if fields.get("dropout")
        else {}
    )
    whole = value_and_gradients(model, params, 10**9, monkeypatch, **options)
    parts = value_and_gradients(model, params, positions * BATCH * VOCABULARY, monkeypatch, **options)
    assert parts[0].shape == (BATCH, LENGTH)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6), whole, parts)


@pytest.mark.slow
def test_runs_may_be_mapped(monkeypatch):
    monkeypatch.setattr(losses, "MOST", 4 * BATCH * VOCABULARY)
    model, params = made()
    pair = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), params)
    of = lambda params: token_losses(model, params, TOKENS[:, :-1], SITE, TOKENS[:, 1:])  # noqa: E731
    np.testing.assert_allclose(jax.vmap(of)(pair)[0], of(params), rtol=1e-5)


def test_all_logits_are_never_held(monkeypatch):
    """By XLA's analysis of the gradient, for a vocabulary whose logits are larger than anything else."""
    model, params = made(vocab_size=4096)
    logits = 4 * BATCH * LENGTH * 4096

    def held(most):
        monkeypatch.setattr(losses, "MOST", most)
        loss = lambda params: token_losses(model, params, TOKENS[:, :-1], SITE, TOKENS[:, 1:]).sum()  # noqa: E731
        return jax.jit(jax.grad(loss)).lower(params).compile().memory_analysis().temp_size_in_bytes

    assert held(10**9) > logits
    assert held(BATCH * 4096) < 2 * logits / 3  # the gradient of the table is among them
