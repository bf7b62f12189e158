"""The parts of a decoder beside its blocks; test_invariants.py compares its ways of running."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import inner_jaxprs
from jax.sharding import AbstractMesh

import posjax as pj
from posjax.attention import ContextParallel, backends
from posjax.hosting import place
from posjax.models import BlockConfig, Decoder, ViT

VOCABULARY, LENGTH = 11, 7
TOKENS, SITE = jnp.zeros((3, LENGTH), jnp.int32), pj.sites(LENGTH)


def decoder(spec="rope", **options):
    sizes = dict(width=16, depth=2, num_heads=2, length=8)
    return Decoder.from_config({**sizes, **options}, vocab_size=VOCABULARY, encoding=spec)


def types_of_products(model, inputs, param_dtype="float32"):
    """The types of matrix products; those of codes and logits are checked."""
    variables = jax.eval_shape(model.init, jax.random.key(0), *inputs)
    encoding = variables["params"]["trunk"].pop("encoding")  # whose codes are never in half precision
    assert {leaf.dtype.name for leaf in jax.tree.leaves(encoding)} == {"float32"}
    assert {leaf.dtype.name for leaf in jax.tree.leaves(variables)} == {param_dtype}
    variables["params"]["trunk"]["encoding"] = encoding
    traced = jax.make_jaxpr(model.apply)(variables, *inputs)
    assert traced.out_avals[0].dtype == jnp.float32
    eqns = [eqn for jaxpr, _ in inner_jaxprs(traced) for eqn in jaxpr.eqns if eqn.primitive.name == "dot_general"]
    return [eqn.invars[0].aval.dtype.name for eqn in eqns]


@pytest.mark.parametrize("tied", [True, False])
def test_products_of_gradients_have_the_types_of_the_model(tied):
    model = decoder("none", depth=1, dtype="bfloat16", tied_embedding=tied)
    variables = jax.eval_shape(model.init, jax.random.key(0), TOKENS, SITE)
    loss = lambda variables: jnp.sum(model.apply(variables, TOKENS, SITE) ** 2)  # noqa: E731
    text = jax.jit(jax.grad(loss)).lower(variables).as_text()
    products = re.findall(r"stablehlo.dot_general.* : \((.*)\) -> (.*)", text)
    heads = {operands for operands, out in products if re.search(rf"\b{VOCABULARY}x|x{VOCABULARY}x", operands + out)}
    assert len(heads) == 3  # logits, and the gradients of features and of the table
    assert not [operands for operands, _ in products if "f32" in operands]


VIT = dict(num_classes=3, width=16, depth=1, num_heads=2, image_size=(4, 6), patch_size=2)


@pytest.mark.parametrize(
    "options",
    [
        dict(spec="learned", tied_embedding=False),
        dict(spec="scaled_sinusoidal", latent="latent(8, 4, 2, 4)"),
        dict(spec="tupe", layer_scale=0.1),
        dict(encoding="none", pooling="cls", num_registers=2, pre_logits=8),
        dict(encoding="none", pooling="map", mlp="swiglu"),
    ],
    ids=lambda options: ", ".join(map(str, options.values())),
)
def test_gradients_are_summed_in_float32(options):
    """Those of rows, codes, biases, scales and prefix tokens: in bfloat16, 65,536 terms lost half of their sum."""
    if "spec" in options:
        model, inputs = decoder(depth=1, dtype="bfloat16", **options), (TOKENS, SITE)
    else:
        model = ViT.from_config(VIT | options | dict(dtype="bfloat16"))
        image, site = model.example(channels=3)
        inputs = jnp.repeat(image, 2, axis=0), site
    variables = jax.eval_shape(model.init, jax.random.key(0), *inputs)
    loss = lambda variables: jnp.sum(jax.tree.leaves(model.apply(variables, *inputs))[0] ** 2)  # noqa: E731
    text = jax.jit(jax.grad(loss)).lower(variables).as_text()
    sums = re.findall(r'applies stablehlo.add across.*|"stablehlo.scatter"(?:.|\n)*? -> .*', text)
    assert sums
    assert not [line for line in sums if "bf16" in line]


def test_compute_types_act_where_they_say():
    """In all products but the head's, or in those of attention alone."""
    exact, half, attention = (
        types_of_products(decoder("rope + learned", depth=1, **options), (TOKENS, SITE))
        for options in ({}, dict(dtype="bfloat16"), dict(attention_dtype="bfloat16"))
    )
    assert {*exact} == {"float32"}
    assert half.count("float32") < attention.count("float32") < len(exact)
    half = ViT.from_config(VIT, encoding="learned", dtype="bfloat16", param_dtype="bfloat16")
    assert types_of_products(half, half.example(channels=3), "bfloat16").count("float32") == 1  # the head's


@dataclasses.dataclass(frozen=True)
class Jitter(pj.PositionMap):
    """Stretches the positions of a sequence at random, in training."""

    def place(self, params, site, key=None):
        return site if key is None else site._replace(position=site.position * (1 + jax.random.uniform(key)))


