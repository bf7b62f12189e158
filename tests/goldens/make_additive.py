"""Golden vectors of additive codes, tables, PEG and temperatures:

    python -m venv /tmp/goldens && /tmp/goldens/bin/pip install torch==2.13.0 transformers==5.23.0
    /tmp/goldens/bin/pip install timm==1.0.31 torchvision pillow --no-deps
    /tmp/goldens/bin/python tests/goldens/make_additive.py

additive.npz holds inputs, outputs and `versions`. Codes that transformers and timm lack are written out here from the
authors' formula, in float64 and without a line of theirs.
"""

from pathlib import Path

import numpy as np
import torch

# torchvision's compiled operators are of no use on a CPU build of torch, but it will not be imported without these names.
_torchvision = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _torchvision.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import timm
import transformers
from timm.layers import build_sincos2d_pos_embed
from timm.models.twins import PosConv
from transformers import Llama4TextConfig, ViTConfig
from transformers.models.llama4.modeling_llama4 import Llama4TextAttention
from transformers.models.ministral3.modeling_ministral3 import get_llama_4_attn_scale
from transformers.models.vit.modeling_vit import ViTEmbeddings
from transformers.models.vit_mae.modeling_vit_mae import build_2d_sinusoidal_position_embedding

HERE = Path(__file__).parent
VERSIONS = [f"{module.__name__} {module.__version__}" for module in (torch, transformers, timm)]
GRIDS = [(3, 5, 32, 10_000.0), (7, 4, 24, 100.0), (4, 4, 8, 10_000.0)]  # height, width, channels, base
FAR = [1, 2, 8191, 8192, 8193, 16_383, 16_384, 100_000, 2**20]


def vit() -> dict:
    """ViT's table, with its class token, on a grid that is no square."""
    config = ViTConfig(hidden_size=8, num_attention_heads=2, image_size=(12, 20), patch_size=4)
    model, pixels = ViTEmbeddings(config).eval(), torch.randn(1, 3, 12, 20)
    torch.nn.init.normal_(model.position_embeddings)
    tokens = torch.cat([model.cls_token, model.patch_embeddings(pixels)], dim=1)
    return {"vit_table": model.position_embeddings[0], "vit_tokens": tokens[0], "vit_out": model(pixels)[0]}


def sines_on_grids() -> dict:
    out = {"grids": GRIDS}
    for number, (height, width, channels, base) in enumerate(GRIDS):
        options = dict(dim=channels, temperature=base, interleave_sin_cos=True)
        out[f"timm_{number}"] = build_sincos2d_pos_embed([height, width], **options)
        columns_first = build_sincos2d_pos_embed([height, width], reverse_coord=True, **options)
        # With reverse_coord the tokens too come column by column.
        out[f"timm_reversed_{number}"] = columns_first.reshape(width, height, channels).transpose(0, 1).flatten(0, 1)
        out[f"vit_mae_{number}"] = build_2d_sinusoidal_position_embedding(height, width, channels, base, cls_token=True)
        quarter = channels // 4
        for name, divisor in (("mae", quarter), ("big_vision", quarter - 1)):
            wave = base ** -(np.arange(quarter) / divisor)
            y, x = (place.reshape(-1, 1) * wave for place in np.mgrid[:height, :width])
            code = np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], axis=1)
            out[f"{name}_{number}"] = code.astype(np.float32)
    return out


def scaled_sines() -> dict:
    """x-transformers' ScaledSinusoidalEmbedding."""
    position, half = np.array([0, 1, 2, 3, 5, 64, 1000]), 6
    angle = position[:, None] * 10_000.0 ** -(np.arange(half) / half)
    code = (2 * half) ** -0.5 * np.concatenate([np.sin(angle), np.cos(angle)], axis=1)
    return {"scaled_position": position, "scaled_code": code.astype(np.float32)}


def fourier() -> dict:
    """Algorithm 1 of arXiv 2106.02795 as torch modules, on patches of a grid."""
    features, hidden, width = 10, 7, 6
    project = torch.nn.Linear(2, features // 2, bias=False).double()
    mlp = torch.nn.Sequential(
        torch.nn.Linear(features, hidden), torch.nn.GELU(), torch.nn.Linear(hidden, width)
    ).double()
    place = torch.from_numpy(np.stack(np.mgrid[:3, :5], axis=-1).reshape(-1, 2)).double()
    angle = project(place)
    code = mlp(torch.cat([angle.cos(), angle.sin()], dim=-1) / features**0.5)
    weights = dict(inner=mlp[0].weight.T, inner_bias=mlp[0].bias, outer=mlp[2].weight.T, outer_bias=mlp[2].bias)
    return {f"fourier_{k}": v.float() for k, v in dict(wave=project.weight.T, code=code, **weights).items()}


def peg() -> dict:
    layer = PosConv(6, 6)
    torch.nn.init.normal_(layer.proj[0].bias)
    out = {"peg_kernel": layer.proj[0].weight[:, 0].permute(1, 2, 0), "peg_bias": layer.proj[0].bias}
    for height, width in ((3, 5), (1, 7), (4, 4), (6, 2)):
        x = torch.randn(1, height * width, 6)
        out |= {f"peg_x_{height}_{width}": x[0], f"peg_out_{height}_{width}": layer(x, (height, width))[0]}
    return out


def temperatures() -> dict:
    """A layer of Llama 4 without rotary embedding, over steps of 4 tokens, and the factor itself far out."""
    options = dict(hidden_size=16, num_attention_heads=2, num_key_value_heads=2, head_dim=8, num_hidden_layers=4)
    config = Llama4TextConfig(**options, floor_scale=4, attn_scale=0.7, no_rope_layers=[1, 1, 1, 0])
    config._attn_implementation = "eager"
    layer, length = Llama4TextAttention(config, layer_idx=3).eval(), 21
    assert not layer.use_rope
    x = torch.randn(1, length, 16)
    later = torch.full((length, length), -torch.inf).triu(1)[None, None]
    _, weights = layer(3 * x, position_embeddings=None, attention_mask=later)
    q, k = (3 * project(x)[0].reshape(length, 2, 8) for project in (layer.q_proj, layer.k_proj))
    far = torch.tensor(FAR)
    return {
        "llama4_q": q,
        "llama4_k": k,
        "llama4_weights": weights[0],
        "far": FAR,
        "ministral3_factor": get_llama_4_attn_scale(far[None], 0.1, 8192).flatten(),
        "rerope_factor": ((far + 1).double().log() / np.log(512)).clip(1).float(),
    }


if __name__ == "__main__":
    torch.manual_seed(0)
    arrays = vit() | sines_on_grids() | scaled_sines() | fourier() | peg() | temperatures()
    arrays = {k: v.detach().numpy() if torch.is_tensor(v) else np.asarray(v) for k, v in arrays.items()}
    np.savez_compressed(HERE / "additive.npz", versions=np.array(VERSIONS), **arrays)
