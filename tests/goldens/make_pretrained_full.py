"""Full-size files of pretrained ViTs with weights made by name, and their logits, for check_pretrained_full.py:

    /tmp/goldens/bin/python tests/goldens/make_pretrained_full.py DIR [NAME ...]

Real files, as timm and transformers save them (1.5 GB in all), too large to be committed: see make_pretrained.py for the
small ones and the requirements.
"""

import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from make_pretrained import google_logits, hf_logits, save_for_hf, timm, timm_logits
from pretrained_weights import google_shapes, google_tensors, made
from torch import nn

_SMALL = dict(hidden_size=384, num_hidden_layers=12, num_attention_heads=6)
_GOOGLE = dict(act_layer="gelu_tanh", num_classes=1000)


def timm_model(name, **options):
    return lambda: (timm.create_model(name, **options), timm_logits)


def hf_model(model, config, **options):
    return lambda: (getattr(transformers, model)(getattr(transformers, config)(**options)), hf_logits)


MODELS = {  # name: (maker, sizes)
    "vit_base_patch16_224": (timm_model("vit_base_patch16_224", dynamic_img_size=True), (224, 224), (288, 192)),
    "deit_small_distilled_patch16_224": (
        timm_model("deit_small_distilled_patch16_224", dynamic_img_size=True), (224, 224), (288, 192)
    ),
    "vit_small_patch14_reg4_dinov2": (
        timm_model("vit_small_patch14_reg4_dinov2", dynamic_img_size=True), (518, 518), (224, 280)
    ),
    "vit_small_patch16_dinov3": (timm_model("vit_small_patch16_dinov3", global_pool="token"), (256, 256), (224, 320)),
    "vit_base_r50_s16_224": (
        timm_model("vit_base_r50_s16_224", dynamic_img_size=True, num_classes=1000), (224, 224), (288, 192)
    ),
    "vit_tiny_r_s16_p8_224": (timm_model("vit_tiny_r_s16_p8_224", dynamic_img_size=True), (224, 224), (320, 192)),
    "hf_vit_b16": (hf_model("ViTForImageClassification", "ViTConfig", num_labels=1000), (224, 224), (288, 192)),
    "hf_dinov2_s_reg": (
        hf_model("Dinov2WithRegistersForImageClassification", "Dinov2WithRegistersConfig", **_SMALL, image_size=518,
                 patch_size=14, num_labels=1000), (518, 518), (224, 280),
    ),
    "hf_dinov3_s": (
        hf_model("DINOv3ViTModel", "DINOv3ViTConfig", **_SMALL, intermediate_size=1536, num_register_tokens=4),
        (224, 224), (224, 320),
    ),
}  # fmt: skip
GOOGLE = {  # name: (shapes, model of timm's, sizes)
    "google_B_16": (google_shapes(768, 12, 12, 3072, 16, 14, head=1000), "vit_base_patch16_224", (288, 192)),
    "google_R50+ViT-B_16": (
        google_shapes(768, 12, 12, 3072, 1, 14, head=1000, stem=(3, 4, 9)), "vit_base_r50_s16_224", (288, 192)
    ),
    "google_R_Ti_16": (google_shapes(192, 12, 3, 768, 8, 7, head=1000, stem=()), "vit_tiny_r_s16_p8_224", (320, 192)),
}  # fmt: skip


@torch.no_grad()
def write(folder: Path, maker, sizes):
    model, run = maker()
    for name, parameter in model.named_parameters():
        parameter.copy_(torch.from_numpy(made(name, tuple(parameter.shape))))
    model.eval()
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(model, transformers.PreTrainedModel):
        model.save_pretrained(folder)
    else:
        save_for_hf(model, folder, safe_serialization=True)
    np.savez(folder / "logits.npz", **{f"{h}x{w}": run(model, (h, w)) for h, w in sizes})


def write_google(folder: Path, shapes, name, other):
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "weights.npz", **google_tensors(shapes, "old"))
    model: nn.Module = lambda: timm.create_model(name, **_GOOGLE)  # noqa: E731
    logits = {f"{h}x{w}": google_logits(shapes, "old", model, (h, w), (224, 224)) for h, w in ((224, 224), other)}
    np.savez(folder / "logits.npz", **logits)


def main(folder: str, *names: str):
    for name, (maker, *sizes) in MODELS.items():
        if not names or name in names:
            write(Path(folder) / name, maker, sizes)
    for name, arguments in GOOGLE.items():
        if not names or name in names:
            write_google(Path(folder) / name, *arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
