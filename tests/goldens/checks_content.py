"""Encodings that read the content beside their authors' formulas; make_content.py made the vectors."""

import functools

import jax
import numpy as np

import posjax as pj
from goldens.check import Check, load

FILE = "content"


def repositioned(what):
    file, encoding = load(FILE), pj.parse("repo()")
    params = {name: file[f"repo_{name}"] for name in ("gate", "content", "place")}

    @jax.jit
    def run(params, x, q, k):
        site = encoding.observe(params, x, pj.sites(len(x), start=3))
        return encoding.rotate(params, q, site, k, site)

    return run(params, *(file[name] for name in "xqk"))["qk".index(what)], file[f"repo_{what}"]


def convolved():
    """Of keys up to their query; the authors' last query reads other zeros than all before it, and is left out."""
    file, encoding = load(FILE), pj.parse("dape(encoding=alibi(), hidden_dim=5, kernel_size=3)")
    layers = [{"kernel": file[f"dape_kernel_{n}"], "bias": file[f"dape_bias_{n}"]} for n in range(2)]
    site = pj.sites(len(file["q"]), start=3)
    ours = jax.jit(lambda layers, q, k: encoding.bias({"encoding": (), "layers": layers}, q, site, k, site))
    return tuple(np.tril(bias)[:, :-1] for bias in (ours(layers, file["q"], file["k"]), file["dape_bias"]))


CHECKS: list[Check] = [
    Check("repo", "SakanaAI/repo, transcribed", f"rotated {what}", functools.partial(repositioned, what))
    for what in "qk"
] + [Check("dape", "chuanyang-Zheng/DAPE, transcribed", "v2, 1 x 3, ALiBi, bias", convolved)]
