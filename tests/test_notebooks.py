"""The notebooks: each is the pair of its script, and the scripts run, on little."""

import json
import pathlib
import runpy
import tempfile

import matplotlib
import matplotlib.pyplot as plt
import pytest

import posjax.spec

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
    "from_zero": [],
    "trained_models": [],
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
    """Finds notebooks older than their scripts, or without outputs: `python docs/notebooks/make.py` makes them anew."""
    expected = MAKE["notebook"](MAKE["cells_of"](script.read_text()), {})
    made = read(script)
    assert [cell | dict(outputs=[]) if cell["cell_type"] == "code" else cell for cell in made["cells"]] == expected[
        "cells"
    ]
    assert {name: made[name] for name in made if name != "cells"} == {n: expected[n] for n in expected if n != "cells"}
    kinds = {output["output_type"] for cell in made["cells"] for output in cell.get("outputs", [])}
    assert kinds == {"stream", "display_data"}
    assert script.with_suffix(".ipynb").stat().st_size < 300_000


def test_there_are_no_others():
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == {path.stem for path in SCRIPTS} == SMALL.keys()


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(path, id=path.stem, marks=getattr(pytest.mark, "slow" if path == SCRIPTS[-1] else "thorough"))
        for path in SCRIPTS
    ],
)
def test_scripts_run(script, tmp_path, monkeypatch, capsys):
    text = script.read_text()
    for old, new in SMALL[script.stem]:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (tmp_path / "small.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(posjax.spec, "REGISTRY", dict(posjax.spec.REGISTRY))
    matplotlib.use("Agg")
    runpy.run_path("small.py", run_name="__main__")
    plt.close("all")
    assert capsys.readouterr().out
