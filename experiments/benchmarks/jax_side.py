"""The contenders that run in jax: ours, and jax's own."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import posjax
from experiments.benchmarks import jax_inputs, jax_models
from experiments.benchmarks.compiling import compiled_call, random_array
from experiments.benchmarks.contender import Call


def start(threads: int) -> dict[str, str]:
    """Loads the compiler, so that no cell's memory has it in; the versions that are measured."""
    compiled_call(jnp.sin, random_array(0, 1)).run()
    return {"jax": jax.__version__, "posjax": posjax.__version__}


def prepare(case: Mapping[str, Any]) -> Call:
    """The call that `case["kind"]` names, compiled for these sizes."""
    jax.clear_caches()
    return _KINDS[case["kind"]](case)


def _attend(case: Mapping[str, Any]) -> Call:
    """posjax.attend, causal; backward: gradients of q, k, v and the encoding's parameters.

    On one sequence, or on a "batch" of them; its sites are data, or "known" when it is traced.
    """
    heads, length, dim, site = case["heads"], case["length"], case["head_dim"], posjax.sites(case["length"])
    encoding = posjax.parse(case["spec"])
    params = encoding.init(jax.random.key(0), posjax.Dims(heads * dim, heads, dim, length=length))
    shape = ((case["batch"],) if "batch" in case else ()) + (length, heads, dim)
    q, k, v, d_out = (random_array(seed, *shape, dtype=jnp.dtype(case.get("dtype", "float32"))) for seed in range(4))
    options = dict(causal=True, implementation=case.get("implementation", "blockwise"))

    def forward(params, q, k, v, site=site):
        def one(q, k, v):
            return posjax.attend(encoding, params, q, k, v, site, site, **options)

        return jax.vmap(one)(q, k, v) if "batch" in case else one(q, k, v)

    return _either(case, forward, (params, q, k, v), () if case.get("known") else (site,), d_out)


def _temporaries(case: Mapping[str, Any]) -> Call:
    """The program of `_attend`, only compiled."""
    return _attend(case)._replace(run=None)


def _library(case: Mapping[str, Any]) -> Call:
    """jax.nn.dot_product_attention with the bias of an encoding, ALiBi's by default, as an array.

    One with parameters is made in every call, as training it needs that; any other beforehand.
    """
    heads, length, dim, dtype = case["heads"], case["length"], case["head_dim"], jnp.dtype(case.get("dtype", "float32"))
    q, k, v, d_out = (random_array(seed, case.get("batch", 1), length, heads, dim, dtype=dtype) for seed in range(4))
    encoding, site = posjax.parse(case.get("bias", "alibi")), posjax.sites(length)
    params = encoding.init(jax.random.key(0), posjax.Dims(heads * dim, heads, dim, length=length))
    options = dict(is_causal=True, implementation=case.get("implementation", "xla"))

    def made(params):
        one = np.zeros((length, heads, 1), np.float32)
        bias = encoding.bias(params, one, site, one, site)
        return jnp.broadcast_to(bias, (heads, length, length))[None].astype(dtype)

    if jax.tree.leaves(params):

        def forward(params, q, k, v):
            return jax.nn.dot_product_attention(q, k, v, made(params), **options)

        return _either(case, forward, (params, q, k, v), (), d_out)
    bias = (made(params),) if "bias" in encoding.hooks else ()
    return _either(case, lambda *given: jax.nn.dot_product_attention(*given, **options), (q, k, v), bias, d_out)


def _either(case: Mapping[str, Any], forward: Callable, learned: tuple, given: tuple, d_out) -> Call:
    """The forward pass (mode "f") or that and its gradients with respect to `learned` (mode "fb")."""
    if case["mode"] == "f":
        return compiled_call(forward, *learned, *given)

    def both(learned, given, d_out):
        return jax.vjp(lambda *learned: forward(*learned, *given), *learned)[1](d_out)

    return compiled_call(both, learned, given, d_out)


def _rotate(case: Mapping[str, Any]) -> Call:
    """An encoding's `rotate` of a batch of q and k at sites that are data; mode "b" is its backward pass alone."""
    encoding, dtype = posjax.parse(case["spec"]), jnp.dtype(case["dtype"])
    shape = (case["batch"], case["length"], case["heads"], case["head_dim"])
    q, k = (random_array(seed, *shape, dtype=dtype) for seed in range(2))

    def forward(q, k, site):
        return jax.vmap(lambda q, k: encoding.rotate((), q, site, k, site))(q, k)

    def backward(d_q, d_k, site):  # linear in q and k: their values are of no account
        return jax.vjp(lambda q, k: forward(q, k, site), d_q, d_k)[1]((d_q, d_k))

    return compiled_call(forward if case["mode"] == "f" else backward, q, k, posjax.sites(case["length"]))


def _copy(case: Mapping[str, Any]) -> Call:
    """A plain copy of q and k."""
    shape = (case["batch"], case["length"], case["heads"], case["head_dim"])
    q, k = (random_array(seed, *shape, dtype=jnp.dtype(case["dtype"])) for seed in range(2))
    return compiled_call(lambda q, k: (jnp.copy(q), jnp.copy(k)), q, k)


_KINDS = {
    "attend": _attend,
    "library": _library,
    "temporaries": _temporaries,
    "rotate": _rotate,
    "copy": _copy,
    "train_decoder": jax_models.train_decoder,
    "train_vit": jax_models.train_vit,
    "decode": jax_models.decode_steps,
    "llama": jax_models.llama,
    "published": jax_models.published,
    "score": jax_models.score,
    "input": jax_inputs.read_input,
}
