"""One digest of an array, however it lies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax.training.digests import digest_of_array, sums_of_array

ARRAYS = {
    "float32": np.linspace(-1, 1, 70_000, dtype=np.float32).reshape(7, -1),
    "bfloat16": jnp.arange(6, dtype=jnp.bfloat16).reshape(2, 3),
    "int8": np.arange(-4, 4, dtype=np.int8),
    "bool": np.array([True, False, True]),
    "uint32": np.array([[0, 2**32 - 1]], np.uint32),
    "complex64": np.array([1 + 2j, 3], np.complex64),
    "scalar": np.float32(3),
}


@pytest.mark.parametrize("x", ARRAYS.values(), ids=ARRAYS)
def test_hosts_and_devices_agree(x):
    first, second = map(int, jax.jit(sums_of_array)(jnp.asarray(x)))
    assert digest_of_array(x) == f"words:{first:08x}{second:08x}"


def test_what_is_moved_or_flipped_is_seen():
    x = np.arange(1000, dtype=np.float32)
    swapped, flipped = x.copy(), x.copy()
    swapped[[3, 700]] = swapped[[700, 3]]
    flipped.view(np.uint32)[500] ^= 1
    zeros = np.zeros(1000, np.float32)
    digests = [digest_of_array(each) for each in (x, swapped, flipped, np.roll(x, 1), zeros, zeros[:-1])]
    assert len(set(digests)) == len(digests)


def test_keys_have_one_too():
    assert digest_of_array(jax.random.key(0)) != digest_of_array(jax.random.key(1))
