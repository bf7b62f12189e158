"""Language models here beside transformers, family by family, and the cost of loading a large file.

    python tests/goldens/check_language.py save DIR
    /tmp/goldens/bin/python tests/goldens/make_language.py --saved DIR
    python tests/goldens/check_language.py table
    python tests/goldens/check_language.py encoders
    python tests/goldens/check_language.py large DIR
    /tmp/goldens/bin/python tests/goldens/make_language.py --logits DIR/large
    python tests/goldens/check_language.py large DIR

`save` writes the Llamas and GPT-2s, which transformers reads then.

`table` and `encoders` print the tables of docs/language.md, `large` its numbers on loading: files of Llama 3.1 8B's
configuration with 2 layers and a quarter of the width, of random numbers, loaded in a process of its own; and, where
transformers' logits lie beside them, the largest difference, of each token's over the largest logit.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import ml_dtypes
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
import posjax
from goldens import encoder_cases
from goldens.language_cases import CASES, errors, written
from posjax import pretrained

BOUND = 1e-4
COLUMNS = {
    "beyond": "one pass, beyond the trained length",
    "padded": "behind padding",
    "decoded": "token by token",
}
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


def save(folder: Path) -> None:
    for case, told in CASES.items():
        if told["config"]["model_type"] in ("llama", "gpt2"):
            with tempfile.TemporaryDirectory() as read:
                model, params = pretrained.load(written(case, Path(read)))
            pretrained.save(folder / case, model, params)


def encoders() -> float:
    columns = {"short": "9 tokens", "long": "21 tokens", "padded": "in padded batches", "decoded": "token by token"}
    return table(encoder_cases.CASES, encoder_cases.errors, encoder_cases.written, columns)


def table(cases=CASES, errors=errors, written=written, columns=COLUMNS) -> float:
    families: dict[str, list[dict[str, float]]] = {}
    for case, told in cases.items():
        with tempfile.TemporaryDirectory() as read:
            found = errors(case, *pretrained.load(written(case, Path(read))))
        families.setdefault(told["config"]["model_type"], []).append(found)
    print(f"| model_type | settings | {' | '.join(columns.values())} |")
    print(f"| --- | {' | '.join(['---:'] * (1 + len(columns)))} |")
    for family, found in families.items():
        each = [max((one[mode] for one in found if mode in one), default=None) for mode in columns]
        cells = ["-" if largest is None else f"{largest:.1e}" for largest in each]
        print(f"| `{family}` | {len(found)} | {' | '.join(cells)} |", flush=True)
    return max(max(one.values()) for found in families.values() for one in found)


def large(folder: Path) -> None:
    path = folder / "large"
    model = pretrained.language.FAMILIES["llama"].made(LARGE)
    model = model.with_fields(dtype=ml_dtypes.bfloat16, param_dtype=ml_dtypes.bfloat16)
    draw = np.random.default_rng(0)

    def drawn(leaf):
        return (0.02 * draw.standard_normal(leaf.shape, np.float32) + (leaf.ndim == 1)).astype(ml_dtypes.bfloat16)

    params = {"params": jax.tree.map(drawn, pretrained.parameters.expected_params(model)["params"])}
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


if __name__ == "__main__":
    what = sys.argv[1]
    run = dict(table=table, encoders=encoders, save=save, large=large)[what]
    worst = run(*map(Path, sys.argv[2:]))
    sys.exit(int((worst or 0) > BOUND))
