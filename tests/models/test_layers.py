"""Patterns of encodings over layers, and what a trunk refuses to host."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import drawn

import posjax as pj
from posjax.encoding import Needs
from posjax.models import BlockConfig, Decoder, ViT

SITE = pj.sites(6)
TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 11, (2, 6)), jnp.int32)


def decoder(encoding, **options):
    return Decoder.from_config(
        dict(width=16, depth=4, num_heads=2, length=8) | options, vocab_size=11, encoding=encoding
    )


def params_of(model):
    return jax.eval_shape(model.init, jax.random.key(0), TOKENS, SITE)["params"]["trunk"]


def hosted(model):
    """{name: number of parameters} of the encodings of a model's layers."""
    trunk = params_of(model)
    return {
        name: sum(leaf.size for leaf in jax.tree.leaves(trunk[name])) for name in trunk if name.startswith("encoding")
    }


def logits(model, variables):
    return model.apply(variables, TOKENS, SITE)


def initial(model):
    return drawn(model.init, jax.random.key(0), TOKENS, SITE)


@pytest.mark.slow
def test_a_pattern_of_one_is_that_encoding():
    plain = decoder("rope")
    variables = initial(plain)
    for pattern in (("rope",), ["rope", "rope"], "rope, rope, rope", (pj.parse("rope"),)):
        model = decoder(pattern if isinstance(pattern, str) else tuple(pattern))
        np.testing.assert_array_equal(logits(model, variables), logits(plain, variables))


def test_each_layer_hosts_its_own_encoding():
    """Layers 0 to 2 rotate and layer 3 does not: moving only the positions that layer 3 would see changes nothing."""

    class Recorder(pj.Encoding):
        seen: list = []  # noqa: RUF012

        def __init__(self, name):
            self.name = name

        def bias(self, params, q, q_site, k, k_site):
            self.seen.append(self.name)
            return 0.0

    model = decoder((Recorder("a"), Recorder("a2"), Recorder("b")), depth=5)
    jax.eval_shape(model.init, jax.random.key(0), TOKENS, SITE)
    assert Recorder.seen == ["a", "a2", "b", "a", "a2"]


@pytest.mark.parametrize(
    ("injection", "expected"),
    [
        ("stem", {"encoding_0": 64, "encoding_1": 0}),
        ("every_layer_shared", {"encoding_0": 64, "encoding_1": 0}),
        ("every_layer", {"encoding_0": 64, "encoding_1": 0, "encoding_2": 64, "encoding_3": 0}),
    ],
)
def test_equal_encodings_share_their_parameters(injection, expected):
    """t5 in layers 0 and 2, with 32 buckets for 2 heads."""
    found = hosted(decoder("t5, none, t5, none", injection=injection))
    assert {name: found.get(name, 0) for name in expected} == expected
    assert set(found) <= set(expected)


@pytest.mark.slow
def test_at_the_stem_each_code_is_added_once():
    one, two = decoder("learned(stddev=1)"), decoder("learned(stddev=1), none, learned(stddev=1)")
    variables = initial(one)
    trunk = variables["params"]["trunk"]
    renamed = {name if name != "encoding" else "encoding_0": value for name, value in trunk.items()} | {
        "encoding_1": ()
    }
    again = {"params": {**variables["params"], "trunk": renamed}}
    np.testing.assert_allclose(logits(two, again), logits(one, variables), atol=1e-5)


@pytest.mark.slow
def test_a_pattern_decodes_token_by_token():
    model = decoder("window(3) + rope, rope(base=100), none, alibi" if "window" in pj.names() else "rope, none")
    variables = initial(model)
    whole = logits(model, variables)
    prefill = jax.jit(functools.partial(model.apply, cache_size=6, method=model.prefill))
    extend = jax.jit(functools.partial(model.apply, method=model.extend))
    out, caches = prefill(variables, TOKENS[:, :2], pj.sites(2))
    np.testing.assert_allclose(out, whole[:, :2], atol=1e-5)
    for t in range(2, 6):
        out, caches = extend(variables, TOKENS[:, t : t + 1], pj.sites(1, start=t), caches)
        np.testing.assert_allclose(out[:, 0], whole[:, t], atol=1e-4)


