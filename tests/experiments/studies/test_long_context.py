"""Chunks, tiles and windows give the model's values for whole sequences."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp

from experiments.studies import long_context
from experiments.studies.long_context import Reader, TokenScores, retrieved, text_loss, text_windows
from experiments.studies.readings import read_as
from posjax import data, sites
from posjax.models import Decoder

TEXT = np.random.default_rng(0).integers(0, 256, 400).astype(np.uint8)
TOKENS = TEXT[None, :40].astype(np.int32)


def decoder(encoding="rope", **sizes):
    """A small model whose weights differ from the initial ones, under which all bytes are equally likely."""
    model = Decoder.from_config(
        {"vocab_size": 256, "encoding": encoding, "width": 8, "depth": 1, "num_heads": 2, **sizes}
    )
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), jnp.zeros((1, 2), jnp.int32), sites(2))["params"])
    rng = np.random.default_rng(0)
    return model, jax.tree.map(lambda x: jnp.asarray(0.4 * rng.normal(size=x.shape), jnp.float32), shapes)


@functools.partial(jax.jit, static_argnums=0)
def logits_of(model, params, tokens):
    """The logits of whole sequences [B, T], by the model's own call."""
    return model.apply({"params": params}, tokens, sites(tokens.shape[1]))


def loss_of(model, params, windows):
    """[N, T] of windows [N, T + 1]."""
    logits = np.asarray(logits_of(model, params, np.int32(windows[:, :-1])))
    return logsumexp(logits, axis=-1) - np.take_along_axis(logits, np.int32(windows[:, 1:, None]), -1)[..., 0]


@pytest.fixture(scope="module")
def rope():
    return decoder()


@pytest.mark.slow
def test_reading_in_chunks_changes_nothing(monkeypatch):
    monkeypatch.setattr(long_context, "CHUNK", 24)
    monkeypatch.setattr(long_context, "VOCABULARY", 64)  # the model's are 256: a quarter as many logits at once
    model, params = decoder(tied_embedding=False)
    windows = TEXT[:102].reshape(2, 51)
    reading = Reader(model, params, 2, 50)(params, windows[:, :-1], windows[:, 1:])
    np.testing.assert_allclose(reading.loss, loss_of(model, params, windows), atol=2e-5)
    assert np.array_equal(
        reading.right, logits_of(model, params, np.int32(windows[:, :-1])).argmax(-1) == windows[:, 1:]
    )


@pytest.mark.slow
def test_of_a_large_vocabulary_few_logits_are_held():
    """Holds fewer logits than `_CHUNK` tokens have: 2048 x 32,768 float32 are 256 MiB."""
    model, params = decoder(vocab_size=2**15, width=16)
    assert Reader(model, params, 1, 2048).temp_bytes < 2**27


def test_windows_score_every_byte_once_behind_enough_context():
    windows = text_windows(TEXT, length=64, stride=16, first=100, count=64)
    assert windows.shape == (4, 65)
    assert np.array_equal(windows[:, -16:].ravel(), TEXT[101:165])
    assert np.array_equal(windows[0], TEXT[100 + 16 - 64 : 100 + 17])


def test_losses_are_those_of_the_definition(rope):
    model, params = rope
    reader = Reader(model, params, 3, 32)
    found = text_loss(reader, params, [TEXT, TEXT[7:]], stride=8, first=50, count=64)

    windows = [text[end - 32 : end + 1] for text in (TEXT, TEXT[7:]) for end in range(58, 115, 8)]
    losses = loss_of(model, params, np.array(windows)).reshape(2, 8, 32)
    np.testing.assert_allclose(found.sliding, losses[:, :, -8:].mean(), rtol=1e-5)
    np.testing.assert_allclose(found.chunked, losses[:, 3::4].mean(), rtol=1e-5)
    curve = losses.mean(axis=(0, 1))
    assert found.by_position[0] == (0.0, pytest.approx(curve[0], rel=1e-5))
    assert found.by_position[-1] == (27.0, pytest.approx(curve[23:].mean(), rel=1e-5))
    assert reader.seconds > 0
    longer = text_loss(reader, params, [TEXT], stride=16, first=50, count=16)  # such a window is also scored whole
    loss = loss_of(model, params, np.array([TEXT[34:67]] * 16))[0]
    np.testing.assert_allclose([longer.sliding, longer.chunked], [loss[16:].mean(), loss.mean()], rtol=1e-5)


def test_answers_are_scored_and_nothing_else():
    batch = data.retrieval_batch("recall", length=64, count=3, seed=0, depth=0.0)
    answer = batch["weight"] > 0
    right, loss = answer.copy(), np.where(answer, 0.5, 99.0)
    assert retrieved(TokenScores(loss, right), batch) == (1.0, 1.0, -4.0)
    wrong = right.copy()
    wrong[0, np.flatnonzero(answer[0])[0]] = False
    assert retrieved(TokenScores(loss, wrong), batch) == (pytest.approx(23 / 24), pytest.approx(2 / 3), -4.0)
    lost = np.where(answer, np.nan, 0.0)
    assert np.isnan(retrieved(TokenScores(lost, right), batch)).all()


def read(model, params, spec):
    """`read_as` of one seed."""
    changed, ensemble = read_as(model, jax.tree.map(lambda leaf: leaf[None], params), spec)
    return changed, jax.tree.map(lambda leaf: leaf[0], ensemble)


@pytest.mark.slow
def test_weights_are_read_under_another_encoding(rope):
    model, params = rope
    changed, moved = read(model, params, "self_extend(group=2, window=8) >> rope(scaling=linear(factor=2))")
    got = logits_of(changed, moved, TOKENS)
    assert np.isfinite(got).all()
    assert np.abs(got - logits_of(model, params, TOKENS)).max() > 1e-3
    same, back = read(changed, moved, "rope")
    assert jax.tree.structure(back) == jax.tree.structure(params)


def test_what_an_encoding_has_learned_goes_along():
    model, params = decoder("kerple")
    changed, moved = read(model, params, "window(1000) + kerple")
    want = logits_of(model, params, TOKENS)
    np.testing.assert_allclose(logits_of(changed, moved, TOKENS), want, atol=1e-5)
    with pytest.raises(ValueError, match=r"rope\(\) cannot take over what kerple"):
        read(model, params, "rope")
