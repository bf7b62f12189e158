"""Numbers that the page looks up: of encodings without a short closed form, at every place of its sliders."""

from typing import Any

import numpy as np

from posjax.encodings.bias import alibi_slopes
from posjax.encodings.resize import resize_matrix
from posjax.spec import registered

HEADS, HEADS_OF_GRIDS = (1, 2, 3, 4, 6, 8, 12, 16, 32), (3, 4, 6, 8, 12, 16)
BUCKETS, FARTHEST = (8, 16, 32, 64), (64, 128, 256)
TRAINED, SIDES = 7, range(2, 25)  # patches of a side


def forms() -> dict[str, Any]:
    """Returns ALiBi's slopes, T5's buckets, LookHere's fields of view and the likeness of codes in resized tables.

    {"slopes": {heads: [H]}, "buckets": {"num_buckets,max_distance": [distances]}, "views": {fov: {heads: [H][5]}},
    "likeness": {side: [side][side]}}. A field of view is a slope and two bounds, (row, column) each.
    """
    t5, lookhere = registered("t5"), registered("lookhere")
    return {
        "slopes": {heads: alibi_slopes(heads).tolist() for heads in HEADS},
        "buckets": {
            f"{count},{far}": t5(count, far, False).steps().listed()[far::-1].tolist()
            for count in BUCKETS
            for far in FARTHEST
        },
        "views": {
            fov: {heads: lookhere(fov=fov, slope=1.0).constants((), heads).tolist() for heads in HEADS_OF_GRIDS}
            for fov in (180, 90, 45)
        },
        "trained": TRAINED,
        "likeness": {side: likeness(TRAINED, side).tolist() for side in SIDES},
    }


def likeness(old: int, new: int) -> np.ndarray:
    """Cosines [new, new] of codes of one axis after torch's bicubic resize, if the codes were independent before.

    The cosine of two codes of a table of rows and columns is the product of the two axes' cosines.
    """
    matrix = resize_matrix(old, new, "torch_bicubic")
    unit = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
    return unit @ unit.T
