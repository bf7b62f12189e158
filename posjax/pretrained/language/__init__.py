"""Pretrained language models in transformers' folders: config.json and safetensors, without torch.

All families are read; Llama and GPT-2 are written.

    model, params = load("Llama-3.2-1B", dtype=jnp.bfloat16)
    logits = model.apply(params, tokens, posjax.sites(T))
    save("mine", model, params)

A family is a `Family` (`family.py`): tables of its configuration and its tensors.
"""

from posjax.pretrained.language.families import FAMILIES
from posjax.pretrained.language.loading import load
from posjax.pretrained.language.saving import save

__all__ = ["FAMILIES", "load", "save"]
