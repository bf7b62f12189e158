"""Breaks posjax on purpose, one mutant at a time, in a copy of the tree, where the fast tests must fail.

    python tests/mutants.py [--only=WORDS]

Prints which test killed each mutant. Exits 1 where one is alive, or where the lines that it changes are not there exactly
once: then write them anew. The tree itself is not touched; its tests have to pass.

`MUTANTS` has for each: its mistake | a file | the tests that notice, below tests/, with pytest's options;
then, as in a diff, the lines that change. All of them once lived: the fast tests of their subject passed.
"""

import argparse
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from typing import NamedTuple

REPO = pathlib.Path(__file__).resolve().parents[1]
FOLDERS = ("configs", "docs", "experiments", "posjax", "tests")
FILES = ("README.md", "pyproject.toml")
GONE, ALIVE, NO_TEST = "LINES GONE", "ALIVE", "NO TEST RAN"


class Mutant(NamedTuple):
    name: str
    path: str
    tests: str
    old: str
    new: str


def read(text: str) -> list[Mutant]:
    mutants = []
    for block in text.strip().split("\n\n"):
        head, *lines = block.split("\n")
        old, new = ("\n".join(line[2:] for line in lines if line[0] == sign) for sign in "-+")
        mutants.append(Mutant(*(part.strip() for part in head.split("|")), old, new))
    return mutants


