"""Pictures of any size, format and aspect become the arrays that they should."""

import io
import math
import pathlib
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from posjax import data

GOLDENS = pathlib.Path(__file__).parents[1] / "goldens/preprocess.npz"
RNG = np.random.default_rng(0)
COLOUR = RNG.integers(0, 256, (6, 9, 3), np.uint8)


@pytest.fixture(scope="module")
def golden():
    with np.load(GOLDENS, allow_pickle=False) as file:
        return dict(file)


def encoded(picture, kind="png", **options):
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def test_grids_are_those_of_timm_and_transformers(golden):
    grids = data.native_grids(golden["size"], golden["max_patches"])
    np.testing.assert_array_equal(grids, golden["grid"])


def test_a_grid_is_the_last_that_fits():
    """Found here by trying every scale at which a row or a column is added, in fractions."""

    def slow(h, w, most):
        scales = sorted({Fraction(k, side) for k in range(1, most + 1) for side in (h, w)})
        fitting = [s for s in scales if math.ceil(s * h) * math.ceil(s * w) <= most]
        return math.ceil(fitting[-1] * h), math.ceil(fitting[-1] * w)

    sizes = RNG.integers(1, 60, (60, 3))
    grids = data.native_grids(sizes[:, :2], sizes[:, 2])
    assert list(map(tuple, grids.tolist())) == [slow(*each) for each in sizes.tolist()]


def test_the_centre_that_is_cut_out_is_torchvisions(golden):
    names = [name for name in golden if name.startswith(("wide", "tall"))]
    assert len(names) == 6
    for name in names:
        which, side, fraction, resample = name.split("_")
        picture = golden["picture"] if which == "wide" else golden["picture"].swapaxes(0, 1)
        ours = data.preprocess(picture.copy(), int(side), crop_fraction=float(fraction), resample=resample)
        np.testing.assert_array_equal(ours, golden[name])


@pytest.mark.parametrize("mode", ["crop", "pad", "stretch"])
@pytest.mark.parametrize("size", [(5, 12), (12, 5), 7, (1, 3)])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_mode_gives_the_size_that_is_asked_for(mode, size, channels):
    out = data.preprocess(COLOUR, size, mode, channels=channels)
    assert out.shape == (*((size, size) if isinstance(size, int) else size), channels)
    assert out.dtype == np.uint8
    assert out.base is None or out.base.size == out.size  # no part of a larger picture is kept


def test_modes_keep_what_they_say():
    half = np.repeat([[0, 255]], 20, axis=0).repeat(20, axis=1).astype(np.uint8)  # 20 x 40, black and white
    stretched, padded, cut = (
        data.preprocess(half, (20, 20), mode, channels=1)[..., 0] for mode in ("stretch", "pad", "crop")
    )
    assert stretched[0, 0] == 0
    assert stretched[0, -1] == 255
    np.testing.assert_array_equal(cut, half[:, 10:30])
    assert (padded[:5] == 0).all()
    assert (padded[15:] == 0).all()
    assert (padded[5:15, 13:] == 255).all()


def test_the_orientation_of_a_photograph_is_followed():
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise
    photograph = encoded(Image.fromarray(COLOUR), exif=exif)
    np.testing.assert_array_equal(data.read_image(photograph), np.rot90(COLOUR, -1))
    with Image.open(io.BytesIO(photograph)) as picture:
        np.testing.assert_array_equal(data.read_image(picture), np.rot90(COLOUR, -1))


def test_every_kind_of_pixel_is_read():
    grey = COLOUR[..., 0]
    np.testing.assert_array_equal(data.read_image(encoded(Image.fromarray(grey))), np.stack([grey] * 3, -1))
    np.testing.assert_array_equal(data.read_image(grey, channels=1), grey[..., None])
    palette = Image.fromarray(COLOUR // 128 * 255).convert("P")
    np.testing.assert_array_equal(data.read_image(encoded(palette)), np.asarray(palette.convert("RGB")))
    wide = Image.fromarray(grey.astype(np.uint16) * 257)
    np.testing.assert_array_equal(data.read_image(encoded(wide), channels=1)[..., 0], grey)
    assert data.read_image(encoded(Image.fromarray(COLOUR).convert("CMYK"), "jpeg")).shape == (6, 9, 3)
    assert data.read_image(encoded(Image.fromarray(grey > 99)), channels=1).max() == 255
    assert data.read_image(encoded(Image.fromarray(COLOUR), "webp", lossless=True)).tolist() == COLOUR.tolist()


def test_white_shows_through():
    clear = np.concatenate([COLOUR, np.zeros((6, 9, 1), np.uint8)], axis=-1)
    clear[0, 0, 3] = 255
    for source in (clear, encoded(Image.fromarray(clear))):
        seen = data.read_image(source)
        np.testing.assert_array_equal(seen[0, 0], COLOUR[0, 0])
        assert (seen[1:] == 255).all()
    hidden = Image.fromarray(np.zeros((2, 2), np.uint8))
    assert (data.read_image(encoded(hidden, transparency=0)) == 255).all()


def test_normalise_takes_channels():
    out = data.normalise(COLOUR, data.IMAGENET_MEAN, data.IMAGENET_STD)
    np.testing.assert_allclose(out, (COLOUR / 255 - data.IMAGENET_MEAN) / np.array(data.IMAGENET_STD), atol=1e-6)
    np.testing.assert_array_equal(data.normalise(COLOUR), jnp.asarray(COLOUR, jnp.float32) / 127.5 - 1)
    with pytest.raises(ValueError, match=r"mean=\[0\.1, 0\.2\] is not one for all 3 channels"):
        data.normalise(COLOUR, (0.1, 0.2))
    with pytest.raises(ValueError, match=r"std=0\.0 must be positive"):
        data.normalise(COLOUR, 0.5, 0.0)


def test_wrong_arguments_are_named():
    for arguments, options, message in (
        ((7, "crp"), {}, "did you mean 'crop'"),
        ((7,), {"resample": "bicubc"}, "did you mean 'bicubic'"),
        ((7, "pad"), {"crop_fraction": 0.5}, "crop_fraction=0.5"),
        (((0, 7),), {}, r"size=\(0, 7\)"),
        ((7,), {"channels": 4}, "channels=4"),
    ):
        with pytest.raises(ValueError, match=message):
            data.preprocess(COLOUR, *arguments, **options)


def test_what_is_no_picture_is_named(tmp_path):
    (tmp_path / "a.png").write_bytes(encoded(Image.fromarray(COLOUR))[:60])
    (tmp_path / "b.jpg").write_bytes(b"not a picture")
    for name in ("a.png", "b.jpg"):
        with pytest.raises(ValueError, match=f"{name} cannot be read as a picture: [^<]*$"):
            data.read_image(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        data.read_image(tmp_path / "c.png")
    with pytest.raises(ValueError, match="holds floats"):
        data.read_image(encoded(Image.fromarray(np.ones((2, 2), np.float32)), "tiff"))
    with pytest.raises(ValueError, match=r"of uint8, got \(2, 2\) of float32|of uint8, got \(2, 2, 1\) of float32"):
        data.read_image(np.ones((2, 2), np.float32))
    with pytest.raises(ValueError, match="max_patches=0 must be at least 1"):
        data.native_grids(np.array([[3, 4]]), 0)
