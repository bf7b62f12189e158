"""Golden vectors of arguments that timm, transformers and lucidrains' packages have; the results are arguments.npz:

python -m venv /tmp/goldens && /tmp/goldens/bin/pip install torch==2.14.1 transformers==5.24.0 einops
/tmp/goldens/bin/pip install timm==1.0.31 torchvision pillow rotary-embedding-torch==0.9.1 --no-deps
/tmp/goldens/bin/pip install axial-positional-embedding==0.3.12 local-attention==1.11.2 hyper-connections --no-deps
/tmp/goldens/bin/python tests/goldens/make_arguments.py
"""

import numpy as np
import torch
from axial_positional_embedding import AxialPositionalEmbedding
from local_attention import LocalAttention
from maker import noise, save
from rotary_embedding_torch import RotaryEmbedding, apply_rotary_emb
from timm.layers import RotaryEmbeddingCat, apply_rot_embed_cat
from timm.models.mvitv2 import cal_rel_pos_type
from transformers import RoFormerConfig, SamVisionConfig, TimesformerConfig
from transformers.models.moonshine_streaming.modeling_moonshine_streaming import sliding_window_mask_function
from transformers.models.roformer.modeling_roformer import RoFormerSelfAttention, RoFormerSinusoidalPositionalEmbedding
from transformers.models.sam.modeling_sam import SamVisionAttention
from transformers.models.timesformer.modeling_timesformer import TimesformerEmbeddings

PACKAGES = (
    *("torch", "transformers", "timm", "rotary-embedding-torch", "axial-positional-embedding", "local-attention"),
)
HEADS, DIM = 2, 6


def tables():
    """A video of 2 frames of 2 x 3 patches: tables of three axes, and TimeSformer's of frames and of patches."""
    out, shape = {}, (2, 2, 3)
    for combine, dims in (("concatenate", (2, 2, 2)), ("sum", None)):
        module = AxialPositionalEmbedding(6, shape, dims)
        for weight in module.weights:
            weight.data = noise(*weight.shape)
        out[f"axial_{combine}_tables"] = torch.cat([weight.reshape(-1, weight.shape[-1]) for weight in module.weights])
        out[f"axial_{combine}"] = module(torch.zeros(1, 12, 6))[0]
    config = TimesformerConfig(image_size=4, patch_size=2, num_frames=3, hidden_size=6)
    module = TimesformerEmbeddings(config).eval()
    for name, weight in module.named_parameters():
        weight.data = noise(*weight.shape) if name.endswith("embeddings") else torch.zeros_like(weight)
    out["timesformer_tables"] = torch.cat([module.time_embeddings[0], module.position_embeddings[0]])
    return out | {"timesformer": module(torch.zeros(1, 3, 3, 4, 4))[0]}


def values():
    """A layer of RoFormer that turns values; q, k and v are its projections of noise."""
    layer = RoFormerSelfAttention(
        RoFormerConfig(hidden_size=HEADS * DIM, num_attention_heads=HEADS, rotary_value=True)
    ).eval()
    table = RoFormerSinusoidalPositionalEmbedding(16, DIM)
    table.weight.data = table.create_weight()
    x = noise(1, 7, HEADS * DIM)
    qkv = torch.stack([getattr(layer, name)(x).reshape(7, HEADS, DIM) for name in ("query", "key", "value")])
    out = layer(x, sinusoidal_pos=table(x.shape)[None, None])[0]
    return {"roformer_qkv": qkv, "roformer_out": out.reshape(7, HEADS, DIM)}


def pixel_bands():
    """timm's bands in both spacings and layouts on 3 x 5 patches; rotary-embedding-torch's there and on a video."""
    x = noise(15, 12)
    out = {"pixel_x": x}
    for linear, half in ((False, False), (True, True)):
        rope = RotaryEmbeddingCat(12, max_res=10, in_pixels=True, linear_bands=linear, rotate_half=half)
        out[f"pixel_timm_{linear}"] = apply_rot_embed_cat(x[None, None], rope.get_embed([3, 5]), half=half)[0, 0]
    for name, shape in (("image", (3, 5)), ("video", (2, 2, 3))):
        rope = RotaryEmbedding(12 // len(shape), freqs_for="pixel", max_freq=10)
        count = int(np.prod(shape))
        turned = apply_rotary_emb(rope.get_axial_freqs(*shape), x[:count].reshape(*shape, 12))
        out[f"pixel_lucidrains_{name}"] = turned.reshape(count, 12)
    return out


def decomposed():
    """timm's MViT with a class token, with keys of every patch and pooled by 2; SAM's layer on two grids."""
    out = {}
    for pooled, (h, w) in ((1, (3, 3)), (2, (4, 2))):
        keys = (h // pooled, w // pooled)
        q, k, v = (noise(1, HEADS, 1 + a * b, DIM) for a, b in ((h, w), keys, keys))
        rel = [noise(2 * n - 1, DIM) for n in (h, w)]
        attn = cal_rel_pos_type(DIM**-0.5 * q @ k.mT, q, True, [h, w], list(keys), *rel)
        arrays = {"q": q[0].transpose(0, 1), "kv": torch.cat([k, v]).transpose(1, 2), "rel": torch.cat(rel)}
        arrays["out"] = (attn.softmax(-1) @ v)[0].transpose(0, 1)
        out |= {f"mvit_{pooled}_{name}": y for name, y in arrays.items()}
    layer = SamVisionAttention(SamVisionConfig(hidden_size=HEADS * DIM, num_attention_heads=HEADS), 3).eval()
    for weight in layer.parameters():
        weight.data = noise(*weight.shape)
    torch.nn.init.eye_(layer.proj.weight)
    torch.nn.init.zeros_(layer.proj.bias)
    out["sam_rel"] = torch.stack([layer.rel_pos_h, layer.rel_pos_w])
    for height, width in ((3, 3), (2, 4)):
        x = noise(1, height, width, HEADS * DIM)
        out[f"sam_{height}_{width}_qkv"] = layer.qkv(x).reshape(-1, 3, HEADS, DIM).transpose(0, 1)
        out[f"sam_{height}_{width}_out"] = layer(x)[0].reshape(-1, HEADS, DIM)
    return out


def windows():
    """Masks of moonshine_streaming's (left, right), and a layer of local-attention that looks back and forward."""
    index, sizes = torch.arange(13), [(4, 3), (2, 6), (5, 0)]
    masks = [sliding_window_mask_function(both)(0, 0, index[:, None], index) for both in sizes]
    qkv = noise(3, 1, 16, 4)
    looks = [(1, 0), (2, 1)]
    layers = [LocalAttention(4, look_backward=back, look_forward=forward).eval() for back, forward in looks]
    out = {"window_sizes": torch.tensor(sizes), "window": torch.stack(masks), "local_looks": torch.tensor(looks)}
    return out | {"local_qkv": qkv[:, 0, :, None], "local": torch.stack([layer(*qkv)[0] for layer in layers])}


if __name__ == "__main__":
    torch.manual_seed(0)
    arrays = tables() | values() | pixel_bands() | decomposed() | windows()
    arrays = {name: value.detach().numpy() for name, value in arrays.items()}
    exact = {name: x.astype(np.float16) for name, x in arrays.items() if np.array_equal(x, x.astype(np.float16))}
    save("arguments", arrays | exact, PACKAGES)
