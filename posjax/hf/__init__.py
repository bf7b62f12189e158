"""Encodings as transformers spells them, read and written."""

from posjax.hf.configurations import LayersDiffer, from_hf, from_hf_layers
from posjax.hf.rotary import to_hf

__all__ = ["LayersDiffer", "from_hf", "from_hf_layers", "to_hf"]
