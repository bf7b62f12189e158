"""Measures of decoders, on weights and models whose answers are known."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import posjax as pj
from experiments.analysis.frequencies import share_of_pairs
from experiments.analysis.language import heads, massive, removal
from experiments.analysis.language.findings import measure_decoder
from experiments.analysis.language.heads import look_into
from experiments.analysis.language.subject import TextModel, TextReader, Texts, draw_texts, repeated_tokens
from experiments.analysis.noise import with_noise
from posjax import data
from posjax.models import BlockConfig, Decoder
from posjax.spec import parse_layers

LENGTH = 24
PATTERN = "rope(base=100) + window(8), rope(base=1000)"


def subject(encoding=PATTERN, **fields):
    block = BlockConfig(width=32, num_heads=4, num_kv_heads=2, head_dim=16)
    model = Decoder(vocab_size=256, encoding=encoding, block=block, depth=2, length=64, **fields)
    params = model.init(jax.random.key(0), jnp.zeros((1, LENGTH), jnp.int32), pj.sites(LENGTH))["params"]
    params = jax.tree.map(lambda leaf: 3 * leaf, params)  # sharp attention, so that its places matter
    return TextModel("tiny", model, params, data.load_tokenizer(None), LENGTH, "0")


def text(length=LENGTH, seed=0):
    return np.random.default_rng(seed).integers(0, 256, length + 1).astype(np.int32)


def lower(fill):
    return np.tril(np.full((1, LENGTH, LENGTH), fill))


def test_scores_of_heads_that_look_at_one_place():
    first, before = lower(0.0), lower(0.0)
    first[:, :, 0] = 1
    before[:, 0, 0] = before[:, range(1, LENGTH), range(LENGTH - 1)] = 1
    np.testing.assert_allclose(heads.sink(first), 1)
    np.testing.assert_allclose(heads.sink(before), 2 / LENGTH)
    np.testing.assert_allclose(heads.previous(before), 1)
    np.testing.assert_allclose(heads.previous(first), 1 / (LENGTH - 1))
    copy = lower(0.0)
    copy[:, range(10, LENGTH), range(1, LENGTH - 9)] = 1  # ten tokens stand twice: i looks at i - 9
    np.testing.assert_allclose(heads.induction_score(copy[:, :20, :20], 10), 1)
    window = lower(0.0)
    window[:, range(LENGTH), np.maximum(np.arange(LENGTH) - 4, 0)] = 1
    np.testing.assert_allclose(heads.oldest(window, 5), 1)
    assert np.isnan(heads.oldest(window, LENGTH)).all()


def test_attention_by_distance_holds_all_of_it():
    weights = lower(1.0) / np.arange(1, LENGTH + 1)[:, None]
    found = np.asarray(heads.by_distance(weights))
    assert heads.edges_of(LENGTH) == [0, 1, 2, 4, 8, 16, LENGTH]
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(found[:, 0], (1 / np.arange(1, LENGTH + 1)).mean(), rtol=1e-6)


def test_the_lead_of_a_pair_is_that_of_its_cosine():
    """With queries and keys of 1 in every channel a pair's part of a logit is 2 cos(d theta)."""
    rope, site, ones = pj.parse("rope(base=100)"), pj.sites(200), np.ones((200, 1, 8), np.float32)
    query, key = rope.rotate((), ones, site, ones, site)
    pairs = [(c, c + 4) for c in range(4)]
    found = heads.lead_of_previous(query, key, pairs, others=16)
    theta, distance = 100.0 ** (-np.arange(4) / 4), np.arange(2, 17)
    expected = 2 * np.cos(theta) - 2 * np.cos(distance[:, None] * theta).mean(axis=0)
    np.testing.assert_allclose(found[0], expected, atol=1e-4)


def test_shares_of_slow_and_fast_pairs():
    use, magnitude = np.array([[1.0, 2, 3, 4]]), np.array([[1.0, 0.1, 10, 0.01]])
    np.testing.assert_allclose(share_of_pairs(use, magnitude, 0.25), 0.4)
    np.testing.assert_allclose(share_of_pairs(use, magnitude, -0.5), 0.4)


