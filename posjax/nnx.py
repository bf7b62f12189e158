"""The encodings and models of posjax as Flax NNX modules: the same functions, with each parameter an `nnx.Param`.

For example:

    positions = Positions("learned + t5", Dims(width=512, num_heads=8, head_dim=64, length=1024), rngs=nnx.Rngs(0))
    x, hosted = positions.host(x, posjax.sites(1024), key=None)                # before the first layer
    x = x + self_attention(layer.attention, hosted, layer.norm(x), causal=True)  # an nnx.MultiHeadAttention hosts it

    model = Model.init(posjax.models.Decoder(vocab_size=256), tokens, site, rngs=nnx.Rngs(0))
    logits = model(tokens, site)
"""

import copy
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
from flax import nnx
from jaxtyping import Float

from posjax.encoding import Dims, Encoding, Params, Site
from posjax.hosting import Hosted, host
from posjax.spec import parse


class Positions(nnx.Module):
    """An encoding and its parameters in an NNX model: `params` is the tree of `encoding.init` with an `nnx.Param` a leaf.

    Args:
      encoding: a value, or its text.
      dims: the sizes of the model.
      rngs: draws the parameters from its stream "params".

    >>> import jax.numpy as jnp, posjax as pj
    >>> positions = Positions("learned + t5", Dims(width=16, num_heads=2, head_dim=8, length=32), rngs=nnx.Rngs(0))
    >>> x, hosted = positions.host(jnp.ones((5, 16)), pj.sites(5), key=None)
    >>> x.shape, str(hosted.encoding)
    ((5, 16), 'learned() + t5()')
    """

    def __init__(self, encoding: Encoding | str, dims: Dims, *, rngs: nnx.Rngs):
        self.encoding = parse(encoding) if isinstance(encoding, str) else encoding
        self.params = nnx.data(as_params(self.encoding.init(rngs.params(), dims)))

    def host(
        self, x: Float[jax.Array, "*B T M"], site: Site, *, key: jax.Array | None
    ) -> tuple[Float[jax.Array, "*B T M"], Hosted]:
        """`posjax.host` with these parameters."""
        return host(self.encoding, nnx.as_pure(self.params), x, site, key=key)


def self_attention(
    module: nnx.MultiHeadAttention,
    hosted: Hosted,
    x: Float[jax.Array, "*B T M"],
    *,
    causal: bool = False,
    key_site: Site | None = None,
    **options: Any,
) -> Float[jax.Array, "*B T N"]:
    """`module(x)`, which attends by the hosted encoding in place of its own `attention_fn`.

    Args:
      module: its projections, norms and cache are used as they are.
      x: what the module and the encoding read.
      causal, key_site: of `Hosted.attention_fn`. In decoding, key_site has the sites of all slots of the module's cache.
      options: of the module's call, as decode=True or sow_weights=True.

    Raises:
      ValueError: as `Hosted.attention_fn`.

    >>> import jax.numpy as jnp, posjax as pj
    >>> module = nnx.MultiHeadAttention(num_heads=2, in_features=16, decode=False, rngs=nnx.Rngs(0))
    >>> hosted = Hosted(parse("rope"), (), pj.sites(5))
    >>> self_attention(module, hosted, jnp.ones((5, 16)), causal=True).shape
    (5, 16)
    """
    # A copy that shares the module's variables: the function closes over arrays of this call and must not outlive it, and
    # nnx lets nobody set attributes of a module from within another trace.
    lent = copy.copy(module)
    vars(lent)["attention_fn"] = hosted.attention_fn(x, causal=causal, key_site=key_site)
    return lent(x, **options)


class Model(nnx.Module):
    """A model of `posjax.models` as an NNX module.

        model = Model.init(ViT(num_classes=10, image_size=(28, 28)), images, site, rngs=nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
        logits, sown = nnx.capture(model, nnx.Intermediate)(images, site, sow=True)

    `params` is the Linen model's tree with an `nnx.Param` a leaf, so states and checkpoints have Linen's names
    behind "params". A function of posjax that asks for a model and its variables takes `model.module` and `model.variables`:
    `generate(model.module, model.variables, tokens, site, steps=8)`.

    Args:
      module: the Linen model; it is static under `nnx.jit`.
      variables: {"params": tree}, as `module.init` returns it; `Model.init` draws them.

    >>> import jax.numpy as jnp, posjax as pj
    >>> from posjax.models import BlockConfig, Decoder
    >>> tokens, site = jnp.zeros((3, 5), jnp.int32), pj.sites(5)
    >>> decoder = Decoder(vocab_size=256, encoding="alibi", block=BlockConfig(width=16, num_heads=2), depth=1)
    >>> model = Model.init(decoder, tokens, site, rngs=nnx.Rngs(0))
    >>> nnx.jit(model)(tokens, site).shape
    (3, 5, 256)
    """

    def __init__(self, module: nn.Module, variables: Mapping[str, Params]):
        self.module = module
        self.params = nnx.data(as_params(variables["params"]))

    @classmethod
    def init(cls, module: nn.Module, *example: Any, rngs: nnx.Rngs) -> "Model":
        """The model with new parameters.

        Args:
          example: arguments of the module's call; only their shapes matter.
          rngs: draws the parameters from its stream "params".
        """
        return cls(module, jax.jit(module.init)(rngs.params(), *example))

    @property
    def variables(self) -> dict[str, Params]:
        """The arrays, as Linen's `apply` takes them."""
        return {"params": nnx.as_pure(self.params)}

    def __call__(self, *arguments: Any, rngs: nnx.Rngs | None = None, sow: bool = False, **options: Any) -> Any:
        """Returns the result of `module.apply`.

        Args:
          rngs: in training (train=True), draws from its streams "place" and "dropout".
          sow: sows the model's intermediates for `nnx.capture`; attention is dense then.
          options: of the model's call; method="prefill" calls that method.
        """
        drawn = {} if rngs is None else {name: rngs[name]() for name in ("place", "dropout")}
        if not sow:
            return self.module.apply(self.variables, *arguments, rngs=drawn, **options)
        out, state = self.module.apply(self.variables, *arguments, rngs=drawn, mutable=["intermediates"], **options)
        for name, tree in state["intermediates"].items():
            self.sow(nnx.Intermediate, name, tree, init_fn=lambda: None, reduce_fn=lambda _, new: new)
        return out


def as_params(tree: Params) -> Params:
    """The tree with an `nnx.Param` in place of each array; `nnx.as_pure` is the way back."""
    return jax.tree.map(nnx.Param, tree)
