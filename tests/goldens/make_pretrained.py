"""Golden logits of pretrained ViTs as timm and transformers compute them, from weights made by name.

pretrained.npz holds, for small models of the published classes, the names and shapes of the tensors in the file that
timm or transformers saved, its configuration, and logits at two sizes; and heads, names and
shapes of all full-size models of four modules of timm's.
Google's .npz files have no writer without TensorFlow: they are written here under the published names and read by timm's
own loader, whose model then runs with Google's GELU and constants and tables resized by scipy.
"""

import functools
import json
import tempfile
from pathlib import Path

import numpy as np
import timm
import torch
import transformers
from pretrained_weights import google_shapes, google_tensors, images, made
from safetensors import safe_open
from scipy.ndimage import zoom
from timm.layers import StdConv2dSame, SwiGLUPacked
from timm.models import save_for_hf
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer, _load_weights
from timm.models.vision_transformer_hybrid import HybridEmbed, _resnetv2

HERE = Path(__file__).parent
VERSIONS = [f"{module.__name__} {module.__version__}" for module in (torch, transformers, timm)]
SMALL = dict(img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2, num_classes=5)
NATIVE, OTHER = (32, 32), (48, 24)
MODULES = ("vision_transformer", "vision_transformer_hybrid", "deit", "eva")


def timm_models():
    vit = functools.partial(VisionTransformer, **SMALL, dynamic_img_size=True)
    eva = functools.partial(
        Eva, **SMALL, dynamic_img_size=True, qkv_bias=False, init_values=1e-5, num_reg_tokens=2, use_abs_pos_emb=False,
        use_rot_pos_emb=True, rope_type="dinov3", rope_rotate_half=True, rope_temperature=100.0, use_fc_norm=False,
        global_pool="token", norm_layer=functools.partial(torch.nn.LayerNorm, eps=1e-5),
    )  # fmt: skip
    plain = functools.partial(Eva, **SMALL, dynamic_img_size=True)
    rotary = dict(use_rot_pos_emb=True, ref_feat_shape=(16, 16))  # as EVA-02's
    mixed = functools.partial(
        plain, attn_type="rope", use_rot_pos_emb=True, rope_type="mixed", rope_grid_indexing="xy", init_values=1e-5,
        global_pool="token", use_fc_norm=False,
    )  # fmt: skip
    distilled = timm.models.deit.VisionTransformerDistilled(**SMALL, dynamic_img_size=True)
    hybrid = dict(img_size=64, patch_size=1, embed_layer=functools.partial(HybridEmbed, backbone=_resnetv2((1, 1))))
    return {
        "vit": vit(),
        "deit_distilled": distilled,
        "dinov2": vit(init_values=1.0, num_classes=0),
        "dinov2_reg": vit(init_values=1.0, reg_tokens=2, no_embed_class=True),
        "dinov2_giant": vit(init_values=1.0, mlp_layer=SwiGLUPacked, mlp_ratio=4.0, act_layer=torch.nn.SiLU),
        "reg_gap": vit(reg_tokens=1, no_embed_class=True, class_token=False, global_pool="avg", fc_norm=True),
        "map": vit(reg_tokens=2, class_token=False, global_pool="map"),
        "hybrid": VisionTransformer(**SMALL | hybrid, dynamic_img_size=True),
        "dinov3": eva(),
        "dinov3_gated": eva(swiglu_mlp=True, swiglu_align_to=8, mlp_ratio=2.0),
        "dinov3_packed": eva(swiglu_mlp=True, mlp_ratio=2.0, qkv_bias=True),
        "rope": eva(rope_type="cat", rope_rotate_half=False, rope_grid_indexing="xy",
                    num_reg_tokens=0, qkv_bias=True, norm_layer=functools.partial(torch.nn.LayerNorm, eps=1e-6)),
        "rope_ape": eva(rope_type="cat", rope_rotate_half=False, rope_grid_indexing="xy", use_abs_pos_emb=True,
                        num_reg_tokens=0, qkv_bias=True, norm_layer=functools.partial(torch.nn.LayerNorm, eps=1e-6)),
        "rope_mixed": mixed(use_abs_pos_emb=False),
        "rope_mixed_ape": mixed(no_embed_class=True),
        "rope_reg_gap": plain(**rotary, class_token=False, num_reg_tokens=2, use_abs_pos_emb=False, init_values=1e-5),
        "eva02_small": plain(**rotary, swiglu_mlp=True, mlp_ratio=2.0),
        "eva02_large": plain(**rotary, swiglu_mlp=True, mlp_ratio=2.0, qkv_fused=False, scale_mlp=True),
        "eva02_enormous": plain(use_post_norm=True, global_pool="token"),
    }  # fmt: skip


