"""Positions of patches in several views of one scene: each token knows its patch and the camera that took its image.

    site = scene(views, intrinsics, image_size=(32, 32), patches=(8, 8))    # exact cameras, as NumPy or traced arrays
    encoding = posjax.parse("prope()")                                      # or gta, plucker; see docs/beyond_grids.md

A camera's frame has x to the right, y down and z forward, as in OpenCV.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float32

from posjax.encoding import Array, Camera, Encoding, Needs, Params, Site
from posjax.encodings.angles import angles, geometric
from posjax.encodings.pairs import linear, linear_init
from posjax.encodings.placement import standing
from posjax.encodings.rotary import rotated
from posjax.encodings.rotary_learned import matrix_product
from posjax.encodings.tables import added
from posjax.spec import register


class _Cameras(Encoding):
    """The base of encodings that transform queries, keys, values and outputs by P of each token's camera.

    q_i becomes P_i^T q_i, k_j and v_j P_j^-1 times themselves, the output P_i times itself, so logits and values see P_i
    P_j^-1 alone. P multiplies groups of four channels in the first half of a head; `turned` rotates the other half.
    """

    dimensions = (2, 3)
    needs = Needs.RELATION | Needs.CAMERAS

    def matrices(self, params: Params, view, inverse, lens) -> tuple[jax.Array, jax.Array]:
        """Returns P and its inverse, [T, 4, 4], of views, their inverses and lenses."""
        raise NotImplementedError

    def turned(self, x: Float[Array, "T H C"], site: Site, sign: int) -> Float[Array, "T H C"]:
        """Returns the second half of each head, rotated by the patch's place in its image; back for a sign of -1."""
        raise NotImplementedError

    def rotate(self, params, q, q_site, k, k_site):
        to_image, _ = self._matrices(params, q_site)
        _, to_world = self._matrices(params, k_site)
        return self._moved(q, to_image.swapaxes(1, 2), q_site, 1), self._moved(k, to_world, k_site, 1)

    def value(self, params, v, k_site):
        return self._moved(v, self._matrices(params, k_site)[1], k_site, 1)

    def output(self, params, out, q_site):
        return self._moved(out, self._matrices(params, q_site)[0], q_site, -1)

    def _matrices(self, params: Params, site: Site) -> tuple[jax.Array, jax.Array]:
        """P and its inverse: the identity for tokens that stand nowhere."""
        camera, stands = camera_of(self, site), jnp.asarray(standing(site))[:, None, None]
        view = jnp.where(stands, camera.view, jnp.eye(4, dtype=jnp.float32))
        lens = jnp.where(stands[:, 0], camera.lens, np.float32([1, 1, 0, 0]))
        return self.matrices(params, view, inverted(view), lens)

    def _moved(self, x: Float[Array, "T H D"], matrix: Float32[jax.Array, "T 4 4"], site: Site, sign: int):
        if x.shape[-1] % 8:
            raise ValueError(
                f"{self} multiplies groups of four channels in half a head: head_dim must be divisible by 8, got "
                f"{x.shape[-1]}"
            )
        seen, rest = jnp.split(x, 2, axis=-1)
        groups = matrix_product(matrix, seen.astype(jnp.float32).reshape(len(x), -1, 4).swapaxes(1, 2)).swapaxes(1, 2)
        return jnp.concatenate([groups.reshape(seen.shape).astype(x.dtype), self.turned(rest, site, sign)], axis=-1)


