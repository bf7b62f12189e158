"""Claims as the committed records decide them, so that a change of code is seen to change no verdict:

    python tests/goldens/make_claims.py

The file holds the verdict of each claim, its estimates (value, standard error, degrees of freedom) and Holm's p-value.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
REPO = HERE.parents[1]
sys.path.insert(0, str(REPO))

from experiments.report.overview import read_results


def judged() -> dict[str, Any]:
    """Claim id -> verdict, p and estimates, as results/ decides them now."""
    return {
        each.claim.id: {
            "verdict": each.verdict,
            "p": _number(each.p),
            "estimates": [[_number(found.value), _number(found.error), found.freedom] for found in each.estimates],
        }
        for each in read_results(REPO / "results").judged
    }


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


if __name__ == "__main__":
    (HERE / "claims.json").write_text(json.dumps(judged(), indent=1) + "\n")
