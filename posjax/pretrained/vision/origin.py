"""Families of published files, and the parts that all share."""

import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from posjax.encoding import Encoding, Sum
from posjax.encodings.tables import Learned
from posjax.models.resnet import ResNetStem
from posjax.models.vit import ViT
from posjax.pretrained.entries import Entry
from posjax.spec import parse_layers

PREFIX = ("cls", "distillation", "registers")  # our names of the prefix tokens, in their order
HALF = (0.5, 0.5, 0.5)
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

Shapes = Mapping[str, tuple[int, ...]]
# Heads of published models that are not 64 channels wide, by (width, depth): So400m, H, g, G, EVA-02's E, DINOv3's 7B.
_HEADS = {(1152, 27): 16, (1280, 32): 16, (1408, 40): 16, (1664, 48): 16, (1792, 64): 16, (4096, 40): 32}
_NAMED = (  # channels of a head by the name of a model: of timm's, but for the sizes above, and of MoCo v3's
    (r"moco.*small|^test_vit", 32),
    (r"^vit_base_patch16_gap_", 48),
    (r"^(vit|flexivit|deit|deit3|eva|eva02)_|moco", 64),
)


class Hints(NamedTuple):
    """The caller's additions to a file's description."""

    grid: tuple[int, int] | None = None
    num_heads: int | None = None
    pooling: str | None = None
    encoding: Any = None
    image_size: tuple[int, int] | None = None


class Origin(NamedTuple):
    """How the files of one code base (timm, big_vision, DINOv2, ...) are recognised, read and written.

    Args:
      telltale: names, after `renames`, that its files hold and files of families further down the list do not.
      renames: (regular expression, its replacement) for names of tensors, by which the spellings of its versions become one.
      fields: the arguments of the ViT that a file holds, from the shapes of its tensors and its config.json.
      entries: the map to the parameters of that ViT; without shapes, the tensors to write.
      ignored: regular expression of names that a classification model does not use.
      method: the resize of the family's code.
      scaling: (mean, std) of pixels in [0, 1], used without a configuration.
    """

    name: str
    telltale: tuple[str, ...]
    renames: Sequence[tuple[str, str]]
    fields: Callable[[Shapes, Mapping[str, Any], Hints], dict[str, Any]]
    entries: Callable[[ViT, Shapes], list[Entry]]
    ignored: str
    method: str
    scaling: tuple[tuple[float, ...], tuple[float, ...]] = (HALF, HALF)


def count(shapes: Shapes, template: str, start: int = 0) -> int:
    """The number of layers: of names with a number from `start` on."""
    number = start
    while template.format(number) in shapes:
        number += 1
    return number - start


def shrinks(stem: tuple[int, ...] | None) -> int:
    """The width in pixels of a cell of the map that is cut into patches."""
    return 1 if stem is None else ResNetStem.shrinks(stem)


def square_patch(kernel: Sequence[int], name: str) -> int:
    if kernel[0] != kernel[1]:
        raise ValueError(f"{name} cuts patches of {kernel[0]}x{kernel[1]}: a ViT here has square ones")
    return kernel[0]


