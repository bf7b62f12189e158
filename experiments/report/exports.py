"""A study for papers and other programs: its tables in LaTeX, its records as CSV."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence

from experiments.records import Record
from experiments.report.table import StudyTable, TableCell

_FIELDS = ("study", "row", "encoding", "seed", "steps", "parameters", "learning_rate", "device")
_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        **{letter: f"\\{letter}" for letter in "&%$#_{}"},
        **{"≈": r"$\approx$", "±": r"$\pm$", "×": r"$\times$", "<": "$<$", ">": "$>$"},
    }
)


def latex(tables: Sequence[StudyTable]) -> str:
    """Returns the tables as tabulars of the package booktabs."""
    return "% needs \\usepackage{booktabs}\n" + "\n".join(map(_tabular, tables))


def _tabular(table: StudyTable) -> str:
    def line(label: str, cells: Iterable[TableCell]) -> str:
        texts = [(cell.text.translate(_LATEX), cell.bold) for cell in (TableCell(label), *cells)]
        return " & ".join(f"\\textbf{{{text}}}" if bold else text for text, bold in texts) + r" \\"

    head = line("row", map(TableCell, table.columns))
    rows = [line(row, cells) for row, cells in table.rows.items()]
    start, end = rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}", r"\end{tabular}"
    return "\n".join([f"% {table.title}", start, r"\toprule", head, r"\midrule", *rows, r"\bottomrule", end, ""])


def to_csv(records: Iterable[Record]) -> str:
    """Returns a line for each number of each record; `at` is its length, resolution, block or step."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_FIELDS, "metric", "at", "value"])
    for record in records:
        about = [getattr(record, name) for name in _FIELDS]
        for metric, found in record.metrics.items():
            for at, value in found.items() if isinstance(found, Mapping) else [("", found)]:
                place = "/".join(map(str, at)) if isinstance(at, tuple) else at
                writer.writerow([*about, metric, place, value])
    return text.getvalue()
