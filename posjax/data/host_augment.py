"""The way of single images into a batch, by PIL: a `Frame`, and a recipe's operations on the host (posjax/data/recipe.py).

An operation is called with an image [h, w, c] uint8, c = 1 or 3, and a generator that it draws from. It returns an image of
the same type, and of the same shape unless it crops.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from posjax.data.augment import IMAGENET_MEAN, Operation
from posjax.data.preprocess import (
    Source,
    check_filter,
    check_way,
    open_image,
    pixels_of,
    preprocess,
    resize,
    resize_image,
)

if TYPE_CHECKING:
    from PIL import Image


class HostOperation(Operation):
    """An operation on one image: operation(image [h, w, c] uint8, rng) returns an image [H, W, c] uint8."""

    def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        raise NotImplementedError


class PictureOperation(HostOperation):
    """An operation that PIL computes."""

    def __call__(self, image, rng):
        from PIL import Image

        picture = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
        return np.asarray(self.picture(picture, rng)).reshape(image.shape)

    def picture(self, picture: "Image.Image", rng: np.random.Generator) -> "Image.Image":
        """Returns the picture, changed: of the same size and mode."""
        raise NotImplementedError


@dataclass(frozen=True)
class InceptionCrop(HostOperation):
    """Resizes a random part of an image (Szegedy et al., 2014, arXiv 1409.4842), as torchvision's RandomResizedCrop.

    The part's share of the area is uniform in [least_area, 1], its aspect log-uniform in `ratio`, its place uniform. Where
    ten draws do not fit into the image, the part is the largest one in the centre whose aspect is within `ratio`. PIL blurs
    parts that it shrinks (antialiasing), as torchvision and timm do; big_vision does not by default.

    Args:
      size: (H, W) of the result in pixels, or H = W; None: the size of the images that a model is made for.
      least_area: in (0, 1]; 0.08 in torchvision and timm, 0.05 in big_vision.
      ratio: bounds of the part's width / height.
      resample: filter of PIL: "bicubic" in timm, "bilinear" in torchvision and big_vision.

    Raises:
      ValueError: an argument is out of range, or the filter is unknown.
    """

    spec_name: ClassVar[str] = "inception_crop"
    ranges: ClassVar[tuple[str, ...]] = ("least_area > 0", "least_area <= 1")

    size: int | tuple[int, int] | None = None
    least_area: float = 0.08
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    resample: str = "bicubic"

    def __post_init__(self):
        super().__post_init__()
        check_filter(self.resample)
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise ValueError(f"inception_crop(ratio={self.ratio}) must be two positive bounds, the smaller one first")
        if self.size is not None and np.min(self.size) < 1:
            raise ValueError(f"inception_crop(size={self.size}) must be at least 1 pixel on each side")

    def box(self, height: int, width: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
        """Returns (top, left, height, width) of a random part of an image of this size, in pixels."""
        least, most = (math.log(bound) for bound in self.ratio)
        for _ in range(10):
            area, aspect = height * width * rng.uniform(self.least_area, 1.0), math.exp(rng.uniform(least, most))
            h, w = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
            if 0 < h <= height and 0 < w <= width:
                return int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1)), h, w
        aspect = min(max(width / height, self.ratio[0]), self.ratio[1])
        h, w = min(height, max(1, round(width / aspect))), min(width, max(1, round(height * aspect)))
        return (height - h) // 2, (width - w) // 2, h, w

    def __call__(self, image, rng):
        top, left, h, w = self.box(*image.shape[:2], rng)
        size = np.broadcast_to(self.size or image.shape[:2], 2).tolist()
        return resize(image[top : top + h, left : left + w], tuple(size), self.resample)


@dataclass(frozen=True)
class Frame:
    """How pictures of any size become arrays [H, W, channels] uint8.

    Attributes:
      size: (H, W) in pixels.
      mode: see `preprocess`.
      channels: 1 or 3.
      crop_fraction: see `preprocess`; of evaluation alone.
      host: operations on training images in their order (`Recipe.host`). Where the first one crops, it takes the place of
        `preprocess`; its size is `size`.

    Raises:
      ValueError: as `preprocess`, for size, mode and crop_fraction.
    """

    size: tuple[int, int]
    mode: str = "crop"
    channels: int = 3
    crop_fraction: float = 1.0
    host: tuple[HostOperation, ...] = ()

    def __post_init__(self):
        check_way(self.size, self.mode, self.crop_fraction)

    def scored(self, source: Source) -> np.ndarray:
        """Returns a picture as evaluation sees it."""
        return preprocess(source, self.size, self.mode, channels=self.channels, crop_fraction=self.crop_fraction)

    def trained(self, source: Source, rng: np.random.Generator) -> np.ndarray:
        """Returns a picture as training sees it. A crop is cut before it becomes an array."""
        crop = self.host[0] if self.host and isinstance(self.host[0], InceptionCrop) else None
        if crop is None:
            image = preprocess(source, self.size, self.mode, channels=self.channels)
        else:
            picture = open_image(source, channels=self.channels)
            top, left, height, width = crop.box(picture.height, picture.width, rng)
            box = picture.crop((left, top, left + width, top + height))
            image = pixels_of(resize_image(box, self.size, crop.resample))
        for operation in self.host[crop is not None :]:
            image = operation(image, rng)
        return image


@dataclass(frozen=True)
class HostFlip(HostOperation):
    """Mirrors an image left to right with probability 1/2: `flip` before an operation of the host."""

    spec_name: ClassVar[str] = "flip"

    def __call__(self, image, rng):
        return image[:, ::-1] if rng.random() < 0.5 else image


@dataclass(frozen=True)
class ThreeAugment(PictureOperation):
    """Makes a picture grey, solarises it (pixels of 128 and more are inverted) or blurs it: one of the three, equally likely.

    DeiT III: Touvron et al. (2022), arXiv 2204.07118; timm's policy "3a". The blur is Gaussian with a radius that is uniform
    in 0.1 to 2 pixels. Its crop, flip and colour jitter are operations of their own.
    """

    spec_name: ClassVar[str] = "three_augment"

    def picture(self, picture, rng):
        from PIL import ImageFilter, ImageOps

        match int(rng.integers(3)):
            case 0:
                return picture.convert("L").convert(picture.mode)
            case 1:
                return ImageOps.solarize(picture)
        return picture.filter(ImageFilter.GaussianBlur(rng.uniform(0.1, 2.0)))


@dataclass(frozen=True)
class ColorJitter(PictureOperation):
    """Changes brightness, contrast and saturation in a random order, as torchvision's ColorJitter without hue.

    Each factor is uniform in [max(0, 1 - strength), 1 + strength]; 1 changes nothing.

    Args:
      strength: positive; 0.3 in DeiT III, 0.4 in timm.

    Raises:
      ValueError: strength is not positive.
    """

    spec_name: ClassVar[str] = "color_jitter"
    ranges: ClassVar[tuple[str, ...]] = ("strength > 0",)

    strength: float

    def picture(self, picture, rng):
        for number in rng.permutation(3):
            name = ("Brightness", "Contrast", "Color")[number]
            picture = _enhanced(name)(picture, rng.uniform(max(0.0, 1 - self.strength), 1 + self.strength), rng)
        return picture


@dataclass(frozen=True)
class RandAugment(PictureOperation):
    """Applies `n` operations in turn, each drawn out of 16, all at magnitude `m` (Cubuk et al., 2019, arXiv 1909.13719).

    The list and the magnitudes are big_vision's (its pp/autoaugment.py, after EfficientNet's): autocontrast, equalize,
    invert, rotate (30 degrees at m=10), posterize (to 4 bits), solarize (from 256 on: nothing), color, contrast, brightness
    and sharpness (factor 1.9), shears (0.3), translations (100 of 224 pixels), cutout (a square of 80 of 224 pixels) and
    solarize_add (110). Signs are random, empty pixels are grey (128), pixels move to the nearest place. All differences:
    contrast moves pixels from their mean, as in PIL (big_vision takes the number of pixels / 256 for the mean); translations
    and cutout scale with the image; posterize leaves a bit. timm's is `timm_randaug`; torchvision's has another list.

    Args:
      n: number of operations.
      m: magnitude, 10 is usual.

    Raises:
      ValueError: n is below 1, or m outside 0 to 10.
    """

    spec_name: ClassVar[str] = "randaug"
    ranges: ClassVar[tuple[str, ...]] = ("n >= 1", "m >= 0", "m <= 10")

    n: int
    m: float

    def picture(self, picture, rng):
        for number in rng.integers(len(RANDAUG), size=self.n):
            operation, argument = [*RANDAUG.values()][number]
            picture = operation(picture, argument(self.m / 10), rng)
        return picture


@dataclass(frozen=True)
class TimmRandAugment(PictureOperation):
    """Draws `n` operations out of 15 and applies each with probability 1/2, at a magnitude of its own, as timm does.

    The defaults are its "rand-m9-mstd0.5-inc1", the policy of DeiT, Swin and ConvNeXt: all operations grow with the
    magnitude, which is normal around `m` and cut to 0 to 10. At 10: rotate by 30 degrees, posterize to one bit (timm asks for
    none, which is black, and Pillow 13 refuses), solarize from 0 on, color, contrast, brightness and sharpness by 0.1 or 1.9,
    shears of 0.3, translations by 0.45 of a side, solarize_add of 110; autocontrast, equalize and invert have no magnitude.
    Signs are random, empty pixels have ImageNet's mean colour, pixels are moved bicubically.

    Args:
      n: number of operations.
      m: mean magnitude.
      std: standard deviation of magnitudes; 0 fixes them.

    Raises:
      ValueError: n is below 1, m outside 0 to 10, or std negative.
    """

    spec_name: ClassVar[str] = "timm_randaug"
    ranges: ClassVar[tuple[str, ...]] = (*RandAugment.ranges, "std >= 0")

    n: int = 2
    m: float = 9.0
    std: float = 0.5

    def picture(self, picture, rng):
        for number in rng.integers(len(TIMM_RANDAUG), size=self.n):
            if rng.random() < 0.5:
                operation, argument = [*TIMM_RANDAUG.values()][number]
                share = np.clip(rng.normal(self.m, self.std), 0, 10) / 10
                picture = operation(picture, argument(share), rng)
        return picture


Operate = Callable[["Image.Image", Any, np.random.Generator], "Image.Image"]  # of a picture and an argument


def _point(name: str) -> Operate:
    """Returns an operation of PIL.ImageOps, with its argument where it has one."""

    def operate(picture: "Image.Image", argument: int | None, rng: np.random.Generator) -> "Image.Image":
        from PIL import ImageOps

        return getattr(ImageOps, name)(picture, *(() if argument is None else (argument,)))

    return operate


def _enhanced(name: str) -> Operate:
    def operate(picture: "Image.Image", factor: float, rng: np.random.Generator) -> "Image.Image":
        from PIL import ImageEnhance

        return getattr(ImageEnhance, name)(picture).enhance(factor)

    return operate


def _changed(name: str) -> Operate:
    """Returns an operation of PIL.ImageEnhance by 1 plus its argument, whose sign is drawn."""
    enhance = _enhanced(name)
    return lambda picture, change, rng: enhance(picture, 1 + _signed(change, rng), rng)


def _signed(value: float, rng: np.random.Generator) -> float:
    return value if rng.random() < 0.5 else -value


def _moved(
    matrix: Callable[[float, int, int], tuple[float, ...]],
    resample: str = "nearest",
    fill: tuple[int, ...] = (128,) * 3,
) -> Operate:
    """Returns an operation that moves pixels: the one at (x, y) comes from (a x + b y + c, d x + e y + f), or is `fill`.

    `matrix` has a, ..., f of an argument, whose sign is drawn, and of a picture's width and height. Coordinates are PIL's:
    centres of pixels lie at 1/2, 3/2, ...
    """

    def operate(picture: "Image.Image", argument: float, rng: np.random.Generator) -> "Image.Image":
        from PIL import Image

        moves = matrix(_signed(argument, rng), *picture.size)
        colour = fill[1] if picture.mode == "L" else fill
        kind, filter = Image.Transform.AFFINE, Image.Resampling[resample.upper()]
        return picture.transform(picture.size, kind, moves, filter, fillcolor=colour)

    return operate


def _rotation(degrees: float, width: int, height: int) -> tuple[float, ...]:
    """Returns the turn about the centre of a picture."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    x, y = width / 2, height / 2
    return cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y


