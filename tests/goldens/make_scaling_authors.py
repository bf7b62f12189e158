"""Golden vectors of clipped, resonance, riflex and dype, from code of authors that is in no package:

    git clone https://github.com/hrlics/CoPE /tmp/CoPE                     # ed52ba5 when last run
    git clone https://github.com/sheryc/resonance_rope /tmp/resonance_rope # 4a7f5a7
    git clone https://github.com/thu-ml/RIFLEx /tmp/RIFLEx                 # 18e0bc3
    git clone https://github.com/guyyariv/DyPE /tmp/DyPE                   # 436fe61
    /tmp/goldens/bin/pip install einops
    /tmp/goldens/bin/python tests/goldens/make_scaling_authors.py /tmp/CoPE /tmp/resonance_rope /tmp/RIFLEx /tmp/DyPE

in the environment that tests/goldens/maker.py describes; the result is scaling_authors.npz: cos and sin of every angle, times
the attention factor, with the spec that is ours. Of files that import more than torch only the definitions named are run.
"""

import ast
import json
import math
import sys
import typing
from pathlib import Path
from types import SimpleNamespace

import einops
import numpy as np
import torch
from maker import save

COPE, RESONANCE, RIFLEX, DYPE = map(Path, sys.argv[1:])
LENGTH = 16  # positions


def defined(path: Path, names: tuple[str, ...], **given) -> SimpleNamespace:
    """Some of the functions and classes of a file, without its imports."""
    space = {"torch": torch, "np": np, "math": math, "nn": torch.nn, "repeat": einops.repeat, **given}
    tree = ast.parse(path.read_text())
    tree.body = [node for node in tree.body if getattr(node, "name", None) in names]
    exec(compile(ast.unparse(tree), str(path), "exec"), space)
    return SimpleNamespace(**{name: space[name] for name in names})


def series(config, device=None):
    return 1.0 / config.rope_theta ** (torch.arange(0, config.head_dim, 2).float() / config.head_dim), 1.0


def halves(cos_sin):
    """[T, 2C] with each half the same, or [T, C] twice, as one array [2, T, C]."""
    cos, sin = (each.reshape(LENGTH, -1) for each in cos_sin)
    return torch.stack([cos, sin]).detach().float().numpy()


def clipped():
    given = {"ROPE_INIT_FUNCTIONS": {"default": series}, "LlamaConfig": SimpleNamespace}
    code = defined(COPE / "modeling_cope.py", ("LlamaRotaryEmbedding",), **given)
    for name, spec in (("use_cope", "clipped()"), ("use_hardclip", "clipped(soft=False)")):
        config = SimpleNamespace(rope_theta=5e5, head_dim=56, max_position_embeddings=8192, rope_scaling=None)
        config.use_cope, config.use_hardclip = name == "use_cope", name == "use_hardclip"
        cos, sin = code.LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(LENGTH)[None])
        yield spec, 5e5, 56, halves((cos[0, :, :28], sin[0, :, :28]))


def resonance():
    folder = RESONANCE / "src/models/components/positional_embedding"
    helpers = ("find_correction_dim", "find_correction_range", "linear_ramp_mask", "get_mscale")
    given = vars(defined(folder / "rotary_utils.py", helpers))
    plain = defined(folder / "rotary_resonance.py", ("ResonanceRotaryEmbedding",), **given).ResonanceRotaryEmbedding
    made = plain(16, max_position_embeddings=LENGTH, base=1000)
    yield "resonance()", 1000, 16, halves((made.cos_cached, made.sin_cached))
    folder = RESONANCE / "llama_finetuning/scaled_rope"
    name = "LlamaYaRNScaledResonanceRotaryEmbedding"
    yarn = getattr(defined(folder / f"{name}.py", (*helpers, name)), name)
    made = yarn(32, max_position_embeddings=LENGTH, scale=4, original_max_position_embeddings=1024)
    spec = "resonance(scaling=yarn(factor=4, original_length=1024))"
    yield spec, 10_000, 32, halves((made.cos_cached, made.sin_cached))


def riflex():
    code = defined(RIFLEX / "riflex_utils.py", ("get_1d_rotary_pos_embed_riflex", "identify_k"), **vars(typing))
    for base, dim, repetition, length in ((256, 16, 48, 66), (10_000, 16, 20, 25)):
        k, _ = code.identify_k(base, dim, repetition)
        cos, sin = code.get_1d_rotary_pos_embed_riflex(dim, LENGTH, base, use_real=True, k=k, L_test=length)
        yield f"riflex(length={length}, repetition={repetition})", base, dim, halves((cos[:, ::2], sin[:, ::2]))


def dype():
    names = ("find_correction_factor", "find_correction_range", "linear_ramp_mask", "find_newbase_ntk")
    code = defined(DYPE / "flux/transformer_flux.py", (*names, "get_1d_rotary_pos_embed"), **vars(typing))
    given = dict(dim=56, pos=torch.arange(LENGTH), theta=10_000, use_real=True, freqs_dtype=torch.float64)
    for factor, time in ((4, 1.0), (4, 0.6), (2, 0.1)):
        sizes = dict(yarn=True, max_pe_len=64 * factor, ori_max_pe_len=64, dype=True, current_timestep=time)
        cos, sin = code.get_1d_rotary_pos_embed(**given, **sizes)
        spec = f"dype(factor={factor}, original_length=64, time={time})"
        yield spec, 10_000, 56, halves((cos[:, ::2], sin[:, ::2]))
    for time in (1.0, 0.7):  # FluxPosEmbed.forward, method "ntk"
        whole = 4 ** (56 / 54)
        cos, sin = code.get_1d_rotary_pos_embed(**given, ntk_factor=max(1.0, whole ** (2.0 * time**2.0)))
        yield f"ntk(factor={4 ** (2 * time**2)!r})", 10_000, 56, halves((cos[:, ::2], sin[:, ::2]))


if __name__ == "__main__":
    cases, arrays = [], {}
    for number, (spec, base, dim, turned) in enumerate(
        x for make in (clipped, resonance, riflex, dype) for x in make()
    ):
        cases.append(json.dumps({"spec": spec, "base": base, "dim": dim}))
        arrays[f"case_{number}"] = turned
    save("scaling_authors", arrays | {"cases": cases}, packages=["torch", "einops"])
