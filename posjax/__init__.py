"""posjax: positional encodings behind one contract, and the attention that interprets them.

import posjax as pj

encoding = pj.parse("rope(base=500000) + alibi()")
params = encoding.init(key, pj.Dims(width=512, num_heads=8, head_dim=64))
site = pj.sites(1024)
out = pj.attend(encoding, params, q, k, v, site, site, causal=True)   # one sequence; jax.vmap it over a batch
"""

from posjax import encodings
from posjax.attention import attend
from posjax.encoding import Dims, Encoding, PositionMap, Site, grid, sites
from posjax.hf import from_hf, to_hf
from posjax.spec import names, parse, parse_layers, register

__version__ = "0.1.0"

__all__ = [
    "Dims",
    "Encoding",
    "PositionMap",
    "Site",
    "attend",
    "encodings",
    "from_hf",
    "grid",
    "names",
    "parse",
    "parse_layers",
    "register",
    "sites",
    "to_hf",
]
