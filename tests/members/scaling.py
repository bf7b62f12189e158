"""The scaled 1-D frequencies by a scaling's paper; the strategies of their arguments."""

import math

from hypothesis import strategies as st

from posjax.spec import registered

MEMBERS = {}


def scaled(scaling, base, d, n):
    """(theta_i for i < d/2, attention factor) in a document of length n, from the papers' formulas; d is the rotary dim."""
    if scaling is None:
        return [base ** (-2 * i / d) for i in range(d // 2)], 1.0
    return globals()[f"_{scaling.spec_name}"](scaling, base, d, n)


def _linear(e, base, d, n):
    return [1 / (e.factor * base ** (2 * i / d)) for i in range(d // 2)], 1.0


def _ntk(e, base, d, n):
    base = base * e.factor ** (d / (d - 2))
    return [1 / base ** (2 * i / d) for i in range(d // 2)], 1.0


def _dynamic_ntk(e, base, d, n):
    if n > e.original_length:
        n = e.original_length * 2 ** math.ceil(math.log2(n / e.original_length)) if e.doubling else n
        base = base * (e.factor * n / e.original_length - (e.factor - 1)) ** (d / (d - 2))
    return [1 / base ** (2 * i / d) for i in range(d // 2)], 1.0


def _ntk_by_parts(e, base, d, n):
    """Section 3.2 of the YaRN paper: h(theta) = (1 - gamma(r)) theta / s + gamma(r) theta, r = L / lambda."""
    thetas = []
    for i in range(d // 2):
        theta = base ** (-2 * i / d)
        r = e.original_length / (2 * math.pi / theta)
        if r < e.beta_slow:
            gamma = 0.0
        elif r > e.beta_fast:
            gamma = 1.0
        else:
            gamma = (r - e.beta_slow) / (e.beta_fast - e.beta_slow)
        thetas.append((1 - gamma) * theta / e.factor + gamma * theta)
    return thetas, 1.0


def _llama3(e, base, d, n):
    """Llama 3.1's three cases of wavelength."""
    thetas = []
    for i in range(d // 2):
        theta = base ** (-2 * i / d)
        wavelength = 2 * math.pi / theta
        if wavelength < e.original_length / e.high_freq_factor:
            thetas.append(theta)
        elif wavelength > e.original_length / e.low_freq_factor:
            thetas.append(theta / e.factor)
        else:
            smooth = e.original_length / wavelength - e.low_freq_factor
            smooth /= e.high_freq_factor - e.low_freq_factor
            thetas.append((1 - smooth) * theta / e.factor + smooth * theta)
    return thetas, 1.0


def _yarn(e, base, d, n):
    m = e.attention_factor
    if m is None:
        log = math.log(e.factor)
        m = (0.1 * e.mscale * log + 1) / (0.1 * e.mscale_all_dim * log + 1)
    return _yarn_thetas(e, e.factor, base, d), m


def _dynamic_yarn(e, base, d, n):
    s = max(1.0, n / e.original_length)
    return _yarn_thetas(e, s, base, d), 0.1 * math.log(s) + 1


def _yarn_thetas(e, s, base, d):
    """The ramp over channels of the published code; eq. 17 and 18 where no channel turns beta_slow times."""

    def channel(turns):
        return d * math.log(e.original_length / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = channel(e.beta_fast), channel(e.beta_slow)
    if high <= 0:
        return [base ** (-2 * i / d) / s for i in range(d // 2)]
    if e.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = min(max(low, 0), d - 1), min(max(high, 0), d - 1)
    if low == high:
        high += 0.001
    thetas = []
    for i in range(d // 2):
        theta = base ** (-2 * i / d)
        ramp = min(1.0, max(0.0, (i - low) / (high - low)))
        thetas.append(theta / s * ramp + theta * (1 - ramp))
    return thetas


def _longrope(e, base, d, n):
    m = e.attention_factor
    if m is None:
        m = math.sqrt(1 + math.log(e.factor) / math.log(e.original_length))
    factors = e.long_factor if n > e.original_length else e.short_factor
    return [1 / (factors[i] * base ** (2 * i / d)) for i in range(d // 2)], m


def _clipped(e, base, d, n):
    """The lowest `count` frequencies times half of 1 + cos of even steps from 0 to pi."""
    thetas, m = scaled(e.scaling, base, d, n)
    start = d // 2 - e.count
    for i in range(e.count):
        step = math.pi * i / max(e.count - 1, 1)
        thetas[start + i] *= 0.5 * (1 + math.cos(step)) if e.soft else 0.0
    return thetas, m


def _resonance(e, base, d, n):
    """Wavelengths are rounded, and frequencies made of them again."""
    thetas, m = scaled(e.scaling, base, d, n)
    return [2 * math.pi / round(2 * math.pi / theta) for theta in thetas], m


def _riflex(e, base, d, n):
    """Eq. 7: k = argmin |N_j - N| over periods N_j; eq. 8: theta_k is lowered to a turn in `length`, times a margin."""
    thetas = [base ** (-2 * i / d) for i in range(d // 2)]
    periods = [round(2 * math.pi / theta) for theta in thetas]
    away = [abs(period - e.repetition) for period in periods]
    k = away.index(min(away))
    if e.length > periods[k]:
        thetas[k] = e.margin * 2 * math.pi / e.length
    return thetas, 1.0


def _dype(e, base, d, n):
    """The vision YaRN of the code: linear below, NTK between, unscaled above, with the borders' turns times t^exponent."""
    kappa, s, length = e.time**e.exponent, e.factor, e.original_length

    def channel(turns):
        if kappa == 0:
            return math.inf
        return d * math.log(length / (turns * kappa * 2 * math.pi)) / (2 * math.log(base))

    def kept(i, fast, slow):
        if kappa == 0:
            return 1.0
        if channel(slow) <= 0:
            return 0.0
        low, high = (min(max(f(channel(turns)), 0), d // 2) for f, turns in ((math.floor, fast), (math.ceil, slow)))
        return 1 - min(1.0, max(0.0, (i - low) / (max(high - low, 0.001))))

    thetas = []
    for i in range(d // 2):
        theta = base ** (-2 * i / d)
        ntk = (base * s ** (d / (d - 2))) ** (-2 * i / d)
        mixed = theta / s * (1 - kept(i, 1.25, 0.75)) + ntk * kept(i, 1.25, 0.75)
        thetas.append(mixed * (1 - kept(i, 16, 2)) + theta * kept(i, 16, 2))
    return thetas, 0.1 * math.log(s) + 1


_FACTOR = st.integers(1, 64) | st.floats(1, 1e6)
_LENGTH = st.integers(2, 10**6)
_FACTORS = st.lists(st.floats(0.1, 100) | st.integers(1, 100), min_size=1, max_size=3).map(tuple)
_BETAS = {"beta_fast": st.floats(2, 100), "beta_slow": st.floats(0.1, 1)}
_ATTENTION = st.none() | st.floats(0.1, 10)

_INNER = st.none() | st.builds(registered("ntk"), factor=st.integers(1, 64))

VALUES = {
    "clipped": {"count": st.integers(0, 3), "soft": st.booleans(), "scaling": _INNER},
    "dype": {
        "factor": _FACTOR,
        "original_length": _LENGTH,
        "time": st.floats(0.01, 1) | st.just(0.0),
        "exponent": st.floats(0.1, 4),
    },
    "dynamic_ntk": {"factor": _FACTOR, "original_length": _LENGTH, "doubling": st.booleans()},
    "dynamic_yarn": {"original_length": _LENGTH, "truncate": st.booleans()} | _BETAS,
    "linear": {"factor": st.floats(1e-3, 1e6)},
    "llama3": {
        "factor": _FACTOR,
        "original_length": _LENGTH,
        "low_freq_factor": st.floats(0.1, 1),
        "high_freq_factor": st.floats(2, 100),
    },
    "longrope": {
        "short_factor": _FACTORS,
        "long_factor": _FACTORS,
        "factor": _FACTOR,
        "original_length": _LENGTH,
        "attention_factor": _ATTENTION,
        "start_tokens": st.integers(0, 100),
    },
    "ntk": {"factor": _FACTOR},
    "ntk_by_parts": {"factor": _FACTOR, "original_length": _LENGTH} | _BETAS,
    "resonance": {"scaling": _INNER},
    "riflex": {
        "length": st.integers(1, 1000),
        "repetition": st.integers(1, 1000),
        "margin": st.floats(0.1, 1),
        "axis": st.just(0),
    },
    "yarn": {
        "factor": _FACTOR,
        "original_length": _LENGTH,
        "truncate": st.booleans(),
        "attention_factor": _ATTENTION,
        "mscale": st.floats(0, 2),
        "mscale_all_dim": st.floats(0, 2),
    }
    | _BETAS,
}


def scalings():
    """Any scaling, or none."""
    return st.none() | st.one_of([st.builds(registered(name), **arguments) for name, arguments in VALUES.items()])
