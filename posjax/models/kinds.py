"""Models by name, as `config.model.kind` has them. Another model is another class and a line here."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn

from posjax.models.decoder import Decoder
from posjax.models.encoder import Encoder
from posjax.models.resnet import ResNet
from posjax.models.vit import ViT
from posjax.spec import nearest

# A kind's `from_config(fields, **given)` makes the model of a config's fields and of what its data say: num_classes or
# vocab_size and length; context. `reads` is "images", "text" or, of models that see later tokens too and so cannot be trained
# to foretell them, "masked text". Models of images have `sized`, `sites` and `one_size`.
KINDS: dict[str, type[nn.Module]] = {"decoder": Decoder, "encoder": Encoder, "resnet": ResNet, "vit": ViT}
_DEFAULT = {"images": "vit", "text": "decoder", "masked text": "encoder"}


def make_model(fields: Mapping[str, Any], reads: str, **given: Any) -> nn.Module:
    """The model that the fields of `config.model` describe; without "kind" the usual one for its input.

    Raises:
      ValueError: for an unknown kind, or one that reads something else.
    """
    fields = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    kind = fields.pop("kind", _DEFAULT[reads])
    known = [name for name, model in KINDS.items() if model.reads == reads]
    if kind not in known:
        raise ValueError(f"no model of {reads} is named {kind!r}; {nearest(kind, known)}")
    return KINDS[kind].from_config(fields, **given)
