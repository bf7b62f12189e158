"""The reach of a ViT's attention: its distances, what tokens without position read, and its flow through all layers.

Weights are one layer's softmax, [B, H, T, T] with keys along the last axis. A `Site` (`posjax.grid(height, width, prefix)`)
holds the places of the tokens that are patches, which fill a grid.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from posjax.encoding import Array, Site


def patch_index(site: Site) -> Int[np.ndarray, "h w"]:
    """Returns the token of the patch at each (row, column), whatever the order of the tokens."""
    tokens = np.flatnonzero((np.asarray(site.prefix) == 0) & (np.asarray(site.segment) > 0))
    position = np.asarray(site.position)[tokens]
    return tokens[np.lexsort((position[:, 1], position[:, 0]))].reshape(len(np.unique(position[:, 0])), -1)


def distances(site: Site, patch_size: float = 1.0) -> Float[np.ndarray, "N N"]:
    """Returns the Euclidean distance of any two patches in raster order: patch_size times the distance of positions."""
    position = np.asarray(site.position, np.float64)[patch_index(site).ravel()]
    return patch_size * np.linalg.norm(position[:, None] - position[None], axis=-1)


def attention_distance(
    weights: Float[Array, "B H T T"], site: Site, patch_size: float = 1.0
) -> Float[np.ndarray, " H"]:
    """Returns each head's mean distance of attention, in pixels if `patch_size` is in pixels (else in patches).

    Dosovitskiy et al. (2020), arXiv 2010.11929, figure 7 right and appendix D.7: the distance between query and key, weighted
    by attention and averaged over queries and images. The paper does not mention the class token: here only patches count, as
    queries and as keys, and a query's attention to patches is renormalised to 1. Queries without attention to patches are
    left out; nan if none remain.
    """
    among = _among_patches(weights, site)
    total = among.sum(axis=-1)
    mean = (among * distances(site, patch_size)).sum(axis=-1) / np.where(total > 0, total, np.nan)
    seen = np.isfinite(mean)
    count = seen.sum(axis=(0, 2))
    return np.where(seen, mean, 0.0).sum(axis=(0, 2)) / np.where(count > 0, count, np.nan)


def attention_by_distance(weights: Float[Array, "B H T T"], site: Site) -> Float[np.ndarray, "B H K"]:
    """Returns the mean weight that a patch gives to a patch so far away, by Euclidean distance in patches.

    Only patches count, as queries and as keys, and a query's weights among them are scaled to sum 1. Distances are rounded
    to whole patches: an entry holds the pairs within half a patch of it, and is nan if there are none.
    """
    steps = np.rint(distances(site)).astype(int).ravel()
    pairs, among = np.bincount(steps), _among_patches(weights, site)
    among /= among.sum(axis=-1, keepdims=True)
    total = [np.bincount(steps, weights=each) for each in among.reshape(-1, steps.size)]
    return (np.stack(total) / np.where(pairs, pairs, np.nan)).reshape(*among.shape[:2], -1)


def share_of_prefix(weights: Float[Array, "B H T T"], site: Site) -> Float[np.ndarray, " H"]:
    """Returns the share of the patches' attention to tokens without position: class token, registers."""
    beside = np.flatnonzero(np.asarray(site.prefix) > 0)
    shares = np.asarray(weights, np.float64)[:, :, patch_index(site).ravel()][..., beside]
    return shares.sum(axis=-1).mean(axis=(0, 2))


def attention_of_prefix(weights: Float[Array, "B H T T"], site: Site) -> Float[np.ndarray, "B H P h w"]:
    """Returns the shares of patches in what each token without position reads: class token, registers; they sum to 1.

    Attention to such tokens is left out; nan where a token reads no patch.
    """
    index, prefix = patch_index(site), np.asarray(site.prefix)
    queries = np.argsort(prefix, kind="stable")[np.count_nonzero(prefix == 0) :]
    read = np.asarray(weights, np.float64)[:, :, queries][..., index.ravel()]
    total = read.sum(axis=-1, keepdims=True)
    return (read / np.where(total > 0, total, np.nan)).reshape(*read.shape[:3], *index.shape)


def spread(shares: Float[np.ndarray, "... h w"], patch_size: float = 1.0) -> Float[np.ndarray, "... 2"]:
    """Returns the mean distance of a map from its own centre, in units of `patch_size`, and its entropy in nats."""
    places = np.stack(np.meshgrid(*map(np.arange, shares.shape[-2:]), indexing="ij"), axis=-1)
    centre = (shares[..., None] * places).sum(axis=(-3, -2), keepdims=True)
    far = patch_size * np.linalg.norm(places - centre, axis=-1)
    logs = np.log(np.where(shares > 0, shares, 1.0))
    return np.stack([(shares * far).sum(axis=(-2, -1)), -(shares * logs).sum(axis=(-2, -1))], axis=-1)


def rollout(weights: Sequence[Float[Array, "B H T T"]]) -> Float[np.ndarray, "B T T"]:
    """The share of each input token (last axis) in each output token, if attention alone moved information.

    Abnar & Zuidema (2020), arXiv 2005.00928, section 3: A~_l = 0.5 mean over heads of A_l + 0.5 I, its rows scaled to sum
    1, and A~_L ... A~_1. Heads are averaged as in the paper; other code takes their maximum.
    """
    flow = np.eye(np.shape(weights[0])[-1])
    for layer in weights:
        mixed = 0.5 * np.asarray(layer, np.float64).mean(axis=1) + 0.5 * np.eye(layer.shape[-1])
        flow = mixed / mixed.sum(axis=-1, keepdims=True) @ flow
    return flow


def rollout_map(flow: Float[Array, "B T T"], site: Site, token: int | None = None) -> Float[np.ndarray, "B h w"]:
    """Returns the patches' shares in an image's answer by `rollout`; they sum to 1.

    Args:
      token: the token that the model reads, 0 for a class token; None: the mean over patches, as in mean pooling.
    """
    index = patch_index(site)
    row = flow[:, index.ravel()].mean(axis=1) if token is None else flow[:, token]
    shares = row[:, index.ravel()].reshape(-1, *index.shape)
    return shares / shares.sum(axis=(1, 2), keepdims=True)


def _among_patches(weights: Float[Array, "B H T T"], site: Site) -> Float[np.ndarray, "B H N N"]:
    patches = patch_index(site).ravel()
    return np.asarray(weights, np.float64)[:, :, patches][..., patches]
