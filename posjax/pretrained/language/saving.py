"""Saves a Llama or a GPT-2 and its parameters in a folder that `load` and transformers read."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from posjax.encoding import parts
from posjax.files import replace_file
from posjax.hf import to_hf
from posjax.models.decoder import Decoder
from posjax.pretrained import entries as maps
from posjax.pretrained.files import write_shards
from posjax.pretrained.language.families import FAMILIES
from posjax.pretrained.language.family import COMPUTED, TRAINING, layers_of
from posjax.pretrained.language.parts import ACTIVATIONS, GATED
from posjax.pretrained.parameters import checked_paths

_SHARD_BYTES = 5 * 10**9
_FORMATS = "posjax writes three formats: Llama and GPT-2 as folders of transformers, and timm's ViT"
# Not the defaults of transformers' classes, which fit the tokenizers of a family's first models.
_NO_TOKENS = dict.fromkeys(["bos_token_id", "eos_token_id", "pad_token_id"])


def save(
    path: str | Path,
    model: Any,
    params: Mapping[str, Any],
    *,
    config: Mapping[str, Any] | None = None,
    shard_bytes: int = _SHARD_BYTES,
) -> None:
    """Writes a folder of config.json and safetensors from which `load` and transformers make the same model.

    Tensors keep the type of the parameters; `load` returns them bit by bit.

    Args:
      path: the folder; weights in it are replaced.
      model: a `Decoder` with the blocks of a Llama or of a GPT-2.
      params: {"params": tree}, or the tree alone.
      config: further keys for config.json that change no numbers: eos_token_id, bos_token_id and pad_token_id, otherwise
        null.
      shard_bytes: approximate largest size of a file in bytes.

    Raises:
      ValueError: the model is neither (the message lists the obstacles), or the parameters are not the model's.
    """
    path = Path(path)
    if path.suffix == ".safetensors":
        raise ValueError(f"a language model is saved as a folder: give {str(path.with_suffix(''))!r}")
    flat = checked_paths(model, params)
    if not isinstance(model, Decoder):
        raise ValueError(f"{_FORMATS}; this {type(model).__name__} is none of them")
    family = FAMILIES["llama" if model.block.norm == "rms" else "gpt2"]
    try:
        described = _llama(model) if model.block.norm == "rms" else _gpt2(model)
        theirs = resolved(family.made(described))
    except ValueError as error:
        obstacles = [str(error)]
    else:
        obstacles = [
            f"{name} is {value} in this model and {theirs[name]} in that family"
            for name, value in resolved(model).items()
            if value != theirs[name]
        ]
    if obstacles:
        raise ValueError(
            f"{_FORMATS}; nearest to this model is {family.model_type!r}, against which stands: {'; '.join(obstacles)}"
        )
    described |= _NO_TOKENS | {"dtype": jnp.dtype(model.block.param_dtype).name, **(config or {})}
    family.made(described)  # refuses unknown keys
    tensors = maps.write_entries(family.entries(model), flat, family.sizes_of(model))
    write_shards(path, tensors, shard_bytes)
    replace_file(path / "config.json", json.dumps(described, indent=2).encode() + b"\n")


def _llama(model: Decoder) -> dict[str, Any]:
    block = model.block
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": model.vocab_size,
        "hidden_size": block.width,
        "num_hidden_layers": model.depth,
        "num_attention_heads": block.num_heads,
        "num_key_value_heads": block.key_heads,
        "head_dim": block.channels,
        "intermediate_size": block.mlp_channels,
        "hidden_act": next((name for name, mlp in GATED.items() if mlp == block.mlp), block.mlp),
        "rms_norm_eps": block.norm_epsilon,
        "attention_bias": bool(block.attention_bias),
        "mlp_bias": block.has_mlp_bias,
        "tie_word_embeddings": model.tied_embedding,
        "max_position_embeddings": model.length,
        **to_hf(layers_of(model)[0]),
    }
    return {name: value for name, value in config.items() if value is not None}


def _gpt2(model: Decoder) -> dict[str, Any]:
    block = model.block
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": model.vocab_size,
        "n_embd": block.width,
        "n_layer": model.depth,
        "n_head": block.num_heads,
        "n_inner": block.mlp_channels,
        "n_positions": model.length,
        "activation_function": next((name for name, mlp in ACTIVATIONS.items() if mlp == block.mlp), block.mlp),
        "layer_norm_epsilon": block.norm_epsilon,
        "tie_word_embeddings": model.tied_embedding,
    }


def resolved(model: Decoder) -> dict[str, Any]:
    """Returns the fields that a model's numbers depend on, defaults filled in: equal for models that compute the same."""
    block, layers = model.block, layers_of(model)
    fields = {name: value for name, value in model.fields.items() if name not in (*COMPUTED, *TRAINING)}
    fields |= dict(encoding=tuple(sorted(map(str, parts(layer))) for layer in layers))  # sums of encodings that commute
    fields |= dict(qk_norm=tuple(block.of_layer(layer).qk_norm for layer in range(model.depth)))
    fields |= dict(head_dim=block.channels, num_kv_heads=block.key_heads)
    fields |= dict(mlp_dim=block.mlp_channels, mlp_bias=block.has_mlp_bias, logit_scale=block.scale)
    fields |= dict(attention_bias=tuple(sorted(set(block.attention_bias))))
    if fields["embedding_scale"] is None:
        fields["embedding_scale"] = block.width**0.5
    if not any("embed" in layer.hooks for layer in layers):  # then these fields have no effect
        fields |= dict(length=None, injection=None)
    return fields
