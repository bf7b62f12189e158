"""The fields of a model as JSON."""

from typing import Any

import numpy as np

from posjax.spec import layers_text, parse_layers


def json_fields(model: Any) -> dict[str, Any]:
    """Returns the fields of a model and its block in terms of JSON; `from_config` of its class makes the same model."""
    fields = {name: value for name, value in model.fields.items() if name != "context"}
    for name in ("dtype", "attention_dtype", "param_dtype"):
        fields[name] = None if fields[name] is None else np.dtype(fields[name]).name
    latent = None if model.block.latent is None else str(model.block.latent)
    return fields | {"latent": latent, "encoding": layers_text(parse_layers(model.encoding))}