@register("prope")
@dataclass(frozen=True)
class Prope(_Cameras):
    """PRoPE: attention sees the projective map between two tokens' images, P_i P_j^-1 with P = K T, and RoPE of patches.

    Li et al. (2025), arXiv 2507.10496, NeurIPS 2025, and the authors' code (liruilong940607/prope). T takes the world to
    the camera, K has its intrinsics in widths and heights of the image. The first half of a head's channels is multiplied in
    groups of four: q_i by P_i^T, k_j and v_j by P_j^-1, the output by P_i. Of the other half the first D/4 channels are
    rotated by the patch's column, the last by its row, in pairs (c, c + D/8), by minus the angle of `rope`, as in the code;
    values and outputs are rotated there and back. With one camera the first half is plain attention, and all that is left is
    this 2-D rotation. A change of the world's frame changes nothing among tokens that stand somewhere: class tokens and
    registers have no camera (P = I), so they see the frame. Read the image by its mean where that matters.

    Positions are (row, column), or (view, row, column), of which the view is not read. `scene` makes such sites.

    Args:
      base: of the rotation, 100 in the code.
      intrinsics: False leaves K out (P = T): GTA's transform in the paper's comparison.

    Raises:
      ValueError: for a site without a `Camera`, a head_dim not divisible by 8, a base that is not positive.
    """

    family = "rotary"
    formula = (
        r"q'_i = P_i^\top q_i,\quad k'_j = P_j^{-1} k_j,\quad o_i = P_i \sum_j a_{ij}\,P_j^{-1} v_j,\quad P = K\,T",
        r"x'_{c} = x_{c}\,e^{-i m\theta_c}\ \text{of the column, then of the row},\quad \theta_c = \beta^{-8c/D}",
    )
    ranges = ("base > 0",)

    base: float = 100.0
    intrinsics: bool = True

    def matrices(self, params, view, inverse, lens):
        return projections(view, inverse, lens) if self.intrinsics else (view, inverse)

    def turned(self, x, site, sign):
        place, count = self.coordinates(site), x.shape[-1] // 4
        wave = -sign * geometric(self.base, count)[None]
        angle = (angles(place[:, [axis]], wave) for axis in (-1, -2))
        angle = (jnp.where(standing(site)[:, None], each, 0.0) for each in angle)
        halves = zip(jnp.split(x, 2, axis=-1), angle, strict=True)
        return jnp.concatenate([rotated(half, each, "half") for half, each in halves], axis=-1)


@register("gta")
@dataclass(frozen=True)
class Gta(_Cameras):
    """GTA, geometric transform attention: attention sees the rigid motion between two cameras, and rotations of patches.

    Miyato et al. (2023), arXiv 2310.10375, ICLR 2024, with SE(3) and SO(2) on half of the channels each, as on CLEVR-TR in
    the authors' code (autonomousvision/gta, source/utils/gta.py). Its rotation by a representation of SO(3), of other
    experiments there, is not here. T_i takes the world to the camera, with its translation times a learned a; the first half
    of a head's channels is multiplied in groups of four, as in `prope(intrinsics=False)`. Pairs (2c, 2c + 1) of the other
    half turn by 2 pi 2^-f times row / height and column / width in turn, f = D/8 - 1, ..., 0. Values and outputs are
    transformed too. It does not see the focal length. Of tokens that stand nowhere see `prope`.

    Args:
      height, width: patches of an image. `resized` sets the new grid's.

    Parameters: {"translation": a [1]}, 0.01 at first as in the code, where each layer learns its own.

    Raises:
      ValueError: for a site without a `Camera`, a head_dim not divisible by 8, a height or width below 1.
    """

    family = "rotary"
    formula = (
        r"q'_i = T_i^\top q_i,\quad k'_j = T_j^{-1} k_j,\quad o_i = T_i \sum_j a_{ij}\,T_j^{-1} v_j,\quad"
        r" T = \begin{pmatrix} R & a\,t \\ 0 & 1 \end{pmatrix}",
        r"x'_{f,y} = x_{f,y}\,e^{2\pi i\,2^{-f} m_y/H},\quad x'_{f,x} = x_{f,x}\,e^{2\pi i\,2^{-f} m_x/W}",
    )
    ranges = "height >= 1", "width >= 1"

    height: int
    width: int

    def init(self, key, dims):
        return {"translation": jnp.full(1, 0.01, jnp.float32)}

    def resized(self, params, old_grid, new_grid, method="torch_bicubic"):
        return replace(self, height=new_grid[-2], width=new_grid[-1]), params

    def matrices(self, params, view, inverse, lens):
        moves = np.outer([1, 1, 1, 0], [0, 0, 0, 1]).astype(bool)
        scale = jnp.where(moves, params["translation"].astype(jnp.float32), jnp.float32(1))
        return view * scale, inverse * scale

    def turned(self, x, site, sign):
        count = x.shape[-1] // 4
        octave = 2.0 ** (1 + np.arange(count) - count)
        sides = np.array([[1 / self.height, 0], [0, 1 / self.width]])
        wave = sign * 2 * np.pi * np.kron(octave, sides)
        angle = angles(self.coordinates(site)[:, -2:], wave)
        return rotated(x, jnp.where(standing(site)[:, None], angle, 0.0), "interleaved")


