"""Golden vectors of gated attention: a whole attention of Qwen3-Next in transformers.

Run as tests/goldens/maker.py says, with this file's name; the result is gate.npz: the weights and biases of the projections,
as torch has them, the scales of the norms, less 1, the input `x` and the output `out` of the module.
"""

import torch
from maker import noise, save
from transformers import Qwen3NextConfig
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextAttention, Qwen3NextRotaryEmbedding

LENGTH, WIDTH = 9, 24
CONFIG = Qwen3NextConfig(
    hidden_size=WIDTH,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    attention_bias=True,
    rope_parameters={"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
    attn_implementation="eager",
)


if __name__ == "__main__":
    torch.manual_seed(0)
    attention = Qwen3NextAttention(CONFIG, 0).eval()
    for weight in attention.parameters():
        weight.data = noise(*weight.shape, std=0.5)
    x = noise(1, LENGTH, WIDTH)
    cos_sin = Qwen3NextRotaryEmbedding(CONFIG)(x, torch.arange(LENGTH)[None])
    hidden = torch.full((LENGTH, LENGTH), torch.finfo(torch.float32).min).triu(1)
    out, _ = attention(x, cos_sin, hidden[None, None])
    arrays = {name: weight.detach().half().numpy() for name, weight in attention.named_parameters()}
    save("gate", arrays | {"x": x.half().numpy(), "out": out}, packages=["torch", "transformers"])
