"""Rotary encodings of more than one rotation: decaying (xPos), of several frequencies at once (FoPE), real and imaginary."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float32

from posjax.encoding import Array, Encoding, Needs, Site, stands
from posjax.encodings.angles import angles, geometric
from posjax.encodings.placement import first_and_last, standing
from posjax.encodings.rotary import Rotary, rotated
from posjax.encodings.scaling import Scaling
from posjax.spec import register

_LOG_REACH = 69.0  # e^69 = 1e30: queries shrink by as much as keys grow, and float32 ends at 1e-38


@register("xpos")
@dataclass(frozen=True)
class XPos(Rotary):
    """RoPE that decays with the distance of a key behind its query: channel pair c of the logit by zeta_c^((m - n)/B).

    Sun et al. (2022), arXiv 2212.10554: queries at m are multiplied by zeta_c^(m/B), keys at n by zeta_c^(-n/B),
    zeta_c = (2c/D + gamma)/(1 + gamma), and both rotated as in `rope`. For causal models: keys ahead of their query are
    amplified. Positions of one axis; tokens that stand nowhere are neither scaled nor rotated.

    Args:
      scale_base: B, the distance at which a logit has decayed by zeta.
      gamma: sets how much the slowest pair keeps: zeta_0 = gamma/(1 + gamma).
      centred: counts positions of the scale (not of the rotation) from the middle of the document's keys, as the authors'
        code does. That changes no logit of two tokens that stand somewhere, only how far float32 reaches: without it a
        token may stand at most 55 scale_base from 0 (28,000 for the defaults), with it anywhere, in a document twice as
        long. A class token or register meets the others as if it stood in that middle, without it at 0. The middle moves
        with every token, so a cache keeps its keys unscaled.
      layout: channel pairs "half" as in `rope`, or "interleaved" as in the authors' code.

    In float16 keys overflow at a sixth of that distance; bfloat16 has the range of float32.

    Raises:
      ValueError: for an odd head dim, an unknown layout, a scale_base or gamma that is not positive, and for known positions
        beyond the reach (unknown ones give NaN).
    """

    family = "rotary"
    formula = (
        r"q'_c = q_c\,\zeta_c^{m/B}\,e^{i m\theta_c},\quad k'_c = k_c\,\zeta_c^{-n/B}\,e^{i n\theta_c}",
        r"\zeta_c = \frac{2c/D + \gamma}{1+\gamma},\quad \theta_c = \beta^{-2c/D}",
    )

    dimensions = (1,)
    ranges = "scale_base > 0", "gamma > 0"

    base: float = 10_000.0
    scale_base: float = 512.0
    gamma: float = 0.4
    centred: bool = False
    layout: str = "half"

    @property
    def needs(self) -> Needs:
        return Needs.DOCUMENT_LENGTH if self.centred else Needs(0)

    relative = True

    @property
    def reach(self) -> float:
        return np.inf if self.centred else self._reach

    @property
    def _reach(self) -> float:
        return self.scale_base * _LOG_REACH / float(np.log1p(1 / self.gamma))

    def wave(self, num_axes, channels):
        return geometric(self.base, channels)[None]

    def rotate(self, params, q, q_site, k, k_site):
        sites = q_site, k_site
        centres = [self._centre(site, k_site) if self.centred else np.zeros((), np.float32) for site in sites]
        each = zip((q, k), sites, centres, (1, -1), strict=True)
        return tuple(self._scaled(*one) for one in each)

    def _scaled(self, x: Float[Array, "T H D"], site: Site, centre: Float32[Array, "*T"], sign: int):
        angle, layout = self._turn(site, None, x.shape[-1])
        pairs = x.shape[-1] // 2
        decay = np.log((np.arange(pairs) / pairs + self.gamma) / (1 + self.gamma)).astype(np.float32)
        offset = self._offset(site, centre)
        scale = jnp.exp(sign * offset[:, None] / self.scale_base * decay)
        scale = jnp.tile(scale, 2) if layout == "half" else jnp.repeat(scale, 2, axis=1)
        return (rotated(x.astype(jnp.float32), angle, layout) * scale[:, None]).astype(x.dtype)

    def _offset(self, site: Site, centre: Float32[Array, "*T"]) -> Float32[Array, " T"]:
        """Positions from the centre; 0 for tokens that stand nowhere, and for padding, which may stand out of reach."""
        array = np if _known(site) and isinstance(centre, np.ndarray) else jnp
        position = array.asarray(self.coordinates(site)[:, 0], np.float32)
        offset = array.where(standing(site), position - centre, np.float32(0))
        if isinstance(offset, np.ndarray) and np.abs(offset).max(initial=0) > self._reach:
            raise ValueError(
                f"{self} carries {self._reach:.0f} positions to each side of {'the middle' if self.centred else '0'}, "
                f"but a token stands {np.abs(offset).max():.0f} away: "
                f"{'' if self.centred else 'choose centred=True or '}a larger scale_base"
            )
        # Beyond the reach queries would silently vanish while keys overflow.
        return array.where(abs(offset) > self._reach, np.float32(np.nan), offset)

    def _centre(self, site: Site, k_site: Site) -> Float32[Array, " T"]:
        """The middle of the keys of each token's document; without a gradient, as no logit of two positions depends on it."""
        array = np if _known(site) and _known(k_site) else jnp
        position = array.asarray(self.coordinates(k_site)[:, 0], np.float32)
        position = position if array is np else jax.lax.stop_gradient(position)
        first, last = first_and_last(site, k_site._replace(position=position))
        return array.floor((first + last) / 2)