@pytest.mark.slow
def test_layers_seen_are_those_of_attention():
    found = look_into(subject().model)(subject().params, text()[:-1], pj.sites(LENGTH))
    assert [layer.weights.shape for layer in found] == 2 * [(4, LENGTH, LENGTH)]
    assert found[0].key.shape == found[0].value.shape == (LENGTH, 2, 16)
    np.testing.assert_allclose(found[0].weights.sum(-1), 1, atol=1e-5)
    assert not np.asarray(found[0].weights)[:, 20, :12].any()  # behind the window


@pytest.mark.slow
def test_the_loss_read_is_the_plain_one():
    own, given = subject(), text()
    found = TextReader(own, 10).read(given)
    logits = own.model.apply({"params": own.params}, jnp.asarray(given[None, :-1]), pj.sites(LENGTH))[0]
    plain = optax.softmax_cross_entropy_with_integer_labels(logits, given[1:])
    np.testing.assert_allclose(found.loss, plain[-10:], atol=2e-5)
    np.testing.assert_array_equal(found.right, (logits.argmax(-1) == given[1:])[-10:])
    np.testing.assert_allclose(TextReader(own, 10).losses(given[None]), plain[-10:].mean(), atol=2e-5)


def test_a_shift_is_nothing_to_rope_and_something_to_a_table():
    given, away = text(), np.arange(LENGTH) + 30
    for spec, moves in ((PATTERN, False), ("learned", True)):
        reader = TextReader(subject(spec), 10)
        before, after = reader.read(given), reader.read(given, position=away)
        assert (np.abs(before.loss - after.loss).max() > 1e-3) == moves


def test_readings_change_the_layers_that_they_name():
    pattern = parse_layers(PATTERN)
    found = {each.label: each.encodings for each in removal.readings(pattern, LENGTH)}
    assert found["as loaded"] is None
    assert list(map(str, found["no rope, global layers"])) == ["rope(base=100) + window(size=8)", "none()"]
    assert list(map(str, found["no rope, windowed layers"])) == ["none() + window(size=8)", "rope(base=1000)"]
    half = "p_rope(base=1000, proportion=0.5)"
    assert list(map(str, found["p_rope(0.5), global layers"])) == ["rope(base=100) + window(size=8)", half]
    assert str(found["4 sinks and window 3, all layers"][1]) == "rope(base=1000) + sinks(window=3)"
    assert str(found["base x 4, windowed layers"][0]) == "rope(base=400) + window(size=8)"
    assert {each.layers for each in removal.readings(parse_layers("rope"), LENGTH)} == {"", "all layers"}
    assert not any("rope" in each.change for each in removal.readings(parse_layers("alibi"), LENGTH))
    assert removal.changed(pattern, removal.is_windowed, removal.unwindowed)[0] == pj.parse("rope(base=100)")


def test_pairs_that_are_still():
    """All pairs still are no encoding, none still are the encoding."""
    own, given = subject(), text()
    reader = TextReader(own, 10)
    all_still = tuple(removal.stilled(each, tuple(range(16))) for each in own.pattern)
    none_still = tuple(removal.stilled(each, ()) for each in own.pattern)
    bare = removal.changed(own.pattern, lambda layer: True, removal.without_rope)
    np.testing.assert_allclose(reader.read(given, all_still).loss, reader.read(given, bare).loss, atol=1e-5)
    np.testing.assert_allclose(reader.read(given, none_still).loss, reader.read(given).loss, atol=1e-5)


def test_massive_channels_are_found_and_fixed():
    rng = np.random.default_rng(0)
    query, key, value = (rng.standard_normal((LENGTH, count, 16)).astype(np.float32) for count in (4, 2, 2))
    query[:, 1, 5] += 40
    norms = massive.channel_norms(query)
    np.testing.assert_allclose(norms[1, 5], np.linalg.norm(query[:, 1, 5]), rtol=1e-6)
    assert np.argwhere(massive.is_massive(norms)).tolist() == [[1, 5]]
    layer = heads.LayerValues(None, query, key, value)
    encoding = massive.fixed_pattern([pj.parse("rope")], [layer], "massive", rng)[0]
    mean = query[:, 1, 5].astype(np.float64).mean()
    ((head, channel, number),) = encoding.parts[0].query
    assert (head, channel, encoding.parts[0].key) == (1, 5, ())
    assert number == pytest.approx(mean)
    fixed = encoding.parts[0].rotate((), query, None, key, None)[0]
    np.testing.assert_allclose(fixed[:, 1, 5], mean, rtol=1e-6)
    np.testing.assert_array_equal(np.delete(fixed[:, 1], 5, axis=1), np.delete(query[:, 1], 5, axis=1))
    ((_, other, _),) = massive.fixed_pattern([pj.parse("rope")], [layer], "other", rng)[0].parts[0].query
    assert other != 5


