"""Golden vectors of RandAugment, from big_vision: its code under TensorFlow, in an environment of its own.

    git clone https://github.com/google-research/big_vision /tmp/big_vision        # 0127fb6 when last run
    python -m venv /tmp/tf && /tmp/tf/bin/pip install tensorflow-cpu==2.21.0
    /tmp/tf/bin/python tests/goldens/make_randaug.py /tmp/big_vision

`picture`, and of it <operation>_<sign> at magnitude 6.9, at which no pixel lies just between two. The code asks for
tensorflow_addons, which is no longer made: three functions here call TensorFlow as it did.
"""

import sys
import types
from importlib.metadata import version
from pathlib import Path

import numpy as np
import tensorflow as tf

HERE = Path(__file__).parent
SHARE = 0.69  # of the largest magnitude


def transform(image, matrix):
    """Moves pixels as tensorflow_addons did by default: (x, y) shows what is nearest to where the matrix moves it."""
    matrix = tf.reshape(tf.cast(matrix, tf.float32), [1, 8])
    size = tf.shape(image)[:2]
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=image[None],
        transforms=matrix,
        output_shape=size,
        fill_value=0.0,
        interpolation="NEAREST",
        fill_mode="CONSTANT",
    )[0]


def translate(image, translation):
    return transform(image, [1.0, 0.0, -translation[0], 0.0, 1.0, -translation[1], 0.0, 0.0])


def rotate(image, angle):
    cos, sin = np.cos(angle), np.sin(angle)
    y, x = (np.array(image.shape[:2]) - 1) / 2
    return transform(image, [cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y, 0.0, 0.0])


def main(clone: str) -> None:
    addons = types.ModuleType("tensorflow_addons")
    addons.image = types.SimpleNamespace(transform=transform, translate=translate, rotate=rotate)
    sys.modules["tensorflow_addons"] = addons
    sys.path.insert(0, clone)
    from big_vision.pp import autoaugment as theirs

    with np.load(HERE / "augment.npz", allow_pickle=False) as file:
        picture = file["picture"]
    height, width, _ = picture.shape
    grey, found = [128] * 3, {"picture": picture}
    for sign in (-1, 1):
        moves = dict(rotate=sign * SHARE * 30, shear_x=sign * SHARE * 0.3, shear_y=sign * SHARE * 0.3)
        moves |= dict(
            translate_x=sign * round(SHARE * 100 / 224 * width), translate_y=sign * round(SHARE * 100 / 224 * height)
        )
        for name, argument in moves.items():
            found[f"{name}_{sign}"] = getattr(theirs, name)(tf.constant(picture), float(argument), grey).numpy()
    factor = SHARE * 1.8 + 0.1
    plain = dict(
        autocontrast=(),
        equalize=(),
        invert=(),
        posterize=(int(SHARE * 4),),
        solarize=(int(SHARE * 256),),
        solarize_add=(int(SHARE * 110),),
    )
    for name, given in (plain | dict.fromkeys(("color", "contrast", "brightness", "sharpness"), (factor,))).items():
        found[f"{name}_0"] = getattr(theirs, name)(tf.constant(picture), *given).numpy()
    tf.compat.v1.random_uniform = lambda shape, minval, maxval, dtype: tf.constant(maxval // 3, dtype)  # the centre
    theirs.tf.random_uniform = tf.compat.v1.random_uniform
    found["cutout_0"] = theirs.cutout(tf.constant(picture), round(SHARE * 40 / 224 * width), 128).numpy()
    np.savez_compressed(HERE / "randaug.npz", versions=np.array([f"tensorflow {version('tensorflow-cpu')}"]), **found)


if __name__ == "__main__":
    main(sys.argv[1])
