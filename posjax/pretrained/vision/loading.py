"""Loads a vision model and its parameters from a file."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from posjax.models.resizing import resize_params
from posjax.models.vit import ViT, image_channels
from posjax.pretrained import entries as maps
from posjax.pretrained.files import WeightsFile
from posjax.pretrained.parameters import expected_params, paths_of, refuse_overflow, tree_of
from posjax.pretrained.vision.google import GOOGLE
from posjax.pretrained.vision.hf import HF
from posjax.pretrained.vision.origin import PREFIX, Hints, Origin, Shapes, prefix_entries, prefix_fields
from posjax.pretrained.vision.saving import METADATA, OWN, read_header
from posjax.pretrained.vision.timm import TIMM
from posjax.spec import nearest, parse_layers

ORIGINS = [GOOGLE, *HF, *TIMM]
# Fields that a caller may set; the sizes come from the file.
_FREE = {"dtype", "attention_dtype", "param_dtype", "implementation", "context", "norm_epsilon", "mlp", "pooling"}
_FREE |= {"dropout", "drop_path", "patch_dropout", "encoding", "pre_logits"}
# {tensor that reads the image: its axis of channels}; a stem comes before the patches cut from its map.
_CHANNELS = {
    **{"patch_embed.backbone.conv.weight": 1, "patch_embed.backbone.stem.conv.weight": 1},
    **{"patch_embed.proj.weight": 1, "conv_root/kernel": 2, "embedding/kernel": 2},
    "embeddings.patch_embeddings.weight": 1,
    **{"resnet.conv_root.kernel": 2, "patches_to_tokens.kernel": 2},
}


class Info(NamedTuple):
    """A description of a file of weights, by the file or by its family's code.

    Pixels in [0, 1] are scaled by (x - mean) / std. `method` resizes position tables as the family's code does. `labels` are
    the names of the classes if the configuration beside the file has them.
    """

    origin: str
    model: ViT
    mean: tuple[float, ...]
    std: tuple[float, ...]
    method: str
    labels: tuple[str, ...] | None


class FileOfViT(NamedTuple):
    """A file as its family's code reads it."""

    origin: str
    model: ViT  # of the file
    entries: list[maps.Entry]
    names: dict[str, str]  # {renamed: name in the file}
    ignored: str
    method: str
    scaling: tuple[tuple[float, ...], tuple[float, ...]]


class _Shapes(dict):
    """Shapes by name; a missing name raises an error that blames the file."""

    def __missing__(self, name: str):
        raise ValueError(f"the file lacks {name}, from which sizes are read; {nearest(name, maps.likest(name, self))}")


def load(
    path: str | Path,
    *,
    image_size: int | tuple[int, int] | None = None,
    num_classes: int | None = None,
    method: str | None = None,
    grid: tuple[int, int] | None = None,
    num_heads: int | None = None,
    **overrides: Any,
) -> tuple[ViT, dict[str, Any]]:
    """Loads a ViT, published or written by `save`: a model of the file's sizes, and its parameters.

        model, params = load("ViT-B_16.npz", image_size=384)
        logits = model.apply(params, images, model.sites(384, 384))

    Args:
      path: Google's .npz; .safetensors of timm, transformers, DINOv2's authors or `save`; or the folder, with config.json,
        that timm or transformers saved a model in. A config.json beside the file is read.
      image_size: (height, width), or one number for both. If it is not the file's, tables are resized by `method`.
      num_classes: 0 leaves the head out; None keeps it.
      method: name of `posjax.encodings.resize`; None takes that of the code which the file is for (`Info.method`).
      grid: (height, width) of the file's position table in patches. A table is taken for square where nothing says otherwise.
      num_heads: of timm's and transformers' files, whose matrices do not tell it. Otherwise the configuration, the name
        of the model in it or a published size tells it; where none does, heads of 64 channels are assumed with a warning.
      overrides: of other fields of `ViT`: types, implementation, dropouts, norm_epsilon; pooling, with prefix tokens that it
        does not read made registers, "none" without any head; pre_logits=None leaves that layer out; encoding, for files
        without a position table, or with a sum, as in "learned + axial_rope".

    Returns:
      model, and {"params": tree of numpy arrays [...] in `param_dtype`}.

    Raises:
      FileNotFoundError: the file is missing.
      ValueError: the file is cut off, pickled, or has unknown names; a tensor is left over, missing or of another shape; or
        neither the file nor the caller gives a needed field.
    """
    if image_size is not None:
        image_size = (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)
    _check_overrides(overrides)
    weights = WeightsFile.of(path)
    source = describe_file(
        weights, Hints(grid, num_heads, overrides.get("pooling"), overrides.get("encoding"), image_size)
    )
    params, expected = parameters(source, weights.renamed(source.names))
    model, params = _changed(source.model, params, expected, num_classes, overrides)
    if image_size is not None and image_size != model.image_size:
        model, resized = resize_params(model, params, image_size, method or source.method)
        params = jax.tree.map(np.asarray, resized)
    return model, params


