"""Sites of text with images, and of text of sentences, which depend on the kinds of tokens.

Positions are data, so they are computed beforehand, as by `posjax.sites` and `posjax.grid`. The encodings that read them are
`mrope`, `mhrope` and `axial_rope` on (time, row, column), and for sentences one encoding for each of two axes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int32, Shaped
from numpy.typing import ArrayLike

from posjax.encoding import Array, Site

Block = tuple[int, int, int]  # frames, rows and columns of an image or a video, in tokens


@dataclass(frozen=True)
class Offset:
    """Images as in Qwen2-VL: the token at frame t, row h, column w of a block that starts at s stands at s + (t, h, w).

    Wang et al. (2024), arXiv 2409.12191, section 2.1. What follows starts at 1 + the largest coordinate before it.

    Args:
      stride: positions from one frame to the next.
      floored: takes the whole position below stride * t, as Qwen2.5-VL does of its seconds: stride is then
        tokens_per_second * second_per_grid_t.
      spatial_reset: rows and columns count from 0 in every block, (s + t, h, w), and what follows starts where it would
        without. Huang et al. (2025), arXiv 2510.23095, as in `get_mrope_interleave_index` of JJJYmmm/Multimodal-RoPEs
        (multimodal_ropes/pos_design/mrope_i.py).
    """

    stride: float = 1.0
    spatial_reset: bool = False
    floored: bool = False

    def place(self, block: Block, start: float) -> tuple[Float[np.ndarray, "T 3"], float]:
        """Positions of a block that begins at `start`, frame by frame and row by row; and the start of the next block."""
        grid = lattice(*map(range, block)) * (self.stride, 1, 1)
        grid = np.floor(grid) if self.floored else grid
        return grid + np.multiply(start, (1, 0, 0) if self.spatial_reset else (1, 1, 1)), start + grid.max() + 1


@dataclass(frozen=True)
class Diagonal:
    """Images as in VideoRoPE: their centres lie on the diagonal of time, where text stands too.

    Wei et al. (2025), arXiv 2502.05173, diagonal layout and adjustable temporal spacing; `get_t_scale_rope_index` of
    Wiselnn570/VideoRoPE (videorope-transformer/modeling_videorope.py). With u = s + stride t a token stands at
    (u, u + h - (H - 1) // 2, u + w - (W - 1) // 2); the next block starts at 1 + the last frame's u for images of any size.
    """

    stride: float = 2.0

    def place(self, block: Block, start: float) -> tuple[Float[np.ndarray, "T 3"], float]:
        """Places tokens as `Offset.place` does."""
        _, height, width = block
        grid = lattice(*map(range, block)) - (0, (height - 1) // 2, (width - 1) // 2)
        time = start + self.stride * grid[:, :1]
        return np.concatenate([time, time + grid[:, 1:]], axis=1), float(time.max()) + 1


@dataclass(frozen=True)
class Circle:
    """Images as in Circle-RoPE: on a circle in the plane orthogonal to the line of text, so as far from each text token.

    Wang et al. (2025), arXiv 2505.16416; `get_circle_rope_index` of lose4578/CircleRoPE (code/circle_rope.py), whose options
    are in brackets. The i-th of n patches has the angle alpha A_i + (1 - alpha) 2 pi i/n, where A_i is the angle of (column,
    row) about the image's centre, stretched to the range from 0 to 2 pi. The circle's first axis is (time, row, column) =
    (0, 1, -1) / sqrt(2), its second (2, -1, -1) / sqrt(6). What follows starts at 1 + the largest coordinate, a fraction.
    Not built: their alternation over layers (AGE), as all layers of a model share one site.

    Args:
      radius: of the circle [radius]; None: the largest coordinate of a patch about the centre ["auto"].
      alpha: as above [alpha].
      flat: the share of the image itself, laid into that plane without a circle [dff_rate].
      centred: whether angles, and the image of `flat`, are about its centre [move_to_origin], or about its first patch.
      positive: moves all coordinates up by as much as the smallest is below 0 [move_to_positive="auto"].

    Raises:
      ValueError: for several frames: their code lays out still images.
    """

    radius: float | None = None
    alpha: float = 0.5
    flat: float = 0.0
    centred: bool = True
    positive: bool = False

    def place(self, block: Block, start: float) -> tuple[Float[np.ndarray, "T 3"], float]:
        """Places tokens as `Offset.place` does."""
        if block[0] != 1:
            raise ValueError(
                f"Circle lays out still images, of one frame; got a block of {block}: choose Offset or Diagonal"
            )
        y, x = (lattice(*map(range, block))[:, 1:] - (np.array(block[1:]) - 1) / 2 * self.centred).T
        angle = np.arctan2(y, x)
        span = np.ptp(angle)
        stretched = (angle - angle.min()) / span * 2 * math.pi if span > 0 else angle
        angle = self.alpha * stretched + (1 - self.alpha) * 2 * math.pi * np.arange(len(x)) / len(x)
        radius = max(x.max(), y.max(), 0.0) if self.radius is None else self.radius
        first = (1 - self.flat) * radius * np.cos(angle) + self.flat * x
        second = (1 - self.flat) * radius * np.sin(angle) + self.flat * y
        across = np.stack([0 * first, first, -first], axis=1) / math.sqrt(2)
        place = across + np.stack([2 * second, -second, -second], axis=1) / math.sqrt(6)
        place = place + abs(place.min()) * self.positive + start
        return place, float(place.max()) + 1


Layout = Offset | Diagonal | Circle


def multimodal(parts: Sequence[int | tuple[int, ...]], layout: Layout = Offset()) -> Site:
    """The site of a sequence of text and images: (time, row, column) of every token, int32 where all are whole.

    A text token at p stands at (p, p, p). Read by `mrope`, `mhrope` or `axial_rope(axes_dims=...)`.

    Args:
      parts: in their order, the number of tokens of a piece of text, or (frames, rows, columns) of an image or a video in
        tokens, whose tokens come frame by frame and row by row.
      layout: where images stand among the text.

    Raises:
      ValueError: for a part that is neither, or no part; for what the layout refuses.

    >>> multimodal([2, (1, 2, 2), 1]).position.tolist()    # text, an image of 2 x 2, text
    [[0, 0, 0], [1, 1, 1], [2, 2, 2], [2, 2, 3], [2, 3, 2], [2, 3, 3], [4, 4, 4]]
    """
    if not parts:
        raise ValueError(
            "multimodal needs parts: numbers of text tokens, or (frames, rows, columns), as in [5, (1, 4, 6), 2]"
        )
    pieces, start = [], 0.0
    for part in parts:
        block = part if isinstance(part, tuple) else (part,)
        if len(block) not in (1, 3) or not all(isinstance(n, int | np.integer) and n >= 1 for n in block):
            raise ValueError(
                f"a part is a number of text tokens or (frames, rows, columns), all at least 1; got {part!r}"
            )
        if len(block) == 1:
            piece = start + np.repeat(np.arange(part)[:, None], 3, axis=1)
            start = start + part
        else:
            piece, start = layout.place(block, start)
        pieces.append(piece)
    return standing_at(*pieces)


def lattice(*axes: ArrayLike) -> Shaped[np.ndarray, "T A"]:
    """The positions of a grid whose lines have these coordinates on each axis, the last axis fastest.

    Frames in seconds, centres of patches in pixels, or grids about 0: what models of images and videos differ in, as
    docs/diffusion.md shows of twelve.

    >>> lattice([7], range(-1, 1), [0.5, 2.5]).tolist()
    [[7.0, -1.0, 0.5], [7.0, -1.0, 2.5], [7.0, 0.0, 0.5], [7.0, 0.0, 2.5]]
    """
    return np.stack(np.meshgrid(*map(np.asarray, axes), indexing="ij"), axis=-1).reshape(-1, len(axes))


def standing_at(*blocks: Shaped[np.ndarray, "_ A"], prefix: int = 0) -> Site:
    """The site of tokens at the positions of all blocks, behind `prefix` tokens that stand nowhere.

    Positions are int32 where all are whole numbers, else float32.

    >>> standing_at(np.zeros((1, 2)), lattice([0], [65536, 65537]), prefix=1).position.tolist()
    [[0, 0], [0, 0], [0, 65536], [0, 65537]]
    """
    position = np.concatenate([np.zeros((prefix, blocks[0].shape[1])), *blocks])
    whole = np.array_equal(position, np.round(position))
    count = np.arange(1, len(position) + 1, dtype=np.int32)
    position = position.astype(np.int32 if whole else np.float32)
    return Site(position, np.ones_like(count), np.where(count <= prefix, count, 0))


def bilevel(
    tokens: Int32[Array, " T"],
    ends: tuple[int, ...],
    segment: Int32[Array, " T"] | None = None,
    longest: int | None = None,
) -> Site:
    """The site of a text in sentences: (number of the sentence, place within it) of every token, both from 0.

    He et al. (2024), bilevel positional encoding (BiPE), arXiv 2401.16421: an absolute code of the place within, and a
    relative encoding of the number. As compositions, with what `get_bilevel_ids` of zhenyuhe00/BiPE
    (my_modeling_llama_bipe_rope.py, my_modeling_llama_bipe_alibi.py) gives:

        BiPE-RoPE    (axis(index=0) >> rope()) + (axis(index=1) >> learned())
        BiPE-ALiBi   (axis(index=0) >> interpolate(factor=1/96) >> alibi()) + (axis(index=1) >> learned())

    where 96 is how much steeper than ALiBi's their slopes are.

    Args:
      ends: ids of the tokens that end a sentence, and belong to it: full stop and line break in their code.
      segment: the documents of a packed row; each counts anew; 0 is padding. One document by default.
      longest: places count to longest - 1 and stay there, as in their code, whose table has that many rows.

    >>> bilevel(np.array([*b"Hi. You"], np.int32), ends=(ord("."),)).position.tolist()
    [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2], [1, 3]]
    """
    tokens = np.asarray(tokens)
    document = np.ones(len(tokens), np.int32) if segment is None else np.asarray(segment, np.int32)
    new_document = np.concatenate([[True], document[1:] != document[:-1]])[: len(tokens)]
    begins = new_document | np.concatenate([[True], np.isin(tokens, ends)[:-1]])[: len(tokens)]
    index = np.arange(len(tokens))
    within = index - np.maximum.accumulate(np.where(begins, index, 0))
    sentence = np.cumsum(begins) - 1
    sentence = sentence - np.maximum.accumulate(np.where(new_document, sentence, 0))
    within = within if longest is None else np.minimum(within, longest - 1)
    return Site(np.stack([sentence, within], axis=1).astype(np.int32), document, np.zeros_like(document))
