"""A gate beside x-transformers' layer, and masks beside transformers' masks."""

import functools

import jax
import numpy as np

import posjax as pj
from goldens.check import Check, load
from posjax.attention.dense import shown


def per_row():
    """Biases of x-transformers' own layer; make_per_row.py made the vectors."""
    file, encoding = load("per_row"), pj.parse("per_row_alibi(gate_head_dim=5, post_log_scale=1.5)")
    x, kernel = (file[name].astype(np.float32) for name in ("x", "kernel"))
    site = jax.jit(lambda kernel: encoding.observe({"kernel": kernel}, x, pj.sites(len(x), start=3)))(kernel)
    q = np.zeros((len(x), 3, 1), np.float32)
    return jax.jit(lambda site: encoding.bias({}, q, site, q, site))(site), file["bias"]


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
    Check("per_row_alibi", "lucidrains/x-transformers", "bias", per_row),
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
