"""The reach of attention: its distances, and its flow from patches through all layers.

Weights are what softmax gives in one layer, [B, H, T, T] with the keys along the last axis: NumPy or JAX arrays of any model.
Which tokens are patches, and where, is said by a `Site` (`posjax.grid(height, width, prefix)`).
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from posjax.encoding import Array, Site


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


def attention_distance(
    weights: Float[Array, "B H T T"], site: Site, patch_size: float = 1.0
) -> Float[np.ndarray, " H"]:
    """Mean distance from a patch to where its attention goes, of each head, in pixels if `patch_size` is (else in patches).

    Dosovitskiy et al. (2020), arXiv 2010.11929, figure 7 right and appendix D.7: the distance between query and key, weighted
    by the attention and averaged over queries and images. The paper does not say what becomes of the class token: here only
    patches count, as queries and as keys, and what a query gives to them is renormalised to 1. A query that gives them
    nothing is left out; nan if all are.

    Raises:
      ValueError: patches that do not fill a grid, or weights of another number of tokens.
    """
    among = _among_patches(weights, site)
    total = among.sum(axis=-1)
    mean = (among * distances(site, patch_size)).sum(axis=-1) / np.where(total > 0, total, np.nan)
    seen = np.isfinite(mean)
    count = seen.sum(axis=(0, 2))
    return np.where(seen, mean, 0.0).sum(axis=(0, 2)) / np.where(count > 0, count, np.nan)


def uniform_distance(site: Site, patch_size: float = 1.0) -> float:
    """The `attention_distance` of uniform attention."""
    return float(distances(site, patch_size).mean())


def share_of_prefix(weights: Float[Array, "B H T T"], site: Site) -> Float[np.ndarray, " H"]:
    """The share of the patches' attention that goes to tokens which stand nowhere: class token, registers.

    Raises:
      ValueError: as `attention_distance`.
    """
    patches = patch_index(_checked(weights, site)).ravel()
    beside = np.flatnonzero(np.asarray(site.prefix) > 0)
    given = np.asarray(weights, np.float64)[:, :, patches][..., beside]
    return given.sum(axis=-1).mean(axis=(0, 2))


def rollout(weights: Sequence[Float[Array, "B H T T"]], residual: float = 0.5) -> Float[np.ndarray, "B T T"]:
    """The share of each input token (last axis) in each output token, if attention alone moved information.

    Abnar & Zuidema (2020), arXiv 2005.00928, section 3: A~_l = (1 - residual) mean over heads of A_l + residual I, its rows
    scaled to sum 1, and A~_L ... A~_1. With residual=0.5 this is the paper's 0.5 A + 0.5 I. Heads are averaged, as there;
    others take their maximum.

    Args:
      weights: of each layer, the first one first.

    Raises:
      ValueError: no layer, layers of other shapes, or a residual outside [0, 1].
    """
    if not len(weights):
        raise ValueError("rollout takes the attention weights of at least one layer; got none")
    shapes = [np.shape(layer) for layer in weights]
    if any(len(shape) != 4 or (shape[0], *shape[2:]) != (shapes[0][0], shapes[0][2], shapes[0][2]) for shape in shapes):
        raise ValueError(
            f"rollout takes weights [B, H, T, T] of each layer, of the same images and tokens; got {shapes}"
        )
    if not 0 <= residual <= 1:
        raise ValueError(f"residual={residual} must lie in [0, 1]: 0.5 in the paper")
    flow = None
    for layer in weights:
        mixed = (1 - residual) * np.asarray(layer, np.float64).mean(axis=1) + residual * np.eye(layer.shape[-1])
        mixed /= mixed.sum(axis=-1, keepdims=True)
        flow = mixed if flow is None else mixed @ flow
    return flow


def rollout_map(flow: Float[Array, "B T T"], site: Site, token: int | None = None) -> Float[np.ndarray, "B h w"]:
    """From which patches an image's answer comes, by `rollout`: shares that sum to 1.

    Args:
      token: the token that is read, 0 for a class token; the mean over patches where None, as in mean pooling.

    Raises:
      ValueError: patches that do not fill a grid, or a flow of another number of tokens.
    """
    index, tokens = patch_index(site), len(site.segment)
    if np.ndim(flow) != 3 or np.shape(flow)[1:] != (tokens, tokens):
        raise ValueError(
            f"a flow is [B, T, T] with the {tokens} tokens of the site, got {np.shape(flow)}: "
            "posjax.grid(height, width, prefix) counts class token and registers in prefix"
        )
    flow = np.asarray(flow, np.float64)
    row = flow[:, index.ravel()].mean(axis=1) if token is None else flow[:, token]
    found = row[:, index.ravel()].reshape(-1, *index.shape)
    return found / found.sum(axis=(1, 2), keepdims=True)


def _among_patches(weights: Float[Array, "B H T T"], site: Site) -> Float[np.ndarray, "B H N N"]:
    patches = patch_index(_checked(weights, site)).ravel()
    return np.asarray(weights, np.float64)[:, :, patches][..., patches]


def _checked(weights: Float[Array, "B H T T"], site: Site) -> Site:
    tokens = len(site.segment)
    if np.ndim(weights) != 4 or np.shape(weights)[2:] != (tokens, tokens):
        raise ValueError(
            f"attention weights are [B, H, T, T] with the {tokens} tokens of the site, got {np.shape(weights)}: "
            "posjax.grid(height, width, prefix) counts class token and registers in prefix"
        )
    return site