def table_grid(
    rows: int, prefixes: Sequence[int], grid: tuple[int, int] | None, hint: tuple[int, int] | None = None
) -> tuple[int, int]:
    """Returns the (height, width) of a table of `rows` rows; `prefixes` are possible numbers of prefix rows.

    `hint` is the configuration's grid; it is used if it fits.

    Raises:
      ValueError: the grid does not fit, or without a grid the rows form no square, or several.
    """
    for given in (grid, hint):
        if given is not None and rows - math.prod(given) in prefixes:
            return given
    counts = [rows - prefix for prefix in prefixes if rows > prefix]
    fits = [(side, n // side) for n in counts for side in range(math.isqrt(n), 0, -1) if n % side == 0]
    known = f"grid=(height, width) may be {', '.join(map(str, fits[:6]))}, or turned"
    if grid is not None:
        raise ValueError(f"a position table of {rows} rows is not {grid[0]} x {grid[1]} + {_either(prefixes)}: {known}")
    squares = sorted({height for height, width in fits if height == width})
    if len(squares) != 1:
        raise ValueError(
            f"the position table has {rows} rows, {_either(prefixes)} of them of prefix tokens, and the file does not tell "
            f"their grid: {known}; the image size in a config.json beside it tells it, too"
        )
    return squares[0], squares[0]


def has_table(encoding: Any) -> bool:
    """Whether an encoding is `learned`, alone or in a sum."""
    encodings = parse_layers(encoding)
    return len(encodings) == 1 and any(isinstance(each, Learned) for each in _summed(encodings[0]))


def _summed(encoding: Encoding) -> tuple[Encoding, ...]:
    return encoding.parts if isinstance(encoding, Sum) else (encoding,)


def table_entry(name: str, model: ViT, shapes: Shapes) -> list[Entry]:
    """Returns the entries of the position table, with zeros for prefix tokens that have no rows in the file.

    Without shapes, the entries are for writing: rows of prefix tokens are left out if they are zeros.
    """
    parts = _summed(parse_layers(model.encoding)[0])
    place = next(i for i, part in enumerate(parts) if isinstance(part, Learned))
    host = "encoding_0" if model.injection == "every_layer" else "encoding"
    ours = f"trunk/{host}/{place}/rows" if len(parts) > 1 else f"trunk/{host}/rows"
    patches, total = math.prod(model.patches(*model.image_size)), model.num_prefix
    present = [shapes[name][-2] - patches] if name in shapes else [0, total]
    return [Entry(name, ours, "1 t m -> t m", without=(rows, total - rows)) for rows in dict.fromkeys(present)]


def split_heads(
    width: int, depth: int, hints: Hints, config: Mapping[str, Any], shown: int | None = None, wide: bool = True
) -> int:
    """Returns the number of heads, which matrices do not show; warns where heads of 64 channels are a guess.

    Args:
      config: a number of heads or a known name of the model in it tells the number.
      shown: the number by other tensors of the file.
      wide: whether a size of the published models with wider heads tells the number.

    Raises:
      ValueError: the heads do not divide the width.
    """
    heads = hints.num_heads or config.get("num_attention_heads") or (config.get("model_args") or {}).get("num_heads")
    heads = heads or shown or (_HEADS.get((width, depth)) if wide else None)
    name = config.get("architecture") or ""
    channels = None if heads else next((size for pattern, size in _NAMED if re.search(pattern, name)), None)
    number = heads or width // (channels or 64)
    if not number or width % number or (not heads and width % (channels or 64)):
        raise ValueError(f"a width of {width} does not divide into {number or 'heads of 64'}: give num_heads=...")
    if not (heads or channels):
        warnings.warn(
            f"the file does not tell its heads: {number} heads of 64 channels were assumed. Where it has others, give "
            'num_heads=..., or a config.json beside it with {"num_attention_heads": ...}',
            stacklevel=5,  # the caller of `load` or `info`
        )
    return number


def prefix_fields(tokens: Mapping[str, int], pooling: str) -> dict[str, Any]:
    """The fields for prefix tokens {"cls": 1, "distillation": 1, "registers": R}: tokens that are not read are registers."""
    read = pooling.startswith("cls")
    if read and not tokens.get("cls"):
        raise ValueError(f"the file has no class token, which pooling={pooling!r} reads: it may be mean, map or none")
    distilled = bool(read and tokens.get("distillation"))
    alone = sum(tokens.values()) - (bool(read) + distilled)
    return dict(pooling=pooling, distillation_token=distilled, num_registers=alone)


def prefix_entries(model: ViT, names: Mapping[str, str], shapes: Shapes, axes: str = "1 t m -> t m") -> list[Entry]:
    """Returns the entries of cls, distillation and register tokens; unread tokens join the registers."""
    present = {token: name for token, name in names.items() if not shapes or name in shapes}
    own = {"cls": model.has_cls, "distillation": model.distillation_token}
    entries = [Entry(name, token, axes) for token, name in present.items() if own.get(token)]
    rest = tuple(name for token, name in present.items() if not own.get(token))
    rest = rest if shapes else (names["registers"],) * bool(model.num_registers)
    return [*entries, Entry(rest, "registers", axes)] if rest else entries


def _either(counts: Sequence[int]) -> str:
    return " or ".join(map(str, counts))
