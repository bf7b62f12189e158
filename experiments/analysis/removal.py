"""The same weights read with less of their encodings, or with other ones, and the loss of texts that are read so.

A reading changes the encodings of some layers: of all, or, in a model where some layers have a window, of those with one
("windowed layers") or without ("global layers").
"""

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, Int32

from experiments.analysis.layers import Layers
from experiments.analysis.subject import OWN, Subject
from posjax.encoding import Array, Encoding, Sum, sites
from posjax.encodings.masks import Window
from posjax.encodings.rotary import PRope, Rope
from posjax.models.replacing import is_windowed
from posjax.spec import parse

Change = Callable[[Encoding], Encoding | None]
# A channel is massive if its norm is this often the mean of its head's: lambda of Jin et al. (2025).
MASSIVE_FACTOR = 5.0


class Read(NamedTuple):
    """The scores of the last tokens of a text, and all its hidden states."""

    loss: Float[np.ndarray, " S"]  # nats
    right: Bool[np.ndarray, " S"]  # whether the likeliest token is the target
    hidden: Float[np.ndarray, "T M"]


class TextReader:
    """Reads texts one by one, and scores the last `scored` tokens of each.

    Args:
      only: rows to read beside the model as loaded; () for all.
      tick: is called with the number of texts read.
    """

    def __init__(
        self, subject: Subject, scored: int, only: Collection[str] = (), tick: Callable[[int], Any] = lambda count: None
    ):
        self.subject, self.scored, self.only, self.tick, self._models = subject, scored, only, tick, {}

    def wants(self, row: str) -> bool:
        """Says whether a row is to be read."""
        return not self.only or row in (OWN, *self.only)

    def losses(self, tokens: Int32[np.ndarray, "N T1"], encodings: tuple[Encoding, ...] | None = None) -> np.ndarray:
        """Returns the mean loss of each text, [N], under other encodings or, for None, the model's own."""
        return np.array([self.read(text, encodings).loss.mean() for text in tokens])

    def read(
        self,
        text: Int32[np.ndarray, " T1"],
        encodings: tuple[Encoding, ...] | None = None,
        position: Int[np.ndarray, " T"] | None = None,
    ) -> Read:
        """Reads a text with its tokens at these positions, or from 0 on."""
        if encodings not in self._models:
            self._models[encodings] = self.subject.under(encodings)
        site = sites(len(text) - 1)
        site = site if position is None else site._replace(position=np.asarray(position, np.int32))
        self.tick(1)
        return Read(*map(np.asarray, _read(*self._models[encodings], text, site, self.scored)))


@functools.partial(jax.jit, static_argnums=(0, 4))
def _read(model, params, text, site, scored):
    x, _ = model.apply({"params": params}, text[None, :-1], site, method=model.features)
    logits = model.apply({"params": params}, x[:, -scored:], method=model.logits)[0]
    targets = text[-scored:]
    own = jnp.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]
    return jax.nn.logsumexp(logits, axis=-1) - own, jnp.argmax(logits, axis=-1) == targets, x[0]


class Alteration(NamedTuple):
    """A pattern of encodings to read a model under; `change` and `layers` say in words what differs."""

    change: str
    layers: str
    encodings: tuple[Encoding, ...] | None

    @property
    def label(self) -> str:
        return f"{self.change}, {self.layers}" if self.layers else self.change


@dataclass(frozen=True)
class Stilled(Encoding):
    """A rotary encoding without the rotation of some channels."""

    rotary: Encoding
    channels: tuple[int, ...]

    def rotate(self, params, q, q_site, k, k_site):
        turned = self.rotary.rotate(params, q, q_site, k, k_site)
        still = np.isin(np.arange(q.shape[-1]), self.channels)
        return tuple(jnp.where(still, x, y) for x, y in zip((q, k), turned, strict=True))


def stilled(encoding: Encoding, channels: tuple[int, ...]) -> Encoding:
    """Returns the encoding with its rotating parts `Stilled`."""
    if isinstance(encoding, Sum):
        return Sum(tuple(stilled(part, channels) for part in encoding.parts))
    return Stilled(encoding, channels) if "rotate" in encoding.hooks else encoding


def scopes(pattern: Sequence[Encoding]) -> dict[str, Callable[[Encoding], bool]]:
    """Returns {name of a set of layers: whether a layer belongs to it}; "all layers" alone where no layer differs."""
    windowed = [is_windowed(layer) for layer in pattern]
    named = {"all layers": lambda layer: True}
    if any(windowed) and not all(windowed):
        named |= {"global layers": lambda layer: not is_windowed(layer), "windowed layers": is_windowed}
    return named


def changed(
    pattern: Sequence[Encoding], scope: Callable[[Encoding], bool], change: Change
) -> tuple[Encoding, ...] | None:
    """Returns the pattern with the layers of a scope changed; None if the change fits none of them, or alters none."""
    changes = tuple(change(layer) if scope(layer) else layer for layer in pattern)
    return None if None in changes or changes == tuple(pattern) else changes


def with_rope(encoding: Encoding, change: Callable[[Rope], Encoding | None]) -> Encoding | None:
    """Returns the encoding with another one in place of its rope; None if it has no rope, or `change` gives None."""
    if isinstance(encoding, Rope):
        return change(encoding)
    if not isinstance(encoding, Sum):
        return None
    parts = tuple(change(part) if isinstance(part, Rope) else part for part in encoding.parts)
    return None if None in parts or parts == encoding.parts else Sum(parts)


