"""timm's safetensors: VisionTransformer (ViT, DeiT, DeiT III, DINOv2, hybrids, SigLIP's image tower) and Eva (DINOv3).

Also DINOv2 and ViT-5 under their authors' names, and files that `save` writes under timm's names.
https://github.com/huggingface/pytorch-image-models, timm/models/{vision_transformer,vision_transformer_hybrid,eva}.py.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from posjax.models.pooling import POOLINGS
from posjax.models.vit import ViT
from posjax.pretrained.entries import Entry, heads, layered, norm, torch_linear
from posjax.pretrained.vision.origin import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Hints,
    Origin,
    Shapes,
    count,
    has_table,
    prefix_entries,
    prefix_fields,
    shrinks,
    split_heads,
    square_patch,
    table_entry,
    table_grid,
)
from posjax.spec import nearest, parse_layers

# (pattern of DINOv2's names, timm's name)
_RENAMES = ((r"^register_tokens$", "reg_token"), (r"\.mlp\.w12\.", ".mlp.fc1."), (r"\.mlp\.w3\.", ".mlp.fc2."))
_PREFIX = {"cls": "cls_token", "distillation": "dist_token", "registers": "reg_token"}
_ACTIVATIONS = {"gelu": "gelu_exact", "gelu_tanh": "gelu"}
_NAMED_ACTIVATIONS = (  # of timm's models, by a pattern of the model's name
    (r"quickgelu", "quick_gelu"),
    (r"base_patch32_siglip|large_patch16_siglip(_gap)?_512|(so400m|giantopt)_patch16_siglip", "gelu_tanh"),
)
_EVA = "(fit_grid(height=16, width=16) >> axial_rope(base=10000, layout='interleaved'))"
_ROPE = "axial_rope(indexing='xy', layout='interleaved')"
_NAMED_ROTARY = ((r"_rope_(ape_)?\d", _ROPE), (r"_rope_reg\d_gap_|^eva02_(?!enormous)", _EVA))  # by a model's name, too
_VIT5 = "learned + axial_rope(base=10000, layout='interleaved') + register_rope()"
_MIXED = "rope.freqs"  # learned frequencies [2, L, H, D/2], those of the columns first
_INNER_NORM = "blocks.0.attn.norm.weight"
_POOLINGS = {"token": "cls", "avg": "mean", "map": "map"}
_STEM = "patch_embed.backbone."


def _fields(shapes: Shapes, config: Mapping[str, Any], hints: Hints) -> dict[str, Any]:
    if _INNER_NORM in shapes:
        raise ValueError(f"norms inside attention (eva02_*_clip_*, beit3_*) are not computed here: {_INNER_NORM}")
    kernel, gated = shapes["patch_embed.proj.weight"], "blocks.0.mlp.fc1_g.weight" in shapes
    up = shapes["blocks.0.mlp.fc1_g.weight" if gated else "blocks.0.mlp.fc1.weight"][0]
    tokens = {token: shapes[name][1] for token, name in _PREFIX.items() if name in shapes}
    if "head_dist.weight" not in shapes and "distillation" in tokens:
        tokens["registers"] = tokens.get("registers", 0) + tokens.pop("distillation")  # never read
    options = config.get("model_args") or {}
    width, depth = kernel[0], count(shapes, "blocks.{}.norm1.weight")
    is_eva = "blocks.0.gamma_1" in shapes
    # EVA-02's E, whose norms follow attention and MLP under names of norms before them.
    is_enormous = (width, depth) == (1792, 64) or (config.get("architecture") or "").startswith("eva02_enormous")
    packed = not gated and up == 2 * shapes["blocks.0.mlp.fc2.weight"][1]
    # SigLIP 2's giant has wider heads than others of the same width and depth, which have layer scale.
    giant = (width, depth) == (1536, 40) and not is_eva and "blocks.0.ls1.gamma" not in shapes
    shown = shapes[_MIXED][2] if _MIXED in shapes else 16 if giant else None
    fields = dict(
        num_classes=shapes["head.weight"][0] if "head.weight" in shapes else 0,
        patch_size=square_patch(kernel[2:], "patch_embed.proj.weight"),
        width=width,
        depth=depth,
        num_heads=split_heads(width, depth, hints, config, shown, not gated or width != 1280),
        mlp_dim=up // 2 if packed else up,
        mlp="swiglu" if gated or packed else _activation(config),
        mlp_bias=True,
        mlp_norm="blocks.0.mlp.norm.weight" in shapes,
        placement="after" if is_enormous else "pre",
        injection="every_layer" if _MIXED in shapes else "stem",
        layer_scale=1e-5 if is_eva or "blocks.0.ls1.gamma" in shapes else None,
        norm_after_pooling="fc_norm.weight" in shapes,
        norm_epsilon=1e-5 if _is_dinov3(shapes) else 1e-6,
        **prefix_fields(tokens, hints.pooling or _pooling(shapes, config)),
        **_stem(shapes),
    )
    hints = hints._replace(encoding=hints.encoding or _named_rotary(shapes, config))
    cell = fields["patch_size"] * shrinks(fields.get("resnet"))
    hint = options.get("img_size") or (config.get("pretrained_cfg") or {}).get("input_size")
    hint = (hint, hint) if isinstance(hint, int) else hint and tuple(hint[-2:])
    if "pos_embed" not in shapes:
        size = hints.image_size or hint or (16 * cell, 16 * cell)
        return {**fields, "encoding": "rope_mixed" if _MIXED in shapes else _rotary(shapes, hints), "image_size": size}
    total = sum(tokens.values())
    prefixes = sorted({0, total, *([1] if "cls" in tokens else [])})
    hint = hint and (hint[0] // cell, hint[1] // cell)
    rows, columns = table_grid(shapes["pos_embed"][1], prefixes, hints.grid, hint)
    fields["image_size"] = (rows * cell, columns * cell)
    if _MIXED in shapes:
        return {**fields, "encoding": ("learned + rope_mixed", *["rope_mixed"] * (depth - 1))}
    is_rotary = is_eva or gated or (packed and "blocks.0.ls1.gamma" not in shapes)
    return {**fields, "encoding": _with_table(hints, is_rotary)}


def _vit5_fields(shapes: Shapes, config: Mapping[str, Any], hints: Hints) -> dict[str, Any]:
    """The fields of wangf3014/ViT-5, models_vit5.py."""
    heads = shapes["pos_embed"][-1] // shapes["blocks.0.attn.q_norm.weight"][0]
    hints = hints._replace(num_heads=hints.num_heads or heads, encoding=hints.encoding or _VIT5)
    own = dict(norm="rms", qk_norm=True, attention_bias=("out",), layer_scale=1e-4, drop_path_constant=True)
    return _fields(shapes, config, hints) | own


def _activation(config: Mapping[str, Any]) -> str:
    """The models that timm's functions of that name build; configurations do not repeat these fields."""
    named = config.get("architecture") or ""
    default = next((act for pattern, act in _NAMED_ACTIVATIONS if re.search(pattern, named)), "gelu")
    act = (config.get("model_args") or {}).get("act_layer") or default
    if act not in _ACTIVATIONS:
        raise ValueError(f"the configuration's activation is {act!r}; {nearest(act, list(_ACTIVATIONS))}")
    return _ACTIVATIONS[act]


