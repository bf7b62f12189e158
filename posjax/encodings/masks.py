"""Masks: which keys a query may see, beside causality and documents. Each adds to any other encoding.

All are functions of positions, not of array indices, so that they hold in packed rows, under left padding and in cached
decoding. A bidirectional model sees both sides of a query; causality hides the later side. Tokens that stand nowhere (class
token, registers) see everything and are seen by all: they are the global tokens of a vision model.
"""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Bool, Int32, Shaped, UInt32

from posjax.encoding import Array, Bounds, Encoding, Memory, Site, axes, stands
from posjax.encodings.in_kernel import InKernel
from posjax.spec import register


class _Mask(Encoding):
    def shows(self, q_site: Site, k_site: Site) -> Bool[Array, "T S"]:
        """Which keys a tile of queries sees among tokens that stand somewhere."""
        raise NotImplementedError

    def mask(self, q_site, k_site):
        return self.shows(q_site, k_site) | ~both_stand(q_site, k_site)


def both_stand(q_site: Site, k_site: Site) -> Bool[Array, "T S"]:
    """Of which pairs neither token is a class token or a register."""
    return stands(q_site)[:, None] & stands(k_site)[None]


def at_least(least: int, encoding: Encoding, *names: str) -> None:
    """Refuses whole-number arguments below `least`."""
    for name in names:
        if getattr(encoding, name) < least:
            raise ValueError(
                f"{encoding.spec_name}({name}=...) must be at least {least}, got {getattr(encoding, name)}"
            )


@register("window")
@dataclass(frozen=True)
class Window(InKernel, _Mask):
    """Sliding window: a query sees the keys less than `size` away on either side.

    Causal, these are `size` keys with the query's own among them: Mistral 7B's convention (Jiang et al. 2023, arXiv
    2310.06825) and that of transformers' causal mask; its bidirectional one takes |q - k| <= size, and Longformer's
    window counts both sides (see `longformer`). Distances on a grid are Chebyshev's: a square of 2 size - 1 patches
    a side, which with a class token is the local attention of Vision Longformer (Zhang et al. 2021, arXiv 2103.15358).

    Raises:
      ValueError: for a size below 1.
    """

    size: int

    def __post_init__(self):
        at_least(1, self, "size")

    @property
    def tile(self):
        return tile_of(self.size)

    @property
    def memory(self):
        return Memory(self.size)

    def shows(self, q_site, k_site):
        return jnp.max(jnp.abs(_offset(q_site, k_site)), axis=-1) < self.size

    def kernel_mask(self, q, k):
        return jnp.abs(k - q) < self.size

    window_size = property(lambda self: self.size)

    def sees(self, q_bounds, k_bounds):
        return gap(q_bounds, k_bounds) < self.size


@register("dilated")
@dataclass(frozen=True)
class Dilated(InKernel, _Mask):
    """Dilated sliding window: of the keys less than size * dilation away, every `dilation`-th one.

    Beltagy et al. (2020), arXiv 2004.05150, section 3.1: with dilation 1 it is `window(size)`, and always as many keys. On
    a grid all axes are dilated, as in Hassani & Shi (2022), arXiv 2209.15001. A fractional distance is no multiple of
    the dilation: such a key is not seen.

    Raises:
      ValueError: for a size or dilation below 1.
    """

    size: int
    dilation: int = 2

    def __post_init__(self):
        at_least(1, self, "size", "dilation")

    def shows(self, q_site, k_site):
        offset = _offset(q_site, k_site)
        near = jnp.max(jnp.abs(offset), axis=-1) < self.size * self.dilation
        return near & jnp.all(offset % self.dilation == 0, axis=-1)

    def kernel_mask(self, q, k):
        return (jnp.abs(k - q) < self.size * self.dilation) & ((k - q) % self.dilation == 0)

    @property
    def tile(self):
        return tile_of(self.size * self.dilation)

    @property
    def memory(self):
        return Memory((self.size - 1) * self.dilation + 1)

    def sees(self, q_bounds, k_bounds):
        return gap(q_bounds, k_bounds) < self.size * self.dilation


