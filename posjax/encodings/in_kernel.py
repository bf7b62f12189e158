"""What an encoding tells an accelerator kernel, which sees one head of one tile and has neither sites nor parameters."""

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int32

from posjax.encoding import Array, Encoding, Params

Tile = jax.Array | float | int  # [T, S] or [S, T] of one head, or a scalar that holds for all of it
Scalars = tuple[Tile, ...]


class InKernel(Encoding):
    """An encoding whose bias and mask a kernel computes by itself, on a line of whole positions.

    `kernel_bias` and `kernel_mask` are traced into the kernel and say, of pairs whose two tokens stand somewhere, what `bias`
    and `mask` do. They are element by element: comparisons, `where`, arithmetic, abs, exp, log; no look-ups, no
    reductions. A class that changes `bias` or `mask` has to restate them, or no kernel will take it (see `hosted`).
    """

    # The bias is one constant for all offsets from this one on, and one for all up to minus this one.
    constant_beyond: ClassVar[float] = math.inf
    # Set where all it does is to hide the keys that are so far away or further.
    window_size: ClassVar[int | None] = None

    def kernel_constants(self, params: Params, num_heads: int) -> Float[Array, "H P"]:
        """What `kernel_bias` knows of each head, in float32; a gradient flows back through it to the parameters."""
        return jnp.zeros((num_heads, 0), jnp.float32)

    def kernel_bias(self, constants: Scalars, offset: Tile) -> Tile:
        """The bias of one head at offsets k - q, from its P constants."""
        return 0.0

    def kernel_mask(self, q: Int32[Array, "..."], k: Int32[Array, "..."]) -> Bool[Array, "..."] | bool:
        """Whether queries at positions q see keys at positions k."""
        return True


def hosted(encoding: Encoding) -> bool:
    """Whether a kernel can compute what this encoding, no composition, adds to logits and hides of keys."""
    ours = {"kernel_constants", "kernel_bias", "kernel_mask"}
    theirs = {"bias", "of_offset", "mask", "shows"}
    for ancestor in type(encoding).__mro__:
        if ancestor is Encoding or ours & vars(ancestor).keys():
            return True
        if theirs & vars(ancestor).keys():
            return False
    return False
