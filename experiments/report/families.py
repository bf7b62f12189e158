"""The look of each family of encodings in every figure: one colour and one mark that red-green blind readers distinguish.

The class of an encoding gives its family (`catalogue.defining_module`); families of one idea look alike. A grid search chose
colours that are far apart in CIELAB, for normal sight and for protanopes and deuteranopes (Machado, Oliveira and Fernandes
2009, https://doi.org/10.1109/TVCG.2009.113); tests check them.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from posjax.spec import REGISTRY


class FamilyLook(NamedTuple):
    """Attributes:
    about: the idea that its members share.
    marker: matplotlib's marker.
    glyph: the same mark as a letter, for text.
    """

    about: str
    color: str
    marker: str
    glyph: str


NONE, OTHER, RESCALED, WINDOWS, ROTARY = "none", "other", "rescaled rotary", "windows and views", "rotary"
MAPS = "position maps"  # by their class; in a spec the encoding right of >> gives the family
FAMILIES: Mapping[str, FamilyLook] = MappingProxyType(
    {
        NONE: FamilyLook("no position", "#8a8a8a", "o", "●"),
        "waves": FamilyLook("fixed waves, added", "#b17a43", "s", "■"),
        "tables": FamilyLook("learned tables, added", "#904300", "D", "◆"),
        ROTARY: FamilyLook("rotations of queries and keys", "#0016bc", "^", "▲"),
        RESCALED: FamilyLook("rotations with other frequencies", "#2cc8d3", "v", "▼"),
        "decay": FamilyLook("biases that fall with the distance", "#640016", "X", "✖"),
        "learned bias": FamilyLook("learned biases or keys of offsets", "#d321ff", "P", "✚"),
        "contextual": FamilyLook("positions that depend on the content", "#2c6459", "<", "◀"),
        WINDOWS: FamilyLook("fewer keys, or nearer ones", "#deb100", ">", "▶"),
        OTHER: FamilyLook("others", "#2c2c43", "p", "⬟"),
    }
)
_NAME = re.compile(r"[a-z]\w*")
_ARGUMENT = re.compile(r"\w+(?==)|'[^']*'|\"[^\"]*\"")  # names of arguments, and string values


def family_of(encoding: str) -> str:
    """Returns the family of a spec, which may have placeholders; `OTHER` if no family has it, such as "-" of a ResNet.

    A window or a view decides, then a scaling of frequencies, then the first encoding that knows positions; an encoding
    added to rotations, which many models have beside it, decides before these.
    """
    names = _NAME.findall(_ARGUMENT.sub("", encoding))
    families = [getattr(REGISTRY.get(name), "family", MAPS) for name in names]
    found = [family for family in families if family in FAMILIES]
    if WINDOWS in found:
        return WINDOWS
    if re.search(r"scaling=(?!None)", encoding) and ROTARY in found:
        return RESCALED
    last = (ROTARY, NONE)
    return min(found, key=lambda family: family in last and 1 + last.index(family), default=OTHER)
