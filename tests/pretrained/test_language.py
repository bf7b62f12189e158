"""Language models in transformers' folders: logits of all ways to compute them; saved models come back; unknown
keys and tensors are refused."""

import functools
import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest
import safetensors.numpy
from goldens.language_cases import CASES, assert_same, errors, weights_of, written

from posjax import pretrained
from posjax.describe.explain.turning import model_of
from posjax.models import Decoder
from posjax.pretrained.language import FAMILIES as ALL_FAMILIES
from posjax.pretrained.language import obstacles
from posjax.pretrained.language.families import find_family
from posjax.pretrained.language.family import resolved
from posjax.pretrained.parameters import paths_of
from posjax.training.initial import Start

BOUND = 1e-4  # of the largest logit
FAST = ["gemma2", "gptj", "llama", "llama4 normed"]  # those that most of the parts are in
FAMILIES = {case.split()[0]: case for case in reversed(CASES)}.values()  # one setting of each; the others are thorough

TIED = {CASES[case]["config"]["model_type"]: case for case in CASES if CASES[case]["config"].get("tie_word_embeddings")}


def marks(case):
    return [] if case in FAST else pytest.mark.slow if case in FAMILIES else pytest.mark.thorough


every_case = pytest.mark.parametrize("case", [pytest.param(case, marks=marks(case)) for case in CASES])


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    return functools.cache(lambda case: written(case, tmp_path_factory.mktemp("models") / case.replace(" ", "_")))


@pytest.fixture(scope="module")
def loaded(folder_of):
    return functools.cache(lambda case: pretrained.load(folder_of(case)))


@every_case
def test_logits_are_theirs(case, loaded):
    """Covers one pass beyond the trained length, left padding, and decoding token by token."""
    found = errors(case, *loaded(case))
    assert max(found.values()) < BOUND, found
    assert len(found) >= 2 + ("dynamic" not in loaded(case)[0].encoding)


