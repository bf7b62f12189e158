"""Golden vectors of encodings that read the content, written in torch after their authors' code.

Run as tests/goldens/make.py says, with this file's name; the result is content.npz. Transcribed are SakanaAI/repo
(OLMo/olmo/model.py) and chuanyang-Zheng/DAPE (Alibi_DAPEV2 of megatron/model/positional_embeddings.py).
"""

from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

LENGTH, HEADS, DIM = 17, 3, 8
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
    """ALiBi and two convolutions over the keys of the lower triangle; what is right of it they read as zeros."""
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


if __name__ == "__main__":
    torch.manual_seed(0)
    x, q, k = noise(LENGTH, WIDTH), noise(LENGTH, HEADS, DIM), noise(LENGTH, HEADS, DIM)
    arrays = dict(x=x, q=q, k=k) | repo(x, q, k) | dape(q, k)
    arrays = {name: y.detach().numpy() for name, y in arrays.items()}
    versions = np.array([f"torch {version('torch')}"])
    np.savez_compressed(Path(__file__).parent / "content.npz", versions=versions, **arrays)