def copied_to(folder: pathlib.Path) -> None:
    for name in FOLDERS:
        shutil.copytree(REPO / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(REPO / name, folder / name)


def fate(mutant: Mutant, folder: pathlib.Path) -> str:
    """The test that kills it in this copy of the tree, or why none does."""
    path = folder / mutant.path
    whole = path.read_text()
    if whole.count(mutant.old) != 1:
        return GONE
    file, *options = shlex.split(mutant.tests)
    selected = ["-x", "-q", "-m", "not slow and not thorough", "--tb=no", f"tests/{file}", *options]
    command = [sys.executable, "-m", "pytest", *selected]
    path.write_text(whole.replace(mutant.old, mutant.new))
    try:
        # Without .pyc files: one of the last mutant, of the same size and second, would be taken for this one's.
        env = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    finally:
        path.write_text(whole)
    failed = re.search(r"^FAILED tests/(.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    return failed[1] if done.returncode == 1 and failed else ALIVE if done.returncode == 0 else NO_TEST


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", default="", metavar="WORDS", help="mutants whose name, file or tests hold these words"
    )
    only = parser.parse_args(arguments).only
    chosen = [mutant for mutant in read(MUTANTS) if only in f"{mutant.name} {mutant.path} {mutant.tests}"]
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        copied_to(pathlib.Path(folder))
        for mutant in chosen:
            found = fate(mutant, pathlib.Path(folder))
            bad += found in (GONE, ALIVE, NO_TEST)
            print(f"{mutant.path:34} {mutant.name:48} {found}", flush=True)
    print(f"{len(chosen)} mutants, {bad} not killed")
    return 1 if bad or not chosen else 0


MUTANTS = """
t5 starts too wide | posjax/encodings/bias.py | encodings/test_starting_widths.py -k t5
- return {"table": dims.width**-0.5 * jax.random.normal(key, shape, jnp.float32)}
+ return {"table": dims.head_dim**-0.5 * jax.random.normal(key, shape, jnp.float32)}

peg kernel without its root | posjax/encodings/convolution.py | encodings/test_starting_widths.py -k peg
- scale = (2 / math.prod(window)) ** 0.5
+ scale = 2 / math.prod(window)

selective_rope turns one way only | posjax/encodings/gates.py | encodings/test_starting_widths.py -k selective_rope
- minval=-(shape[0] ** -0.5), maxval=shape[0] ** -0.5
+ minval=0.0, maxval=shape[0] ** -0.5

fope noise without its root | posjax/encodings/rotary_generalised.py | encodings/test_starting_widths.py -k fope
- self.gain * (2 / (mixed * (count + dims.num_heads))) ** 0.5
+ self.gain * (2 / (mixed * (count + dims.num_heads)))

t5 floors below zero | posjax/encodings/pairs.py | encodings/test_arguments.py -k fractions
- jnp.clip(jnp.trunc(offset), -far, far)
+ jnp.clip(jnp.floor(offset), -far, far)

pose cuts and skips by one draw | posjax/encodings/randomizing.py | encodings/test_arguments.py -k pose
- below(skip_key, jnp.maximum
+ below(cut_key, jnp.maximum

alibi split hides the other side in kernels | posjax/encodings/bias.py | encodings/test_arguments.py -k split
- if self.direction == "split":
-             return jnp.where(constants[1] * offset[0].astype(jnp.float32) > 0
+ if self.direction == "split":
+             return jnp.where(constants[1] * offset[0].astype(jnp.float32) < 0

power kerple forgets the 2 | posjax/encodings/bias.py | encodings/test_arguments.py -k power
- p = 2 * jax.nn.sigmoid(params["p"])
+ p = jax.nn.sigmoid(params["p"])

dpb ignores log_distance | posjax/encodings/bias_network.py | encodings/test_arguments.py -k dpb
- log_offset(features) if self.log_distance else features
+ features

groups that see each other are passed over | posjax/attention/tiles.py | attention/test_tiles.py -k "missed and window"
- groups.append(tile_bounds((site, order), tokens, size * sides[-1]))
+ groups.append(tile_bounds((site, order), tokens & (jnp.arange(len(tokens)) % (size * sides[-1]) < size), size * sides[-1]))

global keys are not remembered | posjax/mask.py | attention/test_ring_buffer.py -k "slots"
- return Memory(1, math.ceil(first)) if first < math.inf else Memory()
+ return Memory(1) if first < math.inf else Memory()

splash window looks back only | posjax/attention/library.py | attention/test_scales.py -k splash
- library.LocalMask(shape, (window[0], 0 if causal else window[1]), 0)
+ library.LocalMask(shape, (window[0], 0), 0)

a forgotten sink is not missed | posjax/attention/cache.py | attention/test_scales.py -k missed
- among_first = (position < memory.first) | (low < memory.first) if memory.first else False
+ among_first = (position < memory.first) if memory.first else False

prefill forgets the scale | posjax/attention/cache.py | attention/test_scales.py -k cache
- implementation=implementation, scale=scale, softcap=softcap, consumed=consumed)
+ implementation=implementation, softcap=softcap, consumed=consumed)

a sink has the share of its opposite | posjax/attention/blockwise.py | attention/test_sinks_and_values.py -k share
- share = jax.nn.sigmoid(log_total - of_queries(part.own_heads(sink, sink.ndim - 1)))
+ share = jax.nn.sigmoid(log_total + of_queries(part.own_heads(sink, sink.ndim - 1)))

a sink gives logits no gradient | posjax/attention/blockwise.py | encodings/test_properties.py -k "tiles and learned_sink"
- jnp.moveaxis(out, 1, 0).astype(jnp.float32), axis=-1) - d_log_total
+ jnp.moveaxis(out, 1, 0).astype(jnp.float32), axis=-1)

values are turned twice | posjax/encodings/rotary.py | attention/test_sinks_and_values.py -k distance
- return rotated(out, -angle, layout)
+ return rotated(out, angle, layout)

a cache forgets to transform values | posjax/attention/cache.py | attention/test_sinks_and_values.py -k cache
- without_padding(v, site) if raw else here.v
+ without_padding(v, site)

outputs are transformed with what is read | posjax/attention/dense.py | encodings/test_properties.py -k "shallow and shaw"
- return {"read", "output"} <= encoding.hooks
+ return False

drop path keeps the size | posjax/models/block.py | models/test_training_noise.py -k branches
- jnp.where(keep, x / (1 - rate), 0)
+ jnp.where(keep, x, 0)

the last block never reaches drop_path | posjax/models/transformer.py | models/test_training_noise.py -k depth
- c.drop_path * layer / max(self.depth - 1, 1)
+ c.drop_path * layer / self.depth

no dropout behind the mlp | posjax/models/block.py | models/test_training_noise.py -k dropout
- return joined("mlp", behind, mlp(before), next(keys)), cache
+ return behind + mlp(before), cache

layer scale starts at one | posjax/models/block.py | models/test_training_noise.py -k layer_scales
- init = nn.initializers.constant(c.layer_scale)
+ init = nn.initializers.ones

lape shows peg no tokens | posjax/models/transformer.py | models/test_training_noise.py -k lape
- start = x if Needs.BOTH_DIRECTIONS in encoding.needs else jnp.zeros_like(x)
+ start = jnp.zeros_like(x)

every step draws alike | posjax/models/generate.py | models/test_generate.py -k step
- jax.random.fold_in(key, index), sampling
+ key, sampling

best by the longest length | posjax/training/evaluate.py | training/test_objective.py -k best
- value[min(value, key=int)]
+ value[max(value, key=int)]

parts share their randomness | posjax/training/step.py | training/test_objective.py -k part
- part_key = key if accumulate == 1 else jax.random.fold_in(key, index)
+ part_key = key

a batch of nothing divides by zero | posjax/training/step.py | training/test_objective.py -k nothing
- weight = jnp.maximum(weight, 1.0)
+ weight = jnp.maximum(weight, 0.0)

labels are smoothed by half | posjax/training/classification.py | training/test_objective.py -k smoothed
- jax.nn.one_hot(label, self.classes), self._config.label_smoothing)
+ jax.nn.one_hot(label, self.classes), self._config.label_smoothing / 2)

trained on other pixels than scored | posjax/training/classification.py | training/test_objective.py -k pixels
- self.standardised(image), self.site, train=True
+ image, self.site, train=True

native loss counts empty slots | posjax/training/classification.py | training/test_objective.py -k slots
- (losses * batch["weight"]).sum(), batch["weight"].sum()
+ (losses * batch["weight"]).sum(), jnp.float32(batch["weight"].size)

time before a stop is lost | posjax/training/clock.py | training/test_objective.py -k clock
- return self._elapsed + time.perf_counter() - self._began
+ return time.perf_counter() - self._began

answers weigh as text does | posjax/training/long_task.py | training/test_objective.py -k answer
- rows["weight"] = rows["weight"] * np.float32(self._weight)
+ rows["weight"] = rows["weight"] * np.float32(1)

all seeds cut text alike | posjax/data/pipelines.py | data/test_draws.py -k text
- np.random.default_rng((seed, e)).integers
+ np.random.default_rng(e).integers

mixup from a lopsided beta | posjax/data/augment.py | data/test_draws.py -k mixup
- beta = lambda key: jax.random.beta(key, self.alpha, self.alpha, dtype=jnp.float32)
+ beta = lambda key: jax.random.beta(key, self.alpha, 1.0, dtype=jnp.float32)

resolutions uniform in area | posjax/data/native.py | data/test_draws.py -k resolutions
- uniform(self.least**0.5, self.most**0.5, len(self))
-         return native_grids(self.images.size, np.clip(np.round(side**2)
+ uniform(self.least, self.most, len(self))
+         return native_grids(self.images.size, np.clip(np.round(side)

recall asks anywhere | posjax/data/retrieval.py | data/test_draws.py -k recall
- ** (_GAP_POWER - 1)
+ ** _GAP_POWER

a row leaves out what fills it | posjax/data/native.py | data/test_draws.py -k fills
- if room[r] >= need), len(rows))
+ if room[r] > need), len(rows))

a negative half-width | experiments/report/statistics.py | experiments/report/test_statistics.py -k unit
- self.half_width * abs(factor)
+ self.half_width * factor

tested on what was fitted | posjax/describe/scorecard/measures.py | describe/scorecard/test_scorecard.py -k fitted
- train, test = slice(0, 2000), slice(2000, None)
+ train, test = slice(0, 2000), slice(0, 2000)
"""


if __name__ == "__main__":
    sys.exit(main())
