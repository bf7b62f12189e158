"""Inkling's relative bias and Inkling 2's sinks beside whole attentions of transformers, and the former in a whole model.

make_inkling.py and make_inkling_model.py made the vectors.
"""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np

import posjax as pj
from goldens.check import Check, load
from posjax.encoding import Sum

# As in make_inkling.py.
FULL, SLIDING = "rank=5, extent=6, n_floor=3, alpha=0.5", "rank=5, extent=4"


def group(prefix: str) -> dict[str, np.ndarray]:
    arrays = {
        name.removeprefix(f"{prefix}_"): x for name, x in load("inkling").items() if name.startswith(f"{prefix}_")
    }
    return {name: x.astype(np.float32) for name, x in arrays.items()}


def attention(prefix: str, spec: str, implementation: str, scale: float):
    f, encoding = group(prefix), pj.parse(spec)
    params = {name: f[name] for name in ("project", "profiles", "scale") if name in f}
    others = {"token_sink": {"kernel": f.get("sink")}, "window": ()}
    if isinstance(encoding, Sum):
        params = (params, *(others[part.spec_name] for part in encoding.parts[1:]))

    @jax.jit
    def run(params, x, q, k, v):
        x, hosted = pj.host(encoding, params, x, pj.sites(len(x)), key=None)
        return hosted.attend(q, k, v, x=x, causal=True, implementation=implementation, scale=scale)

    return run(params, *(f[name] for name in "xqkv")), f["out"]


def model(implementation: str):
    """The logits of a small model from its folder's tensors, and its encodings from its configuration."""
    f = {name: x.astype(np.float32) if x.dtype == np.float16 else x for name, x in load("inkling_model").items()}
    config = json.loads(str(f.pop("config")))
    encodings = pj.hf.from_hf_layers(config)

    def normed(name, x):
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + config["rms_norm_eps"]) * f[f"{name}.weight"]

    def linear(name, x):
        return jnp.matmul(x, f[f"{name}.weight"].T, precision="highest")

    def convolved(name, x):
        kernel = f[f"{name}.conv1d.weight"][:, 0]
        before = jnp.pad(x, ((kernel.shape[1] - 1, 0), (0, 0)))
        return x + sum(before[n : n + len(x)] * kernel[:, n] for n in range(kernel.shape[1]))

    def heads(x):
        return x.reshape(len(x), -1, config["head_dim"])

    def attention(name, x, encoding):
        q = normed(f"{name}.q_norm", heads(linear(f"{name}.q_proj", x)))
        k = normed(f"{name}.k_norm", heads(convolved(f"{name}.k_sconv", linear(f"{name}.k_proj", x))))
        v = heads(convolved(f"{name}.v_sconv", linear(f"{name}.v_proj", x)))
        project = f[f"{name}.r_proj.weight"].T.reshape(1, x.shape[1], q.shape[1], -1)
        params = {"project": project, "profiles": f[f"{name}.rel_logits_proj.proj"][None]}
        if isinstance(encoding, Sum):
            params = tuple(params if part.spec_name == "inkling" else () for part in encoding.parts)
        _, hosted = pj.host(encoding, params, x, pj.sites(len(x)), key=None)
        out = hosted.attend(q, k, v, x=x, causal=True, implementation=implementation, scale=1 / config["head_dim"])
        return linear(f"{name}.o_proj", out.reshape(len(x), -1))

    def perceptron(name, x):
        hidden = jax.nn.silu(linear(f"{name}.gate_proj", x)) * linear(f"{name}.up_proj", x)
        return linear(f"{name}.down_proj", hidden) * f[f"{name}.global_scale"]

    @jax.jit
    def run(tokens):
        x = normed("model.embed_tokens.embed_norm", jnp.asarray(f["model.embed_tokens.weight"])[tokens])
        for number, encoding in enumerate(encodings):
            name = f"model.layers.{number}"
            given = normed(f"{name}.input_layernorm", x)
            x = x + convolved(f"{name}.attn_sconv", attention(f"{name}.self_attn", given, encoding))
            given = normed(f"{name}.post_attention_layernorm", x)
            x = x + convolved(f"{name}.mlp_sconv", perceptron(f"{name}.mlp", given))
        return linear("lm_head", normed("model.norm", x) / config["logits_mup_width_multiplier"])

    return run(f["tokens"]), f["logits"]


def _checks():
    for how in ("dense", "blockwise"):
        for layer, (name, given, window) in enumerate([("full", FULL, ""), ("window", SLIDING, " + window(4)")]):
            run = functools.partial(attention, f"first_{layer}", f"inkling({given}){window}", how, 1 / 8)
            yield Check("inkling", "transformers inkling", f"{name} layer, {how}", run)
            spec = f"inkling({given}, clip=8) + token_sink(){window}"
            run = functools.partial(attention, f"second_{layer}", spec, how, 8**-0.5)
            for encoding in ("inkling", "token_sink"):
                yield Check(encoding, "transformers inkling2", f"{name} layer, {how}", run)
        yield Check("inkling", "transformers inkling", f"logits of a model, {how}", functools.partial(model, how))


CHECKS: list[Check] = list(_checks())
