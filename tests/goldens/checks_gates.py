"""Gates beside their authors' formulas, and masks beside transformers' masks; make_gates.py made the vectors."""

import functools

import jax
import numpy as np

import posjax as pj
from goldens.check import Check, load
from posjax.attention import BEFORE_ATTENTION
from posjax.attention.dense import shown

TRANSCRIBED = {
    "fox": "flash-linear-attention, transcribed",
    "cable": "axiomlab/Cable, transcribed",
    "data_dependent_alibi": "x-transformers, transcribed",
    "selective_rope": "timurcarstensen/selective-rope, transcribed",
}


def through(hook, encoding, params, file):
    """Applies `hook` to (params, q, k, v, site) after the encoding has read its state off the tokens."""

    @jax.jit
    def run(params, x, *qkv):
        return hook(params, *qkv, encoding.observe(params, x, pj.sites(len(x), start=3)))

    return run(params, *(file[name] for name in "xqkv"))


def attention(spec, golden):
    """The outputs of forgetting attention, causal."""
    file, encoding = load("gates"), pj.parse(spec)
    params = {"kernel": file["gate_kernel"], "bias": file["gate_bias"]}
    params = (params, *((),) * (len(encoding.parts) - 1)) if "+" in spec else params

    def attend(params, q, k, v, site):
        told = dict(causal=True, consumed=BEFORE_ATTENTION)
        return pj.attend(encoding, params, q, k, v, site, site, **told)

    return through(attend, encoding, params, file), file[golden]


def bias(spec, linear, golden, visible):
    """Logit biases, of the pairs that the reference means."""
    file, encoding = load("gates"), pj.parse(spec)
    heads = file["q"].shape[1]
    kernel, offset = file[f"{linear}_kernel"], file[f"{linear}_bias"]
    if offset.size != heads:
        kernel, offset = kernel.reshape(len(kernel), -1, heads), offset.reshape(-1, heads)
    between = lambda params, q, k, v, site: encoding.bias(params, q, site, k, site)  # noqa: E731
    ours = through(between, encoding, {"kernel": kernel, "bias": offset}, file)
    return visible(np.asarray(ours)), visible(file[golden])


def per_row():
    """Biases of x-transformers' own layer; make_per_row.py made the vectors."""
    file, encoding = load("per_row"), pj.parse("per_row_alibi(gate_head_dim=5, post_log_scale=1.5)")
    x, kernel = (file[name].astype(np.float32) for name in ("x", "kernel"))
    site = encoding.observe({"kernel": kernel}, x, pj.sites(len(x), start=3))
    q = np.zeros((len(x), 3, 1), np.float32)
    return encoding.bias({}, q, site, q, site), file["bias"]


def rotation(what):
    file, encoding = load("gates"), pj.parse("selective_rope(base=100, rank=5)")
    params = {name: file[f"selective_{name}"] for name in ("down", "up", "taps")}
    rotate = lambda params, q, k, v, site: encoding.rotate(params, q, site, k, site)  # noqa: E731
    return through(rotate, encoding, params, file)["qk".index(what)], file[f"selective_{what}_transcribed"]


def window(spec, golden):
    site, file = pj.sites(13, start=5), load("masks")
    ours, theirs = np.asarray(shown(pj.parse(spec), site, site)), file[golden]
    return (np.tril(ours) if "causal" in golden else ours), theirs


def sparse(spec, golden, tokens=slice(None)):
    """The outputs under a mask, of the tokens that the reference shows."""
    file = load("masks")
    q, k, v, out = (file[f"{golden}_{name}"][tokens] for name in (*"qkv", "out"))
    site = pj.sites(len(q))
    return jax.jit(lambda *qkv: pj.attend(pj.parse(spec), (), *qkv, site, site))(q, k, v), out


def sparse_checks():
    file = load("masks")
    for size, num_global in file["longformer"]:
        arrays = functools.partial(
            sparse, f"longformer(window={size}, num_global={num_global})", f"longformer_{size}_{num_global}"
        )
        yield Check("longformer", "transformers longformer", f"window {size}, {num_global} global tokens", arrays)
    for block, blocks in file["bigbird"]:
        spec = f"bigbird(block_size={block}, num_random=0, num_global=1)"
        arrays = functools.partial(sparse, spec, f"bigbird_{block}_{blocks}", slice(0, int(block * (blocks - 1))))
        yield Check("bigbird", "transformers big_bird", f"{blocks} blocks of {block}, none at random", arrays)


CHECKS: list[Check] = [
    Check("fox", TRANSCRIBED["fox"], "causal attention", functools.partial(attention, "fox()", "fox_transcribed")),
    Check(
        "window",
        TRANSCRIBED["fox"],
        "with forgetting gates",
        functools.partial(attention, "fox() + window(size=4)", "fox_window_transcribed"),
    ),
    Check(
        "cable", TRANSCRIBED["cable"], "bias", functools.partial(bias, "cable()", "gate", "cable_transcribed", np.tril)
    ),
    Check(
        "data_dependent_alibi",
        TRANSCRIBED["data_dependent_alibi"],
        "both directions",
        functools.partial(
            bias,
            "data_dependent_alibi(post_log_scale=2.5)",
            "gates",
            "data_dependent_alibi_transcribed",
            lambda logits: logits,
        ),
    ),
    Check("per_row_alibi", "lucidrains/x-transformers", "bias", per_row),
    *(
        Check("selective_rope", TRANSCRIBED["selective_rope"], f"rotated {what}", functools.partial(rotation, what))
        for what in "qk"
    ),
    *(
        Check(
            "window",
            "transformers mistral",
            f"{size} keys",
            functools.partial(window, f"window({size})", f"causal_{size}"),
            0,
        )
        for size in load("masks")["windows"]
    ),
    *(
        Check(
            "window",
            "transformers bidirectional",
            f"{size} keys on a side",
            functools.partial(window, f"window({size + 1})", f"bidirectional_{size}"),
            0,
        )
        for size in load("masks")["windows"]
    ),
    *sparse_checks(),
]
