"""Golden vectors of the frequency scalings from transformers, which does not know this library.

scaling.npz holds configurations as JSON; the frequencies and attention factors of each one for documents of several
lengths; rotated queries and keys; and whole attention layers of Llama with their weights, inputs and outputs.
The reference computes angles as float32 products, so positions are small here.
"""

import json

import numpy as np
import torch
from maker import save
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama import modeling_llama

LENGTHS = [1, 100, 1024, 1025, 3000, 100_000]  # of documents, around the trained one of 1024
LAYER = 24  # tokens of an attention layer
HEADS = 2


def settings(length: int, channels: int) -> dict[str, dict]:
    """Configurations for a trained length and a number of frequencies."""
    original = {"original_max_position_embeddings": length}
    factors = {
        "short_factor": [round(1 + 0.1 * c, 2) for c in range(channels)],
        "long_factor": [round(1.3**c, 3) for c in range(channels)],
    }
    llama3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, **original}
    yarn = {"rope_type": "yarn", **original}
    found = {
        "linear 4": {"rope_type": "linear", "factor": 4.0},
        "linear 2.5, base 500000": {"rope_type": "linear", "factor": 2.5, "rope_theta": 5e5},
        "dynamic 2": {"rope_type": "dynamic", "factor": 2.0},
        "dynamic 8, base 1000": {"rope_type": "dynamic", "factor": 8.0, "rope_theta": 1e3},
        "yarn 4": {**yarn, "factor": 4.0},
        "yarn 32, base 1000000": {**yarn, "factor": 32.0, "rope_theta": 1e6},
        "yarn 4, not truncated": {**yarn, "factor": 4.0, "truncate": False},
        "yarn 8, other betas": {**yarn, "factor": 8.0, "beta_fast": 8.0, "beta_slow": 0.5},
        "yarn 16, attention factor": {**yarn, "factor": 16.0, "attention_factor": 1.25},
        "yarn 40, both mscales": {**yarn, "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.5},
        "yarn 40, one mscale": {**yarn, "factor": 40.0, "mscale": 0.707},
        "yarn, factor from the lengths": {**yarn, "factor": None},
        "longrope 4": {"rope_type": "longrope", "factor": 4.0, **factors, **original},
        "longrope, factor from the lengths": {"rope_type": "longrope", **factors, **original},
        "longrope, attention factor": {
            "rope_type": "longrope",
            "factor": 4.0,
            "attention_factor": 1.5,
            **factors,
            **original,
        },
        "llama3 8": {**llama3, "factor": 8.0},
        "llama3 32, base 500000": {**llama3, "factor": 32.0, "rope_theta": 5e5},
        "proportional 0.25": {"rope_type": "proportional", "partial_rotary_factor": 0.25},
        "proportional 0.75, scaled": {"rope_type": "proportional", "partial_rotary_factor": 0.75, "factor": 8.0},
    }
    return {name: {"rope_theta": 1e4, **parameters} for name, parameters in found.items()}


def configured(parameters: dict, length: int, head_dim: int) -> tuple[LlamaConfig, str]:
    """A configuration, and its JSON as ours reads it. `dynamic` keeps the trained length beside the parameters."""
    reached = length if parameters["rope_type"] == "dynamic" else 4 * length
    sizes = {"max_position_embeddings": reached, "rope_parameters": parameters}
    text = json.dumps(sizes)
    hidden = HEADS * head_dim
    config = LlamaConfig(
        hidden_size=hidden,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        head_dim=head_dim,
        attn_implementation="eager",
        **json.loads(text),
    )
    return config, text


def frequencies(head_dim: int) -> dict[str, np.ndarray]:
    out, names, texts = [], [], []
    for name, parameters in settings(1024, head_dim // 2).items():
        config, text = configured(parameters, 1024, head_dim)
        of_length = []
        for length in LENGTHS:
            frequency, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, seq_len=length)
            of_length.append(np.append(frequency.numpy(), np.float32(factor)))
        out.append(of_length)
        names.append(name)
        texts.append(text)
    prefix = f"frequency_{head_dim}"
    return {prefix: np.stack(out), f"{prefix}_names": names, f"{prefix}_configs": texts}


def layers() -> dict[str, np.ndarray]:
    """Llama's attention on one sequence, trained on more tokens than it has and on fewer; q and k before and after."""
    head_dim = 8
    hidden = HEADS * head_dim
    x = torch.randn(1, LAYER, hidden)
    weights = 0.3 * torch.randn(4, hidden, hidden)
    position = torch.arange(LAYER)[None]
    mask = torch.full((LAYER, LAYER), -torch.inf).triu(1)[None, None]
    cases = {("default", 64): {"rope_type": "default", "rope_theta": 1e4}}
    for length in (16, 64):
        cases |= {(name, length): parameters for name, parameters in settings(length, head_dim // 2).items()}
    rotated, out, names, texts = [], [], [], []
    for (name, length), parameters in cases.items():
        config, text = configured(parameters, length, head_dim)
        layer = modeling_llama.LlamaAttention(config, layer_idx=0).eval()
        for part, weight in zip((layer.q_proj, layer.k_proj, layer.v_proj, layer.o_proj), weights, strict=True):
            part.weight.data = weight
        cos, sin = modeling_llama.LlamaRotaryEmbedding(config)(x, position)
        q, k = ((x @ w.T).view(1, LAYER, HEADS, head_dim).transpose(1, 2) for w in weights[:2])
        both = modeling_llama.apply_rotary_pos_emb(q, k, cos, sin)
        rotated.append(torch.stack([r[0].transpose(0, 1) for r in both]).detach().numpy())
        out.append(layer(x, position_embeddings=(cos, sin), attention_mask=mask)[0][0].detach().numpy())
        names.append(f"{name}, trained on {length}")
        texts.append(text)
    return {
        "layer_x": x[0].numpy(),
        "layer_weights": weights.numpy(),
        "layer_rotated": np.stack(rotated),
        "layer_out": np.stack(out),
        "layer_names": names,
        "layer_configs": texts,
    }


if __name__ == "__main__":
    torch.manual_seed(0)
    save("scaling", {"lengths": LENGTHS} | frequencies(16) | frequencies(36) | frequencies(128) | layers())
