"""No encoding at all."""

from dataclasses import dataclass

from posjax.encoding import Encoding
from posjax.spec import register


@register("none")
@dataclass(frozen=True)
class NoPE(Encoding):
    """No positional encoding (NoPE): a bidirectional model sees a bag of tokens, a causal one only counts.

    Haviv et al. (2022), arXiv 2203.16634; Kazemnejad et al. (2023), arXiv 2305.19466.
    """

    family = "none"
    formula = (r"\ell_{mn} = \frac{q_m \cdot k_n}{\sqrt D}",)
