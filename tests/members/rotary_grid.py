"""Rotary encodings of images and videos."""

import math

import numpy as np
from hypothesis import strategies as st

from members.member import Member, Oracle, grids, lines
from members.scaling import scaled, scalings

LAYOUT = st.sampled_from(["half", "interleaved"])


def turned(vector, phase, layout):
    """Each pair of channels (a, b) becomes (a + ib) exp(i phase)."""
    out = np.array(vector)
    for c, angle in enumerate(phase):
        i, j = (c, c + len(phase)) if layout == "half" else (2 * c, 2 * c + 1)
        z = (vector[i] + 1j * vector[j]) * np.exp(1j * angle)
        out[i], out[j] = z.real, z.imag
    return out


class AxialOracle(Oracle):
    """Channel by channel: which axis it reads, and how fast it turns."""

    def rotate(self, vector, p, head):
        if p is None:
            return vector
        if self.e.axes_dims is not None:
            bases = self.e.base if isinstance(self.e.base, tuple) else [self.e.base] * len(p)
            blocks = list(zip(self.e.axes_dims, bases, p, strict=True))[:: -1 if self.e.indexing == "xy" else 1]
            phase = [x * base ** (-2 * c / d) for d, base, x in blocks for c in range(d // 2)]
            return turned(vector, phase, self.e.layout)
        pairs, axes = len(vector) // 2, len(p)
        shared = self.e.frequencies == "shared"
        series, _ = scaled(self.e.scaling, self.e.base, len(vector) // axes if shared else len(vector), None)
        phase = []
        for c in range(pairs):
            block, place = divmod(c, pairs // axes)
            axis = axes - 1 - block if self.e.indexing == "xy" else block
            phase.append(p[axis] * series[place if shared else place * axes + block])
        return turned(vector, phase, self.e.layout)


class MRopeOracle(Oracle):
    """Qwen's text model: three sets of angles; each channel takes the set of its section."""

    def rotate(self, vector, p, head):
        if p is None:
            return vector
        thw = {1: [p[0]] * 3, 2: [0.0, *p], 3: list(p)}[len(p)]
        t, h, w = self.e.sections
        phase, rotary_dim = [], int(self.e.fraction * len(vector))
        for c in range(rotary_dim // 2):
            if self.e.interleaved:
                axis = 1 if c % 3 == 1 and c < 3 * h else 2 if c % 3 == 2 and c < 3 * w else 0
            elif self.e.time_last:
                axis = (1 if c % 2 == 0 else 2) if c < h + w else 0
            else:
                axis = 0 if c < t else 1 if c < t + h else 2
            phase.append(thw[axis] * self.e.base ** (-2 * c / rotary_dim))
        return np.concatenate([turned(vector[:rotary_dim], phase, self.e.layout), vector[rotary_dim:]])


class MHRopeOracle(Oracle):
    """Each head turns by time, row or column; beyond those that are dealt out, by none."""

    def rotate(self, vector, p, head):
        t, h, w = self.e.heads
        if p is None or head >= t + h + w:
            return vector
        thw = {1: [p[0]] * 3, 2: [0.0, *p], 3: list(p)}[len(p)]
        thetas, m = scaled(self.e.scaling, self.e.base, len(vector), None)
        own = thw[0 if head < t else 1 if head < t + h else 2]
        return m * turned(vector, [own * theta for theta in thetas], self.e.layout)


class GoldenOracle(Oracle):
    """The author's table of directions, pair of channels by pair of channels."""

    def rotate(self, vector, p, head):
        if p is None:
            return vector
        count, low, high = len(vector) // 2, self.e.min_frequency, self.e.max_frequency
        still, phase = round(self.e.zero_share * count), []
        for c in range(count):
            turning = count - still - 1
            speed = 0.0 if c < still else low * (high / low) ** ((c - still) / turning if turning else 0.0)
            phi = (head * count + c) * math.pi * (math.sqrt(5) - 1) / 2
            along = p[0] if len(p) == 1 else math.cos(phi) * p[1] + math.sin(phi) * p[0]
            phase.append(speed * along)
        return turned(vector, phase, self.e.layout)


class RegisterOracle(Oracle):
    """Row and column of a register in raster order; the half of a head for each. The others pass."""

    def transform(self, row, head, i, j, q, k):
        return self.turn(q, row.prefix[i]), self.turn(k, row.prefix[j])

    def turn(self, vector, number):
        count, place = len(vector) // 4, divmod(number - self.e.first, self.e.width)
        phase = [x * self.e.base ** (-c / count) for x in place for c in range(count)]
        return vector if number < self.e.first else turned(vector, phase, self.e.layout)


class DinoV3Oracle(Oracle):
    """Coordinates of patch centres in the image's own frame, then the periods of the authors' code."""

    def transform(self, row, head, i, j, q, k):
        return self.turn(q, row, i), self.turn(k, row, j)

    def turn(self, vector, row, token):
        p = row.position[token]
        if p is None:
            return vector
        mates = [r for r, s in zip(row.position, row.segment, strict=True) if s == row.segment[token] and r is not None]
        size = np.max(mates, axis=0) + 1
        if self.e.normalize_coords != "separate":
            size = size.max() if self.e.normalize_coords == "max" else size.min()
        coordinate = 2 * ((p + 0.5) / size) - 1
        count = len(vector) // 2 // len(p)
        periods = [self.e.base ** (c / count) for c in range(count)]
        return turned(vector, [2 * np.pi * x / period for x in coordinate for period in periods], "half")


class PixelOracle(DinoV3Oracle):
    """`RotaryEmbedding` of timm, coordinate by coordinate and band by band."""

    def turn(self, vector, row, token):
        p = row.position[token]
        if p is None:
            return vector
        mates = [r for r, s in zip(row.position, row.segment, strict=True) if s == row.segment[token] and r is not None]
        place = [-1.0 if n == 0 else 2 * x / n - 1 for x, n in zip(p, np.max(mates, axis=0), strict=True)]
        last, half = len(vector) // 2 // len(p) - 1, self.e.max_frequency / 2
        bands = [1 + (half - 1) * c / last if self.e.linear else half ** (c / last) for c in range(last + 1)]
        return turned(vector, [math.pi * x * band for x in place for band in bands], self.e.layout)


MEMBERS = {
    "axial_rope": Member(
        [
            *grids("axial_rope(base=30, frequencies='split', indexing='xy')", "axial_rope(layout='interleaved')"),
            *lines("axial_rope(frequencies='split')"),
            *grids("axial_rope(base=30, scaling=ntk(factor=3))"),
            *grids("axial_rope(frequencies='split', scaling=ntk(factor=3))"),
            *grids("axial_rope(base=(30, 7), indexing='xy', axes_dims=(2, 6))"),
        ],
        AxialOracle,
        {
            "base": st.floats(1, 1e12),
            "frequencies": st.sampled_from(["shared", "split"]),
            "indexing": st.sampled_from(["ij", "xy"]),
            "layout": LAYOUT,
            "scaling": scalings(),
            "axes_dims": st.none(),
        },
    ),
    "mhrope": Member(
        grids("mhrope(base=100, heads=(0, 1, 1))") + lines("mhrope(base=30, heads=(1, 1, 0), layout='interleaved')"),
        MHRopeOracle,
        {
            "base": st.floats(1, 1e12),
            "heads": st.tuples(*3 * [st.integers(0, 64)]),
            "layout": LAYOUT,
            "scaling": scalings(),
        },
        vit="mhrope(base=100, heads=(0, 1, 1))",
        decoder="mhrope(heads=(1, 1, 0))",
    ),
    "mrope": Member(
        [
            *grids(
                "mrope(base=100, sections=(1, 2, 1), interleaved=True)",
                "mrope(base=100, sections=(1, 1, 2), layout='interleaved')",
                "mrope(base=100, sections=(1, 2, 1), time_last=True)",
            ),
            *lines("mrope(base=100, sections=(2, 1, 1))", "mrope(base=100, sections=(1, 1, 0), fraction=0.5)"),
        ],
        MRopeOracle,
        {
            "base": st.floats(1, 1e12),
            "sections": st.tuples(*3 * [st.integers(0, 64)]),
            "interleaved": st.booleans(),
            "layout": LAYOUT,
            "fraction": st.floats(0.01, 1),
            "scaling": st.none(),
            "time_last": st.just(False),
        },
    ),
    "golden_rope": Member(
        [
            *grids("golden_rope()", "golden_rope(min_frequency=0.2, max_frequency=20, layout='interleaved')"),
            *grids("golden_rope(zero_share=0.5)"),
            *lines("golden_rope(zero_share=0.25)"),
        ],
        GoldenOracle,
        {
            "min_frequency": st.floats(1e-4, 1),
            "max_frequency": st.floats(1, 1e3),
            "zero_share": st.floats(0, 1),
            "layout": LAYOUT,
        },
    ),
    "register_rope": Member(
        grids(
            "register_rope(base=4, first=1)",
            "axial_rope(base=50) + register_rope(base=9, width=1, first=1, layout='half')",
        ),
        RegisterOracle,
        {"base": st.floats(1, 1e12), "width": st.integers(1, 50), "first": st.integers(1, 9), "layout": LAYOUT},
        decoder="register_rope()",
    ),
    "pixel_rope": Member(
        [
            *grids("pixel_rope(max_frequency=10)", "pixel_rope(max_frequency=6, linear=True, layout='half')"),
            *lines("pixel_rope(max_frequency=10, linear=True)"),
        ],
        PixelOracle,
        {"max_frequency": st.floats(0.1, 1e4), "linear": st.booleans(), "layout": LAYOUT},
        decoder="",
    ),
    "dinov3": Member(
        [
            *grids("dinov3(base=20)", "dinov3(normalize_coords='max')", "dinov3(normalize_coords='min')"),
            *lines("dinov3(jitter_coords=1.5)"),
        ],
        DinoV3Oracle,
        {
            "base": st.floats(1, 1e12),
            "normalize_coords": st.sampled_from(["separate", "max", "min"]),
            "shift_coords": st.floats(0, 10),
            "jitter_coords": st.floats(1, 10),
            "rescale_coords": st.floats(1, 10),
        },
        vit="dinov3(rescale_coords=2)",
        decoder="",
    ),
}
