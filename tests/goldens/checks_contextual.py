"""Content-dependent encodings beside whole attentions of transformers."""

import functools

import jax
import numpy as np

import posjax as pj
from goldens.check import Check, line, load
from posjax.encodings import deberta

FILE = load("contextual")
# As in make_contextual.py.
BUCKETS = [(8, 20), (16, 128), (32, 64), (256, 512), (128, 512), (64, 300), (6, 9), (4, 100)]
DEBERTA = [(8, 20, ("p2c", "c2p")), (-1, 6, ("c2p", "p2c")), (16, 40, ("c2p",)), (4, 5, ("p2c",))]
XLNET = [-1, -1, 4, 3]
IMPLEMENTATIONS = ["dense", "blockwise"]


def group(prefix: str) -> dict[str, np.ndarray]:
    arrays = {name.removeprefix(f"{prefix}_"): x for name, x in FILE.items() if name.startswith(f"{prefix}_")}
    return {name: x.astype(np.float32) if x.dtype == np.float16 else x for name, x in arrays.items()}


def attention(prefix, encoding, params_of, implementation):
    """(ours, theirs); where there are more keys than queries, the queries stand at the last of them."""
    f = group(prefix)
    site = line(np.arange(len(f["k"])))
    q_site = line(np.arange(len(f["k"]) - len(f["q"]), len(f["k"])))
    encoding = pj.parse(encoding)
    run = jax.jit(
        lambda params, q, k, v: pj.attend(encoding, params, q, k, v, q_site, site, implementation=implementation)
    )
    return run(params_of(f), f["q"], f["k"], f["v"]), f["out"]


def buckets(number, far):
    """Rows of all distances within the table, and of some beyond its ends, where the reference clamps."""
    encoding = deberta(number, far)
    offset = np.arange(-1100, 1101)
    theirs = np.clip(FILE[f"buckets_{number}_{far}"].astype(int) + number, 0, 2 * number - 1)
    return encoding.steps().listed()[np.clip(offset, -far, far) + far], theirs


def pos_rows(f):
    return {name: f[name] for name in ("pos_key", "pos_query") if name in f}


def transformer_xl(f):
    return {"u": f["u"], "v": f["v_bias"], "position": f["position"]}


def _checks():
    for number, far in BUCKETS:
        setting = f"buckets of {number} and {far}"
        yield Check("deberta", "transformers deberta_v2", setting, functools.partial(buckets, number, far), 0)
    for how in IMPLEMENTATIONS:
        attend = functools.partial(functools.partial, attention, implementation=how)
        for n, setting in enumerate(DEBERTA):
            run = attend(f"deberta_{n}", deberta(*setting), pos_rows)
            yield Check("deberta", "transformers deberta_v2", f"{setting}, whole attention, {how}", run)
        for n, clamp_len in enumerate(XLNET):
            run = attend(f"xlnet_{n}", f"transformer_xl(clamp_len={clamp_len})", transformer_xl)
            queries, keys = (len(FILE[f"xlnet_{n}_{what}"]) for what in "qk")
            setting = f"{queries} queries, {keys} keys, clamp_len {clamp_len}, {how}"
            yield Check("transformer_xl", "transformers xlnet", setting, run)
        run = attend("wav2vec2_relative", "transformer_xl()", transformer_xl)
        yield Check("transformer_xl", "transformers wav2vec2_bert", f"sines and cosines in turns, {how}", run)
        run = attend(
            "wav2vec2_relative_key",
            "shaw(max_relative_position=4, values=False)",
            lambda f: {"key": f["key"][None]},
        )
        yield Check("shaw", "transformers wav2vec2_bert", f"without values, {how}", run)


CHECKS: list[Check] = list(_checks())
