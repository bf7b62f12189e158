"""Pretrained weights beside timm and transformers: tests/goldens/make_pretrained.py made the logits and says how."""

import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest
import safetensors.numpy
from goldens.pretrained_cases import CASES, FILE, SPEC, asked, full_size, recommended, weights_of, written
from goldens.pretrained_weights import images

from posjax import pretrained
from posjax.pretrained.files import WeightsFile
from posjax.pretrained.parameters import paths_of
from posjax.pretrained.vision.loading import describe_file, parameters
from posjax.pretrained.vision.origin import Hints

QUICK = ["timm rope_mixed_ape", "transformers dinov2_reg"]
FULL = [
    "vit_base_patch16_224", "vit_huge_patch14_224", "deit_small_distilled_patch16_224", "deit3_small_patch16_224",
    "vit_small_patch14_reg4_dinov2", "vit_giant_patch14_dinov2", "vit_small_patch16_dinov3",
    "vit_huge_plus_patch16_dinov3", "vit_7b_patch16_dinov3", "vit_small_patch16_dinov3_qkvb", "vit_base_r50_s16_224",
    "vit_tiny_r_s16_p8_224", "vit_small_r26_s32_224", "vit_so400m_patch14_siglip_224", "vit_betwixt_patch16_reg4_gap_256",
    "vit_giantopt_patch16_siglip_256", "eva02_tiny_patch14_336", "eva02_base_patch14_448", "eva02_large_patch14_224",
    "eva02_enormous_patch14_clip_224", "vit_small_patch16_rope_mixed_224", "vit_base_patch16_rope_mixed_ape_224",
    "vit_base_patch16_gap_224", "vit_giant_patch16_lingbot",
]  # fmt: skip
SMALL = ("vit_base_patch16_224", "deit_small_distilled", "dinov3_qkvb", "vit_tiny_r_s16")


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=[] if " ".join(c).startswith(tuple(QUICK)) else pytest.mark.slow) for c in CASES],
    ids=" ".join,
)
def test_logits_are_theirs_at_another_size(case, tmp_path):
    name, spelling = case
    key = name if spelling == "safetensors" else f"{name} {spelling}"
    size = next(golden.rsplit(" ", 1)[1] for golden in reversed(list(FILE)) if golden.rsplit(" ", 1)[0] == key)
    height, width = map(int, size.split("x"))
    model, params = pretrained.load(written(*case, tmp_path), image_size=(height, width), **asked(name))
    logits = jax.jit(model.apply)(params, images(height, width), model.sites(height, width))
    theirs = FILE[f"{key} {size}"]
    assert np.abs(theirs).max() > 0.5
    np.testing.assert_allclose(logits, theirs, rtol=0, atol=5e-5 if "hybrid" in name else 1e-5)


def full_size_source(name):
    """Reads timm's names and shapes, and follows the message where the encoding must be given."""
    heads, shapes = full_size(name)
    ones = {tensor: np.broadcast_to(np.float32(1), shape) for tensor, shape in shapes.items()}
    weights = WeightsFile(Path(f"{name}.safetensors"), shapes, ones.__getitem__, {})
    weights.config = {"architecture": name}
    try:
        return heads, ones, describe_file(weights, Hints())
    except ValueError as error:
        if "give encoding=" not in str(error):
            raise
        return heads, ones, describe_file(weights, Hints(encoding=recommended(name, str(error))))


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in SMALL else pytest.mark.thorough) for n in FULL]
)
def test_every_tensor_of_a_full_size_model_has_its_place(name):
    heads, ones, source = full_size_source(name)
    params = paths_of(parameters(source, ones)[0])
    parts = ("rows", "qkv/bias")  # a file may hold a part of it
    read = {path: int(leaf.sum() if path.endswith(parts) else leaf.flat[0]) for path, leaf in params.items()}
    read |= {path: leaf.size for path, leaf in params.items() if not path.endswith(parts) and read[path]}
    assert sum(read.values()) == sum(one.size for one in ones.values())
    zeros = {path.split("/", 2)[2] for path, number in read.items() if not number}
    assert zeros <= {"attention/qkv/bias"}
    assert source.model.image_size in [(size, size) for size in (224, 256, 336, 448, 518)]
    assert source.model.block.num_heads == heads