def test_a_channel_fixed_at_its_own_value_changes_nothing():
    own, given = subject(), text()
    query = look_into(own.model)(own.params, given[:-1], pj.sites(LENGTH))[0].query
    still = massive.Fixed(query=((0, 3, float(query[-1, 0, 3])),))
    pattern = tuple(pj.encoding.Sum((still, *each.parts)) for each in own.pattern[:1]) + own.pattern[1:]
    before, after = (TextReader(own, 1).read(given, each) for each in (None, pattern))
    np.testing.assert_allclose(before.hidden[-1], before.hidden[-1], atol=1e-5)
    assert np.abs(before.hidden - after.hidden).max() > 1e-4  # other queries had other values


def test_texts_are_chosen_by_their_title_and_place_alone():
    rng = np.random.default_rng(0)
    texts = {f"book {i}": rng.integers(0, 256, 500).astype(np.uint8) for i in range(4)}
    drawn = [
        draw_texts(data.Documents("books", tuple(names), tuple(texts[name] for name in names)), 5, 50)
        for names in (sorted(texts), sorted(texts)[::-1])
    ]
    assert drawn[0].titles == drawn[1].titles
    np.testing.assert_array_equal(drawn[0].tokens, drawn[1].tokens)
    title, _, start = drawn[0].titles[0].rpartition(", token ")
    np.testing.assert_array_equal(drawn[0].tokens[0], texts[title][int(start) : int(start) + 51])
    with pytest.raises(ValueError, match="36 pieces of 50 tokens, and 90 texts are asked for"):
        draw_texts(data.Documents("books", tuple(texts), tuple(texts.values())), 90, 50)


def test_random_tokens_stand_twice():
    tokens = repeated_tokens(subject(), 3, 10)
    np.testing.assert_array_equal(tokens[:, :10], tokens[:, 10:])
    assert len(np.unique(tokens)) > 20


def test_noise_is_of_the_size_of_a_step():
    """Weights of 6 bits, a scale for each block of 16: noise is uniform within one step, and vectors stay."""
    rng = np.random.default_rng(0)
    step = rng.uniform(0.5, 2, (128, 1, 8))
    kernel = np.repeat(step, 16, axis=1) * rng.integers(-31, 32, (128, 16, 8))
    params = {"up": {"kernel": jnp.asarray(kernel.reshape(-1, 8), jnp.float32), "bias": jnp.ones(8)}}
    found = with_noise(params)
    away = (np.asarray(found["up"]["kernel"]).reshape(128, 16, 8) - kernel) / step
    assert (np.abs(away) <= 0.51).mean() > 0.95  # a block of 16 may lack neighbours among 63 levels
    np.testing.assert_allclose(away.std(), 1 / np.sqrt(12), rtol=0.15)
    np.testing.assert_array_equal(found["up"]["bias"], params["up"]["bias"])
    with pytest.raises(ValueError, match="these weights are not quantised: leave out --noise"):
        with_noise({"up": {"kernel": jnp.asarray(rng.standard_normal((64, 8)), jnp.float32)}})


@pytest.mark.slow
def test_rows_of_a_model_with_unlike_layers():
    """Layers that turn all pairs, half of them or none have no common figure, and are measured all the same."""
    rng = np.random.default_rng(0)
    texts = Texts(("a", "b"), rng.integers(0, 256, (2, 129)).astype(np.int32), "x")
    for encoding in ("rope, none", "rope, rope(fraction=0.5)"):
        rows, arrays = measure_decoder(subject(encoding), texts, ["positions + 1"])
        assert "use" not in arrays
        assert {"profile", "previous"} <= set(arrays)
        assert set(rows) >= {"as loaded", "positions + 1"}


def test_rows_that_there_are_not_are_refused():
    texts = Texts(("a",), np.zeros((1, 129), np.int32), "x")
    with pytest.raises(ValueError, match="there is no row 'no ropes' of this model"):
        measure_decoder(subject(), texts, ["no ropes"])
    assert removal.masked("window(9)")(pj.parse("rope + window(8)")) == pj.parse("rope + window(8)")
