"""Rotary encodings that learn: frequencies (RoPE-Mixed, LeRoPE), phases (PoPE), positions (RePo), or generators (LieRE)."""

import operator
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float32

from posjax.encoding import Array, Encoding, Needs, Site, stands
from posjax.encodings.angles import angles, axial, geometric
from posjax.encodings.rotary import Rotary, rotated, rotated_by_head
from posjax.encodings.scaling import Scaling, Spectrum
from posjax.spec import register

_SMALL = 16  # rows of matrices up to which `matrix_product` adds on TPUs; with 64 rows matrix units are ahead


@register("rope_mixed")
@dataclass(frozen=True)
class RopeMixed(Rotary):
    """Rotary embedding with learned frequencies, so that every pair of channels turns along its own direction.

    Heo et al. (2024), arXiv 2403.13298 (RoPE-Mixed): angle[h, c] = sum_a position_a wave[a, h, c], learned for each head.
    The paper learns them for each layer too: host it with injection="every_layer", and without weight decay.

    Initially, on two axes, channels c < D/4 have magnitude base^(-4c/D) in direction phi, and c + D/4 the same magnitude in
    direction phi + pi/2, with phi ~ U(0, 2 pi) for each head. On three axes, as in Mochi's videos, each head has three
    orthogonal directions, drawn uniformly, with D/6 magnitudes each. On one axis there are no directions: base^(-2c/D).

    Args:
      base: 10 in the paper and its models.
      layout: channel pairs "interleaved", as in the authors' code and timm, or "half".
      scaling: of the frequencies, as in `rope`, for larger grids than the trained one: a learned frequency is multiplied by
        the factor of its channel's initial magnitude.

    Parameters: {"wave": [A, H, D/2]} in radians per patch; the axes of `dims.grid` if it is given, otherwise one. The first
    of two axes is that of the rows; the authors' code and timm keep the columns first, so reverse their checkpoints along it.
    Frequencies are rounded by 2^-23 of their value and angles are exact to 1e-6 beyond that (see `angles`), so logits err
    by 2^-23 of the angle between two tokens, wherever these stand. Tokens that stand nowhere are left unrotated.

    Raises:
      ValueError: for a head dim not divisible by 2A, an unknown layout, or tokens on other axes than the frequencies.
    """

    family = "rotary"
    formula = (
        r"q'_{h,c} = q_{h,c}\,e^{i\left(m_y\theta^y_{h,c} + m_x\theta^x_{h,c}\right)},\quad"
        r" \theta^y_{h,c},\ \theta^x_{h,c}\ \text{learned}",
    )

    base: float = 10.0
    layout: str = "interleaved"
    scaling: Scaling | None = None

    @property
    def needs(self):
        return super().needs | Needs.EVERY_HEAD

    def init(self, key, dims):
        magnitude = axial(self.base, num_axes(dims), dims.head_dim // 2, "rope_mixed: a head_dim").sum(axis=0)
        if num_axes(dims) == 1:
            return {"wave": jnp.tile(jnp.asarray(magnitude, jnp.float32), (1, dims.num_heads, 1))}
        if num_axes(dims) == 3:
            frame = jax.random.orthogonal(key, 3, (dims.num_heads,)).transpose(1, 0, 2)
            return {"wave": jnp.float32(magnitude) * jnp.repeat(frame, len(magnitude) // 3, axis=2)}
        direction = jax.random.uniform(key, (dims.num_heads, 1), jnp.float32, maxval=2 * np.pi)
        direction = direction + np.repeat(np.float32([0, np.pi / 2]), len(magnitude) // 2)
        return {"wave": jnp.float32(magnitude) * jnp.stack([jnp.sin(direction), jnp.cos(direction)])}

    def rotate(self, params, q, q_site, k, k_site):
        q_length, k_length = self._lengths(q_site, k_site)
        q_turn = self._learned_turn(params["wave"], q_site, q_length)
        k_turn = self._learned_turn(params["wave"], k_site, k_length)
        return rotated(q, *q_turn), rotated(k, *k_turn)

    def _learned_turn(self, wave: Float[Array, "A H C"], site: Site, length: Float32[Array, " T"] | None):
        """The angles [T, H, C], the layout and the attention factor of `rotated`."""
        position = self.coordinates(site)
        check_axes(self, len(wave), position.shape[1])
        if self.scaling is None:
            return jnp.where(stands(site)[:, None, None], angles(position, wave), 0.0), self.layout
        angle = self.scaling.angles(position, wave, self.spectrum(*wave.shape[::2]), length)
        angle = jnp.where(stands(site)[:, None, None], angle, 0.0)
        return angle, self.layout, self.scaling.attention(position, length)


@register("compass_rope")
@dataclass(frozen=True)
class CompassRope(RopeMixed):
    """RoPE-Mixed in polar form: the magnitude and the direction of each frequency are learned, not its two coordinates.

    Compass-RoPE (ICML 2026, icml.cc/virtual/2026/poster/62023; no code): learned coordinates drift towards the axes, and
    with them the resolutions at which a model works; directions that begin uniform over [0, 2 pi) and are learned as angles
    do not. Only the abstract was at hand. So magnitudes and the grid of directions below are chosen here, and the paper's
    discrete Fourier transform of the angles, for which it gives no formula, is left out.

    Initially, on two axes, pair c of head h has magnitude base^(-2c/D) and direction 4 pi c / D + pi h / H: the pairs of
    a head are spread over the circle, and the heads at each magnitude over half of it. On one axis there are no directions.

    Args:
      base, layout, scaling: as in `rope_mixed`.

    Parameters: {"magnitude": [H, D/2]} in radians per patch, on two axes also {"direction": [H, D/2]} in radians, from the
    columns to the rows. Angles err as in `rope_mixed`. Tokens that stand nowhere are left unrotated.

    Raises:
      ValueError: for an odd head dim, an unknown layout, or tokens on other axes than the frequencies.
    """

    formula = (
        r"q'_{h,c} = q_{h,c}\,e^{i r_{h,c}\left(m_y\sin\phi_{h,c} + m_x\cos\phi_{h,c}\right)},\quad"
        r" r_{h,c},\ \phi_{h,c}\ \text{learned}",
    )

    dimensions = (1, 2)

    def init(self, key, dims):
        channels, heads = self._rotary_dim(dims.head_dim) // 2, dims.num_heads
        magnitude = {"magnitude": jnp.tile(jnp.asarray(geometric(self.base, channels), jnp.float32), (heads, 1))}
        if num_axes(dims) == 1:
            return magnitude
        direction = 2 * np.pi * np.arange(channels) / channels + np.pi * np.arange(heads)[:, None] / heads
        return magnitude | {"direction": jnp.asarray(direction, jnp.float32)}

    def rotate(self, params, q, q_site, k, k_site):
        wave = params["magnitude"][None]
        if "direction" in params:
            wave = wave * jnp.stack([jnp.sin(params["direction"]), jnp.cos(params["direction"])])
        return super().rotate({"wave": wave}, q, q_site, k, k_site)

    def spectrum(self, num_axes, channels):
        return Spectrum(self.base, channels, np.arange(channels))


@register("lerope")
@dataclass(frozen=True)
class LeRope(Rotary):
    """RoPE whose frequencies are learned: w_c = exp(a_c) base^(-2c/D), one a_c for each pair of channels of all heads.

    Karypis et al. (2026), arXiv 2607.10134, section 3.1: a_c is 0 at first, so that training begins with `rope`, and the same
    in all layers and heads, as a model hosts it by default. They train a_c without weight decay and clip its gradient by
    itself. `rope_mixed` learns frequencies for each head. Of the paper only the abstract was at hand: the formula is what
    several repositories quote from that section, alike. Its first version names no code.

    On A axes each has the frequencies of D/A channels, as in `rope`, and scales of its own.

    Parameters: {"log_scale": [D/2]}. Angles err as in `rope_mixed`. Tokens that stand nowhere are left unrotated.

    Raises:
      ValueError: for a head dim not divisible by 2A, or an unknown layout.
    """

    family = "rotary"
    formula = (
        r"q'_c = q_c\,e^{i m\theta_c},\quad \theta_c = e^{a_c}\,\beta^{-2c/D},\quad"
        r" a_c\ \text{learned}",
    )

    base: float = 10_000.0
    layout: str = "half"

    def init(self, key, dims):
        return {"log_scale": jnp.zeros(self._rotary_dim(dims.head_dim) // 2, jnp.float32)}

    def rotate(self, params, q, q_site, k, k_site):
        turned = [rotated(x, self._learned_angle(params, site), self.layout) for x, site in ((q, q_site), (k, k_site))]
        return tuple(turned)

    def _learned_angle(self, params, site: Site) -> Float32[jax.Array, "T C"]:
        position, log_scale = self.coordinates(site), params["log_scale"]
        wave = jnp.asarray(self.wave(position.shape[1], len(log_scale)), jnp.float32) * jnp.exp(log_scale)
        return jnp.where(stands(site)[:, None], angles(position, wave), 0.0)


@register("pope")
@dataclass(frozen=True)
class PoPE(Encoding):
    """Polar embedding: content gives the magnitudes, position the phases, and nothing gives both.

    Gopalakrishnan et al. (2025), arXiv 2509.10534. Each channel is a complex number of its own,

        q'_c = softplus(q_c) exp(i m w_c),  k'_c = softplus(k_c) exp(i (n w_c + delta_c)),  w_c = base^(-c/D),  c < D,

    and the logit is Re sum_c conj(q'_c) k'_c / sqrt(D) = sum_c softplus(q_c) softplus(k_c) cos((n - m) w_c + delta_c) /
    sqrt(D): queries and keys get 2D channels, and logits are still divided by sqrt(D). With A axes each takes D/A channels
    and the exponent is -cA/D. A token that stands nowhere has phase 0, as a query and as a key.

    Args:
      bias_uniform_init: delta ~ U(-2 pi, 0) at first, instead of 0.

    Parameters: {"phase": [H, D]}, delta in radians. Published code clamps delta to [-2 pi, 0]; outside it gets no
    gradient. Here it is free: the functions are the same, as phases count modulo 2 pi.

    Raises:
      ValueError: for a head dim not divisible by A.
    """

    family = "rotary"
    formula = (
        r"q'_c = \mathrm{softplus}(q_c)\,e^{i m\theta_c},\quad k'_c ="
        r" \mathrm{softplus}(k_c)\,e^{i\left(n\theta_c + \delta_c\right)},\quad \theta_c ="
        r" \beta^{-c/D}",
        r"\ell_{mn} = \frac{1}{\sqrt D} \sum_c"
        r" \mathrm{softplus}(q_c)\,\mathrm{softplus}(k_c)\cos\left((n-m)\theta_c + \delta_c\right)",
    )

    needs = Needs.HEAD_DIM | Needs.EVERY_HEAD
    ranges = ("base > 0",)

    base: float = 10_000.0
    bias_uniform_init: bool = False

    def init(self, key, dims):
        shape = (dims.num_heads, dims.head_dim)
        uniform = jax.random.uniform(key, shape, jnp.float32, minval=-2 * np.pi, maxval=0.0)
        return {"phase": uniform if self.bias_uniform_init else jnp.zeros(shape, jnp.float32)}

    def rotate(self, params, q, q_site, k, k_site):
        q_phase = self._phase(q_site, q.shape[-1])
        k_phase = self._phase(k_site, k.shape[-1]) + jnp.where(stands(k_site)[:, None, None], params["phase"], 0.0)
        return _polar(q, q_phase), _polar(k, k_phase)

    def _phase(self, site: Site, head_dim: int) -> Float32[jax.Array, "T 1 D"]:
        position = self.coordinates(site)
        num_axes = position.shape[1]
        if head_dim % num_axes:
            raise ValueError(f"pope: a head_dim of {head_dim} cannot be shared by {num_axes} position axes")
        wave = np.kron(np.eye(num_axes), geometric(self.base, head_dim // num_axes))
        return jnp.where(stands(site)[:, None], angles(position, wave), 0.0)[:, None]


def _polar(x: Float[Array, "T H D"], phase: Float32[Array, "T #H D"]) -> Float[Array, "T H C"]:
    magnitude = jax.nn.softplus(x.astype(jnp.float32))
    return jnp.concatenate([magnitude * jnp.cos(phase), magnitude * jnp.sin(phase)], axis=-1).astype(x.dtype)


@register("repo")
@dataclass(frozen=True)
class RePo(Encoding):
    """Context re-positioning: every token says where it stands, for each head, and is turned there as by `rope`.

    z = (silu(x W_gate) * (x W_content)) W_place, one real number a head; x is the layer's input. Li et al. (2025), arXiv
    2512.14391 (ICML 2026), and the authors' code (SakanaAI/repo, OLMo/olmo/model.py, mode "swigluex_multihead"). Where a
    token really stands, no hook reads; with a causal mask the model counts tokens as one with `none` does. The authors go on
    from a trained model, keep `rope` in its first layers (5 of the model of 1B) and have this in all later ones: write
    a pattern over layers. Tokens that stand nowhere are left unrotated.

    Args:
      base: of the rotation; 500,000 is that of the model from which the authors go on.
      hidden_dim: of W_gate and W_content; M // 8 where None, as in the code.
      stddev: of all matrices at first.

    Parameters: {"gate": [M, hidden], "content": [M, hidden], "place": [hidden, H]}, all N(0, stddev^2), which
    the code cuts off at 3 stddev.

    Raises:
      ValueError: for a base that is not positive, a negative stddev or a hidden_dim below 1; from `init` for an odd head dim.
    """

    family = "contextual"
    formula = (
        r"q'_{t,c} = q_{t,c}\,e^{i z_t\theta_c},\quad k'_{t,c} = k_{t,c}\,e^{i z_t\theta_c},\quad"
        r" \theta_c = \beta^{-2c/D}",
        r"z_t = w_h\cdot\left(\mathrm{silu}\left(W_g x_t\right)\odot W_c x_t\right)",
    )

    needs = Needs.EVERY_HEAD
    observes = 0
    ranges = "stddev >= 0", "base > 0", "hidden_dim >= 1"

    base: float = 500_000.0
    hidden_dim: int | None = None
    stddev: float = 0.02

    def init(self, key, dims):
        if dims.head_dim % 2:
            raise ValueError(f"repo rotates pairs of channels: head_dim must be even, got {dims.head_dim}")
        hidden = self.hidden_dim or max(1, dims.width // 8)
        shapes = {"gate": (dims.width, hidden), "content": (dims.width, hidden), "place": (hidden, dims.num_heads)}
        keys = jax.random.split(key, len(shapes))
        return {
            n: self.stddev * jax.random.normal(k, shapes[n], jnp.float32) for n, k in zip(shapes, keys, strict=True)
        }

    def observe(self, params, x, site, past=None):
        gate, content = (jnp.matmul(x.astype(jnp.float32), params[n], precision="highest") for n in ("gate", "content"))
        place = jnp.matmul(jax.nn.silu(gate) * content, params["place"], precision="highest")
        return site._replace(state=jnp.where(stands(site)[:, None], place, 0.0))

    def rotate(self, params, q, q_site, k, k_site):
        wave = geometric(self.base, q.shape[-1] // 2)[None]
        return tuple(rotated_by_head(x, site.state, wave) for x, site in ((q, q_site), (k, k_site)))


@register("liere")
@dataclass(frozen=True)
class LieRE(Encoding):
    """Rotations of whole blocks of channels, generated by learned skew-symmetric matrices: x' = exp(sum_a p_a A_a) x.

    Ostmeier et al. (2024), arXiv 2406.10322. Each block of `generator_dim` channels has one generator per axis. Generators
    of different axes commute only if blocks are pairs of channels, which is `rope_mixed`. Otherwise R(q - p) is not R(p)^T
    R(q), so with larger blocks and more than one axis LieRE is not relative. It is declared so for generator_dim > 2,
    although on one axis it is relative.

    Args:
      generator_dim: channels of a block; if blocks do not fill the head dim, its last channels pass unchanged. The authors
        use 64, all of the head dim (LieRE_64), and 8 (LieRE_8).
      per_head: whether heads have generators of their own.

    Parameters: {"generator": [A, H or 1, blocks, g(g - 1)/2]}, the entries above the diagonal in radians per patch, an
    axis for each of `dims.grid` if that is given, otherwise one. The authors let positions run from 0 to 1 and draw
    entries from U(0, 2 pi), all of one sign: their code subtracts 1/2 above and below the diagonal, which cancels in A -
    A^T. Here positions are patches, so entries begin as U(0, 2 pi) / (size - 1), with the sizes of `dims`: the same
    rotations.

    Exponentials are computed in float32: they err by about 2e-7 of the angle |p A|, and are NaN where a row of p A sums up
    to more than 2^11. They take O(T D g) memory. Tokens that stand nowhere are left as they are.

    Raises:
      ValueError: for a generator_dim below 2 or above the head dim, from `init` where `dims` gives neither length nor grid,
        and for tokens on other axes than the generators.
    """

    family = "rotary"
    formula = (r"q'_m = \exp\left(\sum_a m_a A_a\right) q_m,\quad A_a = -A_a^\top\ \text{learned}",)

    dimensions = (1, 2, 3)
    reach = 1024  # with the generators of `init` for two dozen patches; larger sizes carry further

    generator_dim: int = 8
    per_head: bool = True

    def __post_init__(self):
        if self.generator_dim < 2:
            raise ValueError(f"liere rotates blocks of at least 2 channels, got generator_dim={self.generator_dim}")

    @property
    def relative(self) -> bool:
        return self.generator_dim == 2

    @property
    def needs(self) -> Needs:
        return Needs.EVERY_HEAD if self.per_head else Needs(0)

    def init(self, key, dims):
        g = self.generator_dim
        if g > dims.head_dim:
            raise ValueError(f"liere(generator_dim={g}) is above the head_dim {dims.head_dim}: choose a smaller one")
        size = dims.grid or (dims.length and (dims.length,))
        if not size:
            raise ValueError("liere scales its generators to the positions: give Dims(length=...) or Dims(grid=...)")
        shape = (len(size), dims.num_heads if self.per_head else 1, dims.head_dim // g, g * (g - 1) // 2)
        steps = jnp.maximum(jnp.array(size, jnp.float32) - 1, 1).reshape(-1, 1, 1, 1)
        return {"generator": jax.random.uniform(key, shape, jnp.float32, maxval=2 * np.pi) / steps}

    def rotate(self, params, q, q_site, k, k_site):
        # XLA does not merge two equal exponentials, as `expm` is checkpointed: equal sites share one.
        tokens, entries = [jax.tree.leaves(site) for site in (q_site, k_site)], self.entries(params)
        alike = len(tokens[0]) == len(tokens[1]) and all(map(operator.is_, *tokens))
        turns = [self._rotations(entries, site) for site in ([q_site] if alike else [q_site, k_site])]
        return self._turned(q, turns[0]), self._turned(k, turns[-1])

    def entries(self, params) -> Float[Array, "A H N E"]:
        """The entries above the diagonal of the generator of each axis, head and block."""
        return params["generator"]

    def _rotations(self, entries: Float[Array, "A H N E"], site: Site) -> Float32[jax.Array, "T H N g g"]:
        position = self.coordinates(site)
        check_axes(self, len(entries), position.shape[1])
        there = stands(site) & (jnp.asarray(site.segment) > 0)  # padding may be placed where exponentials are NaN
        position = jnp.where(there[:, None], jnp.asarray(position, jnp.float32), 0.0)
        generator = skew_symmetric(entries, self.generator_dim)
        return expm(jnp.einsum("ta,ahnij->thnij", position, generator, precision=jax.lax.Precision.HIGHEST))

    def _turned(self, x: Float[Array, "T H D"], turn: Float32[Array, "T #H N g g"]) -> Float[Array, "T H D"]:
        count, g = turn.shape[2], self.generator_dim
        blocks = x[..., : count * g].astype(jnp.float32).reshape(*x.shape[:2], count, g)
        turned = matrix_product(turn, blocks[..., None])
        return jnp.concatenate([turned.reshape(*x.shape[:2], -1).astype(x.dtype), x[..., count * g :]], axis=-1)


def skew_symmetric(entries: Float[Array, "*B E"], size: int) -> Float[jax.Array, "*B g g"]:
    """The matrices A = -A^T of g = size rows with these entries above the diagonal, row by row: E = g(g - 1)/2."""
    above = np.triu_indices(size, 1)
    upper = jnp.zeros((*entries.shape[:-1], size, size), jnp.float32).at[..., *above].set(entries)
    return upper - jnp.swapaxes(upper, -1, -2)


@jax.checkpoint  # the backward pass would otherwise keep every square
def expm(x: Float32[Array, "*B g g"], squarings: int = 12) -> Float32[jax.Array, "*B g g"]:
    """exp(x) by scaling and squaring: a Taylor series of x / 2^s, squared s times; NaN if s would be above `squarings`.

    For a norm of at most 1/2, powers up to the eighth are exact to float32; they take four products in the order of Paterson
    and Stockmeyer (1973). Each matrix has its own s, so a token's rotation does not depend on other tokens. Squarings take
    y = exp(x) - 1 to 2 y + y^2: beside 1 a small y would be rounded, and each squaring would double that.
    """
    norm = jax.lax.stop_gradient(jnp.max(jnp.sum(jnp.abs(x), axis=-1), axis=-1))
    times = jnp.ceil(jnp.log2(jnp.maximum(norm, 0.5))) + 1
    x = x * jnp.exp2(-times)[..., None, None]
    identity = jnp.eye(x.shape[-1], dtype=jnp.float32)
    square = matrix_product(x, x)
    cube, fourth = matrix_product(square, x), matrix_product(square, square)
    upper = identity / 24 + x / 120 + square / 720 + cube / 5040 + fourth / 40320
    y = x + square / 2 + cube / 6 + matrix_product(upper, fourth)
    for i in range(squarings):
        y = jnp.where((i < times)[..., None, None], 2 * y + matrix_product(y, y), y)
    return jnp.where((times <= squarings)[..., None, None], identity + y, jnp.nan)


def matrix_product(a: Float32[Array, "*#B g g"], b: Float32[Array, "*#B g k"]) -> Float32[jax.Array, "*_ g k"]:
    """The matrix products a b, on TPUs of small matrices as sums over lanes of tokens.

    With LieRE's blocks of 8 channels a layer takes a 13th of the cycles and an 18th of the memory that it takes by matrix
    units, which fill up each matrix to 8 x 128. Not so on CPUs: in jaxlib 0.10.2 on some of them the gradient of a sum for
    several seeds ends the process.
    """
    matmul = lambda a, b: jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)  # noqa: E731
    if a.shape[-1] > _SMALL:
        return matmul(a, b)
    return jax.lax.platform_dependent(a, b, tpu=sum_of_products, default=matmul)


def sum_of_products(a: Float32[Array, "*#B g g"], b: Float32[Array, "*#B g k"]) -> Float32[jax.Array, "*_ g k"]:
    return jnp.sum(a[..., :, :, None] * b[..., None, :, :], axis=-2)


def num_axes(dims) -> int:
    return 1 if dims.grid is None else len(dims.grid)


def check_axes(encoding: Encoding, learned: int, given: int) -> None:
    if learned != given:
        raise ValueError(
            f"{encoding.spec_name} was initialised for positions of {learned} axes, got {given}: "
            "give Dims(grid=...) for images, and no grid for lines"
        )
