"""Writes the site: static files, and the data that the library makes for them.

A page that is opened from disk cannot read other files, but it can run scripts: each set of data is its own script,
``atlas.data("cards", {...})``, and another script shows it.
"""

import json
import math
import pathlib
import re
import shutil
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import vl_convert

from experiments.atlas import breaks, cards, charts, forms, images, landscapes, measured, models, sizes, trained, which
from experiments.atlas.sources import DOCS, tour
from experiments.report.families import FAMILIES
from experiments.report.html import to_html
from experiments.report.overview import Results
from posjax.describe.figures import GREY
from posjax.describe.scorecard.specs import every_name

STATIC = pathlib.Path(__file__).with_name("static")
SCRIPTS = (
    *("words.js", "charts.js", "live.js", "forms.js", "kinds.js", "home.js", "which.js", "map.js", "card.js"),
    *("landscape.js", "distance.js", "clocks.js", "scaling.js", "images.js", "compare.js", "measured.js", "sizes.js"),
    *("trained.js", "models.js", "errata.js", "breaks.js"),
)  # pages, in the order of the menu; atlas.js comes before them, start.js after

_REAL_MODELS = DOCS.parent / "results" / "real_models"
# The pages of published models: {folder: title}.
REAL_MODELS = {
    folder: title
    for title, folder in re.findall(
        r"^- \[(.+)\]\((.+)/README\.md\)$", (_REAL_MODELS / "README.md").read_text(), re.MULTILINE
    )
}
_ANSWERS = DOCS / "answers"
# Pages of the project that are part of the site, by their names there.
DOCUMENTS = {
    **{"answers" if path.stem == "index" else path.stem: path for path in sorted(_ANSWERS.glob("*.md"))},
    **{name: DOCS / f"{name}.md" for name in ("from_zero", "vit_and_llm", "glossary")},
    **{f"{name}.zh": DOCS / "zh" / f"{name}.md" for name in ("from_zero", "vit_and_llm")},
    "audit": DOCS / "audit.md",
    **{folder: _REAL_MODELS / folder / "README.md" for folder in REAL_MODELS},
}


def families() -> dict[str, Any]:
    """Returns colour, glyph and meaning of each family."""
    shown = {name: {"about": each.about, "color": each.color, "glyph": each.glyph} for name, each in FAMILIES.items()}
    return shown | {cards.MAPS: {"about": "moves of positions, before an encoding", "color": GREY, "glyph": "↷"}}


def home() -> dict[str, Any]:
    """Returns the words of the first page and its tour by language, the project's addresses, if any, and its licence."""
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["project"]
    words = tomllib.loads(pathlib.Path(__file__).with_name("home.toml").read_text())
    words["en"]["tour"] = tour(DOCS)
    return {"words": words, "urls": project.get("urls", {}), "license": project["license"]}


def answers() -> list[dict[str, str]]:
    """Returns the questions of docs/answers with answers, the names of their pages, and the words that a search finds."""
    pages = {path.resolve(): name for name, path in DOCUMENTS.items()}
    rows = re.findall(r"^\| (.+\?) \| \[(.+)\]\((.+)\) \|$", (_ANSWERS / "index.md").read_text(), re.MULTILINE)
    found = []
    for question, answer, address in rows:
        path = (_ANSWERS / address).resolve()
        words = path.read_text() if path.parent == _ANSWERS else ""
        found.append({"question": question, "answer": answer, "name": pages.get(path, "answers"), "words": words})
    return found


# Made from the records and the documentation.
DATA: Mapping[str, Callable[[Results], Any]] = {
    "home": lambda results: home(),
    "answers": lambda results: answers(),
    "families": lambda results: families(),
    "cards": cards.cards,
    "charts": lambda results: charts.charts(),
    "images": lambda results: images.images(),
    "forms": lambda results: forms.forms(),
    "measured": measured.measured,
    "which": which.which,
    "sizes": sizes.sizes,
    "trained": lambda results: trained.trained(),
    "models": lambda results: models.models() | {"pages": REAL_MODELS},
    "breaks": lambda results: breaks.all_bugs(DOCS),
    "errata": lambda results: breaks.errata_rows(DOCS),
}


def write_site(
    out: pathlib.Path, results: Results, compare: Sequence[str] = (), on_part: Callable[[str], None] = str
) -> list[pathlib.Path]:
    """Writes the site into `out`; returns the paths of its files.

    Args:
      out: the folder of the site.
      results: the committed records.
      compare: specs, and patterns over layers, that are compared with all registered encodings.
      on_part: called with the name of each part before it is made.

    Raises:
      ValueError: a page of the documentation is missing, or a spec to compare cannot be read or takes neither a line nor a
        grid.
    """
    out.mkdir(parents=True, exist_ok=True)
    (out / "data").mkdir(exist_ok=True)
    made = {}
    for name, make in DATA.items():
        on_part(name)
        made[name] = make(results)
    made["landscapes"] = landscapes.landscapes(results.cards, compare, on_part)
    for name, value in made.items():
        (out / "data" / f"{name}.js").write_text(f'atlas.data("{name}", {to_json(value)});\n')
    for path in sorted(STATIC.glob("*")):
        if path.name != "index.html":
            shutil.copyfile(path, out / path.name)
    (out / "vega.js").write_text(vl_convert.javascript_bundle())
    for name, path in DOCUMENTS.items():
        _write_document(path, out / f"{name}.html")
    shutil.copyfile(DOCS.parent / "LICENSE", out / "LICENSE.txt")
    (out / "index.html").write_text(_page(made))
    return sorted(path for path in out.rglob("*") if path.is_file())


def _write_document(source: pathlib.Path, path: pathlib.Path) -> None:
    """Writes a Markdown page of the project into the site, with its pictures; links to pages that the site lacks are text."""
    known = {document.resolve(): f"{name}.html" for name, document in DOCUMENTS.items()}

    def copied(match: re.Match) -> str:
        picture = (source.parent / match[2]).resolve()
        name = "_".join(picture.parts[-2:])
        shutil.copyfile(picture, path.parent / name)
        return f"![{match[1]}]({name})"

    def linked(match: re.Match) -> str:
        target = known.get((source.parent / match[2]).resolve())
        return f"[{match[1]}]({target})" if target else match[1]

    page = re.sub(r"!\[([^]]*)\]\(([^)]+\.png)\)", copied, source.read_text())
    page = re.sub(r"(?<!!)\[([^]]+)\]\(([^)#]+\.(?:md|ipynb))(?:#[^)]*)?\)", linked, page)
    language = source.parent.name if source.parent.parent == DOCS else "en"
    path.write_text(to_html(f"[Atlas](index.html)\n\n{page}", language))


def number_of_parts(compare: Sequence[str] = ()) -> int:
    """The number of parts that `write_site` makes."""
    return len(DATA) + len(compare) + len(every_name())


def _page(names: Iterable[str]) -> str:
    """Returns index.html with the scripts of all data and pages."""
    files = ["vega.js", "atlas.js", *(f"data/{name}.js" for name in names), *SCRIPTS, "start.js"]
    tags = "\n".join(f'<script src="{name}" defer></script>' for name in files)
    return (STATIC / "index.html").read_text().replace("<!-- scripts -->", tags)


def to_json(value: Any) -> str:
    """JSON of numbers with six digits; null for numbers that are not finite."""
    return json.dumps(_rounded(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _rounded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