@register("plucker")
@dataclass(frozen=True)
class Plucker(Encoding):
    """Adds a linear map of the ray through a patch's centre in Plücker coordinates (d, o x d): C r + c.

    d is the ray's unit direction and o the camera's centre, both in the world's frame: the plain way to tell a transformer
    its cameras, and the baseline of Li et al. (2025), arXiv 2507.10496, who append the rays of pixels to their colours. It is
    absolute: a change of the world's frame changes it. Nothing is added to tokens that stand nowhere.

    Args:
      height, width: patches of an image. `resized` sets the new grid's.

    Parameters: {"kernel": C [6, M], "bias": c [M]}, uniform within 6^(-1/2) of 0, as torch.nn.Linear.

    Raises:
      ValueError: for a site without a `Camera`, a height or width below 1.
    """

    family = "other"
    formula = (
        r"x_i \leftarrow x_i + C\,\left(d_i,\, o_i \times d_i\right) + c,\quad d_i \propto R_i^\top K_i^{-1}"
        r" \left(u_i, v_i, 1\right)^\top,\quad o_i = -R_i^\top t_i",
    )

    dimensions = (2, 3)
    relative = False
    needs = Needs.RELATION | Needs.CAMERAS
    ranges = "height >= 1", "width >= 1"

    height: int
    width: int

    def init(self, key, dims):
        return linear_init(key, 6, dims.width)

    def resized(self, params, old_grid, new_grid, method="torch_bicubic"):
        return replace(self, height=new_grid[-2], width=new_grid[-1]), params

    def embed(self, params, x, site):
        camera, stands = camera_of(self, site), jnp.asarray(standing(site))[:, None]
        place = jnp.asarray(self.coordinates(site)[:, -2:], jnp.float32)
        lens = jnp.where(stands, camera.lens, np.float32([1, 1, 0, 0]))
        middle = (place + 0.5) / np.float32([self.height, self.width]) - 0.5
        ahead = jnp.stack([(middle[:, 1 - a] - lens[:, 2 + a]) / lens[:, a] for a in (0, 1)], axis=1)
        ahead = jnp.concatenate([ahead, jnp.ones_like(ahead[:, :1])], axis=1)
        rotation = jnp.where(stands[..., None], camera.view[:, :3, :3], jnp.eye(3, dtype=jnp.float32))
        ray = jnp.einsum("tji,tj->ti", rotation, ahead, precision="highest")
        ray = ray / jnp.linalg.norm(ray, axis=1, keepdims=True)
        centre = -jnp.einsum("tji,tj->ti", rotation, camera.view[:, :3, 3], precision="highest")
        code = linear(params, jnp.concatenate([ray, jnp.cross(centre, ray)], axis=1))
        return added(x, jnp.where(stands, code, 0.0), site)


