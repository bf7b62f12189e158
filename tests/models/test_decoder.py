"""The decoder hosts every encoding; decoding with a cache, padding and packing change nothing.

Work for many encodings is one program for each.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import drawn
from members import LINE, MEMBERS, one_of_each

import posjax as pj
from posjax.encoding import Needs
from posjax.models import Decoder, generate
from posjax.models.transformer import INJECTIONS

VOCABULARY, ROWS, PROMPT, TOTAL = 11, 3, 3, 7
# One spec for each registered name, as a model would host it.
SPECS = {name: spec for name, member in MEMBERS.items() if (spec := member.on(LINE))}
SAMPLE = ["fox", "interpolate", "learned", "none", "rope", "t5"]
QUICK = ("fox", "learned", "rope")
# Of each way to act one; that all of them train is tests/training/test_registry.py.
WAYS = {**one_of_each(LINE), **{name: SPECS[name] for name in SAMPLE}}
every_way = pytest.mark.parametrize(
    "spec",
    [pytest.param(spec, id=name, marks=[] if name in QUICK else pytest.mark.slow) for name, spec in WAYS.items()],
)
HOSTS = [  # injection matters to encodings that learn or add codes
    (name, injection)
    for name in WAYS
    for injection in {"learned": INJECTIONS, "t5": sorted({*INJECTIONS} - {"lape"})}.get(name, ["every_layer"])
]
FAST = {("fox", "every_layer"), ("learned", "lape")}  # state, and a table behind a norm: where time is short
SLOW = {*SAMPLE, *one_of_each(LINE, lambda encoding: encoding.needs)}  # the others are thorough


def marks(host):
    return [] if host in FAST else pytest.mark.slow if host[0] in SLOW else pytest.mark.thorough


every_host, some_hosts = (
    pytest.mark.parametrize(
        ("spec", "injection"),
        [
            pytest.param(SPECS[host[0]], host[1], id="-".join(host), marks=marks(host))
            for host in HOSTS
            if host[0] in names
        ],
    )
    for names in (WAYS, {*SAMPLE} - {"fox"})
)


def depth_of(spec):
    """Two layers for one of each way to act; for the others all layers are alike."""
    return 2 if spec in {SPECS[name] for name in SAMPLE} else 1


def decoder(spec="rope", **options):
    sizes = dict(width=16, depth=2, num_heads=2, length=8)
    return Decoder.from_config({**sizes, **options}, vocab_size=VOCABULARY, encoding=spec)


def tokens(length=TOTAL, seed=0):
    return jnp.asarray(np.random.default_rng(seed).integers(0, VOCABULARY, (ROWS, length)), jnp.int32)


def site_of(*rows):
    """Sites of a batch from one string per row: letters are documents, dots are padding, as in '.aab'."""

    def one(row):
        where = [row[:i].count(letter) for i, letter in enumerate(row)]
        segment = [0 if letter == "." else 1 + ord(letter) - ord("a") for letter in row]
        return np.array(where, np.int32), np.array(segment, np.int32), np.zeros(len(row), np.int32)

    return pj.Site(*(np.stack(leaves) for leaves in zip(*map(one, rows), strict=True)))


LINE = site_of(*ROWS * ["a" * TOTAL])


@functools.cache
def init(model):
    """Parameters away from their initial values, by which no encoding says much."""
    return drawn(model.init, jax.random.key(0), tokens(), LINE, encoding=model.encoding)


def columns(site, start, stop):
    return jax.tree.map(lambda leaf: leaf[:, start:stop], site)


def close(a, b, **tolerance):
    np.testing.assert_allclose(a, b, **{"rtol": 1e-4, "atol": 1e-4, **tolerance})


def differ(a, b):
    return float(np.abs(np.asarray(a) - np.asarray(b)).max()) > 1e-3


@some_hosts
def test_encodings_run_with_finite_gradients(spec, injection):
    model = decoder(spec, injection=injection)
    variables = init(model)
    grads = jax.jit(jax.grad(lambda v: jnp.square(model.apply(v, tokens(), LINE)).sum()))(variables)
    assert all(jnp.isfinite(g).all() for g in jax.tree.leaves(grads))
    trunk = grads["params"]["trunk"]
    hosted = ["encoding_0", "encoding_1"] if injection == "every_layer" else ["encoding"]
    assert [name for name in trunk if name.startswith("encoding")] == hosted
    if Needs.CONSTANT_PARAMS not in pj.parse(spec).needs:
        assert all(jnp.any(g != 0) for name in hosted for g in jax.tree.leaves(trunk[name]))


@every_host
def test_prompts_continue_token_by_token_as_full_passes(spec, injection):
    """A batch of a whole prompt, one padded left and one padded right; each goes on as it would alone, all at once."""
    model = decoder(spec, injection=injection, depth=depth_of(spec))
    variables, spans = init(model), ((0, 3), (1, 3), (0, 1))
    prompt, more, after = tokens(PROMPT, seed=1), np.asarray(tokens(TOTAL - PROMPT, seed=2)), []
    site = site_of("aaa", ".aa", "a..")
    prefill = functools.partial(model.apply, cache_size=TOTAL + 1, method=model.prefill)
    extend = jax.jit(functools.partial(model.apply, method=model.extend))
    logits, caches = jax.jit(prefill)(variables, prompt, site)
    for t in range(TOTAL - PROMPT):
        position = np.array([[stop - start + t] for start, stop in spans], np.int32)
        site = pj.Site(position, np.ones_like(position), np.zeros_like(position))
        token = jnp.asarray(more[:, t : t + 1])
        out, caches = extend(variables, token, site, caches)
        after.append(out)
    after = np.concatenate(after, axis=1)
    # Alone each begins at the left; what follows it there is not looked at by a causal model.
    alone = [np.concatenate([np.asarray(prompt)[row, slice(*span)], more[row]]) for row, span in enumerate(spans)]
    alone = jnp.asarray(np.stack([np.pad(line, (0, TOTAL - len(line))) for line in alone]))
    logits, whole = np.asarray(logits), np.asarray(jax.jit(model.apply)(variables, alone, LINE))
    for row, (start, stop) in enumerate(spans):
        close(logits[row, start:stop], whole[row, : stop - start])
        close(after[row], whole[row, stop - start : TOTAL - PROMPT + stop - start])


@every_way
def test_packed_documents_read_as_if_alone(spec):
    model = decoder(spec, injection="every_layer", depth=depth_of(spec))
    variables, rows = init(model), tokens()
    run = jax.jit(functools.partial(model.apply, variables))
    packed = run(rows, site_of(*ROWS * ["aaabbb."]))
    unpacked = run(rows, LINE)
    second = run(jnp.asarray(np.roll(rows, -3, axis=1)), LINE)
    packed, unpacked, second = map(np.asarray, (packed, unpacked, second))
    close(packed[:, :3], unpacked[:, :3])
    close(packed[:, 3:6], second[:, :3])
    assert differ(unpacked[:, 3:6], second[:, :3])


@pytest.mark.parametrize(
    "spec", [pytest.param(SPECS[n], marks=[] if n == "rope" else pytest.mark.slow) for n in SAMPLE]
)
def test_no_logit_depends_on_a_later_token(spec):
    """Token t is the t-th word of the vocabulary, so the gradient by the words is that by the tokens.

    Exactly; within rounding all encodings show it where prompts continue token by token.
    """
    model = decoder(spec, tied_embedding=False)
    rows = jnp.asarray(np.tile(np.arange(TOTAL, dtype=np.int32), (ROWS, 1)))
    kept = dict(init(model)["params"])
    embedding = kept.pop("token_embedding")["embedding"]

    def logits(embedding):
        return model.apply({"params": {**kept, "token_embedding": {"embedding": embedding}}}, rows, LINE)

    pull = jax.jit(lambda embedding, seed: jax.vjp(logits, embedding)[1](seed)[0])
    for t in range(TOTAL):
        seed = np.zeros((ROWS, TOTAL, VOCABULARY), np.float32)
        seed[0, t] = np.arange(1.0, VOCABULARY + 1)
        by_word = np.asarray(pull(embedding, seed))
        assert np.array_equal(np.any(by_word[:TOTAL] != 0, axis=1), np.arange(TOTAL) <= t)


@pytest.mark.slow
def test_shared_sites_and_blockwise_attention_change_nothing():
    spec = "alibi + learned"
    variables = init(decoder(spec))
    each = decoder(spec).apply(variables, tokens(), LINE)
    close(decoder(spec).apply(variables, tokens(), pj.sites(TOTAL)), each)
    close(decoder(spec, implementation="blockwise").apply(variables, tokens(), LINE), each)


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
    assert {"trunk/block_0/mlp/up/bias", "trunk/block_0/mlp/down/bias"} <= set(shapes[True, "gelu"])
    mlp = {name: shape for name, shape in shapes[True, "swiglu"].items() if "/block_1/mlp/" in name}
    names = ("down", "gate", "up")
    assert mlp == {f"trunk/block_1/mlp/{name}/kernel": (24, 16) if name == "down" else (16, 24) for name in names}
    known = "geglu, geglu_exact, gelu, gelu_exact, quick_geglu, quick_gelu, relu, swiglu"
    with pytest.raises(ValueError, match=rf"no MLP is named 'glu'; did you mean 'ge(g)?lu'\? known: {known}"):
        decoder(mlp="glu").init(jax.random.key(0), tokens(), LINE)


@pytest.mark.slow
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


@pytest.mark.parametrize("shared", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_random_placement_acts_in_training_only(shared):
    model = decoder(Jitter() >> pj.parse("sinusoidal"), injection="every_layer")
    variables, rows = init(model), jnp.asarray(np.tile(np.asarray(tokens())[:1], (ROWS, 1)))
    site = pj.sites(TOTAL) if shared else LINE
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


@pytest.mark.slow
def test_greedy_generation_takes_the_likeliest_token_of_full_passes(learned):
    model, variables = learned
    rows, site = tokens(4, seed=3), site_of("aaaa", "..aa", "aa..")
    continued = generate(model, variables, rows, site, steps=3)
    lines = [rows[row, start:stop].tolist() for row, (start, stop) in enumerate([(0, 4), (2, 4), (0, 2)])]
    for step in range(3):
        padded = jnp.asarray([line + [0] * (TOTAL - len(line)) for line in lines], jnp.int32)
        logits = model.apply(variables, padded, LINE)
        for row, line in enumerate(lines):
            line.append(int(jnp.argmax(logits[row, len(line) - 1])))
            assert int(continued[row, step]) == line[-1]
    assert len({tuple(row) for row in continued.tolist()}) > 1


@pytest.mark.slow
def test_drawn_tokens_follow_the_key_and_the_temperature(learned):
    model, variables = learned
    prompt = (tokens(4, seed=3), site_of("aaaa", "..aa", "aa.."))
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
        generate(model, variables, tokens(4), site_of("aaaa", "..aa", "aa.."), steps=5)
    with pytest.raises(ValueError, match=r"prompt rows \[1\] hold no token"):
        generate(model, variables, tokens(4), site_of("aaaa", "....", "aa.."), steps=3)
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        generate(model, variables, tokens(4), columns(LINE, 0, 4), steps=0)


def test_a_prompt_must_fit_its_cache(learned):
    model, variables = learned
    with pytest.raises(ValueError, match="a prompt of 7 tokens does not fit a cache of 6 slots"):
        model.apply(variables, tokens(), LINE, cache_size=6, method=model.prefill)
