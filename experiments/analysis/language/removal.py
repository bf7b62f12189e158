"""Parts of a model's encodings that may go: the same weights, read with less of them, or with other ones.

A reading changes the encodings of some layers: of all, or, in a model where some layers have a window, of those with one
("windowed layers") or without ("global layers").
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from experiments.analysis.language.subject import OWN
from posjax.encoding import Encoding, Sum
from posjax.encodings.masks import Window
from posjax.encodings.rotary import PRope, Rope
from posjax.models.replacing import is_windowed
from posjax.spec import parse

Change = Callable[[Encoding], Encoding | None]


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
    """A rotary encoding without the rotation of some channels.

    Attributes:
      rotary: the encoding.
      channels: the channels that do not turn.
    """

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
    made = [change(layer) if scope(layer) else layer for layer in pattern]
    return None if None in made or tuple(made) == tuple(pattern) else tuple(made)


def with_rope(encoding: Encoding, change: Callable[[Rope], Encoding | None]) -> Encoding | None:
    """Returns the encoding with another one in place of its rope; None if it has no rope, or `change` gives None."""
    if isinstance(encoding, Rope):
        return change(encoding)
    if not isinstance(encoding, Sum):
        return None
    made = [change(part) if isinstance(part, Rope) else part for part in encoding.parts]
    return None if None in made or made == list(encoding.parts) else Sum(tuple(made))


def without_rope(encoding: Encoding) -> Encoding | None:
    """Returns the encoding without its rope; other parts stay."""
    return with_rope(encoding, lambda rope: parse("none"))


def proportional(proportion: float) -> Change:
    """Returns the change to ropes whose lowest frequencies are 0: `p_rope(proportion)`."""

    def change(rope: Rope) -> Encoding | None:
        if rope.fraction != 1 or rope.scaling is not None:
            return None
        return PRope(rope.base, rope.layout, proportion)

    return lambda encoding: with_rope(encoding, change)


def rebased(factor: float) -> Change:
    """Returns the change of a rope's base."""
    return lambda encoding: with_rope(encoding, lambda rope: dataclasses.replace(rope, base=factor * rope.base))


def scaled(scaling: str) -> Change:
    """Returns the change to ropes with a frequency scaling, where they have none: ``scaled("linear(factor=2)")``."""
    made = parse(f"rope(scaling={scaling})").scaling

    def change(rope: Rope) -> Encoding | None:
        return None if rope.scaling is not None else dataclasses.replace(rope, scaling=made)

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


def readings(pattern: Sequence[Encoding], length: int) -> Iterator[Alteration]:
    """Yields the readings of a model for texts of a length, first its own, each pattern once.

    Windows are narrowed to 1/2 and 1/8 of the length; "sinks" let a window see the first 4 tokens too.
    """
    yield Alteration(OWN, "", None)
    changes: dict[str, Change] = {"no rope": without_rope}
    changes |= {f"p_rope({p})": proportional(p) for p in (0.75, 0.5, 0.25)}
    changes["base x 4"] = rebased(4)
    for window in (length // 2, length // 8):
        changes[f"window {window}"] = masked(f"window({window})")
        changes[f"4 sinks and window {window}"] = masked(f"sinks(num_sinks=4, window={window})")
    seen = set()
    for change, function in changes.items():
        for name, scope in scopes(pattern).items():
            made = changed(pattern, scope, function)
            if made is not None and made not in seen:
                seen.add(made)
                yield Alteration(change, name, made)
