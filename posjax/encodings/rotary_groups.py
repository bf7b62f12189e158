"""Rotations that form a group, in a learned basis (STRING, HARoPE) or with generators that commute (ComRoPE); and one that
forms none, as a control (spherical RoPE).

`liere` is the general form, exp(sum_a p_a A_a). It is relative where the A_a commute, and then it is `rope_mixed` in another
basis (Schenck et al. 2025, theorem 3.4): what follows learns that basis, or keeps the generators commuting.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from posjax.encoding import Array, Encoding, Needs, Site, stands
from posjax.encodings.angles import angles, geometric
from posjax.encodings.rotary import Rope, Rotary, rotated
from posjax.encodings.rotary_learned import LieRE, RopeMixed, check_axes, expm, num_axes, skew_symmetric
from posjax.spec import nearest, register

_KEYS = ["same", "inverse"]
_KINDS = ["linear", "axial"]
_MIXED, _INTERLEAVED = RopeMixed(), Rope(layout="interleaved")
_ONE = float(np.log(np.e - 1))  # softplus of it is 1


class _Rebased(Encoding):
    """A rotary encoding behind a learned linear map of each head's queries and keys.

    A member is a frozen dataclass with the fields `rotary` and `stddev`, and defines `maps`. The maps act on all tokens, also
    on those that stand nowhere: their logits with the others are then in one basis.
    """

    ranges = ("stddev >= 0",)

    @property
    def relative(self) -> bool:
        return self.rotary.relative

    @property
    def dimensions(self) -> tuple[int, ...]:
        return self.rotary.dimensions

    @property
    def needs(self) -> Needs:
        return self.rotary.needs | Needs.EVERY_HEAD

    def shapes(self, num_heads: int, head_dim: int) -> dict[str, tuple[int, ...]]:
        """The map's parameters by name."""
        raise NotImplementedError

    def maps(self, params, head_dim: int) -> tuple[Float[jax.Array, "H D D"], Float[jax.Array, "H D D"]]:
        """The matrices by which queries and keys are multiplied before they are turned."""
        raise NotImplementedError

    def __post_init__(self):
        super().__post_init__()
        if not (isinstance(self.rotary, Rotary) and self.rotary.hooks == {"rotate"}):
            raise ValueError(
                f"{self.spec_name}(rotary=...) takes a rotary encoding that turns queries and keys and does no more, "
                f"as in rotary=rope(); got {self.rotary}"
            )

    def init(self, key, dims):
        shapes = self.shapes(dims.num_heads, dims.head_dim)
        *keys, rotary_key = jax.random.split(key, len(shapes) + 1)
        drawn = {
            name: self.stddev * jax.random.normal(k, shapes[name], jnp.float32)
            for k, name in zip(keys, shapes, strict=True)
        }
        return drawn | {"rotary": self.rotary.init(rotary_key, dims)}

    def rotate(self, params, q, q_site, k, k_site):
        q, k = (_applied(m, x) for m, x in zip(self.maps(params, q.shape[-1]), (q, k), strict=True))
        return self.rotary.rotate(params["rotary"], q, q_site, k, k_site)


def _applied(matrix: Float[Array, "H D D"], x: Float[Array, "T H D"]) -> Float[Array, "T H D"]:
    return jnp.einsum("hij,thj->thi", matrix, x.astype(jnp.float32), precision="highest").astype(x.dtype)


