"""Attention as an interpreter of an encoding.

`attend` for whole sequences, `attend_parallel` for those that devices share, `Cache` and `attend_cached` for decoding;
`Backend` and `register` for an implementation of one's own. `posjax.host` runs the hooks of BEFORE_ATTENTION, by which an
encoding acts before attention.
"""

from posjax.attention.attend import BEFORE_ATTENTION, attend
from posjax.attention.backends import Asked, Backend, register
from posjax.attention.cache import Cache, attend_cached, empty_cache, key_channels, remember, slots_needed
from posjax.attention.choose import Choice, choose
from posjax.attention.dense import Operands
from posjax.attention.parallel import ContextParallel, attend_parallel, unzigzag, zigzag

__all__ = [
    "BEFORE_ATTENTION",
    "Asked",
    "Backend",
    "Cache",
    "Choice",
    "ContextParallel",
    "Operands",
    "attend",
    "attend_cached",
    "attend_parallel",
    "choose",
    "empty_cache",
    "key_channels",
    "register",
    "remember",
    "slots_needed",
    "unzigzag",
    "zigzag",
]
