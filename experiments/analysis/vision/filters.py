"""The filters of the patch embedding."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from posjax.encoding import Array


class Components(NamedTuple):
    """Principal components of filters, and the share of the filters' variance that each explains."""

    filters: Float[np.ndarray, "k p p2 C"]  # of unit length; the entry of largest magnitude is positive
    share: Float[np.ndarray, " k"]


def filter_components(kernel: Float[Array, "p p2 C M"], k: int = 28) -> Components:
    """Returns the first k principal components of M filters of p x p2 pixels and C channels, at most min(p p2 C, M).

    Dosovitskiy et al. (2020), arXiv 2010.11929, figure 7 left, which shows 28 of ViT-L/32. The paper does not say whether the
    mean filter is subtracted first; here it is, so shares are of the variance about it.

    Raises:
      ValueError: the kernel is not [p, p, C, M], or k is below 1.
    """
    if np.ndim(kernel) != 4:
        raise ValueError(
            f"the kernel of a patch embedding is [p, p, C, M], as params['patches_to_tokens']['kernel']; got "
            f"{np.shape(kernel)}"
        )
    if k < 1:
        raise ValueError(f"k={k} must be at least 1")
    shape = np.shape(kernel)[:3]
    filters = np.asarray(kernel, np.float64).reshape(-1, np.shape(kernel)[3]).T
    _, singular, components = np.linalg.svd(filters - filters.mean(axis=0), full_matrices=False)
    largest = np.take_along_axis(components, np.abs(components).argmax(axis=1)[:, None], axis=1)
    components = components * np.where(largest < 0, -1.0, 1.0)  # an SVD does not fix the sign
    variance = singular**2
    share = variance / variance.sum() if variance.sum() else variance
    return Components(components[:k].reshape(-1, *shape), share[:k])
