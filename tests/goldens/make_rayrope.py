"""Golden vectors of RayRoPE, from the authors' code, which is in no package:

    git clone https://github.com/Lucas-707/RayRoPE /tmp/rayrope        # 52e3631 when last run
    TORCHDYNAMO_DISABLE=1 /tmp/goldens/bin/python tests/goldens/make_rayrope.py /tmp/rayrope

in the environment of tests/goldens/maker.py; the result is rayrope.npz. The file is run in float64, not compiled: as it is,
and with means between angles less than 0.01 apart.
"""

import sys

import torch
from make_cameras import COLUMNS, HEADS, HEIGHT, ROWS, VIEWS, WIDTH, cameras, module_of
from maker import noise, save

TOKENS, DIM = VIEWS * ROWS * COLUMNS, 48

if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    views, lenses = cameras()
    qkv = noise(3, HEADS, TOKENS, DIM, std=0.5).double()
    depths = (torch.tensor([0.5, 1.5]) + torch.randn(TOKENS, 2) * torch.tensor([0.5, 0.3])).float().double()
    sizes = dict(patches_x=COLUMNS, patches_y=ROWS, image_width=WIDTH, image_height=HEIGHT)
    attention = module_of(sys.argv[1], "pos_enc", "rayrope").RayRoPE_DotProductAttention(DIM, **sizes)
    attention._precompute_and_cache_apply_fns(views[None], lenses[None])
    arrays = {"as it is": attention(*qkv[:, None], predicted_d=depths[None])}
    torch.isclose = lambda a, b, **_: a == b  # the mean between close angles too, not the first one
    arrays["means"] = attention(*qkv[:, None], predicted_d=depths[None])
    arrays = {name: out[0].transpose(0, 1).float() for name, out in arrays.items()}
    arrays |= {"views": views.float(), "lenses": lenses.float(), "depths": depths.float()}
    save("rayrope", arrays | {"qkv": qkv.transpose(1, 2).half()}, packages=["torch"])
