"""The distribution of drawn tokens, and the end of generation; test_decoder.py compares with full passes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import drawn

import posjax as pj
from posjax.encodings.layouts import Circle, Diagonal, Offset, bilevel, multimodal
from posjax.models import BlockConfig, Decoder, generate
from posjax.models.generate import sites_ahead, truncated

VOCABULARY, ROWS, PROMPT = 7, 2, 12


@functools.cache
def decoder(spec="rope"):
    model = Decoder(VOCABULARY, encoding=spec, block=BlockConfig(width=8, num_heads=2, num_kv_heads=1), depth=1)
    site = pj.Site(*(np.broadcast_to(leaf, (ROWS, PROMPT)) for leaf in pj.sites(PROMPT)[:3]))
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, VOCABULARY, (ROWS, PROMPT)), jnp.int32)
    variables = drawn(model.init, jax.random.key(0), tokens, site, spread=0.5)
    return functools.partial(generate, model, variables, tokens, site), model, variables, tokens


def nucleus(logits, top_k, top_p):
    """Generates by the definition, one token after the other."""
    likeliest = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    likeliest = likeliest[: top_k or len(logits)]
    weight = np.exp(logits[likeliest] - logits.max())
    held, kept = 0.0, set()
    for token, share in zip(likeliest, weight / weight.sum(), strict=True):
        if top_p is None or held < top_p:
            kept.add(token)
        held += share
    return kept


@pytest.mark.parametrize(
    ("top_k", "top_p"), [(None, None), (1, None), (4, None), (None, 0.01), (None, 0.6), (4, 0.8), (9, 1.0)]
)
def test_truncation_is_the_definition(top_k, top_p):
    logits = np.random.default_rng(1).normal(scale=2, size=(6, 9)).astype(np.float32)
    logits[0, [2, 5]] = logits[0].max() + 1  # equally likely
    out = np.asarray(truncated(logits, top_k, top_p))
    for row, kept in zip(logits, out, strict=True):
        assert set(np.flatnonzero(np.isfinite(kept))) == nucleus(row.astype(np.float64), top_k, top_p)
        assert np.array_equal(kept[np.isfinite(kept)], row[np.isfinite(kept)])


@pytest.mark.slow
def test_a_prompt_has_the_logits_of_one_token_in_each_row():
    _, model, variables, tokens = decoder()
    prefill = functools.partial(model.apply, variables, tokens, pj.sites(PROMPT), cache_size=20, method="prefill")
    at = jnp.array([3, PROMPT - 1], jnp.int32)
    (all_logits, caches), (logits, same) = prefill(), prefill(at=at)
    np.testing.assert_allclose(logits[:, 0], all_logits[jnp.arange(ROWS), at], rtol=1e-5, atol=1e-6)
    jax.tree.map(np.testing.assert_array_equal, caches, same)


def test_generation_holds_no_logits_of_the_whole_prompt():
    model, length = Decoder(4096, block=BlockConfig(width=8, num_heads=2), depth=1), 512
    tokens = jnp.zeros((1, length), jnp.int32)
    variables = drawn(model.init, jax.random.key(0), tokens[:, :2], pj.sites(2))
    run = jax.jit(lambda variables, site: generate(model, variables, tokens, site, steps=2))
    held = run.lower(variables, pj.sites(length)).compile().memory_analysis().temp_size_in_bytes
    assert held < length * model.vocab_size * 4 / 2


@pytest.mark.slow
def test_drawn_tokens_come_from_what_is_left():
    run, model, variables, tokens = decoder()
    greedy = run(steps=5)
    draw = functools.partial(run, steps=5, temperature=3.0)
    assert np.array_equal(draw(key=jax.random.key(0), top_k=1, top_p=1.0), greedy)
    assert np.array_equal(draw(key=jax.random.key(1), top_k=7, top_p=1e-6), greedy)
    site = pj.sites(PROMPT)
    logits = np.asarray(jax.jit(model.apply)(variables, tokens, site))[:, -1]
    allowed = np.isfinite(truncated(logits / 3.0, 3, 0.7))
    drawn = [np.asarray(draw(key=jax.random.key(k), top_k=3, top_p=0.7))[:, 0] for k in range(12)]
    assert all(allowed[np.arange(ROWS), token].all() for token in drawn)
    assert len({tuple(token) for token in drawn}) > 1


def test_a_row_that_stops_repeats_its_last_token():
    run, *_ = decoder()
    free = np.asarray(run(steps=5))
    stop = int(free[0, 2])
    stopped = np.asarray(run(steps=5, stop=stop))
    for row, line in zip(free, stopped, strict=True):
        end = row.tolist().index(stop) + 1 if stop in row else len(row)
        assert np.array_equal(line[:end], row[:end])
        assert np.all(line[end:] == stop)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(temperature=1.0, top_k=0), "top_k must be between 1 and the 7 tokens of the model, got 0"),
        (dict(temperature=1.0, top_k=8), "top_k must be between 1 and the 7 tokens of the model, got 8"),
        (dict(temperature=1.0, top_p=0.0), r"top_p must be above 0 and at most 1, got 0\.0"),
        (dict(temperature=1.0, top_p=1.5), r"top_p must be above 0 and at most 1, got 1\.5"),
        (dict(top_p=0.5), "top_k and top_p say what is drawn from: set a temperature above 0"),
        (dict(stop=7), "stop must be one of the model's 7 tokens, 0 or above, got 7"),
    ],
)
def test_what_cannot_be_drawn_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        decoder()[0](steps=2, key=jax.random.key(0), **options)


def test_a_window_generates_what_full_passes_do():
    """Far behind what its cache holds."""
    run, model, variables, tokens = decoder("window(3) + rope")
    continued = run(steps=20)
    whole = np.concatenate([tokens, continued], axis=1)
    logits = jax.jit(model.apply)(variables, whole, pj.sites(whole.shape[1]))
    assert np.array_equal(np.argmax(logits, -1)[:, PROMPT - 1 : -1], continued)
    assert len(np.unique(np.asarray(continued))) > 1


def test_positions_too_near_for_a_window_are_told():
    _, model, variables, tokens = decoder("window(3) + rope")
    site = pj.Site(np.zeros((ROWS, PROMPT), np.int32), *(np.full((ROWS, PROMPT), n, np.int32) for n in (1, 0)))
    with pytest.raises(FloatingPointError, match="Beside a window, positions must rise by at least 1"):
        generate(model, variables, tokens, site, steps=20)


def test_an_overflow_within_the_table_is_told_as_one():
    _, model, variables, tokens = decoder()
    model, variables = model.with_fields(length=32768, dtype=jnp.float16), jax.tree.map(lambda x: 1e4 * x, variables)
    with pytest.raises(FloatingPointError, match="from generated token 0 on: does float16 hold all activations"):
        generate(model, variables, tokens, pj.sites(PROMPT), steps=2)


def test_a_site_that_all_rows_share():
    run, model, variables, tokens = decoder()
    assert np.array_equal(generate(model, variables, tokens, pj.sites(PROMPT), steps=5), run(steps=5))


TEXT_THEN_IMAGE, IMAGES = [5, (1, 4, 6)], {"Offset": Offset(), "Circle": Circle(), "Diagonal": Diagonal()}
IMAGES |= {"reset": Offset(spatial_reset=True), "stride": Offset(stride=2.0)}


@pytest.mark.slow
@pytest.mark.parametrize("parts", [TEXT_THEN_IMAGE, [2, (1, 6, 2), 1], [(1, 3, 3), 2], [1, (1, 1, 1)], [3]])
@pytest.mark.parametrize("name", IMAGES)
def test_text_goes_on_where_the_layout_has_its_next_text(name, parts):
    """Every layout where the prompt ends in text; those that say 1 + the largest coordinate behind an image, too."""
    whole = jax.tree.map(lambda leaf: leaf[None], multimodal([*parts, 4], IMAGES[name]))
    if isinstance(parts[-1], tuple) and name in ("Diagonal", "reset"):
        length = whole.segment.shape[1] - 4  # a site of all tokens says it
        np.testing.assert_array_equal(sites_ahead(whole, length, 4)[1].position, whole.position[:, length:])
        return
    prompt = jax.tree.map(lambda leaf: leaf[None], multimodal(parts, IMAGES[name]))
    _, ahead = sites_ahead(prompt, prompt.segment.shape[1], 4)
    np.testing.assert_allclose(ahead.position, whole.position[:, -4:], rtol=1e-6)
    assert ahead.position.dtype == prompt.position.dtype


def test_the_second_token_behind_an_image_stands_on_the_diagonal():
    prompt = jax.tree.map(lambda leaf: leaf[None], multimodal(TEXT_THEN_IMAGE))
    assert sites_ahead(prompt, 29, 2)[1].position.tolist() == [[[11, 11, 11], [12, 12, 12]]]


def test_rows_of_a_batch_go_on_each_for_itself():
    """Padding, another document of the row and tokens that stand nowhere say nothing of where its last one goes on."""
    rows = [multimodal([3, (1, 2, 2)]), multimodal([4])]
    site = jax.tree.map(lambda *leaves: np.stack([np.resize(leaf, (7, *leaf.shape[1:])) for leaf in leaves]), *rows)
    site.segment[1, 4:] = 0
    site.position[1, 4:] = 99
    packed = site._replace(segment=site.segment * np.int32([1, 1, 2, 2, 2, 2, 2]))
    assert sites_ahead(site, 7, 1)[1].position[:, 0, 0].tolist() == [5, 4]
    assert sites_ahead(packed, 7, 1)[1].segment[:, 0].tolist() == [2, 2]


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout", [pj.grid(3, 4), bilevel(np.arange(12, dtype=np.int32), (3,)), multimodal([(1, 3, 4)])]
)
def test_a_grid_goes_on_in_raster_order_or_is_refused(layout):
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, VOCABULARY, (ROWS, 12)), jnp.int32)
    spec = "(axis(index=0) >> rope) + (axis(index=1) >> rope)"
    model = Decoder(VOCABULARY, encoding=spec, block=BlockConfig(width=8, num_heads=2), depth=1)
    variables = drawn(model.init, jax.random.key(0), tokens, layout, spread=0.5)
    with pytest.raises(
        ValueError, match=r"do not say where the next token stands: give a site of all 12 tokens, as grid"
    ):
        generate(model, variables, tokens[:, :7], jax.tree.map(lambda leaf: leaf[:7], layout), steps=5)
    with pytest.raises(ValueError, match="the site has 12 tokens: give those of the 7 in the prompts, or of all 11"):
        generate(model, variables, tokens[:, :7], layout, steps=4)
    continued = generate(model, variables, tokens[:, :7], layout, steps=5)
    whole = np.concatenate([tokens[:, :7], continued], axis=1)
    logits = jax.jit(model.apply)(variables, whole, layout)
    assert np.array_equal(np.argmax(logits, -1)[:, 6:-1], continued)
