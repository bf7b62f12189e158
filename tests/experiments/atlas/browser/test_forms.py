"""The closed forms of the page, evaluated by a browser, are posjax's numbers to 1e-5, at arguments drawn at random."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax as pj
from experiments.atlas import site
from experiments.atlas.forms import forms as numbers
from posjax.attention.dense import shown
from posjax.describe.explain import turning
from posjax.encoding import Site
from posjax.encodings.bias import alibi_slopes
from posjax.encodings.scaling import Spectrum

pytestmark = pytest.mark.slow
RNG = np.random.default_rng(17)
DIM = 16


@pytest.fixture(scope="module")
def forms(browser, tmp_path_factory):
    """(name, [arguments of each call]) -> what the page's function returns for each, in a browser."""
    path = tmp_path_factory.mktemp("forms") / "forms.html"
    path.write_text(f"<script>{(site.STATIC / 'forms.js').read_text()}</script>")
    page = browser.new_page()
    page.goto(path.as_uri())

    def call(name, calls):
        return page.evaluate(f"(calls) => calls.map((each) => forms.{name}(...each))", json.loads(json.dumps(calls)))

    yield call
    page.close()


def same(found, expected):
    np.testing.assert_allclose(np.asarray(found, np.float64), np.asarray(expected, np.float64), rtol=1e-5, atol=1e-5)


def line(*positions):
    position = np.asarray(positions, np.int32)
    return Site(position, np.ones(len(position), np.int32), np.zeros(len(position), np.int32))


def of_like_content(spec, site, dim=DIM):
    """[T, T] the mean logit of like content: the trace of what `rotate` does, a head for each unit vector."""
    encoding, count = pj.parse(spec), len(site.segment)
    unit = jnp.broadcast_to(jnp.eye(dim), (count, dim, dim))
    placed = encoding.place(((), ()) if ">>" in spec else (), site)
    q, k = encoding.rotate(((), ()) if ">>" in spec else (), unit, placed, unit, placed)
    # product and bias of a composition take part, as views choose among several transforms
    logits = encoding.product(q, placed, k, placed)
    return np.asarray(logits).sum(axis=0) / dim**0.5


SCALINGS = {
    "linear": "linear(factor={s})",
    "ntk": "ntk(factor={s})",
    "ntk_by_parts": "ntk_by_parts(factor={s}, original_length={n}, beta_fast={fast}, beta_slow={slow})",
    "llama3": "llama3(factor={s}, original_length={n}, high_freq_factor={fast}, low_freq_factor={slow})",
    "yarn": "yarn(factor={s}, original_length={n}, beta_fast={fast}, beta_slow={slow})",
    "dynamic_ntk": "dynamic_ntk(factor={s}, original_length={n})",
    "dynamic_yarn": "dynamic_yarn(original_length={n}, beta_fast={fast}, beta_slow={slow})",
    "longrope": "longrope(short_factor={short}, long_factor={long}, factor={s}, original_length={n})",
}


@pytest.mark.parametrize("kind", SCALINGS)
def test_scalings(forms, kind):
    """Multipliers and attention factors, below and beyond the trained length."""
    calls, expected, factors = [], [], []
    for n in (2, *map(int, RNG.integers(64, 9000, 5))):  # in 2 tokens no channel turns
        base, count, s = float(RNG.integers(100, 10**6)), 8, float(RNG.uniform(1, 32))
        slow = float(RNG.uniform(0.5, 4))
        fast, length = slow + float(RNG.uniform(0.5, 40)), int(n * RNG.choice([0.5, 2, 7]))
        short, long = (tuple(map(float, RNG.uniform(1, 9, count))) for _ in range(2))
        text = SCALINGS[kind].format(s=s, n=n, fast=fast, slow=slow, short=short, long=long)
        scaling = pj.parse(f"rope(base={base}, scaling={text})").scaling
        told = dict(kind=kind, factor=s, trained=n, length=length, fast=fast, slow=slow, short=short, long=long)
        calls.append([base, count, told])
        spectrum, lengths = Spectrum(base, count, np.arange(count)), jnp.full(1, length, jnp.float32)
        expected.append(np.asarray(scaling.multiplier(spectrum, lengths)).reshape(-1, count)[0])
        factors.append(np.max(np.asarray(scaling.attention(np.zeros((1, 1), np.int32), lengths))))
    same(forms("multipliers", calls), expected)
    same(forms("attentionFactor", [[told] for *_, told in calls]), factors)