def hf_models():
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=32, patch_size=8, num_labels=5)
    t, mlp = transformers, dict(intermediate_size=64)
    dino = dict(mlp_ratio=2)
    register = dict(num_register_tokens=2)
    return {
        "vit": t.ViTForImageClassification(t.ViTConfig(**sizes, **mlp)),
        "vit_tanh": t.ViTForImageClassification(
            t.ViTConfig(**sizes, **mlp, hidden_act="gelu_new", layer_norm_eps=1e-3)
        ),
        "vit_model": t.ViTModel(t.ViTConfig(**sizes, **mlp)),
        "deit": t.DeiTForImageClassification(t.DeiTConfig(**sizes, **mlp)),
        "deit_teacher": t.DeiTForImageClassificationWithTeacher(t.DeiTConfig(**sizes, **mlp)),
        "dinov2": t.Dinov2ForImageClassification(t.Dinov2Config(**sizes, **dino)),
        "dinov2_swiglu": t.Dinov2Model(t.Dinov2Config(**sizes, **dino, use_swiglu_ffn=True)),
        "dinov2_reg": t.Dinov2WithRegistersForImageClassification(
            t.Dinov2WithRegistersConfig(**sizes, **dino, **register)
        ),
        "dinov3": t.DINOv3ViTModel(t.DINOv3ViTConfig(**sizes, **mlp, **register)),
        "dinov3_gated": t.DINOv3ViTModel(
            t.DINOv3ViTConfig(**sizes, **mlp, **register, use_gated_mlp=True, hidden_act="silu")
        ),
    }


