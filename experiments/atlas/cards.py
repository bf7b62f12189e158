"""The card of each encoding, read off its class, goldens, errata, the scorecard and the records."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from experiments.atlas.formulas import LETTERS, apart, mathml
from experiments.atlas.sources import DOCS, errata, goldens, names_in
from experiments.atlas.which import record_of
from experiments.report.families import MAPS, family_of
from experiments.report.overview import Results, matrix, name_of
from experiments.report.scorecard import MARKS, value_text
from experiments.report.table import seconds_of_step
from posjax.describe import catalogue
from posjax.describe.papers import titles
from posjax.describe.scorecard.card import MEASURES
from posjax.describe.scorecard.specs import measured_spec
from posjax.encoding import PositionMap
from posjax.spec import registered, registered_names

_LENGTH = 256  # tokens of the scorecard, and of the text in configs/decoder.py
_TRAIN = 'python -m experiments.train --config=configs/{config}.py --config.model.encoding="{spec}"'
_DIGITS = "python -m experiments.ablate --config=configs/papers/length_generalization.py"
_COMMANDS = {"abacus": _DIGITS, "position_coupling": _DIGITS}  # their positions are made from the digits of a problem
# Encodings with an argument for each of the 16 pairs of a head of configs/decoder.py, or for each of its 4 heads.
_SIZES = {"longrope": " --head-dim=32", "mrope": " --head-dim=32", "mhrope": " --num-heads=4"}
_FITTED = {
    "mhrope": "mhrope(heads=(1, 1, 2))",
    "clipped": "rope(scaling=clipped(count=4))",  # of the 4 pairs of a head of posjax explain
}
_YEAR = re.compile(r"(?:19|20)\d\d")


def cards(results: Results) -> dict[str, Any]:
    """A card for each registered encoding and frequency scaling, and their shared data.

    Raises:
      ValueError: a page of the documentation is missing.
    """
    proofs, studied, papers = goldens(DOCS), _studied(results), titles()
    # Scores by the name of what was scored: a scaling, a position map or an encoding.
    scored = {re.match(r"(?:rope\(scaling=)?(\w+)", spec)[1]: card for spec, card in results.cards.items()}
    names = frozenset(registered_names())
    named = [(row, names_in(" ".join(row[1:4]), names)) for row in errata(DOCS)]
    described = [*map(_of_encoding, catalogue.catalogue()), *map(_of_scaling, catalogue.values())]
    for card in described:
        name = card["name"]
        card |= {
            "formula": [[mathml(part) for part in apart(line)] for line in registered(name).formula],
            "titles": [title for key, title in papers.items() if key in card["words"]],
            "golden": proofs[name]._asdict() if name in proofs else None,
            "errata": [row._asdict() for row, about in named if name in about],
            "measured": _measured(scored.get(name)),
            "studied": studied.get(name, []),
        }
    return {
        "cards": described,
        "letters": [[mathml(letter, block=False), meaning] for letter, meaning in LETTERS],
        "meanings": catalogue.declared_meanings(),
        "measures": {
            key: {"group": each.group, "title": each.title, "about": each.about} for key, each in MEASURES.items()
        },
    }


def _of_encoding(row: catalogue.Facts) -> dict[str, Any]:
    """The class's own description."""
    spec = measured_spec(row.name, _LENGTH) or str(row.example)
    is_map = issubclass(row.cls, PositionMap)
    alone = f"{row.name}()"  # is a spec if all arguments have defaults
    shortest = alone if row.cls is type(row.example) and str(row.example) == alone and not is_map else spec
    return _shared(row.name, row.cls, row.family) | {
        "kind": "position map" if is_map else "encoding",
        "spec": shortest,
        "family": MAPS if row.cls.family == MAPS else family_of(spec),  # whatever encoding follows a map
        "acts": [catalogue.ACTS[hook] for hook in row.hooks],
        "learned": row.count if row.parameters is not None else None,
        "learns": catalogue.learns(row),
        "axes": list(row.dimensions),
        "relative": row.relative,
        "by_arguments": sorted(row.depends),
        "needs": list(row.needs),
        "reach": row.reach if math.isfinite(row.reach) else None,
        **_commands(row.name, spec, row.dimensions, row.needs),
    }


