"""posjax: positional encodings behind one contract, and the attention that interprets them.

import posjax as pj

encoding = pj.parse("learned + t5")
params = encoding.init(key, pj.Dims(width=512, num_heads=8, head_dim=64, length=1024))
x, hosted = pj.host(encoding, params, x, pj.sites(1024), key=None)    # before the first layer; a key in training
out = hosted.attend(q, k, v, x=h, causal=True)                        # in each layer, whose input is h
"""

from posjax import encodings
from posjax.attention import attend
from posjax.audits import Audit, audit
from posjax.encoding import Dims, Encoding, PositionMap, Relation, Site, grid, packed, padded, sites
from posjax.hf import from_hf, from_hf_layers, to_hf
from posjax.hosting import Hosted, host
from posjax.spec import names, parse, parse_layers, register

__version__ = "0.1.0"

__all__ = [
    "Audit",
    "Dims",
    "Encoding",
    "Hosted",
    "PositionMap",
    "Relation",
    "Site",
    "attend",
    "audit",
    "encodings",
    "from_hf",
    "from_hf_layers",
    "grid",
    "host",
    "names",
    "packed",
    "padded",
    "parse",
    "parse_layers",
    "register",
    "sites",
    "to_hf",
]
