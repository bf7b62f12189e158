"""Accuracies over the test resolution that others have published, with where each number comes from.

RoPE-ViT: Heo, Park, Han and Yun (2024), "Rotary Position Embedding for Vision Transformer", ECCV, arXiv 2403.13298. DeiT-III
recipe, 400 epochs of ImageNet-1k at 224 pixels, tested at each resolution without fine-tuning; top-1 (%) on ImageNet-1k.
The authors interpolate the learned table ("APE", bicubic) and let both rotary encodings extrapolate.
"""

from types import MappingProxyType
from typing import NamedTuple


class Published(NamedTuple):
    """One curve. `exact` are the resolutions whose numbers the README of naver-ai/rope-vit prints; the others were read off
    figures/rope_vit.png there, calibrated on its axes, ± 0.1 (`hidden`: the marker is partly covered, ± 0.3)."""

    label: str
    encoding: str  # here
    accuracy: MappingProxyType[int, float]  # pixels: per cent
    exact: tuple[int, ...] = (224, 384)
    hidden: tuple[int, ...] = ()


TRAINED_AT = 224
_RESOLUTIONS = (144, 192, 224, 256, 320, 384, 512)


def _curve(label: str, encoding: str, values: tuple[float | None, ...], hidden: tuple[int, ...]) -> Published:
    found = {size: value for size, value in zip(_RESOLUTIONS, values, strict=True) if value is not None}
    return Published(label, encoding, MappingProxyType(found), hidden=hidden)


ROPE_VIT = (
    _curve("ViT-S, APE", "learned", (73.6, 79.1, 80.4, 80.9, 80.6, 79.4, 75.4), (144, 192)),
    _curve("ViT-S, axial", "axial_rope", (73.6, 79.2, 80.9, 81.7, 81.5, 80.0, 76.1), (144, 192, 256)),
    _curve("ViT-S, mixed", "rope_mixed", (74.2, 79.6, 80.9, 81.8, 82.2, 81.8, 79.1), ()),
    _curve("ViT-B, APE", "learned", (79.1, 82.7, 83.4, 83.8, 83.5, 82.8, 80.5), (144, 192)),
    _curve("ViT-B, axial", "axial_rope", (78.9, None, 83.6, 84.2, 84.3, 83.9, 82.0), (144, 256)),
    _curve("ViT-B, mixed", "rope_mixed", (79.4, 82.8, 83.8, 84.3, 84.7, 84.4, 82.9), ()),
    _curve("ViT-L, APE", "learned", (80.8, 83.8, 84.6, 84.9, 84.7, 84.2, 82.2), (144, 192, 256)),
    _curve("ViT-L, axial", "axial_rope", (80.9, None, 84.7, 85.1, 85.3, 85.1, 84.0), (144,)),
    _curve("ViT-L, mixed", "rope_mixed", (81.1, 83.9, 84.8, 85.4, 85.7, 85.6, 84.7), ()),
)


def relative(curve: Published) -> list[tuple[float, float]]:
    """(resolution, accuracy), each divided by that of training, ascending."""
    at_1x = curve.accuracy[TRAINED_AT]
    return [(size / TRAINED_AT, value / at_1x) for size, value in sorted(curve.accuracy.items())]
