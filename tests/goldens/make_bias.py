"""Golden vectors of logit biases: whole attentions of transformers and timm, and their bias tables.

Run as tests/goldens/maker.py says, with this file's name; the results are alibi.npz, t5.npz and bias.npz. Each attention runs
as its package has it, with an output projection that changes nothing, so that `out` is what its heads read; q, k and v are
what its own projections make of noise, before any cosine or scale.
"""

import torch
from maker import half, noise, save
from timm.layers.pos_embed_rel import RelPosBias, RelPosMlp
from timm.models import beit, swin_transformer, swin_transformer_v2
from transformers import BeitConfig, BloomConfig, MptConfig, T5Config
from transformers.models.beit.modeling_beit import BeitAttention, BeitRelativePositionBias
from transformers.models.bloom.modeling_bloom import BloomAttention, build_alibi_tensor
from transformers.models.mpt.modeling_mpt import MptAttention, build_mpt_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

HEADS = [1, 2, 3, 5, 6, 8, 12, 16, 20, 24, 71]
T5_SETTINGS = [  # buckets, max distance, bidirectional
    (32, 128, False),
    (32, 128, True),
    (32, 512, False),
    (64, 128, True),
    (16, 20, False),
    (8, 33, True),
    (6, 100, False),
]
WINDOWS = [(3, 5), (4, 4), (1, 6), (6, 2)]
PRETRAINED = [(0, 0), (7, 7), (0, 0), (4, 9)]  # of Swin v2, window by window; (0, 0) is the window itself
NUM_HEADS, HEAD_DIM = 3, 4
WIDTH = NUM_HEADS * HEAD_DIM


def randomized(module):
    """Runs in evaluation mode, with weights exact in half precision, and an output projection that changes nothing."""
    for weight in module.parameters():
        weight.data = half(0.5 * torch.randn_like(weight))
    for name in ("proj", "o", "o_proj", "out_proj", "dense"):
        if isinstance(layer := getattr(module, name, None), torch.nn.Linear):
            torch.nn.init.eye_(layer.weight)
            if layer.bias is not None:
                torch.nn.init.zeros_(layer.bias)
    return module.eval()


def group(prefix, q, k, v, out, **others):
    """q, k, v and out, each as [T, H, D], under names with this prefix."""
    length = out.shape[-2]
    arrays = {what: x.reshape(length, -1, HEAD_DIM) for what, x in dict(q=q, k=k, v=v, out=out).items()}
    return {f"{prefix}_{what}": x for what, x in (arrays | others).items()}


def causal_mask(length):
    return torch.full((length, length), torch.finfo(torch.float32).min).triu(1)[None, None]


def alibi():
    length, out = 9, {"heads": HEADS}
    for heads in HEADS:
        out[f"bloom_{heads}"] = build_alibi_tensor(torch.ones(1, length), heads, torch.float32)[:, 0]
        out[f"mpt_{heads}"] = build_mpt_alibi_tensor(heads, length)[:, 0]
    for heads in (5, 12):
        x, mask = noise(1, 17, heads * HEAD_DIM), causal_mask(17)
        bloom = randomized(BloomAttention(BloomConfig(hidden_size=heads * HEAD_DIM, n_head=heads), layer_idx=0))
        bias = build_alibi_tensor(torch.ones(1, 17), heads, torch.float32)
        read = bloom(x, torch.zeros_like(x), bias, mask)[0]
        fused = bloom.query_key_value(x).reshape(17, heads, 3, HEAD_DIM)
        out |= group(f"bloom_attention_{heads}", *fused.unbind(2), read)
        mpt = randomized(MptAttention(MptConfig(d_model=heads * HEAD_DIM, n_heads=heads), layer_idx=0))
        read = mpt(x, build_mpt_alibi_tensor(heads, 17), attention_mask=mask < 0)[0]
        out |= group(f"mpt_attention_{heads}", *mpt.Wqkv(x).chunk(3, dim=2), read)
    save("alibi", out)


