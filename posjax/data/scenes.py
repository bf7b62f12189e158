"""Views of small scenes with exact cameras, drawn and rendered in NumPy.

A scene is the inside of a painted sphere of radius 1, cut into cells of one colour each. Cameras stand near its centre
and look about; an image has SIDE x SIDE pixels, of the colours that the rays through their centres meet, in patches of
PATCH x PATCH. Every point of the sphere is in sight from everywhere, so a view lacks only the points outside its frame.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float32, Int32

SIDE, PATCH = 32, 4  # pixels of an image, and of a patch
PATCHES = SIDE // PATCH  # down and across an image
_CELLS = 40  # cells of one colour; a view sees a few of them
_AWAY = 0.3  # largest distance of a camera from the centre on each axis
_YAW, _PITCH, _ROLL = 0.5, 0.3, 0.2  # largest angles of a camera, in radians
_FOCAL = 0.7, 1.1  # focal lengths, in widths of an image


class Views(NamedTuple):
    """The patches of V views of one scene, N = V PATCHES^2, view by view in raster order, and P = PATCH^2 pixels of each.

    Attributes:
      colour: of each pixel, in raster order within the patch.
      place: (view, row, column) of the patch.
      view, lens: the patch's camera, as in `posjax.encoding.Camera`.
      shared: whether another view's frame holds the point that the pixel shows.
    """

    colour: Int32[np.ndarray, "N P"]
    place: Int32[np.ndarray, "N 3"]
    view: Float32[np.ndarray, "N 4 4"]
    lens: Float32[np.ndarray, "N 4"]
    shared: Bool[np.ndarray, "N P"]


def patches_of(views: int) -> int:
    """The patches of a new view and of `views` others."""
    return (views + 1) * PATCHES**2


def draw_views(rng: np.random.Generator, count: int, colours: int, zoom: float = 1.0) -> Views:
    """Draws a scene and its views by `count` cameras; a zoom multiplies their focal lengths.

    At least one pixel of the first view shows a point that another one shows too: scenes are drawn until it does.
    """
    while True:
        seeds, paint = rng.normal(size=(_CELLS, 3)), rng.integers(colours, size=_CELLS)
        view, focal = _cameras(rng, count), zoom * rng.uniform(*_FOCAL, size=count)
        points = np.stack([met(*camera) for camera in zip(view, focal, strict=True)])  # [V, N / V, P, 3]
        cell = (points @ (seeds / np.linalg.norm(seeds, axis=1, keepdims=True)).T).argmax(axis=-1)
        shown = np.stack([in_frame(points, *camera) for camera in zip(view, focal, strict=True)])  # [V by, V, N / V, P]
        shared = (shown & ~np.eye(count, dtype=bool)[..., None, None]).any(axis=0)
        if shared[0].any() or count == 1:
            break
    lens = np.stack([focal, focal, 0 * focal, 0 * focal], axis=1)
    view, lens = (np.repeat(x, PATCHES**2, axis=0).astype(np.float32) for x in (view, lens))
    place = np.stack(np.indices((count, PATCHES, PATCHES)), axis=-1).reshape(-1, 3).astype(np.int32)
    colour, shared = (x.reshape(-1, PATCH**2) for x in (paint[cell].astype(np.int32), shared))
    return Views(colour, place, view, lens, shared)


def _cameras(rng: np.random.Generator, count: int) -> Float[np.ndarray, "V 4 4"]:
    """World to camera: turned by roll, pitch and yaw, at places near the centre."""
    view = np.tile(np.eye(4), (count, 1, 1))
    for (i, j), most in (((0, 2), _YAW), ((1, 2), _PITCH), ((0, 1), _ROLL)):
        turn, angle = np.tile(np.eye(3), (count, 1, 1)), rng.uniform(-most, most, size=count)
        turn[:, i, i] = turn[:, j, j] = np.cos(angle)
        turn[:, i, j], turn[:, j, i] = np.sin(angle), -np.sin(angle)
        view[:, :3, :3] = turn @ view[:, :3, :3]
    centre = rng.uniform(-_AWAY, _AWAY, size=(count, 3, 1))
    view[:, :3, 3] = -(view[:, :3, :3] @ centre)[..., 0]
    return view


def met(view: Float[np.ndarray, "4 4"], focal: float) -> Float[np.ndarray, "N P 3"]:
    """The points of the sphere that a camera's pixels show, patch by patch."""
    middle = (np.arange(SIDE) + 0.5) / SIDE - 0.5
    y, x = np.meshgrid(middle, middle, indexing="ij")
    ray = np.stack([x / focal, y / focal, np.ones_like(x)], axis=-1).reshape(PATCHES, PATCH, PATCHES, PATCH, 3)
    ray = ray.swapaxes(1, 2).reshape(-1, PATCH**2, 3) @ view[:3, :3]
    ray /= np.linalg.norm(ray, axis=-1, keepdims=True)
    centre = -view[:3, :3].T @ view[:3, 3]
    along = ray @ centre
    return centre + (np.sqrt(along**2 + 1 - centre @ centre) - along)[..., None] * ray


def in_frame(points: Float[np.ndarray, "*N 3"], view: Float[np.ndarray, "4 4"], focal: float) -> Bool[np.ndarray, "*N"]:
    """Whether a camera's image holds the points."""
    x, y, z = np.moveaxis(points @ view[:3, :3].T + view[:3, 3], -1, 0)
    return (z > 0) & (np.maximum(abs(x), abs(y)) * focal < z / 2)
