"""Writes experiments/atlas/models.json: the configurations of well-known models on positions.

    /tmp/goldens/bin/python tests/goldens/make_atlas_models.py

They are the defaults of transformers' classes; each class names the checkpoint that it was made after; a published
checkpoint may change some of them. Kept are the keys that posjax.from_hf_layers reads, and the number of layers.
"""

import importlib.metadata
import inspect
import json
import re
import sys
from pathlib import Path

REPO = Path(__file__).parents[2]
OUT = REPO / "experiments" / "atlas" / "models.json"
NAMES = [
    "apertus",
    "bert",
    "bitnet",
    "bloom",
    "codegen",
    "cohere",
    "cohere2",
    "deit",
    "electra",
    "exaone4",
    "falcon",
    "gemma",
    "gemma2",
    "gemma3_text",
    "glm4",
    "gpt2",
    "gpt_neox",
    "gpt_oss",
    "gptj",
    "helium",
    "llama",
    "llama4_text",
    "minimax_m2",
    "ministral",
    "mistral",
    "mixtral",
    "modernbert",
    "mpt",
    "mt5",
    "nemotron",
    "nomic_bert",
    "olmo2",
    "olmo3",
    "opt",
    "persimmon",
    "phi",
    "phi3",
    "phimoe",
    "pixtral",
    "qwen2",
    "qwen2_moe",
    "qwen2_vl_text",
    "qwen3",
    "qwen3_moe",
    "qwen3_vl_text",
    "roberta",
    "smollm3",
    "stablelm",
    "starcoder2",
    "t5",
    "umt5",
    "vit",
]
_KEPT = re.compile(
    "model_type|rope|rotary|sliding|window|layer_types|attention_chunk_size|alibi|relative_attention|attn_temperature|"
    "attn_scale|floor_scale|max_position_embeddings|max_seq_len|n_positions|hidden_size$|d_model|d_kv|n_embd|head_dim|"
    "num_attention_heads|n_head|num_heads|num_hidden_layers|n_layer|num_layers|num_decoder_layers|position|local_attention|"
    "global_attn|attn_config"
)


def main() -> int:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    models = []
    for name in NAMES:
        config = CONFIG_MAPPING[name]()
        written = json.loads(config.to_json_string(use_diff=False))
        kept = {key: value for key, value in sorted(written.items()) if _KEPT.search(key) and value is not None}
        models.append({"class": type(config).__name__, "after": _checkpoint(type(config)), "config": kept})
    told = {"source": f"transformers {importlib.metadata.version('transformers')}", "models": models}
    OUT.write_text(json.dumps(told, indent=1) + "\n")
    return 0


def _checkpoint(cls: type) -> str:
    """The checkpoint that stands in the class's decorator."""
    source = inspect.getsource(inspect.getmodule(cls))
    found = re.search(rf'checkpoint="([^"]+)"[^)]*\)\s*(?:@\w+[^\n]*\n)*class {cls.__name__}\b', source)
    return found[1]


if __name__ == "__main__":
    sys.exit(main())
