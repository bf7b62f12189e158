"""Sinks and rotated values beside whole attentions of gpt-oss and DeepSeek-V4; make_sinks.py made the vectors."""

import jax
import numpy as np

import posjax as pj
from goldens.check import Check, load


def read(spec, q, k, v, sink):
    """Returns the output of causal attention; the last part of the spec is learned_sink()."""
    encoding, site = pj.parse(spec), pj.sites(len(q))
    params = (*((),) * (len(encoding.parts) - 1), {"sink": sink})
    return jax.jit(lambda *qkv: pj.attend(encoding, params, *qkv, site, site, causal=True))(q, k, v)


def gpt_oss(layer, spec):
    file = load("sinks")
    q, k, v, sink, out = (file[f"gpt_oss_{layer}_{name}"] for name in ("q", "k", "v", "sink", "out"))
    return read(spec, q, k, v, sink), out


def deepseek():
    """It rotates the last half of the channels, we the first."""
    file = load("sinks")
    q, kv, out = (np.roll(file[f"deepseek_{name}"], 4, axis=-1) for name in ("q", "kv", "out"))
    turned = "(layout='interleaved', fraction=0.5)"
    spec = f"rope{turned} + value_rotary{turned} + window(3) + learned_sink()"
    return read(spec, q, kv, kv, file["deepseek_sink"]), out


CHECKS = [
    Check(
        "learned_sink", "transformers gpt_oss", "full attention", lambda: gpt_oss(0, "rope(150_000) + learned_sink()")
    ),
    Check(
        "learned_sink",
        "transformers gpt_oss",
        "sliding window",
        lambda: gpt_oss(1, "rope(150_000) + window(3) + learned_sink()"),
    ),
    Check("value_rotary", "transformers deepseek_v4", "with a sink, keys for values", deepseek),
]
