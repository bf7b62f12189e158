"""transformers' safetensors: ViT, DeiT, Dinov2, Dinov2WithRegisters, DINOv3ViT, from save_pretrained or a state_dict.

transformers 5 calls modules otherwise in memory than in files; the spellings of both, and of the four architectures, are
made one before the map: `layer.{l}.attention.{query,key,value,out}`, `layer.{l}.norm1`, `layer.{l}.mlp.fc1`.
https://github.com/huggingface/transformers, models/{vit,deit,dinov2,dinov2_with_registers,dinov3_vit}.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from posjax.encodings.rotary_grid import DinoV3
from posjax.models.vit import ViT
from posjax.pretrained.entries import Entry, heads, layered, norm, torch_linear
from posjax.pretrained.vision.origin import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Hints,
    Origin,
    Shapes,
    count,
    prefix_entries,
    prefix_fields,
    split_heads,
    square_patch,
    table_entry,
    table_grid,
)
from posjax.spec import nearest

_RENAMES = (
    (r"^(vit|deit|dinov2|dinov2_with_registers|dinov3_vit)\.", ""),
    (r"^(model\.|encoder\.)*layers?\.", "layer."),
    (r"\.attention\.(attention\.)?(q_proj|query)\.", ".attention.query."),
    (r"\.attention\.(attention\.)?(k_proj|key)\.", ".attention.key."),
    (r"\.attention\.(attention\.)?(v_proj|value)\.", ".attention.value."),
    (r"\.attention\.(output\.dense|o_proj)\.", ".attention.out."),
    (r"\.(layernorm_before|norm_before)\.", ".norm1."),
    (r"\.(layernorm_after|norm_after)\.", ".norm2."),
    (r"\.intermediate\.dense\.", ".mlp.fc1."),
    (r"^(layer\.\d+)\.output\.dense\.", r"\1.mlp.fc2."),
    (r"\.mlp\.up_proj\.", ".mlp.fc1."),
    (r"\.mlp\.(down_proj|weights_out)\.", ".mlp.fc2."),
    (r"^layernorm\.", "norm."),
    (r"^embeddings\.patch_embeddings\.projection\.", "embeddings.patch_embeddings."),
    (r"^cls_classifier\.", "classifier."),
)
_PREFIX = {
    "cls": "embeddings.cls_token",
    "distillation": "embeddings.distillation_token",
    "registers": "embeddings.register_tokens",
}
_TABLE, _PATCHES = "embeddings.position_embeddings", "embeddings.patch_embeddings"
_ACTIVATIONS = {"gelu": "gelu_exact", "gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "silu": "swiglu"}
# Defaults for files without a configuration.
_EPSILONS = {"dinov2": 1e-6, "dinov3": 1e-5, "vit": 1e-12}


def _fields(shapes: Shapes, config: Mapping[str, Any], hints: Hints) -> dict[str, Any]:
    kernel = shapes[f"{_PATCHES}.weight"]
    width, depth = kernel[0], count(shapes, "layer.{}.norm1.weight")
    tokens = {token: shapes[name][1] for token, name in _PREFIX.items() if name in shapes}
    if "distillation_classifier.weight" not in shapes and "distillation" in tokens:
        tokens["registers"] = tokens.pop("distillation")  # never read
    packed, gated = "layer.0.mlp.weights_in.weight" in shapes, "layer.0.mlp.gate_proj.weight" in shapes
    mlp = _gate(config, packed) if packed or gated else _activation(config)
    if "pooler.dense.bias" in shapes and (act := config.get("pooler_act") or "tanh") != "tanh":
        raise ValueError(f"the configuration's pooler_act is {act!r}: only 'tanh' is known here")
    classifier = shapes.get("classifier.weight", (0, width))
    default = "cls_mean" if classifier[1] == 2 * width else "cls"
    epsilon = _EPSILONS[
        "vit" if "layer.0.layer_scale1.lambda1" not in shapes else "dinov2" if _TABLE in shapes else "dinov3"
    ]
    fields = dict(
        num_classes=classifier[0],
        patch_size=square_patch(kernel[2:], f"{_PATCHES}.weight"),
        width=width,
        depth=depth,
        num_heads=split_heads(width, depth, hints, config, wide=not gated or width != 1280),
        mlp_dim=shapes["layer.0.mlp.fc2.weight"][1],
        mlp=mlp,
        mlp_bias="layer.0.mlp.fc2.bias" in shapes,
        layer_scale=1e-5 if "layer.0.layer_scale1.lambda1" in shapes else None,
        pre_logits=shapes["pooler.dense.bias"][0] if "pooler.dense.bias" in shapes else None,
        norm_epsilon=config.get("layer_norm_eps", epsilon),
        **prefix_fields(tokens, hints.pooling or default),
    )
    patch, size = fields["patch_size"], config.get("image_size")
    size = (size, size) if isinstance(size, int) else size and tuple(size)
    if _TABLE not in shapes:
        return {
            **fields,
            "encoding": hints.encoding or _dinov3(config),
            "image_size": hints.image_size or size or (224, 224),
        }
    rows = {
        token: n for token, n in tokens.items() if token != "registers" or "embeddings.distillation_token" in shapes
    }
    hint = size and (size[0] // patch, size[1] // patch)
    grid = table_grid(shapes[_TABLE][1], [sum(rows.values())], hints.grid, hint)
    return {**fields, "encoding": "learned", "image_size": (grid[0] * patch, grid[1] * patch)}


def _gate(config: Mapping[str, Any], packed: bool) -> str:
    """Returns the gate's activation: always SiLU in DINOv2, configured in DINOv3."""
    act = config.get("hidden_act", "silu")
    if not packed and act != "silu":
        raise ValueError(f"the configuration's gated MLP has hidden_act {act!r}: only 'silu' is known here")
    return "swiglu"


