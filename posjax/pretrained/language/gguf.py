"""A GGUF file as a folder of transformers: its configuration, its tensors' names, and the numbers as transformers has them.

llama.cpp stores some numbers in another form, which is undone here:

* llama (Mistral too): the rows of a head's queries and keys are interleaved, so that neighbours turn together; other families
  keep halves. `rope(layout="interleaved")` would read the rows as they are.
* gemma2, gemma3: a norm's scale is stored as w + 1, in transformers as w.
* gpt2: four matrices of a layer are transposed.
* `rope_freqs.weight` and `rope_factors_*.weight` are divisors of the rotary frequencies: Llama 3's scaling, and LongRoPE's.

Source: convert_hf_to_gguf.py of ggml-org/llama.cpp. Every field of the architecture is read, or refused by its name.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from posjax.gguf import GGUF
from posjax.pretrained.files import WeightsFile
from posjax.pretrained.language.families import find_family
from posjax.spec import nearest

Config = dict[str, Any]
_PATTERN = 6  # layers from one global layer of Gemma 3 to the next; files of llama.cpp leave it out
# Keys of an architecture's fields, and the keys of transformers that mean the same.
_KEYS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "rope.freq_base": "rope_theta",
    "vocab_size": "vocab_size",
}
_GPT2_KEYS = {
    "context_length": "n_positions",
    "embedding_length": "n_embd",
    "block_count": "n_layer",
    "feed_forward_length": "n_inner",
    "attention.head_count": "n_head",
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
    "vocab_size": "vocab_size",
}
_NEEDED = ("context_length", "embedding_length", "block_count", "attention.head_count")
# Fields that `_rotary` and the functions of architectures read.
_READ = {
    *("attention.value_length", "rope.dimension_count", "rope.freq_base_swa", "attention.sliding_window_pattern"),
    *(f"rope.scaling.{name}" for name in ("type", "factor", "original_context_length", "attn_factor", "finetuned")),
    "rope.scale_linear",
}


def open_gguf(path: Path) -> WeightsFile:
    """Opens a file; `config` is the configuration that transformers would have beside it.

    Raises:
      ImportError: the package `gguf` is missing.
      ValueError: the file is damaged, its architecture or one of its fields is unknown, or it is one of several shards.
    """
    file = GGUF(path)
    config = _config(file)
    family = find_family(config)
    model = family.made(config)
    names = file.names_of([name for entry in family.entries(model) for name in entry.names], model.depth)
    shapes, changed = {}, {}
    for name, theirs in names.items():
        changed[name] = _undone(config, name)
        shape = file.tensors[theirs].shape
        shapes[name] = shape[::-1] if changed[name] is np.transpose else shape
    for left in file.tensors.keys() - {*names.values(), *_DIVISORS}:
        shapes[left] = file.tensors[left].shape  # the loader refuses it by name

    def read(name: str) -> np.ndarray:
        return changed[name](file[names[name]]) if name in names else file[name]

    weights = WeightsFile(path, shapes, read, {})
    weights.config = config
    return weights


_DIVISORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def _config(file: GGUF) -> Config:
    architecture = file.fields.get("general.architecture")
    if architecture not in _ARCHITECTURES:
        near = nearest(str(architecture), sorted(_ARCHITECTURES))
        raise ValueError(f"{file.path}: no architecture {architecture!r} of GGUF is read; {near}")
    if (count := file.fields.get("split.count", 1)) > 1:
        raise ValueError(f"{file.path} is one of {count} shards: merge them with llama-gguf-split --merge")
    own = {
        key.removeprefix(f"{architecture}."): value
        for key, value in file.fields.items()
        if key.startswith(f"{architecture}.")
    }
    keys = _GPT2_KEYS if architecture == "gpt2" else _KEYS
    for key, value in own.items():
        if key not in keys and key not in _READ:
            raise ValueError(f"{file.path}: the field {architecture}.{key} (= {str(value)[:60]}) is not known here")
        if isinstance(value, list) and key != "attention.sliding_window_pattern":
            raise ValueError(f"{file.path}: {architecture}.{key} differs between layers, which is not computed here")
    needed = list(_NEEDED)
    if architecture.startswith("gemma"):
        needed.append("attention.key_length")
    if own.get("rope.scaling.type") == "yarn" or "rope_factors_long.weight" in file:
        needed.append("rope.scaling.original_context_length")
    for key in needed:
        if key not in own:
            raise ValueError(f"{file.path}: the field {architecture}.{key} is missing")
    config = {name: own[key] for key, name in keys.items() if key in own}
    config.setdefault(
        "vocab_size", file.tensors["token_embd.weight"].shape[0] if "token_embd.weight" in file.tensors else 0
    )
    config["tie_word_embeddings"] = "output.weight" not in file.tensors
    return _ARCHITECTURES[architecture](config, own, file)


def _of_llama(config: Config, own: Mapping[str, Any], file: GGUF) -> Config:
    biases = {"attention_bias": "blk.0.attn_q.bias" in file.tensors, "mlp_bias": "blk.0.ffn_up.bias" in file.tensors}
    rotary = _rotary(own, config, file)
    return config | rotary | biases | {"model_type": "llama", "hidden_act": "silu"}


def _of_qwen(model_type: str) -> Callable[[Config, Mapping[str, Any], GGUF], Config]:
    return lambda config, own, file: (
        config | _rotary(own, config, file) | {"model_type": model_type, "hidden_act": "silu"}
    )


def _of_phi3(config: Config, own: Mapping[str, Any], file: GGUF) -> Config:
    rotary = _rotary(own, config, file)
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    if (turning := own.get("rope.dimension_count", head_dim)) != head_dim:
        rotary["partial_rotary_factor"] = turning / head_dim
    if "rope_factors_long.weight" in file:
        factors = (file[f"rope_factors_{name}.weight"] for name in ("short", "long"))
        short, long = ([float(str(number)) for number in numbers] for numbers in factors)  # the shortest decimals
        rotary["rope_scaling"] = {"rope_type": "longrope", "short_factor": short, "long_factor": long}
        length = rotary["original_max_position_embeddings"] = own["rope.scaling.original_context_length"]
        attention = math.sqrt(1 + max(0.0, math.log(config["max_position_embeddings"] / length)) / math.log(length))
        if not math.isclose(own.get("rope.scaling.attn_factor", attention), attention, rel_tol=1e-3):
            factor = own["rope.scaling.attn_factor"]
            raise ValueError(f"{file.path}: rope.scaling.attn_factor={factor} is not LongRoPE's {attention:.4f}")
    config.setdefault("sliding_window", None)
    return config | rotary | {"model_type": "phi3", "hidden_act": "silu"}


# Layers of the 27B models, which scale logits by the width of a head; the others scale by its channels.
_WIDEST = {"gemma2": 46, "gemma3_text": 62}


def _of_gemma(model_type: str) -> Callable[[Config, Mapping[str, Any], GGUF], Config]:
    def made(config: Config, own: Mapping[str, Any], file: GGUF) -> Config:
        depth, head_dim = config["num_hidden_layers"], own["attention.key_length"]
        scalar = config["hidden_size"] // config["num_attention_heads"] if depth == _WIDEST[model_type] else head_dim
        config |= {"model_type": model_type, "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": scalar}
        rotary = _rotary(own, config, file)
        if model_type == "gemma2":
            return config | rotary
        theta = config.pop("rope_theta")
        scaling = rotary.get("rope_scaling") or {"rope_type": "default"}
        local = {"rope_type": "default", "rope_theta": own.get("rope.freq_base_swa", 1e4)}
        pattern = own.get("attention.sliding_window_pattern", _PATTERN)
        windowed = pattern if isinstance(pattern, list) else [(layer + 1) % pattern != 0 for layer in range(depth)]
        config["rope_parameters"] = {"full_attention": scaling | {"rope_theta": theta}, "sliding_attention": local}
        config["layer_types"] = ["sliding_attention" if each else "full_attention" for each in windowed]
        return config

    return made


def _rotary(own: Mapping[str, Any], config: Config, file: GGUF) -> Config:
    """Returns the keys of the rotary scaling; {} without one. Adds the head dim where the file leaves it out."""
    head_dim = own.get("attention.key_length") or config["hidden_size"] // config["num_attention_heads"]
    config["head_dim"] = head_dim
    turning = "rope.dimension_count" if file.fields["general.architecture"] != "phi3" else "attention.value_length"
    for name in ("attention.value_length", turning):
        if own.get(name, head_dim) != head_dim:
            raise ValueError(f"{file.path}: {name}={own[name]} beside heads of {head_dim} is not computed here")
    kind = own.get("rope.scaling.type", "none")
    factor = own.get("rope.scaling.factor", own.get("rope.scale_linear", 1.0))
    if "rope_freqs.weight" in file:
        return {"rope_scaling": _llama3(file, config.get("rope_theta", 1e4))}
    if kind == "linear" or (kind == "none" and factor != 1.0):
        return {"rope_scaling": {"rope_type": "linear", "factor": factor}}
    if kind == "yarn":
        length = own["rope.scaling.original_context_length"]
        return {"rope_scaling": {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": length}}
    if kind not in ("none", "longrope"):
        raise ValueError(f"{file.path}: rope.scaling.type={kind!r} is not computed here")
    return {}


def _llama3(file: GGUF, theta: float) -> Config:
    """Returns the scaling of Llama 3 whose divisors of the frequencies a file holds.

    The ends of the ramp are 1 and 4, as in all released models; the trained length is solved for on the ramp.
    """
    divisors = np.asarray(file["rope_freqs.weight"], np.float64)
    wavelengths = 2 * np.pi * theta ** (np.arange(len(divisors)) / len(divisors))
    factor, low, high = float(divisors.max()), 1.0, 4.0
    ramp = np.flatnonzero((divisors > 1) & (divisors < factor))
    if len(ramp):
        share = (1 / divisors[ramp[0]] - 1 / factor) / (1 - 1 / factor)
        length = round(wavelengths[ramp[0]] * (low + share * (high - low)))
        shares = np.clip((length / wavelengths - low) / (high - low), 0, 1)
        if np.allclose(1 / ((1 - shares) / factor + shares), divisors, rtol=1e-4):
            bounds = {"low_freq_factor": low, "high_freq_factor": high, "original_max_position_embeddings": length}
            return {"rope_type": "llama3", "factor": factor, **bounds}
    raise ValueError(f"{file.path}: the divisors in rope_freqs.weight are not those of Llama 3's scaling")


_ARCHITECTURES = {
    "llama": _of_llama,
    "qwen2": _of_qwen("qwen2"),
    "qwen3": _of_qwen("qwen3"),
    "gemma2": _of_gemma("gemma2"),
    "gemma3": _of_gemma("gemma3_text"),
    "gpt2": lambda config, own, file: config | {"model_type": "gpt2", "activation_function": "gelu_new"},
    "phi3": _of_phi3,
}


def _undone(config: Config, name: str) -> Callable[[np.ndarray], np.ndarray]:
    if config["model_type"] == "llama" and (".q_proj." in name or ".k_proj." in name):
        heads = config["num_attention_heads"] if ".q_proj." in name else config["num_key_value_heads"]

        def in_halves(rows: np.ndarray) -> np.ndarray:
            """Returns rows [H D, ...] whose pairs are (c, c + D/2) in each head, from pairs (2c, 2c + 1)."""
            pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])
            return pairs.swapaxes(1, 2).reshape(rows.shape)

        return in_halves
    if config["model_type"].startswith("gemma") and name.endswith("norm.weight"):
        return lambda scale: scale - 1
    if config["model_type"] == "gpt2" and name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
        return np.transpose
    return lambda tensor: tensor
