"""Golden vectors of stick-breaking attention, from the authors' reference, which is in no package:

    git clone https://github.com/shawntan/stickbreaking-attention /tmp/sticks   # 3147a38 when last run
    /tmp/goldens/bin/python tests/goldens/make_sticks.py /tmp/sticks

in the environment that tests/goldens/maker.py describes; the result is sticks.npz. Of the package, which needs a GPU, only
sb_ref.py is run, with the masks of its tests.
"""

import runpy
import sys
from pathlib import Path

import torch
from maker import noise, save

STICKS = Path(sys.argv[1])
LENGTH, HEADS, DIM = 33, 3, 8


if __name__ == "__main__":
    torch.manual_seed(0)
    stickbreaking = runpy.run_path(str(STICKS / "stickbreaking_attention" / "sb_ref.py"))["stickbreaking"]
    q, k, v = arrays = [noise(LENGTH, HEADS, DIM) for _ in range(3)]
    by_head = [x.transpose(0, 1)[None] for x in arrays]
    after = torch.ones(LENGTH, LENGTH).tril(-1)
    found = {}
    for name, diagonal in (("before", 0), ("current", 1)):
        out, left = stickbreaking(*by_head, torch.ones(LENGTH, LENGTH).triu(diagonal).bool(), after)
        found |= {f"out_{name}": out[0].transpose(0, 1), f"left_{name}": left[0]}
    found |= {name: x.half() for name, x in zip("qkv", arrays, strict=True)}
    save("sticks", found, packages=["torch"])
