"""Golden vectors of rotary encodings on grids, learned and generalised, from timm and transformers.

Positions are small, as the references compute angles as float32 products.
"""

import torch
from maker import save
from timm.layers import (
    Attention,
    RotaryEmbeddingCat,
    RotaryEmbeddingDinoV3,
    RotaryEmbeddingMixed,
    apply_rot_embed_cat,
)
from timm.layers.pos_embed_sincos import RotaryEmbeddingMRope
from timm.models.eva import EvaAttention
from transformers import DINOv3ViTConfig, PixtralVisionConfig
from transformers.models.dinov3_vit import modeling_dinov3_vit as dinov3
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
from transformers.models.pixtral.modeling_pixtral import PixtralVisionRotaryEmbedding
from transformers.models.qwen2_vl import modeling_qwen2_vl as qwen2
from transformers.models.qwen3_vl import modeling_qwen3_vl as qwen3

GRIDS = [(3, 5), (7, 2), (1, 4)]
DIM, HEADS = 24, 3
TOKENS = torch.randn(1, HEADS, 15, DIM, generator=torch.Generator().manual_seed(1))


def heads_last(x):
    return x[0].transpose(0, 1)


def on_grids(turn):
    """For each grid: what `turn(x, height, width)` makes of the first tokens x."""
    return {f"{h}x{w}": heads_last(turn(TOKENS[:, :, : h * w], h, w)) for h, w in GRIDS}


