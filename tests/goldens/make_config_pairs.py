"""Configurations as transformers 4 writes them, and as transformers 5 writes them after it has read those:

    python -m venv /tmp/four && /tmp/four/bin/pip install transformers==4.57.3    # no torch is needed
    python -m venv /tmp/five && /tmp/five/bin/pip install transformers==5.24.0
    /tmp/four/bin/python tests/goldens/make_config_pairs.py && /tmp/five/bin/python tests/goldens/make_config_pairs.py

The result is config_pairs.json: {family: {"4.57.3": config, "5.24.0": config}}, of each config the keys about positions and
sizes. Both are the text of a config.json (`to_json_string`). Numbers are those of no default, so that a lost one shows.
"""

import json
import re
from pathlib import Path

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

FILE = Path(__file__).parent / "config_pairs.json"
KEPT = re.compile(r"rope|rotary|position|theta|layer|window|chunk|temperature|hidden_size|heads|head_dim|model_type")
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
LLAMA3 = YARN | {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LINEAR = {"rope_type": "linear", "factor": 8.0}
MSCALES = {"beta_fast": 32, "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.7}
LONG = {"type": "longrope", "short_factor": [1.0, 1.5, 2.0], "long_factor": [1.0, 4.0, 16.0]}
SMALL = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 4}
FAMILIES = {
    "llama": {"rope_theta": 5e5, "rope_scaling": LLAMA3},
    "mistral": {"rope_theta": 1e6, "sliding_window": 64},
    "qwen2": {
        "rope_theta": 1e6,
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
    },
    "qwen3": {"rope_theta": 1e6, "rope_scaling": YARN, "head_dim": 8},
    "gemma2": {"rope_theta": 2e4, "sliding_window": 64, "head_dim": 8},
    "gemma3_text": {"rope_theta": 2e6, "rope_local_base_freq": 2e4, "rope_scaling": LINEAR, "num_hidden_layers": 6},
    "phi3": {"rope_scaling": LONG, "partial_rotary_factor": 0.75, "original_max_position_embeddings": 512},
    "phi": {"partial_rotary_factor": 0.25, "rope_theta": 2e4},
    "gpt_neox": {"rotary_pct": 0.5, "rotary_emb_base": 20_000},
    "falcon": {"rope_theta": 5e5, "rope_scaling": LINEAR},
    "stablelm": {"partial_rotary_factor": 0.5, "rope_theta": 2e4},
    "deepseek_v2": {"rope_theta": 2e4, "rope_scaling": YARN | MSCALES, "qk_rope_head_dim": 8},
    "deepseek_v3": {"rope_theta": 2e4, "rope_scaling": YARN | MSCALES, "qk_rope_head_dim": 8},
    "olmo2": {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 8.0}},
    "olmo3": {"rope_theta": 6e5, "rope_scaling": YARN | {"attention_factor": 1.2}, "sliding_window": 64},
    "cohere2": {"rope_theta": 5e4, "sliding_window": 64},
    "glm4": {"rope_theta": 2e4, "partial_rotary_factor": 0.25, "head_dim": 8},
    "smollm3": {"rope_theta": 5e6, "no_rope_layers": [1, 1, 0, 1]},
    "granite": {"rope_theta": 1e7, "rope_scaling": LINEAR},
    "ernie4_5": {"rope_theta": 6e5, "head_dim": 8},
    "gpt_oss": {"rope_theta": 2e5, "rope_scaling": YARN | {"truncate": False}, "sliding_window": 64, "head_dim": 8},
    "llama4_text": {"rope_theta": 6e5, "rope_scaling": LLAMA3, "attention_chunk_size": 64, "head_dim": 8},
    "modernbert": {"global_rope_theta": 2e5, "local_rope_theta": 2e4, "local_attention": 32},
}


def kept(config) -> dict:
    """The keys of its config.json that count."""
    return {key: value for key, value in json.loads(config.to_json_string()).items() if KEPT.search(key)}


if __name__ == "__main__":
    version = transformers.__version__
    if version.startswith("4."):
        pairs = {name: {version: kept(CONFIG_MAPPING[name](**SMALL | given))} for name, given in FAMILIES.items()}
    else:
        pairs = json.loads(FILE.read_text())
        for name, pair in pairs.items():
            pair[version] = kept(CONFIG_MAPPING[name].from_dict(dict(next(iter(pair.values())))))
    lines = (f'"{name}": {json.dumps(pair)}' for name, pair in pairs.items())
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
