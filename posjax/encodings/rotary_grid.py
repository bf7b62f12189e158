"""Rotary encodings of images and videos: which channels see which axis, and in which coordinates."""

from dataclasses import dataclass
from statistics import NormalDist

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float32, Int

from posjax.encoding import Array, Encoding, Needs, Site, axes, stands
from posjax.encodings.angles import angles, axial, geometric
from posjax.encodings.placement import extents
from posjax.encodings.rotary import Rotary, rotated
from posjax.encodings.scaling import Scaling, Spectrum
from posjax.spec import nearest, register

_FREQUENCIES = ["shared", "split"]
_INDEXINGS = ["ij", "xy"]
_NORMALIZATIONS = ["separate", "max", "min"]


@register("axial_rope")
@dataclass(frozen=True)
class AxialRope(Rotary):
    """Rotary embedding whose channels are divided among the axes, in the layouts of published image models.

    With A axes and head dim D each axis turns D/(2A) pairs of channels, or as many as `axes_dims` says. The pairs of an axis
    follow each other: pair c is channels 2c and 2c + 1 in the layout "interleaved", c and c + D/2 of the head in "half".
    `axial_rope(base=b, layout=l)` is `rope(base=b, layout=l)`; the other arguments are what differs between models.

    Args:
      base: 100 in Heo et al. (2024), arXiv 2403.13298, 10000 in Pixtral, Qwen2-VL's vision tower and EVA-02. With axes_dims
        also one for each axis, as Cosmos stretches time alone.
      frequencies: "shared": each axis has the whole range, base^(-2Ac/D) for c = 0 ... D/(2A) - 1, as in rope-vit, timm
        and Qwen2-VL. "split": axis a has every A-th frequency of the one series base^(-2c/D), c = a, a + A, ..., so that
        no two axes share one, as in Pixtral (Agrawal et al. 2024, arXiv 2410.07073).
      axes_dims: how many channels each axis gets, first axis first; the frequencies of an axis of d are base^(-2c/d), c <
        d/2. (16, 56, 56) in FLUX.1, diffusers' axes_dims_rope (docs/diffusion.md). None shares the channels evenly.
      indexing: "ij" gives the first block to the first axis, the rows of `posjax.grid`; "xy" to the last one, the columns,
        as rope-vit does.
      layout: channel pairs "half" or "interleaved", as in `rope`.
      scaling: of the frequencies, for larger grids than the trained one, as in `rope`. Each axis is scaled as a line of d =
        D/A channels: ntk(factor=s) has base s^(d/(d - 2)), as VisionNTK of FiT does (Lu et al. 2024, arXiv 2402.12376),
        with one s for all axes. "split" frequencies are scaled as one series, with d = D.

    Tokens that stand nowhere are left unrotated.

    Raises:
      ValueError: for a head dim not divisible by 2A, or unknown frequencies, indexing or layout; for axes_dims that are no
        even numbers, do not sum to the head dim, or are of another number of axes; for axes_dims with "split" frequencies or
        a scaling, which treat channels as one series.
    """

    family = "rotary"
    formula = (
        r"q'_{a,c} = q_{a,c}\,e^{i m_a\theta_c}\quad\text{for each axis } a = 1, \dots, A",
        r"\theta_c = \beta^{-2Ac/D},\quad c = 0, \dots, \frac{D}{2A}-1",
    )

    base: float | tuple[float, ...] = 100.0
    frequencies: str = "shared"
    indexing: str = "ij"
    layout: str = "half"
    scaling: Scaling | None = None
    axes_dims: tuple[int, ...] | None = None

    def __post_init__(self):
        super().__post_init__()
        _check_known(self, "frequencies", _FREQUENCIES)
        _check_known(self, "indexing", _INDEXINGS)
        if isinstance(self.base, tuple) and len(self.base) != len(self.axes_dims or ()):
            raise ValueError(f"axial_rope(base={self.base}) takes one base for each axis of axes_dims={self.axes_dims}")
        if self.axes_dims is None:
            return
        even = isinstance(self.axes_dims, tuple) and all(
            type(d) is int and d >= 0 and d % 2 == 0 for d in self.axes_dims
        )
        if not even or not 1 <= len(self.axes_dims) <= 3:
            raise ValueError(
                "axial_rope(axes_dims=...) are even channel counts, one for each axis, as in (16, 56, 56); "
                f"got {self.axes_dims!r}"
            )
        if self.frequencies == "split" or self.scaling is not None:
            raise ValueError(
                "axial_rope(axes_dims=...) takes neither frequencies='split' nor a scaling: leave one of them out"
            )

    @property
    def dimensions(self):
        return (1, 2, 3) if self.axes_dims is None else (len(self.axes_dims),)

    def wave(self, num_axes, channels):
        if self.axes_dims is not None:
            return self._uneven(channels)
        block = axial(self.base, num_axes, channels, f"{self.spec_name}: a head_dim")
        if self.frequencies == "split":
            block = np.where(block > 0, self.spectrum(num_axes, channels).frequency, 0.0)
        return block[::-1] if self.indexing == "xy" else block

    def _uneven(self, channels: int) -> Float[np.ndarray, "A C"]:
        if sum(self.axes_dims) != 2 * channels:
            raise ValueError(
                f"axial_rope(axes_dims={self.axes_dims}) are {sum(self.axes_dims)} channels, and the head_dim is "
                f"{2 * channels}: give numbers that sum to it"
            )
        unit = np.eye(len(self.axes_dims))
        bases = self.base if isinstance(self.base, tuple) else (self.base,) * len(self.axes_dims)
        blocks = [
            unit[:, [axis]] * (geometric(base, d // 2) if d else np.zeros(0))
            for axis, (base, d) in enumerate(zip(bases, self.axes_dims, strict=True))
        ]
        return np.concatenate(blocks[::-1] if self.indexing == "xy" else blocks, axis=1)

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
      time_last: True: rows and columns take turns in the highest frequencies, 0, 2, 4, ... and 1, 3, 5, ..., and time has
        the lowest ones. VideoRoPE (Wei et al. 2025, arXiv 2502.05173: low-frequency temporal allocation), with sections
        (16, 24, 24) in `apply_m_modify_multimodal_rotary_pos_emb` of Wiselnn570/VideoRoPE (modeling_videorope.py).
      layout: channel pairs "half", as in these models, or "interleaved" as in `rope`.
      fraction: of the head dim that is rotated, as in `rope`; the sections share that out. Qwen3.5 has sections (11, 11, 10)
        of a fraction of 0.25, for D = 256.
      scaling: of the frequencies, as in `rope`.

    On one axis time, row and column are the same number, so that text sees plain `rope`. Two axes are (row, column) of a
    still image, whose patches all have one time: its channels are left unrotated.

    Raises:
      ValueError: for sections that are no three numbers of at least 0, or do not sum to half the rotary dim; an unknown
        layout; a fraction outside (0, 1]; for time_last=True with interleaved=True, or with other than as many channels for
        rows as for columns, or one more.
    """

    family = "rotary"
    formula = (
        r"q'_c = q_c\,e^{i m_{a(c)}\theta_c},\quad \theta_c = \beta^{-2c/D},\quad a(c) \in"
        r" \{\text{time, row, column}\}",
    )

    base: float = 1_000_000.0
    sections: tuple[int, ...] = (16, 24, 24)
    interleaved: bool = False
    layout: str = "half"
    fraction: float = 1.0
    scaling: Scaling | None = None
    time_last: bool = False

    def __post_init__(self):
        super().__post_init__()
        whole = isinstance(self.sections, tuple) and all(type(s) is int and s >= 0 for s in self.sections)
        if not whole or len(self.sections) != 3:
            raise ValueError(f"mrope(sections=...) are three channel counts, as in (16, 24, 24); got {self.sections!r}")
        if self.time_last and self.interleaved:
            raise ValueError("mrope(time_last=True) deals channels out in an order of its own: leave interleaved out")
        if self.time_last and self.sections[1] - self.sections[2] not in (0, 1):
            raise ValueError(
                "mrope(time_last=True) gives channels to row and column in turns: they need as many, or the row one more; "
                f"got sections={self.sections}"
            )

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
        if self.time_last:
            channel = np.arange(channels)
            return np.where(channel < channels - self.sections[0], 1 + channel % 2, 0)
        if not self.interleaved:
            return np.repeat(np.arange(3), self.sections)
        axis = np.zeros(channels, int)
        for a in (1, 2):
            axis[a : 3 * self.sections[a] : 3] = a
        return axis

    def spectrum(self, num_axes, channels):
        return Spectrum(self.base, channels, np.arange(channels))


@register("mhrope")
@dataclass(frozen=True)
class MHRope(Rotary):
    """Multi-head RoPE: heads are dealt out to time, row and column, and each turns all its channels by its one axis.

    Huang et al. (2025), arXiv 2510.23095, and `MHRopeEmbedding` of JJJYmmm/Multimodal-RoPEs (file mhrope.py of
    multimodal_ropes/freq_allocation). So every axis has all frequencies base^(-2c/D), which `mrope` divides among them.

    Args:
      heads: how many heads time, row and column get, in this order; heads beyond their sum are not rotated. The authors
        count key heads, (2, 3, 3) of 8; here they are heads of queries, so multiply by how many share a key.
      base, layout, scaling: as in `rope`.

    On one axis time, row and column are the same number. Two axes are (row, column) of a still image, whose patches all have
    one time: its heads are left unrotated. Where text and images stand is `posjax.encodings.layouts.multimodal`.

    Raises:
      ValueError: for heads that are no three numbers of at least 0, or more than the model has; otherwise as rope.
    """

    family = "rotary"
    formula = (
        r"q'_{h,c} = q_{h,c}\,e^{i m_{a(h)}\theta_c},\quad \theta_c = \beta^{-2c/D},\quad a(h) \in"
        r" \{\text{time, row, column}\}",
    )

    base: float = 1_000_000.0
    heads: tuple[int, ...] = (2, 3, 3)
    layout: str = "half"
    scaling: Scaling | None = None

    def __post_init__(self):
        super().__post_init__()
        whole = isinstance(self.heads, tuple) and all(type(h) is int and h >= 0 for h in self.heads)
        if not whole or len(self.heads) != 3:
            raise ValueError(f"mhrope(heads=...) are three numbers of heads, as in (2, 3, 3); got {self.heads!r}")

    @property
    def needs(self):
        return super().needs | Needs.EVERY_HEAD

    def spectrum(self, num_axes, channels):
        return Spectrum(self.base, channels, np.arange(channels))

    def rotate(self, params, q, q_site, k, k_site):
        lengths = self._lengths(q_site, k_site)
        each = zip((q, k), (q_site, k_site), lengths, strict=True)
        return tuple(rotated(x, *self._heads_turn(site, length, *x.shape[1:])) for x, site, length in each)

    def _heads_turn(self, site: Site, length: Float32[Array, " T"] | None, num_heads: int, head_dim: int):
        """The angles [T, H, C], the layout and the attention factor of `rotated`."""
        if sum(self.heads) > num_heads:
            raise ValueError(
                f"mhrope(heads={self.heads}) deals out {sum(self.heads)} heads, and the model has {num_heads}"
            )
        position, channels = self.coordinates(site), self._rotary_dim(head_dim) // 2
        num_axes, spectrum = position.shape[1], self.spectrum(position.shape[1], channels)
        of_axis = np.repeat(np.arange(4), (*self.heads, num_heads - sum(self.heads))) == np.arange(3)[:, None]
        of_axis = of_axis.any(axis=0, keepdims=True) if num_axes == 1 else of_axis[3 - num_axes :]
        wave = of_axis[..., None] * spectrum.frequency
        there = stands(site)[:, None, None]
        if self.scaling is None:
            return jnp.where(there, angles(position, wave), 0.0), self.layout
        angle = jnp.where(there, self.scaling.angles(position, wave, spectrum, length), 0.0)
        return angle, self.layout, self.scaling.attention(position, length)


@register("golden_rope")
@dataclass(frozen=True)
class GoldenRope(Rotary):
    """Rotary embedding whose pairs of channels turn along directions a golden angle apart: golden gate RoPE.

    Xiong (2025), "On N-dimensional Rotary Positional Embeddings", jerryxio.ng/posts/nd-rope. Nothing is learned: heads and
    channels share the directions among them, so that any two neighbours are far apart. On one axis there are no directions.
    On two they are a golden angle apart, as in the author's class for images. On three they are points of a low-discrepancy
    sequence on the sphere, as in his class for any number of axes, whose directions on two axes are others.

    Args:
      min_frequency, max_frequency: radians per patch of the slowest and the fastest channel; those between are geometric,
        slowest first. The author counts positions from -1 to 1 across the image; his 0.2 and 20 are, on a grid of 14 x 14,
        the defaults here.
      zero_share: of a head's pairs of channels, the first ones, which do not turn; rounded to whole pairs.
      layout: channel pairs "half", as in the author's code, or "interleaved", as in `rope`.

    Tokens that stand nowhere are left unrotated.

    Raises:
      ValueError: for an odd head dim, an unknown layout, frequencies that are not positive or descend, or a share outside
        [0, 1].
    """

    family = "rotary"
    formula = (
        r"q'_{h,c} = q_{h,c}\,e^{i\omega_c\left(m_y\sin\phi_{h,c} + m_x\cos\phi_{h,c}\right)},\quad"
        r" \phi_{h,c} = \pi\,\tfrac{\sqrt 5 - 1}{2}\left(\tfrac{D}{2} h + c\right)",
        r"\omega_c = \omega_{\min}\left(\omega_{\max}/\omega_{\min}\right)^{c/(D/2-1)}",
    )

    ranges = "min_frequency > 0", "zero_share >= 0"

    min_frequency: float = 0.03
    max_frequency: float = 3.0
    zero_share: float = 0.0
    layout: str = "half"

    def __post_init__(self):
        super().__post_init__()
        if self.min_frequency > self.max_frequency:
            raise ValueError(
                f"golden_rope(min_frequency={self.min_frequency}) is above max_frequency={self.max_frequency}: swap them"
            )
        if self.zero_share > 1:
            raise ValueError(f"golden_rope(zero_share=...) is a share, at most 1; got {self.zero_share}")

    @property
    def needs(self):
        return super().needs | Needs.EVERY_HEAD

    def rotate(self, params, q, q_site, k, k_site):
        return tuple(
            rotated(x, self._angles(site, *x.shape[1:]), self.layout) for x, site in ((q, q_site), (k, k_site))
        )

    def _angles(self, site: Site, num_heads: int, head_dim: int) -> Float32[Array, "T H C"]:
        position, channels = self.coordinates(site), self._rotary_dim(head_dim) // 2
        still = round(self.zero_share * channels)
        speed = np.geomspace(self.min_frequency, self.max_frequency, channels - still) if still < channels else []
        speed = np.concatenate([np.zeros(still), speed])
        direction = spread_directions(position.shape[1], num_heads * channels).reshape(-1, num_heads, channels)
        wave = speed * direction
        return jnp.where(stands(site)[:, None, None], angles(position, wave), 0.0)


@register("register_rope")
@dataclass(frozen=True)
class RegisterRope(Rotary):
    """Rotary embedding of registers on a grid of their own, register i at (i // width, i % width); no other token turns.

    ViT-5 (Wang et al. 2026, arXiv 2602.08071) keeps a learned table of patches and turns patches with base 10000, four
    registers on 2 x 2 with base 100 and the class token not at all, as `Attention` of wangf3014/ViT-5 (models_vit5.py):
    `learned + axial_rope(base=10000, layout='interleaved') + register_rope()`.

    Args:
      first: number of the first register among the tokens that stand nowhere (`Site.prefix`): 2 behind a class token.
      base, layout: as in `axial_rope`.

    Raises:
      ValueError: for a head dim not divisible by 4, an unknown layout, or a width or first below 1; from `init` for a model
        whose class token and the like have no register behind them.
    """

    family = "rotary"
    formula = (
        r"q'_{a,c} = q_{a,c}\,e^{i r_a\theta_c},\quad (r_1, r_2) = \left(\lfloor i / W\rfloor,\ i \bmod W\right)"
        r"\ \text{of register } i",
        r"\theta_c = \beta^{-4c/D},\quad c = 0, \dots, \frac{D}{4}-1",
    )
    ranges = ("width >= 1", "first >= 1")

    base: float = 100.0
    width: int = 2
    first: int = 2
    layout: str = "interleaved"

    def init(self, key, dims):
        if 0 < dims.prefix < self.first:
            raise ValueError(
                f"{self} turns tokens from the {self.first}. of the {dims.prefix} that stand nowhere: give the model "
                "registers, num_registers=4 of a ViT, or leave it out"
            )
        return ()

    def rotate(self, params, q, q_site, k, k_site):
        return super().rotate(params, q, self._grid(q_site), k, self._grid(k_site))

    def _grid(self, site: Site) -> Site:
        """The site on which registers stand, and no other token."""
        index = jnp.asarray(site.prefix) - self.first
        position = jnp.stack([index // self.width, index % self.width], axis=-1)
        return Site(position.astype(np.int32), site.segment, (index < 0).astype(np.int32))


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

    family = "rotary"
    formula = (
        r"q'_{a,c} = q_{a,c}\,e^{2\pi i u_a\,\beta^{-2Ac/D}},\quad u_a = \frac{2\left(m_a +"
        r" \frac12\right)}{n_a} - 1",
    )

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
        """The number of patches of each token's image."""
        extent = jnp.asarray(extents(site._replace(position=axes(site))), jnp.float32)
        if self.normalize_coords == "separate":
            return extent
        return (jnp.max if self.normalize_coords == "max" else jnp.min)(extent, axis=1, keepdims=True)

    def _augmented(self, key: jax.Array, coordinate: Float32[Array, "T A"], image: Int[Array, " T"]):
        """Shifted, jittered, rescaled, in this order as the authors do; one draw for each image."""

        def drawn(key: jax.Array, num_axes: int, bound: float) -> Float[Array, "T #A"]:
            return jax.random.uniform(key, (len(image), num_axes), jnp.float32, minval=-bound, maxval=bound)[image]

        shift, jitter, rescale = jax.random.split(key, 3)
        num_axes = coordinate.shape[1]
        coordinate = coordinate + drawn(shift, num_axes, self.shift_coords)
        coordinate = coordinate * jnp.exp(drawn(jitter, num_axes, float(np.log(self.jitter_coords))))
        return coordinate * jnp.exp(drawn(rescale, 1, float(np.log(self.rescale_coords))))


@register("pixel_rope")
@dataclass(frozen=True)
class PixelRope(Rotary):
    """Axial rotary embedding with frequency bands of pixels, of an image whose outer patches stand at -1 and 1.

    rotary-embedding-torch with freqs_for="pixel" (linear) and timm's rotary embeddings with in_pixels=True, which space the
    bands geometrically unless linear_bands=True. The D/(2A) bands of each axis rise from pi to pi max_frequency / 2 radians
    per unit, so that the fastest turns half a turn a pixel on an image of max_frequency pixels. A patch at position p of n
    on an axis has coordinate 2 p/(n - 1) - 1, with n as in `dinov3`; a single one has -1. Not relative.

    Args:
      max_frequency: max_freq of rotary-embedding-torch, 10 there, and max_res of timm, 224 there.
      linear: whether bands are equally spaced, or else geometric.
      layout: channel pairs "interleaved", as in both, or "half", as in `rope`.

    Tokens that stand nowhere are left unrotated.

    Raises:
      ValueError: for a head dim not divisible by 2A, an unknown layout, or a max_frequency that is not positive.
    """

    family = "rotary"
    formula = (
        r"q'_{a,c} = q_{a,c}\,e^{i\pi\omega_c u_a},\quad u_a = \frac{2 m_a}{n_a - 1} - 1",
        r"\omega_c = \left(\frac F2\right)^{\frac{c}{D/2A-1}}\quad\text{or}\quad"
        r" 1 + \left(\frac F2 - 1\right)\frac{c}{D/2A-1}",
    )

    relative = False
    needs = Needs.WHOLE_DOCUMENT
    ranges = ("max_frequency > 0",)

    max_frequency: float = 224.0
    linear: bool = False
    layout: str = "interleaved"

    def wave(self, num_axes, channels):
        each = axial(self.base, num_axes, channels, f"{self.spec_name}: a head_dim") > 0
        space = np.linspace if self.linear else np.geomspace
        return each * np.tile(np.pi * space(1, self.max_frequency / 2, channels // num_axes), num_axes)

    def place(self, params, site, key=None):
        position = jnp.asarray(self.coordinates(site), jnp.float32)
        last = jnp.asarray(extents(site._replace(position=axes(site))), jnp.float32) - 1
        return site._replace(position=(2 * position / jnp.maximum(last, 1) - 1).reshape(site.position.shape))


def spread_directions(num_axes: int, count: int) -> Float[np.ndarray, "A N"]:
    """Unit vectors, spread evenly; neighbours in the series point far apart."""
    if num_axes == 1:
        return np.ones((1, count))
    if num_axes == 2:
        angle = np.pi * (np.sqrt(5) - 1) / 2 * np.arange(count)
        return np.stack([np.sin(angle), np.cos(angle)])
    ratio = 2.0  # the root of x^(A + 1) = x + 1, which is the golden ratio for A = 1
    for _ in range(10):  # as often as the author's code: 1e-8 beside the root
        ratio = (1 + ratio) ** (1 / (num_axes + 1))
    place = np.arange(1, count + 1) * ratio ** -np.arange(1.0, num_axes + 1)[:, None] % 1
    normal = np.vectorize(NormalDist().inv_cdf)(place)
    return normal / np.linalg.norm(normal, axis=0)


def _check_known(encoding: Encoding, argument: str, known: list[str]) -> None:
    value = getattr(encoding, argument)
    if value not in known:
        raise ValueError(f"{encoding.spec_name} has no {argument} {value!r}; {nearest(value, known)}")