@pytest.mark.slow
def test_local_and_global_layers_differ_from_either_alone():
    """The pattern of Gemma 3: other bases in other layers."""
    trunk = (variables := initial(decoder("rope")))["params"]["trunk"]
    trunk |= {"encoding_0": (), "encoding_1": ()}
    mixed, local, whole = (
        logits(decoder(pattern), variables) for pattern in ("rope(base=10), rope", "rope(base=10)", "rope")
    )
    assert min(float(jnp.abs(mixed - other).max()) for other in (local, whole)) > 1e-3


def test_a_vit_takes_a_pattern_too():
    model = ViT(
        3,
        encoding="learned + rope(base=100), none",
        image_size=(4, 6),
        patch_size=2,
        block=BlockConfig(width=16, num_heads=2),
    )
    site = model.sites(4, 6)
    variables = drawn(model.init, jax.random.key(0), jnp.zeros((1, 4, 6, 1)), site)
    assert jax.eval_shape(model.apply, variables, jnp.zeros((1, 4, 6, 1)), site).shape == (1, 3)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("rope, rop", "no encoding is named 'rop'; did you mean 'rope'"),
        ((), "at least one encoding"),
        ("()", "an encoding spec is made of"),
        ("rope, (rope, none)", "a pattern over layers stands where a model is made"),
        ("rope(base=3,), none(", "cannot read the encoding spec"),
        ("rnopes", "no encoding is named 'rnopes'; did you mean 'rnope'"),
        ("swan(windw=3)", "swan has no argument 'windw'; did you mean 'window'"),
        ("swan, none", "swan is a pattern over layers: it stands alone, where a model is made"),
        ("gpt_oss(local=0)", "one local layer or more, got local=0"),
        ("rnope(local=0)", "one local layer or more, got local=0"),
    ],
)
def test_refused_patterns(pattern, message):
    with pytest.raises(ValueError, match=message):
        pj.parse_layers(pattern)


def test_named_patterns_are_their_layers():
    local = "rope(base=1000000) + window(size=512)"
    assert pj.spec.layers_text(pj.parse_layers("swan")) == f"none(), {local}, {local}, {local}"
    assert pj.parse_layers("swan(scale=362)")[0] == pj.parse("log_n(original_length=362, shifted=True)")
    assert pj.spec.layers_text(pj.parse_layers("rnope(window=None, local=1)")) == "rope(), none()"
    cohere2 = dict(model_type="cohere2", num_hidden_layers=4, rope_theta=50_000, sliding_window=4096)
    theirs = pj.spec.layers_text(pj.from_hf_layers(cohere2)).replace(", layout='interleaved'", "")
    assert theirs == pj.spec.layers_text(pj.parse_layers("rnope(base=50000)"))
    theirs = pj.spec.layers_text(pj.from_hf_layers(dict(model_type="gpt_oss", num_hidden_layers=2, head_dim=64)))
    assert theirs == pj.spec.layers_text(pj.parse_layers("gpt_oss"))
    assert "yarn" not in pj.spec.layers_text(pj.parse_layers("gpt_oss(factor=1)"))
    assert {"beam", "gpt_oss", "mistral_large4", "rnope", "swan"} <= set(pj.spec.patterns())
    with pytest.raises(ValueError, match="swan is a pattern over layers"):
        pj.parse("swan")


LOCAL = {"rope_type": "default", "rope_theta": 10_000.0}


def partial(base, share, kind="proportional"):
    return {"rope_type": kind, "rope_theta": base, "partial_rotary_factor": share}


def kinds(text):
    return [{"f": "full_attention", "s": "sliding_attention"}[letter] for letter in text]