def _pooling(shapes: Shapes, config: Mapping[str, Any]) -> str:
    if "attn_pool.latent" in shapes:
        return "map"
    pooling, options = config.get("global_pool"), config.get("model_args") or {}
    if options.get("pool_include_prefix"):
        raise ValueError("the configuration pools prefix tokens too (pool_include_prefix): give pooling=...")
    if pooling in _POOLINGS:
        return _POOLINGS[pooling]
    if pooling is not None:
        raise ValueError(f"the configuration's global_pool is {pooling!r}: give pooling=..., of {', '.join(POOLINGS)}")
    return "cls" if "cls_token" in shapes and "fc_norm.weight" not in shapes else "mean"


def _is_dinov3(shapes: Shapes) -> bool:
    return {"blocks.0.gamma_1", "cls_token", "reg_token"} <= shapes.keys() and "pos_embed" not in shapes


def _named_rotary(shapes: Shapes, config: Mapping[str, Any]) -> str | None:
    named = config.get("architecture") or ""
    rotary = next((spec for pattern, spec in _NAMED_ROTARY if re.search(pattern, named)), None)
    return f"learned + {rotary}" if rotary and "pos_embed" in shapes else rotary


def _rotary(shapes: Shapes, hints: Hints) -> Any:
    if hints.encoding is None and not _is_dinov3(shapes):
        raise ValueError(
            "the file has neither a position table nor the class token and registers of DINOv3, and rotary encodings leave "
            f'no trace in it: give encoding=..., for timm\'s vit_*_rope_reg*_gap_* "{_EVA}", for other vit_*_rope_* "{_ROPE}"'
        )
    return hints.encoding or "dinov3"


