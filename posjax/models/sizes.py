"""The published sizes of ViTs by name."""

import re
from typing import Any

from posjax.models.block import BlockConfig
from posjax.models.resnet import ResNetStem
from posjax.spec import nearest

# (width, depth, heads, MLP): Dosovitskiy et al. (2020), arXiv 2010.11929, table 1; Ti, S: Touvron et al. (2020), arXiv
# 2012.12877; M, mu, So400m: big_vision; g, G: Zhai et al. (2021), arXiv 2106.04560, table 2.
_SIZES = {
    "mu": (32, 1, 2, 128),
    "Ti": (192, 12, 3, 768),
    "S": (384, 12, 6, 1536),
    "M": (512, 12, 8, 2048),
    "B": (768, 12, 12, 3072),
    "L": (1024, 24, 16, 4096),
    "So400m": (1152, 27, 16, 4304),
    "H": (1280, 32, 16, 5120),
    "g": (1408, 40, 16, 6144),
    "G": (1664, 48, 16, 8192),
}
# Units per stage of the ResNet, and the patch size on its map by which the whole shrinks as the name says: Steiner et al.
# (2021), arXiv 2106.10270; R50+B/16 leaves out the last stage. "R" is a root alone; R+Ti/16 has patches of 8, and since the
# root shrinks four times, not twice, it works at 32 pixels a token, as released.
_STEMS = {"R": (), "R26": (2, 2, 2, 2), "R50": (3, 4, 6, 3)}
_HYBRIDS = {"R50+B/16": ((3, 4, 9), 1), "R50+L/16": ((3, 4, 9), 1), "R+Ti/16": ((), 8)}
_NAME = re.compile(r"(?:(?P<stem>\w+)\+)?(?P<size>\w+)/(?P<patch>\d+)")


def vit_sizes(variant: str) -> dict[str, Any]:
    """Returns the arguments of `ViT` of a name: "Ti/16", "B/32", and hybrids with a ResNet stem, "R50+B/16", "R+Ti/16".

    Raises:
      ValueError: as `flat_sizes`.

    >>> from posjax.models import ViT
    >>> model = ViT(num_classes=10, image_size=(224, 224), **vit_sizes("S/16"))
    >>> model.depth, model.patch_size, model.block.width, model.block.num_heads
    (12, 16, 384, 6)
    """
    sizes = flat_sizes(variant)
    block = {name: sizes.pop(name) for name in ("width", "num_heads", "mlp_dim")}
    return {"block": BlockConfig(**block), **sizes}


def flat_sizes(variant: str) -> dict[str, Any]:
    """Returns the fields of `ViT` and of its block of a name.

    Raises:
      ValueError: for a name of another form, an unknown size, or a hybrid whose stem shrinks more than its patches say.
    """
    match = _NAME.fullmatch(variant)
    if match is None or match["size"] not in _SIZES or (match["stem"] and match["stem"] not in _STEMS):
        known = [f"{size}/16" for size in _SIZES] + list(_HYBRIDS) + ["R26+S/32", "R50+L/32"]
        raise ValueError(f"no ViT is named {variant!r}; {nearest(variant, known)} (another patch size behind the /)")
    sizes = dict(zip(("width", "depth", "num_heads", "mlp_dim"), _SIZES[match["size"]], strict=True))
    patch = int(match["patch"])
    if not match["stem"]:
        return {**sizes, "patch_size": patch}
    if variant in _HYBRIDS:
        stem, on_map = _HYBRIDS[variant]
        return {**sizes, "resnet": stem, "patch_size": on_map}
    stem = _STEMS[match["stem"]]
    shrinks = ResNetStem.shrinks(stem)
    if patch % shrinks:
        raise ValueError(
            f"{variant!r}: the stem {match['stem']} shrinks {shrinks} times, which does not divide {patch}"
        )
    return {**sizes, "resnet": stem, "patch_size": patch // shrinks}
