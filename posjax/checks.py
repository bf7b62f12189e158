"""Validates values read from files (type and range) before use.

check("config.json", {"factor": "two"}, {"factor": POSITIVE})   # ValueError: factor is 'two', which is not a number above 0
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

MOST = 2**31  # a number of positions, channels or layers


class Kind(NamedTuple):
    """A check of a value: its words and its test."""

    what: str
    holds: Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and abs(value) < 3e38  # as float32 can hold them


def whole(what: str, least: int, most: int = MOST - 1) -> Kind:
    return Kind(what, lambda value: type(value) is int and least <= value <= most)


SIZE = whole("a whole number of 1 or more", 1)
COUNT = whole("a whole number of 0 or more", 0)
LAYERS = whole("a whole number from 1 to 65,536", 1, 2**16)
WHOLE = whole("a whole number", -MOST)
NUMBER = Kind("a number", _is_number)
POSITIVE = Kind("a number above 0", lambda value: _is_number(value) and value > 0)
AMOUNT = Kind("a number of 0 or more", lambda value: _is_number(value) and value >= 0)
SHARE = Kind("a number above 0 and not above 1", lambda value: _is_number(value) and 0 < value <= 1)
FLAG = Kind("true or false", lambda value: type(value) is bool)
TEXT = Kind("text", lambda value: isinstance(value, str))
GROUP = Kind("a group of keys", lambda value: isinstance(value, Mapping))


def maybe(kind: Kind) -> Kind:
    return Kind(f"{kind.what}, or null", lambda value: value is None or kind.holds(value))


def either(*kinds: Kind) -> Kind:
    return Kind(" or ".join(kind.what for kind in kinds), lambda value: any(kind.holds(value) for kind in kinds))


def several(kind: Kind, least: int = 0, most: int = 2**20) -> Kind:
    """A list of `least` to `most` values of a kind."""
    length = f" of {least}" if least == most else f" of {least} or more" if least else ""

    def holds(value: Any) -> bool:
        return isinstance(value, (list, tuple)) and least <= len(value) <= most and all(map(kind.holds, value))

    return Kind(f"a list{length} whose items are {kind.what}", holds)


def check(where: str, fields: Mapping[str, Any], kinds: Mapping[str, Kind]) -> None:
    """Refuses a field with a value of another kind; fields without a kind are passed over.

    Raises:
      ValueError: names the field and the kind that it should be.
    """
    for name, value in fields.items():
        kind = kinds.get(name)
        if kind is not None and not kind.holds(value):
            raise ValueError(f"{where}: {name} is {repr(value)[:80]}, which is not {kind.what}")
