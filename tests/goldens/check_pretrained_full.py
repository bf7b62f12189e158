"""Full-size pretrained ViTs here beside timm and transformers: the largest difference of any logit.

/tmp/goldens/bin/python tests/goldens/make_pretrained_full.py DIR
python tests/goldens/check_pretrained_full.py DIR [NAME ...]
"""

import sys
from pathlib import Path

import jax
import numpy as np
from pretrained_weights import images

from posjax import pretrained

BOUND = 1e-4


def main(folder: str, *names: str) -> int:
    worst = 0.0
    for path in sorted(Path(folder).iterdir()):
        if names and path.name not in names:
            continue
        weights = next(path.glob("weights.npz"), path)
        with np.load(path / "logits.npz", allow_pickle=False) as file:
            logits = dict(file)
        for key, theirs in logits.items():
            size = tuple(int(side) for side in key.split("x"))
            model, params = pretrained.load(weights, image_size=size)
            ours = np.asarray(jax.jit(model.apply)(params, images(*size), model.sites(*size)))
            error = float(np.abs(ours - theirs).max())
            worst = max(worst, error)
            print(f"| {path.name} | {key} | {np.abs(theirs).max():.1f} | {error:.1e} |", flush=True)
    return int(worst > BOUND)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
