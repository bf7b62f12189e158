"""The contenders of the suite `accelerator`: comparisons and calls that bring the worker down only if the device is lost."""

import time
from collections.abc import Mapping
from typing import Any

import flax
import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
import optax

import posjax
from experiments.benchmarks import jax_models, jax_side
from experiments.benchmarks.compiling import compiled_call
from experiments.benchmarks.contender import Call, Skip
from posjax.attention import backends
from posjax.describe.agreement import differences, make_layer, with_gradients

# What a kernel that was never run here may raise while it is traced, lowered, compiled or run. Anything else ends the worker,
# whose last words are then the record.
_FORESEEN = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
_CANNOT = "cannot compute this: "
_SIMULATED = "pallas_interpret"
_CALL_SECONDS, _MOST_RUNS = 0.05, 20


def start(threads: int) -> dict[str, str]:
    """The versions and the device that are measured."""
    device, platform = jax.devices()[0], jax.default_backend()
    versions = {each.__name__: each.__version__ for each in (jax, jaxlib, flax, optax, np, posjax)}
    memory = (device.memory_stats() or {}).get("bytes_limit")
    return versions | {
        "platform": "gpu" if platform in ("cuda", "rocm") else platform,
        "device": device.device_kind,
        "devices": str(jax.device_count()),
        "capability": str(getattr(device, "compute_capability", "")),
        "memory": "" if memory is None else str(memory),
    }


def prepare(case: Mapping[str, Any]) -> Call:
    """Returns the check that `case["kind"]` names: a call to be timed, or figures."""
    jax.clear_caches()
    try:
        call = _KINDS.get(case["kind"], _attention)(case)
    except _FORESEEN as error:
        raise Skip(_line(error)) from error
    return call._replace(figures={"peak_bytes": None, **call.figures})  # the host's memory says nothing of the device's


def _compare(case: Mapping[str, Any]) -> Call:
    """Every implementation that runs here against dense attention in float32, on the same q, k and v.

    On two documents with padding; on one without for an implementation that knows nothing else.
    """
    encoding, dtype = posjax.parse(case["spec"]), jnp.dtype(case["dtype"])
    sizes = dict(num_heads=case["heads"], kv_heads=case["kv_heads"], head_dim=case["head_dim"])
    sizes["num_axes"] = case["axes"]
    found: dict[str, dict[str, Any]] = {}
    with jax.default_matmul_precision("highest"):
        for plain in (False, True):
            layer = make_layer(encoding, case["length"], plain=plain, **sizes)
            given, expected = (layer.params, layer.x, layer.weights), None
            for name in _implementations(dtype):
                if "refused" not in found.get(name, {"refused": ""}):
                    continue
                found[name], program = _lowered(with_gradients(layer, name, dtype), given)
                if program is None:
                    continue
                if expected is None:
                    expected = jax.jit(with_gradients(layer, "dense", jnp.float32, given=dtype))(*given)
                found[name] = _errors(program, given, expected) | {"plain": plain}
    return Call(None, figures={"found": found})


def _implementations(dtype: Any) -> list[str]:
    """The implementations of this platform, untried ones last; and dense in half precision, as a scale of its errors."""
    platform = "gpu" if jax.default_backend() in ("cuda", "rocm") else jax.default_backend()
    own = [name for name in backends.names() if backends.backend(name).platform in (None, platform)]
    unwanted = {_SIMULATED} if platform != "cpu" else set()
    unwanted |= {"dense"} if dtype == jnp.float32 else set()
    return sorted(set(own) - unwanted, key=lambda name: (name == "pallas", name))


def _lowered(function, given):
    """({"refused" or "error": reason}, None), or ({}, the lowered program)."""
    try:
        return {}, jax.jit(function).lower(*given)
    except _FORESEEN as error:
        _, refused, reason = str(error).partition(_CANNOT)
        return ({"refused": reason.partition("; or take")[0]} if refused else {"error": _line(error)}), None


def _errors(program, given, expected) -> dict[str, Any]:
    try:
        return {"errors": dict(differences(jax.block_until_ready(program.compile()(*given)), expected))}
    except _FORESEEN as error:
        return {"error": _line(error)}


def _train(case: Mapping[str, Any]) -> Call:
    """A training step; with the device's peak of memory, which is that of this process."""
    call = jax_side.prepare(case)
    call.run()
    stats = jax.devices()[0].memory_stats() or {}
    return call._replace(figures={"peak_bytes": stats.get("peak_bytes_in_use")})


def _attention(case: Mapping[str, Any]) -> Call:
    """Several runs, if they are brief: a device that computes while the next one is sent is not timed with sending."""
    call = jax_side.prepare(case)
    call.run()
    began = time.perf_counter()
    call.run()
    return _sent(call, max(1, min(_MOST_RUNS, int(_CALL_SECONDS / (time.perf_counter() - began)))))


def _sent(call: Call, runs: int) -> Call:
    def run():
        for _ in range(runs):
            out = call.send()
        return jax.block_until_ready(out)

    return call._replace(run=run, figures={"runs": runs})


def _seeds(case: Mapping[str, Any]) -> Call:
    """A training step of several seeds: together in one vmap, or one behind the other."""
    step, *own, batch = jax_models.training(case, case["model"])
    if not case["together"]:
        return _sent(compiled_call(step, *own, batch), case["seeds"])._replace(
            figures={}
        )  # a call is one step of all seeds
    own = jax.tree.map(lambda leaf: jnp.stack([leaf] * case["seeds"]), own)
    return compiled_call(jax.vmap(step, in_axes=(0, 0, None)), *own, batch)


def _line(error: BaseException) -> str:
    """An error in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


_KINDS = {"compare": _compare, "train_decoder": _train, "train_vit": _train, "seeds": _seeds}
