"""Google's .npz files: vision_transformer (Dosovitskiy et al. 2020; Steiner et al. 2021) and big_vision.

Layouts equal ours. Names differ by age: a counter over all modules of a parent ("MlpBlock_3", before Flax Linen) or over each
class of modules ("MlpBlock_0", big_vision); the position table within the Transformer or beside it; layers apart or
stacked by `scan`. https://github.com/google-research/vision_transformer, vit_jax/checkpoint.py; big_vision/models/vit.py.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from posjax.models.vit import ViT
from posjax.pretrained.entries import Entry, heads, layered
from posjax.pretrained.vision.origin import (
    Hints,
    Origin,
    Shapes,
    count,
    prefix_entries,
    prefix_fields,
    shrinks,
    square_patch,
    table_entry,
    table_grid,
)

_RENAMES = (
    (r"^(opt/target/|params/img/|params/)", ""),
    (r"^(Transformer/)?(posembed_input/)?pos_embedding$", "pos_embedding"),
    (r"(encoderblock(_\d+)?)/MultiHeadDotProductAttention_1/", r"\1/MultiHeadDotProductAttention_0/"),
    (r"(encoderblock(_\d+)?)/LayerNorm_2/", r"\1/LayerNorm_1/"),
    (r"(encoderblock(_\d+)?)/MlpBlock_3/", r"\1/MlpBlock_0/"),
    # Files of ViT-G hold the parts of the attention-pooling head at the top level.
    (r"^(probe$|MlpBlock_0/|MultiHeadDotProductAttention_0/|LayerNorm_0/)", r"MAPHead_0/\1"),
)
_NORM, _DENSE = ("scale", "bias"), ("kernel", "bias")
_PROJECTIONS = ("query", "key", "value", "out")
_SCAN, _BLOCK = "Transformer/encoderblock/", "Transformer/encoderblock_{l}/"
_PREFIX = {"cls": "cls"}
_LETTERS = "a b c d"  # letters for axes that are the same on both sides


def _fields(shapes: Shapes, config: Mapping[str, Any], hints: Hints) -> dict[str, Any]:
    scanned = f"{_SCAN}LayerNorm_0/scale" in shapes
    first = _SCAN if scanned else _BLOCK.format(l=0)
    query = shapes[f"{first}MultiHeadDotProductAttention_0/query/kernel"]
    has_map, has_cls = "MAPHead_0/probe" in shapes, "cls" in shapes
    tokens = {"cls": 1} if has_cls else {}
    fields = dict(
        num_classes=shapes["head/bias"][0] if "head/bias" in shapes else 0,
        patch_size=square_patch(shapes["embedding/kernel"], "embedding/kernel"),
        width=shapes["embedding/kernel"][-1],
        depth=query[0] if scanned else count(shapes, "Transformer/encoderblock_{}/LayerNorm_0/scale"),
        num_heads=query[-2],
        mlp_dim=shapes[f"{first}MlpBlock_0/Dense_0/bias"][-1],
        pre_logits=shapes["pre_logits/bias"][0] if "pre_logits/bias" in shapes else None,
        mlp="gelu",
        norm_epsilon=1e-6,
        **prefix_fields(tokens, hints.pooling or ("map" if has_map else "cls" if has_cls else "mean")),
    )
    if "conv_root/kernel" in shapes:
        stages = range(1, 1 + count(shapes, "block{}/unit1/conv1/kernel", 1))
        fields["resnet"] = tuple(count(shapes, f"block{stage}/unit{{}}/conv1/kernel", 1) for stage in stages)
        fields["resnet_width"] = shapes["conv_root/kernel"][-1]
    cell = fields["patch_size"] * shrinks(fields.get("resnet"))
    if "pos_embedding" not in shapes:  # big_vision's sincos2d learns nothing
        size = hints.image_size or (14 * cell, 14 * cell)
        return {**fields, "encoding": hints.encoding or "sincos2d_big_vision", "image_size": size}
    rows, columns = table_grid(shapes["pos_embedding"][-2], [0, *tokens.values()], hints.grid)
    return {**fields, "encoding": "learned", "image_size": (rows * cell, columns * cell)}


def _entries(model: ViT, shapes: Shapes) -> list[Entry]:
    entries = [
        *_same("embedding", "patches_to_tokens", _DENSE, shapes),
        *prefix_entries(model, _PREFIX, shapes),
        *table_entry("pos_embedding", model, shapes),
        *_same("Transformer/encoder_norm", "trunk/norm", _NORM, shapes),
        *_same("pre_logits", "pre_logits", _DENSE, shapes),
        *_same("head", "head", _DENSE, shapes),
        *_stem_entries(shapes),
    ]
    if "MAPHead_0/probe" in shapes:
        entries += [Entry("MAPHead_0/probe", "map/probe", "1 1 m -> 1 m")]
        entries += _same("MAPHead_0/LayerNorm_0", "map/norm", _NORM, shapes)
        for part in _PROJECTIONS:
            theirs = f"MAPHead_0/MultiHeadDotProductAttention_0/{part}"
            entries += _same(theirs, f"map/attention/{part}", _DENSE, shapes)
        entries += _mlp("MAPHead_0/", "map/mlp", shapes)
    if f"{_SCAN}LayerNorm_0/scale" not in shapes:
        return [*entries, *layered(_block(_BLOCK, shapes), model.depth)]
    for entry in _block(_SCAN, shapes):
        theirs, ours = entry.axes.split(" -> ")  # the file stacks layers along the first axis
        paths = tuple(path.format(l=layer) for path in entry.paths for layer in range(model.depth))
        entries.append(Entry(entry.theirs, paths, f"s{theirs[1:]} -> {ours[2:]}"))
    return entries


def _block(block: str, shapes: Shapes) -> list[Entry]:
    attention, ours = f"{block}MultiHeadDotProductAttention_0", "trunk/block_{l}/attention"
    return [
        *_same(f"{block}LayerNorm_0", "trunk/block_{l}/attention_norm", _NORM, shapes),
        *_same(f"{block}LayerNorm_1", "trunk/block_{l}/mlp_norm", _NORM, shapes),
        *(
            Entry(
                heads(f"{attention}/{{}}/{kind}"), f"{ours}/qkv/{kind}", f"{letters} -> {letters[:-2]} n {letters[-1]}"
            )
            for kind in _DENSE
            if (letters := _letters(f"{attention}/query/{kind}", shapes))
        ),
        *_same(f"{attention}/out", f"{ours}/out", _DENSE, shapes),
        *_mlp(block, "trunk/block_{l}/mlp", shapes),
    ]


def _mlp(theirs: str, ours: str, shapes: Shapes) -> Iterator[Entry]:
    for index, part in enumerate(("up", "down")):
        yield from _same(f"{theirs}MlpBlock_0/Dense_{index}", f"{ours}/{part}", _DENSE, shapes)


def _stem_entries(shapes: Shapes) -> Iterator[Entry]:
    """Yields the entries of the ResNet stem, whose norms are saved as [1, 1, 1, C]."""
    for name, shape in shapes.items():
        if match := re.fullmatch(r"(block\d+/unit\d+/|)((conv|gn)\w+/(kernel|scale|bias))", name):
            ours = f"resnet/{match[1].replace('/unit', '_unit')}{match[2]}"
            axes = "1 1 1 c -> c" if match[3] == "gn" and len(shape) == 4 else "a b c d -> a b c d"
            yield Entry(name, ours, axes if len(shape) == 4 else "c -> c")


def _same(theirs: str, ours: str, kinds: tuple[str, ...], shapes: Shapes) -> list[Entry]:
    letters = {kind: _letters(f"{theirs}/{kind}", shapes) for kind in kinds}
    return [Entry(f"{theirs}/{kind}", f"{ours}/{kind}", f"{axes} -> {axes}") for kind, axes in letters.items()]


def _letters(name: str, shapes: Shapes) -> str:
    """Returns a letter for each axis of a tensor, "a b c"."""
    return _LETTERS[: 2 * len(shapes.get(name.format(l=0), "?")) - 1]


GOOGLE = Origin(
    "google",
    ("embedding/kernel",),
    _RENAMES,
    _fields,
    _entries,
    r"opt/.*|txt/.*|t|b",  # the optimiser's state; SigLIP's text tower, temperature and bias
    "google_npz",
)
