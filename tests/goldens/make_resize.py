"""Golden vectors for resizing tables: torch's `interpolate`, DINOv2's call of it, timm's and transformers' own resizing.

SciPy and JAX, the other references, run in the tests themselves.
"""

import itertools

import torch
from maker import save
from timm.layers import apply_rot_embed_cat, build_rotary_pos_embed, resample_abs_pos_embed
from timm.layers.pos_embed_rel import resize_rel_pos_bias_table_simple
from torch.nn.functional import interpolate
from transformers import Dinov2Config, ViTConfig
from transformers.models.dinov2.modeling_dinov2 import Dinov2Embeddings
from transformers.models.vit.modeling_vit import ViTEmbeddings

CHANNELS = 3
TABLES = [(6, 6), (7, 4)]
SIZES = [(9, 9), (3, 3), (4, 10), (12, 3), (6, 5)]  # up, down, both at once, of equal count, one axis kept
FITTED_SIZES = [(4, 5), (3, 9), (2, 2)]
DINOV2_SIZES = [(9, 9), (3, 8), (6, 11)]


def torch_tables() -> dict:
    out = {}
    for old, new in itertools.product(TABLES, SIZES):
        table = out[f"table_{old[0]}x{old[1]}"] = tables[old]
        image = table.permute(2, 0, 1)[None]
        for mode, antialias in itertools.product(("bilinear", "bicubic"), (False, True)):
            name = f"torch_{mode}{'_antialias' * antialias}"
            resized = interpolate(image, size=new, mode=mode, align_corners=False, antialias=antialias)
            out[f"{name}_{old[0]}x{old[1]}_{new[0]}x{new[1]}"] = resized[0].permute(1, 2, 0)
    return out


def dinov2() -> dict:
    """`interpolate_pos_encoding` of facebookresearch/dinov2: the scale factor of (new + 0.1) / old, transcribed."""
    image, out = tables[6, 6].permute(2, 0, 1)[None], {}
    for new in DINOV2_SIZES:
        factor = tuple((n + 0.1) / 6 for n in new)
        resized = interpolate(image, scale_factor=factor, mode="bicubic", antialias=False)
        assert resized.shape[2:] == new
        out[f"dinov2_6x6_{new[0]}x{new[1]}"] = resized[0].permute(1, 2, 0)
    return out


def models() -> dict:
    """Whole tables with a class token, as loaders and models resize them."""
    flat = torch.cat([torch.randn(1, CHANNELS), tables[6, 6].reshape(36, CHANNELS)])
    out = {"flat": flat, "timm_abs": resample_abs_pos_embed(flat[None], new_size=[9, 4], num_prefix_tokens=1)[0]}
    image = torch.zeros(1, 3, 18, 8)  # 9 x 4 patches of 2 x 2
    for name, config, module in (("vit", ViTConfig, ViTEmbeddings), ("dinov2", Dinov2Config, Dinov2Embeddings)):
        embeddings = module(config(hidden_size=CHANNELS, num_attention_heads=1, image_size=12, patch_size=2)).eval()
        embeddings.position_embeddings.data = flat[None]
        embedded = torch.zeros(1, 37, CHANNELS)
        out[f"hf_{name}"] = embeddings.interpolate_pos_encoding(embedded, *image.shape[2:])[0]
    return out


def relative_bias() -> dict:
    """timm's bicubic resize of a Swin table of a 3 x 3 window with its class token's rows, to a 4 x 6 one."""
    heads = 2
    table = torch.randn(5 * 5 + 3, heads)
    resized = resize_rel_pos_bias_table_simple(table, new_window_size=(4, 6), new_bias_shape=(7 * 11 + 3, heads))
    return {"relative": table, "timm_relative": resized}


def fitted() -> dict:
    """timm's axial rotary with the coordinates x / feat * ref of EVA-02, a training grid of 4 x 5."""
    out = {"rotary_x": torch.randn(27, 2, 16)}
    for size in FITTED_SIZES:
        sin, cos = build_rotary_pos_embed(
            list(size), dim=16, temperature=100.0, in_pixels=False, ref_feat_shape=[4, 5], rotate_half=True
        )
        x = out["rotary_x"][: size[0] * size[1]].transpose(0, 1)
        turned = apply_rot_embed_cat(x, torch.cat([sin, cos], dim=-1), half=True)
        out[f"fitted_{size[0]}x{size[1]}"] = turned.transpose(0, 1)
    return out


if __name__ == "__main__":
    torch.manual_seed(0)
    tables = {size: torch.randn(*size, CHANNELS) for size in TABLES}
    with torch.no_grad():
        save("resize", torch_tables() | dinov2() | models() | relative_bias() | fitted())