@register("longformer")
@dataclass(frozen=True)
class Longformer(InKernel, _Mask):
    """A sliding window, and global tokens that see all and are seen by all: positions 0 to num_global - 1 of a document.

    Beltagy et al. (2020), arXiv 2004.05150, section 3.1. `window` is their attention_window: half of it on each side, and
    the query itself, |q - k| <= window / 2, so that window + 1 keys are seen. Their global tokens have projections of
    their own, which are not positional and not here. Where the class token of a model stands nowhere it is global already.

    Raises:
      ValueError: for an odd window or one below 2, or fewer than 0 global tokens.
    """

    dimensions = (1,)

    window: int = 512
    num_global: int = 1

    def __post_init__(self):
        at_least(2, self, "window")
        at_least(0, self, "num_global")
        if self.window % 2:
            raise ValueError(f"longformer(window=...) has half of it on each side: it must be even, got {self.window}")

    @property
    def relative(self):
        return self.num_global == 0

    def shows(self, q_site, k_site):
        return self.kernel_mask(_on_line(self, q_site)[:, None], _on_line(self, k_site)[None])

    def kernel_mask(self, q, k):
        return (jnp.abs(q - k) <= self.window // 2) | (q < self.num_global) | (k < self.num_global)

    @property
    def tile(self):
        return tile_of(self.window // 2)

    @property
    def memory(self):
        return Memory(self.window // 2 + 1, self.num_global)

    def sees(self, q_bounds, k_bounds):
        q, k = _first(q_bounds)[:, None], _first(k_bounds)[None]
        return (gap(q_bounds, k_bounds) <= self.window // 2) | (q < self.num_global) | (k < self.num_global)


@register("sinks")
@dataclass(frozen=True)
class Sinks(InKernel, _Mask):
    """Attention sinks: a query sees positions 0 to num_sinks - 1 of its document, and the keys less than `window` away.

    Xiao et al. (2023), arXiv 2309.17453, section 3.2: their cache of num_sinks + window entries, the query's own among them,
    as a mask. They also count positions within the cache: `streaming(...) >> rope()` does both.

    Raises:
      ValueError: for fewer than 0 sinks or a window below 1.
    """

    dimensions = (1,)

    num_sinks: int = 4
    window: int = 512

    def __post_init__(self):
        at_least(0, self, "num_sinks")
        at_least(1, self, "window")

    @property
    def relative(self):
        return self.num_sinks == 0

    def shows(self, q_site, k_site):
        return self.kernel_mask(_on_line(self, q_site)[:, None], _on_line(self, k_site)[None])

    def kernel_mask(self, q, k):
        return (jnp.abs(q - k) < self.window) | (k < self.num_sinks)

    @property
    def tile(self):
        return tile_of(self.window)

    @property
    def memory(self):
        return Memory(self.window, self.num_sinks)

    def sees(self, q_bounds, k_bounds):
        return (gap(q_bounds, k_bounds) < self.window) | (_first(k_bounds) < self.num_sinks)[None]


@register("bigbird")
@dataclass(frozen=True)
class BigBird(_Mask):
    """Blocks of positions that see their neighbours, the global blocks, and some at random.

    Zaheer et al. (2020), arXiv 2007.14062, section 2 and appendix D: block b sees blocks b - 1, b and b + 1; the first
    `num_global` blocks see all and are seen by all; and b draws `num_random` of the other blocks before it, all of them
    where there are no more. The paper draws from the whole sequence and makes the last block global, too; but what a
    query sees must not depend on tokens to come, so here a random edge joins each block with earlier ones (and in
    a bidirectional model those with it: the graph is undirected). One block is drawn from each of
    num_random equal shares of the candidates, by a hash of (seed, block, share): the same in every layer, head and
    document, on every device, in training and in decoding.

    Raises:
      ValueError: for a block_size below 1, fewer than 0 random or global blocks, or a seed outside 0 to 2^32 - 1.
    """

    relative = False
    dimensions = (1,)

    block_size: int = 64
    num_random: int = 3
    num_global: int = 2
    seed: int = 0

    def __post_init__(self):
        at_least(1, self, "block_size")
        at_least(0, self, "num_random", "num_global", "seed")
        if self.seed >= 2**32:
            raise ValueError(f"bigbird(seed=...) must be below 2^32, got {self.seed}")

    def shows(self, q_site, k_site):
        q, k = (jnp.asarray(_on_line(self, site) // self.block_size, jnp.int32) for site in (q_site, k_site))
        seen = (jnp.abs(q[:, None] - k[None]) <= 1) | (q < self.num_global)[:, None] | (k < self.num_global)[None]
        for share in range(self.num_random):
            drawn_by_q, drawn_by_k = self._drawn(q, share), self._drawn(k, share)
            seen = seen | (drawn_by_q[:, None] == k[None]) | (drawn_by_k[None] == q[:, None])
        return seen

    @property
    def tile(self):
        return max(64, self.block_size)

    def sees(self, q_bounds, k_bounds):
        """Exact where each tile holds one block; of other tiles all are computed."""
        (q, q_last), (k, k_last) = (
            [axes(site)[:, 0] // self.block_size for site in bounds] for bounds in (q_bounds, k_bounds)
        )
        place = lambda block: Site(block * self.block_size, 0 * block, 0 * block)  # noqa: E731
        return self.shows(place(q), place(k)) | (q != q_last)[:, None] | (k != k_last)[None]

    def _drawn(self, block: Int32[Array, " T"], share: int) -> Int32[Array, " T"]:
        """The block that each block draws from one of the shares of those before its neighbours; -1 from an empty share."""
        count = jnp.maximum(block - 1 - self.num_global, 0)
        start, end = share * count // self.num_random, (share + 1) * count // self.num_random
        size = jnp.maximum(end - start, 1).astype(jnp.uint32)
        pick = (_hash(block, share, self.seed) % size).astype(jnp.int32)
        return jnp.where(end > start, self.num_global + start + pick, -1)


def _hash(block: Int32[Array, " T"], share: int, seed: int) -> UInt32[Array, " T"]:
    """32 well-mixed bits: the finaliser of MurmurHash3 on a linear combination of the three."""
    x = block.astype(jnp.uint32) * jnp.uint32(0x9E3779B1)
    x = x + jnp.uint32((share * 0x85EBCA77 + seed * 0xC2B2AE3D) % 2**32)
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


def _offset(q_site: Site, k_site: Site) -> Shaped[Array, "T S A"]:
    return axes(q_site)[:, None] - axes(k_site)[None]


def tile_of(reach: int) -> int:
    """Tokens a side of the tiles that waste little on a mask that hides all keys further than `reach` away."""
    return min(256, max(64, 1 << max(reach // 4, 1).bit_length() - 1))


def gap(q_bounds: Bounds, k_bounds: Bounds) -> Shaped[Array, "N O"]:
    """The least distance, Chebyshev's on a grid, between a token of a tile of queries and one of a tile of keys."""
    q_low, q_high = (axes(site)[:, None] for site in q_bounds)
    k_low, k_high = (axes(site)[None] for site in k_bounds)
    return jnp.max(jnp.maximum(jnp.maximum(k_low - q_high, q_low - k_high), 0), axis=-1)


def _first(bounds: Bounds) -> Shaped[Array, " N"]:
    return axes(bounds.low)[:, 0]


def _on_line(encoding: Encoding, site: Site) -> Shaped[Array, " T"]:
    return encoding.coordinates(site)[:, 0]
