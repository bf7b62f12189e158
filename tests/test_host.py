"""Hosting: the recipes of docs/hosting.md beside our own models, and refusals if a hook was not run."""

import ast
import functools
import inspect
import pathlib
import re

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import FIRST, HEAD_DIM, HEADS, joined, rows, world
from drawn import drawn
from flax import nnx
from members import Case

import posjax as pj
from posjax.attention import BEFORE_ATTENTION, ContextParallel, attend_cached, attend_parallel, empty_cache
from posjax.describe.worlds import normal
from posjax.hosting import place
from posjax.models import Decoder
from posjax.nnx import as_params

DOCUMENT = (pathlib.Path(__file__).parents[1] / "docs/hosting.md").read_text()
SIZES = dict(vocab_size=11, width=16, depth=1, num_heads=2, length=12)
STEPS = 4
Q = jnp.ones((14, HEADS, HEAD_DIM))


@pytest.fixture(scope="module")
def recipes():
    """The classes that the document defines; tests/test_readme.py runs its blocks whole."""
    namespace = {}
    for block in re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL):
        tree = ast.parse(block)
        tree.body = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom, ast.ClassDef))]
        exec(compile(tree, "docs/hosting.md", "exec"), namespace)
    return namespace


def losses(loss, params, keys):
    """The loss before each of some Adam steps on one batch."""
    optimizer = optax.adam(1e-2)

    def step(carry, key):
        params, state = carry
        value, grads = jax.value_and_grad(loss)(params, key)
        updates, state = optimizer.update(grads, state)
        return (optax.apply_updates(params, updates), state), value

    return jax.jit(lambda params, keys: jax.lax.scan(step, (params, optimizer.init(params)), keys)[1])(params, keys)


def cross_entropy(logits, tokens):
    return optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], tokens[:, 1:]).mean()


def projections(block):
    """Query, key and value apart, and out."""
    qkv, out = block["attention"]["qkv"], block["attention"]["out"]
    parts = {name: {leaf: qkv[leaf][..., i, :] for leaf in qkv} for i, name in enumerate(("query", "key", "value"))}
    return parts | {"out": out}


def linen(recipes, encoding, ours, site):
    model = recipes["LinenDecoder"](encoding, **SIZES)
    trunk = ours["trunk"]
    params = {
        "encoding": trunk["encoding"],
        "Embed_0": ours["token_embedding"],
        f"LayerNorm_{2 * SIZES['depth']}": trunk["norm"],
    }
    for layer in range(SIZES["depth"]):
        block = trunk[f"block_{layer}"]
        for index, one in enumerate(projections(block).values()):
            params[f"DenseGeneral_{4 * layer + index}"] = one
        mlp = block["mlp"]
        # Python makes the outer of two nested layers first.
        params |= {f"Dense_{2 * layer}": mlp["down"], f"Dense_{2 * layer + 1}": mlp["up"]}
        params |= {f"LayerNorm_{2 * layer}": block["attention_norm"]}
        params |= {f"LayerNorm_{2 * layer + 1}": block["mlp_norm"]}
    return params, lambda params, tokens, key: model.apply({"params": params}, tokens, site, key=key)


def in_nnx(recipes, encoding, ours, site):
    model, trunk = recipes["NNXDecoder"](encoding, **SIZES, rngs=nnx.Rngs(0)), ours["trunk"]
    model.positions.params = nnx.data(as_params(trunk["encoding"]))
    model.table.embedding.set_value(ours["token_embedding"]["embedding"])

    def fill(module, params):
        for name, value in params.items():
            getattr(module, name).set_value(value)

    fill(model.norm, trunk["norm"])
    for layer, block in enumerate(model.blocks):
        ours = trunk[f"block_{layer}"]
        fill(block.norm, ours["attention_norm"])
        fill(block.mlp_norm, ours["mlp_norm"])
        for name, params in (projections(ours) | ours["mlp"]).items():
            fill(getattr(block, name), params)
    graph, params = nnx.split(model, nnx.Param)
    return params, lambda params, tokens, key: nnx.merge(graph, params)(tokens, site, key=key)


