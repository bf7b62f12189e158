"""Golden vectors of encodings that read the content, written in torch after their authors' code.

Run as tests/goldens/make.py says, with this file's name; the result is content.npz. Transcribed are SakanaAI/repo
(OLMo/olmo/model.py) and chuanyang-Zheng/DAPE (Alibi_DAPEV2 of megatron/model/positional_embeddings.py), and
flash-linear-attention (fla/layers/path_attn.py, fla/ops/path_attn/naive.py).
"""

from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

LENGTH, HEADS, DIM = 17, 3, 8
LONG, RANK = 70, 5  # more tokens than we multiply at once
WIDTH = HEADS * DIM


def noise(*shape, std=1.0):
    return (std * torch.randn(*shape)).half().float()  # small in the file, exact in any type


def repo(x, q, k):
    """Positions of each head by a gated layer of M / 8, without biases, and Llama's rotation there."""
    gate, content, place = (torch.nn.Linear(*sizes, bias=False) for sizes in [(WIDTH, 3), (WIDTH, 3), (3, HEADS)])
    for layer in (gate, content, place):
        layer.weight.data = noise(*layer.weight.shape, std=0.5)
    position = place(F.silu(gate(x)) * content(x))
    angle = position[..., None] / 500_000.0 ** (torch.arange(0, DIM, 2) / DIM)
    cos, sin = (torch.cat([part, part], dim=-1) for part in (angle.cos(), angle.sin()))

    def turned(y):
        a, b = y.chunk(2, dim=-1)
        return y * cos + torch.cat([-b, a], dim=-1) * sin

    out = {name: layer.weight.T for name, layer in dict(gate=gate, content=content, place=place).items()}
    return {f"repo_{name}": y for name, y in (out | {"q": turned(q), "k": turned(k)}).items()}


def dape(q, k):
    """ALiBi and two convolutions over the keys of the lower triangle; they read keys to its right as zeros."""
    products = torch.einsum("ihd,jhd->hij", q, k) / DIM**0.5
    place = torch.arange(LENGTH)
    slopes = torch.tensor([2**-4, 2**-8, 2**-2])  # of two heads, and the first of four
    bias = -slopes[:, None, None] * (place[:, None] - place).clamp(min=0)
    layers = [torch.nn.Conv2d(*sizes, (1, 3), padding=(0, 1)) for sizes in [(2 * HEADS, 5), (5, HEADS)]]
    adapted = F.leaky_relu(layers[0](torch.cat([products, bias])[None].tril()))
    out = {"dape_bias": bias + layers[1](adapted)[0]}
    for n, layer in enumerate(layers):
        out |= {f"dape_kernel_{n}": layer.weight[:, :, 0].permute(2, 1, 0), f"dape_bias_{n}": layer.bias}
    return out


def path():
    """Causal attention with PaTH's products and forget gates, as of one chunk that holds all tokens."""
    x, q, k, v = noise(LONG, WIDTH), *(noise(LONG, HEADS, DIM) for _ in range(3))
    down, up = noise(WIDTH, RANK, std=0.5), noise(RANK, WIDTH, std=0.5)
    conv = torch.nn.Conv1d(WIDTH, WIDTH, 3, groups=WIDTH, padding=2, bias=False)
    conv.weight.data = noise(WIDTH, 1, 3)
    kernel, offset, gate = noise(WIDTH, HEADS, std=0.2), noise(HEADS), noise(WIDTH, HEADS, std=0.2)
    w = F.silu(conv((x @ down @ up).T[None])[0, :, :LONG].T).reshape(LONG, HEADS, DIM)
    w = w / torch.sqrt(w.square().sum(dim=-1, keepdim=True) + 1e-6)
    beta = 2 * torch.sigmoid(x @ kernel + offset)
    forgotten = F.logsigmoid(x @ gate).cumsum(dim=0).T
    by_head = [y.transpose(0, 1).double() for y in (q, k, w, w * beta[..., None])]
    queries, keys, vectors, scaled = by_head
    below = torch.ones(LONG, LONG).tril(-1).double()
    inverse = torch.linalg.inv(torch.eye(LONG) + (scaled @ vectors.mT) * below)
    logits = queries @ keys.mT - (queries @ vectors.mT).tril() @ inverse @ ((scaled @ keys.mT) * below)
    hidden = ~torch.ones(LONG, LONG).tril().bool()
    out = {}
    for name, sums in (("path", 0.0), ("path_fox", forgotten[:, :, None] - forgotten[:, None])):
        weights = ((logits + sums) / DIM**0.5).masked_fill(hidden, -torch.inf).softmax(dim=-1)
        out[f"{name}_out"] = torch.einsum("hts,shd->thd", weights.float(), v)
    out |= dict(path_x=x, path_q=q, path_k=k, path_v=v, path_down=down, path_up=up.reshape(RANK, HEADS, DIM))
    out |= dict(path_taps=conv.weight[:, 0].T.reshape(3, HEADS, DIM), path_kernel=kernel, path_bias=offset)
    return out | dict(path_gate=gate)


if __name__ == "__main__":
    torch.manual_seed(0)
    x, q, k = noise(LENGTH, WIDTH), noise(LENGTH, HEADS, DIM), noise(LENGTH, HEADS, DIM)
    arrays = dict(x=x, q=q, k=k) | repo(x, q, k) | dape(q, k) | path()
    arrays = {name: y.detach().numpy() for name, y in arrays.items()}
    given = [name for name, y in arrays.items() if np.array_equal(y, y.astype(np.float16))]
    arrays |= {name: arrays[name].astype(np.float16) for name in given}
    versions = np.array([f"torch {version('torch')}"])
    np.savez_compressed(Path(__file__).parent / "content.npz", versions=versions, **arrays)
