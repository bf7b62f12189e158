"""jax_enable_x64 and strict promotion of types change nothing: programs have the types and draws that they have without.

Parameters in float64 are taken, whatever the inputs are; and huge arguments end at once.

Everything here is traced, nothing is run.
"""

import dataclasses
import functools
import time
import typing
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import (
    HEAD_DIM,
    HEADS,
    WIDTH,
    each_case,
    forward,
    inner_jaxprs,
    params_of,
    params_of_long,
    project,
    with_relation,
)
from members import LINE, MEMBERS

import posjax as pj
from posjax.attention import BEFORE_ATTENTION, attend_cached, empty_cache
from posjax.encoding import Needs
from posjax.spec import registered

GRID = 10, 7  # with 2 prefix tokens more than 64 tokens: "auto" takes tiles


def settings(case, count: int):
    """An encoding, the site of a row, and the shapes of (params, x, weights). Parameters are never drawn."""
    encoding, line = pj.parse(case.spec), case.kind == LINE
    shown = (3, 4) if count == 14 else GRID
    site = pj.sites(count) if line else pj.grid(*shown, prefix=2)
    if Needs.RELATION in encoding.needs:
        site = with_relation(pj.sites(14) if line else pj.grid(3, 4, prefix=2), encoding)
    on_line = line or case.spec.startswith("raster")
    dims = pj.Dims(WIDTH, HEADS, HEAD_DIM, length=120 if on_line else None, grid=None if on_line else GRID, prefix=2)
    shapes = (len(site.segment), WIDTH), (3, WIDTH, HEADS, HEAD_DIM)
    params = jax.eval_shape(functools.partial(encoding.init, dims=dims), jax.random.key(0))
    return encoding, site, dims, (params, *(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes))


def same_types(function, *arguments):
    """Results and all that is computed for them have the types of a world without wide ones."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"):
        program, found = jax.make_jaxpr(function, return_shape=True)(*arguments)
    for jaxpr, _ in inner_jaxprs(program):
        for eqn in jaxpr.eqns:
            wide = [v.aval.dtype for v in eqn.outvars if v.aval.dtype in (np.float64, np.complex128)]
            wide += [np.dtype(np.uint64)] if eqn.params.get("bit_width") == 64 else []  # of random bits
            assert not wide, f"{wide[0]} of {eqn}"
    assert not {leaf.dtype.name for leaf in jax.tree.leaves(found)} & {"int64", "uint64", "float64", "complex128"}


@each_case(params_of())
def test_parameters_draws_and_attention(case):
    encoding, site, dims, arguments = settings(case, 14)
    same_types(functools.partial(encoding.init, dims=dims), jax.random.key(0))
    same_types(lambda params, key: encoding.place(params, site, key), arguments[0], jax.random.key(0))
    same_types(lambda params, x, weights: forward(encoding, params, x, site, weights), *arguments)


@pytest.mark.slow
@each_case(params_of_long())
def test_training_in_tiles_and_decoding(case):
    encoding, site, _, learned = settings(case, 70)

    def loss(learned, traced):
        told = dict(implementation="blockwise", causal=case.kind == LINE)
        return jnp.sum(forward(encoding, learned[0], learned[1], site._replace(**traced), learned[2], **told))

    def step(learned, site):
        params, x, weights = learned
        placed = encoding.place(params, site)
        cache = empty_cache(len(x), HEADS, HEAD_DIM, jax.eval_shape(encoding.observe, params, x, placed))
        token = jax.tree.map(lambda leaf: leaf[:1], placed)
        q, k, v, token = project(encoding, params, x[:1], token, weights, cache.site)
        return attend_cached(encoding, params, q, k, v, token, cache, consumed=BEFORE_ATTENTION)

    if Needs.WHOLE_POSITIONS in encoding.needs:
        same_types(jax.value_and_grad(loss), learned, dict(segment=site.segment))
    else:
        moving = dict(position=site.position.astype(np.float32))
        same_types(jax.value_and_grad(loss, argnums=(0, 1)), learned, moving)
    if not encoding.needs & (Needs.BOTH_DIRECTIONS | Needs.WHOLE_DOCUMENT):
        same_types(step, learned, site)


@pytest.mark.usefixtures("unchecked_shapes")  # annotations say float32 of what parameters in float32 give
@each_case(params_of_long(beside=["learned"]))
def test_parameters_in_float64(case):
    encoding, site, _, shapes = settings(case, 14)
    is_float = functools.partial(np.issubdtype, arg2=np.floating)

    def loss(params, x, weights):
        out = forward(encoding, params, x, site, weights, implementation="blockwise", causal=case.kind == LINE)
        assert out.dtype == x.dtype
        return jnp.sum(out.astype(jnp.float32))

    for dtype in (np.float64, jnp.bfloat16):
        params, x, weights = jax.tree.map(lambda s: s.update(dtype=np.float64) if is_float(s.dtype) else s, shapes)
        with jax.enable_x64(True), warnings.catch_warnings(action="error"):
            gradient = jax.grad(loss, argnums=(0, 1), allow_int=True)
            jax.eval_shape(gradient, params, x.update(dtype=dtype), weights)


COUNTS = [
    (name, field.name)
    for name in pj.names()
    for field in dataclasses.fields(registered(name))
    if int in (field.type, *typing.get_args(field.type))
]


def with_argument(name: str, argument: str, value: int):
    """The first variant of a member, with another value of one of its arguments."""
    case = MEMBERS[name].variants[0]
    return case._replace(spec=str(changed(pj.parse(case.spec), registered(name), {argument: value})))


def changed(value, cls: type, arguments: dict):
    """An encoding with other arguments of the encodings of one class within it."""
    if type(value) is tuple:
        return tuple(changed(part, cls, arguments) for part in value)
    if not isinstance(value, pj.Encoding):
        return value
    inner = {field.name: changed(getattr(value, field.name), cls, arguments) for field in dataclasses.fields(value)}
    return dataclasses.replace(value, **inner | (arguments if type(value) is cls else {}))


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(("name", "argument"), COUNTS)
def test_huge_arguments_end_at_once(name, argument):
    """They are refused in one line, or traced in seconds: no loop over their values, no array of their size."""
    started = time.process_time()
    try:
        case = with_argument(name, argument, 10**8)
        encoding, site, _, shapes = settings(case, 14)
        jax.eval_shape(lambda *learned: forward(encoding, *learned[:2], site, learned[2]), *shapes)
    except ValueError as error:
        assert "\n" not in str(error)  # noqa: PT017
    assert time.process_time() - started < 10
