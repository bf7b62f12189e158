"""Encodings with parameters have gradients, in a decoder or else in a ViT, by the real loss on real data.

Those that act within attention have their gradients in tests/encodings/test_properties.py.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import drawn
from members import GRID, LINE, MEMBERS
from small import small_decoder, small_vit

import posjax as pj
from posjax.encoding import Needs
from posjax.spec import registered
from posjax.training.tasks import make_task

LEARNED = [
    name
    for name, member in MEMBERS.items()
    if registered(name).init is not pj.Encoding.init
    and pj.parse(member.variants[0].spec).hooks <= {"embed", "place", "rotate"}
]
DECODER = {name: spec for name in LEARNED if (spec := MEMBERS[name].on(LINE))}
VIT = {name: spec for name in LEARNED if name not in DECODER and (spec := MEMBERS[name].on(GRID))}
TOGETHER = 8  # encodings that train in one model: most of a program is the model


def programs(specs):
    """{names: spec}: sums of a few that need the same of their host, masks apart, beside which others may see nothing."""
    groups = {}
    for name, spec in specs.items():
        encoding = pj.parse(spec)
        groups.setdefault((encoding.needs & ~Needs.HEAD_DIM, "mask" in encoding.hooks), []).append(name)
    summed = [names[first : first + TOGETHER] for names in groups.values() for first in range(0, len(names), TOGETHER)]
    return [pytest.param(" + ".join(f"({specs[name]})" for name in names), id=" ".join(names)) for names in summed]


pytestmark = pytest.mark.slow  # the fast tests/training/test_loop.py trains one of each model
KEY = jax.random.key(0)
SIZES = {"model__width": 16, "batch_size": 2}


def check(config):
    """The gradients of the encoding's parameters alone, as a step takes them."""
    task = make_task(config)
    params = jax.tree.map(lambda x: x[None], drawn(task.init, KEY, spread=0.1, encoding=config.model.encoding))
    batch = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], task.batches(0)[0])

    def loss(hosted, params, batch):
        return task.loss({**params, "trunk": {**params["trunk"], "encoding": hosted}}, batch, KEY)[0]

    hosted = params["trunk"].get("encoding", ())
    value, grads = jax.jit(jax.vmap(jax.value_and_grad(loss)))(hosted, params, batch)
    assert np.isfinite(value).all()
    for path, leaf in jax.tree_util.tree_leaves_with_path(grads):
        name = jax.tree_util.keystr(path)
        assert np.isfinite(leaf).all(), name
        # A number for each head that all its logits gain has no gradient but rounding.
        of_heads = name.endswith("['bias']") and leaf.shape == (1, config.model.num_heads)
        if not of_heads and Needs.CONSTANT_PARAMS not in pj.parse(config.model.encoding).needs:
            assert np.any(leaf), f"training does not reach {name}"


@pytest.mark.parametrize("spec", programs(VIT))
def test_vit(spec, data_dir):
    pooled = {"model__pooling": "mean", "model__num_registers": 1}  # in one layer a class token sees all patches alike
    check(small_vit(data_dir, **SIZES, **pooled, model__encoding=spec))


@pytest.mark.parametrize("spec", programs(DECODER))
def test_decoder(spec, data_dir):
    check(small_decoder(data_dir, **SIZES, model__encoding=spec))


def test_every_name_trains_somewhere():
    """Encodings of graphs train in tests/encodings/test_graphs.py."""
    on_graphs = {name for name, member in MEMBERS.items() if Needs.RELATION in pj.parse(member.variants[0].spec).needs}
    assert {*VIT} | {*DECODER} | on_graphs >= {*LEARNED}
