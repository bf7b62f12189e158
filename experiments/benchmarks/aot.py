"""Programs for described machines, compiled where these are not: a config's own steps, and one layer of a model.

The report of a program says the bytes on each device by their holder ("parameters", "optimizer", "batch", "outputs" that take
no argument's place, "temporaries", "code"), what `hlo.read_program` reads, and "compile_seconds"; or "error", in one line.
"""

import functools
import hashlib
import pathlib
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from experiments.benchmarks.compiling import held_bytes
from experiments.benchmarks.contender import Call
from experiments.benchmarks.described import Machine, machine_of
from experiments.benchmarks.hlo import read_program
from experiments.benchmarks.jax_configs import cache_shapes, config_of, held_by
from posjax.describe.worlds import with_relation
from posjax.encoding import sites
from posjax.jsonl import append_jsonl, read_jsonl
from posjax.models import BlockConfig, Decoder, ViT
from posjax.spec import parse

if TYPE_CHECKING:
    from ml_collections import ConfigDict

    from posjax.training.step import State
    from posjax.training.tasks import Task

_VOCABULARY, _PATCH = 512, 16
_FULL = re.compile(r"Used ([\d.]+)([KMG]) of ([\d.]+)([KMG]) (\w+)")


def compile_config(case: Mapping[str, Any]) -> Call:
    """The training step of a config on a machine and, if it trains a decoder, a step of cached decoding.

    The case says `machine`, `arguments` and `imports` of a command line, and perhaps `cache`, a file of reports.
    """
    from posjax.training.loop import Programs

    machine, (config, seeds) = machine_of(case["machine"]), config_of(case)
    task = _task_on(machine, config)
    programs = Programs(task, config, seeds)
    state, batch = programs.arguments()
    parts = {"parameters": state.params, "optimizer": (state.opt_state, state.ema), "batch": batch}
    held = {name: held_by(part) for name, part in parts.items()}
    reports = {"training step": _report(programs.step.lower(state, batch), held, machine, case.get("cache"))}
    if isinstance(task.model, Decoder):
        arguments = _decoding(task.model, config, state, task.mesh)
        held = dict(zip(("parameters", "batch"), map(held_by, (arguments[0], arguments[1:])), strict=True))
        extend = jax.jit(functools.partial(_extend, task.model.with_fields(context=None)), donate_argnums=1)
        reports["decoding step"] = _report(extend.lower(*arguments), held, machine, case.get("cache"))
    return Call(None, figures={"programs": reports, "compiler": machine.compiler()})


def _task_on(machine: Machine, config: "ConfigDict") -> "Task":
    """Returns the task of a config whose mesh has the described devices; as many simulated ones checked its sizes."""
    from posjax.models.transformer import BlockModel
    from posjax.training.mesh import context_of, make_mesh
    from posjax.training.tasks import make_task

    task = make_task(config)
    task.mesh = make_mesh(config.get("mesh"), machine.devices())
    if isinstance(task.model, BlockModel):
        task.model = task.model.with_fields(context=context_of(task.mesh))
    return task


def _decoding(model: Decoder, config: "ConfigDict", state: "State", mesh: Mesh) -> tuple[Any, ...]:
    """Returns shapes of parameters, caches, a token and its site for a batch of the longest evaluated length."""
    from posjax.training.mesh import BATCH, batch_sharding

    def one(leaf):
        lies = NamedSharding(mesh, PartitionSpec(*leaf.sharding.spec[1:]))
        return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype, sharding=lies)

    def shared(leaf):
        lies = batch_sharding(mesh, leaf.shape, runs=False)
        if leaf.ndim == 4 and leaf.shape[1] % mesh.shape["tensor"] == 0:  # keys and values, by heads
            lies = NamedSharding(mesh, PartitionSpec(BATCH, "tensor"))
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=lies)

    params, batch, length = jax.tree.map(one, state.params), config.batch_size, max(config.eval_lengths)
    caches = cache_shapes(model.with_fields(context=None), {"params": params}, batch, length)
    token = jax.ShapeDtypeStruct((batch, 1), jnp.int32)
    site = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((batch, *leaf.shape), leaf.dtype), sites(1))
    return params, *jax.tree.map(shared, (caches, token, site))