def info(
    path: str | Path, *, grid: tuple[int, int] | None = None, num_heads: int | None = None, **overrides: Any
) -> Info:
    """Returns the model that `load` would load, with the same `overrides`, and its scaling of pixels; reads no weights."""
    _check_overrides(overrides)
    weights = WeightsFile.of(path)
    source = describe_file(weights, Hints(grid, num_heads, overrides.get("pooling"), overrides.get("encoding")))
    told = weights.config.get("pretrained_cfg") or {}
    beside = weights.preprocessor
    mean = told.get("mean") or beside.get("image_mean") or source.scaling[0]
    std = told.get("std") or beside.get("image_std") or source.scaling[1]
    by_id = weights.config.get("id2label") or {}  # JSON's keys "0", "1", "10" may be sorted as text
    names = weights.config.get("label_names") or [by_id[key] for key in sorted(by_id, key=int)]
    labels = tuple(names) if source.model.num_classes and len(names) == source.model.num_classes else None
    return Info(source.origin, source.model.with_fields(**overrides), tuple(mean), tuple(std), source.method, labels)


def describe_file(weights: WeightsFile, hints: Hints) -> FileOfViT:
    """Returns the file as the code of its family reads it."""
    held = {name: shape for name, shape in weights.shapes.items() if 0 not in shape}  # no registers: a [1, 0, M]
    if METADATA in weights.metadata:
        return _describe_own(weights, held, hints)
    origin, names = _recognised(weights.path, held)
    shapes = _Shapes({name: held[theirs] for name, theirs in names.items()})
    fields = origin.fields(shapes, weights.config, hints)
    if hints.encoding is not None and fields["encoding"] != hints.encoding:
        held = "frequencies of rope_mixed" if fields.get("injection") == "every_layer" else "a position table"
        raise ValueError(f"the file has {held}, hence the encoding {fields['encoding']!r}, not {hints.encoding}")
    model = ViT.from_config(fields)
    return FileOfViT(
        origin.name, model, origin.entries(model, shapes), names, origin.ignored, origin.method, origin.scaling
    )


def _describe_own(weights: WeightsFile, held: Shapes, hints: Hints) -> FileOfViT:
    model, names, scaling = read_header(weights.metadata[METADATA])
    _refuse_contradiction("encoding", hints.encoding, model.encoding, parse_layers)
    _refuse_contradiction("num_heads", hints.num_heads, model.block.num_heads)
    _refuse_contradiction("grid", hints.grid, model.patches(*model.image_size))
    if hints.pooling is not None:
        counts = dict(cls=int(model.has_cls), distillation=int(model.distillation_token), registers=model.num_registers)
        model = model.with_fields(**prefix_fields(counts, hints.pooling))
    if names == OWN:
        letters = {name: " ".join("abcdefgh"[: len(shape)]) for name, shape in held.items() if name not in PREFIX}
        entries = [maps.Entry(n, n.replace(".", "/"), f"{axes} -> {axes}") for n, axes in letters.items()]
        entries += prefix_entries(model, {name: name for name in PREFIX}, held, "t m -> t m")
    else:
        entries = TIMM[-1].entries(model, held)
    origin = f"posjax ({names} names)"
    return FileOfViT(origin, model, entries, {n: n for n in held}, r"(?!)", "torch_bicubic", scaling)


