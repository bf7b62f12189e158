"""Language models in transformers' folders: all families have its logits, Llama and GPT-2 are written."""

import functools
import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest
import safetensors.numpy
from goldens.language_cases import CASES, FILE, assert_same, error, errors, tokens_of, weights_of, written
from goldens.language_settings import LONG

import posjax as pj
from posjax import pretrained
from posjax.describe.explain.turning import model_of
from posjax.models import Decoder, Encoder
from posjax.pretrained.language import FAMILIES as ALL_FAMILIES
from posjax.pretrained.language.saving import resolved
from posjax.pretrained.parameters import paths_of
from posjax.training.initial import Start

BOUND = 1e-4  # of the largest logit
FAST = ["gemma2", "gptj", "llama", "llama4 normed"]  # those that most of the parts are in
FAMILIES = {*{case.split()[0]: case for case in reversed(CASES)}.values(), "falcon alibi"}  # the others are thorough
WRITTEN = [case for case in CASES if CASES[case]["config"]["model_type"] in ("llama", "gpt2")]


def marks(case):
    return [] if case in FAST else pytest.mark.slow if case in FAMILIES else pytest.mark.thorough


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    return functools.cache(lambda case: written(case, tmp_path_factory.mktemp("models") / case.replace(" ", "_")))


@pytest.fixture(scope="module")
def loaded(folder_of):
    return functools.cache(lambda case: pretrained.load(folder_of(case)))


@pytest.mark.parametrize("case", [pytest.param(case, marks=marks(case)) for case in CASES])
def test_logits_are_theirs(case, loaded):
    """Covers one pass over a line longer than the trained length."""
    model, params = loaded(case)
    logits = jax.jit(model.apply)(params, tokens_of()[None], pj.sites(LONG))[0]
    assert error(logits, FILE[f"{case} long"]) < BOUND


@pytest.mark.slow
def test_logits_are_theirs_behind_padding_and_token_by_token(loaded):
    """Of LongRoPE, below its switch too."""
    found = errors("phi3", *loaded("phi3"))
    assert max(found.values()) < BOUND, found
    assert found.keys() == {"beyond", "padded", "full", "decoded"}


@pytest.mark.parametrize("case", WRITTEN)
def test_what_is_saved_comes_back(case, loaded, tmp_path):
    """Bit by bit, under the names and in the shapes of transformers."""
    model, params = loaded(case)
    pretrained.save(tmp_path, model, params)
    config = json.loads((tmp_path / "config.json").read_text())
    assert resolved(ALL_FAMILIES[config["model_type"]].made(config)) == resolved(model)
    held, was = safetensors.numpy.load_file(tmp_path / "model.safetensors"), weights_of(case)
    assert held.keys() == was.keys()
    assert all(np.array_equal(held[name], was[name]) for name in was)


@pytest.mark.parametrize(
    ("case", "config", "name"),
    [
        ("llama", dict(quantization_config={"bits": 4}), "quantization_config"),
        ("llama", dict(rms_norm_epsilon=1e-5), "did you mean 'rms_norm_eps'"),
        ("llama", dict(model_type="gemma4_text"), "gemma4_text"),
        ("llama", dict(hidden_size="32"), "hidden_size is '32'"),
        ("llama", dict(intermediate_size=48), "mlp/gate/kernel"),
        ("llama", dict(num_hidden_layers=1), r"model\.layers\.1\.input_layernorm\.weight"),
        ("mpt", dict(attn_config={"qk_gn": True}), r"attn_config\.qk_gn .* did you mean 'qk_ln'"),
        ("llama4", dict(moe_layers=[1]), r"moe_layers=\[1\]"),
        ("falcon new", dict(parallel_attn=False), "parallel_attn"),
        ("granite", dict(embedding_multiplier=None), "embedding_multiplier"),
        ("olmo3", dict(rope_parameters=None, rope_theta=1e4), "rope_theta=10000.0"),
        ("deepseek_v3", dict(first_k_dense_replace=1), "first_k_dense_replace=1"),
        ("deepseek_v3", dict(rope_parameters={"rope_type": "yarn", "factor": "4"}), "rope_parameters: factor is '4'"),
        ("gptj", dict(hidden_size=16), "hidden_size=16"),
    ],
)
def test_what_is_not_computed_is_refused(case, config, name, tmp_path):
    with pytest.raises(ValueError, match=name):
        pretrained.load(written(case, tmp_path, **config))


