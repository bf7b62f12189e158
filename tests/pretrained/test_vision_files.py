"""`load` reads the files of `save`; unreadable files are refused with the mend."""

import json
import re
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest
import safetensors.numpy
from goldens.language_cases import assert_same
from goldens.pretrained_cases import SPEC, asked, recommended, weights_of, written
from goldens.pretrained_weights import google_shapes, google_tensors, made

from posjax import pretrained
from posjax.models import ViT
from posjax.pretrained.entries import Entry, contiguous, read_entries, write_entries
from posjax.pretrained.files import WeightsFile
from posjax.pretrained.parameters import expected_params
from posjax.pretrained.vision.loading import describe_file
from posjax.pretrained.vision.origin import Hints

SMALL = dict(num_classes=3, image_size=(8, 12), patch_size=4, width=16, depth=2, num_heads=2)
GOOGLE = google_shapes(16, 1, 2, 32, 4, 2, head=3)


def of(model, channels=3):
    """Parameters with random numbers everywhere."""
    draw = np.random.RandomState(0)
    return jax.tree.map(
        lambda leaf: draw.standard_normal(leaf.shape).astype(leaf.dtype), expected_params(model, channels)
    )


TIMM = dict(num_registers=2, layer_scale=0.1, mlp="swiglu", mlp_bias=True, norm_epsilon=1e-3, distillation_token=True)
OWN = dict(encoding=("learned", "beit()"), pre_logits=5, num_kv_heads=1, mlp_norm=True, placement="after")


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        (TIMM, "timm"),
        (dict(pooling="map", num_heads=4, resnet=(1,), resnet_width=32, image_size=(16, 32), patch_size=2), "timm"),
        (dict(pooling="mean", norm_after_pooling=True, num_registers=3), "timm"),
        (OWN, "posjax"),
        (dict(pooling="none", encoding="dinov3(base=50)", layer_scale=1.0), "posjax"),
    ],
    ids=str,
)
def test_what_is_saved_comes_back_bit_by_bit(fields, names, tmp_path):
    model = ViT.from_config(SMALL | fields)
    params = of(model, channels=1)
    path = tmp_path / "new" / "vit.safetensors"
    pretrained.save(path, model, params)
    again, loaded = pretrained.load(path)
    assert_same(params, loaded)
    assert again == model.clone(encoding=again.encoding)
    assert pretrained.info(path).origin == f"posjax ({names} names)"


def test_what_is_saved_is_resized_pooled_and_scaled_as_asked(tmp_path):
    """A prefix token that is no longer read stays as a register, under our own names too."""
    path = tmp_path / "vit.safetensors"
    model = ViT.from_config(SMALL | dict(encoding="learned + rope(base=100)", num_registers=1, depth=1))
    params = of(model)
    pretrained.save(path, model, params, mean=(0.1, 0.2, 0.3), std=(1, 1, 1))
    info = pretrained.info(path, pooling="mean", dtype="bfloat16")
    assert (info.mean, info.std, info.method) == ((0.1, 0.2, 0.3), (1.0, 1.0, 1.0), "torch_bicubic")
    assert (info.model.num_registers, info.model.block.dtype) == (2, "bfloat16")
    tokens, same = pretrained.load(path, pooling="none", image_size=16)
    assert tokens.image_size == (16, 16)
    prefix = [params["params"][name] for name in ("cls", "registers")]
    np.testing.assert_array_equal(same["params"]["registers"], np.concatenate(prefix))
    with pytest.raises(ValueError, match="a ViT has no field 'poling'; did you mean 'pooling'"):
        pretrained.info(path, poling="mean")
    refused(path, "encoding is .* by the file's own header, not none", encoding="none")
    refused(path, "num_heads is 2 by the file's own header, not 4", num_heads=4)
    refused(path, r"grid is \(2, 3\) by the file's own header, not \(3, 2\)", grid=(3, 2))
    with pytest.raises(ValueError, match=r"head/bias is \(3,\) in the parameters and \(4,\) in the model"):
        pretrained.save(tmp_path / "x.safetensors", model.clone(num_classes=4), params)
    with pytest.raises(ValueError, match=r"saved as \.safetensors"):
        pretrained.save(tmp_path / "x.npz", model, params)


