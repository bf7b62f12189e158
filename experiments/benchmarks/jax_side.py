"""The contenders that run in jax: posjax, and jax's own; on a CPU or an accelerator."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import flax
import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
import optax

import posjax
from experiments.benchmarks import aot, jax_configs, jax_models, jax_reading, jax_training
from experiments.benchmarks.compiling import compiled_call, random_array
from experiments.benchmarks.contender import Call, Skip
from posjax.attention import backends
from posjax.describe.agreement import differences, make_layer, with_gradients

# Errors that a kernel which was never run here may raise while it is traced, lowered, compiled or run. Any other one ends the
# worker, whose last words are then the record.
_FORESEEN = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
_CANNOT = "cannot compute this: "
_SIMULATED = "pallas_interpret"
_CALL_SECONDS, _MOST_RUNS = 0.05, 20


def start(threads: int) -> dict[str, str]:
    """Loads the compiler, so that no cell's memory has it in; returns the versions and the device that are measured."""
    compiled_call(jnp.sin, random_array(0, 1)).run()
    device = jax.devices()[0]
    memory = (device.memory_stats() or {}).get("bytes_limit")
    return {module.__name__: module.__version__ for module in (jax, jaxlib, flax, optax, np, posjax)} | {
        "platform": _platform(),
        "device": device.device_kind,
        "devices": str(jax.device_count()),
        "capability": str(getattr(device, "compute_capability", "")),
        "memory": "" if memory is None else str(memory),
    }


def _platform() -> str:
    """The platform by posjax's name for it."""
    platform = jax.default_backend()
    return "gpu" if platform in ("cuda", "rocm") else platform


def prepare(case: Mapping[str, Any]) -> Call:
    """Returns the call of `case["kind"]`, compiled for these sizes, or its figures.

    An accelerator's peak of memory is that of this process, and is read for training steps alone.

    Raises:
      Skip: an error that leaves the device as it was.
    """
    jax.clear_caches()
    try:
        call = _KINDS[case["kind"]](case)
        if case.get("repeat"):
            call = _repeated(call)
        if _platform() == "cpu":
            return call
        peak = None
        if case["kind"].startswith("train"):
            call.run()
            peak = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    except _FORESEEN as error:
        raise Skip(_line(error)) from error
    return call._replace(figures={"peak_bytes": peak, **call.figures})


def _repeated(call: Call) -> Call:
    """Several runs, if they are brief: one is sent while the one before computes, so that sending is not timed."""
    call.run()
    began = time.perf_counter()
    call.run()
    runs = max(1, min(_MOST_RUNS, int(_CALL_SECONDS / (time.perf_counter() - began))))

    def run():
        for _ in range(runs):
            out = call.send()
        return jax.block_until_ready(out)

    return call._replace(run=run, figures={"runs": runs})


def _attend(case: Mapping[str, Any]) -> Call:
    """posjax.attend, causal; backward: gradients of q, k, v and the encoding's parameters.

    On one sequence, or on a "batch" of them; its sites are data, or "known" when it is traced.
    """
    encoding, params, site = _encoding(case, case["spec"])
    shape = ((case["batch"],) if "batch" in case else ()) + (case["length"], case["heads"], case["head_dim"])
    *inputs, d_out = _arrays(case, 4, *shape)
    options = dict(causal=True, implementation=case.get("implementation", "blockwise"))

    def forward(params, q, k, v, site=site):
        def one(q, k, v):
            return posjax.attend(encoding, params, q, k, v, site, site, **options)

        return jax.vmap(one)(q, k, v) if "batch" in case else one(q, k, v)

    return _either(case, forward, (params, *inputs), () if case.get("known") else (site,), d_out)


def _encoding(case: Mapping[str, Any], spec: str) -> tuple:
    """An encoding, its parameters and its sites for the sizes of a case."""
    encoding, heads, dim, length = posjax.parse(spec), case["heads"], case["head_dim"], case["length"]
    dims = posjax.Dims(heads * dim, heads, dim, length=length)
    return encoding, encoding.init(jax.random.key(0), dims), posjax.sites(length)


def _arrays(case: Mapping[str, Any], count: int, *shape: int) -> list[np.ndarray]:
    return [random_array(seed, *shape, dtype=jnp.dtype(case.get("dtype", "float32"))) for seed in range(count)]


def _library(case: Mapping[str, Any]) -> Call:
    """jax.nn.dot_product_attention with the bias of an encoding, ALiBi's by default, as an array.

    One with parameters is made in every call, as training it needs that; any other beforehand.
    """
    heads, length = case["heads"], case["length"]
    *inputs, d_out = _arrays(case, 4, case.get("batch", 1), length, heads, case["head_dim"])
    encoding, params, site = _encoding(case, case.get("bias", "alibi"))
    options = dict(is_causal=True, implementation=case.get("implementation", "xla"))

    def bias_of(params):
        one = np.zeros((length, heads, 1), np.float32)
        bias = encoding.bias(params, one, site, one, site)
        return jnp.broadcast_to(bias, (heads, length, length))[None].astype(d_out.dtype)

    if jax.tree.leaves(params):

        def forward(params, q, k, v):
            return jax.nn.dot_product_attention(q, k, v, bias_of(params), **options)

        return _either(case, forward, (params, *inputs), (), d_out)
    bias = (bias_of(params),) if "bias" in encoding.hooks else ()
    return _either(case, lambda *arrays: jax.nn.dot_product_attention(*arrays, **options), tuple(inputs), bias, d_out)


