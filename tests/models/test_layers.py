"""Patterns of encodings over layers, and what a trunk refuses to host."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

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


def test_each_layer_hosts_its_own_encoding():
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


def test_a_vit_takes_a_pattern_too():
    model = ViT(
        3,
        encoding="learned + rope(base=100), none",
        image_size=(4, 6),
        patch_size=2,
        block=BlockConfig(width=16, num_heads=2),
    )
    out, variables = jax.eval_shape(model.init_with_output, jax.random.key(0), *model.example(channels=1))
    assert out.shape == (1, 3)
    assert {"encoding_0", "encoding_1"} <= variables["params"]["trunk"].keys()


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
    x, site = jnp.asarray(np.random.default_rng(0).normal(size=(5, 2, 64)), jnp.float32), pj.sites(5, 1000)
    run = jax.jit(lambda x: [each.rotate((), x, site, x, site)[1] for each in (layers[0].members[0], theirs)])
    np.testing.assert_array_equal(*run(x))


@pytest.mark.parametrize(("first", "layers"), [(0, "none(), r, r"), (1, "r, none(), r"), (None, "r, r, none()")])
def test_muse_may_begin_within_its_pattern(first, layers):
    text = pj.spec.layers_text(pj.parse_layers(f"muse(local=2, window=None, first={first})"))
    assert text.replace("rope()", "r") == layers


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
    variables = jax.eval_shape(model.init, jax.random.key(0), TOKENS, SITE)
    with pytest.raises(ValueError, match=r"cannot decode token by token"):
        jax.eval_shape(lambda v: model.apply(v, TOKENS, SITE, cache_size=8, method=model.prefill), variables)