def test_types_and_signs_of_zero_come_back(tmp_path):
    model = ViT.from_config(SMALL, param_dtype=jax.numpy.bfloat16)
    params = of(model)
    qkv = [params["params"]["trunk"][f"block_{layer}"]["attention"]["qkv"] for layer in range(2)]
    qkv[0]["bias"] = np.full((2, 3, 8), -0.0, jax.numpy.bfloat16)
    qkv[1]["bias"] = np.zeros((2, 3, 8), jax.numpy.bfloat16)
    params["params"]["head"]["kernel"][0, 0] = 1e5
    pretrained.save(tmp_path / "vit.safetensors", model, params)
    again, loaded = pretrained.load(tmp_path / "vit.safetensors")
    assert again.block.param_dtype == model.block.param_dtype
    assert_same(params, loaded)
    held = safetensors.numpy.load_file(tmp_path / "vit.safetensors")
    assert {"blocks.0.attn.qkv.bias"} == {name for name in held if name.endswith("qkv.bias")}
    refused(tmp_path / "vit.safetensors", "head/kernel .* too large for float16", param_dtype="float16")


@pytest.mark.slow
@pytest.mark.parametrize("case", ["timm deit_distilled", "timm dinov2_giant", "timm map"])
def test_a_file_of_timms_is_saved_as_it_was(case, tmp_path):
    model, params = pretrained.load(written(case, "safetensors", tmp_path), **asked(case))
    pretrained.save(tmp_path / "again.safetensors", model, params)
    again = safetensors.numpy.load_file(tmp_path / "again.safetensors")
    was = weights_of(case)
    assert again.keys() == was.keys()
    assert all(np.array_equal(again[name], was[name]) for name in was)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_parts_of_a_mapped_file_are_read_from_their_place(dtype, tmp_path):
    arrays = {
        "first": np.arange(7, dtype=dtype),
        "matrix": np.arange(60_000).reshape(600, 100).astype(dtype),
        "number": np.array(3, dtype),
    }
    safetensors.numpy.save_file(arrays, tmp_path / "w.safetensors")
    mapped = WeightsFile.of(tmp_path / "w.safetensors")
    assert isinstance(mapped["matrix"], np.memmap)
    for take in (lambda x: x, lambda x: x[500:], lambda x: x.reshape(60, 1000)[7], np.transpose, lambda x: x[:, :9]):
        np.testing.assert_array_equal(contiguous([take(mapped["matrix"])]), take(arrays["matrix"]))
    np.testing.assert_array_equal(contiguous([mapped["number"]]), arrays["number"])
    joined = np.concatenate([mapped["first"], mapped["first"][2:]])  # a memmap too, though of no file
    np.testing.assert_array_equal(contiguous([joined]), [*arrays["first"], *arrays["first"][2:]])


def test_entries_turn_round():
    entries = [
        Entry("qkv", ("q", "k", "v"), "(s h d) m -> m h d"),
        Entry("table", "rows", "1 t m -> t m", without=(1, 2)),
        Entry("bias", "b", "(h d) -> h d", optional=True),
    ]
    params = {name: made(name, (6, 2, 4)) for name in "qkv"} | {"rows": made("rows", (9, 6)), "b": np.zeros((2, 4))}
    params["rows"][1:3] = 0
    tensors = dict(write_entries(entries, params, {"h": 2}))
    assert {name: array.shape for name, array in tensors.items()} == {"qkv": (24, 6), "table": (1, 7, 6)}
    # torch: [3, heads, head_dim, inputs]
    np.testing.assert_array_equal(tensors["qkv"].reshape(3, 2, 4, 6)[1, 1, 3], params["k"][:, 1, 3])
    back = read_entries(entries, tensors, {path: array.shape for path, array in params.items()}, {"h": 2})
    assert all(np.array_equal(back[path], params[path]) for path in params)
    params["rows"][1] = 1
    assert write_entries(entries, params, {"h": 2}) is None
    waves = Entry("waves", ("w0", "w1"), "a s c -> a c", turned=True)  # only read
    turned = read_entries([waves], {"waves": made("waves", (2, 2, 3))}, {"w0": (2, 3), "w1": (2, 3)}, {})
    np.testing.assert_array_equal(turned["w1"], made("waves", (2, 2, 3))[::-1, 1])