def in_equinox(recipes, encoding, ours, site):
    model, trunk = recipes["EquinoxDecoder"](encoding, **SIZES, key=jax.random.key(0)), ours["trunk"]
    width = SIZES["width"]

    def dense(params, out):
        return params["kernel"].reshape(-1, out).T, params["bias"].reshape(out)

    def values(model):
        leaves = [model.positions, model.table, model.norm.weight, model.norm.bias]
        for block in model.blocks:
            leaves += [block.norm.weight, block.norm.bias, block.mlp_norm.weight, block.mlp_norm.bias]
            for one in (*block.project, block.out, block.up, block.down):
                leaves += [one.weight, one.bias]
        return leaves

    new = [trunk["encoding"], ours["token_embedding"]["embedding"], trunk["norm"]["scale"], trunk["norm"]["bias"]]
    for layer in range(SIZES["depth"]):
        block = trunk[f"block_{layer}"]
        for norm in (block["attention_norm"], block["mlp_norm"]):
            new += [norm["scale"], norm["bias"]]
        for one in projections(block).values():
            new += dense(one, width)
        new += dense(block["mlp"]["up"], 4 * width) + dense(block["mlp"]["down"], width)
    params, static = eqx.partition(eqx.tree_at(values, model, new), eqx.is_array)

    def run(params, tokens, key):
        model = eqx.combine(params, static)
        return jax.vmap(model, in_axes=(0, None, 0))(tokens, site, jax.random.split(key, len(tokens)))

    return params, run


FRAMEWORKS = {"linen": linen, "nnx": in_nnx, "equinox": in_equinox}
SITE = pj.sites(SIZES["length"])
TOKENS = jax.device_put(np.random.default_rng(3).integers(0, SIZES["vocab_size"], (3, SIZES["length"]), np.int32))


@functools.cache
def trained(spec):
    """Our own model's first parameters, the keys by which it places tokens, and its losses."""
    model, keys = Decoder.from_config(SIZES, encoding=spec), jax.random.split(jax.random.key(5), STEPS)
    params = drawn(model.init, jax.random.key(4), TOKENS, SITE, spread=0.1)["params"]

    def loss(params, key):
        return cross_entropy(model.apply({"params": params}, TOKENS, SITE, train=True, rngs={"place": key}), TOKENS)

    def draw(key):
        return model.apply({"params": params}, method=lambda model: model.trunk.make_rng("place"), rngs={"place": key})

    return params, jax.jit(jax.vmap(draw))(keys), losses(loss, params, keys)


@pytest.mark.parametrize(
    ("spec", "framework"),
    [
        pytest.param("learned + t5", "linen", marks=pytest.mark.slow),
        pytest.param("fox + rope", "nnx", marks=pytest.mark.slow),
        pytest.param("randomized(512) >> alibi", "equinox", marks=pytest.mark.slow),
    ],
)
def test_recipes_train_as_our_own_model_does(recipes, spec, framework):
    params, keys, expected = trained(spec)
    assert expected[-1] < expected[0] - 0.05
    start, run = FRAMEWORKS[framework](recipes, pj.parse(spec), params, SITE)

    def loss(params, key):
        return cross_entropy(run(params, TOKENS, key), TOKENS)

    np.testing.assert_allclose(losses(loss, start, keys), expected, rtol=2e-5)


@pytest.mark.parametrize(
    "case", [case for case in FIRST if pj.parse(case.spec).hooks & BEFORE_ATTENTION.keys()], ids=str
)
def test_no_hook_is_lost_in_silence(case):
    """Attention alone refuses an encoding that acts before it, by the names of what would be lost."""
    encoding, site = pj.parse(case.spec), pj.sites(14)
    lost = [hook for hook in BEFORE_ATTENTION if hook in encoding.hooks]
    cache = empty_cache(16, HEADS, HEAD_DIM, site)
    context = ContextParallel(jax.sharding.Mesh(np.array(jax.devices()[:1]), ("context",)))
    for refuses in [
        lambda told: pj.attend(encoding, (), Q, Q, Q, site, site, consumed=told),
        lambda told: attend_cached(encoding, (), Q, Q, Q, site, cache, consumed=told),
        lambda told: attend_parallel(encoding, (), Q, Q, Q, site, site, context=context, consumed=told),
    ]:
        for hook in lost:
            told = [other for other in lost if other != hook]
            with pytest.raises(ValueError, match=rf"\(`{hook}`\), which attention alone does not do"):
                refuses(told)
        with pytest.raises(ValueError, match=re.escape(f"say consumed={tuple(lost)}")):
            refuses(())


def test_what_a_hosted_encoding_needs_is_asked_for():
    x, site = jnp.ones((14, 24)), pj.sites(14)
    fox, peg, reset = world(Case("fox()")), pj.parse("peg"), pj.parse("reset >> rope")
    with pytest.raises(TypeError, match="key"):
        pj.host(fox.encoding, fox.params, x, site)
    _, hosted = pj.host(fox.encoding, fox.params, x, site, key=None)
    with pytest.raises(ValueError, match=r"fox\(.*reads the input of the layer.*hosted.attend\(q, k, v, x=...\)"):
        hosted.attend(Q, Q, Q, causal=True)
    _, hosted = pj.host(peg, peg.init(jax.random.key(0), pj.Dims(24, HEADS, HEAD_DIM)), x, site, key=None)
    with pytest.raises(ValueError, match="mixes tokens with later ones"):
        hosted.attend(Q, Q, Q, causal=True)
    _, hosted = pj.host(reset, ((), ()), x, site, key=None)
    with pytest.raises(ValueError, match="cannot decode token by token"):
        hosted.attend_cached(Q, Q, Q, cache_size=20)
    _, hosted = pj.host(pj.parse("rope"), (), x, site, key=None)
    with pytest.raises(ValueError, match="one of them"):
        hosted.attend_cached(Q, Q, Q)