def t5():
    offset = torch.arange(-700, 701)
    out = {"offset": offset, "settings": T5_SETTINGS}
    for number, (buckets, distance, bidirectional) in enumerate(T5_SETTINGS):
        bucket = T5Attention._relative_position_bucket(offset, bidirectional, buckets, distance)
        out[f"bucket_{number}"] = bucket.short()
    for name, is_decoder in (("encoder", False), ("decoder", True)):
        config = T5Config(d_model=WIDTH, num_heads=NUM_HEADS, d_kv=HEAD_DIM, is_decoder=is_decoder)
        layer = randomized(T5Attention(config, has_relative_attention_bias=True, layer_idx=0))
        x = noise(1, 40, WIDTH)
        read, bias, _ = layer(x, mask=causal_mask(40) if is_decoder else None)
        table = layer.relative_attention_bias.weight
        out |= group(name, layer.q(x), layer.k(x), layer.v(x), read, table=table, bias=bias[0])
    save("t5", out)


def swin():
    out = {"windows": WINDOWS, "pretrained": PRETRAINED}
    for number, (window, pretrained) in enumerate(zip(WINDOWS, PRETRAINED, strict=True)):
        x = noise(1, window[0] * window[1], WIDTH)
        layer = randomized(swin_transformer.WindowAttention(WIDTH, NUM_HEADS, window_size=window))
        qkv = layer.qkv(x).chunk(3, dim=2)
        out |= group(f"swin_{number}", *qkv, layer(x), table=layer.relative_position_bias_table)
        layer = swin_transformer_v2.WindowAttention(WIDTH, window, NUM_HEADS, pretrained_window_size=pretrained)
        layer = randomized(layer)
        qkv = layer.qkv(x) + torch.cat([layer.q_bias, layer.k_bias, layer.v_bias])
        mlp = layer.cpb_mlp
        weights = dict(first=mlp[0].weight.half(), first_bias=mlp[0].bias, second=mlp[2].weight.half())
        weights["scale"] = layer.logit_scale[:, 0, 0].exp()
        out |= group(f"swin_v2_{number}", *qkv.chunk(3, dim=2), layer(x), **weights)
    return out


def beit_attentions():
    out = {}
    for number, window in enumerate(WINDOWS):
        x = noise(1, 1 + window[0] * window[1], WIDTH)
        layer = randomized(beit.Attention(WIDTH, NUM_HEADS, qkv_bias=True, window_size=window))
        qkv = layer.qkv(x) + torch.cat([layer.q_bias, layer.k_bias, layer.v_bias])
        table = layer.relative_position_bias_table
        out |= group(f"beit_{number}", *qkv.chunk(3, dim=2), layer(x), table=table)
        config = BeitConfig(
            hidden_size=WIDTH, num_attention_heads=NUM_HEADS, image_size=(2 * window[0], 2 * window[1]), patch_size=2
        )
        bias = BeitRelativePositionBias(config).eval()
        bias.relative_position_bias_table.data = table.detach()
        config._attn_implementation = "eager"
        layer, bias = randomized(BeitAttention(config)), bias(window)
        qkv = layer.q_proj(x), layer.k_proj(x), layer.v_proj(x)
        out |= group(f"beit_hf_{number}", *qkv, layer(x, attention_mask=bias)[0], bias=bias[0])
    return out


def relative_modules():
    """timm's modules of the biases alone, the MLP with another hidden size."""
    out = {}
    for number, window in enumerate(WINDOWS):
        for prefix in (0, 1):
            module = randomized(RelPosBias(window, NUM_HEADS, prefix_tokens=prefix))
            out[f"rel_pos_{number}_{prefix}_bias"] = module.get_bias()[0]
            out[f"rel_pos_{number}_{prefix}_table"] = module.relative_position_bias_table
        if min(window) > 1:  # it divides by the window's side less 1
            module = randomized(RelPosMlp(window, NUM_HEADS, hidden_dim=7, prefix_tokens=1, mode="swin"))
            out[f"rel_mlp_{number}_bias"] = module.get_bias()[0]
            weights = dict(first=module.mlp.fc1.weight, first_bias=module.mlp.fc1.bias, second=module.mlp.fc2.weight)
            out |= {f"rel_mlp_{number}_{name}": weight for name, weight in weights.items()}
    return out


if __name__ == "__main__":
    torch.manual_seed(0)
    alibi()
    t5()
    save("bias", swin() | beit_attentions() | relative_modules())
