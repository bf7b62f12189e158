"""Every encoding, by family; importing this package registers them. Lower-case names are the spec names."""

from dataclasses import dataclass

from posjax.encoding import Encoding
from posjax.encodings.additive import Learned as learned
from posjax.encodings.additive import Sinusoidal as sinusoidal
from posjax.encodings.bias import T5 as t5
from posjax.encodings.bias import Alibi as alibi
from posjax.encodings.contextual import CoPE as cope
from posjax.encodings.contextual import Shaw as shaw
from posjax.encodings.contextual import TransformerXL as transformer_xl
from posjax.encodings.disentangled import Deberta as deberta
from posjax.encodings.disentangled import Tupe as tupe
from posjax.encodings.placement import Interpolate as interpolate
from posjax.encodings.placement import Raster as raster
from posjax.encodings.rotary import Rope as rope
from posjax.spec import register


@register("none")
@dataclass(frozen=True)
class none(Encoding):
    """No positional encoding (NoPE): a bidirectional model sees a bag of tokens, a causal one only counts.

    Haviv et al. (2022), arXiv 2203.16634; Kazemnejad et al. (2023), arXiv 2305.19466.
    """


__all__ = [
    "alibi",
    "cope",
    "deberta",
    "interpolate",
    "learned",
    "none",
    "raster",
    "rope",
    "shaw",
    "sinusoidal",
    "t5",
    "transformer_xl",
    "tupe",
]
