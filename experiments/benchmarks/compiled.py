"""The suites of described machines: the steps of a config; a layer under every encoding, and the steps of known models."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from experiments.benchmarks.cases import Contender, Suite
from experiments.benchmarks.described import Machine, machine_of
from experiments.benchmarks.findings import Cell
from posjax.describe.scorecard.specs import every_spec
from posjax.encoding import Needs
from posjax.spec import parse

LAYERS, STEPS = "layer", "steps"  # modes of cells
GRID = (32, 64)  # patches of a layer on images
MACHINES = ("h100:1", "v5e:1x1", "v6e:1x1")
LAYER = {"batch": 4, "length": 2048, "heads": 8, "head_dim": 64}
_SLICES = {"h100": ("h100:1", "h100:8", "h100:64"), "v5e": ("v5e:1x1", "v5e:2x4", "v5e:8x8")}
_DECODER = ("--config.data.positions=stream", "--config.model.dtype=bfloat16", "--config.model.scan=True")
_IMAGES = (
    *("--config=configs/vit.py", "--config.data.image_size=(224, 224)", "--config.data.channels=3"),
    *("--config.model.dtype=bfloat16", "--config.model.scan=True"),
)
_GPT2 = (
    *("--config=configs/decoder.py", *_DECODER, "--config.model.vocab_size=50304", "--config.model.encoding=learned"),
    *("--config.model.width=768", "--config.model.depth=12", "--config.model.num_heads=12"),
    *("--config.data.length=1024", "--config.eval_lengths=(1024,)"),
)
_LLAMA = (
    *("--config=configs/decoder.py:llama", *_DECODER, "--config.model.vocab_size=128256"),
    *("--config.model.encoding=rope(base=500000)", "--config.model.remat=full", "--config.model.tied_embedding=True"),
    *("--config.model.width=2048", "--config.model.depth=16", "--config.model.num_heads=32"),
    *("--config.model.num_kv_heads=8", "--config.model.mlp_dim=8192"),
    *("--config.data.length=2048", "--config.eval_lengths=(2048,)"),
)
# By model: its arguments, the rows of a batch on each chip, and its meshes by the number of chips; {}: all share the batch.
_MODELS: Mapping[str, tuple[Sequence[str], int, Mapping[int, Sequence[Mapping[str, int]]]]] = {
    "GPT-2 124M": (_GPT2, 16, {1: [{}], 8: [{}, {"fsdp": 4, "tensor": 2}], 64: [{}, {"fsdp": 16, "tensor": 4}]}),
    "Llama 1B": (
        *(_LLAMA, 4),
        {
            1: [{}],
            8: [{"fsdp": 8}, {"fsdp": 4, "tensor": 2}, {"fsdp": 4, "context": 2}],
            64: [{"fsdp": 64}, {"fsdp": 16, "tensor": 4}],
        },
    ),
    "ViT-S/16": ((*_IMAGES, "--config.model.variant=S/16"), 16, {1: [{}], 8: [{}], 64: [{}]}),
    "ViT-B/16": ((*_IMAGES, "--config.model.variant=B/16"), 16, {1: [{}], 8: [{}], 64: [{}]}),
}


def plan_suite(arguments: Sequence[str], imports: Sequence[str], machines: Sequence[Machine], cache: str) -> Suite:
    """The steps of the config that the arguments name, compiled for each machine; `cache` is a file of reports."""
    shared = {"kind": "compile", "arguments": list(arguments), "imports": imports, "cache": cache}
    cells = [{"title": machine.name, "mode": STEPS, "machine": machine.name} for machine in machines]
    return Suite([_contender(machine, shared) for machine in machines], cells)


def compiled_suite(*sizes: Any) -> Suite:
    """A layer with its gradients under every encoding on one chip, and training steps on slices; no `sizes` matter."""
    cells = [*_layers(), *_steps()]
    machines = [machine_of(name) for name in dict.fromkeys(cell["machine"] for cell in cells)]
    return Suite([_contender(machine, {"imports": []}) for machine in machines], cells)


def _contender(machine: Machine, case: Mapping[str, Any]) -> Contender:
    return Contender(machine.name, "jax", case, {"machine": [machine.name]}, environment=machine.environment)


def _layers() -> Iterator[Cell]:
    specs = ["none()", *(spec for spec in every_spec(LAYER["length"])[0] if spec != "none()")]
    for machine in MACHINES:

        def cell(spec: str, implementation: str, images: bool, machine: str = machine) -> Cell:
            note = " without a kernel" * (implementation == "blockwise") + " on images" * images
            shared = {"mode": LAYERS, "kind": "compile_layer", "machine": machine, "implementation": implementation}
            return {"title": f"{spec}{note}, {machine}", **shared, "spec": spec, "grid": images and GRID, **LAYER}

        yield from (cell("none()", "blockwise", images) for images in (False, True))
        yield cell("none()", "auto", True)
        for spec in map(_fitting, specs):
            encoding = parse(spec)
            yield cell(spec, "auto", 1 not in encoding.dimensions or Needs.BOTH_DIRECTIONS in encoding.needs)


def _fitting(spec: str) -> str:
    """Returns a spec of `every_spec`, for heads of 32 channels and square images, for those of `LAYER` and `GRID`."""
    spec = spec.replace("sections=(4, 6, 6)", "sections=(8, 12, 12)")
    spec = re.sub(r"raster\(width=\d+\)", f"raster(width={GRID[1]})", spec)
    return re.sub(r"_factor=\(([^)]*)\)", r"_factor=(\1, \1)", spec)


def _steps() -> Iterator[Cell]:
    for slices in _SLICES.values():
        for model, (arguments, rows, meshes) in _MODELS.items():
            for machine in map(machine_of, slices):
                for mesh in meshes[machine.size]:
                    line = ["plan", *arguments, f"--config.batch_size={rows * machine.size}"]
                    line += [f"--config.mesh.{axis}={size}" for axis, size in mesh.items()]
                    shape = " ".join(f"{axis}={size}" for axis, size in mesh.items()) or f"data={machine.size}"
                    names = {"machine": machine.name, "model": model, "mesh": shape}
                    title = f"{model}, {machine.name}, {shape}"
                    yield {"title": title, "mode": STEPS, "kind": "compile", "arguments": line, **names}
