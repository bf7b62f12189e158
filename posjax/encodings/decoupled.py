"""Decoupled rotary embedding: an encoding that turns a part of each head, beside channels that carry content alone."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import jax.numpy as jnp

from posjax.encoding import Composition, Encoding, Needs, Placed, Sum

_REFUSED = {
    "value": "transforms values (`value`), which here are known only behind their sum",
    "output": "transforms sums of values (`output`), which here are still compressed",
    "read": "adds to what values give (`read`), which here is still compressed",
}


def decoupled(encoding: Encoding, channels: int) -> Encoding:
    """The encoding for heads whose first `channels` channels no position touches, as attention through a latent has them.

    DeepSeek-AI (2024), DeepSeek-V2, arXiv 2405.04434, section 2.1.3. Its parameters are the encoding's in a model
    whose head dim is the number of the other channels. Codes, biases, masks and sinks stay as they are. The members of a
    composition that transform queries and keys get the other channels alone, unless they need
    `WHOLE_HEAD`.

    Raises:
      ValueError: for an encoding that transforms values or outputs, or projects codes by the layer's own matrices; for
        views of pairs over an encoding that needs `WHOLE_HEAD`.
    """
    for hook, why in _REFUSED.items():
        if hook in encoding.hooks:
            raise ValueError(_refusal(encoding, why))
    if any(type(one).in_layer is not Encoding.in_layer for one in _innermost(encoding)):
        raise ValueError(
            _refusal(encoding, "projects codes by the layer's own matrices (`in_layer`), which here are two")
        )
    return _decoupled(encoding, channels)


def _innermost(encoding: Encoding) -> Iterator[Encoding]:
    """The encodings that are no compositions, also within those that compose in ways of their own."""
    if isinstance(encoding, Composition):
        for member in encoding.members:
            yield from _innermost(member)
    else:
        yield encoding


def _refusal(encoding: Encoding, why: str) -> str:
    return f"{encoding} {why}: attention through a latent cannot host it; leave `latent` or this encoding out"


def _decoupled(encoding: Encoding, channels: int) -> Encoding:
    if type(encoding) is Placed:
        return replace(encoding, encoding=_decoupled(encoding.encoding, channels))
    if type(encoding) is Sum:
        return Sum(tuple(_decoupled(part, channels) for part in encoding.parts))
    if encoding.hooks.isdisjoint({"rotate", "product"}):
        return encoding
    if Needs.WHOLE_HEAD not in encoding.needs:
        return _Behind(encoding, channels)
    if isinstance(encoding, Composition):
        raise ValueError(_refusal(encoding, "shows the parts of a head to an encoding that needs whole heads"))
    return encoding


@dataclass(frozen=True)
class _Behind(Composition):
    """An encoding that transforms and multiplies what stands behind the first `skip` channels of each head."""

    encoding: Encoding
    skip: int

    @property
    def members(self):
        return (self.encoding,)

    @property
    def dimensions(self):
        return self.encoding.dimensions

    def init(self, key, dims):
        return self.encoding.init(key, dims)

    def forward(self, name, *arguments, **named):
        return getattr(self.encoding, name)(*arguments, **named)

    def rotate(self, params, q, q_site, k, k_site):
        turned = self.encoding.rotate(params, q[..., self.skip :], q_site, k[..., self.skip :], k_site)
        return tuple(jnp.concatenate([x[..., : self.skip], y], axis=-1) for x, y in zip((q, k), turned, strict=True))

    def product(self, q, q_site, k, k_site):
        if "product" not in self.hooks:
            return super().product(q, q_site, k, k_site)
        content = super().product(q[..., : self.skip], q_site, k[..., : self.skip], k_site)
        return content + self.encoding.product(q[..., self.skip :], q_site, k[..., self.skip :], k_site)

    def bias(self, params, q, q_site, k, k_site):
        return self.encoding.bias(params, q[..., self.skip :], q_site, k[..., self.skip :], k_site)

    def resized(self, params, old_grid, new_grid, method="torch_bicubic"):
        encoding, params = self.encoding.resized(params, old_grid, new_grid, method)
        return replace(self, encoding=encoding), params

    def __str__(self):
        return str(self.encoding)
