"""Programs for machines that are not here: their names, what is read from a compiled text, and compilers where installed."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest
from jax._src.cudnn import fused_attention_stablehlo
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

import posjax as pj
from experiments.benchmarks import aot, compiled, compiled_page, described
from experiments.benchmarks.hlo import IN_A_LOOP, read_program

REPO = pathlib.Path(__file__).parents[1]
TEXT = """\
HloModule jit_step, is_scheduled=true, num_partitions=8

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

%fused (a: bf16[8,4]) -> bf16[8,4] {
  %a = bf16[8,4]{1,0:T(8,128)(2,1)} parameter(0)
  ROOT %inner = bf16[8,4]{1,0} negate(%a), backend_config={"window_config":{"estimated_cycles":"1000"}}
}

%body (s: (s32[], bf16[8,4])) -> (s32[], bf16[8,4]) {
  %s = (s32[], bf16[8,4]{1,0}) parameter(0)
  %x.1 = bf16[8,4]{1,0} get-tuple-element(%s), index=1
  %_splash_attention.3 = (f32[2], bf16[8,4]) custom-call(%x.1), custom_call_target="tpu_custom_call", attributes={metadata={
"block":1024
}}, backend_config={"body":"TUz"}
  %gathered = bf16[16,4]{1,0:T(8,128)S(1)} all-gather(%x.1), dimensions={0}
  %cut = bf16[8,4]{1,0} reduce-scatter(%gathered), dimensions={0}, to_apply=%add
  ROOT %out = (s32[], bf16[8,4]) tuple(%s, %cut)
}

%condition (s.1: (s32[], bf16[8,4])) -> pred[] {
  %s.1 = (s32[], bf16[8,4]{1,0}) parameter(0)
  %bound = s32[]{:T(128)} constant(12)
  %i = s32[] get-tuple-element(%s.1), index=0
  ROOT %below = pred[]{:T(512)} compare(%i, %bound), direction=LT
}

%until (s.2: (s32[], bf16[8,4])) -> pred[] {
  %s.2 = (s32[], bf16[8,4]{1,0}) parameter(0)
  ROOT %flag = pred[] custom-call(%s.2), custom_call_target="Flag"
}

