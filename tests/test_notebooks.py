"""The notebooks: each is the pair of its script, and the scripts run, on little."""

import json
import os
import pathlib
import runpy
import subprocess
import sys

import matplotlib.pyplot as plt
import pytest

REPO = pathlib.Path(__file__).parents[1]
FOLDER = REPO / "docs/notebooks"
MAKE = runpy.run_path(str(FOLDER / "make.py"))
SCRIPTS = [path for path in sorted(FOLDER.glob("*.py")) if path.name != "make.py"]
# What makes a script small: its text, and what stands there instead.
SMALL = {
    "compare_encodings": [
        (
            "LENGTHS, SEEDS, STEPS, BATCH = 64, (64, 256, 512), 3, 120, 8",
            "LENGTHS, SEEDS, STEPS, BATCH = 8, (8, 16), 2, 12, 2",
        ),
        ("block=BlockConfig(width=32, num_heads=2), depth=2", "block=BlockConfig(width=8, num_heads=2), depth=1"),
        ('    "learned": "learned(stddev=1)",\n    "rope": "rope",\n', ""),
        ("plt.subplots(1, 5", "plt.subplots(1, 3"),
        (', "#cc6677", "#117733"', ""),
    ],
    "your_own_model": [
        ("STEPS = 12, 24, 32, 2, 3, 120", "STEPS = 12, 24, 32, 2, 3, 3"),
        ('"alibi": "#44aa99", "rope(base=100)": "#117733", ', ""),
    ],
    "trained_models": [("plt.show()", "plt.close()")],
    "longer_context": [
        ("TRAINED, LONG, STEPS, BATCH = 64, 512, 300, 16", "TRAINED, LONG, STEPS, BATCH = 16, 64, 20, 4"),
        ("width=64, num_heads=4", "width=16, num_heads=4"),
        ("    depth=2,", "    depth=1,"),
        ("mlp_dim=128", "mlp_dim=16"),
    ],
}
each_script = pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)


def read(script):
    return json.loads(script.with_suffix(".ipynb").read_text())


@each_script
def test_a_notebook_is_the_pair_of_its_script(script):
    """Finds notebooks that are older than their scripts: `python docs/notebooks/make.py` makes them anew."""
    expected = MAKE["notebook"](MAKE["cells_of"](script.read_text()), {})
    made = read(script)
    assert [cell | dict(outputs=[]) if cell["cell_type"] == "code" else cell for cell in made["cells"]] == expected[
        "cells"
    ]
    assert {name: made[name] for name in made if name != "cells"} == {n: expected[n] for n in expected if n != "cells"}


@each_script
def test_a_notebook_has_its_outputs(script):
    outputs = [output for cell in read(script)["cells"] for output in cell.get("outputs", [])]
    kinds = [output["output_type"] for output in outputs]
    assert {"stream", "display_data"} <= set(kinds) <= {"stream", "display_data"}
    assert script.with_suffix(".ipynb").stat().st_size < 300_000


def test_there_are_no_others():
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == {path.stem for path in SCRIPTS} == SMALL.keys()


def test_cells_of_a_script():
    cells = MAKE["cells_of"](
        "# %% [markdown]\n# # Title\n#\n# words\n\n# %%\nx = 1\n\n\n# %%\nprint(x)  # %% no cell\n"
    )
    assert [tuple(cell) for cell in cells] == [
        ("markdown", "# Title\n\nwords"),
        ("code", "x = 1"),
        ("code", "print(x)  # %% no cell"),
    ]
    with pytest.raises(ValueError, match="begins with # %%"):
        MAKE["cells_of"]("import os\n# %%\n")
    with pytest.raises(ValueError, match="comments only, not 'x = 1'"):
        MAKE["cells_of"]("# %% [markdown]\nx = 1\n")


def test_outputs_of_cells():
    """Outputs keep the order of a cell's prints and figures; names persist between cells."""
    shown = plt.show
    source = 'import matplotlib.pyplot as plt\nprint("before")\nplt.figure(figsize=(1, 1))\nplt.show()\nx = "after"\nprint(x)'
    cells = [MAKE["Cell"]("code", source), MAKE["Cell"]("markdown", "words"), MAKE["Cell"]("code", "print(x * 2)")]
    found = MAKE["outputs_of"](cells, "a test")
    assert [output["output_type"] for output in found[0]] == ["stream", "display_data", "stream"]
    assert [output["text"] for output in (found[0][0], found[0][2], found[2][0])] == [
        ["before\n"],
        ["after\n"],
        ["afterafter\n"],
    ]
    assert found[0][1]["data"]["image/png"].startswith("iVBOR")
    assert set(found) == {0, 2}
    assert plt.show is shown
    with pytest.raises(ZeroDivisionError):
        MAKE["outputs_of"]([MAKE["Cell"]("code", "1 / 0")], "a test")
    assert plt.show is shown


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(path, id=path.stem, marks=getattr(pytest.mark, "slow" if path == SCRIPTS[-1] else "thorough"))
        for path in SCRIPTS
    ],
)
def test_scripts_run(script, tmp_path):
    text = script.read_text()
    for old, new in SMALL[script.stem]:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (tmp_path / "small.py").write_text(text)
    environment = os.environ | {
        "PYTHONPATH": str(REPO),
        "JAX_PLATFORMS": "cpu",
        "MPLBACKEND": "Agg",
        "TMPDIR": str(tmp_path),
    }
    done = subprocess.run([sys.executable, "small.py"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout
