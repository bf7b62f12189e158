"""Inkling's relative bias and Inkling 2's sinks beside whole attentions of transformers; make_inkling.py made the vectors."""

import functools

import jax
import numpy as np

import posjax as pj
from goldens.check import Check, load
from posjax.encoding import Sum

# As in make_inkling.py.
FULL, SLIDING = "rank=5, extent=6, n_floor=3, alpha=0.5", "rank=5, extent=4"


def group(prefix: str) -> dict[str, np.ndarray]:
    arrays = {
        name.removeprefix(f"{prefix}_"): x for name, x in load("inkling").items() if name.startswith(f"{prefix}_")
    }
    return {name: x.astype(np.float32) for name, x in arrays.items()}


def attention(prefix: str, spec: str, implementation: str, scale: float):
    f, encoding = group(prefix), pj.parse(spec)
    params = {name: f[name] for name in ("project", "profiles", "scale") if name in f}
    others = {"token_sink": {"kernel": f.get("sink")}, "window": ()}
    if isinstance(encoding, Sum):
        params = (params, *(others[part.spec_name] for part in encoding.parts[1:]))

    @jax.jit
    def run(params, x, q, k, v):
        x, hosted = pj.host(encoding, params, x, pj.sites(len(x)), key=None)
        return hosted.attend(q, k, v, x=x, causal=True, implementation=implementation, scale=scale)

    return run(params, *(f[name] for name in "xqkv")), f["out"]


def _checks():
    for how in ("dense", "blockwise"):
        for layer, (name, given, window) in enumerate([("full", FULL, ""), ("window", SLIDING, " + window(4)")]):
            run = functools.partial(attention, f"first_{layer}", f"inkling({given}){window}", how, 1 / 8)
            yield Check("inkling", "transformers inkling", f"{name} layer, {how}", run)
            spec = f"inkling({given}, clip=8) + token_sink(){window}"
            run = functools.partial(attention, f"second_{layer}", spec, how, 8**-0.5)
            for encoding in ("inkling", "token_sink"):
                yield Check(encoding, "transformers inkling2", f"{name} layer, {how}", run)


CHECKS: list[Check] = list(_checks())
