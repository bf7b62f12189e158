"""Golden vectors of additive codes, tables, PEG and temperatures.

additive.npz holds inputs, outputs and `versions`.
"""

import torch
from maker import save
from timm.layers import build_sincos2d_pos_embed
from timm.models.twins import PosConv
from transformers import Llama4TextConfig, ViTConfig
from transformers.models.llama4.modeling_llama4 import Llama4TextAttention
from transformers.models.ministral3.modeling_ministral3 import get_llama_4_attn_scale
from transformers.models.vit.modeling_vit import ViTEmbeddings
from transformers.models.vit_mae.modeling_vit_mae import build_2d_sinusoidal_position_embedding

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
    save("additive", vit() | sines_on_grids() | peg() | temperatures())
