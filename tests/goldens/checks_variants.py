"""Arguments that few models set beside transformers and x-transformers; make_variants.py made the vectors."""

import functools

import jax.numpy as jnp
import numpy as np

import posjax as pj
from goldens.check import Check, load

_FILE = load("variants")


def _alibi(spec: str, name: str):
    """MPT's is a function of the key alone, which softmax cannot tell from ours under a causal mask."""
    theirs = _FILE[name]
    theirs = theirs[:, None, :] - theirs[:, :, None] if theirs.ndim == 2 else theirs
    q, site = jnp.zeros((9, len(theirs), 2)), pj.sites(9)
    return np.tril(pj.parse(spec).bias((), q, site, q, site)), np.tril(theirs)


def _shaw(implementation: str):
    spec, params = "shaw(max_relative_position=5, right=2, values=False)", {"key": _FILE["shaw_key"][None]}
    q, k, v = (_FILE[f"shaw_{name}"] for name in "qkv")
    site, options = pj.sites(len(q)), dict(causal=False, implementation=implementation)
    return pj.attend(pj.parse(spec), params, q, k, v, site, site, **options), _FILE["shaw_out"]


def _odd():
    """fairseq's exponent c / (C - 1) of C frequencies is our c / C with the base raised to C / (C - 1)."""
    spec = f"sinusoidal(layout='concatenated', base={1e4 ** (3 / 2)})"
    return pj.parse(spec).embed((), jnp.zeros((9, 7)), pj.sites(9)), _FILE["odd"]


CHECKS: list[Check] = [
    *(
        Check(
            "alibi",
            "transformers mpt",
            f"alibi_bias_max 4, {n} heads",
            functools.partial(_alibi, spec, f"mpt_{n}"),
            1e-6,
        )
        for spec in ["alibi(exponent=4)"]
        for n in (4, 6)
    ),
    Check("alibi", "x-transformers", "2 of 5 heads", functools.partial(_alibi, "alibi(heads=2)", "unbiased"), 1e-6),
    *(
        Check("shaw", "transformers wav2vec2_bert", f"5 earlier and 2 later keys, {how}", functools.partial(_shaw, how))
        for how in ("dense", "blockwise")
    ),
    Check("sinusoidal", "transformers m2m_100", "7 channels", _odd, 1e-6),
]
