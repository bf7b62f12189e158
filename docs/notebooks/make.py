"""Makes each notebook of this folder from the script of its name, with the outputs of running it.

    python docs/notebooks/make.py                        # all
    python docs/notebooks/make.py compare_encodings

A script is in jupytext's percent format: `# %%` begins a cell of code, `# %% [markdown]` one of text, all comments.
It runs as it stands, too. What a cell prints and shows (`plt.show()`) becomes its output; no Jupyter is needed.
"""

import base64
import contextlib
import io
import json
import pathlib
import re
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

FOLDER = pathlib.Path(__file__).parent
_OPENS = re.compile(r"^# %%(?P<markdown> \[markdown\])?$", re.MULTILINE)


class Cell(NamedTuple):
    kind: str  # "code" or "markdown"
    source: str


def cells_of(script: str) -> list[Cell]:
    """The cells of a script in percent format.

    Raises:
      ValueError: for text before the first cell, or a line of a markdown cell that is no comment.
    """
    before, *rest = _OPENS.split(script)
    if before.strip():
        raise ValueError(f"a script begins with # %% or # %% [markdown], not {before.strip().splitlines()[0]!r}")
    found = []
    for markdown, text in zip(rest[::2], rest[1::2], strict=True):
        text = text.strip("\n")
        if markdown:
            lines = text.splitlines()
            if wrong := [line for line in lines if line != "#" and not line.startswith("# ")]:
                raise ValueError(f"a markdown cell has comments only, not {wrong[0]!r}")
            text = "\n".join(line[2:] for line in lines)
        found.append(Cell("markdown" if markdown else "code", text))
    return found


def notebook(cells: list[Cell], outputs: dict[int, list[dict[str, Any]]]) -> dict[str, Any]:
    """The notebook, nbformat 4.5, of cells and of the outputs of those that have any, by their index."""
    made = []
    for index, cell in enumerate(cells):
        one = dict(cell_type=cell.kind, id=f"cell-{index}", metadata={}, source=_lines(cell.source))
        if cell.kind == "code":
            one |= dict(execution_count=None, outputs=outputs.get(index, []))
        made.append(one)
    kernel = dict(display_name="Python 3", language="python", name="python3")
    metadata = dict(kernelspec=kernel, language_info=dict(name="python"))
    return dict(cells=made, metadata=metadata, nbformat=4, nbformat_minor=5)


def outputs_of(cells: list[Cell], name: str) -> dict[int, list[dict[str, Any]]]:
    """Runs the cells of code in one namespace: by index, what each prints and shows, in that order."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    found, namespace = {}, {"__name__": "__main__"}
    shown = plt.show
    try:
        for index, cell in enumerate(cells):
            if cell.kind == "code":
                found[index] = outputs = []
                printed = io.StringIO()
                plt.show = _shows(plt, outputs, printed)
                with contextlib.redirect_stdout(printed):
                    exec(compile(cell.source, f"{name}, cell {index}", "exec"), namespace)
                _flush(outputs, printed)
    finally:
        plt.show = shown
    return found


def _flush(outputs: list[dict[str, Any]], printed: io.StringIO) -> None:
    """Turns the printed text into an output."""
    if text := printed.getvalue():
        outputs.append(dict(output_type="stream", name="stdout", text=_lines(text)))
    printed.seek(0)
    printed.truncate()


def _shows(plt: Any, outputs: list[dict[str, Any]], printed: io.StringIO) -> Callable[[], None]:
    """Returns a stand-in for `plt.show`: every open figure becomes an output, after the text printed so far."""

    def show():
        _flush(outputs, printed)
        for number in plt.get_fignums():
            png = io.BytesIO()
            plt.figure(number).savefig(png, format="png", dpi=80, metadata={"Software": None})
            image = {"image/png": base64.b64encode(png.getvalue()).decode(), "text/plain": ["<Figure>"]}
            outputs.append(dict(output_type="display_data", data=image, metadata={}))
        plt.close("all")

    return show


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def main(names: list[str]) -> int:
    """Writes the notebooks of these names, all where none is named."""
    for path in sorted(FOLDER.glob("*.py")):
        if path.name == "make.py" or (names and path.stem not in names):
            continue
        cells = cells_of(path.read_text())
        text = json.dumps(notebook(cells, outputs_of(cells, path.name)), indent=1, ensure_ascii=False)
        path.with_suffix(".ipynb").write_text(text + "\n")
        print(f"{path.with_suffix('.ipynb').name}: {len(cells)} cells, {len(text) / 1e3:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
