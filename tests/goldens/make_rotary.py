"""Golden vectors of partial and interleaved rotary embeddings from transformers, which does not know this library.

rotary_layers.npz holds attention layers of GPT-NeoX (partial) and GPT-J (partial or whole, interleaved): weights, inputs,
outputs, and queries and keys as they were rotated.
The reference computes angles as float32 products, so positions are small here. Run with transformers 5.23.0: later layers of
GPT-J take their rotation as an argument.
"""

import numpy as np
import torch
from maker import save
from transformers import GPTJConfig, GPTNeoXConfig
from transformers.models.gpt_neox import modeling_gpt_neox
from transformers.models.gptj import modeling_gptj

LENGTH, START, HEADS = 16, 3, 2
NEOX = [(16, 0.25, 1e4), (16, 0.5, 500.0), (24, 0.25, 1e4), (8, 1.0, 1e4)]  # head dim, fraction, base
GPTJ = [(16, 4), (16, 8), (24, 6), (8, 8)]  # head dim, rotary dim


def causal() -> torch.Tensor:
    return torch.full((LENGTH, LENGTH), -torch.inf).triu(1)[None, None]


def weights_of(hidden: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(1, LENGTH, hidden), (0.15 * torch.randn(4, hidden, hidden)).half().float()


def neox(head_dim: int, fraction: float, base: float) -> dict[str, torch.Tensor]:
    hidden = HEADS * head_dim
    config = GPTNeoXConfig(
        hidden_size=hidden,
        num_attention_heads=HEADS,
        attention_bias=False,
        attn_implementation="eager",
        rope_parameters={"rope_type": "default", "rope_theta": base, "partial_rotary_factor": fraction},
    )
    layer = modeling_gpt_neox.GPTNeoXAttention(config, layer_idx=0).eval()
    x, weights = weights_of(hidden)
    # One projection whose rows are head by head q, k and v.
    by_head = weights[:3].view(3, HEADS, head_dim, hidden).transpose(0, 1).reshape(3 * hidden, hidden)
    layer.query_key_value.weight.data, layer.dense.weight.data = by_head, weights[3]
    position = torch.arange(START, START + LENGTH)[None]
    cos, sin = modeling_gpt_neox.GPTNeoXRotaryEmbedding(config)(x, position)
    q, k = ((x @ w.T).view(1, LENGTH, HEADS, head_dim).transpose(1, 2) for w in weights[:2])
    rotated = modeling_gpt_neox.apply_rotary_pos_emb(q, k, cos, sin)
    out = layer(x, attention_mask=causal(), position_embeddings=(cos, sin))[0]
    return dict(x=x[0], weights=weights, rotated=torch.stack([r[0].transpose(0, 1) for r in rotated]), out=out[0])


def gptj(head_dim: int, rotary_dim: int) -> dict[str, torch.Tensor]:
    hidden = HEADS * head_dim
    config = GPTJConfig(
        n_embd=hidden, n_head=HEADS, rotary_dim=rotary_dim, attn_pdrop=0.0, resid_pdrop=0.0, attn_implementation="eager"
    )
    layer = modeling_gptj.GPTJAttention(config, layer_idx=0).eval()
    x, weights = weights_of(hidden)
    for part, weight in zip((layer.q_proj, layer.k_proj, layer.v_proj, layer.out_proj), weights, strict=True):
        part.weight.data = weight
    position = torch.arange(START, START + LENGTH)[None]
    sin, cos = modeling_gptj.create_sinusoidal_positions(64, rotary_dim)[position[0]].chunk(2, dim=-1)
    rotated = []
    for weight in weights[:2]:
        vectors = (x @ weight.T).view(1, LENGTH, HEADS, head_dim)
        turned = modeling_gptj.apply_rotary_pos_emb(vectors[..., :rotary_dim], sin[None], cos[None])
        rotated.append(torch.cat([turned, vectors[..., rotary_dim:]], dim=-1)[0])
    out = layer(x, attention_mask=causal(), position_ids=position)[0]
    return dict(x=x[0], weights=weights, rotated=torch.stack(rotated), out=out[0])


if __name__ == "__main__":
    torch.manual_seed(0)
    arrays = {f"neox_{n}_{key}": x for n, case in enumerate(NEOX) for key, x in neox(*case).items()}
    arrays |= {f"gptj_{n}_{key}": x for n, case in enumerate(GPTJ) for key, x in gptj(*case).items()}
    arrays = {key: x.detach().numpy() for key, x in arrays.items()}
    arrays |= {
        key: x.astype(np.float16) for key, x in arrays.items() if key.endswith("weights")
    }  # they are whole halves
    save("rotary_layers", arrays | dict(neox=NEOX, gptj=GPTJ, start=START, heads=HEADS))
