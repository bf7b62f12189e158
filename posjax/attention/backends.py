"""The implementations of `attend` by name: one table, to which users can add their own.

from posjax.attention import Backend, register

def run(encoding, operands, *, scale): ...
def refuse(asked): return None if asked.operands.q.shape[-1] <= 128 else "head dims up to 128 only"

register("mine", Backend(run, refuse, platform="gpu"))
attend(..., implementation="mine")
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from posjax.attention.blockwise import blockwise
from posjax.attention.dense import Operands, dense
from posjax.attention.library import cudnn, cudnn_refusal, splash, splash_refusal, tokamax, tokamax_refusal
from posjax.encoding import HOOKS, WITHIN_ATTENTION, Encoding, Needs, members
from posjax.spec import nearest

PLATFORMS = ["cpu", "gpu", "tpu"]
_HOPPER = "9.0"
_SHORT = 1024 * 1024  # logits a head, up to which the kernel for GPUs was not timed
_LARGE = 2**28  # logits that fill 1 GiB in float32
# Logits a head up to which dense attention takes fewer of a TPU's cycles than what splash needs beside its kernel, as the
# compiler estimates (0.29 and 0.66 million at 197 tokens, 1.2 and 1.3 at 401, 3.5 and 1.7 at 577); and the most of all heads.
_FEW, _HELD = 448 * 448, 2**26
_WIDTHS = (64, 128)  # the head dims of its checks


class Asked(NamedTuple):
    """A request for attention: its arguments, shapes and platform."""

    encoding: Encoding
    operands: Operands  # tracers or `jax.ShapeDtypeStruct`s; params, rotated_q and rotated_k may be None
    platform: str
    capability: str | None  # of the GPU, as "9.0"; None where there is none
    softcap: float | None = None  # see `attend`
    devices: int = 1  # how many devices share the queries of a sequence
    split: int = 1  # devices among which the compiler would have to split a kernel
    batch: int = 1  # how many such sequences a device computes at once


@dataclass(frozen=True)
class Backend:
    """A way of computing attention.

    Attributes:
      run: `run(encoding, operands, *, scale)` returns the output of attention over the `Operands`, [T, H, E] in q's dtype,
        with zeros for a query that sees no key. It must equal `dense`, gradients included.
      refuse: returns the reason why the backend cannot compute an `Asked`, or None; by default it computes everything.
      hooks: the hooks that it computes, of those that act within attention; by default all. It refuses encodings with others.
      platform: "cpu", "gpu" or "tpu" if it runs there only; None for all.
      preferred: whether "auto" prefers it to dense and blockwise wherever it can compute; or a function of an `Asked` that
        says so.
      softcaps: whether `run` takes `softcap=`; if not, a softcap is refused.
      parts: whether `run` takes `part=`, the `Part` of a device in a mesh: so a kernel must, whose heads XLA cannot split.
      elsewhere: the end of the refusal on other platforms: what to do instead.

    Raises:
      ValueError: for an unknown platform.
    """

    run: Callable[..., Any]
    refuse: Callable[[Asked], str | None] = lambda asked: None
    platform: str | None = None
    preferred: bool | Callable[[Asked], bool] = False
    softcaps: bool = False
    parts: bool = False
    hooks: frozenset[str] = WITHIN_ATTENTION
    elsewhere: str = ""

    def __post_init__(self):
        if self.platform is not None and self.platform not in PLATFORMS:
            raise ValueError(f"no platform is named {self.platform!r}; {nearest(str(self.platform), PLATFORMS)}")

    def refusal(self, asked: Asked) -> str | None:
        """Why it cannot compute this; None if it can."""
        if self.platform not in (None, asked.platform):
            return f"it runs on a {self.platform.upper()}, this is for a {asked.platform.upper()}{self.elsewhere}"
        if asked.softcap is not None and not self.softcaps:
            return "it knows no softcap; dense, blockwise and tokamax do"
        for member in members(asked.encoding):
            if unknown := sorted((member.hooks & WITHIN_ATTENTION) - self.hooks):
                return f"{member} {HOOKS[unknown[0]].does} (`{unknown[0]}`), which it does not compute"
        return self.refuse(asked)


def register(name: str, backend: Backend) -> None:
    """Makes a backend known to `attend` and `choose` as implementation=name.

    Raises:
      ValueError: for a name that is taken, or anything but a Backend.
    """
    if not isinstance(backend, Backend):
        raise ValueError(f"register({name!r}, ...) takes a Backend, got {backend!r}: Backend(run, refuse)")
    if name in {"auto", *BACKENDS}:
        raise ValueError(f"an implementation named {name!r} is registered already; choose another name")
    BACKENDS[name] = backend


def names() -> list[str]:
    """The implementations, in the order in which they were registered."""
    return list(BACKENDS)


def backend(name: str) -> Backend:
    """The backend of a name.

    Raises:
      ValueError: for an unknown name; the message names the nearest known one.
    """
    if name not in BACKENDS:
        raise ValueError(f"no implementation is named {name!r}; {nearest(str(name), ['auto', *BACKENDS])}")
    return BACKENDS[name]


def _run_dense(encoding: Encoding, x: Operands, **options):
    return dense(encoding, x, **options)[0]


def _kernel(machine: str = "gpu") -> Any:
    """The kernel for GPUs, or for TPUs, imported when it is asked for; gpu/README.md and tpu/README.md tell their state."""
    return importlib.import_module(f"posjax.attention.{machine}.kernel")


def _split_refusal(asked: Asked) -> str | None:
    if asked.split > 1:
        return (
            f"the compiler cannot split the kernel among the {asked.split} devices of the mesh: give a ContextParallel"
        )
    return None


def _pallas_refuses(asked: Asked) -> str | None:
    if asked.capability != _HOPPER:
        return f"it is written for GPUs of compute capability {_HOPPER}, this one has {asked.capability or 'none'}"
    return _split_refusal(asked) or _kernel().refusal(asked.encoding, asked.operands)


def _pallas_leads(asked: Asked) -> bool:
    """Whether the kernel is preferred: for long inputs under rotary encodings and ALiBi, as it was seen fastest on an H100
    (results/accelerator), and under all that it computes where the logits of the batch fill more than 1 GiB."""
    (queries, heads, width), keys = asked.operands.q.shape, asked.operands.k.shape[0]
    logits = queries * keys
    if Needs.HEAD_DIM in asked.encoding.needs or not width == asked.operands.v.shape[2] in _WIDTHS:
        return False
    return logits * heads * asked.batch > _LARGE or (logits > _SHORT and all(map(_was_timed, members(asked.encoding))))


def _many(asked: Asked) -> bool:
    """Whether a kernel for TPUs is preferred to dense attention, which is cheaper for few tokens."""
    (queries, heads, _), keys = asked.operands.q.shape, asked.operands.k.shape[0]
    return queries * keys > _FEW or queries * keys * heads * asked.batch > _HELD


def _was_timed(member: Encoding) -> bool:
    is_alibi = member.spec_name == "alibi" and getattr(member, "direction", "split") != "split"
    return is_alibi or not member.hooks & _IN_KERNEL


_IN_KERNEL, _MASKS, _IN_SPLASH = (frozenset(hooks) for hooks in ({"bias", "mask"}, {"mask"}, {"bias", "mask", "sink"}))
BACKENDS = {
    "dense": Backend(_run_dense, softcaps=True),
    "blockwise": Backend(blockwise, softcaps=True),
    "pallas": Backend(
        lambda *given, **options: _kernel().pallas(*given, **options),
        _pallas_refuses,
        "gpu",
        preferred=_pallas_leads,
        parts=True,
        hooks=_IN_KERNEL,
        elsewhere='; "pallas_interpret" runs it anywhere, slowly',
    ),
    "pallas_interpret": Backend(
        lambda *given, **options: _kernel().pallas(*given, interpret=True, **options),
        lambda asked: _kernel().refusal(asked.encoding, asked.operands, interpret=True),
        parts=True,
        hooks=_IN_KERNEL,
    ),
    "cudnn": Backend(
        cudnn,
        lambda asked: cudnn_refusal(asked.encoding, asked.operands, asked.capability, asked.devices),
        "gpu",
        preferred=True,
        parts=True,
        hooks=_MASKS,
    ),
    # Behind splash attention in "auto", which takes the last one that can.
    "pallas_tpu": Backend(
        lambda *given, **options: _kernel("tpu").pallas_tpu(*given, **options),
        lambda asked: (
            _split_refusal(asked) or _kernel("tpu").refusal(asked.encoding, asked.operands, devices=asked.devices)
        ),
        "tpu",
        preferred=_many,
        parts=True,
        hooks=_IN_SPLASH,
    ),
    "splash": Backend(
        splash,
        lambda asked: _split_refusal(asked) or splash_refusal(asked.encoding, asked.operands),
        "tpu",
        preferred=_many,
        parts=True,
        hooks=_IN_SPLASH,
    ),
    # Never chosen by "auto": it has run on CPUs only.
    "tokamax": Backend(tokamax, lambda asked: tokamax_refusal(), softcaps=True, hooks=_MASKS),
}