def test_tensors_are_slices_of_one_parameter():
    """Three apart, and one with all three, are the same [6, 2 heads, 3, 4]."""
    apart = Entry(("q", "k", "v"), "qkv", "(h d) m -> m h n d", optional=True)
    together = Entry("packed", "qkv", "(x h d) m -> m h x d")
    params = {"qkv": made("qkv", (6, 2, 3, 4))}
    tensors = dict(write_entries([apart], params, {"h": 2}))
    assert {name: array.shape for name, array in tensors.items()} == dict.fromkeys("qkv", (8, 6))
    np.testing.assert_array_equal(tensors["k"][4:], params["qkv"][:, 1, 1].T)
    packed = dict(write_entries([together], params, {"h": 2}))
    np.testing.assert_array_equal(packed["packed"], np.concatenate([tensors[name] for name in "qkv"]))
    for entries, given in (([apart], tensors), ([together], packed), ([together, apart], tensors)):
        np.testing.assert_array_equal(
            read_entries(entries, given, {"qkv": (6, 2, 3, 4)}, {"h": 2})["qkv"], params["qkv"]
        )
    some = read_entries([apart], {"q": tensors["q"], "v": tensors["v"]}, {"qkv": (6, 2, 3, 4)}, {"h": 2})["qkv"]
    np.testing.assert_array_equal(some, params["qkv"] * [[1], [0], [1]])


def refused(path, match, **options):
    with pytest.raises(ValueError, match=match):
        pretrained.load(path, **options)


def npz(tmp_path, shapes=GOOGLE, **more):
    path = tmp_path / "weights.npz"
    np.savez(path, **google_tensors(shapes, "old"), **more)
    return path


def test_tensors_left_over_missing_or_of_another_shape_are_named(tmp_path):
    refused(npz(tmp_path, **{"Transformer/extra": np.zeros(2)}), "no place for: Transformer/extra")
    lacking = {name: shape for name, shape in GOOGLE.items() if "encoder_norm/scale" not in name}
    refused(npz(tmp_path, lacking), "the file lacks Transformer/encoder_norm/scale; did you mean")
    refused(npz(tmp_path, {n: s for n, s in GOOGLE.items() if "Dense_0/bias" not in n}), "lacks .*Dense_0/bias")
    refused(npz(tmp_path, GOOGLE | {"Transformer/encoder_norm/bias": (7,)}), r"trunk/norm/bias is \[16\].*gives \[7\]")
    pretrained.load(npz(tmp_path, **{"opt/state/step": np.zeros(1)}))  # named as of no use


def test_a_table_without_a_square_is_not_guessed(tmp_path):
    path = npz(tmp_path, GOOGLE | {"pos_embedding": (1, 7, 16)})
    refused(path, r"7 rows, 0 or 1 of them of prefix tokens, .*grid=\(height, width\) may be .*\(2, 3\).*, or turned")
    model, params = pretrained.load(path, grid=(2, 3))
    assert (model.image_size, params["params"]["trunk"]["encoding"].extent) == ((8, 12), (2, 3))
    refused(path, "7 rows is not 2 x 4", grid=(2, 4))
    # 196 = 14 x 14 = 7 x 28, and 197 is that and a class token.
    big = {"pos_embedding": (1, 197, 16)}
    assert pretrained.info(npz(tmp_path, GOOGLE | big)).model.image_size == (56, 56)
    assert pretrained.info(npz(tmp_path, GOOGLE | big), grid=(7, 28)).model.image_size == (28, 112)


