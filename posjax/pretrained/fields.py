"""The kinds of a model's fields in a file, and their bounds by the file's tensors."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from posjax.checks import (
    AMOUNT,
    COUNT,
    FLAG,
    LAYERS,
    NUMBER,
    POSITIVE,
    RATE,
    SIZE,
    TEXT,
    Kind,
    check,
    either,
    maybe,
    several,
)
from posjax.models.latent import Latent
from posjax.spec import layers_text, parse_layers

_TYPE = Kind(
    "a type of floats", lambda value: value in ("float16", "bfloat16", "float32", "float64")
)  # named as in JSON
SIDE = Kind("a side from 1 to 16,384 pixels", lambda value: SIZE.holds(value) and value <= 2**14)
_MOST_PATCHES = 2**22

KINDS: dict[str, Kind] = {
    **dict.fromkeys(("width", "num_heads", "patch_size", "resnet_width", "experts_per_token", "vocab_size"), SIZE),
    **dict.fromkeys(("head_dim", "num_kv_heads", "mlp_dim", "pre_logits", "length"), maybe(SIZE)),
    **dict.fromkeys(("num_classes", "num_registers", "num_experts", "num_types", "num_pair_classes"), COUNT),
    **dict.fromkeys(("pooling", "injection", "remat", "mlp", "norm", "placement", "implementation"), TEXT),
    **dict.fromkeys(
        ("distillation_token", "norm_after_pooling", "scan", "norm_bias", "mlp_norm", "tied_embedding"), FLAG
    ),
    **dict.fromkeys(("embedding_norm", "first_norm", "head_bias", "head_dense_bias", "pooler"), FLAG),
    **dict.fromkeys(("dropout", "drop_path", "patch_dropout"), RATE),
    **dict.fromkeys(("mlp_clip", "qkv_clip", "softcap", "final_softcap"), maybe(POSITIVE)),
    **dict.fromkeys(("logit_scale", "layer_scale", "embedding_scale"), maybe(NUMBER)),
    **dict.fromkeys(("dtype", "attention_dtype", "param_dtype"), maybe(_TYPE)),
    **dict.fromkeys(("encoding", "decoder_encoding"), either(TEXT, several(TEXT, 1))),
    "depth": LAYERS,
    "decoder_depth": maybe(LAYERS),
    "norm_epsilon": AMOUNT,
    "norm_offset": NUMBER,
    **dict.fromkeys(("branch_scale", "head_scale"), NUMBER),
    "head": maybe(TEXT),
    "latent": maybe(TEXT),
    "mlp_bias": maybe(FLAG),
    "attention_bias": several(TEXT),
    "qk_norm": either(FLAG, TEXT, several(either(FLAG, TEXT), 1)),
    "resnet": maybe(several(SIZE)),
    "image_size": several(SIDE, 2, 2),
}
# Each of these fields enlarges arrays of the file, so it is at most the number of their elements.
_SIZES = ("width", "num_heads", "patch_size", "resnet_width", "vocab_size", "head_dim", "num_kv_heads", "mlp_dim")
_SIZES += ("pre_logits", "num_classes", "num_registers", "num_experts", "num_types", "num_pair_classes")
_DEPTHS = ("depth", "decoder_depth")


def check_fields(where: str, fields: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]] | None = None) -> None:
    """Validates the types and ranges of fields before a model is made of them.

    Args:
      where: the name of the file in messages.
      shapes: of the tensors of the file that the model is for: layers are no more than these, sizes than their elements.

    Raises:
      ValueError: a field is invalid; the message names it.
    """
    check(where, fields, KINDS)
    if "image_size" in fields and "patch_size" in fields:
        patches = math.prod(fields["image_size"]) // fields["patch_size"] ** 2
        if patches > _MOST_PATCHES:
            raise ValueError(
                f"{where}: image_size {fields['image_size']} has {patches:,} patches: {_MOST_PATCHES:,} are read"
            )
    if shapes is None:
        return
    elements = sum(map(math.prod, shapes.values()))
    units = sum(fields.get("resnet") or ())
    latent = Latent.read(fields.get("latent"))
    for name, value, most, what in (
        *((name, fields.get(name), len(shapes), "tensors") for name in _DEPTHS),
        ("resnet", units, len(shapes), "tensors"),
        *((name, fields.get(name), elements, "elements") for name in _SIZES),
        *((f"latent's {name}", size, elements, "elements") for name, size in (vars(latent) if latent else {}).items()),
    ):
        if value is not None and value > most:
            raise ValueError(f"{where}: {name} is {value:,}, and the file has {most:,} {what} only")


def json_fields(model: Any) -> dict[str, Any]:
    """Returns the fields of a model and its block in terms of JSON; `from_config` of its class makes the same model."""
    fields = {name: value for name, value in model.fields.items() if name != "context"}
    for name in ("dtype", "attention_dtype", "param_dtype"):
        fields[name] = None if fields[name] is None else np.dtype(fields[name]).name
    latent = None if model.block.latent is None else str(model.block.latent)
    return fields | {"latent": latent, "encoding": layers_text(parse_layers(model.encoding))}
