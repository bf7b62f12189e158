"""Turns pictures of any size, aspect and format into uint8 arrays; `posjax.data.normalise` makes floats of them later.

Every resize is PIL's: separable, half-pixel centred, and antialiased when it shrinks. PIL decodes, too: a second decoder
would gain 8 %, since the resize takes most of the time, and faster ones alias.
"""

from __future__ import annotations

import io
import os
import pathlib
import struct
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from posjax.spec import nearest

if TYPE_CHECKING:
    from PIL import Image

_MODES = ("crop", "pad", "stretch")
_FILTERS = ("bicubic", "bilinear", "box", "lanczos", "nearest")

Source = Any  # a path, the bytes of a file, a PIL image, or an array [h, w] or [h, w, c] uint8


def read_image(source: Source, *, channels: int = 3, name: str | None = None) -> np.ndarray:
    """Reads a picture as a viewer shows it.

    It is turned by its EXIF orientation; palettes are looked up and 16-bit grey is scaled to 8 bits. Transparent pixels are
    blended with white (other readers drop the alpha channel, which shows hidden colours). An animation gives its first frame.

    Args:
      source: a path, the bytes of a file (PNG, JPEG, WebP, ... what PIL reads), a PIL image, or an array [h, w] or
        [h, w, c] uint8 with c = 1, 3 or 4.
      channels: 3 (grey is repeated) or 1 (colour becomes ITU-R 601 luma).
      name: what messages call it; None is its path, or its type.

    Returns:
      [h, w, channels] uint8.

    Raises:
      ValueError: it is not a picture, damaged, too large for PIL, or of floats; the message names the file.
      FileNotFoundError: the file is missing.
    """
    if isinstance(source, np.ndarray) and channels in (1, 3):
        source = _checked(source)
        if source.shape[2] == channels:
            return source
    return pixels_of(open_image(source, channels=channels, name=name))


def open_image(source: Source, *, channels: int = 3, name: str | None = None) -> Image.Image:
    """Returns a picture as PIL's image in mode L or RGB, decoded: `read_image` before it becomes an array."""
    from PIL import Image, UnidentifiedImageError

    if channels not in (1, 3):
        raise ValueError(f"channels={channels} must be 1 (grey) or 3 (RGB)")
    kind = "L" if channels == 1 else "RGB"
    if isinstance(source, np.ndarray):
        source = _checked(source)
        return _upright(Image.fromarray(source[..., 0] if source.shape[2] == 1 else source), kind, "the array")
    if isinstance(source, Image.Image):
        return _upright(source, kind, name or "the image")
    name = name or ("the bytes" if isinstance(source, bytes) else os.fspath(source))
    content = source if isinstance(source, bytes) else pathlib.Path(source).read_bytes()
    broken = (OSError, SyntaxError, EOFError, ValueError, struct.error, zlib.error, Image.DecompressionBombError)
    try:
        with Image.open(io.BytesIO(content)) as picture:
            picture.load()
            return _upright(picture, kind, name)
    except broken as error:
        says = "its format is unknown" if isinstance(error, UnidentifiedImageError) else error
        raise ValueError(f"{name} cannot be read as a picture: {says}") from error