def test_what_the_caller_says_is_checked(tmp_path):
    path = npz(tmp_path)
    refused(path, "head has 3 classes, not 10: num_classes=0", num_classes=10)
    headless = {name: shape for name, shape in GOOGLE.items() if name != "cls"} | {"pos_embedding": (1, 4, 16)}
    refused(npz(tmp_path, headless), "no class token, which pooling='cls' reads", pooling="cls")
    path = npz(tmp_path)
    assert pretrained.load(path, pooling="none")[0].num_registers == 1
    refused(path, "width is read off the file", width=32)
    refused(path, "a ViT has no field 'droppath'; did you mean 'drop_path'", droppath=0.1)
    refused(path, "has a position table, hence the encoding 'learned'", encoding="rope")
    refused(path, "no resize is named 'google'", method="google", image_size=16)
    folder = tmp_path / "timm"
    folder.mkdir()
    refused(written("timm vit", "safetensors", folder), "width of 32 .* give num_heads=")
    refused(written("timm rope", "safetensors", folder), "give encoding=.*axial_rope", num_heads=2)
    refused(written("timm rope_ape", "safetensors", folder), r"give encoding=.*learned \+ axial_rope", num_heads=2)


@pytest.mark.parametrize(
    ("case", "name"),
    [
        ("timm rope", "vit_base_patch16_rope_224"),
        ("timm rope_ape", "vit_small_patch16_rope_ape_224"),
        ("timm rope_reg_gap", "vit_medium_patch16_rope_reg1_gap_256"),
        ("timm eva02_large", "eva02_base_patch14_448"),
    ],
)
def test_every_encoding_that_a_message_recommends_is_the_models(case, name, tmp_path):
    """With the encoding of `asked` each has timm's logits, see test_vision.py; all that are recommended are taken."""
    folder = configured(tmp_path, case, {})
    with pytest.raises(ValueError, match="give encoding=") as told:
        pretrained.info(folder, num_heads=2)
    assert recommended(name, str(told.value)) == asked(case)["encoding"]
    for spec in re.findall(r'"([^"]+)"', str(told.value)):
        assert pretrained.info(folder, num_heads=2, encoding=spec).model.encoding == spec
    named = configured(tmp_path, case, {"architecture": name})
    assert pretrained.info(named, num_heads=2).model.encoding == asked(case)["encoding"]


def test_eva_with_norms_inside_its_attention_is_refused_by_their_name(tmp_path):
    tensors = weights_of("timm eva02_large") | {"blocks.0.attn.norm.weight": np.zeros(2, np.float32)}
    message = r"eva02_\*_clip_\*, beit3_\*.* blocks.0.attn.norm.weight"
    refused(configured(tmp_path, "timm eva02_large", {}, tensors), message, num_heads=2)


def test_frequencies_of_a_file_are_no_other_encodings(tmp_path):
    """They tell the heads, too."""
    folder = written("timm rope_mixed_ape", "safetensors", tmp_path)
    assert pretrained.info(folder).model.block.num_heads == 2
    refused(folder, "has frequencies of rope_mixed, hence the encoding .*, not rope", encoding="rope")


def configured(folder, case, config, tensors=None):
    """A folder of weights whose configuration says this."""
    safetensors.numpy.save_file(weights_of(case) if tensors is None else tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("case", "config", "message"),
    [
        ("timm vit", {"model_args": {"act_layer": "quick_gelu"}}, "activation is 'quick_gelu'"),
        ("timm vit", {"architecture": "vit_base_patch16_clip_quickgelu_224"}, "activation is 'quick_gelu'"),
        ("timm vit", {"global_pool": "avgmax"}, "global_pool is 'avgmax': give pooling="),
        ("timm vit", {"global_pool": "avg", "model_args": {"pool_include_prefix": True}}, "pools prefix tokens too"),
        ("transformers vit", {"hidden_act": "relu"}, "hidden_act is 'relu'"),
        ("transformers vit_model", {"pooler_act": "relu"}, "pooler_act is 'relu'"),
        ("transformers dinov3_gated", {"hidden_act": "gelu"}, "gated MLP has hidden_act 'gelu'"),
    ],
)
def test_what_a_configuration_says_and_is_not_known_is_refused(case, config, message, tmp_path):
    refused(configured(tmp_path, case, config), message, num_heads=2)