def camera_of(encoding: Encoding, site: Site) -> Camera:
    """Returns the cameras of the tokens.

    Raises:
      ValueError: the site has none.
    """
    if not isinstance(site.relation, Camera):
        raise ValueError(
            f"{encoding} reads the camera of each token, and site.relation does not hold one: make the site by "
            "posjax.encodings.cameras.scene(views, intrinsics, image_size, patches)"
        )
    return site.relation


def inverted(view: Float32[Array, "T 4 4"]) -> Float32[jax.Array, "T 4 4"]:
    """The inverse of rigid motions."""
    turn = jnp.asarray(view)[:, :3, :3].swapaxes(1, 2)
    centre = -jnp.einsum("tij,tj->ti", turn, view[:, :3, 3], precision="highest")
    return jnp.concatenate([jnp.concatenate([turn, centre[..., None]], axis=2), view[:, 3:]], axis=1)


def projections(view, inverse, lens: Float32[Array, "T 4"]) -> tuple[jax.Array, jax.Array]:
    """K T and T^-1 K^-1, with K of each lens; the world's homogeneous fourth coordinate stays."""
    fx, fy, cx, cy = (lens[:, i, None] for i in range(4))
    rows = fx * view[:, 0] + cx * view[:, 2], fy * view[:, 1] + cy * view[:, 2], view[:, 2], view[:, 3]
    x, y = inverse[..., 0] / fx, inverse[..., 1] / fy
    columns = x, y, inverse[..., 2] - cx * x - cy * y, inverse[..., 3]
    return jnp.stack(rows, axis=1), jnp.stack(columns, axis=2)


def scene(
    views: Float[Array, "V 4 4"],
    intrinsics: Float[Array, "V 3 3"],
    image_size: Sequence[int],
    patches: Sequence[int],
    prefix: int = 0,
) -> Site:
    """The sites of all patches of V images of one scene, image by image in raster order, behind `prefix` tokens.

    Positions are (view, row, column), and the relation is a `Camera`. Cameras may be traced and have gradients.

    Args:
      views: world to camera.
      intrinsics: of pixels, without skew: [[f_x, 0, c_x], [0, f_y, c_y], [0, 0, 1]].
      image_size: (height, width) in pixels.
      patches: (rows, columns) of an image.

    Raises:
      ValueError: for views or intrinsics of other shapes.

    >>> site = scene(np.eye(4)[None], np.diag([40.0, 40, 1])[None], image_size=(32, 32), patches=(8, 8))
    >>> site.position[-1].tolist(), site.relation.lens[0].tolist()
    ([0, 7, 7], [1.25, 1.25, -0.5, -0.5])
    """
    count = len(views)
    if views.shape != (count, 4, 4) or intrinsics.shape != (count, 3, 3):
        raise ValueError(
            f"a scene has views [V, 4, 4] and intrinsics [V, 3, 3], got {views.shape} and {intrinsics.shape}"
        )
    where = np if isinstance(views, np.ndarray) and isinstance(intrinsics, np.ndarray) else jnp
    (height, width), (rows, columns) = image_size, patches
    position = np.stack(np.indices((count, rows, columns)), axis=-1).reshape(-1, 3).astype(np.int32)
    focal = intrinsics[:, 0, 0] / width, intrinsics[:, 1, 1] / height
    lens = where.stack([*focal, intrinsics[:, 0, 2] / width - 0.5, intrinsics[:, 1, 2] / height - 0.5], axis=1)

    def each(x):
        return where.pad(where.repeat(x, rows * columns, axis=0), [(prefix, 0)] + [(0, 0)] * (x.ndim - 1))

    nowhere = np.arange(1, prefix + len(position) + 1, dtype=np.int32) * (np.arange(prefix + len(position)) < prefix)
    camera = Camera(each(views).astype(np.float32), each(lens).astype(np.float32))
    position = np.pad(position, [(prefix, 0), (0, 0)])
    return Site(position, np.ones(len(position), np.int32), nowhere.astype(np.int32), relation=camera)