def _either(case: Mapping[str, Any], forward: Callable, learned: tuple, fixed: tuple, d_out) -> Call:
    """The forward pass (mode "f") or that and its gradients with respect to `learned` (mode "fb")."""
    if case["mode"] == "f":
        return compiled_call(forward, *learned, *fixed)

    def both(learned, fixed, d_out):
        return jax.vjp(lambda *learned: forward(*learned, *fixed), *learned)[1](d_out)

    return compiled_call(both, learned, fixed, d_out)


def _rotate(case: Mapping[str, Any]) -> Call:
    """An encoding's `rotate` of a batch of q and k at sites that are data; mode "b" is its backward pass alone."""
    encoding = posjax.parse(case["spec"])

    def forward(q, k, site):
        return jax.vmap(lambda q, k: encoding.rotate((), q, site, k, site))(q, k)

    def backward(d_q, d_k, site):  # linear in q and k: their values are of no account
        return jax.vjp(lambda q, k: forward(q, k, site), d_q, d_k)[1]((d_q, d_k))

    return compiled_call(forward if case["mode"] == "f" else backward, *_qk(case), posjax.sites(case["length"]))


def _qk(case: Mapping[str, Any]) -> list[np.ndarray]:
    return _arrays(case, 2, case["batch"], case["length"], case["heads"], case["head_dim"])


def _compare(case: Mapping[str, Any]) -> Call:
    """Every implementation that runs here against dense attention in float32, on the same q, k and v.

    On two documents with padding; on one without for an implementation that knows nothing else.
    """
    encoding, dtype = posjax.parse(case["spec"]), jnp.dtype(case["dtype"])
    sizes = dict(num_heads=case["heads"], kv_heads=case["kv_heads"], head_dim=case["head_dim"], num_axes=case["axes"])
    results: dict[str, dict[str, Any]] = {}
    with jax.default_matmul_precision("highest"):
        for plain in (False, True):
            layer = make_layer(encoding, case["length"], plain=plain, **sizes)
            inputs, expected = (layer.params, layer.x, layer.weights), None
            for name in _implementations(dtype):
                if "refused" not in results.get(name, {"refused": ""}):
                    continue
                try:
                    program = jax.jit(with_gradients(layer, name, dtype)).lower(*inputs)
                except _FORESEEN as error:
                    _, refused, reason = str(error).partition(_CANNOT)
                    short = reason.partition("; or take")[0]
                    results[name] = {"refused": short} if refused else {"error": _line(error)}
                    continue
                if expected is None:
                    expected = jax.jit(with_gradients(layer, "dense", jnp.float32, given=dtype))(*inputs)
                try:
                    outputs = jax.block_until_ready(program.compile()(*inputs))
                    results[name] = {"errors": dict(differences(outputs, expected)), "plain": plain}
                except _FORESEEN as error:
                    results[name] = {"error": _line(error), "plain": plain}
    return Call(None, figures={"found": results})


def _implementations(dtype: Any) -> list[str]:
    """The implementations of this platform, untried ones last; and dense in half precision, as a scale of its errors."""
    own = {name for name in backends.names() if backends.backend(name).platform in (None, _platform())}
    unwanted = {_SIMULATED} if _platform() != "cpu" else set()
    unwanted |= {"dense"} if dtype == jnp.float32 else set()
    return sorted(own - unwanted, key=lambda name: (name == "pallas", name))


def _line(error: BaseException) -> str:
    """An error in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


_KINDS = {
    "attend": _attend,
    "temporaries": lambda case: _attend(case)._replace(run=None),  # only compiled
    "library": _library,
    "rotate": _rotate,
    "copy": lambda case: compiled_call(lambda q, k: (jnp.copy(q), jnp.copy(k)), *_qk(case)),
    "compare": _compare,
    "train_decoder": lambda case: compiled_call(*jax_models.training(case, "decoder")),
    "train_vit": lambda case: compiled_call(*jax_models.training(case, "vit")),
    "decode": jax_models.decode,
    "llama": jax_models.llama,
    "published": jax_models.published,
    "score": jax_models.score,
    "config_step": jax_training.config_step,
    "config_call": jax_training.config_call,
    "read_images": jax_reading.images,
    "read_tokens": jax_reading.tokens,
    "input": jax_configs.read_input,
    "plan": lambda case: Call(None, figures=jax_configs.plan(*jax_configs.config_of(case))),
    "compile": aot.compile_config,
    "compile_layer": aot.compile_layer,
}
