"""BibTeX of the papers that encodings name: `posjax explain --cite`.

papers.bib has an entry for each paper, in the order of publication; its key is the arXiv number or the address that the
docstring of a class names, or else its title is named there.
"""

import ast
import pathlib
import re

from posjax.describe.catalogue import documentation
from posjax.spec import PATTERNS, REGISTRY, parse_layers

_ENTRY = re.compile(r"^@\w+\{([^\s,]+),\n.*?\n\}$", re.DOTALL | re.MULTILINE)
_TITLE = re.compile(r"^  title\s*= \{\{(.*)\}\},$", re.MULTILINE)


def entries() -> dict[str, str]:
    """Returns the text of every entry by its key."""
    text = pathlib.Path(__file__).with_name("papers.bib").read_text(encoding="utf-8")
    return {entry[1]: entry[0] for entry in _ENTRY.finditer(text)}


def titles() -> dict[str, str]:
    """Returns the title of every entry by its key."""
    return {key: _TITLE.search(entry)[1] for key, entry in entries().items()}


def papers_of(cls: type) -> list[str]:
    """Returns the keys of the papers that a class names, in the order of its docstring: the source comes first."""
    text = " ".join(documentation(cls).split())
    found = {key: max(text.find(key), text.find(title)) for key, title in titles().items()}
    return sorted((key for key in found if found[key] >= 0), key=found.__getitem__)


def cite(spec: str) -> str:
    """Returns BibTeX of the papers of every part of a spec; a pattern over layers has the papers of its layers too.

    Raises:
      ValueError: the text is no spec.

    >>> print(cite("rope + alibi").splitlines()[0])
    % rope: 2104.09864, 2403.13298
    """
    known, entry = REGISTRY | PATTERNS, entries()
    texts = [spec, *map(str, parse_layers(spec))]
    trees = [ast.walk(ast.parse(text.strip(), mode="eval")) for text in texts]
    names = dict.fromkeys(node.id for tree in trees for node in tree if isinstance(node, ast.Name))
    lines = []
    for name in names:
        keys = papers_of(known[name])
        lines.append(f"% {name}: {', '.join(keys) or 'names no paper'}")
        lines += [entry.pop(key) for key in keys if key in entry]
    return "\n".join(lines)