def _extend(model: Decoder, params, caches, token, site):
    return model.apply({"params": params}, token, site, caches, method=Decoder.extend)


def compile_layer(case: Mapping[str, Any]) -> Call:
    """The program of `layer` on one chip of the case's `machine`."""
    machine = machine_of(case["machine"])
    step, (variables, batch) = layer(case, Mesh(np.array(machine.devices()[:1]), "data"))
    held = {"parameters": held_by(variables), "batch": held_by(batch)}
    report = _report(step.lower(variables, batch), held, machine, case.get("cache"))
    return Call(None, figures={"programs": {"layer": report}, "compiler": machine.compiler()})


def layer(case: Mapping[str, Any], mesh: Mesh | AbstractMesh) -> tuple[Any, tuple[Any, Any]]:
    """Returns a loss with its gradients, jitted, and shapes of variables and a batch, whole on each device of the mesh.

    The model is one layer of a decoder on `length` tokens, or of a ViT on a `grid` of patches where that is given. The case
    says also `spec`, `implementation`, `batch`, `heads` and `head_dim`.
    """
    batch, length, heads = case["batch"], case["length"], case["heads"]
    types = dict(dtype=jnp.bfloat16, implementation=case["implementation"])
    block = BlockConfig(width=heads * case["head_dim"], num_heads=heads, **types)
    encoding = parse(case["spec"])
    rngs = {"place": jax.random.key(0), "dropout": jax.random.key(1)}
    if case["grid"]:
        size = tuple(_PATCH * side for side in case["grid"])
        model = ViT(10, encoding, image_size=size, patch_size=_PATCH, block=block, depth=1)
        site, inputs, method = model.sites(*size), jax.ShapeDtypeStruct((batch, *size, 3), jnp.float32), None
        if 2 not in encoding.dimensions:  # images of one view
            site = site._replace(position=np.insert(site.position, 0, 0, axis=1))
    else:
        model = Decoder(_VOCABULARY, encoding, length=length, block=block, depth=1)
        site, inputs, method = sites(length), jax.ShapeDtypeStruct((batch, length), jnp.int32), Decoder.features

    site = with_relation(encoding, site)

    def loss(variables, inputs):
        out = model.apply(variables, inputs, site, train=True, rngs=rngs, method=method)
        return (jax.tree.leaves(out)[0].astype(jnp.float32) ** 2).sum()

    one = jnp.zeros((1, *inputs.shape[1:]), inputs.dtype)
    variables = jax.eval_shape(lambda: model.init(jax.random.key(0), one, site))
    whole = NamedSharding(mesh, PartitionSpec())
    placed = lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=whole)  # noqa: E731
    return jax.jit(jax.value_and_grad(loss)), jax.tree.map(placed, (variables, inputs))


def _report(
    lowered: jax.stages.Lowered, held: Mapping[str, int], machine: Machine, cache: str | None
) -> dict[str, Any]:
    """Returns the report of a program; of a program that was compiled before, the one in the file `cache`."""
    content = f"{machine.name} {machine.compiler()} jax {jax.__version__} {lowered.as_text()}"
    digest = hashlib.sha256(content.encode()).hexdigest()
    if cache is not None and pathlib.Path(cache).exists():
        for line in read_jsonl(cache):
            if line["digest"] == digest:
                return line["report"]
    began = time.perf_counter()
    try:
        program = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        return {"error": reason_of(str(error))}
    seconds, memory = time.perf_counter() - began, program.memory_analysis()
    report = {
        **held,
        "outputs": memory.output_size_in_bytes - memory.alias_size_in_bytes,
        "temporaries": memory.temp_size_in_bytes,
        "code": memory.generated_code_size_in_bytes,
        "held_bytes": held_bytes(program) + memory.generated_code_size_in_bytes,
        **read_program(program.as_text()),
        "compile_seconds": seconds,
        "error": None,
    }
    if cache is not None:
        append_jsonl(cache, [{"digest": digest, "report": report}])
    return report


def reason_of(message: str) -> str:
    """Returns a compiler's error in one line; of one that ran out of memory, how much it needs of how much there is."""
    if full := _FULL.search(message):
        needed, unit, there, of, where = full.groups()
        return f"does not fit: needs {needed} {unit}iB of {there} {of}iB ({where})"
    return " ".join(message.split())[:300]
