"""Which implementation computes an attention: what "auto" stands for, and why another one cannot."""

from typing import NamedTuple

import jax
import numpy as np

from posjax.attention import backends
from posjax.attention.backends import Asked, Tokens
from posjax.attention.dense import Operands
from posjax.encoding import Array, Encoding, Site

# Up to so many logits a head one product is fastest. On CPUs tiles stay in the cache: a training step on 512 tokens was
# measured at half the time of the dense one's, on 256 at 0.7, but there a batch has more to give to many cores.
_DENSE_LOGITS = {"cpu": 256 * 256, "gpu": 1024 * 1024, "tpu": 1024 * 1024}


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
    platform = _platform() if platform is None else platform
    capability = _capability() if capability is None else capability
    orders = (None, None) if not causal else (_arange(q), _arange(k)) if q_order is None else (q_order, k_order)
    operands = Operands(None, q, k, None, None, v, q_site, k_site, *orders)
    asked = Asked(encoding, operands, platform, capability)
    if implementation != "auto":
        if reason := backends.backend(implementation).refusal(asked):
            raise ValueError(f'implementation={implementation!r} cannot compute this: {reason}; or take "auto"')
        return Choice(implementation, "asked for")
    passed = []
    for name in reversed(backends.names()):  # a user's own goes before those of the library
        backend = backends.backend(name)
        if not backend.preferred or backend.platform not in (None, platform):
            continue
        if not (reason := backend.refusal(asked)):
            return Choice(name, "; ".join([f"the fastest on {platform} that can", *passed]))
        passed.append(f"not {name}: {reason}")
    logits = q.shape[0] * k.shape[0]
    if logits <= _DENSE_LOGITS.get(platform, 0):
        return Choice("dense", "; ".join([f"{logits} logits a head are few", *passed]))
    return Choice("blockwise", "; ".join([f"{logits} logits a head are too many to hold", *passed]))


def _arange(tokens: Tokens) -> np.ndarray:
    return np.arange(tokens.shape[0], dtype=np.int32)


def _platform() -> str:
    backend = jax.default_backend()
    return "gpu" if backend in ("cuda", "rocm") else backend


def _capability() -> str | None:
    """Compute capability of the first GPU here; None where there is none."""
    devices = jax.devices() if _platform() == "gpu" else []
    return getattr(devices[0], "compute_capability", None) if devices else None
