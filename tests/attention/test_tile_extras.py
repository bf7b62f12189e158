"""A bias or a mask is taken for no more than what its class has said of it."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax as pj
from posjax.attention.blockwise import blockwise
from posjax.attention.dense import Operands
from posjax.encodings.bias import T5, Alibi
from posjax.encodings.masks import Window
from posjax.mask import Mask, Memory


def differences(encoding, site):
    """The distance of tiles of 16 from the dense attention of one document, or some."""
    q = np.random.default_rng(0).normal(size=(len(site.segment), 2, 8)).astype(np.float32)
    params = encoding.init(jax.random.key(1), pj.Dims(16, 2, 8))

    @jax.jit
    def run(params, q):
        dense = pj.attend(encoding, params, q, q, q, site, site, implementation="dense")
        return jnp.abs(blockwise(encoding, Operands(params, q, q, q, q, q, site, site), scale=8**-0.5, tile=16) - dense)

    return run(params, q)


def test_no_tile_takes_the_bias_of_padding():
    """Tiles of the second document show the offsets of one of the first that ends in padding, which stands at 0."""
    first, second = pj.sites(40), pj.sites(48)
    padding = pj.Site(*(np.zeros(8, np.int32) for _ in range(3)))
    second = second._replace(segment=2 * second.segment)
    site = jax.tree.map(lambda *x: np.concatenate(x), first, padding, second)
    assert differences(pj.parse("alibi"), site).max() < 1e-5


class Growing(Alibi):
    """A bias that knows more than offsets, made of one that does not."""

    def bias(self, params, q, q_site, k, k_site):
        return super().bias(params, q, q_site, k, k_site) * q_site.position[:, None] / 16


class GrowingT5(T5):
    def bias(self, params, q, q_site, k, k_site):
        return super().bias(params, q, q_site, k, k_site) * q_site.position[:, None] / 16


@dataclass(frozen=True)
class Sevenths(Mask):
    def shows(self, q, k):
        return k[0] % 7 == 0


class Signposts(Window):
    """A window beside which every seventh key is seen."""

    def mask(self):
        return super().mask() | Sevenths()


@pytest.mark.parametrize("encoding", [Growing(), GrowingT5(), Signposts(8)], ids=lambda e: type(e).__name__)
def test_what_a_class_changes_is_not_taken_for_what_it_derives_from(encoding):
    assert differences(encoding, pj.sites(96)).max() < 1e-5
    assert encoding.mask().memory == Memory()
