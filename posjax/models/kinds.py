"""Models by their names in `config.model.kind`. A new model is a class and a line here."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn

from posjax.models.decoder import Decoder
from posjax.models.encoder import Encoder
from posjax.models.resnet import ResNet
from posjax.models.vit import ViT
from posjax.spec import nearest

# `from_config(fields, **given)` makes a model from the fields of a config and from its data: num_classes, or vocab_size and
# length; context. `reads` is "images", "text", or "masked text" for models that see later tokens, which cannot be trained to
# predict them. Models of images have `sized`, `sites` and `one_size`.
KINDS: dict[str, type[nn.Module]] = {"decoder": Decoder, "encoder": Encoder, "resnet": ResNet, "vit": ViT}
_DEFAULT = {"images": "vit", "text": "decoder", "masked text": "encoder"}


def make_model(fields: Mapping[str, Any], reads: str, **given: Any) -> nn.Module:
    """Returns the model of the fields of `config.model`.

    Args:
      fields: without "kind", the usual model for `reads`.
      reads: "images", "text" or "masked text".
      given: further fields, from the data.

    Raises:
      ValueError: for an unknown kind, or one for other data.
    """
    fields = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    kind = fields.pop("kind", _DEFAULT[reads])
    known = [name for name, model in KINDS.items() if model.reads == reads]
    if kind not in known:
        raise ValueError(f"no model of {reads} is named {kind!r}; {nearest(kind, known)}")
    return KINDS[kind].from_config(fields, **given)