def _refuse_contradiction(name: str, given: Any, told: Any, read: Callable[[Any], Any] = lambda value: value) -> None:
    if given is not None and read(given) != read(told):
        raise ValueError(f"{name} is {told} by the file's own header, not {given}: leave it out")


def _recognised(path: Path, held: Shapes) -> tuple[Origin, dict[str, str]]:
    """Returns the family whose telltale names a file holds, and {renamed: name in the file}."""
    for origin in ORIGINS:
        names: dict[str, str] = {}
        for name in held:
            if (new := maps.respelt(name, origin.renames)) in names:
                raise ValueError(f"{path} holds both {names[new]} and {name}, two spellings of one tensor")
            names[new] = name
        if set(origin.telltale) <= names.keys():
            return origin, names
    known = ", ".join(f"{origin.name} ({' and '.join(origin.telltale)})" for origin in ORIGINS)
    some = ", ".join(sorted(held)[:6])
    raise ValueError(f"{path} holds {some}, ...: names of no known family. Known, by what tells them: {known}")


def parameters(source: FileOfViT, tensors: Mapping[str, np.ndarray]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the file's {"params": tree}, in the types of its tensors, and the shapes and types that the model expects."""
    expected = expected_params(source.model, _channels_of(tensors))
    paths = paths_of(expected)
    shapes = {path: leaf.shape for path, leaf in paths.items()}
    unread = r"(head|head_distillation|pooled_norm|pre_logits|map)/.*" if source.model.pooling == "none" else r"(?!)"
    found = maps.read_entries(
        source.entries, tensors, shapes, {"h": source.model.block.num_heads}, ignored=source.ignored, unread=unread
    )
    return tree_of(expected, found), expected


def _channels_of(tensors: Mapping[str, np.ndarray]) -> int:
    for name, axis in _CHANNELS.items():
        if name in tensors and axis < tensors[name].ndim:
            return tensors[name].shape[axis]
    raise ValueError(f"the file has none of {', '.join(_CHANNELS)}, one of which sees the image")


def _check_overrides(overrides: Mapping[str, Any]) -> None:
    fields = ViT(num_classes=0).fields
    for name in overrides:
        if name not in fields:
            raise ValueError(f"a ViT has no field {name!r}; {nearest(name, sorted(_FREE))}")
        if name not in _FREE:
            raise ValueError(f"{name} is read off the file; what may be given is {', '.join(sorted(_FREE))}")


def _changed(model: ViT, params, expected, num_classes: int | None, overrides: Mapping[str, Any]):
    """Applies the overrides to the model, and drops and converts its parameters accordingly."""
    if num_classes not in (None, 0, model.num_classes):
        raise ValueError(f"the file's head has {model.num_classes} classes, not {num_classes}: num_classes=0 drops it")
    if overrides.get("pre_logits", model.pre_logits) not in (None, model.pre_logits):
        raise ValueError(f"pre_logits={overrides['pre_logits']} must be None or the file's {model.pre_logits}")
    changed = model.with_fields(
        **{**overrides, "num_classes": model.num_classes if num_classes is None else num_classes}
    )
    kept = paths_of(params)
    expected = expected if changed == model else expected_params(changed, image_channels(params["params"]))
    for path, leaf in paths_of(expected).items():
        if path not in kept or kept[path].shape != leaf.shape:
            raise ValueError(f"the file has no parameters for {path}, which {', '.join(overrides)} asks for")
        if leaf.dtype == np.float16:
            refuse_overflow(path, kept[path], leaf.dtype)
        kept[path] = np.array(kept[path], dtype=leaf.dtype, order="C")  # no view of the file
    return changed, tree_of(expected, kept)
