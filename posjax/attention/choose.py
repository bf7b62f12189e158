"""Which implementation computes an attention: what "auto" stands for, and why another one cannot."""

from typing import NamedTuple

import jax
import numpy as np

from posjax.attention.library import cudnn_refusal, splash_refusal
from posjax.attention.pallas_gpu import refusal
from posjax.encoding import Array, Encoding, Site
from posjax.spec import nearest

Tokens = Array | jax.ShapeDtypeStruct
IMPLEMENTATIONS = ["dense", "blockwise", "pallas", "pallas_interpret", "cudnn", "splash"]
# Up to so many logits a head one product is fastest. On CPUs tiles stay in the cache: a training step on 512 tokens was
# measured at half the time of the dense one's, on 256 at 0.7, but there a batch has more to give to many cores.
_DENSE_LOGITS = {"cpu": 256 * 256, "gpu": 1024 * 1024, "tpu": 1024 * 1024}
# Before blockwise, the fastest first. "pallas" is for those who ask for it: it has not been run on a GPU yet.
_PREFERRED = {"gpu": ["cudnn"], "tpu": ["splash"]}
_PLATFORM = {"cudnn": "gpu", "pallas": "gpu", "splash": "tpu"}
_AMPERE, _HOPPER = 8.0, "9.0"


class Choice(NamedTuple):
    """An implementation of `attend`, and why it and none that is preferred to it."""

    implementation: str
    reason: str


def choose(
    encoding: Encoding,
    q: Tokens,
    k: Tokens,
    v: Tokens,
    q_site: Site,
    k_site: Site,
    *,
    causal: bool = False,
    q_order: Array | None = None,
    k_order: Array | None = None,
    implementation: str = "auto",
    platform: str | None = None,
    capability: str | None = None,
) -> Choice:
    """What `attend` computes with; arrays may be `jax.ShapeDtypeStruct`s.

    cuDNN, and windows of splash attention, need to know the sites when a program is traced, as numpy arrays: traced sites may
    hold documents and padding.

    Args:
      q, k, v, q_site, k_site, causal, q_order, k_order: as in `attend`; orders of None are those of the arrays.
      implementation: "auto", or the one that is wanted.
      platform: "cpu", "gpu" or "tpu"; jax's default backend if None.
      capability: compute capability of the GPU, as "9.0"; that of the first one here if None.

    Raises:
      ValueError: for an unknown implementation, or one that cannot compute this, with the reason.
    """
    names = ["auto", *IMPLEMENTATIONS]
    if implementation not in names:
        raise ValueError(f"no implementation is named {implementation!r}; {nearest(implementation, names)}")
    platform = _platform() if platform is None else platform
    orders = (None, None) if not causal else (_arange(q), _arange(k)) if q_order is None else (q_order, k_order)

    def refused(name: str) -> str | None:
        return _refusal(name, (encoding, q, k, v, q_site, k_site), orders, platform, capability)

    if implementation != "auto":
        if reason := refused(implementation):
            raise ValueError(f'implementation={implementation!r} cannot compute this: {reason}; or take "auto"')
        return Choice(implementation, "asked for")
    passed = []
    for name in _PREFERRED.get(platform, []):
        if not (reason := refused(name)):
            return Choice(name, "; ".join([f"the fastest on {platform} that can", *passed]))
        passed.append(f"not {name}: {reason}")
    logits = q.shape[0] * k.shape[0]
    if logits <= _DENSE_LOGITS.get(platform, 0):
        return Choice("dense", "; ".join([f"{logits} logits a head are few", *passed]))
    return Choice("blockwise", "; ".join([f"{logits} logits a head are too many to hold", *passed]))


def _refusal(name: str, operands: tuple, orders: tuple, platform: str, capability: str | None) -> str | None:
    if name in _PLATFORM and _PLATFORM[name] != platform:
        other = '; "pallas_interpret" runs it anywhere, slowly' if name == "pallas" else ""
        return f"it runs on a {_PLATFORM[name].upper()}, this is for a {platform.upper()}{other}"
    if name == "cudnn":
        capability = _capability() if capability is None else capability
        if capability and float(capability) < _AMPERE:
            return f"cuDNN's flash attention needs compute capability {_AMPERE}, this GPU has {capability}"
        return cudnn_refusal(*operands, *orders)
    if name == "splash":
        return splash_refusal(*operands, *orders)
    if name == "pallas":
        capability = _capability() if capability is None else capability
        if capability != _HOPPER:
            return f"it is written for GPUs of compute capability {_HOPPER}, this one has {capability or 'none'}"
        return refusal(*operands)
    return refusal(*operands, interpret=True) if name == "pallas_interpret" else None


def _arange(tokens: Tokens) -> np.ndarray:
    return np.arange(tokens.shape[0], dtype=np.int32)


def _platform() -> str:
    backend = jax.default_backend()
    return "gpu" if backend in ("cuda", "rocm") else backend


def _capability() -> str | None:
    """Compute capability of the first GPU here; None where there is none."""
    devices = jax.devices() if _platform() == "gpu" else []
    return getattr(devices[0], "compute_capability", None) if devices else None
