"""Language models here beside transformers, family by family, and the cost of loading a large file.

    python tests/goldens/check_language.py save DIR
    /tmp/goldens/bin/python tests/goldens/make_language.py --saved DIR
    python tests/goldens/check_language.py table DIR
    python tests/goldens/check_language.py large DIR
    /tmp/goldens/bin/python tests/goldens/make_language.py --logits DIR/large
    python tests/goldens/check_language.py large DIR

`table` prints the table of docs/language.md, `large` its numbers on loading: files of Llama 3.1 8B's configuration with 2
layers and a quarter of the width, of random numbers, loaded in a process of its own; and, where transformers' logits lie
beside them, the largest difference, of each token's over the largest logit.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType

import jax
import ml_dtypes
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
import posjax
from goldens import language_cases
from posjax import pretrained

BOUND = 1e-4
MODES = ("beyond", "padded", "decoded", "saved")
LARGE = {
    "model_type": "llama",
    **dict(hidden_size=1024, intermediate_size=3584, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=2),
    **dict(vocab_size=128256, max_position_embeddings=131072, rms_norm_eps=1e-5, rope_theta=500000.0, head_dim=128),
    "rope_scaling": {
        **dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192),
        "rope_type": "llama3",
    },
    "tie_word_embeddings": False,
}
# Run in a new process: seconds, and the largest resident memory beyond that before loading, in MB.
_LOADING = """
import re, sys, time
import jax
from posjax import pretrained
jax.block_until_ready(jax.numpy.zeros(1))

def resident(which):
    return int(re.search(which + r":\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024

before, start = resident("VmRSS"), time.perf_counter()
model, params = pretrained.load(sys.argv[1])
jax.block_until_ready(params)
print(time.perf_counter() - start, resident("VmHWM") - before)
"""


def save(folder: Path, cases: ModuleType = language_cases) -> None:
    for case, golden in cases.CASES.items():
        with tempfile.TemporaryDirectory() as theirs:
            model, params = pretrained.load(cases.written(case, Path(theirs)))
        pretrained.save(folder / case, model, params, family=golden["config"]["model_type"])


def errors_by_family(folder: Path, cases: ModuleType = language_cases) -> dict[str, list[dict[str, float]]]:
    saved = json.loads((folder / "errors.json").read_text())
    families: dict[str, list[dict[str, float]]] = {}
    for case, golden in cases.CASES.items():
        with tempfile.TemporaryDirectory() as theirs:
            errors = cases.errors(case, *pretrained.load(cases.written(case, Path(theirs))))
        families.setdefault(golden["config"]["model_type"], []).append(errors | {"saved": saved[case]})
    return families


def table(folder: Path) -> float:
    families = errors_by_family(folder)
    print(
        "| model_type | settings | one pass, beyond the trained length | behind padding | token by token | saved here |"
    )
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for family, found in families.items():
        largest = [max((each[mode] for each in found if mode in each), default=0.0) for mode in MODES]
        print(f"| `{family}` | {len(found)} | {' | '.join(f'{error:.1e}' for error in largest)} |", flush=True)
    return max(max(each.values()) for found in families.values() for each in found)


def large(folder: Path) -> None:
    path = folder / "large"
    model = pretrained.language.FAMILIES["llama"].made(LARGE)
    model = model.with_fields(dtype=ml_dtypes.bfloat16, param_dtype=ml_dtypes.bfloat16)
    draw = np.random.default_rng(0)

    def drawn(leaf):
        return (0.02 * draw.standard_normal(leaf.shape, np.float32) + (leaf.ndim == 1)).astype(ml_dtypes.bfloat16)

    params = {"params": _map(drawn, pretrained.parameters.expected_params(model)["params"])}
    pretrained.save(path, model, params, shard_bytes=200 * 10**6)
    size = sum(file.stat().st_size for file in path.glob("*.safetensors")) / 2**20
    for _ in range(3):
        start = time.perf_counter()
        for file in path.glob("*.safetensors"):
            file.read_bytes()
        reading = time.perf_counter() - start
        told = subprocess.run([sys.executable, "-c", _LOADING, str(path)], capture_output=True, text=True, check=True)
        seconds, memory = map(float, told.stdout.split())
        print(
            f"{size:.0f} MB: read in {reading:.2f} s; loaded in {seconds:.2f} s with {memory / size:.2f} times its size"
        )
    if (path / "logits.npz").exists():
        model, params = pretrained.load(path, dtype=np.float32)
        with np.load(path / "logits.npz") as file:
            tokens, theirs = file["tokens"], file["logits"]
        ours = jax.jit(model.apply)(params, tokens[None], posjax.sites(len(tokens)))[0]
        print(f"{len(tokens)} tokens: {np.abs(ours - theirs).max() / np.abs(theirs).max():.1e}")


def _map(function, tree):
    return {k: _map(function, v) if isinstance(v, dict) else v and function(v) for k, v in tree.items()}


if __name__ == "__main__":
    what, where = sys.argv[1], Path(sys.argv[2])
    sys.exit(int((dict(save=save, table=table, large=large)[what](where) or 0) > BOUND))
