"""The contenders in torch that are whole models: training steps, transformers' Llama. Imports torch and numpy alone."""

import contextlib
import copy
import functools
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from experiments.benchmarks.contender import Call, Skip

_VOCABULARY, _CLASSES, _SIDE, _PATCH = 256, 10, 32, 4
CAUSAL = functools.partial(F.scaled_dot_product_attention, is_causal=True)


class Block(nn.Module):
    """A block of posjax' sizes; `attention` is a function of q, k and v [B, H, T, D]."""

    def __init__(self, width: int, heads: int, attention: Callable):
        super().__init__()
        self.heads, self.attention = heads, attention
        self.norm, self.mlp_norm = (nn.LayerNorm(width, eps=1e-6) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(self.attention(q, k, v).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x)), approximate="tanh"))


class Decoder(nn.Module):
    """Tokens to logits by the embedding as the head; with a learned table of positions, or without one.

    Activations between blocks have `dtype`.
    """

    def __init__(self, case: Mapping[str, Any], vocabulary: int, attention: Callable, dtype: torch.dtype, table: bool):
        super().__init__()
        width, self.dtype = case["width"], dtype
        self.embedding = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.table = nn.Parameter(0.02 * torch.randn(case["length"], width)) if table else None
        self.blocks = nn.Sequential(*(Block(width, case["heads"], attention) for _ in range(case["depth"])))
        self.norm = nn.LayerNorm(width, eps=1e-6)

    def forward(self, tokens):
        x = self.embedding(tokens) * self.embedding.embedding_dim**0.5
        x = (x if self.table is None else x + self.table).to(self.dtype)
        return F.linear(self.norm(self.blocks(x)), self.embedding.weight)


class _ViT(nn.Module):
    """A class token, read by a linear head, and a learned table."""

    def __init__(self, width: int, heads: int, depth: int):
        super().__init__()
        self.patches = nn.Linear(3 * _PATCH**2, width)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        self.table = nn.Parameter(0.02 * torch.randn(1 + (_SIDE // _PATCH) ** 2, width))
        self.blocks = nn.Sequential(*(Block(width, heads, F.scaled_dot_product_attention) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width, eps=1e-6), nn.Linear(width, _CLASSES)

    def forward(self, images):
        cut = images.unflatten(1, (-1, _PATCH)).unflatten(3, (-1, _PATCH)).transpose(2, 3)
        x = self.patches(cut.reshape(len(images), -1, 3 * _PATCH**2))
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1) + self.table
        return self.head(self.norm(self.blocks(x))[:, 0])


def train_decoder(case: Mapping[str, Any]) -> Call:
    """Gradients and an AdamW update of a decoder."""
    tokens = _tokens(_VOCABULARY, case)
    model = Decoder(case, _VOCABULARY, CAUSAL, torch.float32, table=True)
    return _step(model, lambda: F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()))


def slopes(heads: int) -> torch.Tensor:
    """Press et al. (2021), arXiv 2108.12409, for a power of two."""
    return 2.0 ** (-8 / heads * torch.arange(1, heads + 1))


def _tokens(vocabulary: int, case: Mapping[str, Any]) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(vocabulary, size=(case["batch"], case["length"])))


def train_vit(case: Mapping[str, Any]) -> Call:
    """Likewise of a ViT on images of 32x32 pixels in patches of 4x4."""
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.standard_normal((case["batch"], _SIDE, _SIDE, 3), np.float32))
    labels = torch.from_numpy(rng.integers(_CLASSES, size=case["batch"]))
    model = _ViT(case["width"], case["heads"], case["depth"])
    return _step(model, lambda: F.cross_entropy(model(images), labels))


