"""ComRoPE, HARoPE and GRAPE beside their authors' formulas."""

import functools

import jax
import numpy as np

import posjax as pj
from goldens.check import Check, load

FILE = "groups"
ABOVE = np.triu_indices(8, 1)


def logits(spec, params, site, q, k, golden):
    encoding = pj.parse(spec)

    @jax.jit
    def run(params, q, k):
        q, k = encoding.rotate(params, q, site, k, site)
        return encoding.product(q, site, k, site)

    return run(params, q, k), golden


def comrope(kind):
    """Their positions are (p + 1/2) / size; the half cancels in logits, the size is in our parameters."""
    file = load(FILE)
    raw, sizes = file["comrope_raw"], np.float32([3, 4])
    entries = (raw - raw.swapaxes(-1, -2))[..., *np.triu_indices(4, 1)]  # [H, blocks, E]
    if kind == "linear":
        params = {"generator": entries[None], "multiplier": file["comrope_multiplier"] / sizes[:, None]}
    else:
        dealt = np.stack([entries[:, axis::2] for axis in (0, 1)])
        params = {"generator": dealt / sizes[:, None, None, None]}
    spec = f"comrope(generator_dim=4, kind='{kind}')"
    return logits(spec, params, pj.grid(3, 4), file["image_q"], file["image_k"], file[f"comrope_{kind}"])


def harope():
    file = load(FILE)
    left, right = (((raw - raw.swapaxes(1, 2)) / 2)[:, *ABOVE] for raw in (file["harope_u"], file["harope_v"]))
    params = {"left": left, "right": right, "scale": file["harope_sigma"] - np.float32(np.log(np.e - 1)), "rotary": ()}
    spec = "harope(keys='inverse')"
    return logits(spec, params, pj.grid(3, 4), file["image_q"], file["image_k"], file["harope_logits"])


def biases(spec, params, state, golden):
    file, encoding = load(FILE), pj.parse(spec)
    site = pj.sites(len(file["x"]))
    site = encoding.observe(params, file["x"], site) if state else site
    ours = jax.jit(lambda params, q, k: encoding.bias(params, q, site, k, site))(params, file["q"], file["k"])
    return np.tril(ours), file[golden]


def additive(gate):
    file = load(FILE)
    params = {"omega": file["a_omega"], "query": file["a_v"], "key": file["a_u"]}
    params = {name: value for name, value in params.items() if name == "omega" or gate in ("both", name)}
    return biases(f"grape_a(gate='{gate}')", params, False, f"a_{gate}")


def path():
    return biases("grape_ap(p_head_dim=4)", {"kernel": load(FILE)["ap_kernel"]}, True, "ap_bias")


def swapped():
    """Queries and keys with their halves exchanged: the authors turn pairs the other way round."""
    file = load(FILE)
    return np.roll(file["q"], 4, axis=-1), np.roll(file["k"], 4, axis=-1)


def multiplicative():
    file = load(FILE)
    params = {"wave": np.broadcast_to(np.exp(file["m_log_freq"]), (1, 3, 4))}
    spec = "rope_mixed(base=10000, layout='half')"
    return logits(spec, params, pj.sites(len(file["q"])), *swapped(), file["m_nonctx"])


def contextual():
    file = load(FILE)
    params = {"kernel": file["m_kernel"], "bias": file["m_bias"], "log_wave": file["m_log_freq"]}
    site = pj.parse("grape_m()").observe(params, file["x"], pj.sites(len(file["x"])))
    return logits("grape_m()", params, site, *swapped(), file["m_ctx"])


GRAPE = "model-architectures/GRAPE, transcribed"
CHECKS = [
    Check(
        "comrope",
        "Longin-Yu/ComRoPE, transcribed",
        "LD, blocks of 4, 3 x 4 patches",
        functools.partial(comrope, "linear"),
        atol=2e-5,
    ),
    Check(
        "comrope",
        "Longin-Yu/ComRoPE, transcribed",
        "AP, blocks of 4, 3 x 4 patches",
        functools.partial(comrope, "axial"),
        atol=2e-5,
    ),
    # The authors add 10^-6 to singular values: logits of up to 20 differ by 10^-5.
    Check("harope", "Studentxll/HARoPE, transcribed", "inverse keys, 3 x 4 patches", harope, atol=2e-5),
    *(
        Check("grape_a", GRAPE, f"bias, gate {gate}", functools.partial(additive, gate))
        for gate in ("both", "query", "key")
    ),
    Check("grape_ap", GRAPE, "bias", path),
    Check("grape_m", GRAPE, "contextual", contextual),
    Check("rope_mixed", GRAPE, "GRAPE-M-nonctx", multiplicative, atol=2e-5),
]
