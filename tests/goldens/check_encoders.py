"""Encoders here beside transformers, family by family:

    python tests/goldens/check_encoders.py save DIR
    /tmp/goldens/bin/python tests/goldens/make_encoders.py --saved DIR
    python tests/goldens/check_encoders.py table DIR

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
from goldens import check_language, encoder_cases
from goldens.language_cases import error
from posjax import pretrained

BOUND = 1e-4
MODES = ("short", "long", "padded", "decoded", "saved")


def save(folder: Path) -> None:
    check_language.save(folder, encoder_cases)


def table(folder: Path) -> float:
    families = check_language.errors_by_family(folder, encoder_cases)
    print("| model_type | settings | 9 tokens | 21 tokens | in padded batches | token by token | saved here |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for family, found in families.items():
        each = [max((one[mode] for one in found if mode in one), default=None) for mode in MODES]
        cells = ["-" if largest is None else f"{largest:.1e}" for largest in each]
        print(f"| `{family}` | {len(found)} | {' | '.join(cells)} |")
    return max(max(one.values()) for found in families.values() for one in found)


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
    what, where = sys.argv[1], Path(sys.argv[2])
    sys.exit(int((dict(save=save, table=table, real=real)[what](where) or 0) > BOUND))
