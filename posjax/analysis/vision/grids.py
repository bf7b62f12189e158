"""Which tokens of an image stand on the grid, and where."""

import numpy as np
from jaxtyping import Float, Int

from posjax.encoding import Site


def patch_index(site: Site) -> Int[np.ndarray, "h w"]:
    """The token of every patch: row and column here are those where it stands, whatever the order of the tokens.

    Raises:
      ValueError: the tokens do not stand on two axes, or do not fill a grid, each place once.
    """
    position = np.asarray(site.position)
    if position.ndim != 2 or position.shape[1] != 2:
        raise ValueError(f"patches stand on two axes, as in posjax.grid(height, width); got positions {position.shape}")
    tokens = np.flatnonzero((np.asarray(site.prefix) == 0) & (np.asarray(site.segment) > 0))
    rows, columns = (np.unique(position[tokens, axis], return_inverse=True) for axis in (0, 1))
    height, width = len(rows[0]), len(columns[0])
    place = rows[1] * width + columns[1]
    if len(np.unique(place)) != height * width or len(place) != height * width:
        raise ValueError(f"{len(tokens)} patches do not fill the grid of {height}x{width} places that they stand on")
    return tokens[np.argsort(place)].reshape(height, width)


def distances(site: Site, patch_size: float = 1.0) -> Float[np.ndarray, "N N"]:
    """Euclidean distance between any two patches in raster order, patch_size times that of their positions."""
    position = np.asarray(site.position, np.float64)[patch_index(site).ravel()]
    return patch_size * np.linalg.norm(position[:, None] - position[None], axis=-1)
