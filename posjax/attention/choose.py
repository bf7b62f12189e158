"""The implementation of an attention: the choice of "auto", and the reasons against others."""

from typing import NamedTuple

import numpy as np

from posjax.attention import backends
from posjax.attention.backends import Asked
from posjax.attention.dense import Operands
from posjax.attention.devices import Tokens, automatic_devices, device_of
from posjax.encoding import Array, Encoding, Site

# Up to this many logits a head, one product is fastest. On CPUs tiles stay in the cache: a training step of a decoder on
# 256 tokens was measured at 0.66 of the dense one's time, that of a ViT on 65 tokens at 0.93. On an H100, at 4,096
# tokens, tiles took 0.55 (T5) and 0.79 (ALiBi) of the time of one product, in a twenty-fifth of its memory; below 4,096
# nothing was measured.
_DENSE_LOGITS = {"cpu": 64 * 64, "gpu": 2048 * 2048, "tpu": 1024 * 1024}


class Choice(NamedTuple):
    """An implementation of `attend`, why it was chosen, and why preferred ones were not."""

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
    softcap: float | None = None,
    implementation: str = "auto",
    platform: str | None = None,
    capability: str | None = None,
    devices: int | None = None,
    batch: int = 1,
) -> Choice:
    """The implementation that `attend` takes; arrays may be `jax.ShapeDtypeStruct`s.

    cuDNN, and windows in splash attention, need sites that are known at tracing time, as numpy arrays: traced sites may
    hold documents and padding.

    Args:
      q, k, v, q_site, k_site, causal, q_order, k_order, softcap: as in `attend`; orders of None follow the arrays.
      implementation: "auto", or the name of one.
      platform: "cpu", "gpu" or "tpu"; if None that of the devices in the type of q (its mesh), else jax's default backend.
      capability: compute capability of the GPU, as "9.0"; that of these devices if None.
      devices: how many share the queries of a sequence, where each computes its part by itself; None where the compiler
        splits the work among the devices of q.
      batch: how many such sequences a device computes at once: their logits take memory.

    Raises:
      ValueError: for an unknown implementation, or one that cannot compute this, with the reason.

    >>> import jax
    >>> import posjax as pj
    >>> for length in (64, 4096):
    ...     x = jax.ShapeDtypeStruct((length, 8, 64), "float32")
    ...     choose(pj.parse("alibi"), x, x, x, pj.sites(length), pj.sites(length), causal=True, platform="cpu")
    Choice(implementation='dense', reason='4096 logits a head are few')
    Choice(implementation='blockwise', reason='16777216 logits a head, and tiles are faster above 4096')
    """
    kind = device_of(q)
    platform = kind.platform if platform is None else platform
    capability = kind.capability if capability is None else capability
    orders = (None, None) if not causal else (_arange(q), _arange(k)) if q_order is None else (q_order, k_order)
    operands = Operands(None, q, k, None, None, v, q_site, k_site, *orders)
    split = automatic_devices(q) if devices is None else 1
    asked = Asked(encoding, operands, platform, capability, softcap, devices or 1, split, batch)
    if implementation != "auto":
        if reason := backends.backend(implementation).refusal(asked):
            raise ValueError(f'implementation={implementation!r} cannot compute this: {reason}; or take "auto"')
        return Choice(implementation, "asked for")
    passed = []
    for name in reversed(backends.names()):  # a user's own backend goes before the library's
        backend = backends.backend(name)
        preferred = backend.preferred(asked) if callable(backend.preferred) else backend.preferred
        if not preferred or backend.platform not in (None, platform):
            continue
        if not (reason := backend.refusal(asked)):
            return Choice(name, "; ".join([f"the fastest on {platform} that can", *passed]))
        passed.append(f"not {name}: {reason}")
    logits = q.shape[0] * k.shape[0]
    most = _DENSE_LOGITS.get(platform, 0)
    if logits <= most:
        return Choice("dense", "; ".join([f"{logits} logits a head are few", *passed]))
    why = "are faster" if platform == "cpu" else "need less memory"
    return Choice("blockwise", "; ".join([f"{logits} logits a head, and tiles {why} above {most}", *passed]))


def _arange(tokens: Tokens) -> np.ndarray:
    return np.arange(tokens.shape[0], dtype=np.int32)