ENTRY %main (p: bf16[8,4]) -> bf16[8,4] {
  %p = bf16[8,4]{1,0} parameter(0)
  %state = (s32[], bf16[8,4]) tuple(%p)
  %fusion = bf16[8,4]{1,0} fusion(%p), calls=%fused, backend_config={"window_config":{"estimated_cycles":"50"}}
  %while = (s32[], bf16[8,4]) while(%state), condition=%condition, body=%body
  %known = (s32[], bf16[8,4]) while(%while), condition=%until, body=%body, backend_config={"known_trip_count":{"n":"2"}}
  %open = (s32[], bf16[8,4]) while(%known), condition=%until, body=%body
  %started = (bf16[8,4], f32[3]) all-reduce-start(%p, %p), to_apply=%add
  %done = (bf16[8,4], f32[3]) all-reduce-done(%started), backend_config={"estimated_cycles":"18446744073709551615"}
  ROOT %last = (bf16[8,4]{1,0}, /*index=1*/f32[3,2]{1,0}) all-reduce(%p), channel_id=1, to_apply=%add
}
"""


def test_a_text_tells_kernels_collectives_and_cycles():
    """Bodies of loops count as often as they run; tuples have the bytes of all their arrays."""
    read = read_program(TEXT)
    assert read["kernels"] == {"splash_attention": 12 + 2 + 1}
    assert read["collectives"] == {
        "all-gather": [14, 14 * 16 * 4 * 2],
        "all-gather" + IN_A_LOOP: [1, 16 * 4 * 2],
        "all-reduce": [2, (64 + 12) + (64 + 24)],
        "reduce-scatter": [14, 14 * 16 * 4 * 2],  # the larger end: what is summed
        "reduce-scatter" + IN_A_LOOP: [1, 16 * 4 * 2],
    }
    assert read["cycles"] == 50  # a fusion's estimate holds its parts


@pytest.mark.parametrize(
    ("name", "sides", "title"),
    [("v5e:2x4", (2, 4), "TPU v5e"), ("v5p:2x2x1", (2, 2, 1), "TPU v5p"), ("h100:64", (64,), "NVIDIA H100 80GB")],
)
def test_a_name_is_a_chip_and_its_number(name, sides, title):
    machine = described.machine_of(name)
    assert (machine.sides, machine.chip.title) == (sides, title)
    assert machine.environment["JAX_NUM_CPU_DEVICES"] == str(machine.size)


def test_half_of_a_compiler_is_none(monkeypatch):
    """Without jax_plugins, jax says that topologies are not implemented."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name == "jax_cuda12_plugin" else None)
    for name in ("jax_cuda12_plugin", "jax_plugins"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(ImportError, match=r"--compile=h100:8 needs jax_plugins: pip install .*\[cuda\]"):
        described.require_compilers([described.machine_of("h100:8")])


def test_an_error_of_memory_is_one_line():
    message = "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm.\nUsed 19.40G of 15.75G hbm. Exceeded"
    assert aot.reason_of(message) == "does not fit: needs 19.40 GiB of 15.75 GiB (hbm)"
    assert aot.reason_of("INTERNAL:\n  " + "x" * 400) == "INTERNAL: " + "x" * 290


REPORT = dict(parameters=2**30, optimizer=2**31, batch=2**20, outputs=0, temporaries=2**34, code=0, cycles=0)
REPORT |= dict(held_bytes=19 * 2**30, compile_seconds=7.0, error=None)
REPORT |= dict(kernels={"splash_attention": 24}, collectives={"all-reduce": [3, 2**20]})


def record(machine, skip=None, **programs):
    cell = {"machine": machine, "mode": "steps"}
    return {"cell": cell, "skip": skip, "programs": programs, "compiler": "libtpu 1"}


def test_the_table_of_a_config_says_what_fits():
    large = {"error": "does not fit: needs 19.40 GiB of 15.75 GiB (hbm)"}
    records = [record("v5e:2x4", **{"training step": REPORT, "decoding step": large}), record("h100:1", "no answer")]
    text = compiled_page.machines_text(records)
    assert "| fits | **no**, 120.6% |" in text
    assert "| attention kernels | 24 x splash_attention |" in text
    assert "| all-reduce | 3: 1 MiB |" in text
    assert "The decoding step does not fit: needs 19.40 GiB of 15.75 GiB (hbm)." in text
    assert text.endswith("no answer")


def layer(spec, kernels, cycles, implementation="auto", skip=None):
    cell = dict(machine="v5e:1x1", mode="layer", grid=False, spec=spec, implementation=implementation, title=spec)
    report = REPORT | {"kernels": kernels, "cycles": cycles}
    about = dict(processor="p", cpus=1, memory="m", platform="l", commit="c", date="2026-01-01")
    return {"cell": cell, "skip": skip, "suite": "compiled", "about": about, "load": None} | (
        {} if skip else {"programs": {"layer": report}, "compiler": "libtpu 1"}
    )


def test_the_page_compares_cycles_of_like_with_like():
    splash = {"splash_attention": 2}
    records = [
        layer("none()", {}, 4e6, "blockwise"),
        layer("none()", splash, 1e6),
        layer("rope()", splash, 15e5),
        layer("shaw()", {}, 8e6),
        layer("cope()", {}, 0, skip="ValueError: no"),
    ]
    text = compiled_page.compiled_text(records, left=3)
    assert "2 of 4 on one TPU v5e" in text
    assert "up to 2.0 times" in text
    assert "| splash | 16384 | 1.50 | 1.50 |" in text
    assert "| 8.00 | 2.00 |" in text
    assert "* cope(): ValueError: no" in text
    assert "3 programs are left" in text


def test_the_table_has_every_encoding_on_every_machine():
    titles = [cell["title"] for cell in compiled.compiled_suite().cells]
    assert len(set(titles)) == len(titles)
    assert all(
        any(title.startswith(f"{name}()") for title in titles) for name in ("none", "rope", "alibi", "sincos2d_mae")
    )
    for cell in compiled.compiled_suite().cells:
        assert cell["mode"] == "steps" or pj.parse(cell["spec"])


# Lowered without the compilers of TPUs and GPUs: kernels check their own programs then.
DEVICES = {
    "splash": ("tpu", AbstractDevice("TPU v5 lite", 1, "tpu")),
    "pallas_tpu": ("tpu", AbstractDevice("TPU v5 lite", 1, "tpu")),
    "cudnn": ("cuda", AbstractDevice("NVIDIA H100 80GB HBM3", None, "gpu")),
    "pallas": ("cuda", AbstractDevice("NVIDIA H100 80GB HBM3", None, "gpu")),
}


@pytest.mark.slow
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
    "kernel", ["splash", "pallas_tpu", "cudnn", pytest.param("pallas", marks=pytest.mark.thorough)]
)
def test_encodings_are_lowered_with_every_kernel_that_takes_them(kernel, every, monkeypatch):
    """The table's layers, shorter, of one encoding of each set of hooks, or of all; images have an odd number of tokens."""
    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91300)  # no cuDNN is here
    platform, device = DEVICES[kernel]
    mesh = AbstractMesh((1,), ("data",), abstract_device=device)
    sizes = dict(implementation=kernel, batch=2, length=256)
    lowered, failed = [], {}
    cells = [cell for cell in compiled.compiled_suite().cells if cell["mode"] != "steps"]
    cells = [cell for cell in cells if (cell["machine"], cell["implementation"]) == ("v5e:1x1", "auto")]
    of_hooks = {(pj.parse(cell["spec"]).hooks, bool(cell["grid"])): cell for cell in reversed(cells)}
    for cell in cells if every else of_hooks.values():
        try:
            with use_abstract_mesh(mesh):
                step, shapes = aot.layer({**cell, **sizes, "grid": cell["grid"] and (4, 64)}, mesh)
                traced = step.trace(*shapes)
                if kernel != "cudnn":  # whose lowering asks for real devices
                    assert "custom_call" in traced.lower(lowering_platforms=(platform,)).as_text()
            lowered.append(cell["title"])
        except (ValueError, TypeError, RuntimeError, NotImplementedError) as error:
            if "cannot compute this: " not in str(error):
                failed[cell["title"]] = error
    assert not failed
    assert "none(), v5e:1x1" in lowered
    assert len(lowered) > 4


