"""Flax Linen models that host any encoding in one line."""

import posjax.models.serialization  # noqa: F401  -- lets Flax write the parameters of tables
from posjax.models.block import BlockConfig
from posjax.models.decoder import Decoder
from posjax.models.encoder import Encoder
from posjax.models.encoder_decoder import EncoderDecoder
from posjax.models.generate import generate
from posjax.models.latent import Latent
from posjax.models.resizing import resize_params
from posjax.models.resnet import ResNet
from posjax.models.sizes import vit_sizes
from posjax.models.transformer import Transformer
from posjax.models.vit import ViT

__all__ = [
    "BlockConfig",
    "Decoder",
    "Encoder",
    "EncoderDecoder",
    "Latent",
    "ResNet",
    "Transformer",
    "ViT",
    "generate",
    "resize_params",
    "vit_sizes",
]
