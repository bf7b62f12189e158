"""Saves a vision model and its parameters in a file that `load` reads, and timm too if it has the model."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from posjax.encodings.tables import Learned
from posjax.jsonl import parse_json
from posjax.models.block import BlockConfig
from posjax.models.vit import ViT, image_channels
from posjax.pretrained import entries as maps
from posjax.pretrained.fields import json_fields
from posjax.pretrained.files import write_safetensors
from posjax.pretrained.parameters import checked_paths
from posjax.pretrained.vision.origin import HALF
from posjax.pretrained.vision.timm import TIMM
from posjax.spec import parse_layers

METADATA = "posjax"  # key of the header
OWN, _TIMM = "posjax", "timm"  # spellings of names
_TYPES = {"dtype", "attention_dtype", "param_dtype"}
_AS_TIMM = ("attention_bias", "head_dim", "logit_scale", "mlp_clip", "norm", "norm_bias", "norm_offset", "num_experts")
_AS_TIMM += ("branch_scale", "latent", "mlp_norm", "placement", "qk_norm", "qkv_clip", "softcap")


def save(
    path: str | Path,
    model: ViT,
    params: Mapping[str, Any],
    *,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> None:
    """Writes one .safetensors file from which `load` makes the same model and, bit for bit, the same parameters.

    Tensors have timm's names and layouts if its VisionTransformer has the model: a learned table, and only a linear head
    after the pooling. timm assumes the exact GELU and its own epsilons, whatever the model's. Otherwise tensors have our
    names, "trunk.block_0.attention.qkv.kernel". The header's metadata hold the fields of the model.

    Args:
      path: the file, *.safetensors.
      model: the model.
      params: {"params": tree}, or the tree alone.
      mean: mean of pixels in [0, 1], by which this model's images are scaled, for `info`; None: 0.5.
      std: likewise.

    Raises:
      ValueError: the suffix is not .safetensors, or the parameters are not the model's.
    """
    tree = params["params"] if set(params) == {"params"} else params
    flat = {path: np.asarray(leaf) for path, leaf in checked_paths(model, tree, image_channels(tree)).items()}
    written = (
        maps.write_entries(TIMM[-1].entries(model, {}), flat, {"h": model.block.num_heads})
        if _timm_has(model)
        else None
    )
    names = OWN if written is None else _TIMM
    tensors = dict(written or ())
    if written is None:
        tensors = {path.replace("/", "."): np.asarray(leaf, order="C") for path, leaf in flat.items()}
    scaling = {
        name: [float(v) for v in values] for name, values in (("mean", mean), ("std", std)) if values is not None
    }
    encodings = [str(encoding) for encoding in parse_layers(model.encoding)]
    fields = json_fields(model) | {"encoding": encodings[0] if len(encodings) == 1 else encodings}
    spec = json.dumps({"names": names, "model": fields, **scaling})
    write_safetensors(path, tensors, {METADATA: spec, "format": "pt"})


def read_header(text: str) -> tuple[ViT, str, tuple[tuple[float, ...], ...]]:
    """Returns the model that a header describes, the spelling of its names, and (mean, std) of its pixels.

    Raises:
      ValueError: the header is not JSON, or has fields that a ViT has not.
    """
    where = f"the header's {METADATA!r}"
    spec = parse_json(text, where)
    if strange := sorted(spec["model"].keys() - ViT(num_classes=0).fields.keys()):
        raise ValueError(f"{where} has a model with {strange[0]!r}, which a ViT has not: a newer posjax wrote it")
    fields = {key: tuple(value) if isinstance(value, list) else value for key, value in spec["model"].items()}
    fields |= {key: jnp.dtype(fields[key]) for key in _TYPES if fields.get(key) is not None}
    scaling = tuple(tuple(spec.get(name) or HALF) for name in ("mean", "std"))
    return ViT.from_config(fields), spec["names"], scaling


def _timm_has(model: ViT) -> bool:
    encodings = parse_layers(model.encoding)
    return (
        len(encodings) == 1
        and type(encodings[0]) is Learned
        and model.injection == "stem"
        and model.block.num_kv_heads in (None, model.block.num_heads)
        and model.block.mlp_bias in (True, None if model.block.mlp != "swiglu" else True)
        and all(getattr(model.block, name) == getattr(BlockConfig, name) for name in _AS_TIMM)
    )