def test_a_site_is_asked_for_and_of_as_many_tokens(unchecked_shapes):
    """Whatever the encoding: of every case."""
    x, wrong = jnp.ones((8, 24)), (jnp.arange(8), np.arange(8), 8, None, (np.arange(8),))
    for case in FIRST:
        encoding = pj.parse(case.spec)
        for site in wrong:
            with pytest.raises(ValueError, match=r"^site=.*: give posjax\.sites\(length\)"):
                pj.host(encoding, (), x, site, key=None)
            with pytest.raises(ValueError, match=r"^site="):
                pj.attend(encoding, (), x, x, x, pj.sites(8), site, consumed=BEFORE_ATTENTION)
        for tokens, site in ((x, pj.sites(20)), (x[None], pj.grid(2, 2)), (x, pj.sites(8, start=np.zeros(3)))):
            with pytest.raises(ValueError, match=r"differ in their tokens: give posjax\.sites\(8\)"):
                pj.Hosted(encoding, (), site).embed(tokens)


@pytest.mark.parametrize("spec", ["randomized(64) >> (learned + rope)", "fox + sinusoidal"])
def test_a_batch_is_its_sequences(spec):
    """Each at sites of its own, with a key of its own; packed documents are told apart."""
    w = world(Case(spec))
    two = joined(rows(w.site, slice(9)), rows(w.site, slice(5))._replace(segment=np.full(5, 2, np.int32)))
    sites = jax.tree.map(lambda *leaves: np.stack(leaves), w.site, two)
    xs = np.stack([w.x, w.x[::-1]])
    q, k, v = np.einsum("btm,nmhd->nbthd", xs, w.weights)
    key = jax.random.key(7)

    @jax.jit
    def read(x, q, k, v, site, key):
        x, hosted = pj.host(w.encoding, w.params, x, site, key=key)
        return x, hosted.attend(q, k, v, x=x, causal=True)

    together = jax.device_get(read(xs, q, k, v, sites, key))
    for index, one_key in enumerate(jax.random.split(key, 2)):
        alone = read(xs[index], q[index], k[index], v[index], rows(sites, index), one_key)
        for a, b in zip(together, alone, strict=True):
            np.testing.assert_allclose(a[index], b, atol=1e-5)


def test_shared_sites_stay_shared():
    """Functions of shared sites are then computed once for a batch."""
    x, site = jnp.ones((4, 6, 24)), pj.sites(6)
    for spec, key, shared in [
        ("learned + rope", jax.random.key(0), True),
        ("interpolate(factor=2) >> rope", None, True),
        ("randomized(64) >> rope", None, True),
        ("randomized(64) >> rope", jax.random.key(0), False),
    ]:
        encoding = pj.parse(spec)
        init = functools.partial(encoding.init, dims=pj.Dims(24, HEADS, HEAD_DIM, length=8))
        params = jax.eval_shape(init, jax.random.key(0))
        run = functools.partial(place, encoding, site=site, key=key, batch=len(x))
        assert (jax.eval_shape(run, params).site.segment.ndim == 1) == shared, spec


def test_hosted_passes_through_jit_and_scan():
    w = world(Case("learned() + fox()"))
    x, hosted = pj.host(w.encoding, w.params, w.x, w.site, key=None)

    def layer(hosted, x):
        q, k, v = jnp.einsum("tm,nmhd->nthd", x, w.weights)
        return x + hosted.attend(q, k, v, x=x, causal=True).reshape(x.shape)

    scanned = jax.jit(lambda hosted, x: jax.lax.scan(lambda x, _: (layer(hosted, x), None), x, length=2)[0])
    np.testing.assert_allclose(scanned(hosted, x), jax.jit(lambda x: layer(hosted, layer(hosted, x)))(x), atol=1e-5)


