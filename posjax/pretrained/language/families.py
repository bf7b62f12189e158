"""The table of families, by the model_type of a configuration."""

from collections.abc import Mapping
from typing import Any

from posjax.pretrained.language import deepseek, encoders, gpt, llama, t5
from posjax.pretrained.language.family import Family
from posjax.spec import nearest

_ALL = (*llama.FAMILIES, *gpt.FAMILIES, *deepseek.FAMILIES, *encoders.FAMILIES, *t5.FAMILIES)
FAMILIES: dict[str, Family] = {family.model_type: family for family in _ALL}

# Reasons against models whose names a user may try.
_REFUSED = {
    "deepseek_v2": "its layers of experts are not computed here",
    "gemma4_text": "its global layers have heads of another size, and layers share keys and values",
}


def find_family(config: Mapping[str, Any]) -> Family:
    """Returns the family of a configuration.

    Raises:
      ValueError: the model_type is unknown or not computed here, or the configuration combines several models.
    """
    model_type = config.get("model_type")
    if isinstance(model_type, str) and model_type in FAMILIES:
        return FAMILIES[model_type]
    if reason := _REFUSED.get(str(model_type)):
        raise ValueError(f"a {model_type!r} is not read: {reason}")
    if parts := sorted(key for key, value in config.items() if isinstance(value, Mapping) and "model_type" in value):
        raise ValueError(f"{model_type!r} is made of {', '.join(parts)}: save the one of text in its own folder")
    raise ValueError(f"no model_type {model_type!r} of text is known; {nearest(str(model_type), sorted(FAMILIES))}")