def test_rotary_logits(forms):
    """Expected logits of rope, p_rope, hope, yarn and xpos; and a logit of given content."""
    at = line(0, *RNG.integers(1, 2000, 5))
    distance = np.asarray(at.position)[:, None] - np.asarray(at.position)[None]
    specs = {
        "rope(base=500)": dict(base=500),
        "p_rope(base=300, proportion=0.6)": dict(base=300, proportion=0.6),
        "hope(base=10000, original_length=700)": dict(base=10000, trained=700),
    }
    for spec, told in specs.items():
        (frequency,) = forms("frequencies", [[told | {"dim": DIM}]])
        found = forms("rotaryExpected", [[frequency, DIM, int(d)] for d in distance.ravel()])
        same(found, of_like_content(spec, at).ravel())
    yarn = dict(kind="yarn", factor=4, trained=256)
    (frequency,) = forms("scaled", [[forms("geometric", [[10000, 8]])[0], 10000, yarn]])
    (factor,) = forms("attentionFactor", [[yarn]])
    found = forms("rotaryExpected", [[frequency, DIM, int(d), factor] for d in distance.ravel()])
    same(found, of_like_content("rope(scaling=yarn(factor=4, original_length=256))", at).ravel())
    told = dict(base=1000, dim=DIM, scaleBase=700, gamma=0.3)
    found = forms("xposExpected", [[told, int(d)] for d in distance.ravel()])
    expected = of_like_content("xpos(base=1000, scale_base=700, gamma=0.3)", at)
    same(np.asarray(found)[expected.ravel() < 1e3], expected[expected < 1e3])  # keys ahead of a query are amplified
    q, k = RNG.normal(size=(2, DIM)).astype(np.float32)
    many_q, many_k = (np.broadcast_to(x, (6, 1, DIM)) for x in (q, k))
    rotated = pj.parse("rope()").rotate((), many_q, at, many_k, at)
    frequency = forms("geometric", [[10000, 8]])[0]
    found = forms("rotaryLogit", [[q.tolist(), k.tolist(), frequency, int(d)] for d in distance.ravel()])
    same(found, (np.einsum("thd,shd->ts", *map(np.asarray, rotated)) / DIM**0.5).ravel())


def test_turns_and_new_angles(forms):
    trained, longer = 512, 4096
    model = turning.RotaryModel("rope(base=3000)", 1, DIM, 1, trained)
    rates = turning.turning_of(pj.parse(model.encoding), model, trained).rates
    slower = turning.turning_of(pj.parse("rope(base=3000, scaling=linear(factor=8))"), model, longer).rates
    same(forms("turns", [[forms("geometric", [[3000, 8]])[0], trained]])[0], rates * trained / (2 * np.pi))
    for now in (rates, slower):
        seen, after = rates * trained / (2 * np.pi), now * longer / (2 * np.pi)
        found = forms("newAngles", [[rates.tolist(), trained, now.tolist(), longer]])[0]
        assert found == ((seen < 1) & (after > seen * (1 + 1e-3))).tolist()


def bias_of(spec, num_heads, site, params=()):
    q = jnp.zeros((len(site.segment), num_heads, 2))
    return np.asarray(pj.parse(spec).bias(params, q, site, q, site))


def test_biases_of_a_line(forms):
    at = line(0, *RNG.integers(1, 600, 6))
    distance = np.abs(np.asarray(at.position)[:, None] - np.asarray(at.position)[None])
    found = [forms("alibi", [[float(slope), int(d)] for d in distance.ravel()]) for slope in alibi_slopes(6)]
    same(found, bias_of("alibi()", 6, at).reshape(6, -1))
    kerple = {"p": jnp.asarray([-0.5, 0.3]), "a": jnp.asarray([0.7, -2.0])}
    for kind in ("log", "power"):
        p = 2 * jax.nn.sigmoid(kerple["p"]) if kind == "power" else jax.nn.softplus(kerple["p"])
        told = zip(map(float, p), map(float, jax.nn.softplus(kerple["a"])), strict=True)
        found = [forms("kerple", [[kind, *each, int(d)] for d in distance.ravel()]) for each in told]
        same(found, bias_of(f"kerple(kind='{kind}')", 2, at, kerple).reshape(2, -1))
    found = [forms("sandwich", [[h, 3, 32, 700, int(d)] for d in distance.ravel()]) for h in range(3)]
    same(found, bias_of("sandwich(dim=32, base=700)", 3, at).reshape(3, -1))
    code = np.asarray(pj.parse("sinusoidal(base=700)").embed((), jnp.zeros((7, 32)), at))
    same(forms("sinusoidalProduct", [[700, 32, int(d)] for d in distance.ravel()]), (code @ code.T).ravel())


