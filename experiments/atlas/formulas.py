"""Turns the formulas of encodings, LaTeX in their classes, into MathML for their cards.

A formula leaves out tokens that stand nowhere, several axes and how parameters start: the docstring of the encoding says
them, and tests compare the code with the paper, transcribed in float64.
"""

import re

import latex2mathml.converter

LETTERS = (
    ("m, n", "positions of a query and of a key"),
    ("p", "position of any token"),
    (r"\ell_{mn}", "logit, before the softmax"),
    ("b_{mn}", "what is added to a logit"),
    ("a_{mn}", "weight, behind the softmax"),
    ("h, H", "a head, counted from 1, and the number of heads"),
    ("c, D", "a channel or pair of channels, counted from 0, and the channels of a head"),
    ("M", "channels of a token"),
    (r"\theta_c", "angle by which a pair of channels turns from one position to the next"),
    (r"\beta", "base of the frequencies"),
    ("s", "factor by which a context grows"),
    ("w", "size of a window"),
    ("N, T", "trained length, and length of a document"),
)


def apart(latex: str) -> list[str]:
    """Splits a line into formulas at a comma and a wide space: a narrow page breaks the line there."""
    found, depth = [""], 0
    for piece in re.split(r"(,\\quad|\\left(?!arrow)|\\right|\\begin|\\end|[{}])", latex):
        if piece == r",\quad" and not depth:
            found[-1] += ","
            found.append("")
            continue
        depth += _DEEPER.get(piece, 0)
        found[-1] += piece
    return [part.strip() for part in found]


_DEEPER = {"{": 1, "}": -1, r"\left": 1, r"\right": -1, r"\begin": 1, r"\end": -1}


def mathml(latex: str, block: bool = True) -> str:
    """Returns a formula as MathML for the browser, with its LaTeX as text for readers who cannot see it."""
    made = latex2mathml.converter.convert(latex, display="block" if block else "inline")
    escaped = latex.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return made.replace("<math ", f'<math alttext="{escaped}" ', 1)