def _with_table(hints: Hints, is_rotary: bool) -> Any:
    """Tells whether an Eva model of timm with a table rotates as well: with layer scale or gates it does."""
    if hints.encoding is not None and has_table(hints.encoding):
        return hints.encoding
    if hints.encoding is None and is_rotary:
        raise ValueError(
            "the file has a position table, and may have a rotary encoding, which leaves no trace in it: give "
            "encoding=..., for "
            f'timm\'s vit_*_rope_ape_* "learned + {_ROPE}", for eva02_* "learned + {_EVA}", or '
            '"learned" for the table alone'
        )
    return "learned"


def _stem(shapes: Shapes) -> dict[str, Any]:
    root = next((name for name in (f"{_STEM}conv.weight", f"{_STEM}stem.conv.weight") if name in shapes), None)
    if root is None:
        return {}
    stages = range(count(shapes, _STEM + "stages.{}.blocks.0.conv1.weight"))
    units = tuple(count(shapes, f"{_STEM}stages.{stage}.blocks.{{}}.conv1.weight") for stage in stages)
    return dict(resnet=units, resnet_width=shapes[root][0])


def _entries(model: ViT, shapes: Shapes) -> list[Entry]:
    table, is_eva = "pos_embed" in shapes or not shapes, "blocks.0.gamma_1" in shapes
    packed = "blocks.0.mlp.fc1_g.weight" not in shapes
    pooled_norm = "pooled_norm" if model.norm_after_pooling else "trunk/norm"
    return [
        Entry("patch_embed.proj.weight", "patches_to_tokens/kernel", "m c p q -> p q c m"),
        Entry("patch_embed.proj.bias", "patches_to_tokens/bias", "m -> m"),
        *prefix_entries(model, _PREFIX, shapes),
        *(table_entry("pos_embed", model, shapes) if table else []),
        *(_mixed(model) if _MIXED in shapes else []),
        *norm("fc_norm" if model.norm_after_pooling else "norm", pooled_norm),
        *torch_linear("head", "head"),
        *torch_linear("head_dist", "head_distillation"),
        *_map_pooling(),
        *_stem_entries(model),
        *layered(_block(is_eva, model.block.mlp, packed), model.depth),
    ]


def _mixed(model: ViT) -> Iterator[Entry]:
    first = "encoding_0/1" if has_table(parse_layers(model.encoding)[0]) else "encoding_0"
    hosts = (first, *(f"encoding_{layer}" for layer in range(1, model.depth)))
    yield Entry(_MIXED, tuple(f"trunk/{host}/wave" for host in hosts), "a s h c -> a h c", turned=True)


def _block(is_eva: bool, mlp: str, packed: bool) -> Iterator[Entry]:
    block, attention, ours = "blocks.{l}.", "trunk/block_{l}/attention/", "trunk/block_{l}/mlp/"
    scales = (f"{block}gamma_1", f"{block}gamma_2") if is_eva else (f"{block}ls1.gamma", f"{block}ls2.gamma")
    yield from norm(f"{block}norm1", "trunk/block_{l}/attention_norm")
    yield from norm(f"{block}norm2", "trunk/block_{l}/mlp_norm")
    yield Entry(scales[0], "trunk/block_{l}/attention_scale", "m -> m")
    yield Entry(scales[1], "trunk/block_{l}/mlp_scale", "m -> m")
    yield Entry(f"{block}attn.qkv.weight", f"{attention}qkv/kernel", "(x h d) m -> m h x d")
    yield Entry(f"{block}attn.qkv.bias", f"{attention}qkv/bias", "(x h d) -> h x d", optional=True)
    for name in ("query", "key"):
        yield from norm(f"{block}attn.{name[0]}_norm", f"{attention}{name}_norm", bias=False)
    apart = tuple(f"{block}attn.{part}_bias" for part in "qkv")  # keys have no bias then
    yield Entry(apart, f"{attention}qkv/bias", "(h d) -> h n d", optional=True)
    separate = f"{block}attn.{{}}_proj"
    yield Entry(heads(f"{separate}.weight", "qkv"), f"{attention}qkv/kernel", "(h d) m -> m h n d")
    yield Entry(heads(f"{separate}.bias", "qkv"), f"{attention}qkv/bias", "(h d) -> h n d", optional=True)
    yield Entry(f"{block}attn.proj.weight", f"{attention}out/kernel", "m (h d) -> h d m")
    yield Entry(f"{block}attn.proj.bias", f"{attention}out/bias", "m -> m")
    if mlp == "swiglu" and not packed:
        yield from torch_linear(f"{block}mlp.fc1_g", f"{ours}gate")
        yield from torch_linear(f"{block}mlp.fc1_x", f"{ours}up")
    elif mlp == "swiglu":
        both = (f"{ours}gate", f"{ours}up")
        yield Entry(f"{block}mlp.fc1.weight", tuple(f"{p}/kernel" for p in both), "(s o) i -> i o")
        yield Entry(f"{block}mlp.fc1.bias", tuple(f"{p}/bias" for p in both), "(s o) -> o")
    else:
        yield from torch_linear(f"{block}mlp.fc1", f"{ours}up")
    yield from norm(f"{block}mlp.norm", f"{ours}norm")
    yield from torch_linear(f"{block}mlp.fc2", f"{ours}down")


