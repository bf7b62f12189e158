"""Scalings of rotary frequencies, for contexts longer than the trained one: rope(scaling=yarn(factor=4, ...)).

A scaling is a value that any rotary encoding takes as an argument. It knows nothing of layouts, axes or parameters: it
gives a multiplier for each frequency of a geometric series, and the rotary encoding applies it. `scalings.py` has the
members; this file has their shared functions.
"""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float32, Shaped

from posjax.encoding import Array, Site, axes, spec_text, stands
from posjax.encodings.angles import angles


class Spectrum(NamedTuple):
    """The frequencies of a rotary: channel c has base^(-index[c] / count), one of a series of `count`."""

    base: float
    count: int
    index: Shaped[np.ndarray, " C"]

    @property
    def frequency(self) -> Float[np.ndarray, " C"]:
        """Radians per unit of position."""
        return float(self.base) ** (-self.index / self.count)


class Scaling:
    """A frequency scaling: a frozen dataclass. Members override `multiplier`, and `attention` if they have a factor.

    A `length_dependent` scaling is given the length of each token's document: 1 + the largest position of the document's
    keys, on the longest axis. Its caches keep untransformed keys, so that decoding is right at every length. Its logits do
    not depend on differences of positions alone.
    """

    spec_name: ClassVar[str] = ""
    formula: ClassVar[tuple[str, ...]] = ()  # in LaTeX
    length_dependent: ClassVar[bool] = False

    def __str__(self) -> str:
        return spec_text(self)

    def multiplier(self, spectrum: Spectrum, length: Float32[Array, " T"] | None) -> Float[Array, "*T C"]:
        """The multiplier of each channel's frequency: [C] in float64, or [T, C] in float32 if length-dependent."""
        raise NotImplementedError

    def attention(
        self, position: Shaped[Array, "T A"], length: Float32[Array, " T"] | None
    ) -> Float32[Array, " T"] | float:
        """The attention factor, which multiplies rotated queries and rotated keys: their logits, by its square."""
        return 1.0

    def angles(
        self,
        position: Shaped[Array, "T A"],
        wave: Float[Array, "A *C"],
        spectrum: Spectrum,
        length: Float32[Array, " T"] | None,
    ) -> Float32[jax.Array, "T *C"]:
        """The angles of `wave`, scaled.

        Frequencies that depend on the length are float32, off by up to 1e-6 of themselves (and the same for all tokens
        of a document), but products with positions are exact: logits err by 1e-6 of the angle between two tokens.
        """
        multiplier = self.multiplier(spectrum, length)
        if not self.length_dependent:
            return angles(position, wave * multiplier.astype(wave.dtype))
        multiplier = multiplier.reshape(len(position), *[1] * (wave.ndim - 1), -1)
        waves = jnp.asarray(wave, jnp.float32) * multiplier
        return jax.vmap(lambda position, wave: angles(position[None], wave)[0])(position, waves)


def document_lengths(q_site: Site, k_site: Site) -> tuple[Float32[jax.Array, " T"], Float32[jax.Array, " S"]]:
    """The length of each query's and each key's document: 1 + the largest position of its keys, 0 if it has none.

    Of several position axes the longest counts. Sorts the keys by document: O(S log S) time, O(S) memory.
    """
    there = (jnp.asarray(k_site.segment) > 0) & stands(k_site)
    end = jnp.where(there, jnp.max(jnp.asarray(axes(k_site), jnp.float32), axis=1) + 1, 0.0)
    order = jnp.argsort(k_site.segment)
    segment = jnp.asarray(k_site.segment)[order]
    document = jnp.cumsum(jnp.diff(segment, prepend=segment[:1]) != 0)
    last = jax.ops.segment_max(end[order], document, num_segments=len(segment), indices_are_sorted=True)

    def look_up(site: Site):
        place = jnp.clip(jnp.searchsorted(segment, site.segment), 0, len(segment) - 1)
        return jnp.where(segment[place] == site.segment, last[document[place]], 0.0)

    return look_up(q_site), look_up(k_site)
