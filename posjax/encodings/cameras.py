"""Positions of patches in several views of one scene: each token knows its patch and the camera that took its image.

    site = scene(views, intrinsics, image_size=(32, 32), patches=(8, 8))    # exact cameras, as NumPy or traced arrays
    encoding = posjax.parse("prope()")                  # or gta, rayrope, plucker; see docs/beyond_grids.md

A camera's frame has x to the right, y down and z forward, as in OpenCV.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float32, Int32

from posjax.encoding import Array, Camera, Encoding, Needs, Params, Site
from posjax.encodings.angles import angles, geometric
from posjax.encodings.pairs import linear, linear_init
from posjax.encodings.placement import standing
from posjax.encodings.rotary import rotated, rotated_by_pairs
from posjax.encodings.rotary_learned import matrix_product
from posjax.encodings.tables import added
from posjax.spec import register


@dataclass(frozen=True)
class _OfPatches(Encoding):
    """The base of encodings that read which share of its image a patch is."""

    ranges = "height >= 1", "width >= 1"

    height: int
    width: int

    def resized(self, params, old_grid, new_grid, method="torch_bicubic"):
        return replace(self, height=new_grid[-2], width=new_grid[-1]), params

    def ahead(self, site: Site, lens: Float32[Array, "T 4"], points: Sequence) -> Float32[jax.Array, "T P 2"]:
        """How far to the right and down the rays through points (row, column) of each patch lead, for a step ahead."""
        place = jnp.asarray(self.coordinates(site)[:, None, -2:], jnp.float32) + np.float32(points)
        return ((place / np.float32([self.height, self.width]) - 0.5)[..., ::-1] - lens[:, None, 2:]) / lens[
            :, None, :2
        ]


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
        view, lens = _cameras(self, site)
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
class Gta(_Cameras, _OfPatches):
    """GTA, geometric transform attention: attention sees the rigid motion between two cameras, and rotations of patches.

    Miyato et al. (2023), arXiv 2310.10375, ICLR 2024, with SE(3) and SO(2) on half of the channels each, as the authors' code
    has it for CLEVR-TR and MSN-Hard (autonomousvision/gta, source/utils/gta.py). Its variant with a representation of SO(3)
    beside them is not here. T_i takes the world to the camera, with its translation times a learned a; the first half
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

    def init(self, key, dims):
        return {"translation": jnp.full(1, 0.01, jnp.float32)}

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
class Plucker(_OfPatches):
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

    def init(self, key, dims):
        return linear_init(key, 6, dims.width)

    def embed(self, params, x, site):
        view, lens = _cameras(self, site)
        ahead = self.ahead(site, lens, [(0.5, 0.5)])[:, 0]
        ahead = jnp.concatenate([ahead, jnp.ones_like(ahead[:, :1])], axis=1)
        ray = jnp.einsum("tji,tj->ti", view[:, :3, :3], ahead, precision="highest")
        ray = ray / jnp.linalg.norm(ray, axis=1, keepdims=True)
        centre = inverted(view)[:, :3, 3]
        code = linear(params, jnp.concatenate([ray, jnp.cross(centre, ray)], axis=1))
        return added(x, jnp.where(jnp.asarray(standing(site))[:, None], code, 0.0), site)


