"""Units of metrics: scale, digits and best value."""

from collections.abc import Callable
from typing import NamedTuple


class Unit(NamedTuple):
    """Scale, digits and suffix of a shown metric; `best` is min, max or None; `block`: how its `at`, a block, is said."""

    scale: float = 1.0
    digits: int = 3
    suffix: str = ""
    best: Callable | None = None
    block: str = ""

    @property
    def of_differences(self) -> str:
        """The unit of a difference: percentage points for shares."""
        return "points" if self.scale == 100 else self.suffix.strip(" ()")


PER_BYTE = "loss per byte"  # with it models of different tokenizers can be compared
_SHARE = Unit(100, 2, " (%)", max)
# A metric has the unit of the first of these names that it contains.
UNITS = {
    "accuracy": _SHARE,
    "exact match": _SHARE,
    "perplexity": Unit(digits=2, best=min),
    "log probability": Unit(digits=2, best=max),
    "loss": Unit(suffix=" (nats)", best=min),
    "position error": Unit(suffix=" (tokens)", best=min, block="after"),
    "attention on": Unit(100, 1, " (%)", block="in"),
    "seconds": Unit(digits=4, best=min),
}


def unit_of(metric: str) -> Unit:
    return next((unit for name, unit in UNITS.items() if name in metric), Unit())


def title_of(metric: str, unit_of_text: str = "") -> str:
    """Returns a metric with its unit: "accuracy (%)", "loss (nats per byte)", "position error (bytes)"."""
    suffix = unit_of(metric).suffix
    if PER_BYTE in metric:
        return f"{words(metric)} (nats)"
    if unit_of_text in ("byte", "token"):
        suffix = suffix.replace("nats", f"nats per {unit_of_text}").replace("tokens", f"{unit_of_text}s")
    return f"{words(metric)}{suffix}"


def words(metric: str) -> str:
    """Returns a metric's name in words: tasks are spelled as identifiers."""
    return metric.replace("_", " ").replace("passkey", "pass key")


def many(unit: str) -> str:
    """Returns the plural of a unit: bytes, tokens, patches; "" without a unit."""
    return f"{unit}es" if unit.endswith("ch") else f"{unit}s" if unit else ""