def _activation(config: Mapping[str, Any]) -> str:
    act = config.get("hidden_act", "gelu")
    if _ACTIVATIONS.get(act, "swiglu") == "swiglu":
        raise ValueError(f"the configuration's hidden_act is {act!r}; {nearest(act, ['gelu', 'gelu_new'])}")
    return _ACTIVATIONS[act]


def _dinov3(config: Mapping[str, Any]) -> DinoV3:
    """Returns DINOv3's encoding with the configured augmentation, which acts only in training."""
    return DinoV3(
        base=config.get("rope_theta") or 100.0,
        shift_coords=config.get("pos_embed_shift") or 0.0,
        jitter_coords=config.get("pos_embed_jitter") or 1.0,
        rescale_coords=config.get("pos_embed_rescale") or 1.0,
    )


def _entries(model: ViT, shapes: Shapes) -> list[Entry]:
    return [
        Entry(f"{_PATCHES}.weight", "patches_to_tokens/kernel", "m c p q -> p q c m"),
        Entry(f"{_PATCHES}.bias", "patches_to_tokens/bias", "m -> m"),
        *prefix_entries(model, _PREFIX, shapes),
        *(table_entry(_TABLE, model, shapes) if _TABLE in shapes else []),
        *norm("norm", "trunk/norm"),
        *torch_linear("pooler.dense", "pre_logits"),
        *torch_linear("classifier", "head"),
        *torch_linear("distillation_classifier", "head_distillation"),
        *layered(_block(), model.depth),
    ]


def _block() -> Iterator[Entry]:
    block, attention, mlp = "layer.{l}.", "trunk/block_{l}/attention/", "trunk/block_{l}/mlp/"
    yield from norm(f"{block}norm1", "trunk/block_{l}/attention_norm")
    yield from norm(f"{block}norm2", "trunk/block_{l}/mlp_norm")
    yield Entry(f"{block}layer_scale1.lambda1", "trunk/block_{l}/attention_scale", "m -> m")
    yield Entry(f"{block}layer_scale2.lambda1", "trunk/block_{l}/mlp_scale", "m -> m")
    theirs = f"{block}attention.{{}}"
    yield Entry(heads(f"{theirs}.weight"), f"{attention}qkv/kernel", "(h d) m -> m h n d")
    yield Entry(
        heads(f"{theirs}.bias"), f"{attention}qkv/bias", "(h d) -> h n d", optional=True
    )  # DINOv3's keys have no bias
    yield Entry(f"{block}attention.out.weight", f"{attention}out/kernel", "m (h d) -> h d m")
    yield Entry(f"{block}attention.out.bias", f"{attention}out/bias", "m -> m", optional=True)
    yield from torch_linear(f"{block}mlp.fc1", f"{mlp}up")
    yield from torch_linear(f"{block}mlp.gate_proj", f"{mlp}gate")
    packed = (f"{mlp}gate", f"{mlp}up")  # layout of a saved Dinov2 with SwiGLU
    yield Entry(f"{block}mlp.weights_in.weight", tuple(f"{part}/kernel" for part in packed), "(s o) i -> i o")
    yield Entry(f"{block}mlp.weights_in.bias", tuple(f"{part}/bias" for part in packed), "(s o) -> o")
    yield from torch_linear(f"{block}mlp.fc2", f"{mlp}down")


_FAMILY = dict(
    renames=_RENAMES, fields=_fields, entries=_entries, ignored=r"embeddings\.mask_token", method="torch_bicubic"
)
_PARTS = _FAMILY | dict(scaling=(IMAGENET_MEAN, IMAGENET_STD))
_ANTIALIASED = _PARTS | dict(method="torch_bicubic_antialias")
HF = [  # each by its telltale names; all share one map
    Origin("transformers dinov2_with_registers", (_TABLE, "embeddings.register_tokens"), **_ANTIALIASED),
    Origin("transformers dinov2", (_TABLE, "layer.0.layer_scale1.lambda1"), **_PARTS),
    Origin("transformers dinov3_vit", ("layer.0.layer_scale1.lambda1",), **_PARTS),
    Origin("transformers deit", ("embeddings.distillation_token",), **_PARTS),
    Origin("transformers vit", (_TABLE,), **_FAMILY),
]
