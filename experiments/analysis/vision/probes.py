"""The dependence of a ViT on the places of patches, and the positions in its tokens.

Images are arrays [N, height, width, channels] of any dtype; `predict` is any function from images to classes [N].
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Num

from experiments.analysis.readout import ridge
from experiments.analysis.vision.attention import patch_index
from posjax.encoding import Array, Site
from posjax.spec import nearest

Predict = Callable[[np.ndarray], np.ndarray]
DIRECTIONS = ((0, 1), (0, -1), (1, 0), (-1, 0))  # (down, right)
_PADDINGS = {"black": "constant", "edge": "edge", "reflect": "reflect", "wrap": "wrap"}


class PositionProbe(NamedTuple):
    """The positions that a linear map reads off tokens, on images that it was not fitted to."""

    row: float  # R^2; nan on a grid of one row
    column: float
    patch: float  # share of tokens whose patch is named right


def shuffle_patches(
    images: Num[np.ndarray, "N h w c"], patch_size: int, share: float, rng: np.random.Generator
) -> Num[np.ndarray, "N h w c"]:
    """Permutes a share of each image's patches, drawn anew for each image.

    round(share * patches) patches are drawn in random order; each takes the place of the next, so none keeps its own. (A
    single patch cannot move.)

    Raises:
      ValueError: the patches do not tile the images, or the share is outside [0, 1].
    """
    count, height, width, channels = images.shape
    if patch_size < 1 or height % patch_size or width % patch_size:
        raise ValueError(f"patches of {patch_size}x{patch_size} do not tile images of {height}x{width}")
    if not 0 <= share <= 1:
        raise ValueError(f"share={share} of the patches must lie in [0, 1]")
    rows, columns = height // patch_size, width // patch_size
    patches = images.reshape(count, rows, patch_size, columns, patch_size, channels).swapaxes(2, 3)
    patches = patches.reshape(count, rows * columns, patch_size, patch_size, channels)
    chosen = rng.permuted(np.tile(np.arange(rows * columns), (count, 1)), axis=1)[:, : round(share * rows * columns)]
    source = np.tile(np.arange(rows * columns), (count, 1))
    np.put_along_axis(source, np.roll(chosen, -1, axis=1), chosen, axis=1)
    patches = np.take_along_axis(patches, source[:, :, None, None, None], axis=1)
    patches = patches.reshape(count, rows, columns, patch_size, patch_size, channels).swapaxes(2, 3)
    return patches.reshape(images.shape)


def translate(
    images: Num[np.ndarray, "N h w c"], down: int, right: int, padding: str = "black"
) -> Num[np.ndarray, "N h w c"]:
    """Moves the content of images by pixels; `padding` fills the rest: "black" (zeros), "edge", "reflect" or "wrap".

    Raises:
      ValueError: the padding is unknown, or the shift is too large for the image to reflect or show.
    """
    if padding not in _PADDINGS:
        raise ValueError(f"no padding is named {padding!r}; {nearest(padding, list(_PADDINGS))}")
    _, height, width, _ = images.shape
    if abs(down) >= height or abs(right) >= width:
        raise ValueError(f"a shift by ({down}, {right}) pixels leaves nothing of images of {height}x{width}")
    before = max(down, 0), max(right, 0)
    after = max(-down, 0), max(-right, 0)
    padded = np.pad(images, ((0, 0), *zip(before, after, strict=True), (0, 0)), mode=_PADDINGS[padding])
    return padded[:, after[0] : after[0] + height, after[1] : after[1] + width]


def right_when_shuffled(
    predict: Predict,
    images: Num[np.ndarray, "N h w c"],
    labels: Int[np.ndarray, " N"],
    patch_size: int,
    shares: Sequence[float],
    rng: np.random.Generator,
) -> Bool[np.ndarray, "S N"]:
    """Marks the images that are classified right with these shares of their patches shuffled, the same draws for whole sets.

    Raises:
      ValueError: see `shuffle_patches`.
    """
    changed = (shuffle_patches(images, patch_size, share, rng) for share in shares)
    return np.stack([np.asarray(predict(each)) == labels for each in changed])


def right_when_translated(
    predict: Predict,
    images: Num[np.ndarray, "N h w c"],
    labels: Int[np.ndarray, " N"],
    shifts: Iterable[int],
    padding: str = "black",
) -> Bool[np.ndarray, "S 4 N"]:
    """Marks the images that are classified right when they are moved by so many pixels: right, left, down and up.

    Raises:
      ValueError: see `translate`.
    """
    found = []
    for shift in shifts:
        directions = DIRECTIONS if shift else DIRECTIONS[:1]  # no shift is the same in all directions
        moved = (translate(images, shift * down, shift * right, padding) for down, right in directions)
        found.append([np.asarray(predict(each)) == labels for each in moved] * (len(DIRECTIONS) // len(directions)))
    return np.array(found)


def position_probe(fitted: Float[Array, "B T M"], held_out: Float[Array, "B2 T M"], site: Site) -> PositionProbe:
    """The score of ridge regression for the places of patches, on other images than it was fitted to.

    Targets are row and column, and one indicator for each patch; the largest one names it. Later layers can use the
    positions that a linear map finds; others may be there all the same.

    Raises:
      ValueError: the patches do not fill a grid, or there are no images to fit to or to test on.
    """
    index = patch_index(site)
    places = np.stack(np.mgrid[: index.shape[0], : index.shape[1]], axis=-1).reshape(-1, 2).astype(np.float64)
    targets = np.concatenate([places, np.eye(index.size)], axis=1)
    x, other = (np.asarray(tokens, np.float64)[:, index.ravel()] for tokens in (fitted, held_out))
    found = ridge(x, other, targets)
    residual = ((found[..., :2] - places) ** 2).mean(axis=(0, 1))
    variance = places.var(axis=0)
    r_squared = 1 - residual / np.where(variance > 0, variance, np.nan)
    named = found[..., 2:].argmax(axis=-1) == np.arange(index.size)
    return PositionProbe(*map(float, r_squared), float(named.mean()))