# What the default configurations of transformers 5.24 say of positions, with fewer layers; lfm3 without its convolutions.
CONFIGURATIONS = {
    "gemma4": dict(
        model_type="gemma4_text",
        sliding_window=512,
        layer_types=kinds("sssssf"),
        rope_parameters={"sliding_attention": LOCAL, "full_attention": partial(1e6, 0.25)},
    ),
    "lfm3": dict(
        model_type="lfm3",
        sliding_window=256,
        layer_types=kinds("fs"),
        rope_parameters={"sliding_attention": LOCAL, "full_attention": partial(1e6, 0.5)},
    ),
    "laguna": dict(
        model_type="laguna",
        sliding_window=512,
        layer_types=kinds("fsss"),
        rope_parameters={
            "sliding_attention": partial(1e4, 1.0, "default"),
            "full_attention": partial(5e5, 0.5, "default"),
        },
    ),
    "muse": dict(
        model_type="muse_glimmer_text",
        sliding_window=2048,
        layer_types=kinds("sssf"),
        rope_parameters=LOCAL,
        layer_rope_theta=[10_000.0] * 3 + [0],
    ),
    "muse(base=500000, first=1)": dict(
        model_type="muse_spark_text", num_hidden_layers=6, rope_parameters=LOCAL | {"rope_theta": 500_000.0}
    ),
    "beam": dict(
        model_type="beam",
        sliding_window=512,
        layer_types=kinds("sssssf"),
        rope_parameters={"sliding_attention": LOCAL, "full_attention": None},
    ),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_patterns_of_2026_are_their_configurations(name):
    config = CONFIGURATIONS[name]
    config = {"num_hidden_layers": len(config.get("layer_types", ()))} | config
    theirs, pattern = pj.from_hf_layers(config), pj.parse_layers(name)
    assert [str(layer) for layer in theirs] == [str(pattern[n % len(pattern)]) for n in range(len(theirs))]


def test_mistral_large_4_rotates_by_yarn_without_its_factor():
    layers = pj.parse_layers("mistral_large4")
    assert layers[3] == pj.parse("ssmax")
    parameters = partial(10_000.0, 1.0, "yarn") | dict(factor=2048.0, original_max_position_embeddings=512)
    theirs = pj.from_hf(parameters | {"attention_factor": 1.0}, layout="interleaved")
    x, site = jax.random.normal(jax.random.key(0), (5, 2, 64)), pj.sites(5, 1000)
    np.testing.assert_array_equal(*(e.rotate((), x, site, x, site)[1] for e in (layers[0].members[0], theirs)))


@pytest.mark.parametrize(("first", "layers"), [(0, "none(), r, r"), (1, "r, none(), r"), (None, "r, r, none()")])
def test_muse_may_begin_within_its_pattern(first, layers):
    text = pj.spec.layers_text(pj.parse_layers(f"muse(local=2, window=None, first={first})"))
    assert text.replace("rope()", "r") == layers
    with pytest.raises(ValueError, match="between 0 and local=3, got 4"):
        pj.parse_layers("muse(first=4)")


def test_muse_refuses_a_short_list():
    with pytest.raises(ValueError, match="layer_rope_theta are 1, and the model has more layers"):
        pj.from_hf_layers(dict(model_type="muse_glimmer_text", num_hidden_layers=2, layer_rope_theta=[0]))


@pytest.mark.usefixtures("unchecked_shapes")
def test_what_is_no_pattern_is_not_registered():
    for name, cls, message in (
        ("rope", object, "named 'rope' is registered already"),
        ("mine", type("Mine", (), {}), "Mine is no dataclass"),
        ("mine", dataclasses.make_dataclass("Mine", [], frozen=True), "Mine has no method layers"),
    ):
        with pytest.raises(ValueError, match=message):
            pj.spec.register_pattern(name)(cls)
    assert "mine" not in pj.spec.patterns()


def test_patterns_round_trip():
    pattern = pj.parse_layers("rope, rope(base=5e5) + alibi, none")
    assert pj.spec.layers_text(pattern) == "rope(), rope(base=500000) + alibi(), none()"
    assert pj.parse_layers(pj.spec.layers_text(pattern)) == pattern
    with pytest.raises(ValueError, match="a pattern over layers stands where a model is made"):
        pj.parse("rope, none")


@dataclasses.dataclass(frozen=True)
class Mixer(pj.Encoding):
    needs = Needs.BOTH_DIRECTIONS


@dataclasses.dataclass(frozen=True)
class Whole(pj.PositionMap):
    needs = Needs.WHOLE_DOCUMENT


def test_what_a_decoder_cannot_host():
    with pytest.raises(ValueError, match=r"Mixer\(\).*mixes tokens with later ones"):
        params_of(decoder(Mixer()))
    model = decoder(Whole() >> pj.parse("rope"))
    variables = initial(model)
    with pytest.raises(ValueError, match=r"cannot decode token by token"):
        model.apply(variables, TOKENS, SITE, cache_size=8, method=model.prefill)
