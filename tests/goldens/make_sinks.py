"""Golden vectors of sinks in the softmax and of rotated values: whole attentions of gpt-oss and DeepSeek-V4 in transformers.

Run as tests/goldens/maker.py says, with this file's name; the result is sinks.npz. q, k and v are what the attentions' own
projections and norms make of noise, before any rotation; `out` is what their heads read, before the output projection.
DeepSeek-V4 has one head of keys, which are also its values, and rotates the last channels of keys, values and outputs.
"""

import torch
from make_bias import causal_mask, randomized
from maker import noise, save
from transformers import DeepseekV4Config, GptOssConfig
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as deepseek
from transformers.models.gpt_oss import modeling_gpt_oss as gpt_oss

LENGTH, HEADS, KEY_HEADS, HEAD_DIM, WINDOW = 11, 4, 2, 8, 3
WIDTH = HEADS * HEAD_DIM
SIZES = dict(
    hidden_size=WIDTH,
    num_attention_heads=HEADS,
    head_dim=HEAD_DIM,
    sliding_window=WINDOW,
    layer_types=["full_attention", "sliding_attention"],
    num_hidden_layers=2,
    attn_implementation="eager",
)


def heads(x):
    return x.reshape(LENGTH, -1, HEAD_DIM)


def masked(window):
    """0 where a query sees a key, -inf elsewhere."""
    position = torch.arange(LENGTH)
    near = (position[:, None] - position[None] < window)[None, None]
    return causal_mask(LENGTH).masked_fill(~near, torch.finfo(torch.float32).min)


def of_gpt_oss():
    parameters = {"rope_type": "default", "rope_theta": 150_000.0}
    config = GptOssConfig(num_key_value_heads=KEY_HEADS, rope_parameters=parameters, **SIZES)
    cos_sin = gpt_oss.GptOssRotaryEmbedding(config)(noise(1), torch.arange(LENGTH)[None])
    found = {}
    for layer, window in enumerate((LENGTH, WINDOW)):
        attention = randomized(gpt_oss.GptOssAttention(config, layer))
        attention.sinks.data *= 3
        x = noise(1, LENGTH, WIDTH)
        out, _ = attention(x, cos_sin, masked(window))
        tokens = {n: heads(getattr(attention, f"{n}_proj")(x)[0]) for n in "qkv"} | {"out": heads(out[0])}
        found |= {f"gpt_oss_{layer}_{n}": value for n, value in tokens.items()}
        found[f"gpt_oss_{layer}_sink"] = attention.sinks
    return found


def of_deepseek():
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}
    sizes = SIZES | {"layer_types": ["sliding_attention"] * 2}
    ranks = dict(q_lora_rank=8, o_lora_rank=8, o_groups=2)
    config = DeepseekV4Config(rope_parameters={"main": rope, "compress": rope}, **ranks, **sizes)
    cos_sin = deepseek.DeepseekV4RotaryEmbedding(config)(noise(1), torch.arange(LENGTH)[None], "main")
    attention = randomized(deepseek.DeepseekV4Attention(config, 0))
    attention.sinks.data *= 3
    kept = {}
    attention.q_b_norm.register_forward_hook(lambda module, args, out: kept.update(q=out))
    attention.kv_norm.register_forward_hook(lambda module, args, out: kept.update(kv=out))
    attention.o_a_proj.register_forward_pre_hook(lambda module, args: kept.update(out=args[0]))
    attention(noise(1, LENGTH, WIDTH), {"main": cos_sin}, torch.arange(LENGTH)[None], masked(WINDOW))
    q = kept["q"][0].transpose(0, 1)
    found = {"q": q, "kv": kept["kv"].reshape(LENGTH, 1, HEAD_DIM), "out": kept["out"].reshape(LENGTH, HEADS, HEAD_DIM)}
    return {f"deepseek_{n}": value for n, value in (found | {"sink": attention.sinks}).items()}


if __name__ == "__main__":
    torch.manual_seed(0)
    save("sinks", of_gpt_oss() | of_deepseek())
