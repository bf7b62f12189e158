"""Flax Linen models that host any encoding in one line."""

from posjax.models.decoder import Decoder
from posjax.models.generate import generate
from posjax.models.vit import ViT

__all__ = ["Decoder", "ViT", "generate"]
