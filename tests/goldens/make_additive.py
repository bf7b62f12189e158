"""Golden vectors of additive codes, tables, PEG and temperatures:

    python -m venv /tmp/goldens && /tmp/goldens/bin/pip install torch==2.13.0 transformers==5.23.0
    /tmp/goldens/bin/pip install timm==1.0.31 torchvision pillow --no-deps
    /tmp/goldens/bin/python tests/goldens/make_additive.py

additive.npz holds inputs, outputs and `versions`.
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
    return out


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
    }


if __name__ == "__main__":
    torch.manual_seed(0)
    arrays = vit() | sines_on_grids() | peg() | temperatures()
    arrays = {k: v.detach().numpy() if torch.is_tensor(v) else np.asarray(v) for k, v in arrays.items()}
    np.savez_compressed(HERE / "additive.npz", versions=np.array(VERSIONS), **arrays)
