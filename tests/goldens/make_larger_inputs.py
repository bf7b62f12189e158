"""Golden vectors of encodings made for inputs larger than the trained ones:

    git clone https://github.com/DTU-PAS/parabolic-position-encoding /tmp/pape  # commit 21cb390
    /tmp/goldens/bin/python tests/goldens/make_larger_inputs.py /tmp/pape

in the environment that tests/goldens/make.py describes; the result is larger_inputs.npz. Golden gate RoPE comes in no
package: it is transcribed from the classes for images and for any number of axes at jerryxio.ng/posts/nd-rope, in float64,
as in float32 its directions at 20 radians a unit err by 5e-5. HKUNLP/STRING (commit 216cc2f) needs a GPU: transcribed is the
decoding of string_for_llama.py, which joins two softmaxes by their normalisers, without its factor of 1 + 0.1 ln 2.
"""

import math
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import torch

HERE = Path(__file__).parent
VERSIONS = [f"torch {torch.__version__}"]
HEADS, DIM = 3, 12


def golden_gate():
    """Tokens turned by the class for images, on 4 x 4 and 3 x 5 patches, and by the other one, at places on three axes."""
    out, pairs, low, high = {}, DIM // 2, 0.2, 20.0
    still = round(0.3 * pairs)
    speed = torch.cat([torch.zeros(still), low * (high / low) ** torch.linspace(0, 1, pairs - still)])

    def turn(x, place, direction):
        a, b = x.chunk(2, -1)
        angle = torch.einsum("ta,hfa->thf", place, direction * speed[:, None])
        return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)

    phi = (torch.arange(HEADS * pairs) * (math.pi * (math.sqrt(5) - 1) / 2)).reshape(HEADS, pairs)
    direction = torch.stack([phi.cos(), phi.sin()], -1)
    for height, width in ((4, 4), (3, 5)):
        x = torch.randn(height * width, HEADS, DIM).float()
        far = math.sqrt(width / height)
        columns, rows = torch.linspace(-far, far, width), torch.linspace(-1 / far, 1 / far, height)
        place = torch.stack([columns.repeat(height), rows.repeat_interleave(width)], -1)
        out |= {f"golden_x_{height}x{width}": x, f"golden_{height}x{width}": turn(x, place, direction)}

    ratio = 2.0
    for _ in range(10):
        ratio = (1 + ratio) ** 0.25
    powers = (1 / ratio) ** torch.arange(1.0, 4)
    spread = torch.fmod(torch.arange(1.0, HEADS * pairs + 1)[:, None] * powers, 1.0)
    direction = torch.nn.functional.normalize(torch.erfinv(2 * spread - 1), dim=1).reshape(HEADS, pairs, 3)
    x, place = torch.randn(9, HEADS, DIM).float(), torch.randint(0, 5, (9, 3))
    return out | {"golden_x_3d": x, "golden_place_3d": place, "golden_3d": turn(x, place.double(), direction)}


def shifted(offset=5, local=2, length=14):
    """What each token of a row reads as the last one so far."""
    q, k, v = torch.randn(3, length, HEADS, DIM).float()
    frequency = 10_000.0 ** -(torch.arange(0, DIM, 2) / DIM)

    def turn(x, place):
        angle = (place[:, None] * frequency).repeat(1, 2)[:, None]
        return x * angle.cos() + torch.cat([-x[..., DIM // 2 :], x[..., : DIM // 2]], -1) * angle.sin()

    def part(q, k, v):
        logits = torch.einsum("hd,shd->hs", q, k) / math.sqrt(DIM)
        return torch.einsum("hs,shd->hd", logits.softmax(-1), v.double()), logits.logsumexp(-1, keepdim=True)

    place, out = torch.arange(length).double(), []
    keys = turn(k, place)
    for token in range(length):
        far = max(token + 1 - offset, 0)
        query, here = q[token : token + 1], place[token : token + 1]
        near, near_sum = part(turn(query, here)[0], keys[far : token + 1], v[far : token + 1])
        if far:
            other, other_sum = part(turn(query, here - offset + local)[0], keys[:far], v[:far])
            near = near * torch.sigmoid(near_sum - other_sum) + other * torch.sigmoid(other_sum - near_sum)
        out.append(near)
    return {"shifted_q": q, "shifted_k": k, "shifted_v": v, "shifted_out": torch.stack(out)}


def parabolas(clone):
    """Logits of the authors' modules on 3 x 4 patches, columns first, with queries and keys of 0: biases alone."""
    sys.path.insert(0, clone)
    configs = ModuleType("pape.configs")  # names types only, and imports packages for a command line
    configs.Config = configs.Positional = object
    sys.modules["pape.configs"] = configs
    from pape.nn.positions.pape import ParabolicPositionEncoder
    from pape.nn.positions.pape_ri import ParabolicRotationInvariantPositionEncoder

    width, count = 20, 5
    sizes = SimpleNamespace(hidden_size=width, num_heads=HEADS, head_size=DIM)
    config = SimpleNamespace(model=sizes, pape=SimpleNamespace(parabolas=count), num_positions=2)
    x = torch.randn(1, 12, width).float().double()
    position = torch.stack([torch.arange(1, 5).repeat(3), torch.arange(1, 4).repeat_interleave(4)], -1)[None].double()
    out = {"pape_x": x[0]}
    for name, encoder in (
        ("pape", ParabolicPositionEncoder(config)),
        ("pape_ri", ParabolicRotationInvariantPositionEncoder(config)),
    ):
        encoder.register_layer_weights()
        encoder.float().double()  # weights that float32 holds
        nothing = torch.zeros(1, HEADS, 12, DIM)
        q, k = encoder.encode_query_key(x, nothing, nothing, position)
        out[f"{name}_logits"] = (q @ k.mT)[0] * DIM**-0.5
        out |= {f"{name}_{key}": value for key, value in encoder.state_dict().items()}
    return out


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    arrays = {
        name: value.detach().numpy() for name, value in (golden_gate() | shifted() | parabolas(sys.argv[1])).items()
    }
    np.savez_compressed(HERE / "larger_inputs.npz", versions=np.array(VERSIONS), **arrays)
