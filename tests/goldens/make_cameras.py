"""Golden vectors of encodings of cameras, from the authors' code, which is in no package:

    git clone https://github.com/liruilong940607/prope /tmp/prope      # 81c191e when last run
    git clone https://github.com/autonomousvision/gta /tmp/gta         # 1dcbd37 when last run
    /tmp/goldens/bin/pip install einops
    /tmp/goldens/bin/python tests/goldens/make_cameras.py /tmp/prope /tmp/gta

in the environment of tests/goldens/maker.py; the result is cameras.npz. Both files are run as they are, in float64. The JAX
file of PRoPE is compared with the torch file by the authors' own test.
"""

import importlib.util
import sys
from pathlib import Path

import torch
from maker import noise, save

VIEWS, ROWS, COLUMNS, HEADS, DIM = 3, 2, 4, 2, 16
HEIGHT, WIDTH, TRANSLATION = 20, 36, 0.3  # pixels; GTA's coefficient


def module_of(path, *parts):
    spec = importlib.util.spec_from_file_location(parts[-1], Path(path, *parts).with_suffix(".py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cameras():
    """Random rigid motions, and intrinsics in pixels."""
    turn, _ = torch.linalg.qr(torch.randn(VIEWS, 3, 3))
    views = torch.eye(4).repeat(VIEWS, 1, 1)
    views[:, :3, :3], views[:, :3, 3] = turn * torch.linalg.det(turn)[:, None, None], 0.5 * torch.randn(VIEWS, 3)
    lenses = torch.zeros(VIEWS, 3, 3)
    lenses[:, 0, 0], lenses[:, 1, 1] = 20 + 20 * torch.rand(VIEWS), 20 + 10 * torch.rand(VIEWS)
    lenses[:, 0, 2], lenses[:, 1, 2], lenses[:, 2, 2] = (
        WIDTH / 2 + torch.randn(VIEWS),
        HEIGHT / 2 + torch.randn(VIEWS),
        1,
    )
    return views.float().double(), lenses.float().double()


def gta(code, q, k, v, views):
    """Attention by SE(3) and SO(2), with the representations of the authors' encoder (source/encoder.py)."""
    coord = torch.tensor(code.make_2dcoord(ROWS, COLUMNS)).double().reshape(-1, 2).repeat(VIEWS, 1)[None]
    turns = code.make_SO2mats(coord, nfreqs=DIM // 8).flatten(-4, -3)
    reps = dict(so2rep_q=turns, so2rep_k=turns, so2fn=lambda a, x: torch.einsum("btcij,bhtcj->bhtci", a, x))
    reps |= dict(se3rep_q=torch.linalg.inv(views)[None], se3rep_k=torch.linalg.inv(views)[None])
    reps |= dict(inv_se3rep_q=views[None], se3fn=lambda a, x: torch.einsum("bnij,bhntcj->bhntci", a, x))

    def attend(q, k, v):
        weights = torch.softmax(q @ k.transpose(-1, -2) * DIM**-0.5, dim=-1)
        return weights @ v, weights

    sizes = {"se3": DIM // 2, "so2": DIM // 2}
    return code.multihead_geometric_transform_attention(q, k, v, attend, sizes, reps, TRANSLATION)[0]


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    views, lenses = cameras()
    q, k, v = noise(3, HEADS, VIEWS * ROWS * COLUMNS, DIM, std=0.5).double()[:, None]
    prope = module_of(sys.argv[1], "prope", "torch")
    sizes = dict(patches_x=COLUMNS, patches_y=ROWS, image_width=WIDTH, image_height=HEIGHT)
    arrays = {
        "prope": prope.prope_dot_product_attention(q, k, v, viewmats=views[None], Ks=lenses[None], **sizes),
        "without intrinsics": prope.prope_dot_product_attention(q, k, v, viewmats=views[None], Ks=None, **sizes),
        "gta": gta(module_of(sys.argv[2], "source", "utils", "gta"), q, k, v, views),
    }
    arrays = {name: out[0].transpose(0, 1).float() for name, out in arrays.items()}
    arrays |= {
        "views": views.float(),
        "lenses": lenses.float(),
        "qkv": torch.stack([q, k, v])[:, 0].transpose(1, 2).half(),
    }
    save("cameras", arrays, packages=["torch", "einops"])
