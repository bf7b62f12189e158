"""Golden vectors of rotary embeddings and grids from transformers and timm, in rotary.npz and grids.npz.

The references compute angles as float32 products, so their positions are small here, or powers of two.
"""

import torch
from maker import save
from timm.layers import apply_rot_embed_cat, build_rotary_pos_embed, build_sincos2d_pos_embed
from transformers import LlamaConfig, ViTConfig
from transformers.models.gptj import modeling_gptj
from transformers.models.llama import modeling_llama
from transformers.models.vit.modeling_vit import ViTEmbeddings

POSITIONS = torch.tensor([0, 1, 2, 3, 5, 7, 11, 15, 64, 256])


def rotary() -> None:
    heads, dim = 2, 16
    q, k = torch.randn(2, 1, heads, len(POSITIONS), dim)
    out = {}
    for base in (10_000.0, 500_000.0):
        config = LlamaConfig(
            hidden_size=heads * dim,
            num_attention_heads=heads,
            head_dim=dim,
            rope_parameters={"rope_type": "default", "rope_theta": base},
        )
        cos, sin = modeling_llama.LlamaRotaryEmbedding(config)(q, POSITIONS[None])
        rotated = modeling_llama.apply_rotary_pos_emb(q, k, cos, sin)
        out |= {f"llama_{what}_{base:.0f}": x[0].transpose(0, 1) for what, x in zip("qk", rotated, strict=True)}
    sin, cos = modeling_gptj.create_sinusoidal_positions(512, dim)[POSITIONS].chunk(2, dim=-1)
    for what, x in zip("qk", (q, k), strict=True):
        out[f"gptj_{what}"] = modeling_gptj.apply_rotary_pos_emb(x.transpose(1, 2), sin[None], cos[None])[0]
    save("rotary", out | {"position": POSITIONS, "q": q[0].transpose(0, 1), "k": k[0].transpose(0, 1)})


def grids() -> None:
    """ViT's learned table with its class token; timm's sines on a grid and its axial rotary, in both layouts."""
    config = ViTConfig(hidden_size=8, num_attention_heads=2, image_size=12, patch_size=4)
    vit = ViTEmbeddings(config).eval()
    pixels = torch.randn(1, 3, 12, 12)
    patches = torch.cat([vit.cls_token, vit.patch_embeddings(pixels)], dim=1)
    x = torch.randn(15, 2, 16)
    out = {}
    for layout, half in (("half", True), ("interleaved", False)):
        sin, cos = build_rotary_pos_embed([3, 5], dim=16, temperature=100.0, in_pixels=False, rotate_half=half)
        rotated = apply_rot_embed_cat(x.transpose(0, 1), torch.cat([sin, cos], dim=-1), half=half)
        out[f"rotary_{layout}"] = rotated.transpose(0, 1)
    out |= {"vit_table": vit.position_embeddings[0], "vit_tokens": patches[0], "vit_out": vit(pixels)[0]}
    out["sincos"] = build_sincos2d_pos_embed([3, 5], dim=32, interleave_sin_cos=True)
    save("grids", out | {"rotary_x": x})


if __name__ == "__main__":
    torch.manual_seed(0)
    for make in (rotary, grids):
        make()