@register("cayley_string")
@dataclass(frozen=True)
class CayleyString(_Rebased):
    """Cayley-STRING: a rotary encoding in a learned orthogonal basis of each head, z -> R(p) P z, P = (I - S)(I + S)^{-1}.

    Schenck et al. (2025), arXiv 2502.02562, equations 9 and 10: any exp(sum_a p_a L_a) with commuting skew-symmetric L_a is
    P' R(p) P'^T with a rotary R of learned frequencies, and the outer P' cancels in the logits. So it is exactly relative,
    on any number of axes that the rotary encoding takes. S is skew-symmetric. With full attention P could be learned by
    the projections, as the authors say: it changes how a model learns, not the functions that it can express.

    Args:
      rotary: R; the authors learn its frequencies, as `rope_mixed` does. rope() has fixed ones, and a third axis.
      stddev: of the entries of S at first. 0 begins as the rotary encoding itself; the paper names no start.

    Parameters: {"skew": [H, D(D - 1)/2], the entries of S above the diagonal, "rotary": R's}. The authors have
    published no code. A step solves D linear equations for each head; in inference P can be absorbed into the projections.

    Raises:
      ValueError: for anything but a rotary encoding with the hook `rotate` alone; a negative stddev; as the rotary encoding.
    """

    family = "rotary"
    formula = (
        r"q'_m = R_m P q_m,\quad k'_n = R_n P k_n,\quad P = (I-S)(I+S)^{-1},\quad S ="
        r" -S^\top\ \text{learned}",
    )

    rotary: Encoding = _MIXED
    stddev: float = 0.0

    def shapes(self, num_heads, head_dim):
        return {"skew": (num_heads, head_dim * (head_dim - 1) // 2)}

    def maps(self, params, head_dim):
        skew, identity = skew_symmetric(params["skew"], head_dim), jnp.eye(head_dim, dtype=jnp.float32)
        basis = jnp.linalg.solve(identity + skew, identity - skew)  # the two factors commute
        return basis, basis


@register("harope")
@dataclass(frozen=True)
class HARoPE(_Rebased):
    """Head-wise adaptive RoPE: a rotary encoding behind a learned linear map of each head, A = U diag(s) V^T.

    Li et al. (2025), arXiv 2510.10489, equations 6 and 7: q -> R(m) A q and k -> R(n) A k, so that logits q^T A^T
    R(n - m) A k depend on n - m alone. U and V are exponentials of skew-symmetric matrices and s = softplus(sigma), as in
    the authors' code (Studentxll/HARoPE, model/models_HARoPE.py), which adds 10^-6 to s.

    Args:
      rotary: R; interleaved and axial with base 10,000 in the authors' code.
      keys: "same": keys are multiplied by A too, as in equation 7. "inverse": by A^{-T} = U diag(1/s) V^T, as in the authors'
        code, so that tokens at one place have the logits that they had without A.
      stddev: of all parameters about the identity at first; 0, as the authors, begins as the rotary encoding itself.

    Parameters: {"left", "right": [H, D(D - 1)/2], the entries above the diagonal of the logarithms of U and V; "scale":
    [H, D], sigma - ln(e - 1); "rotary": R's}. The authors' matrices A_u give the entries (A_u - A_u^T)/2.

    Raises:
      ValueError: for unknown keys; otherwise as `cayley_string`.
    """

    family = "rotary"
    formula = (
        r"q'_m = R_m A q_m,\quad k'_n = R_n A k_n,\quad A ="
        r" U\,\mathrm{diag}(s)\,V^\top\ \text{learned}",
    )

    rotary: Encoding = _INTERLEAVED
    keys: str = "same"
    stddev: float = 0.0

    def __post_init__(self):
        super().__post_init__()
        if self.keys not in _KEYS:
            raise ValueError(f"harope has no keys {self.keys!r}; {nearest(self.keys, _KEYS)}")

    def shapes(self, num_heads, head_dim):
        entries = (num_heads, head_dim * (head_dim - 1) // 2)
        return {"left": entries, "right": entries, "scale": (num_heads, head_dim)}

    def maps(self, params, head_dim):
        left, right = (expm(skew_symmetric(params[side], head_dim)) for side in ("left", "right"))
        scale = jax.nn.softplus(params["scale"] + _ONE)[:, None]
        key_scale = scale if self.keys == "same" else 1 / scale
        return tuple(jnp.einsum("hij,hkj->hik", left * s, right, precision="highest") for s in (scale, key_scale))


@register("circulant_string")
@dataclass(frozen=True)
class CirculantString(Encoding):
    """Circulant-STRING: z -> exp(sum_a p_a (C_a - C_a^T)) z, with learned circulant matrices C_a of each head.

    Schenck et al. (2025), arXiv 2502.02562, equation 11. Circulant matrices commute, so it is exactly relative. The
    discrete Fourier transform diagonalises them: its pair m of channels turns by sum_a p_a 2 Im(c^_a[m]), where c^_a is
    the transform of C_a's first column, and the pairs of m = 0 and m = D/2 stay. Queries and keys are left in that basis,
    in which their logits are the same, and angles are exact as everywhere.

    Args:
      base: at first pair m of D/2 - 1 turns by base^(-m/(D/2 - 1)) radians a patch in a random direction of each head. That
        start is ours: the paper names none, and the authors have published no code.

    Parameters: {"column": [A, H, D]}, the first columns; an axis for each of `dims.grid`, otherwise one. Of a column only the
    odd part, (c[j] - c[D - j])/2, matters. Tokens that stand nowhere are not turned.

    Raises:
      ValueError: for a head dim that is odd or below 4, a base that is not positive, or tokens on other axes than the
      columns.
    """

    family = "rotary"
    formula = (
        r"q'_m = \exp\left(\sum_a m_a\left(C_a - C_a^\top\right)\right) q_m,\quad"
        r" C_a\ \text{circulant, learned}",
    )

    needs = Needs.EVERY_HEAD
    ranges = ("base > 0",)

    base: float = 100.0

    def init(self, key, dims):
        sines = self._fourier(dims.head_dim)[1]
        shape = (num_axes(dims), dims.num_heads, len(sines))
        direction = jax.random.normal(key, shape, jnp.float32)
        direction = direction / jnp.linalg.norm(direction, axis=0)
        wave = direction * jnp.asarray(geometric(self.base, len(sines)), jnp.float32)
        return {"column": -jnp.matmul(wave, sines, precision="highest") / dims.head_dim}

    def rotate(self, params, q, q_site, k, k_site):
        cosines, sines = self._fourier(q.shape[-1])
        wave = -2 * jnp.matmul(params["column"], sines.T, precision="highest")
        return tuple(self._turned(x, site, wave, cosines, sines) for x, site in ((q, q_site), (k, k_site)))

    def _turned(self, x: Float[Array, "T H D"], site: Site, wave: Float[Array, "A H C"], cosines, sines):
        position, size = self.coordinates(site), x.shape[-1]
        check_axes(self, len(wave), position.shape[1])
        angle = jnp.where(stands(site)[:, None, None], angles(position, wave), 0.0)
        resting = np.stack([np.ones(size), (-1.0) ** np.arange(size)]) / np.sqrt(size)
        basis = np.concatenate([cosines * np.sqrt(2 / size), -sines * np.sqrt(2 / size), resting]).astype(np.float32)
        spectrum = jnp.einsum("ij,thj->thi", basis, x.astype(jnp.float32), precision="highest")
        return rotated(spectrum, angle, "half").astype(x.dtype)

    def _fourier(self, head_dim: int) -> tuple[Float[np.ndarray, "C D"], Float[np.ndarray, "C D"]]:
        """cos and sin(2 pi m j / D) for m = 1 ... D/2 - 1."""
        if head_dim < 4 or head_dim % 2:
            raise ValueError(
                f"circulant_string turns D/2 - 1 pairs: head_dim must be even and at least 4, got {head_dim}"
            )
        angle = 2 * np.pi / head_dim * np.outer(np.arange(1, head_dim // 2), np.arange(head_dim))
        return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


@register("comrope")
@dataclass(frozen=True)
class ComRoPE(LieRE):
    """LieRE with generators that commute, hence exactly relative: x' = exp(sum_a p_a A_a) x, A_a A_b = A_b A_a.

    Yu et al. (2025), arXiv 2506.03737, in the form of the authors' code (Longin-Yu/ComRoPE, model.py). Each block of
    `generator_dim` channels has one skew-symmetric matrix B of each head. kind="linear" (ComRoPE-LD): A_a = theta_a B,
    with a factor theta_a for each axis and block; the README's formula has none for the block. kind="axial" (ComRoPE-AP):
    block j turns with axis j mod A alone.

    Args:
      generator_dim, per_head: as in `liere`.

    Parameters: "linear": {"generator": [1, H or 1, blocks, g(g - 1)/2], the entries of B above the diagonal,
    "multiplier": [A, blocks], theta}; "axial": {"generator": [A, H or 1, blocks/A, g(g - 1)/2], block a + A i at [a, :,
    i]}. The authors draw P from N(0, 1), B = P - P^T, and theta from N(0, 1), with positions (p + 1/2)/size. Here
    positions are patches, so what begins divided by the sizes of `dims` is theta, or the axial generators. The authors'
    class token stands in the middle of the image; here tokens that stand nowhere are left as they are. Exponentials as in
    `liere`.

    Raises:
      ValueError: for an unknown kind; from `init`, with kind="axial", for blocks that the axes cannot share; as `liere`.
    """

    family = "rotary"
    formula = (
        r"q'_m = \exp\left(\sum_a m_a A_a\right) q_m,\quad A_a = \vartheta_a B,\quad B ="
        r" -B^\top\ \text{learned}",
        r"\text{or each block of channels turns with one axis alone}",
    )

    relative = True
    reach = 256  # as in `liere`, of larger generators

    kind: str = "linear"

    def __post_init__(self):
        super().__post_init__()
        if self.kind not in _KINDS:
            raise ValueError(f"comrope has no kind {self.kind!r}; {nearest(self.kind, _KINDS)}")

    def init(self, key, dims):
        zero = super().init(key, dims)["generator"]  # of its shape; refuses what liere refuses
        axes, heads, blocks, entries = zero.shape
        sizes = jnp.array(dims.grid or (dims.length,), jnp.float32)
        generator_key, factor_key = jax.random.split(key)
        if self.kind == "linear":
            generator = 2**0.5 * jax.random.normal(generator_key, (1, heads, blocks, entries), jnp.float32)
            return {
                "generator": generator,
                "multiplier": jax.random.normal(factor_key, (axes, blocks), jnp.float32) / sizes[:, None],
            }
        if blocks % axes:
            raise ValueError(
                f"comrope(kind='axial') splits its blocks evenly among {axes} position axes, got {blocks} blocks"
            )
        generator = 2**0.5 * jax.random.normal(generator_key, (axes, heads, blocks // axes, entries), jnp.float32)
        return {"generator": generator / sizes[:, None, None, None]}

    def entries(self, params):
        generator = params["generator"]
        if self.kind == "linear":
            return generator * params["multiplier"][:, None, :, None]
        axes, heads, share, entries = generator.shape
        dealt = jnp.einsum("ba,ahie->bhiae", np.eye(axes, dtype=np.float32), generator)
        return dealt.reshape(axes, heads, share * axes, entries)


@register("spherical_rope")
@dataclass(frozen=True)
class SphericalRope(Encoding):
    """Spherical RoPE: each triplet of channels turns by the column about one axis, then by the row about another.

    van de Geijn et al. (2025), arXiv 2511.08368, section 4, with fixed frequencies: the two rotations of a triplet do not
    commute, so this is the control of `rope_mixed` that is not relative. Triplet (3d, 3d + 1, 3d + 2) is rolled by w_d
    column about its first channel and then yawed by w_d row about its third, w_d = base^(-d/triplets). Of the rows logits
    see the difference alone, as that rotation comes last, of the columns both. Tokens that stand nowhere, and channels
    that fill no triplet, pass.

    The paper was read in a copy without its typeset equations: the order of the axes, the form of the two matrices and
    the frequencies are from its words. Another choice of the two axes, or of their signs, is a signed permutation of the
    channels of each triplet, which projections absorb. Its w_d = 100^(-2d/D) reads as base = 100 or, with D the triplets,
    10^4. Its positions run from -pi to pi over the image: `interpolate(factor=s / (2 pi)) >> spherical_rope()` has that
    scale on s patches a side, counted from the first patch. Its learned variant, whose sharing among heads the words
    leave open, is not here. No code was found.

    Raises:
      ValueError: for a base that is not positive or a head dim below 3.
    """

    family = "rotary"
    formula = (
        r"q'_d = R_3\left(m_y\omega_d\right) R_1\left(m_x\omega_d\right) q_d,\quad \omega_d ="
        r" \beta^{-d/K}",
        r"q_d\ \text{the triplet } d \text{ of } K \text{ of channels},\quad R_a\ \text{a turn about"
        " channel } a",
    )

    dimensions = (2,)
    relative = False
    ranges = ("base > 0",)

    base: float = 100.0

    def rotate(self, params, q, q_site, k, k_site):
        return self._turned(q, q_site), self._turned(k, k_site)

    def _turned(self, x: Float[Array, "T H D"], site: Site) -> Float[Array, "T H D"]:
        position, count = self.coordinates(site), x.shape[-1] // 3
        if not count:
            raise ValueError(
                f"spherical_rope turns triplets of channels: head_dim must be at least 3, got {x.shape[-1]}"
            )
        wave, there = geometric(self.base, count)[None], stands(site)[:, None]
        row, column = (jnp.where(there, angles(position[:, [axis]], wave), 0.0) for axis in (0, 1))
        triplets = x[..., : 3 * count].astype(jnp.float32).reshape(*x.shape[:2], count, 3)
        a, b, c = (triplets[..., i] for i in range(3))
        b, c = jnp.split(rotated(jnp.concatenate([b, c], axis=-1), column, "half"), 2, axis=-1)
        a, b = jnp.split(rotated(jnp.concatenate([a, b], axis=-1), row, "half"), 2, axis=-1)
        turned = jnp.stack([a, b, c], axis=-1).reshape(*x.shape[:2], 3 * count)
        return jnp.concatenate([turned.astype(x.dtype), x[..., 3 * count :]], axis=-1)
