"""The decoder hosts every encoding; decoding with a cache, padding and packing change nothing.

Everything but `generate` runs eagerly on few shapes: JAX compiles each operation once for all the encodings.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax as pj
from posjax.models import Decoder, generate
from posjax.models.layers import INJECTIONS

VOCABULARY, PROMPT, TOTAL = 11, 5, 7
# One spec for each registered name, as a model would host it.
SPECS = {
    "alibi": "alibi",
    "interpolate": "interpolate(factor=2) >> alibi",
    "learned": "learned(stddev=1)",
    "none": "none",
    "rope": "rope",
    "sinusoidal": "sinusoidal",
    "t5": "t5(num_buckets=8, max_distance=4, bidirectional=False)",
}
ON_GRIDS_ONLY = {"raster"}
every_spec = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
every_injection = pytest.mark.parametrize("injection", INJECTIONS)


def decoder(spec="rope", **options):
    sizes = dict(width=16, depth=2, num_heads=2, length=8)
    return Decoder(VOCABULARY, encoding=spec, **{**sizes, **options})


def tokens(rows=1, length=TOTAL, seed=0):
    return jnp.asarray(np.random.default_rng(seed).integers(0, VOCABULARY, (rows, length)), jnp.int32)


def site_of(*rows):
    """Sites of a batch from one string per row: letters are documents, dots are padding, as in '.aab'."""

    def one(row):
        where = [row[:i].count(letter) for i, letter in enumerate(row)]
        segment = [0 if letter == "." else 1 + ord(letter) - ord("a") for letter in row]
        return np.array(where, np.int32), np.array(segment, np.int32), np.zeros(len(row), np.int32)

    return pj.Site(*(np.stack(leaves) for leaves in zip(*map(one, rows), strict=True)))


LINE = site_of("a" * TOTAL)


def init(model, seed=0):
    variables = model.init(jax.random.key(seed), tokens(), LINE)
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: x + jnp.asarray(0.3 * rng.normal(size=x.shape), x.dtype), variables)


def columns(site, start, stop):
    return jax.tree.map(lambda leaf: leaf[:, start:stop], site)


def close(a, b, **tolerance):
    np.testing.assert_allclose(a, b, **{"rtol": 1e-4, "atol": 1e-4, **tolerance})


def differ(a, b):
    return float(jnp.abs(a - b).max()) > 1e-3


def test_every_registered_encoding_is_here():
    assert set(SPECS) | ON_GRIDS_ONLY == set(pj.names())


@every_injection
@every_spec
def test_every_encoding_runs_with_finite_gradients(spec, injection):
    model = decoder(spec, injection=injection)
    variables = init(model)
    grads = jax.grad(lambda v: jnp.square(model.apply(v, tokens(), LINE)).sum())(variables)
    assert all(jnp.isfinite(g).all() for g in jax.tree.leaves(grads))
    trunk = grads["params"]["trunk"]
    hosted = ["encoding_0", "encoding_1"] if injection == "every_layer" else ["encoding"]
    assert [name for name in trunk if name.startswith("encoding")] == hosted
    assert all(jnp.any(g != 0) for name in hosted for g in jax.tree.leaves(trunk[name]))


@every_injection
@every_spec
def test_token_by_token_is_the_full_pass(spec, injection):
    model = decoder(spec, injection=injection)
    variables = init(model)
    full = model.apply(variables, tokens(), LINE)
    logits, caches = model.apply(variables, tokens()[:, :1], columns(LINE, 0, 1), cache_size=8, method=model.prefill)
    outs = [logits]
    for t in range(1, TOTAL):
        now = (tokens()[:, t : t + 1], columns(LINE, t, t + 1))
        logits, caches = model.apply(variables, *now, caches, method=model.extend)
        outs.append(logits)
    close(jnp.concatenate(outs, axis=1), full)


@every_injection
@every_spec
def test_padded_prompts_continue_as_each_would_alone(spec, injection):
    """A batch of a full, a left-padded and a right-padded prompt; then two more tokens for each."""
    model = decoder(spec, injection=injection)
    variables, lengths = init(model), (5, 3, 3)
    rows, starts = tokens(3, PROMPT, seed=1), (0, 2, 0)
    logits, caches = model.apply(
        variables, rows, site_of("aaaaa", "..aaa", "aaa.."), cache_size=TOTAL + 1, method=model.prefill
    )
    more, after = tokens(3, 2, seed=2), []
    for t in range(2):
        position = np.array([[n + t] for n in lengths], np.int32)
        site = pj.Site(position, np.ones_like(position), np.zeros_like(position))
        out, caches = model.apply(variables, more[:, t : t + 1], site, caches, method=model.extend)
        after.append(out)
    for row, (start, n) in enumerate(zip(starts, lengths, strict=True)):
        alone = jnp.concatenate([rows[row, start : start + n], more[row]])
        # Padded at the right to one shape: a causal model does not look there.
        whole = model.apply(variables, jnp.pad(alone, (0, TOTAL - n - 2))[None], LINE)[0]
        close(logits[row, start : start + n], whole[:n])
        close(jnp.concatenate(after, axis=1)[row], whole[n : n + 2])


@every_spec
def test_packed_documents_read_as_if_alone(spec):
    model = decoder(spec, injection="every_layer")
    variables, row = init(model), tokens()
    packed = model.apply(variables, row, site_of("aaabbb."))
    first = model.apply(variables, row, LINE)[:, :3]
    second = model.apply(variables, jnp.roll(row, -3, axis=1), LINE)[:, :3]
    close(packed[:, :3], first)
    close(packed[:, 3:6], second)
    assert differ(model.apply(variables, row, LINE)[:, 3:6], second)


@every_spec
def test_no_logit_depends_on_a_later_token(spec):
    """Token t is the t-th word of the vocabulary, so the gradient by the words is that by the tokens."""
    model = decoder(spec, tied_embedding=False)
    variables, row = init(model), jnp.arange(TOTAL, dtype=jnp.int32)[None]
    kept = dict(variables["params"])
    embedding = kept.pop("token_embedding")["embedding"]

    def total_logits(embedding):
        whole = {"params": {**kept, "token_embedding": {"embedding": embedding}}}
        return (model.apply(whole, row, LINE)[0] * jnp.arange(1.0, VOCABULARY + 1)).sum(axis=-1)

    by_token = jnp.abs(jax.jacrev(total_logits)(embedding)).sum(axis=-1)[:, :TOTAL]
    assert np.array_equal(by_token > 0, np.tril(np.ones((TOTAL, TOTAL), bool)))


def test_shared_sites_and_blockwise_attention_change_nothing():
    spec = "rope + alibi + learned"
    variables = init(decoder(spec))
    rows = tokens(3)
    each = decoder(spec).apply(variables, rows, site_of(*["a" * TOTAL] * 3))
    close(decoder(spec).apply(variables, rows, pj.sites(TOTAL)), each)
    close(decoder(spec, implementation="blockwise").apply(variables, rows, pj.sites(TOTAL)), each)


def test_tied_and_untied_gelu_and_swiglu():
    shapes = {}
    for tied in (True, False):
        for mlp in ("gelu", "swiglu"):
            model = decoder(tied_embedding=tied, mlp=mlp, mlp_dim=24)
            params = jax.eval_shape(model.init, jax.random.key(0), tokens(), LINE)["params"]
            shapes[tied, mlp] = {
                jax.tree_util.keystr(path, simple=True, separator="/"): leaf.shape
                for path, leaf in jax.tree_util.tree_leaves_with_path(params)
            }
    assert shapes[False, "gelu"].pop("head/kernel") == (16, VOCABULARY)
    assert shapes[False, "gelu"] == shapes[True, "gelu"]
    assert {"trunk/mlp_0/up/bias", "trunk/mlp_0/down/bias"} <= set(shapes[True, "gelu"])
    mlp = {name: shape for name, shape in shapes[True, "swiglu"].items() if "/mlp_1/" in name}
    names = ("down", "gate", "up")
    assert mlp == {f"trunk/mlp_1/{name}/kernel": (24, 16) if name == "down" else (16, 24) for name in names}
    with pytest.raises(ValueError, match=r"no MLP is named 'glu'; did you mean 'gelu'\? known: gelu, swiglu"):
        decoder(mlp="glu").init(jax.random.key(0), tokens(), LINE)


def test_compute_types_act_where_they_say():
    variables = init(decoder())
    exact = decoder().apply(variables, tokens(), LINE)
    for options in ({"dtype": "bfloat16"}, {"attention_dtype": "bfloat16"}):
        model = decoder(**options)
        assert {x.dtype.name for x in jax.tree.leaves(init(model))} == {"float32"}
        rough = model.apply(variables, tokens(), LINE)
        assert rough.dtype == jnp.float32
        assert not np.array_equal(rough, exact)
        close(rough, exact, rtol=0.1, atol=0.3)


@dataclasses.dataclass(frozen=True)
class Jitter(pj.PositionMap):
    """Stretches the positions of a sequence at random, in training."""

    def place(self, params, site, key=None):
        if key is None:
            return site
        return site._replace(position=site.position * jax.random.uniform(key, minval=1.5, maxval=4.0))


@pytest.mark.parametrize("shared", [True, False])
def test_a_random_placement_acts_in_training_only(shared):
    model = decoder(Jitter() >> pj.parse("sinusoidal"), injection="every_layer")
    variables, rows = init(model), jnp.concatenate([tokens(), tokens()])
    site = pj.sites(TOTAL) if shared else site_of("a" * TOTAL, "a" * TOTAL)
    plain = decoder("sinusoidal", injection="every_layer").apply(variables, rows, site)

    def trained(place):
        rngs = {"place": jax.random.key(place), "dropout": jax.random.key(0)}
        return model.apply(variables, rows, site, train=True, rngs=rngs)

    close(model.apply(variables, rows, site), plain, atol=0)
    close(trained(0), trained(0), atol=0)
    assert differ(trained(0), trained(1))
    assert differ(trained(0), plain)
    assert differ(trained(0)[0], trained(0)[1])  # each example is placed for itself
    assert "Jitter" not in " ".join(pj.names()).title()


@pytest.fixture(scope="module")
def learned():
    model = decoder("learned(stddev=1) + rope", injection="every_layer", length=TOTAL)
    return model, init(model)


def test_greedy_generation_takes_the_likeliest_token_of_full_passes(learned):
    model, variables = learned
    rows, site = tokens(3, 4, seed=3), site_of("aaaa", "..aa", "aa..")
    continued = generate(model, variables, rows, site, steps=3)
    for row, (start, n) in enumerate([(0, 4), (2, 2), (0, 2)]):
        line = list(rows[row, start : start + n])
        for _ in range(3):
            padded = jnp.asarray([line + [0] * (TOTAL - len(line))], jnp.int32)
            line.append(jnp.argmax(model.apply(variables, padded, LINE)[0, len(line) - 1]))
        assert continued[row].tolist() == [int(token) for token in line[n:]]
    assert len({tuple(row) for row in continued.tolist()}) > 1


def test_drawn_tokens_follow_the_key_and_the_temperature(learned):
    model, variables = learned
    prompt = (tokens(3, 4, seed=3), site_of("aaaa", "..aa", "aa.."))
    with pytest.raises(ValueError, match=r"temperature 1\.0 must be 0, or positive with a key"):
        generate(model, variables, *prompt, steps=3, temperature=1.0)
    with pytest.raises(ValueError, match=r"temperature -1\.0 must be 0"):
        generate(model, variables, *prompt, steps=3, temperature=-1.0, key=jax.random.key(0))
    hot = [generate(model, variables, *prompt, steps=3, temperature=9.0, key=jax.random.key(k)) for k in (0, 0, 1)]
    assert np.array_equal(hot[0], hot[1])
    assert not np.array_equal(hot[0], hot[2])
    cold = generate(model, variables, *prompt, steps=3, temperature=1e-4, key=jax.random.key(0))
    assert np.array_equal(cold, generate(model, variables, *prompt, steps=3))


def test_generation_past_a_learned_table_stops(learned):
    model, variables = learned
    message = r"not finite from generated token 4 on: .*position 7 behind the end of a learned table \(length=7\)\?"
    with pytest.raises(FloatingPointError, match=message):
        generate(model, variables, tokens(3, 4), site_of("aaaa", "..aa", "aa.."), steps=5)
    with pytest.raises(ValueError, match=r"prompt rows \[1\] hold no token"):
        generate(model, variables, tokens(3, 4), site_of("aaaa", "....", "aa.."), steps=3)
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        generate(model, variables, tokens(3, 4), LINE, steps=0)


def test_a_prompt_must_fit_its_cache(learned):
    model, variables = learned
    with pytest.raises(ValueError, match="a prompt of 7 tokens does not fit a cache of 6 slots"):
        model.apply(variables, tokens(), LINE, cache_size=6, method=model.prefill)
