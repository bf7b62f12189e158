"""Encodings with parameters train, in a decoder or else in a ViT, through the real step on real data.

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
from posjax.training.optimizer import make_optimizer
from posjax.training.step import State, make_step
from posjax.training.tasks import make_task

LEARNED = [
    name
    for name, member in MEMBERS.items()
    if registered(name).init is not pj.Encoding.init
    and pj.parse(member.variants[0].spec).hooks <= {"embed", "place", "rotate"}
]
DECODER = {name: spec for name in LEARNED if (spec := MEMBERS[name].on(LINE))}
VIT = {name: spec for name in LEARNED if name not in DECODER and (spec := MEMBERS[name].on(GRID))}
TOGETHER = 7  # encodings that train in one model: most of a program is the model


def programs(specs):
    """{names: spec}: sums of a few that need the same of their host, masks apart, beside which others may see nothing."""
    groups = {}
    for name, spec in specs.items():
        encoding = pj.parse(spec)
        alone = name if Needs.HEAD_DIM in encoding.needs or "weigh" in encoding.hooks else None
        groups.setdefault((encoding.needs, "mask" in encoding.hooks, alone), []).append(name)
    summed = [names[first : first + TOGETHER] for names in groups.values() for first in range(0, len(names), TOGETHER)]
    return [pytest.param(" + ".join(f"({specs[name]})" for name in names), id=" ".join(names)) for names in summed]


pytestmark = pytest.mark.slow  # the fast tests/training/test_loop.py trains one of each model
KEY = jax.random.key(0)
SIZES = {"model__width": 16, "batch_size": 2, "optimizer__warmup_steps": 0}


def stepped(config):
    """The state before and after a step, and its loss."""
    task = make_task(config)
    optimizer, _ = make_optimizer(total_steps=config.steps, **config.optimizer)
    # One program, the step: parameters are drawn, moments start as zeros.
    params = jax.tree.map(lambda x: x[None], drawn(task.init, KEY, spread=0.1, encoding=config.model.encoding))
    moments = jax.eval_shape(jax.vmap(optimizer.init), params)
    before = State(np.int32(0), params, jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), moments), KEY[None])
    batch = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], task.batches(0)[0])
    after, report = jax.jit(make_step(task, optimizer))(before, batch)
    return before, after, report["loss"]


def check(config):
    before, after, loss = stepped(config)
    assert np.isfinite(loss).all()
    for path, leaf in jax.tree_util.tree_leaves_with_path(after.params):
        assert np.isfinite(leaf).all(), jax.tree_util.keystr(path)
    if Needs.CONSTANT_PARAMS in pj.parse(config.model.encoding).needs:
        return
    hosted = [jax.tree.map(np.asarray, tree["trunk"].get("encoding", ())) for tree in (before.params, after.params)]
    for (path, old), new in zip(
        jax.tree_util.tree_leaves_with_path(hosted[0]), jax.tree.leaves(hosted[1]), strict=True
    ):
        name = jax.tree_util.keystr(path)
        # A number for each head that all its logits gain has no gradient but rounding.
        if not (name.endswith("['bias']") and old.shape == (1, config.model.num_heads)):
            assert np.any(old != new), f"training does not reach {name}"


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
