"""Encodings as transformers spells them, read and written."""

from posjax.hf.configurations import LayersDiffer as LayersDiffer
from posjax.hf.configurations import from_hf as from_hf
from posjax.hf.configurations import from_hf_layers as from_hf_layers
from posjax.hf.rotary import to_hf as to_hf
