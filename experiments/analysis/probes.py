"""The dependence of a ViT on the places of patches, and the positions in its tokens.

Images are arrays [N, height, width, channels]; `predict` is any function from images to classes [N].
"""

from collections.abc import Callable, Iterable

import numpy as np
from jaxtyping import Bool, Float, Int, Num

from experiments.analysis.patches import patch_index
from experiments.analysis.readout import ridge
from posjax.encoding import Array, Site
from posjax.spec import nearest

Predict = Callable[[np.ndarray], np.ndarray]
DIRECTIONS = ((0, 1), (0, -1), (1, 0), (-1, 0))  # (down, right)
_PADDINGS = {"black": "constant", "edge": "edge", "reflect": "reflect", "wrap": "wrap"}


def cut(images: Num[np.ndarray, "N h w c"], patch_size: int) -> Num[np.ndarray, "N P p p c"]:
    """Returns the patches of images, in raster order."""
    count, height, width, channels = images.shape
    patches = images.reshape(count, height // patch_size, patch_size, width // patch_size, patch_size, channels)
    return patches.swapaxes(2, 3).reshape(count, -1, patch_size, patch_size, channels)


def shuffle_patches(
    images: Num[np.ndarray, "N h w c"], patch_size: int, share: float, rng: np.random.Generator
) -> Num[np.ndarray, "N h w c"]:
    """Permutes a share of each image's patches, drawn anew for each image.

    round(share * patches) patches are drawn in random order; each takes the place of the next, so none keeps its own. (A
    single patch cannot move.)
    """
    patches, (rows, columns) = cut(images, patch_size), (side // patch_size for side in images.shape[1:3])
    source = np.tile(np.arange(rows * columns), (len(images), 1))
    chosen = rng.permuted(source, axis=1)[:, : round(share * rows * columns)]
    np.put_along_axis(source, np.roll(chosen, -1, axis=1), chosen, axis=1)
    patches = np.take_along_axis(patches, source[:, :, None, None, None], axis=1)
    return patches.reshape(len(images), rows, columns, *patches.shape[2:]).swapaxes(2, 3).reshape(images.shape)


def translate(
    images: Num[np.ndarray, "N h w c"], down: int, right: int, padding: str = "black"
) -> Num[np.ndarray, "N h w c"]:
    """Moves the content of images by pixels; `padding` fills the rest: "black" (zeros), "edge", "reflect" or "wrap".

    Raises:
      ValueError: the padding is unknown.
    """
    if padding not in _PADDINGS:
        raise ValueError(f"no padding is named {padding!r}; {nearest(padding, list(_PADDINGS))}")
    _, height, width, _ = images.shape
    before = max(down, 0), max(right, 0)
    after = max(-down, 0), max(-right, 0)
    padded = np.pad(images, ((0, 0), *zip(before, after, strict=True), (0, 0)), mode=_PADDINGS[padding])
    return padded[:, after[0] : after[0] + height, after[1] : after[1] + width]


def right_when_translated(
    predict: Predict,
    images: Num[np.ndarray, "N h w c"],
    labels: Int[np.ndarray, " N"],
    shifts: Iterable[int],
    padding: str = "black",
) -> Bool[np.ndarray, "S 4 N"]:
    """Marks the images that are classified right when they are moved by so many pixels: right, left, down and up."""
    marks = []
    for shift in shifts:
        directions = DIRECTIONS if shift else DIRECTIONS[:1]  # no shift is the same in all directions
        moved = (translate(images, shift * down, shift * right, padding) for down, right in directions)
        marks.append([predict(each) == labels for each in moved] * (len(DIRECTIONS) // len(directions)))
    return np.array(marks)


def position_probe(
    fitted: Float[Array, "B T M"], held_out: Float[Array, "B2 T M"], site: Site
) -> tuple[float, float, float]:
    """Returns how well a linear map reads positions off tokens, on other images than it was fitted to.

    The scores of ridge regression: R^2 of the row and of the column (nan where there is one), and the share of tokens whose
    patch is named right. Targets are row and column, and one indicator for each patch; the largest one names it. Later
    layers can use the positions that a linear map finds; others may be there all the same.
    """
    index = patch_index(site)
    places = np.stack(np.mgrid[: index.shape[0], : index.shape[1]], axis=-1).reshape(-1, 2).astype(np.float64)
    targets = np.concatenate([places, np.eye(index.size)], axis=1)
    x, other = (np.asarray(tokens, np.float64)[:, index.ravel()] for tokens in (fitted, held_out))
    prediction = ridge(x, other, targets)
    residual = ((prediction[..., :2] - places) ** 2).mean(axis=(0, 1))
    variance = places.var(axis=0)
    row, column = 1 - residual / np.where(variance > 0, variance, np.nan)
    return row, column, (prediction[..., 2:].argmax(axis=-1) == np.arange(index.size)).mean()
