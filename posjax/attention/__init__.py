"""Attention as an interpreter of an encoding: `attend` for whole sequences, `Cache` and `attend_cached` for decoding."""

from posjax.attention.attend import attend
from posjax.attention.cache import Cache, attend_cached, empty_cache

__all__ = ["Cache", "attend", "attend_cached", "empty_cache"]
