"""A program for 8 devices that compares devices sharing a sequence with a single one.

It reads jobs as JSON, [[name of a check below, its arguments], ...], and prints their results.
"""

import functools
import json
import math
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
from cases import HEAD_DIM, HEADS, WIDTH, forward, inner_jaxprs, project, world
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from members import GRID, Case

import posjax as pj
from posjax.attention import BEFORE_ATTENTION, Backend, ContextParallel, attend_parallel, register
from posjax.attention.library import splash, splash_refusal
from posjax.attention.parallel import to_zigzag
from posjax.attention.tpu.kernel import pallas_tpu
from posjax.attention.tpu.kernel import refusal as tpu_refusal
from posjax.encoding import Needs
from posjax.models import BlockConfig, Decoder, ViT

SEGMENT = np.array([1, 1, 1, 1, 1, 0, 1, 2, 2, 2, 2, 0, 2, 2], np.int32)


def differences(
    spec: str,
    kind: str,
    groups: int,
    size: int,
    order: str,
    keys: str = "gather",
    gradients: bool = True,
    implementation: str = "blockwise",
    heads: int = 1,
) -> float:
    """The largest difference, to one device, of what `groups` of `size` devices compute for a batch of two sequences.

    Values, and gradients to parameters, tokens, projections and to positions where they may be floats; those above 1
    in relation to their size.

    Args:
      implementation: a kernel knows positions when it is traced, and computes a share of the heads on each device.
      heads: number of devices that share heads.
    """
    case = Case(spec, kind)
    context = context_of(groups, size, heads, order=order, keys=keys)
    row = (world(case).x, world(case).site.position.astype(np.float32), SEGMENT)
    batch = [np.stack([leaf[::-1], leaf]) for leaf in row]

    def run(context):
        loss = loss_of(case, context, implementation)
        run = jax.value_and_grad(loss, argnums=(0, 1, 2, 3), has_aux=True) if gradients else loss
        return jax.tree.leaves(jax.jit(run)(world(case).params, world(case).weights, *batch))

    pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(run(None), run(context), strict=True)]
    assert all(np.isfinite(a).all() for a, _ in pairs)
    return max(np.max(np.abs(a - b) / np.maximum(np.abs(a), 1), initial=0).item() for a, b in pairs)


def loss_of(case: Case, context: ContextParallel | None, implementation: str):
    """(params, weights, x, position, segment) -> (sum of the sines of all outputs, outputs)."""
    w, causal = world(case), case.kind != GRID

    def of_row(params, weights, x, position, segment):
        position = position.astype(jnp.int32) if Needs.WHOLE_POSITIONS in w.encoding.needs else position
        position = position if implementation == "blockwise" else w.site.position
        site = w.site._replace(segment=segment, position=position)
        if context is None:
            return forward(w.encoding, params, x, site, weights, causal=causal)
        q, k, v, site = project(w.encoding, params, x, w.encoding.place(params, site), weights)
        options = dict(context=context, causal=causal, implementation=implementation)
        return attend_parallel(w.encoding, params, q, k, v, site, site, consumed=BEFORE_ATTENTION, **options)

    def loss(params, weights, *rows):
        split = None if context is None else context.batch_axis_of(2)
        out = jax.vmap(of_row, in_axes=(None, None, 0, 0, 0), spmd_axis_name=split)(params, weights, *rows)
        return jnp.sum(jnp.sin(out)), out

    return loss


def arrays(spec: str, length: int, batch: int, groups: int, size: int) -> tuple[int, list[int], list[int]]:
    """Elements of the largest array that is computed for one sequence, of all that are gathered, of all that are sent.

    Forward and backward.
    """
    encoding = pj.parse(spec)
    params = encoding.init(jax.random.key(0), pj.Dims(WIDTH, HEADS, HEAD_DIM))
    site, context = pj.sites(length), context_of(groups, size)
    options = dict(context=context, causal=True, implementation="blockwise")

    def loss(params, *qkv):
        def of_row(q, k, v):
            return attend_parallel(encoding, params, q, k, v, site, site, consumed=BEFORE_ATTENTION, **options)

        return jnp.sum(jnp.sin(jax.vmap(of_row, spmd_axis_name="data")(*qkv)))

    tokens = NamedSharding(context.mesh, PartitionSpec("data", "context"))
    x = jax.ShapeDtypeStruct((batch, length, HEADS, HEAD_DIM), jnp.float32, sharding=tokens)
    traced = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3))).trace(params, x, x, x)
    within = [jaxpr for jaxpr, _ in inner_jaxprs(traced.jaxpr)]
    largest = max(v.aval.size for jaxpr in within for eqn in jaxpr.eqns for v in eqn.outvars if hasattr(v.aval, "size"))
    program = traced.lower().compile().as_text()

    def results_of(operation):
        shapes = re.findall(rf"= \w+\[([\d,]+)\]\S* {operation}\(", program)
        return [math.prod(map(int, shape.split(","))) for shape in shapes]

    return largest, results_of("all-gather"), results_of("collective-permute")