@register("rayrope")
@dataclass(frozen=True)
class RayRope(_OfPatches):
    """RayRoPE: rotations by points on the rays of a patch, as the camera of each query sees them.

    Wu et al. (2026), arXiv 2601.15275, and the defaults of the authors' code (Lucas-707/RayRoPE, pos_enc/rayrope.py). Of
    each patch a layer predicts from its input the log mu of a depth, and how far off it may be, sigma. A token's C = 12
    coordinates in a frame are: the centre of its camera; of the rays through three corners of the patch, the first two
    components of the unit direction in which the point at this depth lies in the image; and the depths of these points, at
    most 10. Predicted depths are kept within 0.01 and e^3. Coordinate p mod C times 2 pi b^floor(p / C) over 4, 8 or 80 is
    the angle by which pair p of a head, channels (p, p + D/2), turns backwards. Cosines and sines are means from the angle
    at the nearest depth to the angle at the farthest. Queries, keys, values and outputs are turned in the frame of the
    query's camera, so a change of the world's frame changes nothing.

    Keys and values differ from frame to frame and are held once for each, so attention costs views + 1 times as much as one
    of D channels. The authors' code attends the queries of one camera at a time, which costs it once. Between angles less
    than 0.01 apart it takes the first one; we take the mean. Its head dims are multiples of 2 C; here any even one is.

    Positions are (view, row, column). All tokens of a view have one camera. A query reads keys in the frame of the keys of
    its own view, so there must be some. Tokens that stand nowhere see all keys as they are. Of traced positions a query of a
    view that is not among the `views` reads NaN.

    Args:
      height, width: patches of an image. `resized` sets the new grid's.
      views: of a scene, at most; they are numbered 0 ... views - 1.
      base: b.

    Parameters: {"kernel": [M, 2], "bias": [2]} of mu and sigma; 0 and (0, 3) at first as in the code, where each layer learns
    its own.

    Raises:
      ValueError: for a site without a `Camera`, an odd head_dim, a height, a width or views below 1, a known view that is
        not among the `views`.
    """

    family = "rotary"
    formula = (
        r"q'_i = \bar R_{ii}\,q_i,\quad k'_{ij} = \bar R_{ij}\,k_j,\quad"
        r" o_i = \bar R_{ii}^\top \sum_j a_{ij}\,\bar R_{ij}\,v_j,\quad"
        r" \bar R_{ij} = \frac{1}{\theta^+ - \theta^-}\int_{\theta^-}^{\theta^+} R(-\theta)\,d\theta",
        r"\theta^\pm \propto \left(T_i\,c_j,\ \frac{P_i\,X_j}{|P_i\,X_j|},\ |z(T_i\,X_j)|\right),\quad"
        r" X_j\ \text{at depth}\ e^{\mu_j \pm \sigma_j}",
    )

    dimensions = (3,)
    relative = False
    # A later view adds a frame to earlier keys.
    needs = Needs.RELATION | Needs.CAMERAS | Needs.HEAD_DIM | Needs.DOCUMENT_LENGTH
    ranges = "views >= 1", "base > 0"
    observes = 0

    views: int
    base: float = 3.0

    def init(self, key, dims):
        return {"kernel": jnp.zeros((dims.width, 2), jnp.float32), "bias": jnp.array([0, 3], jnp.float32)}

    def observe(self, params, x, site, past=None):
        return site._replace(state=linear(params, jnp.asarray(x, jnp.float32)).astype(jnp.float32))

    def rotate(self, params, q, q_site, k, k_site):
        own = self._turned(q, self._waves(q_site, q.shape[-1]))
        chosen = jax.nn.one_hot(self._frames(q_site), self.views + 1, dtype=q.dtype)
        return (own * chosen[:, None, :, None]).reshape(*q.shape[:2], -1), self._in_every_frame(k, k_site)

    def value(self, params, v, k_site):
        return self._in_every_frame(v, k_site)

    def output(self, params, out, q_site):
        each = out.reshape(*out.shape[:2], self.views + 1, -1)
        own = jnp.take_along_axis(each, self._frames(q_site)[:, None, None, None], axis=2, mode="fill")[:, :, 0]
        cosine, sine = self._waves(q_site, own.shape[-1])
        return self._turned(own, (cosine, -sine))[:, :, 0]

    def _frames(self, site: Site) -> Int32[jax.Array, " T"]:
        """1 + the view of each token, 0 where it stands nowhere, views + 1 where no view has its number."""
        view, stands = self.coordinates(site)[:, 0], standing(site)
        there = (view >= 0) & (view < self.views)
        if isinstance(view, np.ndarray) and isinstance(stands, np.ndarray) and not there[stands].all():
            raise ValueError(
                f"{self} knows views 0 to {self.views - 1}, and a token is in view {view[stands & ~there][0]}"
            )
        return jnp.where(stands, jnp.where(there, 1 + view.astype(np.int32), self.views + 1), 0)

    def _in_every_frame(self, x: Float[Array, "S K D"], site: Site) -> Float[jax.Array, "S K C"]:
        """x as it is, then turned in the frame of each view of its token's scene."""
        turned = self._turned(x, self._waves(site, x.shape[-1], self._tokens_of_views(site)))
        return jnp.concatenate([x[:, :, None], turned], axis=2).reshape(*x.shape[:2], -1)

    def _tokens_of_views(self, site: Site) -> Int32[jax.Array, "S V"]:
        """A token in each view of each token's scene, or the token itself where the view has none."""
        frame, segment = self._frames(site), jnp.asarray(site.segment)
        place = jnp.where((frame > 0) & (frame <= self.views), segment * self.views + frame - 1, -1)
        order, index = jnp.argsort(place).astype(jnp.int32), jnp.arange(len(place), dtype=jnp.int32)
        wanted = segment[:, None] * self.views + np.arange(self.views, dtype=np.int32)
        found = order[jnp.minimum(jnp.searchsorted(place[order], wanted), len(order) - 1)]
        return jnp.where(place[found] == wanted, found, index[:, None])

    def _waves(self, site: Site, dim: int, others: Int32[jax.Array, "T F"] | None = None):
        """The mean cosines and sines [T, F, D/2] of tokens in the frames of F others each, or in their own."""
        if dim % 2:
            raise ValueError(f"{self} turns pairs of channels: head_dim must be even, got {dim}")
        seen = self._coordinates_in(site, others)
        pair = np.arange(dim // 2)
        period = np.repeat([4.0, 8.0, 80.0], [3, 6, 3])
        wave = 2 * np.pi * self.base ** (pair // len(period)) / period[pair % len(period)]
        angle = seen[..., pair % len(period)] * wave.astype(np.float32)
        angle = jnp.where(jnp.asarray(standing(site))[:, None, None, None], angle, 0.0)
        middle, half = angle.mean(axis=2), (angle[:, :, 1] - angle[:, :, 0]) / 2
        small = jnp.abs(half) < 1e-2  # where the slope of sin(h) / h, as of jnp.sinc, is lost in rounding
        over = jnp.where(small, 1.0, half)
        shrunk = jnp.where(small, 1 - half**2 / 6, jnp.sin(over) / over)
        return shrunk * jnp.cos(middle), shrunk * jnp.sin(middle)

    def _coordinates_in(self, site: Site, others) -> Float32[jax.Array, "T F 2 C"]:
        """The coordinates of tokens in F frames each, with points at the nearest and at the farthest depth."""

        def of_frames(x):
            return x[:, None] if others is None else x[others]

        (view, lens), frame = _cameras(self, site), self._frames(site)
        ahead = self.ahead(site, lens, [(0, 0), (0, 1), (1, 0)])
        ends = site.state[:, :1] + site.state[:, 1:] * np.float32([-1, 1])
        nearness = 1 / jnp.clip(jnp.exp(jnp.minimum(ends, 3.0)), 1e-2)[:, None, :, None]  # [T, 1, 2, 1]
        moves = jnp.einsum("tfij,tjk->tfik", of_frames(view), inverted(view), precision="highest")
        own = (of_frames(frame) == frame[:, None])[..., None, None]
        moves = jnp.where(own, jnp.eye(4, dtype=jnp.float32), moves)  # whose rounding a depth of 0.01 multiplies by 100
        ray = jnp.einsum("tfij,trj->tfri", moves[..., :3, :2], ahead, precision="highest") + moves[:, :, None, :3, 2]
        point = ray[:, :, None] + moves[:, :, None, None, :3, 3] * nearness[..., None]  # homogeneous, w = nearness
        x, y, z = jnp.moveaxis(point, -1, 0)  # [T, F, 2, R]
        fx, fy, cx, cy = jnp.moveaxis(of_frames(lens)[:, :, None, None], -1, 0)
        image = jnp.stack([fx * x + cx * z, fy * y + cy * z, z], axis=-1)
        direction = (image / (jnp.linalg.norm(image, axis=-1, keepdims=True) + 1e-6))[..., :2]
        depth = jnp.minimum(jnp.sqrt(z**2 + 1e-9) / nearness, 10.0)
        centre = jnp.broadcast_to(moves[:, :, None, :3, 3], (*depth.shape[:3], 3))
        return jnp.concatenate([centre, direction.reshape(*depth.shape[:3], -1), depth], axis=-1)

    @staticmethod
    def _turned(x: Float[Array, "T H D"], waves) -> Float[jax.Array, "T H F D"]:
        """x turned backwards in each of F frames."""
        cosine, sine = (wave[:, :, None] for wave in waves)
        turned = functools.partial(rotated_by_pairs, "half")
        return jax.vmap(turned, in_axes=(None, 1, 1), out_axes=2)(x, cosine, -sine)


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


def _cameras(encoding: Encoding, site: Site) -> tuple[Float32[jax.Array, "T 4 4"], Float32[jax.Array, "T 4"]]:
    """The motions and lenses of tokens; the identity for those that stand nowhere."""
    camera, stands = camera_of(encoding, site), jnp.asarray(standing(site))[:, None]
    view = jnp.where(stands[..., None], camera.view, jnp.eye(4, dtype=jnp.float32))
    return view, jnp.where(stands, camera.lens, np.float32([1, 1, 0, 0]))


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