# Their other tensors are refused when parameters are read: no bias of patches or norms, norms of torch's BatchNorm.
REFUSED = r"aimv2_|.*_radio_|vit_pe_|.*_sapiens2|.*_resnet\d+d_"


@pytest.mark.slow  # 260 models
def test_the_heads_of_timms_models_are_known_by_their_names():
    """Each model is refused or has timm's heads, without the warning that they were guessed."""
    known, refused = 0, 0
    for name in SPEC["full"]:
        if re.match(REFUSED, name):
            continue
        try:
            heads, _, source = full_size_source(name)
        except ValueError:
            refused += 1
        else:
            known += 1
            assert (name, source.model.block.num_heads) == (name, heads)
    assert known > 170 > 50 > refused


@pytest.mark.parametrize("spelling", ["state_dict", "authors", "authors, registers"])
def test_names_in_memory_and_the_authors_names_are_read_too(spelling, tmp_path):
    """transformers 5 renames when it saves; DINOv2's authors have names that timm changed."""
    case, renames, method = {
        "state_dict": (
            "transformers dinov2_reg",
            {"attention.attention.query": "attention.q_proj", "attention.output.dense": "attention.o_proj"},
            "torch_bicubic_antialias",
        ),
        "authors": ("timm dinov2_giant", {"mlp.fc1": "mlp.w12", "mlp.fc2": "mlp.w3"}, "dinov2"),
        "authors, registers": ("timm dinov2_reg", {"reg_token": "register_tokens"}, "torch_bicubic_antialias"),
    }[spelling]
    tensors = weights_of(case)
    one, params = pretrained.load(written(case, "safetensors", tmp_path), **asked(case))
    for old, new in renames.items():
        tensors = {name.replace(old, new): array for name, array in tensors.items()}
    if spelling.startswith("authors"):
        tensors["mask_token"] = np.zeros((1, 32), np.float32)
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    other, same = pretrained.load(tmp_path, **asked(case))
    assert other == one
    assert all(np.array_equal(a, b) for a, b in zip(paths_of(params).values(), paths_of(same).values(), strict=True))
    assert pretrained.info(tmp_path, **asked(case)).method == method


def test_a_configuration_says_how_pixels_are_scaled_and_what_classes_are_called(tmp_path):
    path = written("timm vit", "safetensors", tmp_path)
    told = pretrained.info(path, num_heads=2)
    assert (told.mean, told.std, told.labels) == ((0.4, 0.5, 0.6), (0.2, 0.3, 0.4), None)
    assert (told.model.block.width, told.model.depth, told.model.num_classes, told.model.block.mlp) == (
        32,
        2,
        5,
        "gelu_exact",
    )
    path = written("transformers dinov2", "safetensors", tmp_path)
    config = json.loads((path / "config.json").read_text())
    config["id2label"] = {key: f"LABEL_{key}" for key in "40213"}
    (path / "config.json").write_text(json.dumps(config))
    (path / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0.1, 0.2, 0.3], "image_std": [1, 1, 1]}))
    told = pretrained.info(path)
    assert told.mean == (0.1, 0.2, 0.3)
    assert told.labels == tuple(f"LABEL_{i}" for i in range(5))


def test_heads_registers_and_pooling_may_be_chosen(tmp_path):
    path = written("transformers dinov3", "safetensors", tmp_path)
    model, params = pretrained.load(path)
    assert (model.pooling, model.num_registers) == ("cls", 2)
    prefix = np.concatenate([params["params"][name] for name in ("cls", "registers")], axis=-2)
    for pooling in ("none", "mean"):
        tokens, same = pretrained.load(path, pooling=pooling)
        assert (tokens.pooling, tokens.num_registers) == (pooling, 3)
        np.testing.assert_array_equal(same["params"]["registers"], prefix)
    model, params = pretrained.load(written("transformers vit_model", "safetensors", tmp_path), pre_logits=None)
    assert (model.pre_logits, "pre_logits" in params["params"]) == (None, False)
    model, params = pretrained.load(written("transformers vit", "safetensors", tmp_path), num_classes=0)
    assert (model.num_classes, "head" in params["params"]) == (0, False)