def test_keys_that_say_nothing_of_numbers_are_passed_over(loaded, tmp_path):
    """Keys that begin with "_", bookkeeping, and keys that the caller names."""
    config = CASES["llama"]["config"]
    family = ALL_FAMILIES["llama"]
    plain = family.made(config)
    assert family.made(config | {"_foo": [1], "unsloth_version": "1", "gradient_checkpointing": True}) == plain
    with pytest.raises(ValueError, match=r"ignore: hidden_size .* is known to change numbers"):
        family.made(config, ignore=["hidden_size"])
    with pytest.raises(ValueError, match="has no key 'laboratry'; did you mean 'laboratory'"):
        family.made(config | {"laboratory": "x"}, ignore=["laboratry"])
    written("llama", tmp_path, laboratory="x")
    with pytest.raises(ValueError, match=r"config.json: .*'laboratory' \(= 'x'\).*--ignore=laboratory"):
        pretrained.load(tmp_path)
    model, params = pretrained.load(tmp_path, ignore=["laboratory"])
    assert model == loaded("llama")[0]
    assert_same(params, loaded("llama")[1])
    assert model_of(tmp_path, ["laboratory"]).encoding == model.encoding
    assert Start(tmp_path, "laboratory").model == model


def with_tensors(folder, tensors):
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    return folder


def test_names_of_wrapped_models_are_read(loaded, tmp_path):
    tensors = {f"module._orig_mod.{name}": tensor for name, tensor in weights_of("llama").items()}
    assert_same(loaded("llama")[1], pretrained.load(with_tensors(written("llama", tmp_path), tensors))[1])


def test_a_head_is_the_embedding_bit_by_bit(tmp_path):
    """A file may hold either or both; the file's type is the head's; NaN is no other number than the same NaN."""
    written("gpt2", tmp_path)
    tensors = {name: tensor.astype("bfloat16") for name, tensor in weights_of("gpt2").items()}
    table = tensors.pop("transformer.wte.weight")
    table[0] = np.nan
    model, params = pretrained.load(with_tensors(tmp_path, tensors | {"lm_head.weight": table}))
    assert model.block.dtype == "bfloat16"
    assert np.asarray(params["params"]["token_embedding"]["embedding"]).tobytes() == table.tobytes()
    tensors["transformer.wte.weight"] = table
    assert_same(params, pretrained.load(with_tensors(tmp_path, tensors | {"lm_head.weight": table}))[1])
    with pytest.raises(ValueError, match=r"lm_head\.weight and transformer\.wte\.weight differ"):
        pretrained.load(with_tensors(tmp_path, tensors | {"lm_head.weight": table + 1}))