def _of_scaling(cls: type) -> dict[str, Any]:
    """The card of a frequency scaling, which stands in a rotary encoding and keeps its hooks."""
    name = cls.spec_name
    spec = measured_spec(name, _LENGTH) or f"rope(scaling={name}())"
    return _shared(name, cls, catalogue.defining_module(cls)) | {
        "kind": "frequency scaling",
        "spec": spec,
        "family": family_of(spec),
        "acts": ["changes frequencies"],
        "learned": 0,
        "learns": "nothing",
        "axes": list(catalogue.facts("rope").dimensions),
        "relative": True,
        "by_arguments": [],
        "needs": [],
        "reach": None,
        **_commands(name, spec, (1,), ()),
    }


def _shared(name: str, cls: type, module: str) -> dict[str, Any]:
    """The class's name and sources; `words` is its docstring before the sections of arguments, for the search."""
    text = catalogue.documentation(cls)
    citation = catalogue.citation(text)
    year = _YEAR.search(citation or "")
    return {
        "name": name,
        "summary": catalogue.summary(text),
        "words": " ".join(" ".join(catalogue.paragraphs(text)).split()),
        "citation": citation,
        "year": int(year[0]) if year else None,
        "arxiv": catalogue.arxiv_number(text),
        "module": f"posjax/encodings/{module}.py",
    }


def _commands(name: str, spec: str, dimensions: Sequence[int], needs: Sequence[str]) -> dict[str, str]:
    """Returns the spec in Python, in a config and on the command line; with images if the encoding needs more axes."""
    images = 1 not in dimensions or "both_directions" in needs or "axis(" in spec
    more = _SIZES.get(name, "")
    more += " --grid=4x4" if 1 not in dimensions or "axis(" in spec else ""
    # The digits of configs/vit.py are 4 x 4 patches.
    fitted = re.sub(r"\b(width|height)=\d+", r"\1=4", spec) if images else _FITTED.get(name, spec)
    train = _TRAIN.format(config="vit" if images else "decoder", spec=fitted)
    return {
        "python": f'encoding = pj.parse("{spec}")',
        "config": f'config.model.encoding = "{fitted}"',
        "train": _COMMANDS.get(name, train),
        "explain": f'posjax explain "{fitted}"{more}',
    }


def _measured(card: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The scorecard's measures: a mark and a value for each, and notes."""
    if card is None or "measures" not in card:
        return None
    cells = {key: [MARKS[cell["verdict"]], value_text(cell), cell["note"]] for key, cell in card["measures"].items()}
    return {"spec": card["encoding"], "on": card["measured_on"], "cells": cells}


def _studied(results: Results) -> dict[str, list[dict[str, Any]]]:
    """The difference of each encoding from no encoding in trainings, and the time of its steps."""
    found: dict[str, list[dict[str, Any]]] = {}
    for name, columns in matrix(results).items():
        for title, (answer, row) in columns.items():
            if row not in answer.against:
                continue
            gain, question = answer.gain(row).interval(), answer.question
            sign = ("ahead" if gain.mean > 0 else "behind") if answer.against[row].separated else "not settled"
            digits = question.unit.digits - (question.unit.scale == 100)
            text = f"{gain.mean:+.{digits}f} ± {gain.half_width:.{digits}f}"
            found.setdefault(name, []).append({"what": title, "sign": sign, "text": text, **record_of(question)})
        found.setdefault(name, []).extend(_costs(name, results))
    return found


def _costs(name: str, results: Results) -> Iterable[dict[str, Any]]:
    """Yields the time of a training step relative to `none`, for a study that ran alone, so that its times compare."""
    folder, study = "quickstart", "pydoc_decoder"
    records = results.folders.get(folder)
    rows = records.studies[study].rows if records and study in records.studies else {}
    own = next((found for found in rows.values() if name_of(found[0].encoding) == name), None)
    times = [seconds_of_step(found) for found in (own, rows.get("none")) if found]
    if len(times) == 2 and all(times):
        ratio = times[0] / times[1]
        about = {"folder": folder, "table": study, "metric": "loss", "at": None}
        yield {"what": "time of a step", "sign": "", "text": f"{ratio:.2f}×", "ratio": ratio, **about}