class OwnAttention(nn.Module):
    """A layer with flax's attention, which hosts an encoding, or with a replacement."""

    spec: str
    given: object = None
    decode: bool = False

    @nn.compact
    def __call__(self, x, site, mask=None, key_site=None, sow_weights=False, **options):
        encoding = pj.parse(self.spec)
        params = self.param("encoding", encoding.init, pj.Dims(24, HEADS, 8, length=14))
        x, hosted = pj.host(encoding, params, x, site, key=None)
        own = self.given or hosted.attention_fn(x, causal=True, key_site=key_site)
        told = dict(attention_fn=own, decode=self.decode, **options)
        return nn.MultiHeadDotProductAttention(HEADS, **told)(x, mask=mask, sow_weights=sow_weights)


X = normal(8, 2, 14, 24)
CAUSAL = jax.device_put(np.tril(np.ones((2, 1, 14, 14), np.float32)))
SITE_14 = pj.sites(14)


def test_flax_attention_hosts_what_flax_computes_of_the_same_bias():
    """ALiBi, a window and causality as one array of logits and one of booleans."""
    model = OwnAttention("alibi + window(5)")
    variables = jax.jit(model.init)(jax.random.key(0), X, SITE_14)
    distance = np.arange(14)[:, None] - np.arange(14)[None]
    slopes = np.array([2.0**-4, 2.0**-8, 2.0**-2])  # of two heads, and every other one of four
    bias = -slopes[:, None, None] * abs(distance)
    given = functools.partial(nn.dot_product_attention, bias=bias[None])
    mask = CAUSAL * (distance < 5)
    expected = jax.jit(OwnAttention("none", given).apply)(variables, X, SITE_14, mask)
    np.testing.assert_allclose(jax.jit(model.apply)(variables, X, SITE_14), expected, atol=1e-5)


def test_linen_decodes_as_the_full_pass():
    model = OwnAttention("rope + alibi")
    variables = jax.jit(model.init)(jax.random.key(0), X, SITE_14)
    expected = jax.jit(model.apply)(variables, X, SITE_14)
    decoder = OwnAttention("rope + alibi", decode=True)
    state = {**variables, "cache": jax.eval_shape(lambda: decoder.init(jax.random.key(0), X, SITE_14)["cache"])}
    state["cache"] = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), state["cache"])
    one = jax.jit(functools.partial(decoder.apply, mutable=["cache"]))
    for index in range(3):
        read, changed = one(state, X[:, index : index + 1], rows(SITE_14, slice(index, index + 1)), key_site=SITE_14)
        state |= changed
        np.testing.assert_allclose(read[:, 0], expected[:, index], atol=1e-5)


def test_linen_sows_the_weights():
    model, told = OwnAttention("none"), dict(sow_weights=True, mutable=["intermediates"])
    variables = jax.jit(model.init)(jax.random.key(0), X, SITE_14)
    _, sown = jax.jit(functools.partial(model.apply, **told))(variables, X, SITE_14)
    given = OwnAttention("none", nn.dot_product_attention)
    _, expected = jax.jit(functools.partial(given.apply, **told))(variables, X, SITE_14, CAUSAL)
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), sown, expected)


def test_nothing_that_flax_passes_is_unnamed():
    """Linen leaves out what a signature does not name: it would be lost in silence."""
    _, hosted = pj.host(pj.parse("none"), (), X, SITE_14, key=None)
    named = set(inspect.signature(hosted.attention_fn()).parameters)
    for given in (nn.dot_product_attention, nnx.dot_product_attention):
        passed = set(inspect.signature(given).parameters) - {"bias", "promote_dtype", "einsum_dot_general"}
        assert passed <= named


def test_attention_fn_loses_no_hook():
    fox, reset = world(Case("fox()")), pj.parse("reset >> rope")
    _, hosted = pj.host(fox.encoding, fox.params, jnp.ones((14, 24)), SITE_14, key=None)
    with pytest.raises(ValueError, match="than the cache of a flax module"):
        hosted.attention_fn(jnp.ones((14, 24)), key_site=SITE_14)
    _, hosted = pj.host(reset, ((), ()), jnp.ones((14, 24)), SITE_14, key=None)
    with pytest.raises(ValueError, match="cannot decode token by token"):
        hosted.attention_fn(key_site=SITE_14)


def test_the_attention_of_equinox_hosts_what_it_computes_itself(recipes):
    own = eqx.nn.MultiheadAttention(2, 24, use_query_bias=True, key=jax.random.key(0))
    _, hosted = pj.host(pj.parse("window(5)"), (), X[0], SITE_14, key=None)
    distance = np.arange(14)[:, None] - np.arange(14)[None]
    mask = jnp.asarray((distance >= 0) & (distance < 5))
    expected = eqx.filter_jit(own)(X[0], X[0], X[0], mask=mask)
    np.testing.assert_allclose(eqx.filter_jit(recipes["EquinoxAttention"](own))(X[0], hosted), expected, atol=1e-5)
