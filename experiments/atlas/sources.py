"""The tables of the documentation that the atlas shows."""

import html
import pathlib
import re
from typing import Any, NamedTuple

# Spellings in texts of names that are ordinary words, or several words.
_SPELLED = {
    "Abacus": "abacus",
    "big_vision": "sincos2d_big_vision",
    "data-dependent ALiBi": "data_dependent_alibi",
    "Dual Chunk Attention": "dual_chunk",
    "dynamic NTK": "dynamic_ntk",
    "dynamic scalings": "dynamic_ntk",
    "Fourier features": "fourier",
    "Llama 4's temperature": "llama4_temperature",
    "randomized positions": "randomized",
    "rotary pairs": "rope",
    "scalable softmax": "ssmax",
    "Shaw": "shaw",
    "Swin v2": "swin_v2",
}
DOCS = pathlib.Path(__file__).parents[2] / "docs"


class Erratum(NamedTuple):
    """A row of docs/errata.md."""

    section: str
    what: str
    who: str
    posjax: str
    pinned: str


class Golden(NamedTuple):
    """A row of docs/goldens.md: the largest errors of an encoding; "-" where there is no reference."""

    cases: str
    formula: str
    references: tuple[str, ...]
    comparisons: str
    error: str
    bound: str


def errata(docs: pathlib.Path) -> list[Erratum]:
    """The disagreements of sources.

    Raises:
      ValueError: the folder has no errata.md.
    """
    return [Erratum(section, *cells) for section, cells in _rows(docs / "errata.md") if len(cells) == 4]


def goldens(docs: pathlib.Path) -> dict[str, Golden]:
    """Reads {name: errors} of goldens.md.

    Raises:
      ValueError: the folder has no goldens.md.
    """
    found = {}
    for _, (name, cases, formula, references, *rest) in _rows(docs / "goldens.md"):
        apart = () if references == "-" else tuple(references.split("; "))
        found[name.strip("`")] = Golden(cases, formula, apart, *rest)
    return found


def tour(docs: pathlib.Path) -> list[dict[str, Any]]:
    """Returns the questions of atlas.md, each with its steps: {"question", "steps"}; pages and choices stand between stars.

    Raises:
      ValueError: the folder has no atlas.md.
    """
    text = _text(docs / "atlas.md")
    _, _, rest = text.partition("## Three questions of a newcomer\n")
    found = re.split(r"^\*\*(.+)\*\*$", rest.partition("\n## ")[0], flags=re.MULTILINE)[1:]
    steps = [re.findall(r"^\d+\. (.+(?:\n   .+)*)", each, re.MULTILINE) for each in found[1::2]]
    return [
        {"question": question, "steps": [re.sub(r"\s+", " ", step) for step in each]}
        for question, each in zip(found[::2], steps, strict=True)
    ]


def _text(path: pathlib.Path) -> str:
    if not path.is_file():
        raise ValueError(f"{path} is missing: the atlas reads it from the repository's docs, so run it in a checkout")
    return path.read_text()


def _rows(path: pathlib.Path) -> list[tuple[str, list[str]]]:
    """Returns (heading, cells) of each row of a page's tables, without the rows that name the columns."""
    rows: list[tuple[str, list[str]]] = []
    heading, before = "", False
    for line in _text(path).splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        is_row = line.startswith("|")
        if is_row and before and not re.fullmatch(r"[|\s:-]+", line):
            cells = re.split(r"(?<!\\)\|", line.strip().strip("|"))
            rows.append((heading, [html.unescape(cell.strip().replace("\\|", "|")) for cell in cells]))
        before = is_row
    return rows


def names_in(text: str, names: frozenset[str]) -> set[str]:
    """Returns the registered names in a text: as code, or spelled as in papers (ALiBi, CoPE, T5, M-RoPE).

    Outside of code a word in lower case is not a name: "shape" and "window" are ordinary words.
    """
    code = " ".join(re.findall(r"`([^`]+)`", text))
    found = {word for word in re.findall(r"[a-z]\w*", code) if word in names}
    found |= {name for words, name in _SPELLED.items() if words in text}
    plain = {name.replace("_", ""): name for name in names}
    for word in re.findall(r"[A-Za-z][\w-]*", re.sub(r"`[^`]*`", " ", text)):
        if re.search(r"[A-Z0-9]", word[1:]) and (name := plain.get(re.sub(r"[-_]|'s$", "", word).lower())):
            found.add(name)
    return found
