"""Saves a language model and its parameters in a folder that `load` and transformers read."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from posjax.files import replace_file
from posjax.pretrained import entries as maps
from posjax.pretrained.files import write_shards
from posjax.pretrained.language.families import FAMILIES
from posjax.pretrained.parameters import checked_paths
from posjax.spec import nearest

_SHARD_BYTES = 5 * 10**9
# Not the defaults of transformers' classes, which fit the tokenizers of a family's first models.
_NO_TOKENS = dict.fromkeys(["bos_token_id", "eos_token_id", "pad_token_id"])


def save(
    path: str | Path,
    model: Any,
    params: Mapping[str, Any],
    *,
    family: str | None = None,
    config: Mapping[str, Any] | None = None,
    shard_bytes: int = _SHARD_BYTES,
) -> None:
    """Writes a folder of config.json and safetensors from which `load` and transformers make the same model.

    Tensors keep the type of the parameters; `load` returns them bit by bit.

    Args:
      path: the folder; weights in it are replaced.
      model: the model.
      params: {"params": tree}, or the tree alone.
      family: model_type of the family that names the tensors; None: the first family that has the model.
      config: further keys for config.json that change no numbers: eos_token_id, bos_token_id and pad_token_id, otherwise
        null.
      shard_bytes: approximate largest size of a file in bytes.

    Raises:
      ValueError: no family of transformers has the model (the message lists the obstacles), or the parameters are not the
        model's.
    """
    path = Path(path)
    if path.suffix == ".safetensors":
        raise ValueError(
            f"a language model is saved as a folder, with its config.json: give {str(path.with_suffix(''))!r}"
        )
    flat = checked_paths(model, params)
    if family is not None and family not in FAMILIES:
        raise ValueError(f"no language model of model_type {family!r} is known; {nearest(family, sorted(FAMILIES))}")
    name, reasons = next(iter(obstacles(model, family).items()))
    if reasons:
        raise ValueError(
            f"transformers has no such model; nearest is {name!r}, against which stands: {'; '.join(reasons)}"
        )
    chosen = FAMILIES[name]
    described, _ = chosen.described(model)
    described = _NO_TOKENS | described | {"dtype": jnp.dtype(model.block.param_dtype).name, **(config or {})}
    chosen.made(described)  # refuses keys that the family lacks
    tensors = maps.write_entries(chosen.entries(model), flat, chosen.sizes_of(model))
    if tensors is None:
        raise ValueError(f"a {chosen.model_type!r} has no place for all parameters of this model")
    write_shards(path, tensors, shard_bytes)
    replace_file(path / "config.json", json.dumps(described, indent=2).encode() + b"\n")


def obstacles(model: Any, family: str | None = None) -> dict[str, list[str]]:
    """The reasons against a model in each family of transformers of its class, or in one family; [] for none.

    The nearest family, with the fewest obstacles, comes first.

    >>> from posjax.models import BlockConfig, Decoder
    >>> block = BlockConfig(norm="rms", mlp="swiglu", attention_bias=())
    >>> model = Decoder(vocab_size=256, encoding="alibi", block=block, tied_embedding=False, embedding_scale=1.0)
    >>> obstacles(model, "llama")
    {'llama': ["transformers' rope_parameters describe rope, p_rope and mrope with a scaling, and axial_rope, not alibi()"]}
    """
    chosen = [FAMILIES[family]] if family else [one for one in FAMILIES.values() if one.model is type(model)]
    against = {one.model_type: one.described(model)[1] for one in chosen or FAMILIES.values()}
    return dict(sorted(against.items(), key=lambda item: len(item[1])))
