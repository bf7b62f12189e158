"""Rotary encodings of images and videos: which channels see which axis, and in which coordinates."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float32, Int

from posjax.encoding import Array, Encoding, Needs, Site, axes
from posjax.encodings.angles import axial, geometric
from posjax.encodings.placement import extents
from posjax.encodings.rotary import Rotary
from posjax.encodings.scaling import Scaling, Spectrum
from posjax.spec import nearest, register

_FREQUENCIES = ["shared", "split"]
_INDEXINGS = ["ij", "xy"]
_NORMALIZATIONS = ["separate", "max", "min"]


@register("axial_rope")
@dataclass(frozen=True)
class AxialRope(Rotary):
    """Rotary embedding whose channels are divided among the axes, in the layouts of published image models.

    With A axes and head dim D each axis turns D/(2A) pairs of channels, in a block of its own. `axial_rope(base=b,
    layout=l)` is `rope(base=b, layout=l)`; the other arguments are what differs between models.

    Args:
      base: 100 in Heo et al. (2024), arXiv 2403.13298, 10000 in Pixtral, Qwen2-VL's vision tower and EVA-02.
      frequencies: "shared": each axis has the whole range, base^(-2Ac/D) for c = 0 ... D/(2A) - 1, as in rope-vit, timm
        and Qwen2-VL. "split": axis a has every A-th frequency of the one series base^(-2c/D), c = a, a + A, ..., so that
        no two axes share one, as in Pixtral (Agrawal et al. 2024, arXiv 2410.07073).
      indexing: "ij" gives the first block to the first axis, the rows of `posjax.grid`; "xy" to the last one, the columns,
        as rope-vit does.
      layout: channel pairs "half" or "interleaved", as in `rope`.
      scaling: of the frequencies, for larger grids than the trained one, as in `rope`. Each axis is scaled as a line of d =
        D/A channels: ntk(factor=s) has base s^(d/(d - 2)), as VisionNTK of FiT does (Lu et al. 2024, arXiv 2402.12376),
        with one s for all axes. "split" frequencies are scaled as one series, with d = D.

    Tokens that stand nowhere are left unrotated.

    Raises:
      ValueError: for a head dim not divisible by 2A, or unknown frequencies, indexing or layout.
    """

    base: float = 100.0
    frequencies: str = "shared"
    indexing: str = "ij"
    layout: str = "half"
    scaling: Scaling | None = None

    def __post_init__(self):
        super().__post_init__()
        _check_known(self, "frequencies", _FREQUENCIES)
        _check_known(self, "indexing", _INDEXINGS)

    def wave(self, num_axes, channels):
        block = axial(self.base, num_axes, channels, f"{self.spec_name}: a head_dim")
        if self.frequencies == "split":
            block = np.where(block > 0, self.spectrum(num_axes, channels).frequency, 0.0)
        return block[::-1] if self.indexing == "xy" else block

    def spectrum(self, num_axes, channels):
        if self.frequencies == "shared":
            return super().spectrum(num_axes, channels)
        index = np.arange(channels).reshape(-1, num_axes).T.ravel()  # axis a: a, a + A, a + 2A, ...
        return Spectrum(self.base, channels, index)


@register("mrope")
@dataclass(frozen=True)
class MRope(Rotary):
    """Multimodal RoPE: the frequencies base^(-2c/D) dealt out to the axes of (time, row, column).

    Wang et al. (2024), Qwen2-VL, arXiv 2409.12191, section 2.1; interleaved as in Qwen3-VL (arXiv 2511.21631).

    Args:
      base: 10^6 in Qwen2-VL, 500000 in Qwen3-VL's configuration.
      sections: how many of the D/2 frequencies time, row and column get; (16, 24, 24) in Qwen2-VL, (24, 20, 20) in
        Qwen3-VL, both for D = 128.
      interleaved: False: in chunks, the highest frequencies for time. True: rows get channels 1, 4, 7, ... below three
        times their section, columns 2, 5, 8, ... below three times theirs, and time all others. A section that reaches
        past D/2 is cut there, as in the reference: sections (8, 12, 12) give 11, 11 and 10 channels.
      layout: channel pairs "half", as in both models, or "interleaved" as in `rope`.
      fraction: of the head dim that is rotated, as in `rope`; the sections share that out. Qwen3.5 has sections (11, 11, 10)
        of a fraction of 0.25, for D = 256.
      scaling: of the frequencies, as in `rope`.

    On one axis time, row and column are the same number, so that text sees plain `rope`. Two axes are (row, column) of a
    still image, whose patches all have one time: its channels are left unrotated.

    Raises:
      ValueError: for sections that are no three numbers of at least 0, or do not sum to half the rotary dim; an unknown
        layout; a fraction outside (0, 1].
    """

    base: float = 1_000_000.0
    sections: tuple[int, ...] = (16, 24, 24)
    interleaved: bool = False
    layout: str = "half"
    fraction: float = 1.0
    scaling: Scaling | None = None

    def __post_init__(self):
        super().__post_init__()
        whole = isinstance(self.sections, tuple) and all(type(s) is int and s >= 0 for s in self.sections)
        if not whole or len(self.sections) != 3:
            raise ValueError(f"mrope(sections=...) are three channel counts, as in (16, 24, 24); got {self.sections!r}")

    def wave(self, num_axes, channels):
        if sum(self.sections) != channels:
            what = "head_dim" if self.fraction == 1 else f"rotary dim (fraction={self.fraction})"
            raise ValueError(
                f"mrope(sections={self.sections}) deals out {sum(self.sections)} pairs of channels, a {what} of "
                f"{2 * channels} has {channels}: give sections that sum to {channels}"
            )
        frequency = geometric(self.base, channels)
        if num_axes == 1:
            return frequency[None]
        dealt = (self._axis(channels) == np.arange(3)[:, None]) * frequency
        return dealt[3 - num_axes :]

    def _axis(self, channels: int) -> Int[np.ndarray, " C"]:
        """0 for a channel of time, 1 of the row, 2 of the column."""
        if not self.interleaved:
            return np.repeat(np.arange(3), self.sections)
        axis = np.zeros(channels, int)
        for a in (1, 2):
            axis[a : 3 * self.sections[a] : 3] = a
        return axis

    def spectrum(self, num_axes, channels):
        return Spectrum(self.base, channels, np.arange(channels))


@register("dinov3")
@dataclass(frozen=True)
class DinoV3(Rotary):
    """Axial rotary embedding of an image stretched to [-1, 1]: angle = 2 pi coordinate base^(-2Ac/D), c < D/(2A).

    Simeoni et al. (2025), DINOv3, arXiv 2508.10104; A = 2 there, periods base^(2c/(D/2)).
    The centre of a patch at position p of an image of n patches on that axis has coordinate 2 (p + 1/2) / n - 1, whatever
    the resolution. n is 1 + the largest position of the token's own document, so images that are padded or packed into one
    row keep their own coordinates. A masked image must keep at least one token of its last row and of its last column. Not
    relative: the same patches elsewhere on the line of integers make another image.

    Args:
      base: ratio of the longest period to the shortest, which is 1.
      normalize_coords: n is each axis' own size ("separate"), or the largest ("max") or smallest ("min") of them.
      shift_coords: in training, all coordinates of an image are shifted by U[-s, s], each axis by its own; 0 for none.
      jitter_coords: in training, each axis is stretched by exp U[-ln j, ln j]; 1 for none.
      rescale_coords: in training, the image is stretched by exp U[-ln r, ln r], the same for all axes; 1 for none. DINOv3's
        7B model trained with 2, and with neither shift nor jitter.

    Periods are exact here; the released weights hold them in bfloat16, timm and transformers in float32. Tokens that stand
    nowhere are left unrotated.

    Raises:
      ValueError: for a head dim not divisible by 2A, an unknown normalisation, a negative shift, or a jitter or rescale
        below 1.
    """

    relative = False
    needs = Needs.WHOLE_DOCUMENT

    base: float = 100.0
    normalize_coords: str = "separate"
    shift_coords: float = 0.0
    jitter_coords: float = 1.0
    rescale_coords: float = 1.0

    def __post_init__(self):
        super().__post_init__()
        _check_known(self, "normalize_coords", _NORMALIZATIONS)
        for name, least in (("shift_coords", 0), ("jitter_coords", 1), ("rescale_coords", 1)):
            if not getattr(self, name) >= least:
                raise ValueError(f"dinov3({name}=...) must be at least {least}, got {getattr(self, name)}")

    def wave(self, num_axes, channels):
        return 2 * np.pi * axial(self.base, num_axes, channels, "dinov3: a head_dim")

    def place(self, params, site, key=None):
        position = jnp.asarray(self.coordinates(site), jnp.float32)
        coordinate = 2 * (position + 0.5) / self._extent(site) - 1
        if key is not None:
            # The rank of each token's document: documents may be numbered by any integers.
            _, image = jnp.unique(jnp.asarray(site.segment), return_inverse=True, size=len(site.segment))
            coordinate = self._augmented(key, coordinate, image)
        return site._replace(position=coordinate.reshape(site.position.shape))

    def _extent(self, site: Site) -> Float32[Array, "T #A"]:
        """How many patches each token's image has."""
        extent = jnp.asarray(extents(site._replace(position=axes(site))), jnp.float32)
        if self.normalize_coords == "separate":
            return extent
        return (jnp.max if self.normalize_coords == "max" else jnp.min)(extent, axis=1, keepdims=True)

    def _augmented(self, key: jax.Array, coordinate: Float32[Array, "T A"], image: Int[Array, " T"]):
        """Shifted, jittered, rescaled, in this order as the authors do; one draw for each image."""

        def drawn(key: jax.Array, num_axes: int, bound: float) -> Float[Array, "T #A"]:
            return jax.random.uniform(key, (len(image), num_axes), minval=-bound, maxval=bound)[image]

        shift, jitter, rescale = jax.random.split(key, 3)
        num_axes = coordinate.shape[1]
        coordinate = coordinate + drawn(shift, num_axes, self.shift_coords)
        coordinate = coordinate * jnp.exp(drawn(jitter, num_axes, float(np.log(self.jitter_coords))))
        return coordinate * jnp.exp(drawn(rescale, 1, float(np.log(self.rescale_coords))))


def _check_known(encoding: Encoding, argument: str, known: list[str]) -> None:
    value = getattr(encoding, argument)
    if value not in known:
        raise ValueError(f"{encoding.spec_name} has no {argument} {value!r}; {nearest(value, known)}")