def _map_pooling() -> Iterator[Entry]:
    ours = "map/attention/{}"
    yield Entry("attn_pool.latent", "map/probe", "1 1 m -> 1 m")
    yield Entry("attn_pool.q.weight", "map/attention/query/kernel", "(h d) m -> m h d")
    yield Entry("attn_pool.q.bias", "map/attention/query/bias", "(h d) -> h d")
    yield Entry("attn_pool.kv.weight", heads(f"{ours}/kernel", ("key", "value")), "(s h d) m -> m h d")
    yield Entry("attn_pool.kv.bias", heads(f"{ours}/bias", ("key", "value")), "(s h d) -> h d")
    yield Entry("attn_pool.proj.weight", "map/attention/out/kernel", "m (h d) -> h d m")
    yield Entry("attn_pool.proj.bias", "map/attention/out/bias", "m -> m")
    yield from norm("attn_pool.norm", "map/norm")
    yield from torch_linear("attn_pool.mlp.fc1", "map/mlp/up")
    yield from torch_linear("attn_pool.mlp.fc2", "map/mlp/down")


def _stem_entries(model: ViT) -> Iterator[Entry]:
    if model.resnet is None:
        return
    root = f"{_STEM}stem." if model.resnet else _STEM
    yield from _convolution(f"{root}conv", "resnet/conv_root", f"{root}norm", "resnet/gn_root")
    for stage, units in enumerate(model.resnet):
        for unit in range(units):
            theirs, ours = f"{_STEM}stages.{stage}.blocks.{unit}.", f"resnet/block{stage + 1}_unit{unit + 1}/"
            for i in (1, 2, 3):
                yield from _convolution(f"{theirs}conv{i}", f"{ours}conv{i}", f"{theirs}norm{i}", f"{ours}gn{i}")
            if not unit:
                down = f"{theirs}downsample."
                yield from _convolution(f"{down}conv", f"{ours}conv_proj", f"{down}norm", f"{ours}gn_proj")


def _convolution(conv: str, our_conv: str, group_norm: str, our_norm: str) -> Iterator[Entry]:
    yield Entry(f"{conv}.weight", f"{our_conv}/kernel", "o i p q -> p q i o")
    yield from norm(group_norm, our_norm)


_FAMILY = dict(renames=_RENAMES, fields=_fields, entries=_entries, ignored=r"mask_token|rope_embed.periods")
_FAMILY |= dict(method="torch_bicubic_antialias")
_PARTS = _FAMILY | dict(scaling=(IMAGENET_MEAN, IMAGENET_STD))
_AS_VIT5 = _PARTS | dict(fields=_vit5_fields, ignored=r".*\.rope(_reg)?\.freqs", method="torch_bicubic")
TIMM = [  # each by its telltale names; all share one map. With registers DINOv2's authors antialias and do not offset.
    Origin("dinov2 with registers", ("mask_token", "pos_embed", "reg_token"), **_PARTS),
    Origin("dinov2", ("mask_token", "pos_embed"), **_PARTS | dict(method="dinov2")),
    Origin("vit-5", ("blocks.0.attn.rope_reg.freqs",), **_AS_VIT5),
    Origin("timm eva", ("blocks.0.gamma_1",), **_PARTS),
    Origin("timm dinov2 or deit3", ("blocks.0.ls1.gamma",), **_PARTS),
    Origin("timm deit distilled", ("dist_token",), **_PARTS),
    Origin("timm vit", ("patch_embed.proj.weight",), **_FAMILY),
]