@every_case
def test_what_is_saved_comes_back(case, loaded, tmp_path):
    """Bit by bit, under the names and in the shapes of transformers."""
    model, params = loaded(case)
    pretrained.save(tmp_path, model, params, family=CASES[case]["config"]["model_type"])
    again, back = pretrained.load(tmp_path)
    assert resolved(again) == resolved(model)
    assert_same(params, back)
    held, was = safetensors.numpy.load_file(tmp_path / "model.safetensors"), weights_of(case)
    assert held.keys() == was.keys()
    assert all(np.array_equal(held[name], was[name]) for name in was)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (dict(quantization_config={"bits": 4}), r"key 'quantization_config' .* is not known here"),
        (dict(rms_norm_epsilon=1e-5), "did you mean 'rms_norm_eps'"),
        (dict(model_type="gemma4_text"), "a 'gemma4_text' is not read: its global layers have heads of another size"),
        (dict(model_type="deepseek_v2"), "a 'deepseek_v2' is not read: its layers of experts are not computed here"),
        (dict(model_type="lama"), "no language model of model_type 'lama' is known; did you mean 'llama'"),
        (dict(hidden_act="mish"), "hidden_act: 'mish' is not computed here"),
        (dict(is_encoder_decoder=True), "is_encoder_decoder=True is not computed here, only False or None"),
        (dict(num_key_value_heads=3), "num_kv_heads 3 does not divide num_heads 4"),
        (
            dict(intermediate_size=48),
            r"mlp/gate/kernel is \[32, 48\] in a model of these sizes, but .*gate_proj.weight",
        ),
        (dict(num_hidden_layers=1), "no place for: model.layers.1.input_layernorm.weight"),
        (dict(num_hidden_layers=3), "lacks model.layers.2"),
        (dict(tie_word_embeddings=True), "lm_head.weight and model.embed_tokens.weight differ"),
    ],
)
def test_what_a_configuration_says_is_computed_or_refused(config, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        pretrained.load(written("llama", tmp_path, **config))


@pytest.mark.parametrize(
    ("case", "config", "message"),
    [
        ("mpt", dict(attn_config={"qk_gn": True}), r"attn_config.qk_gn .* not known .* did you mean 'qk_ln'"),
        ("mpt", dict(expansion_ratio=2), "expansion_ratio=2 is not computed here, only 4"),
        ("gpt2", dict(scale_attn_by_inverse_layer_idx=True), "=True is not computed here, only False"),
        ("gemma3", dict(attn_logit_softcapping=9.0), "attn_logit_softcapping=9.0 is not computed here"),
        ("llama4", dict(moe_layers=[1]), r"moe_layers=\[1\] is not computed here"),
        ("falcon new", dict(parallel_attn=False), "new_decoder_architecture is computed with parallel_attn=True only"),
        ("gpt_oss", dict(swiglu_alpha=1.5), "swiglu_alpha=1.5 is not computed here, only 1.702"),
        ("granite", dict(embedding_multiplier=None), "embedding_multiplier: null is not a number"),
        ("cohere2", dict(use_qk_norm=True), "use_qk_norm=True is not computed here, only False"),
        ("olmo3", dict(rope_parameters=None, rope_theta=1e4), "rope_theta=10000.0 is not heeded by transformers"),
        ("olmo3", dict(rope_parameters={"rope_type": "default"}), r"rope_parameters={.*} is not heeded by"),
        ("phi", dict(qk_layernorm=True), "qk_layernorm=True is not computed here, only False"),
        ("deepseek_v3", dict(first_k_dense_replace=1), "first_k_dense_replace=1 of num_hidden_layers=2: .* experts"),
        ("deepseek_v3", dict(rope_parameters={"rope_type": "yarn", "factor": "4"}), "rope_parameters: factor is '4'"),
        ("deepseek_v3", dict(v_head_dim=4), "qk_nope_head_dim=6 and v_head_dim=4 are read where they are equal"),
        ("deepseek_v3", dict(num_key_value_heads=2), "num_key_value_heads=2 is not computed here, only 4"),
        ("deepseek_v3", dict(kv_lora_rank=None), "the configuration lacks kv_lora_rank"),
        ("deepseek_v3", dict(rms_norm_eps=1e-5), "rms_norm_eps=1e-05 is not computed here, only 1e-06"),
        ("gptj", dict(hidden_size=16), "both n_embd=32 and, its older name, hidden_size=16"),
    ],
)
def test_what_a_family_does_not_compute_is_refused(case, config, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        pretrained.load(written(case, tmp_path, **config))


@pytest.mark.parametrize("case", FAMILIES)
def test_keys_that_say_nothing_of_numbers_are_passed_over(case):
    """Every family ignores keys that begin with "_", bookkeeping, and keys that the caller names; none changes numbers."""
    config = CASES[case]["config"]
    family = ALL_FAMILIES[config["model_type"]]
    plain = family.made(config)
    kept = {
        "_model_name_or_path": "x",
        "_foo": [1],
        "unsloth_version": "1",
        "gradient_checkpointing": True,
        "tags": ["x"],
    }
    assert family.made(config | kept) == plain
    own = config | {"condition_on_chain": True, "chain": 3}
    with pytest.raises(
        ValueError, match=r"condition_on_chain.*ignore=\['condition_on_chain'\].*--ignore=condition_on_chain"
    ):
        family.made(own)
    assert family.made(own, ignore=["condition_on_chain", "chain"]) == plain
    for name in sorted({*family.keys, *family.encoding_keys, *family.derived_keys, *family.plain} & config.keys()):
        with pytest.raises(ValueError, match=f"ignore: {name} .* is known to change numbers"):
            family.made(config, ignore=[name])
    with pytest.raises(ValueError, match="has no key 'condition_on_chian'; did you mean 'condition_on_chain'"):
        family.made(own, ignore=["condition_on_chian"])


def test_a_folder_is_read_without_keys_that_the_caller_names(loaded, tmp_path):
    written("llama", tmp_path, laboratory="x")
    with pytest.raises(ValueError, match=r"config.json: .*'laboratory' \(= 'x'\).*ignore=\['laboratory'\]"):
        pretrained.load(tmp_path)
    model, params = pretrained.load(tmp_path, ignore=["laboratory"])
    assert model == loaded("llama")[0]
    assert_same(params, loaded("llama")[1])
    assert model_of(tmp_path, ["laboratory"]).encoding == model.encoding
    assert Start(tmp_path, "laboratory").model == model


def test_weights_of_another_model_beside_an_index_are_refused(loaded, tmp_path):
    model, params = loaded("llama")
    pretrained.save(tmp_path, model, params, shard_bytes=9000)
    stray, index = tmp_path / "model.safetensors", tmp_path / "model.safetensors.index.json"
    safetensors.numpy.save_file({"other": np.zeros(1, np.float32)}, stray)
    with pytest.raises(ValueError, match=r"holds model.safetensors and model.safetensors.index.json.*remove"):
        pretrained.load(tmp_path)
    assert_same(params, pretrained.load(index)[1])
    index.write_text(json.dumps({"weight_map": dict.fromkeys(weights_of("llama"), stray.name)}))
    safetensors.numpy.save_file(weights_of("llama"), stray)
    assert_same(params, pretrained.load(tmp_path)[1])  # the index is of that file


@pytest.mark.parametrize(
    "wrapper", ["module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.", "base_model.model."]
)
def test_names_of_wrapped_models_are_read(wrapper, loaded, tmp_path):
    written("llama", tmp_path)
    tensors = {wrapper + name: tensor for name, tensor in weights_of("llama").items()}
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    assert_same(loaded("llama")[1], pretrained.load(tmp_path)[1])


def test_adapters_of_peft_are_told_apart(tmp_path):
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    safetensors.numpy.save_file({name: np.zeros((2, 32), np.float32)}, written("llama", tmp_path) / "model.safetensors")
    with pytest.raises(ValueError, match=r"holds PEFT's adapters .*q_proj.lora_A.*: save peft_model.merge_and_unload"):
        pretrained.load(tmp_path)


def test_a_weight_that_float16_does_not_hold_is_refused(tmp_path):
    tensors = weights_of("llama")
    tensors["model.layers.1.mlp.up_proj.weight"][0, 0] = -1e5
    safetensors.numpy.save_file(tensors, written("llama", tmp_path) / "model.safetensors")
    with pytest.raises(ValueError, match=r"block_1/mlp/up/kernel has 1e\+05, which float16 does not hold"):
        pretrained.load(tmp_path, dtype="float16")


@pytest.mark.parametrize("case", TIED.values())
def test_a_tied_head_alone_is_the_token_embedding(case, tmp_path):
    """Covers every family of decoders that ties them; the file's type is the head's."""
    family = find_family(CASES[case]["config"])
    model = family.made(CASES[case]["config"])
    embedding = next(e.names[0] for e in family.entries(model) if "token_embedding/embedding" in e.paths)
    tensors = {name: tensor.astype("bfloat16") for name, tensor in weights_of(case).items()}
    table = tensors.pop(embedding)
    safetensors.numpy.save_file(tensors | {family.tied: table}, written(case, tmp_path) / "model.safetensors")
    model, params = pretrained.load(tmp_path)
    assert model.block.dtype == "bfloat16"
    np.testing.assert_array_equal(params["params"]["token_embedding"]["embedding"], table)


def test_a_head_is_its_copy_bit_by_bit(tmp_path):
    """NaN is no other number than the same NaN, and the message says so of other ones only."""
    written("gpt2", tmp_path)
    tensors = weights_of("gpt2")
    tensors["transformer.wte.weight"] = tensors["transformer.wte.weight"].copy()
    tensors["transformer.wte.weight"][0] = np.nan
    safetensors.numpy.save_file(
        tensors | {"lm_head.weight": tensors["transformer.wte.weight"]}, tmp_path / "model.safetensors"
    )
    assert np.isnan(pretrained.load(tmp_path)[1]["params"]["token_embedding"]["embedding"][0]).all()
    other = tensors["transformer.wte.weight"] + 1
    safetensors.numpy.save_file(tensors | {"lm_head.weight": other}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="differ"):
        pretrained.load(tmp_path)


@pytest.mark.parametrize("case", [case for case in FAMILIES if not case.startswith(("gptj", "phi"))])
def test_a_file_without_its_head_says_which_key_to_set(case, tmp_path):
    """Covers every family of decoders that may have an untied head."""
    written(case, tmp_path, tie_word_embeddings=False)
    names = {name: tensor for name, tensor in weights_of(case).items() if not name.startswith(("lm_head", "embed_out"))}
    safetensors.numpy.save_file(names, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"holds no head, \w+.weight, .*set tie_word_embeddings to true"):
        pretrained.load(tmp_path)


def test_tensors_and_keys_that_are_missing_or_left_over_are_named(tmp_path):
    written("llama", tmp_path)
    tensors = weights_of("llama")
    lacking = {name: tensor for name, tensor in tensors.items() if name != "model.layers.1.mlp.up_proj.weight"}
    safetensors.numpy.save_file(lacking, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"lacks model.layers.1.mlp.up_proj.weight"):
        pretrained.load(tmp_path)
    more = tensors | {"model.layers.1.mlp.router.weight": np.zeros((4, 32), np.float32)}
    safetensors.numpy.save_file(more, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"1 tensors .* no place for: model.layers.1.mlp.router.weight"):
        pretrained.load(tmp_path)
    config = {key: value for key, value in CASES["llama"]["config"].items() if key != "intermediate_size"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"config\.json: the configuration lacks intermediate_size"):
        pretrained.load(tmp_path)
    with pytest.raises(ValueError, match="width is read off the files"):
        pretrained.load(tmp_path, width=3)
    (tmp_path / "config.json").unlink()
    with pytest.raises(ValueError, match="names of no known family"):  # of vision: nothing speaks of tokens
        pretrained.load(tmp_path)


def test_files_are_read_in_the_type_and_the_place_that_is_asked_for(folder_of, loaded, tmp_path):
    """Several files are one; a head that is the embedding may be spelled out; a headless file has no prefix."""
    model, params = loaded("llama")
    mesh = jax.make_mesh((len(jax.devices()),), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    half, halves = pretrained.load(folder_of("llama"), dtype="bfloat16", sharding=everywhere)
    assert (half.block.dtype, half.block.param_dtype) == ("bfloat16", "bfloat16")
    for path, leaf in paths_of(halves).items():
        assert leaf.sharding == everywhere
        np.testing.assert_array_equal(leaf, paths_of(params)[path].astype("bfloat16"))
    asked = {}
    pretrained.load(folder_of("llama"), sharding=lambda path, shape: asked.setdefault(path, (shape, everywhere))[1])
    assert {path: shape for path, (shape, _) in asked.items()} == {p: x.shape for p, x in paths_of(params).items()}
    pretrained.save(tmp_path, model, params)
    pretrained.save(tmp_path, half, halves, shard_bytes=9000, config=dict(eos_token_id=7))
    files = sorted(path.name for path in tmp_path.iterdir())
    assert (files[0], files[-1]) == ("config.json", "model.safetensors.index.json")
    assert len(files) > 4
    assert json.loads((tmp_path / "config.json").read_text())["eos_token_id"] == 7
    again, back = pretrained.load(tmp_path)
    assert again.clone(length=half.length) == half
    assert_same(halves, back)
    with pytest.raises(ValueError, match=r"key 'sliding' .* is not known here"):
        pretrained.save(tmp_path, half, halves, config=dict(sliding=3))


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
    assert held.keys() == was.keys()
    assert all(np.array_equal(held[name], was[name]) for name in was)


def test_models_that_transformers_has_not_are_not_saved(tmp_path):
    sizes = dict(width=16, depth=2, num_heads=2, length=8)
    model = Decoder.from_config(sizes, vocab_size=11, encoding="t5")
    params = jax.eval_shape(lambda: model.init(jax.random.key(0), *model.example()))
    with pytest.raises(ValueError, match=r"no such model; nearest is '\w+', against which stands: .*t5") as raised:
        pretrained.save(tmp_path, model, params)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 400
    against = obstacles(model)
    assert len(against) == sum(family.model is Decoder for family in ALL_FAMILIES.values())
    assert any("'gelu'" in reason for reason in against["llama"])
    near = obstacles(
        Decoder.from_config(sizes, vocab_size=11, encoding="learned", mlp="relu", norm_bias=False, embedding_scale=1.0)
    )
    assert next(iter(near)) == "gpt2"
    assert near["gpt2"] == ["norm_bias is False in this model and True in one of that family"]
    with pytest.raises(ValueError, match="did you mean 'llama'"):
        pretrained.save(tmp_path, model, params, family="lama")
    with pytest.raises(ValueError, match="saved as a folder"):
        pretrained.save(tmp_path / "model.safetensors", model, params)
    with pytest.raises(ValueError, match=r"head/kernel is None in the parameters and \(16, 11\) in the model"):
        pretrained.save(tmp_path, model.clone(tied_embedding=False), params)
