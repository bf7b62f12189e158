"""Writes docs/goldens.md: the largest errors of every encoding, against references and against its formula in float64.

python tests/goldens/table.py
"""

import sys
from pathlib import Path

REPO = Path(__file__).parents[2]
sys.path[:0] = [str(REPO / "tests"), str(REPO)]

import jax
import numpy as np
import oracle
from cases import CASES, forward, world
from members import MEMBERS, VALUES

from goldens import CHECKS

OUT = REPO / "docs" / "goldens.md"
HEAD = """# Proof, in numbers

The largest absolute error of every encoding and frequency scaling in float32: of a layer of attention against the
formula of its paper transcribed in float64 (`tests/members`, {cases} cases, causal and not), and against independent
references (`tests/goldens`, {checks} comparisons of {covered} names). Written by `python tests/goldens/table.py`; the
bounds are tests. Rows without references have no independent implementation that runs.

| encoding | cases | formula in float64 | references | comparisons | largest error | bound |
| --- | ---: | ---: | --- | ---: | ---: | ---: |
"""


def formula_error(case) -> float:
    """The table of a layer with two documents and padding, as in tests/encodings/test_properties.py."""
    w = world(case)
    segment = np.where(np.arange(len(w.x)) < 2, 2, 1).astype(np.int32)
    segment[5] = 0
    w = w._replace(site=w.site._replace(segment=segment))
    return max(
        float(np.abs(forward(*w, causal=causal) - oracle.attention(*w, causal=causal)).max())
        for causal in (False, True)
    )


def rows(formula=formula_error, golden=lambda check: check.error) -> list[list[str]]:
    """One row per registered name; the errors are computed by the functions given."""
    table = []
    for name in sorted([*MEMBERS, *VALUES]):
        own = MEMBERS[name].variants if name in MEMBERS else [case for case in CASES if f"={name}(" in case.spec]
        checks = [check for check in CHECKS if check.encoding == name]
        references = sorted({check.reference for check in checks})
        row = [f"`{name}`", str(len(own)), f"{max(map(formula, own)):.1e}", "; ".join(references) or "-"]
        row += [str(len(checks) or "-")]
        row += (
            [f"{max(map(golden, checks)):.1e}", f"{max(check.atol for check in checks):.0e}"] if checks else ["-", "-"]
        )
        table.append(row)
    return table


def page(table: list[list[str]]) -> str:
    covered = len({check.encoding for check in CHECKS})
    lines = ["| " + " | ".join(row) + " |" for row in table]
    return HEAD.format(cases=len(CASES), checks=len(CHECKS), covered=covered) + "\n".join(lines) + "\n"


if __name__ == "__main__":
    jax.config.update("jax_disable_most_optimizations", True)
    OUT.write_text(page(rows()))
    print(f"{OUT}: {len(MEMBERS)} encodings, {len(VALUES)} values, {len(CHECKS)} comparisons")
