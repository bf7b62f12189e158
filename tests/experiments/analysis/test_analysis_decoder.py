"""Findings in decoders, on weights and models whose answers are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax
from subjects import LENGTH, PATTERN, decoder

import posjax as pj
from experiments.analysis import heads, removal
from experiments.analysis.decoder import measure_decoder
from experiments.analysis.frequencies import share_of_pairs
from experiments.analysis.layers import Layers
from experiments.analysis.noise import with_noise
from experiments.analysis.removal import TextReader
from experiments.analysis.subject import Texts, draw_texts, repeated_tokens
from posjax import data
from posjax.spec import parse_layers


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


def test_attention_by_distance_holds_all_of_it():
    weights = lower(1.0) / np.arange(1, LENGTH + 1)[:, None]
    shares = np.asarray(heads.by_distance(weights))
    assert shares.shape == (1, 6)  # 0, 1, 2 to 3, 4 to 7, 8 to 15, and from 16
    np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(shares[:, 0], (1 / np.arange(1, LENGTH + 1)).mean(), rtol=1e-6)


def test_the_lead_of_a_pair_is_that_of_its_cosine():
    """With queries and keys of 1 in every channel a pair's part of a logit is 2 cos(d theta)."""
    theta, distance, places = 100.0 ** (-np.arange(4) / 4), np.arange(2, 17), np.arange(200)[:, None]
    cos, sin = np.cos(places * theta), np.sin(places * theta)
    turned = np.concatenate([cos - sin, sin + cos], axis=1)[:, None]  # a rope of 4 pairs
    lead = heads.lead_of_previous(turned, turned, [(c, c + 4) for c in range(4)], others=16)
    expected = 2 * np.cos(theta) - 2 * np.cos(distance[:, None] * theta).mean(axis=0)
    np.testing.assert_allclose(lead[0], expected, atol=1e-9)


def test_shares_of_slow_and_fast_pairs():
    use, magnitude = np.array([[1.0, 2, 3, 4]]), np.array([[1.0, 0.1, 10, 0.01]])
    np.testing.assert_allclose(share_of_pairs(use, magnitude, 0.25), 0.4)
    np.testing.assert_allclose(share_of_pairs(use, magnitude, -0.5), 0.4)


def test_a_reading_of_a_text():
    """The loss is the plain one; a shift is nothing to rope, and distances twice as large are something."""
    subject, tokens, places = decoder(), text(), np.arange(LENGTH)
    reader = TextReader(subject, 10)
    read = reader.read(tokens)
    site = pj.sites(LENGTH)
    logits = np.asarray(jax.jit(subject.model.apply)({"params": subject.params[0]}, tokens[None, :-1], site))[0]
    plain = -log_softmax(logits, axis=-1)[np.arange(LENGTH), tokens[1:]]
    np.testing.assert_allclose(read.loss, plain[-10:], atol=2e-5)
    np.testing.assert_array_equal(read.right, (logits.argmax(-1) == tokens[1:])[-10:])
    np.testing.assert_allclose(reader.losses(tokens[None]), plain[-10:].mean(), atol=2e-5)
    np.testing.assert_allclose(reader.read(tokens, position=places + 30).loss, read.loss, atol=1e-4)
    assert np.abs(reader.read(tokens, position=2 * places).loss - read.loss).max() > 1e-3


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
    scaled = removal.changed(pattern, removal.is_windowed, removal.unwindowed_and_scaled("linear(factor=2)"))
    assert list(map(str, scaled)) == ["rope(base=100, scaling=linear(factor=2))", "rope(base=1000)"]
    assert removal.masked("window(9)")(pattern[0]) == pattern[0]


def test_channels_that_are_still_do_not_turn_and_the_others_do():
    rope, site = pj.parse("rope + window(8)"), pj.sites(LENGTH)
    x = np.random.default_rng(0).standard_normal((LENGTH, 1, 4)).astype(np.float32)
    some = removal.stilled(rope, (0, 2))
    turned, still = jax.jit(lambda x: [each.rotate(((), ()), x, site, x, site)[0] for each in (rope, some)])(x)
    turned, still = np.asarray(turned), np.asarray(still)
    np.testing.assert_array_equal(still[..., [0, 2]], x[..., [0, 2]])
    np.testing.assert_allclose(still[..., [1, 3]], turned[..., [1, 3]], atol=1e-6)
    assert some.mask() == rope.mask()


