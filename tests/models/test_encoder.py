"""Encoders of text and encoder-decoders: visible tokens, shared parameters, implementations."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax as pj
from posjax.models import Decoder, Encoder, EncoderDecoder, generate
from posjax.models.kinds import make_model

SIZES = dict(width=16, num_heads=2, depth=3, mlp_dim=20)
TOKENS = np.arange(14, dtype=np.int32).reshape(2, 7) % 11
SITE = pj.sites(7)
SHARED = "deberta(position_buckets=4, max_relative_positions=9, shared=True)"


def made(model, seed=0):
    """Its parameters, all of them drawn: biases that are 0 show nothing."""
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), *model.example()))
    leaves, tree = jax.tree.flatten(shapes)
    draw = np.random.default_rng(seed)
    return jax.tree.unflatten(tree, [0.5 * draw.standard_normal(leaf.shape).astype(np.float32) for leaf in leaves])


def test_every_token_sees_all_of_its_document_and_its_type():
    model = Encoder.from_config(SIZES, vocab_size=11, encoding="rope", num_types=2)
    params = made(model)
    run = jax.jit(functools.partial(model.apply, params))
    site = SITE._replace(segment=np.array([1, 1, 1, 2, 2, 2, 2], np.int32))
    whole = run(TOKENS, site)
    assert whole.shape == (2, 7, 11)
    later = TOKENS.copy()
    later[:, 2] += 1
    moved = np.abs(np.asarray(run(later, site)) - whole).max(axis=(0, 2)) > 1e-6
    assert moved.tolist() == [True] * 3 + [False] * 4
    types = np.zeros_like(TOKENS)
    np.testing.assert_array_equal(run(TOKENS, site, types), whole)
    types[:, 5] = 1
    moved = np.abs(np.asarray(run(TOKENS, site, types)) - whole).max(axis=(0, 2)) > 1e-6
    assert moved.tolist() == [False] * 3 + [True] * 4
    with pytest.raises(ValueError, match="no types of tokens"):
        model.clone(num_types=0).apply(params, TOKENS, site, types)


@pytest.mark.slow
def test_a_first_block_without_norm_is_computed_the_same_however_blocks_run():
    model = Encoder.from_config(SIZES, vocab_size=11, encoding="rope + window(3)", first_norm=False, norm_bias=False)
    params = made(model)
    trunk = params["params"]["trunk"]
    assert "attention_norm" not in trunk["block_0"]
    assert set(trunk["block_1"]["attention_norm"]) == set(trunk["norm"]) == {"scale"}
    plain = jax.jit(model.apply)(params, TOKENS, SITE)
    again = jax.jit(model.clone(scan=True, remat="full").apply)(params, TOKENS, SITE)
    np.testing.assert_allclose(again, plain, atol=1e-5)
    watched, _ = model.apply(params, TOKENS, SITE, mutable="intermediates")
    np.testing.assert_allclose(watched, plain, atol=1e-5)


@pytest.mark.slow
def test_one_table_goes_through_the_matrices_of_each_layer():
    """The same as a table of each layer that was projected beforehand."""
    model = Encoder.from_config(SIZES, vocab_size=11, encoding=SHARED, placement="post", scan=True)
    params = made(model)
    shared = jax.jit(model.apply)(params, TOKENS, SITE)
    own = model.clone(encoding=SHARED.replace(", shared=True", ""), injection="every_layer")
    trunk = dict(params["params"]["trunk"])
    told = trunk.pop("encoding")
    rows = told["table"] - told["table"].mean(-1, keepdims=True)
    rows = rows / np.sqrt(rows.var(-1, keepdims=True) + 1e-7) * told["scale"] + told["shift"]
    for layer in range(3):
        qkv = trunk[f"block_{layer}"]["attention"]["qkv"]
        projected = np.einsum("rm,mhnd->rhnd", rows, qkv["kernel"]) + qkv["bias"]
        trunk[f"encoding_{layer}"] = {"pos_query": projected[:, :, 0], "pos_key": projected[:, :, 1]}
    apart = own.apply({"params": params["params"] | {"trunk": trunk}}, TOKENS, SITE)
    np.testing.assert_allclose(shared, apart, atol=2e-5)


@pytest.mark.slow
def test_in_a_model_without_projections_a_shared_table_is_refused():
    encoding = pj.parse(SHARED)
    params = encoding.init(jax.random.key(0), pj.Dims(16, 2, 8))
    x, hosted = pj.host(encoding, params, np.zeros((7, 16), np.float32), SITE, key=None)
    q = np.zeros((7, 2, 8), np.float32)
    with pytest.raises(ValueError, match=r"hosted.in_layer\(project\).attend"):
        hosted.attend(q, q, q, x=x)
    projected = hosted.in_layer(lambda rows: (rows.reshape(-1, 2, 8),) * 2)
    assert projected.attend(q, q, q, x=x).shape == (7, 2, 8)
    # Whatever it stands beside or behind.
    both = pj.parse(f"interpolate(2) >> (rope + {SHARED})")
    params = both.init(jax.random.key(0), pj.Dims(16, 2, 8))
    _, hosted = pj.host(both, params, x, SITE, key=None)
    assert hosted.in_layer(lambda rows: (rows.reshape(-1, 2, 8),) * 2).attend(q, q, q, x=x).shape == (7, 2, 8)


@pytest.mark.slow
def test_heads_are_those_that_are_asked_for():
    model = Encoder.from_config(
        SIZES, vocab_size=11, encoding="learned", length=7, head=None, pooler=True, num_pair_classes=3
    )
    params = made(model)
    features = model.apply(params, TOKENS, SITE)
    assert features.shape == (2, 7, 16)
    assert model.apply(params, TOKENS, SITE, method="pooled").shape == (2, 16)
    assert model.apply(params, TOKENS, SITE, method="pair_logits").shape == (2, 3)
    assert not {"head_dense", "decoder_bias"} & set(params["params"])
    untied = model.clone(head="relu", tied_embedding=False, head_bias=False, head_dense_bias=False)
    shapes = jax.eval_shape(lambda: untied.init(jax.random.key(0), *untied.example()))["params"]
    assert set(shapes["head_dense"]) == {"kernel"}
    assert shapes["decoder"]["kernel"].shape == (16, 11)
    with pytest.raises(ValueError, match="pooler=True"):
        made(model.clone(pooler=False))
    with pytest.raises(ValueError, match="no activation is named 'tanh'"):
        made(model.clone(head="tanh"))


def test_what_sees_later_tokens_is_not_trained_to_foretell_them():
    with pytest.raises(ValueError, match="no model of text is named 'encoder'"):
        make_model({"kind": "encoder", "width": 16}, "text", vocab_size=11)
    model = make_model({"kind": "encoder", "width": 16, "num_heads": 2}, "masked text", vocab_size=11)
    assert isinstance(model, Encoder)
    assert isinstance(make_model({"width": 16, "num_heads": 2}, "text", vocab_size=11), Decoder)


@pytest.mark.slow
def test_a_decoder_reads_the_source_of_its_document():
    """Token by token as in one pass, each stack with an encoding of its own."""
    model = EncoderDecoder.from_config(
        SIZES, vocab_size=11, encoding="alibi", decoder_encoding="rope, rope + window(3)", decoder_depth=2, norm="rms"
    )
    params = made(model)
    assert {name for name in params["params"]["decoder"] if name.startswith("block")} == {"block_0", "block_1"}
    source = TOKENS[:, ::-1]
    segment = np.array([[1] * 7, [0, 0] + [1] * 5], np.int32)
    source_site = pj.Site(np.stack([np.arange(7), np.arange(-2, 5)]).astype(np.int32), segment, 0 * segment)
    full = jax.jit(model.apply)(params, source, source_site, TOKENS, SITE)
    hidden = source.copy()
    hidden[1, :2] += 1  # is padding
    np.testing.assert_array_equal(jax.jit(model.apply)(params, hidden, source_site, TOKENS, SITE), full)
    memory = model.apply(params, source, source_site, method="encode")
    logits, caches = model.apply(params, TOKENS[:, :4], pj.sites(4), memory, cache_size=7, method="prefill")
    np.testing.assert_allclose(logits, full[:, :4], atol=1e-5)
    extend = jax.jit(functools.partial(model.apply, method="extend"))
    for t in range(4, 7):
        logits, caches = extend(params, TOKENS[:, t : t + 1], pj.sites(1, start=t), memory, caches)
        np.testing.assert_allclose(logits, full[:, t : t + 1], atol=1e-5)
    half = model.clone(head_scale=0.5)
    np.testing.assert_allclose(half.apply(params, source, source_site, TOKENS, SITE), jnp.asarray(full) / 2, atol=1e-5)


@pytest.mark.slow
def test_an_encoder_decoder_continues_what_its_decoder_begins():
    """With the token that is likeliest in the full pass; another source gives another line."""
    model = EncoderDecoder.from_config(SIZES | {"depth": 1}, vocab_size=11, tied_embedding=False)
    params = made(model)
    source, start = TOKENS[:, ::-1], np.zeros((2, 1), np.int32)
    memory = jax.jit(functools.partial(model.apply, method="encode"))(params, source, SITE)
    continued = generate(model, params, start, pj.sites(1), steps=4, memory=memory)
    whole = np.concatenate([start, continued], axis=1)
    logits = jax.jit(model.apply)(params, source, SITE, whole[:, :-1], pj.sites(4))
    np.testing.assert_array_equal(continued, np.argmax(logits, axis=-1))
    assert not np.array_equal(continued[0], continued[1])
    with pytest.raises(ValueError, match=r"needs memory=model\.apply"):
        generate(model, params, start, pj.sites(1), steps=4)
    with pytest.raises(ValueError, match="and no other model"):
        generate(Decoder.from_config(SIZES, vocab_size=11), {}, start, pj.sites(1), steps=4, memory=memory)
