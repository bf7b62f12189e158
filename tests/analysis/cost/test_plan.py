"""What a plan predicts, against what the compiler says, what arrays hold and what arithmetic gives."""


import jax
import jax.numpy as jnp
import pytest

from posjax.analysis.cost import flops
from posjax.analysis.cost.devices import ACCELERATORS, Accelerator, accelerator
from posjax.analysis.cost.plan import Plan, predict


def counted(function, *shapes):
    given = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return flops.count(jax.make_jaxpr(function)(*given))


def test_products_loops_and_branches_are_counted():
    product = 2 * 3 * 4 * 5
    assert counted(jnp.dot, (3, 4), (4, 5)) == product
    assert counted(jax.vmap(jnp.dot, (0, None)), (7, 3, 4), (4, 5)) == 7 * product
    assert counted(lambda x: jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, jnp.ones((6, 4, 4)))[0], (3, 4)) == (
        6 * 2 * 3 * 4 * 4
    )
    assert counted(jax.checkpoint(jnp.dot), (3, 4), (4, 5)) == product
    assert counted(lambda x: jax.lax.cond(x[0] > 0, lambda: x @ x, lambda: x[0]), (9,)) == 2 * 9 + 1
    assert counted(lambda x: jnp.sum(x * x + 1), (9,)) == 27
    image, kernel = (1, 3, 8, 8), (5, 3, 2, 2)
    conv = counted(lambda x, w: jax.lax.conv(x, w, (2, 2), "VALID"), image, kernel)
    assert conv == 2 * (5 * 4 * 4) * 3 * 2 * 2


def test_a_prediction_is_arithmetic():
    one = Plan(2, 10, 20, 1, 100, 50, 10, 131, None, 4e3, half=False)
    slow = predict(one, Accelerator(half=200.0, single=100.0, bandwidth=1e3, memory=262.0))
    assert slow == pytest.approx((20.0, 50.0, 0.5))
    starved = predict(one, Accelerator(200.0, 100.0, 1.0, 262.0))
    assert starved.at_best == starved.typical == 2 * 130
    assert predict(one._replace(half=True), Accelerator(200.0, 100.0, 1e3, 262.0)).at_best == 10
    with pytest.raises(ValueError, match="h100"):
        accelerator("h10")
    assert all(0 < each.bandwidth < each.single <= each.half for each in ACCELERATORS.values())
