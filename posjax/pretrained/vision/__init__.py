"""Pretrained ViTs without TensorFlow or torch: Google's .npz, the safetensors of timm and transformers, and our own.

    model, params = load("ViT-B_16.npz", image_size=384)
    save("mine.safetensors", model, params)

A family of files is an `Origin`: a way to recognise its names, a function from shapes to sizes, and a map as data
(`posjax.pretrained.entries`) for both reading and writing.
"""

from posjax.pretrained.vision.loading import Info, info, load
from posjax.pretrained.vision.saving import save

__all__ = ["Info", "info", "load", "save"]
