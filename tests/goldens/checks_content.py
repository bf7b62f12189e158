"""Encodings that read the content beside their authors' formulas; make_content.py made the vectors."""

import functools

import jax
import numpy as np

import posjax as pj
from goldens.check import Check, load
from posjax.attention import BEFORE_ATTENTION

FILE = "content"


def vectors():
    return {name: x.astype(np.float32) for name, x in load(FILE).items() if name != "versions"}


def repositioned(what):
    file, encoding = vectors(), pj.parse("repo()")
    params = {name: file[f"repo_{name}"] for name in ("gate", "content", "place")}

    @jax.jit
    def run(params, x, q, k):
        site = encoding.observe(params, x, pj.sites(len(x), start=3))
        return encoding.rotate(params, q, site, k, site)

    return run(params, *(file[name] for name in "xqk"))["qk".index(what)], file[f"repo_{what}"]


def convolved():
    """Compares keys up to their query; the authors' last query, which reads other zeros than earlier ones, is left out."""
    file, encoding = vectors(), pj.parse("dape(encoding=alibi(), hidden_dim=5, kernel_size=3)")
    layers = [{"kernel": file[f"dape_kernel_{n}"], "bias": file[f"dape_bias_{n}"]} for n in range(2)]
    site = pj.sites(len(file["q"]), start=3)
    ours = jax.jit(lambda layers, q, k: encoding.bias({"encoding": (), "layers": layers}, q, site, k, site))
    return tuple(np.tril(bias)[:, :-1] for bias in (ours(layers, file["q"], file["k"]), file["dape_bias"]))


def along_paths(gated):
    """Whole causal attention; the authors multiply sums of log gates by 1/sqrt(D) too."""
    file, spec = vectors(), "path(rank=5)"
    params = {name: file[f"path_{name}"] for name in ("down", "up", "taps", "kernel", "bias")}
    if gated:
        spec += f" + data_dependent_alibi(bidirectional=False, post_log_scale={file['q'].shape[2] ** -0.5})"
        params = params, {"kernel": file["path_gate"], "bias": np.zeros(3, np.float32)}
    encoding = pj.parse(spec)

    @jax.jit
    def run(params, x, *qkv):
        site = encoding.observe(params, x, pj.sites(len(x), start=3))
        return pj.attend(encoding, params, *qkv, site, site, causal=True, consumed=BEFORE_ATTENTION)

    return run(params, *(file[f"path_{name}"] for name in "xqkv")), file["path_fox_out" if gated else "path_out"]


FLA = "flash-linear-attention, transcribed"
CHECKS: list[Check] = [
    *(
        Check("repo", "SakanaAI/repo, transcribed", f"rotated {what}", functools.partial(repositioned, what))
        for what in "qk"
    ),
    Check("dape", "chuanyang-Zheng/DAPE, transcribed", "v2, 1 x 3, ALiBi, bias", convolved),
    Check("path", FLA, "70 tokens, causal attention", functools.partial(along_paths, False)),
    Check("path", FLA, "70 tokens, PaTH-FoX", functools.partial(along_paths, True)),
]
