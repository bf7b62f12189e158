"""posjax: positional encodings behind one contract, and the attention that interprets them.

>>> import jax, jax.numpy as jnp
>>> import posjax as pj
>>> encoding = pj.parse("learned + t5")
>>> params = encoding.init(jax.random.key(0), pj.Dims(width=16, num_heads=2, head_dim=8, length=32))
>>> x = jnp.ones((32, 16))
>>> x, hosted = pj.host(encoding, params, x, pj.sites(32), key=None)    # before the first layer; a key in training
>>> q = k = v = x.reshape(32, 2, 8)
>>> hosted.attend(q, k, v, x=x, causal=True).shape                      # in each layer, whose input is x
(32, 2, 8)
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