def _known(site: Site) -> bool:
    """Whether it is known while tracing where the tokens stand, so that a token out of reach can be refused then."""
    return all(isinstance(leaf, np.ndarray) for leaf in site[:3])


@register("fope")
@dataclass(frozen=True)
class FoPE(Encoding):
    """Fourier position embedding: each channel pair carries a series of frequencies, and the slowest ones only content.

    Hua et al. (2024), arXiv 2412.17739, in the form of the authors' code, which made the paper's results. Of the
    frequencies w_c = base^(-2c/D) those below 2 pi / original_length are dropped, N remain. The first M = min(N, D/4) pairs
    (a, b) of channels, paired (c, c + D/2), become

        (a C_c(m) - b S_c(m), a S_c(m) + b C_c(m)),  C(m) = cos(m w) F_cos,  S(m) = sin(m w) F_sin,

    with matrices F [N, M] for each head, the same for queries and keys: a 1 in row c ceil(N/M) of column c, plus noise
    N(0, sd^2), sd = gain sqrt(2 / (M (N + H))). That is Xavier's rule as torch applies it to an array [H, N, M]. The other
    pairs become (a - b, a + b) at every position: cos and sin of the dropped frequencies are both padded with 1, so these
    channels have twice the weight in logits that unrotated content would have.

    Neither relative nor norm-preserving: cos(m u) cos(n v) with frequencies u and v that differ is not a function of m - n.

    Args:
      original_length: the length in training; channels with a longer period never complete one.
      gain: of the noise; the authors use 0.3, 0.4 and 0.6 in models of 60M, 180M and 1.2B parameters.
      learnable: False: the matrices stay as they were drawn (their gradient is 0), as in the authors' runs.

    Parameters: {"cos": [H, N, M], "sin": [H, N, M]}. Tokens that stand nowhere are left as they are.

    Raises:
      ValueError: for a head dim not divisible by 4, an original_length below 7 or a negative gain.
    """

    family = "rotary"
    formula = (
        r"C(m) = \cos(m\omega)\,F^{\cos},\quad S(m) = \sin(m\omega)\,F^{\sin}",
        r"(a, b)_c \mapsto \left(a\,C_c - b\,S_c,\ a\,S_c + b\,C_c\right),\quad \omega_c ="
        r" \beta^{-2c/D} \ge \frac{2\pi}{N}",
    )

    dimensions = (1,)
    relative = False
    ranges = "gain >= 0", "base > 0"

    base: float = 10_000.0
    original_length: int = 512
    gain: float = 0.3
    learnable: bool = False

    def __post_init__(self):
        super().__post_init__()
        if self.original_length < 7:  # 2 pi / 7 < 1, the highest frequency
            raise ValueError(f"fope keeps no frequency for original_length={self.original_length}: at least 7")

    @property
    def needs(self) -> Needs:
        return Needs.EVERY_HEAD | (Needs(0) if self.learnable else Needs.CONSTANT_PARAMS)

    def init(self, key, dims):
        count = len(self._frequencies(dims.head_dim))
        mixed = min(count, dims.head_dim // 4)
        eye = np.eye(mixed * -(-count // mixed), dtype=np.float32)[:count, :: -(-count // mixed)]
        deviation = self.gain * (2 / (mixed * (count + dims.num_heads))) ** 0.5
        noise = deviation * jax.random.normal(key, (2, dims.num_heads, count, mixed), jnp.float32)
        return {"cos": eye + noise[0], "sin": eye + noise[1]}

    def rotate(self, params, q, q_site, k, k_site):
        params = params if self.learnable else jax.lax.stop_gradient(params)
        q_series = self._series(params, q_site, q.shape[-1])
        k_series = self._series(params, k_site, k.shape[-1])
        return _times(q, *q_series), _times(k, *k_series)

    def _frequencies(self, head_dim: int) -> Float[np.ndarray, " N"]:
        if head_dim % 4:
            raise ValueError(
                f"fope mixes frequencies into a quarter of the head_dim: it must be divisible by 4, got {head_dim}"
            )
        frequency = geometric(self.base, head_dim // 2)
        return frequency[frequency >= 2 * np.pi / self.original_length]

    def _series(
        self, params, site: Site, head_dim: int
    ) -> tuple[Float32[jax.Array, "T H C"], Float32[jax.Array, "T H C"]]:
        """The factors in place of cos and sin in the rotation of each channel pair."""
        angle = angles(self.coordinates(site), self._frequencies(head_dim)[None])
        standing = stands(site)[:, None, None]

        def mixed(wave: Float32[Array, "T N"], matrix: Float[Array, "H N M"], nowhere: float):
            series = jnp.einsum("tn,hnm->thm", wave, matrix, precision=jax.lax.Precision.HIGHEST)
            pad = head_dim // 2 - series.shape[-1]
            return jnp.where(standing, jnp.pad(series, ((0, 0), (0, 0), (0, pad)), constant_values=1.0), nowhere)

        return mixed(jnp.cos(angle), params["cos"], 1.0), mixed(jnp.sin(angle), params["sin"], 0.0)


def _times(
    x: Float[Array, "T H D"], cos: Float32[Array, "T H C"], sin: Float32[Array, "T H C"]
) -> Float[Array, "T H D"]:
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1).astype(x.dtype)


@register("rope_pp")
@dataclass(frozen=True)
class RopePP(Rotary):
    """RoPE++: of a pair of heads one attends by the real part of z = sum_c q'_c conj(k'_c), the other by its imaginary part.

    Liu et al. (2025), arXiv 2512.07525; q' and k' are the rotated numbers of `rope`. Im z = Re(-i z), so the second head's
    query is the first one's turned back by a quarter (the paper writes -Im of the conjugate). As in
    `LlamaAttention.apply_rotary_pos_emb` of OpenMOSS/rope_pp (rope_pp/modeling_llama_rope_pp.py), with imag_mode "imag1"
    (RoPE++_EH) and "imag2" (RoPE++_EC), heads 2h and 2h + 1 share one query and one key; with a query of its own the second
    would be `rope` again, with other weights.

    Here a model keeps its heads: the query of head 2h stands for both, and the query of head 2h + 1 is unused. So is
    its key, unless key heads are shared: with num_kv_heads half of num_heads the cache is that of RoPE++_EH, whose values are
    shared too. The authors' model has no weights for unused parts, so that RoPE++_EH has fewer than `rope` and
    RoPE++_EC, which differs by having twice the heads, as many. Of an odd number of heads the last one is real.

    Args:
      base, layout, scaling: as in `rope`.

    Raises:
      ValueError: as rope, and for key heads that serve an odd number of query heads each, unless there is only one.
    """

    family = "rotary"
    formula = (
        r"z_{mn} = \sum_c q'_c\,\bar k'_c,\quad \ell^{(2h-1)}_{mn} = \frac{\mathrm{Re}\,z_{mn}}{\sqrt"
        r" D},\quad \ell^{(2h)}_{mn} = \frac{\mathrm{Im}\,z_{mn}}{\sqrt D}",
    )

    base: float = 10_000.0
    layout: str = "half"
    scaling: Scaling | None = None

    def rotate(self, params, q, q_site, k, k_site):
        heads, key_heads = q.shape[1], k.shape[1]
        if key_heads == heads:
            k = k[:, np.arange(heads) // 2 * 2]
        elif key_heads > 1 and heads // key_heads % 2:
            raise ValueError(
                f"rope_pp pairs heads, and a pair shares one key: {key_heads} key heads serve {heads // key_heads} of "
                f"{heads} query heads each; choose num_kv_heads so that they serve an even number"
            )
        real, k = super().rotate(params, q[:, ::2], q_site, k, k_site)
        imaginary = self._turned_back(real[:, : heads // 2])
        pairs = jnp.stack([real[:, : heads // 2], imaginary], axis=2).reshape(len(q), heads // 2 * 2, q.shape[-1])
        return jnp.concatenate([pairs, real[:, heads // 2 :]], axis=1), k

    def _turned_back(self, x: Float[Array, "T H D"]) -> Float[jax.Array, "T H D"]:
        """Each pair of channels a + ib times -i."""
        if self.layout == "half":
            a, b = jnp.split(x, 2, axis=-1)
            return jnp.concatenate([b, -a], axis=-1)
        return jnp.stack([x[..., 1::2], -x[..., 0::2]], axis=-1).reshape(x.shape)