@pytest.mark.parametrize("shared", [True, False])
def test_a_random_placement_acts_in_training_only(shared):
    """Each sequence of a batch has a draw of its own."""
    site = SITE if shared else jax.tree.map(lambda leaf: np.stack([leaf] * 3), SITE)
    encoding = Jitter() >> pj.parse("sinusoidal")
    params = encoding.init(jax.random.key(0), pj.Dims(16, 2, 8))

    def positions(seed):
        key = None if seed is None else jax.random.key(seed)
        return np.asarray(place(encoding, params, site, key=key, batch=3).site.position)

    np.testing.assert_array_equal(positions(None), site.position)
    first, again, second = map(positions, (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert len(np.unique(np.concatenate([first, second])[:, -1])) == 6


def test_a_decoder_places_at_random_in_training_only():
    keys = []

    class Spy(pj.PositionMap):
        def place(self, params, site, key=None):
            keys.append(key is not None)
            return site

    model = decoder(Spy() >> pj.parse("rope"))
    variables = jax.eval_shape(model.init, jax.random.key(0), TOKENS, SITE)
    rngs = {"place": jax.random.key(0), "dropout": jax.random.key(0)}
    for train in (False, True):
        keys.clear()
        jax.eval_shape(lambda v, train=train: model.apply(v, TOKENS, SITE, train=train, rngs=rngs), variables)
        assert keys == [train]


class Spy(pj.Encoding):
    """Writes down which hook was called with which parameter."""

    calls: list = []  # noqa: RUF012

    def init(self, key, dims):
        return jax.random.normal(key)

    def embed(self, params, x, site):
        self.calls.append(("embed", params))
        return x + params

    def bias(self, params, q, q_site, k, k_site):
        self.calls.append(("bias", params))
        return params


@pytest.mark.parametrize(
    ("injection", "expected"),
    [
        ("stem", ["embed 0", "bias 0", "bias 0"]),
        ("every_layer_shared", ["embed 0", "bias 0", "embed 0", "bias 0"]),
        ("every_layer", ["embed 0", "bias 0", "embed 1", "bias 1"]),
        ("lape", ["embed 0", "bias 0", "bias 0"]),
    ],
)
def test_injection_says_where_codes_act_and_whose_parameters(injection, expected):
    model = decoder(Spy(), injection=injection)
    trunk = jax.eval_shape(model.init, jax.random.key(0), TOKENS, SITE)["params"]["trunk"]
    names = sorted(name for name in trunk if name.startswith("encoding"))
    assert names == (["encoding_0", "encoding_1"] if injection == "every_layer" else ["encoding"])

    calls = []

    def run(variables):
        Spy.calls.clear()
        own = [variables["params"]["trunk"][name] for name in names]
        logits = model.apply(variables, TOKENS, SITE)
        calls.extend(f"{hook} {[params is each for each in own].index(True)}" for hook, params in Spy.calls)
        return logits

    jax.eval_shape(run, jax.eval_shape(model.init, jax.random.key(0), TOKENS, SITE))
    assert calls == expected


@pytest.mark.parametrize(
    ("context", "fields"), [(False, {}), (True, {"remat": "full"}), (True, {"remat": "full", "scan": True})]
)
def test_known_sites_stay_known_where_attention_is_computed(monkeypatch, fields, context):
    """Kernels need them: positions here, beside documents that are traced."""
    seen = []

    def run(encoding, x, *, scale):
        seen.append((type(x.k_site.position), type(x.k_order), isinstance(x.k_site.segment, jax.Array)))
        return x.rotated_q

    monkeypatch.setitem(backends.BACKENDS, "spy", backends.Backend(run))
    mesh = AbstractMesh((2, 1, 1), ("data", "tensor", "context"))
    shared = ContextParallel(mesh, batch_axis="data", heads_axis="tensor") if context else None
    block = BlockConfig(width=16, num_heads=2, implementation="spy", context=shared)
    model = Decoder(32, "rope", block=block, depth=2, **fields)
    tokens = jnp.zeros((2, 6), jnp.int32)
    params = jax.eval_shape(model.init, jax.random.key(0), tokens, pj.sites(6))
    seen.clear()

    def loss(params, segment):
        return model.apply(params, tokens, pj.sites(6)._replace(segment=segment)).sum()

    jax.eval_shape(jax.grad(loss), params, jnp.ones((2, 6), jnp.int32))
    assert {*seen} == {(np.ndarray, np.ndarray, True)}


def in_loops(text):
    """The lines of a compiled program that belong to loops."""
    blocks = re.findall(r"^(?:ENTRY )?%?([\w.-]+) .*?\{\n(.*?)^\}", text, re.DOTALL | re.MULTILINE)
    names = set(re.findall(r"body=%?([\w.-]+)", text))
    for _ in blocks:
        inner = [body for name, body in blocks if name in names]
        names |= set(re.findall(r"(?:body|calls|to_apply)=%?([\w.-]+)", "".join(inner)))
    return "".join(body for name, body in blocks if name in names)


@pytest.mark.slow
@pytest.mark.parametrize(("remat", "scan"), [("full", False), ("attention", True)])
def test_angles_are_computed_once_a_step(remat, scan):
    """Forward and backward, of positions that are traced: one cosine in the program, and none within a loop."""
    model = Decoder(7, "rope", block=BlockConfig(width=16, num_heads=2), depth=2, remat=remat, scan=scan)

    def loss(params, tokens, position):
        return model.apply(params, tokens, pj.Site(position, position * 0 + 1, position * 0)).sum()

    params = jax.eval_shape(model.init, jax.random.key(0), *model.example())
    whole = jax.ShapeDtypeStruct((2, 12), jnp.int32)
    text = jax.jit(jax.grad(loss)).lower(params, whole, whole).compile().as_text()
    assert len(re.findall(r" cosine\(", text)) == 1
    assert " cosine(" not in in_loops(text)
    assert (" dot(" in in_loops(text)) == scan
