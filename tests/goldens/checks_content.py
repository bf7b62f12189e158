"""Encodings that read the content beside their authors' formulas; make_content.py made the vectors."""

import functools

import jax

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


CHECKS: list[Check] = [
    Check("repo", "SakanaAI/repo, transcribed", f"rotated {what}", functools.partial(repositioned, what))
    for what in "qk"
]