def _cutout(picture: "Image.Image", share: float, rng: np.random.Generator) -> "Image.Image":
    """Returns the picture with a grey square, whose centre lies anywhere and whose side is twice a share of the width."""
    from PIL import Image

    pixels, half = np.array(picture), round(share * picture.width)
    y, x = rng.integers(picture.height), rng.integers(picture.width)
    pixels[max(0, y - half) : y + half, max(0, x - half) : x + half] = 128
    return Image.fromarray(pixels)


def _solarize_add(picture: "Image.Image", addition: int, rng: np.random.Generator) -> "Image.Image":
    levels = [min(255, level + addition) if level < 128 else level for level in range(256)]
    return picture.point(levels * len(picture.getbands()))


_ENHANCED = ("Color", "Contrast", "Brightness", "Sharpness")
# Operations of `randaug`, each with its argument by the share of the largest magnitude.
RANDAUG = {
    "autocontrast": (_point("autocontrast"), lambda share: None),
    "equalize": (_point("equalize"), lambda share: None),
    "invert": (_point("invert"), lambda share: None),
    "rotate": (_moved(_rotation), lambda share: share * 30),
    "posterize": (_point("posterize"), lambda share: max(1, int(share * 4))),
    "solarize": (_point("solarize"), lambda share: int(share * 256)),
    **{name.lower(): (_enhanced(name), lambda share: share * 1.8 + 0.1) for name in _ENHANCED},
    "shear_x": (_moved(lambda slope, w, h: (1, slope, -slope / 2, 0, 1, 0)), lambda share: share * 0.3),
    "shear_y": (_moved(lambda slope, w, h: (1, 0, 0, slope, 1, -slope / 2)), lambda share: share * 0.3),
    "translate_x": (_moved(lambda part, w, h: (1, 0, round(part * w), 0, 1, 0)), lambda share: share * 100 / 224),
    "translate_y": (_moved(lambda part, w, h: (1, 0, 0, 0, 1, round(part * h))), lambda share: share * 100 / 224),
    "cutout": (_cutout, lambda share: share * 40 / 224),
    "solarize_add": (_solarize_add, lambda share: int(share * 110)),
}

_bicubic = functools.partial(_moved, resample="bicubic", fill=tuple(round(255 * mean) for mean in IMAGENET_MEAN))
# Operations of `timm_randaug`, likewise.
TIMM_RANDAUG = {name: RANDAUG[name] for name in ("autocontrast", "equalize", "invert", "solarize_add")} | {
    "rotate": (_bicubic(_rotation), lambda share: share * 30),
    "posterize": (_point("posterize"), lambda share: max(1, 4 - int(share * 4))),
    "solarize": (_point("solarize"), lambda share: 256 - int(share * 256)),
    **{name.lower(): (_changed(name), lambda share: share * 0.9) for name in _ENHANCED},
    "shear_x": (_bicubic(lambda slope, w, h: (1, slope, 0, 0, 1, 0)), lambda share: share * 0.3),
    "shear_y": (_bicubic(lambda slope, w, h: (1, 0, 0, slope, 1, 0)), lambda share: share * 0.3),
    "translate_x": (_bicubic(lambda part, w, h: (1, 0, part * w, 0, 1, 0)), lambda share: share * 0.45),
    "translate_y": (_bicubic(lambda part, w, h: (1, 0, 0, 0, 1, part * h)), lambda share: share * 0.45),
}
