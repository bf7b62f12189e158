"""A digest of an array that does not depend on how the array lies on devices and processes.

Every 32-bit word is mixed with its place and the results are summed modulo 2^32, which is exact in any order: all layouts
give the same sums, and no process needs another's part. A flipped bit changes a sum for certain, since mixing is a bijection
of the word; two swapped words do unless both sums collide (2^-64). It is no defence against forgery.

The mixing is the finaliser of MurmurHash3 (Appleby, 2011).
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posjax.training.mesh import replicated

_CHUNK = 2**16  # words that stay in a core's cache
_STEP, _TURN = 0x9E3779B1, 0x85EBCA77  # odd, so that multiplying is a bijection


def digest_of_array(x: Any) -> str:
    """The digest of the content of an array; every process that holds a part calls it. Dtype and shape are not in it."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    if isinstance(x, jax.Array) and not x.is_fully_addressable:
        sums = jax.jit(sums_of_array, out_shardings=replicated(x.sharding.mesh))(x)
        first, second = map(int, np.asarray(sums))
    else:
        first, second = _sums_of_words(_words(np.asarray(x)))
    return f"words:{first:08x}{second:08x}"


def _mixed(h, number):
    """murmur3's finaliser of 32 bits; `number` makes constants."""
    h = (h ^ (h >> number(16))) * number(0x85EBCA6B)
    h = (h ^ (h >> number(13))) * number(0xC2B2AE35)
    return h ^ (h >> number(16))


def _two(words, place, number):
    """Two independent mixtures of each word and its place."""
    where = _mixed(place * number(_STEP), number)
    return _mixed(words ^ where, number), _mixed(words ^ (where * number(_TURN)), number)


def _words(x: np.ndarray) -> np.ndarray:
    """The words of an array in order: one for each element, or as many as it fills."""
    flat = np.ascontiguousarray(x).reshape(-1)
    if flat.dtype.itemsize < 4:
        flat = flat.view(f"u{flat.dtype.itemsize}").astype(np.uint32)
    return flat.view(np.uint32)


def _sums_of_words(words: np.ndarray) -> tuple[int, int]:
    totals = [0, 0]
    for start in range(0, len(words), _CHUNK):
        part = words[start : start + _CHUNK]
        place = np.arange(start, start + len(part), dtype=np.uint64).astype(np.uint32)
        for index, mixture in enumerate(_two(part, place, np.uint32)):
            totals[index] += int(mixture.sum(dtype=np.uint64))
    return totals[0] % 2**32, totals[1] % 2**32


def sums_of_array(x: jax.Array) -> jax.Array:
    """The same sums of a whole array that lies on many devices, [2]."""
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        x = jnp.stack([x.real, x.imag], axis=-1)
    if x.dtype == jnp.bool:
        x = x.astype(jnp.uint8)
    kind = {1: jnp.uint8, 2: jnp.uint16}.get(x.dtype.itemsize, jnp.uint32)
    words = jax.lax.bitcast_convert_type(x, kind).astype(jnp.uint32)
    place, stride = jnp.zeros(words.shape, jnp.uint32), 1
    for axis in reversed(range(words.ndim)):
        place += jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis) * jnp.uint32(stride % 2**32)
        stride *= words.shape[axis]
    return jnp.stack([jnp.sum(mixture, dtype=jnp.uint32) for mixture in _two(words, place, jnp.uint32)])