def axial():
    """timm's axial rotary in both layouts and both orders of the axes; Pixtral's."""
    out = {}
    for layout, half in (("half", True), ("interleaved", False)):
        for indexing in ("ij", "xy"):

            def turn(x, height, width, half=half, indexing=indexing):
                rope = RotaryEmbeddingCat(
                    DIM, temperature=100.0, in_pixels=False, grid_indexing=indexing, rotate_half=half
                )
                return apply_rot_embed_cat(x, rope.get_embed([height, width]), half=half)

            out |= {f"axial_{layout}_{indexing}_{k}": v for k, v in on_grids(turn).items()}

    def pixtral(x, height, width):
        config = PixtralVisionConfig(
            hidden_size=HEADS * DIM,
            num_attention_heads=HEADS,
            head_dim=DIM,
            rope_parameters={"rope_type": "axial", "rope_theta": 10_000.0},
        )
        rope = PixtralVisionRotaryEmbedding(config)
        position = torch.stack(torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij"), -1)
        cos, sin = rope(x, position.reshape(-1, 2))
        return apply_rotary_pos_emb(x, x, cos[None], sin[None])[0]

    return out | {f"pixtral_{k}": v for k, v in on_grids(pixtral).items()}


def normalised():
    """DINOv3's, in timm and in transformers."""
    out = {}
    for normalize in ("separate", "max", "min"):

        def turn(x, height, width, normalize=normalize):
            rope = RotaryEmbeddingDinoV3(DIM, temperature=100.0, normalize_coords=normalize)
            return apply_rot_embed_cat(x, rope.get_embed([height, width]), half=True)

        out |= {f"dinov3_{normalize}_{k}": v for k, v in on_grids(turn).items()}

    def hf(x, height, width):
        config = DINOv3ViTConfig(hidden_size=HEADS * DIM, num_attention_heads=HEADS, patch_size=2, rope_theta=100.0)
        rope = dinov3.DINOv3ViTRopePositionEmbedding(config).eval()
        cos, sin = rope(torch.zeros(1, 3, 2 * height, 2 * width))
        return apply_rotary_pos_emb(x, x, cos[None], sin[None])[0]

    return out | {f"dinov3_hf_{k}": v for k, v in on_grids(hf).items()}


def mixed():
    """timm's learned frequencies: block 1 of two, columns first ("xy") and rows first."""
    out = {}
    for indexing in ("xy", "ij"):
        rope = RotaryEmbeddingMixed(HEADS * DIM, 2, HEADS, temperature=10.0, grid_indexing=indexing)

        def turn(x, height, width, rope=rope):
            return apply_rot_embed_cat(x, rope.get_embed([height, width])[1])

        out |= {f"mixed_{indexing}_{k}": v for k, v in on_grids(turn).items()}
        out[f"mixed_{indexing}_wave"] = rope.freqs[:, 1]
    return out


def multimodal():
    """Qwen2-VL's and Qwen3-VL's text models on text and images mixed, and timm's on images."""
    position = torch.tensor(
        [
            [0, 0, 0],
            [1, 1, 1],
            [2, 2, 2],
            [2, 2, 3],
            [2, 3, 2],
            [2, 3, 3],
            [3, 2, 4],
            [7, 7, 7],
            [8, 31, 5],
            [64, 9, 40],
        ]
    )
    out, x = {"mrope_position": position}, TOKENS[:, :, : len(position)]
    for sections in ((2, 5, 5), (6, 3, 3), (4, 4, 4)):
        parameters = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": list(sections)}
        sizes = dict(hidden_size=HEADS * DIM, num_attention_heads=HEADS, head_dim=DIM, rope_parameters=parameters)
        for name, config, rope in (
            ("qwen2", qwen2.Qwen2VLTextConfig, qwen2.Qwen2VLRotaryEmbedding),
            ("qwen3", qwen3.Qwen3VLTextConfig, qwen3.Qwen3VLTextRotaryEmbedding),
        ):
            cos, sin = rope(config(**sizes))(x, position.T[:, None])
            turned = apply_rotary_pos_emb(x, x, cos, sin)[0]
            out[f"mrope_{name}_{'_'.join(map(str, sections))}"] = heads_last(turned)

    def turn(x, height, width):
        rope = RotaryEmbeddingMRope(x.shape[-1], mrope_section=(2, 5, 5), temperature=100.0)
        return apply_rot_embed_cat(x, rope.get_embed([height, width]), half=True)

    return out | {f"mrope_timm_{k}": v for k, v in on_grids(turn).items()}


def fope():
    """The deviation of the noise that FoPE's matrices begin with."""
    return {"fope_deviation": torch.nn.init.xavier_normal_(torch.empty(40, 50, 30), gain=0.3).std()}


def attention():
    """Whole layers of timm's ViT (class token, learned table) and EVA (axial rotary behind two prefix tokens)."""
    width, heads, (height, columns) = 24, 2, (3, 5)
    x = torch.randn(1, 2 + height * columns, width)
    table = 0.5 * torch.randn(1, 1 + height * columns, width)
    vit, eva = Attention(width, heads, qkv_bias=True), EvaAttention(width, heads, num_prefix_tokens=2, scale_norm=False)
    for parameter in (*vit.parameters(), *eva.parameters()):
        torch.nn.init.normal_(parameter, std=0.3)
    rope = RotaryEmbeddingCat(width // heads, temperature=100.0, in_pixels=False)
    bias = torch.cat([eva.q_bias, eva.k_bias, eva.v_bias])
    out = {"x": x[0], "table": table[0], "vit_out": vit(x[:, 1:] + table)[0]}
    out["eva_out"] = eva(x, rope=rope.get_embed([height, columns]))[0]
    for name, layer, qkv_bias in (("vit", vit, vit.qkv.bias), ("eva", eva, bias)):
        out |= {f"{name}_qkv": layer.qkv.weight, f"{name}_qkv_bias": qkv_bias}
        out |= {f"{name}_proj": layer.proj.weight, f"{name}_proj_bias": layer.proj.bias}
    return {f"attention_{name}": value for name, value in out.items()}


if __name__ == "__main__":
    torch.manual_seed(0)
    arrays = axial() | normalised() | mixed() | multimodal() | attention()
    arrays |= {"x": heads_last(TOKENS)} | fope()
    save("rotary_grid", arrays)
