"""Pretrained language models in transformers' folders: config.json and safetensors, read and written without torch.

    model, params = load("Llama-3.2-1B", dtype=jnp.bfloat16)
    logits = model.apply(params, tokens, posjax.sites(T))
    save("mine", model, params)

A family is a `Family` (`family.py`): tables of its configuration and its tensors, for both reading and writing.
"""

from posjax.pretrained.language.families import FAMILIES
from posjax.pretrained.language.loading import load
from posjax.pretrained.language.saving import obstacles, save

__all__ = ["FAMILIES", "load", "obstacles", "save"]