def remade(name, model):
    """Sets every parameter to numbers made from its name in the file; `name` is the model's architecture."""
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(model, transformers.PreTrainedModel):
            model.save_pretrained(folder)
        else:
            size = (3, *model.patch_embed.img_size)
            model.pretrained_cfg = dict(architecture=name, input_size=size, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
            save_for_hf(model, folder, model_config=dict(global_pool=model.global_pool), safe_serialization=True)
        with safe_open(Path(folder) / "model.safetensors", framework="pt") as file:
            names = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        config = json.loads((Path(folder) / "config.json").read_text())
        tensors = {name: torch.from_numpy(made(name, shape)) for name, shape in names.items()}
        if isinstance(model, transformers.PreTrainedModel):
            from safetensors.torch import save_file

            save_file(tensors, Path(folder) / "model.safetensors", metadata={"format": "pt"})
            again = type(model).from_pretrained(folder)
            again.eval()
            return again, names, config
    model.load_state_dict(tensors)
    return model.eval(), names, config


@torch.no_grad()
def timm_logits(model, size):
    return model(torch.from_numpy(images(*size)).permute(0, 3, 1, 2)).numpy()


@torch.no_grad()
def hf_logits(model, size):
    pixels = torch.from_numpy(images(*size)).permute(0, 3, 1, 2)
    grows = isinstance(model, transformers.ViTPreTrainedModel | transformers.DeiTPreTrainedModel)
    out = model(pixels, **(dict(interpolate_pos_encoding=True) if grows else {}))
    return (out.logits if "logits" in out else out.pooler_output).numpy()


def google_models():
    """{case: (shapes, spellings, arguments of the timm model)}."""
    sizes = dict(width=32, depth=2, heads=2, mlp=128, patch=8, grid=4)
    hybrid = lambda layers: functools.partial(HybridEmbed, backbone=_resnetv2(layers))  # noqa: E731
    small = SMALL | dict(act_layer="gelu_tanh")
    root = dict(img_size=64, patch_size=4, embed_layer=hybrid(()))
    units = dict(img_size=64, patch_size=1, embed_layer=hybrid((1, 2)))
    siglip = dict(class_token=False, global_pool="map")
    return {
        "token": (google_shapes(**sizes, head=5), ["old", "optimiser", "bfloat16"], small),
        "root": (google_shapes(**sizes | dict(patch=4), head=5, stem=()), ["old"], small | root),
        "units": (google_shapes(**sizes | dict(patch=1, grid=8), head=5, stem=(1, 2)), ["old"], small | units),
        "map": (google_shapes(**sizes, head=0, token=False, pool=True), ["params", "siglip", "stacked"],
                small | siglip | dict(num_classes=0)),
    }  # fmt: skip


def google_logits(shapes, spelling, make, size, native):
    """timm's model with what its loader reads, Google's constants, and at another size Google's resize."""
    tensors = google_tensors(shapes, spelling)
    if spelling == "bfloat16":  # timm needs jax to read it: here the same numbers in float32, under old names
        exact = {n: (a.view(np.uint16).astype(np.uint32) << 16).view(np.float32) for n, a in tensors.items()}
        tensors = dict(zip(google_tensors(shapes, "old"), exact.values(), strict=True))
    model = make().eval()
    with tempfile.NamedTemporaryFile(suffix=".npz") as file:
        np.savez(file.name, **tensors)
        _load_weights(model, file.name)
    for module in model.modules():
        if isinstance(module, StdConv2dSame):
            module.forward = functools.partial(googles_convolution, module)
        if isinstance(module, torch.nn.GroupNorm):
            module.eps = 1e-6
    if size != native:
        old = model.patch_embed.grid_size
        table, prefix = model.pos_embed.detach().numpy(), model.num_prefix_tokens
        model.set_input_size(size)
        new = model.patch_embed.grid_size
        patches = zoom(table[0, prefix:].reshape(*old, -1), (new[0] / old[0], new[1] / old[1], 1), order=1)
        table = np.concatenate([table[0, :prefix], patches.reshape(new[0] * new[1], -1)])[None]
        model.pos_embed = torch.nn.Parameter(torch.from_numpy(table))
    return timm_logits(model, size)


def googles_convolution(module, x):
    weight = module.weight
    weight = weight - weight.mean(dim=(1, 2, 3), keepdim=True)
    weight = weight / (weight.std(dim=(1, 2, 3), keepdim=True, unbiased=False) + 1e-5)
    x = timm.layers.padding.pad_same(x, module.kernel_size, module.stride) if module.same_pad else x
    return torch.nn.functional.conv2d(x, weight, None, module.stride, module.padding)


def full_size():
    """{name: (heads, layers, {tensor: shape})} of timm's models; layers are alike: layer 0 stands for all."""
    found = {}
    for name in [name for module in MODULES for name in timm.list_models(module=module)]:
        with torch.device("meta"):
            model = timm.create_model(name)
        if hasattr(attention := getattr(model.blocks[0], "attn", model.blocks[0]), "num_heads"):
            held = {key: tuple(x.shape) for key, x in model.state_dict().items()}
            kept = {key: shape for key, shape in held.items() if not key.startswith("blocks.") or key[7:9] == "0."}
            found[name] = (attention.num_heads, len(model.blocks), kept)
    return found


def main():
    cases, arrays = {}, {}
    for family, models, run in (("timm", timm_models(), timm_logits), ("transformers", hf_models(), hf_logits)):
        for name, made_by_torch in models.items():
            model, names, config = remade(name, made_by_torch)
            case, double = f"{family} {name}", 2 if name == "hybrid" else 1
            cases[case] = dict(names=names, config=config)
            for size in (NATIVE, OTHER):
                size = (size[0] * double, size[1] * double)
                arrays[f"{case} {size[0]}x{size[1]}"] = run(model, size)
    for name, (shapes, spellings, arguments) in google_models().items():
        case, native = f"google {name}", (arguments["img_size"],) * 2
        make = functools.partial(VisionTransformer, **arguments)
        cases[case] = dict(names=shapes, spellings=spellings)
        for size in (native, (native[0] * 3 // 2, native[1])):
            for spelling in spellings:
                arrays[f"{case} {spelling} {size[0]}x{size[1]}"] = google_logits(shapes, spelling, make, size, native)
    text = json.dumps(dict(cases=cases, full=full_size()))
    np.savez_compressed(HERE / "pretrained.npz", versions=VERSIONS, json=text, **arrays)


if __name__ == "__main__":
    main()