def proportional(proportion: float) -> Change:
    """Returns the change to ropes whose lowest frequencies are 0: `p_rope(proportion)`."""

    def change(rope: Rope) -> Encoding | None:
        if rope.fraction != 1 or rope.scaling is not None:
            return None
        return PRope(rope.base, rope.layout, proportion)

    return lambda encoding: with_rope(encoding, change)


def masked(mask: str) -> Change:
    """Returns the change to a narrower view, in place of a window: ``masked("window(128)")``."""
    part = parse(mask)

    def change(encoding: Encoding) -> Encoding:
        if encoding.mask().memory.last <= part.mask().memory.last:  # it sees no more as it is
            return encoding
        parts = encoding.parts if isinstance(encoding, Sum) else (encoding,)
        return Sum((*(each for each in parts if not isinstance(each, Window)), part))

    return change


def unwindowed(encoding: Encoding) -> Encoding | None:
    """Returns the encoding without its window; None if it has none."""
    if not isinstance(encoding, Sum) or not any(isinstance(part, Window) for part in encoding.parts):
        return None
    rest = tuple(part for part in encoding.parts if not isinstance(part, Window))
    return rest[0] if len(rest) == 1 else Sum(rest)


def unwindowed_and_scaled(scaling: str) -> Change:
    """Returns the change to a rope with a frequency scaling and without a window: ``"linear(factor=2)"``."""
    scale = parse(f"rope(scaling={scaling})").scaling

    def change(rope: Rope) -> Encoding | None:
        return None if rope.scaling is not None else dataclasses.replace(rope, scaling=scale)

    return lambda encoding: with_rope(unwindowed(encoding), change)


def readings(pattern: Sequence[Encoding], length: int) -> Iterator[Alteration]:
    """Yields the readings of a model for texts of a length, first its own, each pattern once.

    Windows are narrowed to 1/2 and 1/8 of the length; "sinks" let a window see the first 4 tokens too.
    """
    yield Alteration(OWN, "", None)
    changes: dict[str, Change] = {"no rope": functools.partial(with_rope, change=lambda rope: parse("none"))}
    changes |= {f"p_rope({p})": proportional(p) for p in (0.75, 0.5, 0.25)}
    rebased = lambda rope: dataclasses.replace(rope, base=4 * rope.base)  # noqa: E731
    changes["base x 4"] = functools.partial(with_rope, change=rebased)
    for window in (length // 2, length // 8):
        changes[f"window {window}"] = masked(f"window({window})")
        changes[f"4 sinks and window {window}"] = masked(f"sinks(num_sinks=4, window={window})")
    seen = set()
    for change, function in changes.items():
        for name, scope in scopes(pattern).items():
            encodings = changed(pattern, scope, function)
            if encodings is not None and encodings not in seen:
                seen.add(encodings)
                yield Alteration(change, name, encodings)


def channel_norms(x: Float[Array, "T H D"]) -> Float[np.ndarray, "H D"]:
    """Returns the 2-norm over the tokens of each head's channels (Jin et al. 2025, arXiv 2502.01563, section 3, eq. 2)."""
    return np.linalg.norm(np.asarray(x, np.float64), axis=0)


def is_massive(norms: Float[np.ndarray, "H D"]) -> Bool[np.ndarray, "H D"]:
    """Marks the channels whose norm is above `MASSIVE_FACTOR` times the mean of their head (section 3, eq. 3)."""
    return norms > MASSIVE_FACTOR * norms.mean(axis=1, keepdims=True)


@dataclass(frozen=True)
class Fixed(Encoding):
    """Queries and keys, before they are rotated, with some channels at constants.

    A part of a sum before the rotary encoding: ``Sum((Fixed(...), rope()))``.

    Attributes:
      query, key: (head, channel, number) of each such channel.
    """

    query: tuple[tuple[int, int, float], ...] = ()
    key: tuple[tuple[int, int, float], ...] = ()

    def rotate(self, params, q, q_site, k, k_site):
        return _fixed(q, self.query), _fixed(k, self.key)


def _fixed(x, constants):
    if not constants:
        return x
    head, channel, number = map(np.array, zip(*constants, strict=True))
    return jnp.asarray(x).at[:, head, channel].set(jnp.asarray(number, x.dtype))


def fixed_pattern(
    encodings: Sequence[Encoding], layers: Layers, which: str, rng: np.random.Generator
) -> tuple[Encoding, ...]:
    """Returns the encodings of all layers with channels of queries and keys at their mean over the tokens.

    Args:
      layers: the values of the layers for one text, whose means are taken.
      which: "massive" channels, or as many "other" channels of each head.
      rng: draws the other channels.
    """
    pattern = []
    for encoding, *tensors in zip(encodings, layers.query, layers.key, strict=True):
        constants = {}
        for name, x in zip(("query", "key"), tensors, strict=True):
            mask, mean = is_massive(channel_norms(x[0])), np.asarray(x[0], np.float64).mean(axis=0)
            chosen = [np.flatnonzero(row) for row in mask]
            if which == "other":
                chosen = [rng.choice(np.flatnonzero(~row), row.sum(), replace=False) for row in mask]
            constants[name] = tuple((h, int(c), float(mean[h, c])) for h, row in enumerate(chosen) for c in row)
        parts = encoding.parts if isinstance(encoding, Sum) else (encoding,)
        pattern.append(Sum((Fixed(**constants), *parts)) if any(constants.values()) else encoding)
    return tuple(pattern)
