"""Frequency scalings beside transformers and authors' own code.

make_scaling.py and make_scaling_authors.py made the vectors; from_hf reads the configurations of transformers.
"""

import functools
import json

import jax
import numpy as np

import posjax as pj
from goldens.check import Check, line, load
from posjax.encoding import Needs
from posjax.encodings.scaling import Scaling, Spectrum

_HEADS = 2


@functools.cache
def _file():
    return load("scaling")


def _name(encoding: pj.Encoding) -> str:
    return encoding.scaling.spec_name if encoding.scaling else encoding.spec_name


def _growth(head_dim: int, case: int, encoding: pj.Encoding):
    """The multipliers of the unscaled frequencies, and the attention factor, at all lengths."""
    theirs, channels = _file()[f"frequency_{head_dim}"][case], head_dim // 2
    unscaled = float(encoding.base) ** (-np.arange(channels) / channels)
    ours = [_ours(encoding, channels, length) for length in _file()["lengths"]]
    return np.array(ours), np.concatenate([theirs[:, :-1] / unscaled, theirs[:, -1:]], axis=1)


def _ours(encoding: pj.Encoding, channels: int, length: int):
    wave = encoding.wave(1, channels)[0]
    spectrum = Spectrum(encoding.base, channels, np.arange(channels))
    if encoding.scaling is None:
        return np.append(wave / spectrum.frequency, 1.0)
    lengths = np.array([length], np.float32) if Needs.DOCUMENT_LENGTH in encoding.needs else None
    multiplier = np.asarray(encoding.scaling.multiplier(spectrum, lengths)).reshape(channels)
    factor = encoding.scaling.attention(np.ones((1, 1)), lengths)
    return np.append(wave / spectrum.frequency * multiplier, factor)


@functools.cache
def _layer(encoding: pj.Encoding):
    """(q and k as they are rotated, the output) of a causal attention layer with torch's weights, [out, in]."""
    x, weights = (np.asarray(_file()[name], np.float32) for name in ("layer_x", "layer_weights"))
    q, k, v = ((x @ w.T).reshape(len(x), _HEADS, -1) for w in weights[:3])
    site = line(np.arange(len(x)))

    @jax.jit
    def run(q, k, v):
        return encoding.rotate((), q, site, k, site), pj.attend(encoding, (), q, k, v, site, site, causal=True)

    rotated, out = run(q, k, v)
    return np.stack(rotated), np.asarray(out).reshape(x.shape) @ weights[3].T


def _arrays(case: int, encoding: pj.Encoding, what: int):
    return _layer(encoding)[what], _file()[("layer_rotated", "layer_out")[what]][case]


_AUTHORS = {
    "clipped": "hrlics/CoPE",
    "resonance": "sheryc/resonance_rope",
    "riflex": "thu-ml/RIFLEx",
    "dype": "guyyariv/DyPE",
    "ntk": "guyyariv/DyPE",
}


def _turned(case: int, scaling: Scaling, base: float, dim: int):
    """cos and sin of the angles of one axis, times the attention factor."""
    theirs, encoding, channels = _authors()[f"case_{case}"], pj.encodings.rope(base=base), dim // 2
    position = np.arange(theirs.shape[1], dtype=np.int32)[:, None]
    told = encoding.wave(1, channels), encoding.spectrum(1, channels), None
    angle = jax.jit(lambda position: scaling.angles(position, *told))(position)
    return scaling.attention(position, None) * np.stack([np.cos(angle), np.sin(angle)]), theirs


@functools.cache
def _authors():
    return load("scaling_authors")


CHECKS: list[Check] = []
for case, text in enumerate(_authors()["cases"]):
    told = json.loads(str(text))
    scaling = pj.parse(f"rope(scaling={told['spec']})").scaling
    arrays = functools.partial(_turned, case, scaling, told["base"], told["dim"])
    setting = f"{told['spec']}, base {told['base']:g}, rotary dim {told['dim']}: cos and sin"
    CHECKS.append(Check(scaling.spec_name, _AUTHORS[scaling.spec_name], setting, arrays))
for head_dim in (16, 36, 128):
    found = zip(_file()[f"frequency_{head_dim}_names"], _file()[f"frequency_{head_dim}_configs"], strict=True)
    for case, (name, config) in enumerate(found):
        encoding = pj.from_hf(json.loads(str(config)))
        arrays = functools.partial(_growth, head_dim, case, encoding)
        setting = f"{name}, head dim {head_dim}: growth of the frequencies and attention factor"
        CHECKS.append(Check(_name(encoding), "transformers modeling_rope_utils", setting, arrays, atol=1e-6))
for case, (name, config) in enumerate(zip(_file()["layer_names"], _file()["layer_configs"], strict=True)):
    encoding = pj.from_hf(json.loads(str(config)))
    for what, part in enumerate(["rotated q and k", "whole attention"]):
        arrays = functools.partial(_arrays, case, encoding, what)
        CHECKS.append(Check(_name(encoding), "transformers llama", f"{name}, {part}", arrays))
