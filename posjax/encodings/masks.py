"""Masks: which keys a query may see, beside causality and documents. Each can be added to any other encoding.

What a mask is made of is in posjax/mask.py. A bidirectional model sees both sides of a query; causality hides the later
side. Tokens that stand nowhere (class token, registers) are the global tokens of a vision model.
"""

from dataclasses import dataclass

from posjax.encoding import Encoding
from posjax.mask import blocks, drawn, every, first_keys, first_queries, near
from posjax.spec import register


@register("window")
@dataclass(frozen=True)
class Window(Encoding):
    """Sliding window: a query sees the keys less than `size` away on either side, or its own length on each.

    In causal attention these are `size` keys, the query's own included: Mistral 7B's convention (Jiang et al. 2023, arXiv
    2310.06825) and that of transformers' causal mask; its bidirectional one takes |q - k| <= size, and Longformer's window
    counts both sides (see `longformer`). Distances on a grid are Chebyshev's: a square of 2 size - 1 patches a side, which
    with a class token is the local attention of Vision Longformer (Zhang et al. 2021, arXiv 2103.15358). A rectangle is the
    sum of two: `(axis(index=0) >> window(3)) + (axis(index=1) >> window(7))`.

    Args:
      ahead: how many keys after the query it sees, on every axis; None: as many as before it, size - 1. window_size=(left,
        right) of flash-attention, and local_window_size of jax.nn, is window(size=left + 1, ahead=right).

    Raises:
      ValueError: for a size below 1 or a negative `ahead`.
    """

    family = "windows and views"
    formula = (r"a_{mn} > 0 \;\iff\; -w < n_a - m_a \le u\quad\text{on each axis } a",)
    ranges = "size >= 1", "ahead >= 0"

    size: int
    ahead: int | None = None

    def mask(self):
        return near(self.size, ahead=self.ahead)


@register("dilated")
@dataclass(frozen=True)
class Dilated(Encoding):
    """Dilated sliding window: of the keys less than size * dilation away, every `dilation`-th one.

    Beltagy et al. (2020), arXiv 2004.05150, section 3.1: with dilation 1 it is `window(size)`, and always as many keys. On
    a grid all axes are dilated, as in Hassani & Shi (2022), arXiv 2209.15001. A key at a fractional distance is not
    seen.

    Raises:
      ValueError: for a size or dilation below 1.
    """

    family = "windows and views"
    formula = (r"a_{mn} > 0 \;\iff\; |m-n| < w\,\delta\quad\text{and}\quad m-n \equiv 0 \pmod{\delta}",)
    ranges = "size >= 1", "dilation >= 1"

    size: int
    dilation: int = 2

    def mask(self):
        return near((self.size - 1) * self.dilation, inclusive=True) & every(self.dilation)


@register("chunked")
@dataclass(frozen=True)
class Chunked(Encoding):
    """Chunks: a query sees the keys of its own chunk of `size` positions, 0 to size - 1, size to 2 size - 1 and so on.

    Llama 4's layers with rotary encoding, in chunks of 8192 tokens (transformers' chunked_attention). On a grid a chunk is a
    square of `size` patches a side, as the windows of Swin.

    Args:
      before, after: how many chunks on either side of its own it sees: look_backward and look_forward of lucidrains'
        local-attention, which are 1 and 0 there.

    Raises:
      ValueError: for a size below 1, or negative numbers of chunks.
    """

    family = "windows and views"
    formula = (r"a_{mn} > 0 \;\iff\; -b \le \lfloor n/w \rfloor - \lfloor m/w \rfloor \le f",)

    relative = False
    ranges = "size >= 1", "before >= 0", "after >= 0"

    size: int
    before: int = 0
    after: int = 0

    def mask(self):
        return blocks(self.size, near(self.before, inclusive=True, ahead=self.after))