def models() -> list[float]:
    """The largest difference of loss and gradients, in training, of a decoder on packed rows and of a ViT whose tokens and
    batch no devices divide; behind each the largest gradient.
    """
    context = context_of(2, 4)
    segment = np.array([[1] * 16, [1] * 5 + [0] * 2 + [2] * 9], np.int32)
    position = np.array([range(16), [*range(5), 0, 0, *range(9)]], np.int32)
    tokens, site = np.arange(32, dtype=np.int32).reshape(2, 16), pj.Site(position, segment, np.zeros_like(segment))
    encoding = ("(randomized(length=64) >> alibi()) + fox() + learned()", "rope() + window(6)")
    decoder = Decoder(32, encoding, length=64, block=BlockConfig(width=16, num_heads=2, dropout=0.1), depth=2)
    vit = ViT(
        10,
        "rope() + t5()",
        image_size=(16, 16),
        block=BlockConfig(width=16, num_heads=2),
        depth=1,
        pooling="mean",
        num_registers=1,
    )
    images = jax.random.normal(jax.random.key(0), (3, 16, 16, 3))
    found = []
    for model, given in ((decoder, (tokens, site)), (vit, (images, vit.sites(16, 16)))):
        variables = model.init(jax.random.key(1), *given)
        variables = jax.tree.map(lambda x: x + 0.1 * jax.random.normal(jax.random.key(2), x.shape), variables)

        def loss(variables, model, given=given):
            rngs = {"place": jax.random.key(3), "dropout": jax.random.key(4)}
            return jnp.mean(jnp.sin(model.apply(variables, *given, train=True, rngs=rngs)))

        run = jax.jit(jax.value_and_grad(loss), static_argnums=1)
        one, shared = (run(variables, each) for each in (model, model.with_fields(context=context)))
        difference = jax.tree.map(lambda a, b: np.max(np.abs(a - b)).item(), one, shared)
        found += [max(jax.tree.leaves(difference)), max(np.max(np.abs(x)).item() for x in jax.tree.leaves(one))]
    return found


def zigzags(length: int, size: int) -> list[list[int]]:
    """The tokens whose queries each device attends for."""
    context, tokens = context_of(1, size), PartitionSpec("context")
    move = jax.shard_map(lambda x: to_zigzag(x, context), mesh=context.mesh, in_specs=tokens, out_specs=tokens)
    return np.asarray(jax.jit(move)(np.arange(length))).reshape(size, -1).tolist()


def context_of(groups: int, size: int, heads: int = 1, **options) -> ContextParallel:
    devices = np.array(jax.devices()[: groups * heads * size]).reshape(groups, heads, size)
    mesh = Mesh(devices, ("data", "tensor", "context"))
    return ContextParallel(mesh, batch_axis="data", heads_axis="tensor", **options)


def _splash_refusal(asked):
    return splash_refusal(asked.encoding, asked.operands)


hooks = frozenset({"mask", "sink"})
register(
    "splash_interpret", Backend(functools.partial(splash, interpret=True), _splash_refusal, parts=True, hooks=hooks)
)
refuse_on_tpu = lambda asked: tpu_refusal(asked.encoding, asked.operands, devices=asked.devices)  # noqa: E731
run_as_on_tpu = functools.partial(pallas_tpu, interpret=True)
register("pallas_tpu_interpret", Backend(run_as_on_tpu, refuse_on_tpu, parts=True))
CHECKS = {check.__name__: check for check in (differences, arrays, models, zigzags)}


if __name__ == "__main__":
    for check, arguments in json.loads(sys.argv[1]):
        print(json.dumps(CHECKS[check](*arguments)))
