"""Logit biases beside whole attentions and bias tables of transformers and timm, and beside authors' own code.

make_bias.py and make_bias_authors.py made the vectors.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import posjax as pj
from goldens.check import Check, line, load
from posjax.encodings.bias_grid import OffsetTable
from posjax.encodings.bias_network import LogCpb
from posjax.encodings.pairs import HIDDEN

ALIBI, T5, FILE, AUTHORS = load("alibi"), load("t5"), load("bias"), load("bias_authors")
WINDOWS, PRETRAINED = (tuple(tuple(pair) for pair in FILE[name].tolist()) for name in ("windows", "pretrained"))


def group(prefix, file=FILE):
    found = {name.removeprefix(f"{prefix}_"): x for name, x in file.items() if name.startswith(f"{prefix}_")}
    return {name: x.astype(np.float32) if x.dtype == np.float16 else x for name, x in found.items()}


def attention(spec, params, f, site, **options):
    run = jax.jit(lambda params, *qkv: pj.attend(pj.parse(spec), params, *qkv, site, site, **options))
    return run(params, f["q"], f["k"], f["v"]), f["out"]


def bias(spec, params, site, num_heads):
    q = jnp.zeros((len(site.segment), num_heads, 2))
    return jax.jit(lambda params, q: pj.parse(spec).bias(params, q, site, q, site))(params, q)


def alibi(source, num_heads):
    """Theirs is a function of the key alone, which softmax cannot tell from ours under a causal mask."""
    theirs = ALIBI[f"{source}_{num_heads}"]
    ours = bias("alibi()", (), pj.sites(theirs.shape[1]), num_heads)
    lower = np.tril(np.ones(ours.shape[1:], bool))
    return np.where(lower, ours, 0), np.where(lower, theirs[:, None, :] - theirs[:, :, None], 0)


def alibi_attention(source, num_heads, implementation):
    f = group(f"{source}_attention_{num_heads}", ALIBI)
    return attention("alibi()", (), f, pj.sites(len(f["q"])), causal=True, implementation=implementation)


def t5_bucket(number):
    buckets, distance, bidirectional = T5["settings"][number].tolist()
    encoding = pj.encodings.t5(buckets, distance, bool(bidirectional))
    q, table = np.zeros((1, 1, 2), np.float32), np.arange(buckets, dtype=np.float32)[:, None]
    run = jax.jit(lambda table: encoding.bias({"table": table}, q, line([1000]), q, line(1000 + T5["offset"])))
    return run(table)[0, 0], T5[f"bucket_{number}"]


def t5(name, spec, whole):
    f = group(name, T5)
    if not whole:
        return bias(spec, {"table": f["table"]}, pj.sites(40), f["bias"].shape[0]), f["bias"]
    return attention(spec, {"table": f["table"]}, f, pj.sites(40), causal=name == "decoder", scale=1.0)


def swin(number):
    f, window = group(f"swin_{number}"), WINDOWS[number]
    return attention("swin()", OffsetTable(f["table"], window, 0), f, pj.grid(*window))


def cpb(f, window):
    """torch keeps a kernel as [outputs, inputs]."""
    return LogCpb([{"kernel": f["first"].T, "bias": f["first_bias"]}, {"kernel": f["second"].T}], window)


def swin_v2(number):
    """Its cosines are the products of q and k of length 1, and its temperature a scale of q."""
    f = group(f"swin_v2_{number}")
    q, k = (f[name] / np.linalg.norm(f[name], axis=-1, keepdims=True) for name in "qk")
    f |= {"q": q * np.minimum(f["scale"], 100)[:, None], "k": k}
    window = PRETRAINED[number] if all(PRETRAINED[number]) else WINDOWS[number]
    return attention("swin_v2()", cpb(f, window), f, pj.grid(*WINDOWS[number]), scale=1.0)


def beit(name, number):
    f, window = group(f"{name}_{number}"), WINDOWS[number]
    table = FILE[f"beit_{number}_table"]
    return attention("beit()", OffsetTable(table, window, 1), f, pj.grid(*window, prefix=1))


def beit_hf_bias(number):
    f, window = group(f"beit_hf_{number}"), WINDOWS[number]
    params = OffsetTable(FILE[f"beit_{number}_table"], window, 1)
    return bias("beit()", params, pj.grid(*window, prefix=1), f["bias"].shape[0]), f["bias"]


def rel_pos(number, prefix):
    f, window = group(f"rel_pos_{number}_{prefix}"), WINDOWS[number]
    params = OffsetTable(f["table"], window, prefix)
    return bias("beit()" if prefix else "swin()", params, pj.grid(*window, prefix=prefix), 3), f["bias"]


def rel_mlp(number):
    f, window = group(f"rel_mlp_{number}"), WINDOWS[number]
    return bias("swin_v2(hidden_dim=7)", cpb(f, window), pj.grid(*window, prefix=1), 3), f["bias"]


def causal(ours, name):
    lower = np.tril(np.ones(ours.shape[1:], bool))
    return np.where(lower, ours, 0), np.where(lower, AUTHORS[name], 0)


def kerple_params(name):
    """Theirs are what ours become by a softplus."""
    return {what: np.log(np.expm1(AUTHORS[f"{name}_{what}"])) for what in ("p", "a")}


def layers(name):
    return [{what: AUTHORS[f"{name}_{what}_{number}"] for what in ("kernel", "bias")} for number in range(2)]


def kerple():
    theirs = AUTHORS["kerple"]
    return causal(bias("kerple()", kerple_params("kerple"), pj.sites(theirs.shape[1]), len(theirs)), "kerple")


def fire():
    theirs = AUTHORS["fire"]
    params = {"layers": layers("fire"), "c": np.float32([0.3]), "L_multiplier": np.float32([1.3])}
    spec = "fire(hidden_dim=6, init_c=0.3, init_L=5)"
    return causal(bias(spec, params, pj.sites(theirs.shape[1]), len(theirs)), "fire")


def dape():
    """Theirs returns the logits with the bias; one key for each channel and queries made of logits make the same ones."""
    logits = AUTHORS["logits"]
    num_heads, length, _ = logits.shape
    q = np.moveaxis(logits, 0, 1) * np.float32(length**0.5)
    k = np.broadcast_to(np.eye(length, dtype=np.float32)[:, None], (length, num_heads, length))
    params, site = {"encoding": kerple_params("dape"), "layers": layers("dape")}, pj.sites(length)
    bias = jax.jit(lambda params, q, k: pj.parse("dape(hidden_dim=6)").bias(params, q, site, k, site))
    return causal(logits + bias(params, q, k), "dape")


def lookhere(fov, window):
    theirs = AUTHORS[f"lookhere_{fov}_{window[0]}_{window[1]}"]
    ours = bias(f"lookhere(fov={fov}, slope=1)", (), pj.grid(*window), 12)
    assert (np.isinf(theirs) == (ours == HIDDEN)).all()
    return np.where(np.isinf(theirs), 0, ours), np.where(np.isinf(theirs), 0, theirs)


def of(window):
    return f"{window[0]} x {window[1]} window"


CHECKS: list[Check] = [
    *(
        Check("alibi", f"transformers {source}", f"{n} heads", functools.partial(alibi, source, n), 1e-6)
        for source in ("bloom", "mpt")
        for n in ALIBI["heads"].tolist()
    ),
    *(
        Check("alibi", f"transformers {source}", f"whole attention, {n} heads, {how}", run)
        for source in ("bloom", "mpt")
        for n in (5, 12)
        for how in ("dense", "blockwise")
        for run in [functools.partial(alibi_attention, source, n, how)]
    ),
    *(
        Check("t5", "transformers t5", f"buckets {setting}", functools.partial(t5_bucket, number), 0)
        for number, setting in enumerate(T5["settings"].tolist())
    ),
    *(
        Check("t5", "transformers t5", f"{what} of the {name}", functools.partial(t5, name, spec, whole), atol)
        for name, spec in (("encoder", "t5()"), ("decoder", "t5(bidirectional=False)"))
        for what, whole, atol in (("bias", False, 0), ("whole attention", True, 1e-5))
    ),
    *(
        Check(name, f"timm {name}", f"whole attention, {of(window)}{pretrained}", functools.partial(run, number))
        for number, window in enumerate(WINDOWS)
        for name, run, pretrained in (
            ("swin", swin, ""),
            ("swin_v2", swin_v2, f", pretrained on {PRETRAINED[number]}" if all(PRETRAINED[number]) else ""),
            ("beit", functools.partial(beit, "beit"), ""),
        )
    ),
    *(
        Check("beit", "transformers beit", f"{what}, {of(window)}", functools.partial(run, number))
        for number, window in enumerate(WINDOWS)
        if window[0] == window[1]  # see test_bias.py for the others
        for what, run in (("whole attention", functools.partial(beit, "beit_hf")), ("bias", beit_hf_bias))
    ),
    *(
        Check(
            "beit" if prefix else "swin",
            "timm RelPosBias",
            f"{of(window)}, {prefix} prefix tokens",
            functools.partial(rel_pos, number, prefix),
            1e-6,
        )
        for number, window in enumerate(WINDOWS)
        for prefix in (0, 1)
    ),
    *(
        Check("swin_v2", "timm RelPosMlp", of(window), functools.partial(rel_mlp, number))
        for number, window in enumerate(WINDOWS)
        if min(window) > 1
    ),
    *(Check(run.__name__, "chuanyang-Zheng/DAPE", "causal, 5 heads", run, 5e-6) for run in (kerple, fire, dape)),
    *(
        Check("lookhere", "GreenCUBIC/lookhere", f"{fov} degrees, {of(window)}", run, 1e-6)
        for fov in (180, 90, 45)
        for window in ((3, 5), (4, 4))
        for run in [functools.partial(lookhere, fov, window)]
    ),
]
