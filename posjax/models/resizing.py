"""A trained ViT for images of another size: the parameters of its encodings are resized, all others stay."""

from collections.abc import Mapping
from typing import Any

from posjax.encodings.resize import Resampling, resampling
from posjax.models.transformer import layer_hosts
from posjax.models.vit import ViT, check_size
from posjax.spec import layers_text, parse_layers


def resize_params(
    model: ViT, params: Mapping[str, Any], image_size: tuple[int, int], method: str | Resampling = "torch_bicubic"
) -> tuple[ViT, dict[str, Any]]:
    """Returns a ViT and its parameters for images of another (height, width), by `Encoding.resized` of each encoding.

    Args:
      params: {"params": tree} as `model.init` makes it, or the tree alone; the result has the same form. May be traced and
        differentiated.
      method: a name in `posjax.encodings.resize.METHODS`, or a `Resampling`.

    Returns:
      The model with the new `image_size`, and the new `encoding` where that names sizes (raster, swin_v2); its parameters.

    Raises:
      ValueError: for an unknown method, an image size that is no pair or that the patches do not tile, or parameters of
        another model or image size.

    >>> import jax
    >>> from posjax.models import BlockConfig
    >>> model = ViT(num_classes=10, image_size=(8, 8), block=BlockConfig(width=16, num_heads=2), depth=1)
    >>> params = jax.jit(model.init)(jax.random.key(0), *model.example(channels=1))
    >>> model, resized = resize_params(model, params, (16, 12))
    >>> [each["params"]["trunk"]["encoding"].rows.shape for each in (params, resized)]
    [(5, 16), (13, 16)]
    """
    check_size("image_size", image_size)
    if "params" in params:
        model, tree = resize_params(model, params["params"], image_size, method)
        return model, {**params, "params": tree}
    method, pattern, trunk = resampling(method), parse_layers(model.encoding), dict(params["trunk"])
    old, new = model.patches(*model.image_size), model.patches(*image_size)
    resized, done = list(pattern), {}
    for layer, (name, encoding) in enumerate(layer_hosts(pattern, model.depth, model.injection)):
        if name not in trunk:
            raise ValueError(f"these are no parameters of the model: trunk/{name}, of {encoding}, is not among them")
        if name not in done:  # layers may share an encoding
            done[name] = encoding.resized(trunk[name], old, new, method)
        resized[layer % len(pattern)] = done[name][0]
    trunk |= {name: tree for name, (_, tree) in done.items()}
    encoding = model.encoding
    if tuple(resized) != pattern:
        encoding = layers_text(resized) if isinstance(encoding, str) else tuple(resized)
    return model.clone(encoding=encoding, image_size=tuple(image_size)), {**params, "trunk": trunk}