SMALL = (
    *("--config=configs/decoder.py", "--config.model.depth=1", "--config.model.num_heads=2"),
    "--config.data.length=512",
    *("--config.model.dtype=bfloat16", "--config.eval_lengths=(512,)", "--config.data.positions=window"),
)


needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs libtpu: pip install -e '.[tpu]'"
)


def step_on(machine, options, folder):
    """What the compiler for a machine says of the training step of a config."""
    line = [sys.executable, "-m", "experiments.benchmark", "plan", *options, f"--compile={machine}", f"--out={folder}"]
    done = subprocess.run(line, cwd=REPO, env=os.environ | {"JAX_PLATFORMS": "cpu"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    (record,) = (json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines())
    return record["programs"]["training step"]


@pytest.mark.slow
@needs_libtpu
@pytest.mark.parametrize(
    ("options", "kernels", "kind"),
    [
        ([], True, "all-reduce"),
        (["--config.mesh.tensor=2", "--config.mesh.context=2"], True, "all-gather"),
        (["--config.model.encoding=t5", "--config.mesh.fsdp=2"], True, "all-gather"),  # pallas_tpu
        (["--config.model.encoding=fire"], False, "all-reduce"),
    ],
    ids=["data", "tensor and context", "a bias in the kernel", "no kernel"],
)
def test_a_training_step_is_compiled_for_eight_tpus(options, kernels, kind, tmp_path):
    step = step_on("v5e:2x4", [*SMALL, *options], tmp_path)
    assert bool(step["kernels"]) == kernels
    assert step["collectives"][kind][0] > 0
    assert 0 < step["parameters"] + step["temporaries"] < step["held_bytes"] < 2**30
    assert (tmp_path / "programs.jsonl").exists()


@pytest.mark.slow
@needs_libtpu
def test_softmax_and_its_gradient_take_few_cycles_on_tpus(tmp_path):
    """One layer of a ViT-S/16: 1.21 million cycles, and 1.51 where rows lie along lanes and each gradient is written down."""
    options = ["--config=configs/vit.py", "--config.data.image_size=(224,224)", "--config.data.channels=3"]
    options += ["--config.model.dtype=bfloat16", "--config.model.encoding=none", "--config.batch_size=16"]
    options += ["--config.model.width=384", "--config.model.num_heads=6", "--config.model.depth=1"]
    step = step_on("v5e:1x1", [*options, "--config.model.patch_size=16"], tmp_path)
    assert step["cycles"] < 1.3e6
