"""A decoder trained here, exported, and read by transformers: the largest difference of any logit.

python -m experiments.train --config=configs/decoder.py:llama --workdir=RUN
python -m experiments.export --checkpoint=RUN --out=DIR
python tests/goldens/check_exported.py ours DIR              # logits of random tokens, beside the weights
/tmp/goldens/bin/python tests/goldens/check_exported.py theirs DIR
"""

import sys
from pathlib import Path

import numpy as np

FILE, BOUND = "logits.npz", 1e-4  # of the largest logit
LENGTHS = (16, 200)


def ours(folder: Path) -> int:
    import jax

    import posjax as pj
    from posjax import pretrained

    model, params = pretrained.load(folder)
    tokens = np.random.default_rng(0).integers(0, model.vocab_size, max(LENGTHS)).astype(np.int32)
    logits = {str(n): np.asarray(jax.jit(model.apply)(params, tokens[None, :n], pj.sites(n))[0]) for n in LENGTHS}
    np.savez(folder / FILE, tokens=tokens, **logits)
    return 0


def theirs(folder: Path) -> int:
    import torch
    import transformers

    model, told = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    assert not any(told.values()), told
    found, worst = dict(np.load(folder / FILE)), 0.0
    for length in LENGTHS:
        with torch.no_grad():
            logits = model(torch.from_numpy(found["tokens"][None, :length].astype(np.int64))).logits[0].numpy()
        worst = max(worst, float(np.abs(logits - found[str(length)]).max() / np.abs(logits).max()))
        print(f"{length} tokens: {worst:.1e} of the largest logit")
    return int(worst > BOUND)


if __name__ == "__main__":
    sys.exit({"ours": ours, "theirs": theirs}[sys.argv[1]](Path(sys.argv[2])))
