"""Values of transformers for whole configurations: queries turned by each model's rotary module, and layers' types.

    /tmp/goldens/bin/python tests/goldens/make_hf.py

`from_hf` and `from_hf_layers` read the same configurations, every key of them, as `save_pretrained` writes them. See maker.py
for what must be installed.
"""

import importlib
import json

import numpy as np
import torch
from maker import save

DIM, HEADS, LENGTH, LAYERS = 24, 2, 12, 9
TOKENS = torch.randn(1, HEADS, LENGTH, DIM, generator=torch.Generator().manual_seed(3))
PATCHES = torch.stack(torch.meshgrid(torch.arange(3), torch.arange(4), indexing="ij"), -1).reshape(-1, 2)
PLACES = torch.tensor([[0, 0, 0], [1, 1, 1], [2, 2, 3], [2, 3, 2], [7, 7, 7], [8, 31, 5], [64, 9, 40], [65, 65, 65]])
PLACES = torch.cat([PLACES, torch.arange(70, 70 + LENGTH - len(PLACES))[:, None].expand(-1, 3)])
SIZES = dict(hidden_size=HEADS * DIM, num_attention_heads=HEADS, num_hidden_layers=LAYERS)
TEXT = SIZES | dict(num_key_value_heads=1, head_dim=DIM, intermediate_size=8, vocab_size=9)

LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e4}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 1e5}
# (module, configuration class, its arguments): decoders and encoders whose layers differ.
PATTERNS = [
    ("gemma2", "Gemma2Config", TEXT | dict(sliding_window=7)),
    ("gemma3", "Gemma3TextConfig", TEXT | dict(sliding_window=5)),
    (
        "gemma3",
        "Gemma3TextConfig",
        TEXT
        | dict(
            sliding_window_pattern=3,
            rope_parameters={
                "full_attention": LINEAR,
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            },
        ),
    ),
    ("cohere2", "Cohere2Config", SIZES | dict(num_key_value_heads=1, sliding_window=6, vocab_size=9)),
    ("exaone4", "Exaone4Config", TEXT | dict(sliding_window=6, sliding_window_pattern=3)),
    ("qwen2", "Qwen2Config", TEXT | dict(use_sliding_window=True, sliding_window=6, max_window_layers=4)),
    ("qwen3", "Qwen3Config", TEXT),
    ("gpt_oss", "GptOssConfig", TEXT | dict(sliding_window=5, rope_parameters=YARN | {"truncate": False})),
    ("mistral", "MistralConfig", TEXT | dict(sliding_window=5)),
    ("phi3", "Phi3Config", SIZES | dict(sliding_window=3, vocab_size=9, pad_token_id=0)),
    ("olmo3", "Olmo3Config", TEXT | dict(sliding_window=5)),
    ("smollm3", "SmolLM3Config", TEXT | dict(no_rope_layer_interval=3, pad_token_id=0)),
    (
        "smollm3",
        "SmolLM3Config",
        TEXT | dict(no_rope_layers=[1, 1, 0] * 3, use_sliding_window=True, sliding_window=4, pad_token_id=0),
    ),
    ("llama4", "Llama4TextConfig", TEXT | dict(attention_chunk_size=4, num_local_experts=1)),
    ("modernbert", "ModernBertConfig", SIZES | dict(local_attention=6, vocab_size=9)),
    ("glm4", "Glm4Config", TEXT | dict(pad_token_id=0)),
    ("gpt_neox", "GPTNeoXConfig", SIZES | dict(vocab_size=9)),
    ("cohere", "CohereConfig", SIZES | dict(vocab_size=9)),
]
VISION = dict(hidden_size=HEADS * DIM, depth=1, num_heads=HEADS)
TOWERS = [
    ("qwen2_vl", "Qwen2VLVisionConfig", dict(embed_dim=HEADS * DIM, depth=1, num_heads=HEADS)),
    ("qwen2_5_vl", "Qwen2_5_VLVisionConfig", VISION),
    ("qwen3_5", "Qwen3_5VisionConfig", VISION),
    ("step3p7", "Step3p7VisionConfig", SIZES),
    ("inkling2", "Inkling2VisionConfig", SIZES),
]


def module_of(name):
    return importlib.import_module(f"transformers.models.{name}.modeling_{name}")


def configuration(name, cls, arguments):
    module = importlib.import_module(f"transformers.models.{name}.configuration_{name}")
    return getattr(module, cls)(**arguments)


def written(config) -> str:
    return json.dumps(json.loads(config.to_json_string(use_diff=False)))


def turned(module, rope, position, **told):
    """The tokens as queries of a text model, [T, H, D]."""
    out = rope(TOKENS, position, **told)
    if torch.is_tensor(out):  # complex numbers
        q, _ = module.apply_rotary_emb(TOKENS.transpose(1, 2), TOKENS.transpose(1, 2), out)
        return q[0]
    return module.apply_rotary_pos_emb(TOKENS, TOKENS, *out)[0][0].transpose(0, 1)


def patterns():
    """Each layer's type, whether it rotates, and what its queries become."""
    for name, cls, arguments in PATTERNS:
        config, module, position = configuration(name, cls, arguments), module_of(name), torch.arange(LENGTH)[None]
        text = written(config)
        rotary = [n for n in vars(module) if n.endswith("RotaryEmbedding") and "Vision" not in n]
        rope = getattr(module, rotary[0])(config)
        kinds = getattr(config, "layer_types", None) or ["full_attention"] * LAYERS
        nested = any(isinstance(value, dict) for value in config.rope_parameters.values())
        queries = {kind: turned(module, rope, position, **({"layer_type": kind} if nested else {})) for kind in kinds}
        yield f"{name}", text, kinds, torch.stack([queries[kind] for kind in kinds])


def multimodal():
    from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen

    parameters = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [3, 2, 1], "mrope_interleaved": True}
    config = qwen.Qwen3_5TextConfig(**TEXT | dict(rope_parameters=parameters | {"partial_rotary_factor": 0.5}))
    rope = qwen.Qwen3_5TextRotaryEmbedding(config)
    yield "qwen3_5", written(config), turned(qwen, rope, PLACES.T[:, None])


def towers():
    for name, cls, arguments in TOWERS:
        config, module = configuration(name, cls, arguments), module_of(name)
        rope = next(vars(module)[n] for n in vars(module) if n.endswith("VisionRotaryEmbedding"))(config)
        x = TOKENS[0].transpose(0, 1)
        yield name, written(config), module.apply_rotary_pos_emb_vision(x, x, *rope(x, PATCHES))[0]


if __name__ == "__main__":
    arrays = {"x": TOKENS[0].transpose(0, 1), "places": PLACES, "patches": PATCHES}
    layers, many, images = list(patterns()), list(multimodal()), list(towers())
    arrays |= {f"layers_{i}": case[3] for i, case in enumerate(layers)}
    arrays |= {f"many_{i}": case[2] for i, case in enumerate(many)} | {f"tower_{i}": c[2] for i, c in enumerate(images)}
    arrays = {name: value.detach().numpy() for name, value in arrays.items()}
    arrays["layers_names"], arrays["layers_configs"] = (np.array([case[i] for case in layers]) for i in (0, 1))
    arrays["layers_kinds"] = np.array([case[2] for case in layers])
    arrays["many_names"], arrays["many_configs"] = (np.array([case[i] for case in many]) for i in (0, 1))
    arrays["tower_names"], arrays["tower_configs"] = (np.array([case[i] for case in images]) for i in (0, 1))
    save("hf", arrays, packages=["torch", "transformers"])
