"""Golden vectors of multi-head latent attention: whole attentions of DeepSeek-V2 and V3 in transformers.

Run as tests/goldens/maker.py says, with this file's name; the result is latent.npz. Weights are noise, exact in half
precision, under their own names; `out` is what the module returns for x.
"""

import torch
from maker import noise, save
from transformers import DeepseekV2Config, DeepseekV3Config
from transformers.models.deepseek_v2 import modeling_deepseek_v2 as v2
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as v3

LENGTH, WIDTH = 11, 18
SIZES = dict(kv_lora_rank=4, qk_nope_head_dim=4, qk_rope_head_dim=8, v_head_dim=3)
SIZES |= dict(hidden_size=WIDTH, num_attention_heads=3, num_key_value_heads=3, attn_implementation="eager")
SIZES |= dict(rms_norm_eps=0.1)  # of blocks: the modules do not heed it
PLAIN = {"rope_type": "default", "rope_theta": 10_000.0}
YARN = PLAIN | {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096}
CASES = {
    "v2_yarn": (
        v2,
        DeepseekV2Config,
        dict(q_lora_rank=None, rope_parameters=YARN | dict(mscale=0.707, mscale_all_dim=0.707)),
    ),
    "v3": (v3, DeepseekV3Config, dict(q_lora_rank=6, rope_parameters=PLAIN)),
    "v3_halves": (
        v3,
        DeepseekV3Config,
        dict(
            q_lora_rank=6,
            rope_interleave=False,
            attention_bias=True,
            rope_parameters=YARN | dict(mscale=1.0, mscale_all_dim=0.5),
        ),
    ),
}


def of(modeling, config_of, options):
    config = config_of(**SIZES, **options)
    name = config_of.__name__.removesuffix("Config")
    attention = getattr(modeling, f"{name}Attention")(config, 0).eval()
    for weight_name, weight in attention.named_parameters():
        weight.data = (noise(*weight.shape, std=0.5) + ("layernorm" in weight_name)).half().float()
    x = noise(1, LENGTH, WIDTH, std=0.5)
    mask = torch.full((LENGTH, LENGTH), torch.finfo(torch.float32).min).triu(1)[None, None]
    turns = getattr(modeling, f"{name}RotaryEmbedding")(config)(x, torch.arange(LENGTH)[None])
    out, _ = attention(x, attention_mask=mask, position_embeddings=turns)
    weights = {name: weight.half() for name, weight in attention.named_parameters()}
    return weights | {"x": x[0].half(), "out": out[0]}


if __name__ == "__main__":
    torch.manual_seed(0)
    arrays = {f"{case}/{name}": y for case, given in CASES.items() for name, y in of(*given).items()}
    save("latent", arrays, packages=["torch", "transformers"])