def test_massive_channels_are_found_and_fixed():
    rng = np.random.default_rng(0)
    query, key = (rng.standard_normal((LENGTH, count, 16)).astype(np.float32) for count in (4, 2))
    query[:, 1, 5] += 40
    norms = removal.channel_norms(query)
    np.testing.assert_allclose(norms[1, 5], np.linalg.norm(query[:, 1, 5]), rtol=1e-6)
    assert np.argwhere(removal.is_massive(norms)).tolist() == [[1, 5]]
    layers = Layers(None, [], [query[None]], [key[None]], [], [])
    encoding = removal.fixed_pattern([pj.parse("rope")], layers, "massive", rng)[0]
    mean = query[:, 1, 5].astype(np.float64).mean()
    ((head, channel, number),) = encoding.parts[0].query
    assert (head, channel, encoding.parts[0].key) == (1, 5, ())
    assert number == pytest.approx(mean)
    fixed = encoding.parts[0].rotate((), query, None, key, None)[0]
    np.testing.assert_allclose(fixed[:, 1, 5], mean, rtol=1e-6)
    np.testing.assert_array_equal(np.delete(fixed[:, 1], 5, axis=1), np.delete(query[:, 1], 5, axis=1))
    ((_, other, _),) = removal.fixed_pattern([pj.parse("rope")], layers, "other", rng)[0].parts[0].query
    assert other != 5


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
    with pytest.raises(ValueError, match="36 pieces of 50 tokens"):
        draw_texts(data.Documents("books", tuple(texts), tuple(texts.values())), 90, 50)


def test_random_tokens_stand_twice():
    tokens = repeated_tokens(decoder(), 3, 10)
    np.testing.assert_array_equal(tokens[:, :10], tokens[:, 10:])
    assert len(np.unique(tokens)) > 20


def test_noise_is_of_the_size_of_a_step():
    """Weights of 6 bits, a scale for each block of 16: noise is uniform within one step, and vectors stay."""
    rng = np.random.default_rng(0)
    step = rng.uniform(0.5, 2, (128, 1, 8))
    kernel = np.repeat(step, 16, axis=1) * rng.integers(-31, 32, (128, 16, 8))
    params = {"up": {"kernel": jnp.asarray(kernel.reshape(-1, 8), jnp.float32), "bias": jnp.ones(8)}}
    noisy = with_noise(params)
    away = (np.asarray(noisy["up"]["kernel"]).reshape(128, 16, 8) - kernel) / step
    assert (np.abs(away) <= 0.51).mean() > 0.95  # a block of 16 may lack neighbours among 63 levels
    np.testing.assert_allclose(away.std(), 1 / np.sqrt(12), rtol=0.15)
    np.testing.assert_array_equal(noisy["up"]["bias"], params["up"]["bias"])
    with pytest.raises(ValueError, match="not quantised"):
        with_noise({"up": {"kernel": jnp.asarray(rng.standard_normal((64, 8)), jnp.float32)}})


@pytest.mark.slow
def test_rows_of_a_model_with_unlike_layers():
    """Layers that turn all pairs or half of them have no common figure, and are measured all the same."""
    texts = Texts(("a", "b"), np.random.default_rng(0).integers(0, 256, (2, 129)).astype(np.int32), "x")
    (group,), arrays = measure_decoder(decoder("rope, rope(fraction=0.5)"), texts, ["positions + 1"])
    assert "use" not in arrays
    assert {"profile", "previous"} <= set(arrays)
    assert set(group.rows) >= {"as loaded", "positions + 1"}


@pytest.mark.parametrize(
    ("length", "rows", "part"), [(129, ["no ropes"], "no row 'no ropes'"), (65, [], "--length=128 or more")]
)
def test_rows_that_there_are_not_and_short_texts_are_refused(length, rows, part):
    with pytest.raises(ValueError, match=part):
        measure_decoder(decoder(), Texts(("a",), np.zeros((1, length), np.int32), "x"), rows)
