"""Golden vectors of ComRoPE, HARoPE and GRAPE, whose authors' code is no package:

    python -m venv /tmp/goldens && /tmp/goldens/bin/pip install torch==2.13.0 transformers==5.23.0
    /tmp/goldens/bin/python tests/goldens/make_groups.py

Their formulas are written down once more in torch, from the code of Longin-Yu/ComRoPE (model.py), Studentxll/HARoPE
(model/models_HARoPE.py) and model-architectures/GRAPE (model/llama-mha-grape-*.py): whole sequences, as they compute them.
"""

import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import transformers

HERE = Path(__file__).parent
VERSIONS = [f"{module.__name__} {module.__version__}" for module in (torch, transformers)]
HEADS, DIM, WIDTH, LENGTH = 3, 8, 12, 11
ROWS, COLUMNS = 3, 4


def patches():
    return torch.cartesian_prod(torch.arange(ROWS).float(), torch.arange(COLUMNS).float())


def logits(q, k):
    return torch.einsum("thc,shc->hts", q, k)


def comrope(q, k):
    """Blocks of 4 channels on 3 x 4 patches: positions (p + 1/2) / size, exponents summed over the axes."""
    out, block, axes = {}, 4, 2
    place = (patches() + 0.5) / torch.tensor([ROWS, COLUMNS])
    raw = torch.randn(HEADS, 1, DIM // block, block, block)
    multiplier = torch.randn(1, axes, DIM // block, 1, 1)
    owner = torch.zeros(1, axes, DIM // block, 1, 1)
    for axis in range(axes):
        owner[:, axis, axis::axes] = 1.0
    for kind, factor in (("linear", multiplier), ("axial", owner)):
        exponent = torch.einsum("ta,hanij->thnij", place, (raw - raw.mT) * factor)
        turn = torch.matrix_exp(exponent)
        turned = [(turn @ x.reshape(len(x), HEADS, -1, block, 1)).reshape(x.shape) for x in (q, k)]
        out[f"comrope_{kind}"] = logits(*turned)
    return out | {"comrope_raw": raw[:, 0], "comrope_multiplier": multiplier[0, :, :, 0, 0]}


def harope(q, k):
    """The two halves of the channels turn with the row and the column, in neighbouring pairs, base 10,000."""
    raw_u, raw_v = torch.randn(2, HEADS, DIM, DIM) / 2
    sigma = math.log(math.e - 1) + torch.randn(HEADS, DIM) / 2
    u, v = (torch.matrix_exp(0.5 * (raw - raw.mT)) for raw in (raw_u, raw_v))
    scale = F.softplus(sigma) + 1e-6
    forth, back = u @ torch.diag_embed(scale) @ v.mT, v @ torch.diag_embed(1 / scale) @ u.mT
    wave = 10_000.0 ** -(torch.arange(0, DIM // 2, 2) / (DIM // 2))
    angle = torch.cat([place[:, None] * wave for place in patches().T], dim=1)
    turn = torch.polar(torch.ones_like(angle), angle)[:, None]
    mapped = torch.einsum("thd,hed->the", q, forth), torch.einsum("thd,hde->the", k, back)
    turned = [
        torch.view_as_real(torch.view_as_complex(x.reshape(len(x), HEADS, -1, 2)) * turn).flatten(2) for x in mapped
    ]
    return {"harope_u": raw_u, "harope_v": raw_v, "harope_sigma": sigma, "harope_logits": logits(*turned)}


def slopes():
    return torch.tensor([2**-4, 2**-8, 2**-2]).view(HEADS, 1, 1)  # ALiBi's of two heads, and the first of four


def half_turned(x, angle):
    """GRAPE's rotation: by minus the angle, of the pairs (c, c + D/2)."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * angle.cos() + b * angle.sin(), b * angle.cos() - a * angle.sin()], dim=-1)


def additive(q, k):
    omega, (u, v) = torch.randn(HEADS), torch.randn(2, HEADS, DIM)
    place = torch.arange(LENGTH).float()
    distance = (place[:, None] - place).clamp_min(0)
    gate_k, gate_q = (
        F.softplus(torch.einsum("thd,hd->ht", x, F.normalize(w, dim=-1, eps=1e-6)) / math.sqrt(DIM))
        for x, w in ((k, u), (q, v))
    )
    rates = {"query": gate_q[:, :, None], "key": gate_k[:, None], "both": gate_q[:, :, None] + gate_k[:, None]}
    out = {
        f"a_{gate}": -distance * F.softplus(omega).view(HEADS, 1, 1) * slopes() * rate for gate, rate in rates.items()
    }
    return out | {"a_omega": omega, "a_v": v, "a_u": u}


def path(x):
    kernel = torch.randn(WIDTH, HEADS, 4)
    p = torch.einsum("tm,mhp->htp", x, kernel)
    rotated = half_turned(F.rms_norm(p, (4,)), torch.arange(LENGTH).float()[:, None].expand(-1, 2))
    edges = F.logsigmoid(p @ rotated.mT / 4) * slopes()
    seen = torch.ones(LENGTH, LENGTH).tril().bool()
    edges = edges.masked_fill(~seen, 0.0)
    bias = edges.sum(dim=-1, keepdim=True) - edges.cumsum(dim=-1)
    return {"ap_kernel": kernel, "ap_bias": bias.masked_fill(~seen, 0.0)}


def multiplicative(x, q, k):
    """With learned frequencies, by position and by contextual phases."""
    log_freq = torch.log(10_000.0 ** -(torch.arange(0, DIM, 2) / DIM)) + torch.randn(DIM // 2) / 4
    weight, bias = torch.randn(WIDTH, 1) * 5, torch.tensor([math.log(math.expm1(1e-3))])
    omega = torch.sigmoid((x @ weight + bias) / 16)
    phase = omega.cumsum(dim=0) - omega
    out = {"m_log_freq": log_freq, "m_kernel": weight, "m_bias": bias}
    for name, turns in (("nonctx", torch.arange(LENGTH).float()[:, None]), ("ctx", phase)):
        angle = (turns * log_freq.exp())[:, None]
        out[f"m_{name}"] = logits(half_turned(q, angle), half_turned(k, angle))
    return out


if __name__ == "__main__":
    torch.manual_seed(0)
    x, (q, k) = torch.randn(LENGTH, WIDTH), torch.randn(2, LENGTH, HEADS, DIM)
    image_q, image_k = torch.randn(2, ROWS * COLUMNS, HEADS, DIM)
    arrays = {"x": x, "q": q, "k": k, "image_q": image_q, "image_k": image_k}
    arrays |= comrope(image_q, image_k) | harope(image_q, image_k)
    arrays |= additive(q, k) | path(x) | multiplicative(x, q, k)
    arrays = {name: value.numpy() for name, value in arrays.items()}
    np.savez_compressed(HERE / "groups.npz", versions=np.array(VERSIONS), **arrays)