@pytest.mark.parametrize(
    ("config", "mlp"),
    [
        ({"model_args": {"act_layer": "gelu_tanh"}}, "gelu"),
        ({"architecture": "vit_base_patch32_siglip_256"}, "gelu"),
        ({"architecture": "vit_large_patch16_siglip_gap_512"}, "gelu"),
        ({"architecture": "vit_so400m_patch14_siglip_224"}, "gelu_exact"),
    ],
)
def test_the_activation_of_timms_models_by_name(config, mlp, tmp_path):
    """SigLIP 2's later sizes have the tanh form, which only timm's functions say."""
    assert pretrained.info(configured(tmp_path, "timm vit", config), num_heads=2).model.block.mlp == mlp


@pytest.mark.parametrize("case", ["timm vit", "timm rope_mixed", "transformers dinov3"])
def test_heads_that_nothing_tells_are_guessed_with_a_warning(case):
    """A model of 384 channels has six heads, or twelve as MoCo v3's."""
    small = SPEC["cases"][case]["names"]
    shapes = {name: tuple(12 * n if n % 32 == 0 else n for n in shape) for name, shape in small.items()}
    weights = WeightsFile(Path("model.safetensors"), shapes, shapes.__getitem__, {})
    encoding = asked(case).get("encoding")

    def heads(config, told=None):
        weights.config = config
        return describe_file(weights, Hints(num_heads=told, encoding=encoding)).model.block.num_heads

    if "rope.freqs" in shapes:  # they show the heads
        assert heads({}) == 2
        return
    with pytest.warns(UserWarning, match="6 heads of 64 channels were assumed.*num_heads=.*num_attention_heads"):
        assert heads({"architecture": "mine"}) == 6
    with warnings.catch_warnings(action="error"):
        assert heads({}, 12) == 12
        for told in ({"num_attention_heads": 12}, {"model_args": {"num_heads": 12}}):
            assert heads({"architecture": "vit_small_patch16_224"} | told) == 12
        assert heads({"architecture": "mocov3_vit_small"}) == 12
        assert heads({"architecture": "vit_small_patch16_224"}) == 6


def test_registers_without_a_class_token_are_not_dinov3s(tmp_path):
    """timm's vit_*_rope_reg*_gap_*: rotary by other coordinates, and norms of another epsilon."""
    tensors = {name: array for name, array in weights_of("timm dinov3").items() if name != "cls_token"}
    folder = configured(tmp_path, "timm dinov3", {"global_pool": "avg"}, tensors)
    refused(folder, "neither a position table nor the class token and registers of DINOv3", num_heads=2)
    model = pretrained.info(folder, num_heads=2, encoding="axial_rope").model
    assert (model.num_registers, model.pooling, model.block.norm_epsilon) == (2, "mean", 1e-6)


def test_a_model_in_several_files_is_read_by_its_index(tmp_path):
    tensors = weights_of("transformers vit")
    names = sorted(tensors)
    halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, held in halves.items():
        safetensors.numpy.save_file({name: tensors[name] for name in held}, tmp_path / file)
    index = {"weight_map": {name: file for file, held in halves.items() for name in held}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    model, params = pretrained.load(tmp_path, num_heads=2)
    np.testing.assert_array_equal(params["params"]["trunk"]["norm"]["bias"], tensors["vit.layernorm.bias"])
    index["weight_map"]["more"] = "a.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(tmp_path, "promises more in a.safetensors", num_heads=2)
