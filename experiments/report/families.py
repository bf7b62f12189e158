"""Families of encodings, and how each looks in every figure: one colour and one mark, told apart by red-green blind readers.

Colours were searched for on a grid to be far apart in CIELAB as they are and as protanopes and deuteranopes see them
(Machado, Oliveira and Fernandes 2009, https://doi.org/10.1109/TVCG.2009.113); the tests check it.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Family(NamedTuple):
    """Attributes:
    about: what its members have in common.
    marker: of matplotlib.
    glyph: the same mark as a letter, for text.
    members: names of the registry, with spaces between.
    """

    about: str
    color: str
    marker: str
    glyph: str
    members: str = ""


NONE, OTHER, RESCALED, WINDOWS = "none", "other", "rescaled rotary", "windows and views"
_WAVES = "sinusoidal scaled_sinusoidal fourier laplacian sincos2d_big_vision sincos2d_mae"
_TABLES = "learned learned_factorized abacus centrality tupe"
_ROTARY = "rope axial_rope cayley_string circulant_string comrope dinov3 fope harope hope lerope liere mhrope mrope"
_ROTARY += " p_rope pope rope_mixed rope_pp spherical_rope value_rotary xpos"
_DECAY = "alibi alibi_pi bam kerple lookhere sandwich"
_LEARNED = "t5 beit dape deberta dpb fire graphormer shaw swin swin_v2 transformer_xl"
_CONTEXTUAL = "cope cable carope data_dependent_alibi fox grape_a grape_ap grape_m path repo selective_rope"
_CONTEXTUAL += " stick_breaking tapa"
_WINDOWS = "window bigbird chunked dilated dual_chunk learned_sink longformer rerope self_extend sinks streaming"
_OTHER = "peg llama4_temperature log_n random_walk ssmax tree"
FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        NONE: Family("no position", "#8a8a8a", "o", "●", "none"),
        "waves": Family("fixed waves, added", "#b17a43", "s", "■", _WAVES),
        "tables": Family("learned tables, added", "#904300", "D", "◆", _TABLES),
        "rotary": Family("rotations of queries and keys", "#0016bc", "^", "▲", _ROTARY),
        RESCALED: Family("rotations with other frequencies", "#2cc8d3", "v", "▼"),
        "decay": Family("biases that fall with the distance", "#640016", "X", "✖", _DECAY),
        "learned bias": Family("learned biases or keys of offsets", "#d321ff", "P", "✚", _LEARNED),
        "contextual": Family("positions that depend on the content", "#2c6459", "<", "◀", _CONTEXTUAL),
        WINDOWS: Family("fewer keys, or nearer ones", "#deb100", ">", "▶", _WINDOWS),
        OTHER: Family("others", "#2c2c43", "p", "⬟", _OTHER),
    }
)
# What moves positions: the encoding behind >> tells the family.
MAPS = ("axis", "cape", "fit_grid", "interpolate", "pose", "position_coupling", "random_float", "randomized", "raster")
MAPS += ("reset", "shape", "unpad")
_OF_NAME = {name: family for family, about in FAMILIES.items() for name in about.members.split()}
_NAME = re.compile(r"[a-z]\w*")
_ARGUMENT = re.compile(r"\w+(?==)|'[^']*'|\"[^\"]*\"")  # names of arguments, and texts


def family_of(encoding: str) -> str:
    """The family of a canonical spec, which may have placeholders; `OTHER` where no family knows it, as "-" of a ResNet.

    A window or a view decides, then a scaling of frequencies, then the first encoding that knows positions; what is added
    to rotations, which many models have beside it, decides before these.
    """
    names = _NAME.findall(_ARGUMENT.sub("", encoding))
    found = [_OF_NAME[name] for name in names if name in _OF_NAME]
    if WINDOWS in found:
        return WINDOWS
    if re.search(r"scaling=(?!None)", encoding) and "rotary" in found:
        return RESCALED
    last = ("rotary", NONE)
    return min(found, key=lambda family: family in last and 1 + last.index(family), default=OTHER)
