"""Pretrained models without TensorFlow or torch: vision transformers (`vision`) and language models (`language`).

    model, params = load("ViT-B_16.npz", image_size=384)
    model, params = load("Llama-3.2-1B", dtype=jnp.bfloat16)
    save("mine", model, params)

Both packages read files by maps as data (`entries.py`); the inverse of a map writes files.
"""

from posjax.pretrained.choosing import load as load
from posjax.pretrained.choosing import save as save
from posjax.pretrained.vision import Info as Info
from posjax.pretrained.vision import info as info