MASKS = {
    "window(size=5)": ("window", dict(size=5)),
    "dilated(size=4, dilation=3)": ("dilated", dict(size=4, dilation=3)),
    "chunked(size=6)": ("chunked", dict(size=6)),
    "longformer(window=6, num_global=2)": ("longformer", dict(window=6, num_global=2)),
    "sinks(num_sinks=3, window=7)": ("sinks", dict(num_sinks=3, window=7)),
    "streaming(num_sinks=3, window=7) >> rope()": ("streaming", dict(num_sinks=3, window=7)),
}


def pairs(count):
    return [(q, k) for q in range(count) for k in range(count)]


def test_masks(forms):
    at = line(*range(30))
    for spec, (kind, told) in MASKS.items():
        encoding = pj.parse(spec)
        seen = shown(encoding, *[encoding.place(((), ()), at) if ">>" in spec else at] * 2)
        assert forms("seen", [[kind, told, q, k] for q, k in pairs(30)]) == np.asarray(seen).ravel().tolist(), spec


VIEWS = {
    "interpolate(factor=2.5)": ("interpolate", dict(factor=2.5)),
    "self_extend(group=3, window=7)": ("self_extend", dict(group=3, window=7)),
    "rerope(window=9, step=0.25)": ("rerope", dict(window=9, step=0.25)),
    "dual_chunk(chunk=11, local=3)": ("dual_chunk", dict(chunk=11, local=3)),
    "streaming(num_sinks=3, window=7)": ("streaming", dict(num_sinks=3, window=7)),
}


def test_views(forms):
    """rope at the distances that tokens seem to have is what posjax computes for every pair."""
    at = line(*range(34))
    for spec, (kind, told) in VIEWS.items():
        expected = of_like_content(f"{spec} >> rope(base=50)", at)
        (frequency,) = forms("geometric", [[50, 8]])
        apart = forms("apparent", [[kind, told, q, k] for q, k in pairs(34)])
        same(forms("rotaryExpected", [[frequency, DIM, d] for d in apart]), expected.ravel())


def test_grids(forms):
    at = pj.grid(5, 4)
    position = np.asarray(at.position)
    offsets = (position[None] - position[:, None]).reshape(-1, 2).tolist()
    found = forms("axialExpected", [[70, DIM, *o] for o in offsets])
    same(found, of_like_content("axial_rope(base=70)", at).ravel())
    same(
        [forms("alibi", [[float(s), *o] for o in offsets]) for s in alibi_slopes(3)],
        bias_of("alibi()", 3, at).reshape(3, -1),
    )
    for fov, heads in ((90, 12), (180, 6), (45, 8)):
        views = numbers()["views"][fov][heads]
        found = [forms("lookhere", [[view, 1.5, *o] for o in offsets]) for view in views]
        expected = bias_of(f"lookhere(fov={fov}, slope=1.5)", heads, at).reshape(heads, -1)
        same([[-1e9 if x is None else x for x in row] for row in found], expected)
    for height, width in ((6, 10), (11, 13)):
        at = pj.grid(height, width)
        where = np.asarray(at.position).tolist()
        apart = [
            ("fittedApart", [[k[axis], q[axis], 7, n] for q in where for k in where])
            for axis, n in ((0, height), (1, width))
        ]
        pairs_apart = list(zip(*(forms(*each) for each in apart), strict=True))
        found = [forms("lookhere", [[view, 2, *o] for o in pairs_apart]) for view in numbers()["views"][90][12]]
        fitted = pj.parse("fit_grid(height=7, width=7)").place((), at)
        expected = bias_of("lookhere(fov=90, slope=2)", 12, fitted).reshape(12, -1)
        same([[-1e9 if x is None else x for x in row] for row in found], expected)


def test_likeness_in_resized_tables():
    table = np.eye(7 * 7, dtype=np.float32).reshape(7, 7, 49)  # independent rows
    codes = pj.encodings.resize.resize(table, (6, 3)).reshape(18, 49)
    codes = codes / np.linalg.norm(codes, axis=1, keepdims=True)
    same(np.kron(numbers()["likeness"][6], numbers()["likeness"][3]), codes @ codes.T)
