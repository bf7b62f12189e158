"""The look of each family of encodings in every figure: one colour and one mark, told apart by red-green blind readers.

A family is what the class of an encoding says (`posjax.describe.catalogue.family_of`); families of one idea look alike.
Colours were searched for on a grid to be far apart in CIELAB as they are and as protanopes and deuteranopes see them
(Machado, Oliveira and Fernandes 2009, https://doi.org/10.1109/TVCG.2009.113); the tests check it.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from posjax.describe.catalogue import family_of as family_of_class
from posjax.encoding import PositionMap
from posjax.spec import registered, registered_names


class Family(NamedTuple):
    """Attributes:
    about: what its members have in common.
    marker: of matplotlib.
    glyph: the same mark as a letter, for text.
    classes: families of the classes that look like this, with spaces between.
    """

    about: str
    color: str
    marker: str
    glyph: str
    classes: str = ""


NONE, OTHER, RESCALED, WINDOWS, ROTARY = "none", "other", "rescaled rotary", "windows and views", "rotary"
_ROTARY = "rotary rotary_generalised rotary_grid rotary_groups rotary_learned"
_CONTEXTUAL = "contextual gates grape path_attention paths phases stick_breaking sticks token_aware_phase"
FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        NONE: Family("no position", "#8a8a8a", "o", "●", "encodings"),
        "waves": Family("fixed waves, added", "#b17a43", "s", "■", "additive"),
        "tables": Family("learned tables, added", "#904300", "D", "◆", "tables digits"),
        ROTARY: Family("rotations of queries and keys", "#0016bc", "^", "▲", _ROTARY),
        RESCALED: Family("rotations with other frequencies", "#2cc8d3", "v", "▼"),
        "bias": Family("biases by distance", "#640016", "X", "✖", "bias"),
        "learned bias": Family(
            "learned biases or keys of offsets", "#d321ff", "P", "✚", "bias_grid bias_network disentangled"
        ),
        "contextual": Family("positions that depend on the content", "#2c6459", "<", "◀", _CONTEXTUAL),
        WINDOWS: Family("fewer keys, or nearer ones", "#deb100", ">", "▶", "masks views temperature"),
        OTHER: Family("others", "#2c2c43", "p", "⬟", "convolution graphs"),
    }
)
_LOOK = {name: look for look, family in FAMILIES.items() for name in family.classes.split()}
_NAME = re.compile(r"[a-z]\w*")
_ARGUMENT = re.compile(r"\w+(?==)|'[^']*'|\"[^\"]*\"")  # names of arguments, and texts


def _look_of_name(name: str) -> str | None:
    """The look of a registered encoding; None for a map that only moves positions, and for a word that is no encoding."""
    if name not in registered_names():
        return None
    look = _LOOK.get(family_of_class(registered(name)), OTHER)
    return None if issubclass(registered(name), PositionMap) and look != WINDOWS else look


def is_map(encoding: str) -> bool:
    """Whether a spec begins with a map that only moves positions."""
    first = _NAME.match(encoding)
    name = first[0] if first else ""
    return name in registered_names() and issubclass(registered(name), PositionMap) and _look_of_name(name) is None


def family_of(encoding: str) -> str:
    """The family of a spec, which may have placeholders; `OTHER` where no family knows it, as "-" of a ResNet.

    A window or a view decides, then a scaling of frequencies, then the first encoding that knows positions; what is added
    to rotations, which many models have beside it, decides before these.
    """
    found = [look for name in _NAME.findall(_ARGUMENT.sub("", encoding)) if (look := _look_of_name(name))]
    if WINDOWS in found:
        return WINDOWS
    if re.search(r"scaling=(?!None)", encoding) and ROTARY in found:
        return RESCALED
    last = (ROTARY, NONE)
    return min(found, key=lambda family: family in last and 1 + last.index(family), default=OTHER)
