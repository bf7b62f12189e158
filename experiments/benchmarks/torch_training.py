"""Training steps in torch by torch.compile, at the sizes and with the optimizer of posjax'. Imports torch and numpy alone."""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from experiments.benchmarks.contender import Call, Skip, step_seconds
from experiments.benchmarks.torch_models import CAUSAL, Decoder, needs_compiler, slopes


def decoder_step(case: Mapping[str, Any]) -> Call:
    """The step of a decoder under `spec` (none, learned, rope, alibi) whose `attention` is "sdpa" or "flex"."""
    device = _device(case)
    with device:
        attention = _flex(case, device) if case["attention"] == "flex" else CAUSAL
        attention = _rotated(case, attention) if case["spec"] == "rope" else attention
        table = case["spec"] == "learned"
        model = Decoder(case, case["vocabulary"], attention, getattr(torch, case["dtype"]), table)
        tokens, targets = torch.randint(case["vocabulary"], (2, case["batch"], case["length"]))

    def loss():
        return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())

    return _measured(case, device, model, loss, {"tokens_per_s": case["batch"] * case["length"]})


def timm_step(case: Mapping[str, Any]) -> Call:
    """The step of timm's ViT with a class token and a learned table."""
    try:
        from timm.models.vision_transformer import VisionTransformer
    except ImportError as error:
        raise Skip("timm is not installed beside torch") from error
    device, sizes = _device(case), dict(embed_dim=case["width"], num_heads=case["heads"], depth=case["depth"])
    with device:
        model = VisionTransformer(case["image"], case["patch"], num_classes=case["classes"], **sizes)
        shape = (case["batch"], case["image"], case["image"], 3)
        images, labels = torch.randint(256, shape, dtype=torch.uint8), torch.randint(case["classes"], shape[:1])

    def loss():
        return F.cross_entropy(model(images.permute(0, 3, 1, 2).float() / 127.5 - 1), labels)

    return _measured(case, device, model, loss, {"images_per_s": case["batch"]})


def _device(case: Mapping[str, Any]) -> torch.device:
    """Returns the GPU for the sizes of an accelerator, which are of bfloat16, else the CPU."""
    if case["dtype"] == "float32":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise Skip("torch has no GPU here, and these sizes are not for a CPU")
    return torch.device("cuda")


def _flex(case: Mapping[str, Any], device: torch.device) -> Callable:
    """Returns causal flex_attention, which the model's compiler compiles; with ALiBi if that is the encoding."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    if device.type == "cpu":
        raise Skip("flex_attention has no backward on CPUs")
    length, slope = case["length"], slopes(case["heads"])
    seen = create_block_mask(lambda b, h, i, j: i >= j, None, None, length, length, device=device.type)

    def alibi(logit, b, h, i, j):
        return logit - slope[h] * (i - j)

    score = alibi if case["spec"] == "alibi" else None
    return lambda q, k, v: flex_attention(q, k, v, score_mod=score, block_mask=seen)


def _rotated(case: Mapping[str, Any], attention: Callable) -> Callable:
    """Returns the attention of rotated q and k; cosines and sines are made beforehand."""
    dim = case["width"] // case["heads"]
    angle = torch.arange(case["length"])[:, None] * 10_000.0 ** (-torch.arange(0, dim, 2) / dim)
    cos, sin = angle.cos().repeat(1, 2), angle.sin().repeat(1, 2)

    def rotate(x):
        first, second = x.chunk(2, dim=-1)
        return (x * cos + torch.cat([-second, first], dim=-1) * sin).to(x.dtype)

    return lambda q, k, v: attention(rotate(q), rotate(k), v)


def _measured(
    case: Mapping[str, Any], device: torch.device, model: nn.Module, loss: Callable, counts: Mapping[str, int]
) -> Call:
    """Returns the figures of `case["steps"]` steps: gradients clipped as posjax' are, and a fused AdamW.

    Args:
      counts: what a step reads, {"tokens_per_s": number}.
    """
    needs_compiler()
    torch._dynamo.reset()
    on_gpu, parameters = device.type == "cuda", [*model.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.1, fused=True)
    compiled, value = torch.compile(loss), torch.zeros(())

    def take() -> torch.cuda.Event | None:
        nonlocal value
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):
            value = compiled()
        value.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if not on_gpu:
            return None
        end = torch.cuda.Event()
        end.record()
        return end

    def wait(end: torch.cuda.Event | None) -> None:
        if end is not None:
            end.synchronize()

    began = time.perf_counter()
    wait(take())
    compile_seconds = time.perf_counter() - began
    seconds = step_seconds(take, wait, case["steps"])
    median = statistics.median(seconds)
    figures = {
        "wall": seconds,
        "compile_seconds": compile_seconds,
        **{name: count / median for name, count in counts.items()},
        "peak_bytes": torch.cuda.max_memory_allocated() if on_gpu else None,
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "loss": float(value.detach()),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S"),
    }
    return Call(None, figures=figures)