def test_tensors_and_keys_that_are_missing_or_left_over_are_named(tmp_path):
    def refused(tensors, message, **options):
        with pytest.raises(ValueError, match=message):
            pretrained.load(with_tensors(tmp_path, tensors), **options)

    written("llama", tmp_path)
    tensors = weights_of("llama")
    without = lambda *names: {name: tensor for name, tensor in tensors.items() if name not in names}  # noqa: E731
    refused(without("model.layers.1.mlp.up_proj.weight"), r"lacks model\.layers\.1\.mlp\.up_proj\.weight")
    refused(without("lm_head.weight"), r"no head, lm_head\.weight: .*tie_word_embeddings")
    more = {"model.layers.1.mlp.router.weight": np.zeros((4, 32), np.float32)}
    refused(tensors | more, r"no place for: model\.layers\.1\.mlp\.router\.weight")
    adapter = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    refused({adapter: np.zeros((2, 32), np.float32)}, r"q_proj\.lora_A.*merge_and_unload")
    huge = tensors["model.layers.1.mlp.up_proj.weight"] * 1e9
    refused(tensors | {"model.layers.1.mlp.up_proj.weight": huge}, "block_1/mlp/up/kernel .* float16", dtype="float16")
    refused(tensors, "width is read off the files", width=3)
    config = {key: value for key, value in CASES["llama"]["config"].items() if key != "intermediate_size"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    refused(tensors, r"config\.json: the configuration lacks intermediate_size")
    (tmp_path / "config.json").unlink()
    refused(tensors, "names of no known family")  # of vision: nothing speaks of tokens


def test_files_are_read_in_the_type_and_the_place_that_is_asked_for(folder_of, loaded, tmp_path):
    """Several files are one; weights of another model beside their index are refused."""
    model, params = loaded("llama")
    mesh = jax.make_mesh((len(jax.devices()),), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    shapes = {}
    half, halves = pretrained.load(
        folder_of("llama"),
        dtype="bfloat16",
        sharding=lambda path, shape: shapes.setdefault(path, (shape, everywhere))[1],
    )
    assert (half.block.dtype, half.block.param_dtype) == ("bfloat16", "bfloat16")
    assert {path: shape for path, (shape, _) in shapes.items()} == {p: x.shape for p, x in paths_of(params).items()}
    for path, leaf in paths_of(halves).items():
        assert leaf.sharding == everywhere
        np.testing.assert_array_equal(leaf, paths_of(params)[path].astype("bfloat16"))
    pretrained.save(tmp_path, model, params)
    pretrained.save(tmp_path, half, halves, shard_bytes=9000, config=dict(eos_token_id=7))
    files = sorted(path.name for path in tmp_path.iterdir())
    assert (files[0], files[-1]) == ("config.json", "model.safetensors.index.json")
    assert len(files) > 4
    assert json.loads((tmp_path / "config.json").read_text())["eos_token_id"] == 7
    assert_same(halves, pretrained.load(tmp_path, sharding=everywhere)[1])
    stray, index = tmp_path / "model.safetensors", tmp_path / "model.safetensors.index.json"
    with_tensors(tmp_path, {"other": np.zeros(1, np.float32)})
    with pytest.raises(ValueError, match=r"holds model.safetensors and model.safetensors.index.json.*remove"):
        pretrained.load(tmp_path)
    index.write_text(json.dumps({"weight_map": dict.fromkeys(weights_of("llama"), stray.name)}))
    assert_same(params, pretrained.load(with_tensors(tmp_path, weights_of("llama")))[1])  # the index is of that file


_ON_DEVICES = """
import sys, jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from posjax import pretrained
from posjax.pretrained.parameters import paths_of
mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
split = lambda path, shape: NamedSharding(mesh, P("x") if shape[0] % 4 == 0 else P())
model, params = pretrained.load(sys.argv[1], sharding=split)
_, whole = pretrained.load(sys.argv[1])
for path, leaf in paths_of(params).items():
    shards = leaf.addressable_shards
    assert len(shards) == 4 and shards[0].data.size == leaf.size // (4 if leaf.shape[0] % 4 == 0 else 1), path
    assert np.array_equal(leaf, paths_of(whole)[path]), path
pretrained.save(sys.argv[2], model, params)
"""


@pytest.mark.slow
def test_parameters_lie_on_the_devices_that_are_asked_for(folder_of, tmp_path):
    """Each of four devices gets its quarter; sharded parameters are saved whole."""
    flags = {"JAX_NUM_CPU_DEVICES": "4", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", _ON_DEVICES, str(folder_of("llama")), str(tmp_path)]
    done = subprocess.run(command, env=os.environ | flags, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    held, was = safetensors.numpy.load_file(tmp_path / "model.safetensors"), weights_of("llama")
    assert all(np.array_equal(held[name], was[name]) for name in held.keys() | was.keys())


def test_other_models_are_not_saved(loaded, tmp_path):
    """One line names the formats and what differs from the nearer one."""

    def refused(message, model, params=None, path=tmp_path, **options):
        if params is None:
            params = jax.eval_shape(lambda: model.init(jax.random.key(0), *model.example()))
        with pytest.raises(ValueError, match=message) as told:
            pretrained.save(path, model, params, **options)
        assert "\n" not in str(told.value)

    sizes = dict(width=16, depth=2, num_heads=2, length=8, vocab_size=11)
    plain = Decoder.from_config(sizes, encoding="learned", mlp="relu", norm_bias=False, embedding_scale=1.0)
    refused("Llama and GPT-2 .* timm's ViT; .* 'gpt2', .*: norm_bias is False in this model and True", plain)
    refused(r"'llama', .*not t5\(\)", plain.clone(encoding="t5").with_fields(norm="rms"))
    refused("timm's ViT; this Encoder is none", Encoder.from_config(sizes, encoding="learned"))
    model, params = loaded("llama")
    refused("key 'sliding' ", model, params, config=dict(sliding=3))
    refused("saved as a folder", model, params, tmp_path / "model.safetensors")
    refused(r"head/kernel is \(32, \d+\) in the parameters and None", model.clone(tied_embedding=True), params)