@register("longformer")
@dataclass(frozen=True)
class Longformer(Encoding):
    """A sliding window, and global tokens that see all and are seen by all: positions 0 to num_global - 1 of a document.

    Beltagy et al. (2020), arXiv 2004.05150, section 3.1. `window` is their attention_window: half of it on each side, and
    the query itself, |q - k| <= window / 2, so that window + 1 keys are seen. Their global tokens have projections of
    their own, which are not positional and not here. A class token that stands nowhere is global already.

    Raises:
      ValueError: for an odd window or one below 2, or fewer than 0 global tokens.
    """

    family = "windows and views"
    formula = (r"a_{mn} > 0 \;\iff\; |m-n| \le \frac w2\quad\text{or}\quad m < g\quad\text{or}\quad n < g",)

    dimensions = (1,)
    ranges = "window >= 2", "num_global >= 0"

    window: int = 512
    num_global: int = 1

    def __post_init__(self):
        super().__post_init__()
        if self.window % 2:
            raise ValueError(f"longformer(window=...) has half of it on each side: it must be even, got {self.window}")

    @property
    def relative(self):
        return self.num_global == 0

    def mask(self):
        local = near(self.window // 2, inclusive=True)
        return local | first_keys(self.num_global) | first_queries(self.num_global)


@register("sinks")
@dataclass(frozen=True)
class Sinks(Encoding):
    """Attention sinks: a query sees positions 0 to num_sinks - 1 of its document, and the keys less than `window` away.

    Xiao et al. (2023), arXiv 2309.17453, section 3.2: their cache of num_sinks + window entries, the query's own among them,
    as a mask. They also count positions within the cache: `streaming(...) >> rope()` does both.

    Raises:
      ValueError: for fewer than 0 sinks or a window below 1.
    """

    family = "windows and views"
    formula = (r"a_{mn} > 0 \;\iff\; |m-n| < w\quad\text{or}\quad n < n_{\mathrm{sinks}}",)

    dimensions = (1,)
    ranges = "num_sinks >= 0", "window >= 1"

    num_sinks: int = 4
    window: int = 512

    @property
    def relative(self):
        return self.num_sinks == 0

    def mask(self):
        return near(self.window) | first_keys(self.num_sinks)


@register("bigbird")
@dataclass(frozen=True)
class BigBird(Encoding):
    """Blocks of positions that see their neighbours, the global blocks, and some at random.

    Zaheer et al. (2020), arXiv 2007.14062, section 2 and appendix D: block b sees blocks b - 1, b and b + 1; the first
    `num_global` blocks see all and are seen by all; and b draws `num_random` of the other blocks before it, all of them
    where there are no more. The paper draws from the whole sequence and makes the last block global, too; but what a
    query sees must not depend on tokens to come, so here random edges join each block with earlier ones (in a bidirectional
    model, in both directions). One block is drawn from each of num_random equal shares of the candidates, by a hash of
    (seed, block, share): the same in every layer, head and document, on every device, in training and in decoding.

    Raises:
      ValueError: for a block_size below 1, fewer than 0 random or global blocks, more than 64 random ones, or a seed outside
        0 to 2^32 - 1.
    """

    family = "windows and views"
    formula = (
        r"a_{mn} > 0 \;\iff\; |\beta_m - \beta_n| \le 1\quad\text{or}\quad \min(\beta_m, \beta_n) <"
        r" g\quad\text{or}\quad \beta_n \in \mathrm{random}(\beta_m)",
        r"\beta_p = \lfloor p/B \rfloor\ \text{the block of } p",
    )

    relative = False
    dimensions = (1,)
    # A program grows with each random block.
    ranges = "block_size >= 1", "num_random >= 0", "num_random <= 64", "num_global >= 0", "seed >= 0"

    block_size: int = 64
    num_random: int = 3
    num_global: int = 2
    seed: int = 0

    def __post_init__(self):
        super().__post_init__()
        if self.seed >= 2**32:
            raise ValueError(f"bigbird(seed=...) must be below 2^32, got {self.seed}")

    def mask(self):
        local = near(1, inclusive=True) | first_keys(self.num_global) | first_queries(self.num_global)
        return blocks(self.block_size, local | drawn(self.num_random, self.num_global, self.seed))
