"""The contenders that run in torch. Imports torch and numpy alone."""

import contextlib
import math
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

import numpy as np
import torch

from experiments.benchmarks import torch_models, torch_reading, torch_training
from experiments.benchmarks.contender import Call, Skip

_sdpa = torch.nn.functional.scaled_dot_product_attention


def start(threads: int) -> dict[str, str]:
    """Sets the number of threads; returns the versions that are measured."""
    torch.set_num_threads(threads)
    versions = {"torch": torch.__version__}
    for package in ("transformers", "timm", "torchvision", "tensorflow-cpu"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return versions


def prepare(case: Mapping[str, Any]) -> Call:
    """The call that `case["kind"]` names, for these sizes."""
    return _KINDS[case["kind"]](case)


def _normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape, np.float32))


def _masked(case: Mapping[str, Any]) -> Call:
    """scaled_dot_product_attention with an additive mask [1, H, n, n]: ALiBi and causality, made beforehand."""
    length = case["length"]
    offset = torch.arange(length)[:, None] - torch.arange(length)[None]
    mask = -torch_models.slopes(case["heads"])[:, None, None] * offset.abs().float()
    mask = mask.masked_fill_(offset < 0, -math.inf)[None]
    return _attention(case, lambda q, k, v: _sdpa(q, k, v, attn_mask=mask))


def _table(case: Mapping[str, Any]) -> Call:
    """scaled_dot_product_attention with T5's mask made of its table in every call, as training the table needs it."""
    length, heads = case["length"], case["heads"]
    offset = torch.arange(length)[:, None] - torch.arange(length)[None]
    bucket, later = _t5_bucket(offset), (offset < 0)
    table = _normal(9, 32, heads).requires_grad_(case["mode"] == "fb")

    def forward(q, k, v):
        mask = table[bucket].permute(2, 0, 1).masked_fill(later, -math.inf)[None]
        return _sdpa(q, k, v, attn_mask=mask)

    return _attention(case, forward, (table,))


def _flex(case: Mapping[str, Any]) -> Call:
    """flex_attention, compiled, with ALiBi as score_mod and causality as block_mask; CPUs have its forward only."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    if case["mode"] == "fb":
        raise Skip("flex_attention has no backward on CPUs")
    torch_models.needs_compiler()
    length, slopes = case["length"], torch_models.slopes(case["heads"])
    seen = create_block_mask(lambda b, h, i, j: i >= j, None, None, length, length, device="cpu")
    torch._dynamo.reset()
    attention = torch.compile(flex_attention, dynamic=False)

    def score(logit, b, h, i, j):
        return logit - slopes[h] * (i - j)

    def forward(q, k, v):
        with torch.no_grad():
            return attention(q, k, v, score_mod=score, block_mask=seen)

    return _attention(case, forward)


def _transformers(case: Mapping[str, Any]) -> Call:
    """transformers' rotary of Llama on q and k, with its cosines and sines made beforehand."""
    with torch_models.transformers_here():
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
    q, k, angle = _rotary(case)
    cos, sin = (turn(torch.cat([angle, angle], dim=-1))[None].to(q.dtype) for turn in (torch.cos, torch.sin))
    return Call(torch.no_grad()(lambda: apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=2)))


def _complex(case: Mapping[str, Any]) -> Call:
    """Rotation of neighbouring channels as a product of complex numbers, which are made beforehand."""
    q, k, angle = _rotary(case)
    turn = torch.polar(torch.ones_like(angle), angle)[None, :, None]

    def one(x):
        pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * turn).flatten(-2).type_as(x)

    return Call(torch.no_grad()(lambda: (one(q), one(k))))


def _rotary(case: Mapping[str, Any]):
    """q, k [B, T, H, D] and the angles [T, D/2]."""
    shape = (case["batch"], case["length"], case["heads"], case["head_dim"])
    q, k = (_normal(seed, *shape).to(getattr(torch, case["dtype"])) for seed in range(2))
    wave = 10_000.0 ** (-torch.arange(0, case["head_dim"], 2) / case["head_dim"])
    return q, k, torch.arange(case["length"])[:, None] * wave


def _attention(case: Mapping[str, Any], forward: Callable, learned: tuple = ()) -> Call:
    both = case["mode"] == "fb"
    shape = (1, case["heads"], case["length"], case["head_dim"])
    q, k, v = (_normal(seed, *shape).requires_grad_(both) for seed in range(3))
    if not both:
        with torch.no_grad():
            forward(q, k, v)
        return Call(torch.no_grad()(lambda: forward(q, k, v)))
    d_out = _normal(3, *shape)
    return Call(lambda: torch.autograd.grad(forward(q, k, v), (q, k, v, *learned), d_out))


def _t5_bucket(distance: torch.Tensor, buckets: int = 32, furthest: int = 128) -> torch.Tensor:
    """Raffel et al. (2019), arXiv 1910.10683: exact up to half of the buckets, logarithmic up to `furthest`."""
    distance, exact = distance.clamp(min=0), buckets // 2
    scale = (buckets - exact) / math.log(furthest / exact)
    far = exact + (torch.log(distance.clamp(min=1).float() / exact) * scale).long()
    return torch.where(distance < exact, distance, far.clamp(max=buckets - 1))


_KINDS = {
    "masked": _masked,
    "table": _table,
    "causal": lambda case: _attention(case, lambda q, k, v: _sdpa(q, k, v, is_causal=True)),  # knows no positions
    "flex": _flex,
    "transformers": _transformers,
    "complex": _complex,
    "train_decoder": torch_models.train_decoder,
    "train_vit": torch_models.train_vit,
    "decoder_step": torch_training.decoder_step,
    "timm_step": torch_training.timm_step,
    "read_images": torch_reading.images,
    "read_images_tf": torch_reading.tf_data,
    "read_tokens": torch_reading.tokens,
    "llama": torch_models.llama,
    "published": torch_models.published,
}