def preprocess(
    source: Source,
    size: int | tuple[int, int],
    mode: str = "crop",
    *,
    channels: int = 3,
    resample: str = "bicubic",
    crop_fraction: float = 1.0,
) -> np.ndarray:
    """Makes an array of a fixed size from a picture of any size.

    Args:
      source: a picture, see `read_image`.
      size: (H, W) in pixels, or H = W.
      mode: "crop" keeps the aspect, covers H x W divided by `crop_fraction` (rounded down) and cuts out the centre, as
        torchvision and timm do to evaluate. "pad" keeps the aspect, fits inside H x W and centres on black. "stretch"
        resizes to H x W whatever the aspect.
      channels: 1 or 3.
      resample: "bicubic" (Keys, a = -0.5), "bilinear", "box", "lanczos" or "nearest".
      crop_fraction: in (0, 1], only for "crop"; 0.875 is usual at 224 pixels.

    Returns:
      [H, W, channels] uint8.

    Raises:
      ValueError: the picture cannot be read, the mode or filter is unknown, or the size or fraction is out of range.
    """
    height, width = (size, size) if np.ndim(size) == 0 else size
    check_way((height, width), mode, crop_fraction)
    picture = open_image(source, channels=channels)
    if mode == "stretch":
        return pixels_of(resize_image(picture, (height, width), resample))
    h, w = picture.height, picture.width
    if mode == "crop":
        cover_h, cover_w = int(height / crop_fraction), int(width / crop_fraction)
        binds = cover_h * w >= cover_w * h  # the height has to be stretched more
        cover = (cover_h, w * cover_h // h) if binds else (h * cover_w // w, cover_w)
        top, left = (round((there - wanted) / 2) for there, wanted in zip(cover, (height, width), strict=True))
        return pixels_of(resize_image(picture, cover, resample).crop((left, top, left + width, top + height)))
    binds = height * w <= width * h
    inside = (height, max(1, round(w * height / h))) if binds else (max(1, round(h * width / w)), width)
    out = np.zeros((height, width, channels), np.uint8)
    top, left = (height - inside[0]) // 2, (width - inside[1]) // 2
    out[top : top + inside[0], left : left + inside[1]] = pixels_of(resize_image(picture, inside, resample))
    return out


def native_grids(size: np.ndarray, max_patches: int | np.ndarray) -> np.ndarray:
    """The numbers of patches, down and across, of an image: NaFlex's rule (big_vision, SigLIP 2, arXiv 2502.14786).

    The scale s, in units of a patch, is the largest with ceil(s h) ceil(s w) <= max_patches; the grid has ceil(s h) rows and
    ceil(s w) columns. big_vision, timm and transformers bisect for s and so find a smaller grid if s is within their
    tolerance of the next one; here the search is exact, in whole numbers. Smaller images are enlarged, as there. The aspect
    of the grid differs from the image's by less than a patch on either side.

    Args:
      size: [N, 2] heights and widths in pixels.
      max_patches: one maximum for all images, or [N].

    Returns:
      [N, 2] int32, each at least 1.

    Raises:
      ValueError: a size or a max_patches is below 1.
    """
    size, most = np.asarray(size, np.int64), np.broadcast_to(np.asarray(max_patches, np.int64), len(size))
    if (size < 1).any() or (most < 1).any():
        raise ValueError(f"sizes and max_patches={max_patches} must be at least 1")
    grid = np.ones_like(size)
    while True:
        # rows / h is the scale up to which this many rows are enough: the side where it is lower grows next, or both.
        scale = grid * size[:, ::-1]
        grown = grid + (scale == scale.min(axis=1, keepdims=True))
        fits = grown.prod(axis=1) <= most
        if not fits.any():
            return grid.astype(np.int32)
        grid = np.where(fits[:, None], grown, grid)


def resize(pixels: np.ndarray, size: tuple[int, int], resample: str = "bicubic") -> np.ndarray:
    """Resizes [h, w, c] uint8 to [H, W, c] by PIL.

    Raises:
      ValueError: the filter is unknown.
    """
    if pixels.shape[:2] == tuple(size):
        return pixels
    return pixels_of(resize_image(open_image(pixels, channels=pixels.shape[2]), size, resample))


def resize_image(picture: Image.Image, size: tuple[int, int], resample: str) -> Image.Image:
    """Returns PIL's image as one of (H, W) pixels."""
    from PIL import Image

    check_filter(resample)
    return picture.resize(size[::-1], Image.Resampling[resample.upper()])


def check_way(size: tuple[int, int], mode: str, crop_fraction: float) -> None:
    """Raises a ValueError where `preprocess` does not know the mode, or a size or fraction is out of range."""
    if mode not in _MODES:
        raise ValueError(f"no mode is named {mode!r}; {nearest(mode, _MODES)}")
    if min(size) < 1:
        raise ValueError(f"size={size} must be at least 1 pixel on each side")
    if not 0 < crop_fraction <= 1 or (mode != "crop" and crop_fraction != 1):
        raise ValueError(f"crop_fraction={crop_fraction} must lie in (0, 1], and be 1 unless mode='crop', not {mode!r}")


def check_filter(resample: str) -> None:
    """Raises a ValueError where `resize` does not know the filter."""
    if resample not in _FILTERS:
        raise ValueError(f"no filter is named {resample!r}; {nearest(resample, _FILTERS)}")


def pixels_of(picture: Image.Image) -> np.ndarray:
    """Returns [h, w, c] uint8, writable."""
    return np.array(picture).reshape(picture.height, picture.width, -1)


def _upright(picture: Image.Image, kind: str, name: str) -> Image.Image:
    """Returns a picture turned as its EXIF data say, opaque, and in mode L or RGB."""
    from PIL import ExifTags, Image, ImageOps

    if picture.mode == "F":
        raise ValueError(f"{name} holds floats, whose range is unknown: convert it to 8 or 16 bits first")
    if picture.getexif().get(ExifTags.Base.Orientation, 1) != 1:
        picture = ImageOps.exif_transpose(picture)
    if picture.mode.startswith("I"):
        levels = np.asarray(picture)
        if levels.min() < 0 or levels.max() > 65535:
            raise ValueError(f"{name} holds levels {levels.min()}..{levels.max()}: convert it to 8 or 16 bits first")
        picture = Image.fromarray(np.round(levels / 257).astype(np.uint8))
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    return picture if picture.mode == kind else picture.convert(kind)


def _checked(array: np.ndarray) -> np.ndarray:
    array = array[..., None] if array.ndim == 2 else array
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4) or array.dtype != np.uint8 or not array.size:
        raise ValueError(f"an image is [h, w], or [h, w, 1, 3 or 4], of uint8, got {array.shape} of {array.dtype}")
    return array