def llama(case: Mapping[str, Any]) -> Call:
    """transformers' Llama as it is called, or compiled: reads `length` tokens into a cache, or decodes from one.

    As called, its cache grows with every step, and is cut back before the next call; compiled, with `static`, its size is
    fixed from the start.
    """
    with transformers_here():
        from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, StaticCache
    sizes = dict(vocab_size=case["vocabulary"], hidden_size=case["width"], intermediate_size=case["mlp"])
    heads = dict(num_attention_heads=case["heads"], num_key_value_heads=case["heads"])
    config = LlamaConfig(**sizes, **heads, num_hidden_layers=case["depth"], max_position_embeddings=case["length"])
    model = LlamaForCausalLM(config).to(getattr(torch, case["dtype"])).eval()
    tokens = _tokens(case["vocabulary"], case)

    forward, new_cache = model, lambda: DynamicCache(config=config)
    if case["static"]:
        needs_compiler()
        torch._dynamo.reset()
        forward, new_cache = torch.compile(model), lambda: StaticCache(config=config, max_cache_len=case["length"])
    if case["mode"] == "prefill":
        run = torch.no_grad()(lambda: forward(tokens, past_key_values=new_cache(), use_cache=True).logits)
    else:
        run = _decoding(forward, tokens, new_cache(), case)
    run()  # compiles
    return Call(run)


def published(case: Mapping[str, Any]) -> Call:
    """transformers' decoder from a folder, as it is called: reads a prompt and chooses the next token, or decodes."""
    with transformers_here():
        from transformers import AutoModelForCausalLM, DynamicCache
    model = AutoModelForCausalLM.from_pretrained(case["folder"], dtype=torch.float32).eval()
    tokens = _tokens(model.config.vocab_size, case)
    held = case["length"] - (0 if case["mode"] == "prompt" else case["steps"])

    @torch.no_grad()
    def prompt():
        cache = DynamicCache(config=model.config)
        options = dict(past_key_values=cache, use_cache=True, logits_to_keep=1)
        return model(tokens[:, :held], **options).logits.argmax(-1), cache

    def decode(start):
        return _greedy(model, tokens[:, -1:], copy.deepcopy(start), held, case["steps"])

    run = prompt if case["mode"] == "prompt" else functools.partial(decode, prompt()[1])
    run()
    return Call(run)


def _decoding(forward, tokens: torch.Tensor, cache, case: Mapping[str, Any]):
    """Returns a call of `steps` greedy steps behind all other tokens, after which the cache is as before."""
    held = case["length"] - case["steps"]
    with torch.no_grad():
        forward(tokens[:, :held], past_key_values=cache, use_cache=True)

    def run():
        token = _greedy(forward, tokens[:, -1:], cache, held, case["steps"])
        if case["static"]:
            for layer in cache.layers:
                layer.cumulative_length.sub_(case["steps"])
        else:
            cache.crop(-case["steps"])
        return token

    return run


@torch.no_grad()
def _greedy(forward, token: torch.Tensor, cache, held: int, steps: int) -> torch.Tensor:
    """Returns the last of `steps` tokens behind the `held` tokens of a cache."""
    for step in range(steps):
        options = dict(position_ids=torch.full((1, 1), held + step), past_key_values=cache, use_cache=True)
        token = forward(token, **options).logits[:, -1:].argmax(-1)
    return token


@contextlib.contextmanager
def transformers_here() -> Iterator[None]:
    """Around imports of transformers: raises Skip where it is not installed."""
    sys.modules.setdefault("torchvision", None)  # is not needed, and one that does not fit torch would break the import
    try:
        yield
    except ImportError as error:
        raise Skip("transformers is not installed beside torch") from error


def needs_compiler() -> None:
    """Raises Skip without a C++ compiler."""
    if not any(map(shutil.which, ("g++", "clang++", "c++"))):
        raise Skip("torch.compile needs a C++ compiler, and there is none")


def _step(model: nn.Module, loss) -> Call:
    needs_compiler()
    torch._dynamo.reset()
    optimizer, compiled = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True), torch.compile(loss)

    def step():
        optimizer.zero_grad()
        compiled().backward()
        optimizer.step()

    step()  # compiles
    return Call(step)
