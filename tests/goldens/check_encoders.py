"""Encoders here beside transformers, family by family:

    python tests/goldens/check_encoders.py table

`table` prints the table of docs/language.md. At the sizes of published models, with 2 layers and random weights:

    /tmp/goldens/bin/python tests/goldens/make_encoders.py --real DIR
    python tests/goldens/check_encoders.py real DIR
"""

import sys
from pathlib import Path

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
import posjax as pj
from goldens.check_language import BOUND, table
from goldens.encoder_cases import CASES, errors, written
from goldens.language_cases import error
from posjax import pretrained

COLUMNS = {"short": "9 tokens", "long": "21 tokens", "padded": "in padded batches", "decoded": "token by token"}


def real(folder: Path) -> float:
    """Folders with arrays.npz beside the weights: tokens, and transformers' logits."""
    worst = 0.0
    print("| configuration | tokens | largest error of logits |\n| --- | ---: | ---: |")
    for path in sorted(each for each in folder.iterdir() if each.is_dir()):
        model, params = pretrained.load(path)
        arrays = np.load(path / "arrays.npz")
        tokens = arrays["tokens"].astype(np.int32)
        site = pj.sites(tokens.shape[1])
        given = (tokens, site) if isinstance(model, pj.models.Encoder) else (tokens, site, tokens, site)
        found = error(jax.jit(model.apply)(params, *given), arrays["logits"])
        print(f"| {path.name} | {tokens.shape[1]} | {found:.1e} |", flush=True)
        worst = max(worst, found)
    return worst


if __name__ == "__main__":
    worst = table(CASES, errors, written, COLUMNS) if sys.argv[1] == "table" else real(Path(sys.argv[2]))
    sys.exit(int(worst > BOUND))
