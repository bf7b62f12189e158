"""Colours, marks and type of every figure, and one way to write a figure."""

import io
import os
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from posjax.files import replace_file

GREY, INK = "#8a8a8a", "#222222"
# Colours of lines that are not encodings: Paul Tol's "muted" scheme, https://personal.sron.nl/~pault/, two of them darkened.
HUES = ("#332288", "#cc6677", "#117733", "#44aa99", "#882255", "#4a9fd0", "#999933", "#aa4499", "#b8922a")
MARKERS = "osD^vPX<>"
SMALL = 8  # points


def save(figure: Figure, path: str | os.PathLike, dpi: int = 200, colors: int | None = None) -> Path:
    """Writes a PNG, PDF or SVG by the path's suffix, atomically and without a date or version in it.

    Args:
      colors: of a palette, which makes line drawings a third as large; all colours if None.
    """
    path = Path(path)
    buffer = io.BytesIO()
    FigureCanvasAgg(figure)
    form = path.suffix[1:]
    undated = {"png": {"Software": None}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}[form]
    figure.savefig(buffer, format=form, dpi=dpi, facecolor="white", bbox_inches="tight", metadata=undated)
    if colors is not None:
        with Image.open(buffer) as image:
            fewer = image.convert("RGB").quantize(colors, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
        buffer = io.BytesIO()
        fewer.save(buffer, format="png", dpi=(dpi, dpi), optimize=True)
    replace_file(path, buffer.getvalue())
    return path
