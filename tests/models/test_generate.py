"""The distribution of drawn tokens, and the end of generation beside full passes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import inner_jaxprs
from drawn import drawn

import posjax as pj
from posjax.encodings.layouts import Circle, Diagonal, Offset, multimodal
from posjax.models import BlockConfig, Decoder, EncoderDecoder, generate
from posjax.models.generate import Sampling, choose_tokens, sites_ahead, truncated

VOCABULARY, PROMPT, PAD, STEPS = 7, 12, 5, 5  # the second row of prompts begins with padding
WHOLE = pj.padded(np.arange(PROMPT + STEPS) >= np.array([[0], [PAD]]))
TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, VOCABULARY, (2, PROMPT)), jnp.int32)
MODEL = Decoder(
    VOCABULARY, "window(3) + rope", length=15, block=BlockConfig(width=8, num_heads=2, num_kv_heads=1), depth=1
)
SAMPLING = dict(temperature=1.0, top_k=VOCABULARY, top_p=1.0, stop=0)  # one program for all numbers


def prompt(site=WHOLE):
    return jax.tree.map(lambda leaf: leaf[:, :PROMPT], site)


@functools.cache
def variables():
    return drawn(MODEL.init, jax.random.key(0), TOKENS, prompt(), spread=0.5)


@functools.cache
def greedy():
    return np.asarray(generate(MODEL, variables(), TOKENS, prompt(), steps=STEPS))


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


@pytest.mark.parametrize(("top_k", "top_p"), [(None, None), (1, None), (None, 0.01), (None, 0.6), (4, 0.8), (9, 1.0)])
def test_truncation_is_the_definition(top_k, top_p):
    logits = np.random.default_rng(1).normal(scale=2, size=(6, 9)).astype(np.float32)
    logits[0, [2, 5]] = logits[0].max() + 1  # equally likely
    out = np.asarray(truncated(logits, top_k, top_p))
    for row, kept in zip(logits, out, strict=True):
        assert set(np.flatnonzero(np.isfinite(kept))) == nucleus(row.astype(np.float64), top_k, top_p)
        assert np.array_equal(kept[np.isfinite(kept)], row[np.isfinite(kept)])


@pytest.mark.parametrize(("temperature", "share"), [(1.0, 9 / 10), (2.0, 3 / 4), (0.5, 81 / 82)])
def test_temperature_divides_logits(temperature, share):
    """9 to 1 at temperature 1 is 3 to 1 at 2, and 81 to 1 at 1/2. The third token is not among the two likeliest."""
    logits = jnp.asarray(np.log([[9.0, 1.0, 0.5]]).repeat(20_000, axis=0), jnp.float32)
    sampling = Sampling(temperature, 2, None, None)
    tokens = np.asarray(choose_tokens(logits, jax.random.key(0), sampling, jnp.zeros(20_000, bool)))
    np.testing.assert_allclose((tokens == 0).mean(), share, atol=0.012)
    assert tokens.max() == 1


def test_greedy_tokens_are_the_likeliest_of_full_passes():
    """Far behind what the cache of a window holds, in rows with and without padding."""
    whole = jnp.concatenate([TOKENS, greedy()], axis=1)
    logits = jax.jit(MODEL.apply)(variables(), whole, WHOLE)
    assert np.array_equal(np.argmax(logits, -1)[:, PROMPT - 1 : -1], greedy())
    assert len(np.unique(greedy())) > 1
    shared = generate(MODEL, variables(), TOKENS, pj.sites(PROMPT), steps=STEPS)
    assert np.array_equal(shared[0], greedy()[0])


def test_drawn_tokens_follow_key_temperature_and_stop():
    draw = functools.partial(generate, MODEL, variables(), TOKENS, prompt(), steps=STEPS)
    keys = [jax.random.key(seed) for seed in (0, 1)]
    hot = [np.asarray(draw(key=key, **SAMPLING | dict(temperature=9.0))) for key in (keys[0], *keys)]
    assert np.array_equal(hot[0], hot[1])
    assert not np.array_equal(hot[0], hot[2])
    stop = int(greedy()[0, 2])
    stopped = np.asarray(draw(key=keys[0], **SAMPLING | dict(top_p=1e-6, stop=stop)))
    for row, line in zip(greedy(), stopped, strict=True):
        end = row.tolist().index(stop) + 1 if stop in row else len(row)
        assert np.array_equal(line[:end], row[:end])
        assert np.all(line[end:] == stop)


def test_every_step_draws_anew():
    """All tokens are equally likely in a model of zeros."""
    zeros = jax.tree.map(np.zeros_like, variables())
    options = SAMPLING | dict(stop=VOCABULARY - 1)
    tokens = generate(MODEL, zeros, TOKENS, prompt(), steps=STEPS, key=jax.random.key(0), **options)
    assert all(len(set(row)) > 2 for row in tokens.tolist())


def test_logits_that_are_not_finite_are_an_error():
    """Positions too near for a window: its cache has forgotten what a query sees. Rows that have stopped may do so."""

    def near(start):
        position = WHOLE.position.copy()
        position[:, start:] = position[:, start, None]
        return WHOLE._replace(position=position)

    message = r"from generated token {} on: .*{}.* Beside a window, positions must rise by at least 1"
    with pytest.raises(FloatingPointError, match=message.format(1, "does float32 hold all activations")):
        generate(MODEL, variables(), TOKENS, near(0), steps=STEPS)
    with pytest.raises(FloatingPointError, match=message.format(4, r"position 15 behind the end .*length=15")):
        generate(MODEL, variables(), TOKENS, near(14), steps=STEPS)
    rows = TOKENS[:1].repeat(2, axis=0), jax.tree.map(lambda leaf: leaf[:1].repeat(2, axis=0), near(14))
    stop = dict(SAMPLING, top_k=1, stop=int(greedy()[0, 0]), key=jax.random.key(0))
    assert np.all(generate(MODEL, variables(), *rows, steps=STEPS, **stop) == stop["stop"])


def test_generation_holds_no_logits_of_the_whole_prompt():
    model, length = Decoder(4096, block=BlockConfig(width=8, num_heads=2), depth=1), 512
    tokens, site = jnp.zeros((1, length), jnp.int32), pj.sites(length)
    params = jax.eval_shape(model.init, jax.random.key(0), tokens, site)
    traced = jax.make_jaxpr(lambda params, site: generate(model, params, tokens, site, steps=2))(params, site)
    sizes = [out.aval.size for jaxpr, _ in inner_jaxprs(traced) for eqn in jaxpr.eqns for out in eqn.outvars]
    assert max(sizes) < length * model.vocab_size / 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(steps=0), "steps"),
        (dict(temperature=-1.0), "temperature"),
        (dict(temperature=1.0, top_k=8), "top_k .* 7 tokens"),
        (dict(temperature=1.0, top_p=1.5), "top_p"),
        (dict(top_p=0.5), "top_k and top_p"),
        (dict(stop=7), "stop"),
        (dict(site=pj.padded(np.arange(PROMPT) >= [[PROMPT], [0]])), r"rows \[0\] hold no token"),
        (dict(memory=(jnp.zeros((2, 3, 8)), pj.sites(3))), "and no other model"),
    ],
)
def test_what_cannot_be_generated_is_refused(options, message):
    options = dict(site=prompt(), steps=2, key=jax.random.key(0)) | options
    with pytest.raises(ValueError, match=message):
        generate(MODEL, variables(), TOKENS, **options)


def test_an_encoder_decoder_generates_from_its_memory():
    model = EncoderDecoder.from_config(dict(width=16, num_heads=2, depth=1), vocab_size=VOCABULARY)
    shapes = jax.eval_shape(model.init, jax.random.key(0), TOKENS, prompt(), TOKENS, prompt())

    def run(params, **options):
        memory = model.apply(params, TOKENS, prompt(), method="encode")
        return generate(model, params, TOKENS[:, :1], pj.sites(1), steps=4, **options or dict(memory=memory))

    assert jax.eval_shape(run, shapes).shape == (2, 4)
    with pytest.raises(ValueError, match="memory"):
        jax.eval_shape(functools.partial(run, memory=None), shapes)


LAYOUTS = {"Offset": Offset(), "Circle": Circle(), "Diagonal": Diagonal(), "stride": Offset(stride=2.0)}
LAYOUTS |= {"reset": Offset(spatial_reset=True)}
ahead_of = jax.jit(sites_ahead, static_argnums=(1, 2))


def test_text_goes_on_where_the_layout_has_its_next_text():
    """Behind text in every layout, and behind an image in those that say 1 + the largest coordinate; else as it is given."""
    for parts, names in (([5, (1, 4, 6), 2], LAYOUTS), ([5, (1, 4, 6)], ("Offset", "Circle", "stride"))):
        for name in names:
            whole = jax.tree.map(lambda leaf: leaf[None], multimodal([*parts, 4], LAYOUTS[name]))
            length = whole.segment.shape[1] - 4
            prompt = jax.tree.map(lambda leaf, length=length: leaf[:, :length], whole)
            for site in (whole, prompt):
                ahead = ahead_of(site, length, 4)[1]
                np.testing.assert_allclose(ahead.position, whole.position[:, length:], rtol=1e-6, err_msg=name)
                assert ahead.position.dtype == whole.position.dtype


def test_rows_of_a_batch_go_on_each_for_itself():
    """Padding, another document of the row and tokens that stand nowhere say nothing of where its last one goes on."""
    rows = [multimodal([3, (1, 2, 2)]), multimodal([4])]
    site = jax.tree.map(lambda *leaves: np.stack([np.resize(leaf, (7, *leaf.shape[1:])) for leaf in leaves]), *rows)
    site.segment[1, 4:] = 0
    site.position[1, 4:] = 99
    packed = site._replace(segment=site.segment * np.int32([1, 1, 2, 2, 2, 2, 2]))
    assert ahead_of(site, 7, 1)[1].position[:, 0, 0].tolist() == [5, 4]
    assert ahead_of(packed, 7, 1)[1].segment[:, 0].tolist() == [2, 2]


def test_a_grid_goes_on_where_a_site_of_all_tokens_says():
    site = jax.tree.map(lambda leaf: leaf[None], pj.grid(3, 4))
    with pytest.raises(ValueError, match=r"do not say where the next token stands: .* site of all 12 tokens"):
        sites_ahead(jax.tree.map(lambda leaf: leaf[:, :7], site), 7, 5)
    with pytest.raises(ValueError, match="the site has 12 tokens: give those of the 7 in the prompts, or of all 11"):
        sites_ahead(site, 7, 4)
