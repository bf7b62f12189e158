"""Golden vectors of augmentation, from torchvision and timm, whose random draws are replaced by scripted ones.

`picture`, and of it: crop<i>_draws, _places, _box and _pixels of RandomResizedCrop; jitter<i>_order, _factors and _pixels of
ColorJitter; three_<name> of timm's policy 3a; rand_<name> of the operations of timm's RandAugment that big_vision has too, at
magnitude 6.9; timm_<name>_<sign> of those of "inc1", likewise, of a part of the picture. cutmix_draws and cutmix_boxes of
timm's rand_bbox, targets_<smoothing> of its mixup_target, and bce_<smoothing> of its BinaryCrossEntropy with them. Quantiles
of real draws: crop_area, crop_aspect, crop_top, cutmix_share.
"""

import random
from unittest import mock

import numpy as np
import torch
from maker import save
from PIL import Image
from timm.data import auto_augment
from timm.data.mixup import cutmix_bbox_and_lam, mixup_target, rand_bbox
from timm.loss import BinaryCrossEntropy
from torchvision.transforms import InterpolationMode, RandomResizedCrop
from torchvision.transforms import functional as F

QUANTILES = np.linspace(0.02, 0.98, 25)
# Shares of the area and logarithms of aspects, as often as they are drawn, and places.
DRAWS = [
    ([0.5, 0.1], [7, 3]),
    ([1.0, -0.1, 0.2, -0.2], [10, 30]),  # the first does not fit
    ([0.08, -0.287], [20, 40]),
    ([1.0, -0.28] * 10, []),  # none fits
]


def picture() -> np.ndarray:
    rows, columns = np.mgrid[:40, :56]
    waves = [np.sin(rows / 7 + c) + np.cos(columns / (5 + c)) for c in range(3)]
    pixels = (np.stack(waves, axis=-1) * 50 + 120).astype(np.uint8)
    pixels[10:22, 20:36] = (250, 5, 99)
    return pixels


def crops(image: Image.Image) -> dict[str, np.ndarray]:
    found = {}
    for number, (drawn, places) in enumerate(DRAWS):
        uniform, randint = iter(drawn), iter(places)
        with (
            mock.patch.object(torch.Tensor, "uniform_", lambda self, low, high, u=uniform: self.fill_(next(u))),
            mock.patch.object(torch, "randint", lambda low, high, size, r=randint: torch.tensor([next(r)])),
        ):
            box = RandomResizedCrop.get_params(image, (0.08, 1.0), (3 / 4, 4 / 3))
        found[f"crop{number}_draws"], found[f"crop{number}_places"] = np.array(drawn), np.array(places, int)
        found[f"crop{number}_box"] = np.array(box)
        filter = InterpolationMode.BICUBIC if number % 2 else InterpolationMode.BILINEAR
        found[f"crop{number}_pixels"] = np.asarray(F.resized_crop(image, *box, [24, 20], filter))
    return found


def colours(image: Image.Image) -> dict[str, np.ndarray]:
    adjust = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation)
    found = {}
    for number, (order, factors) in enumerate((((0, 1, 2), (0.7, 1.3, 0.8)), ((2, 0, 1), (1.2, 0.9, 1.3)))):
        jittered = image
        for which, factor in zip(order, factors, strict=True):
            jittered = adjust[which](jittered, factor)
        found |= {f"jitter{number}_order": np.array(order), f"jitter{number}_factors": np.array(factors)}
        found[f"jitter{number}_pixels"] = np.asarray(jittered)
    with mock.patch.object(random, "uniform", return_value=1.25):
        three = [policy[0](image) for policy in auto_augment.auto_augment_policy_3a({})]
    found |= {f"three_{i}": np.asarray(each) for i, each in zip(("solarize", "grey", "blur"), three, strict=True)}
    share = 0.69
    factor = share * 1.8 + 0.1
    arguments = dict(AutoContrast=(), Equalize=(), Invert=(), Posterize=(int(share * 4),), Solarize=(int(share * 256),))
    arguments |= dict(
        Color=(factor,), Contrast=(factor,), Brightness=(factor,), Sharpness=(factor,), SolarizeAdd=(int(share * 110),)
    )
    for name, given in arguments.items():
        found[f"rand_{name.lower()}"] = np.asarray(auto_augment.NAME_TO_OP[name](image, *given))
    return found


def timm_randaug(image: Image.Image) -> dict[str, np.ndarray]:
    mean = dict(img_mean=(124, 116, 104), interpolation=Image.Resampling.BICUBIC)  # as create_transform calls it
    found = {}
    names = auto_augment.rand_augment_choices("", increasing=True)
    for operation in auto_augment.rand_augment_ops(6.9, 1.0, mean, names):
        for sign in (-1, 1):
            with mock.patch.object(random, "random", return_value=0.9 if sign < 0 else 0.1):
                found[f"timm_{operation.name}_{sign}"] = np.asarray(operation(image.crop((8, 4, 24, 20))))
    return found


def mixed() -> dict[str, np.ndarray]:
    draws = [(0.5, 10, 12), (0.9, 0, 31), (0.02, 16, 16), (1.0, 3, 3), (0.3, 23, 1)]  # of 24 rows and 32 columns
    boxes = []
    for part, *centre in draws:
        with mock.patch.object(np.random, "randint", side_effect=centre):
            boxes.append(rand_bbox((3, 24, 32), part))
    found = {"cutmix_draws": np.array(draws), "cutmix_boxes": np.array(boxes)}
    labels, part = torch.tensor([0, 3, 2, 1]), torch.tensor([0.9, 0.6, 1.0, 0.75])[:, None]
    logits = torch.linspace(-3, 3, 20).reshape(4, 5).sin() * 3
    found |= {"labels": labels, "part": part[:, 0], "logits": logits}
    for smoothing in (0.0, 0.1):
        targets = mixup_target(labels, 5, part, smoothing)
        found[f"targets_{smoothing}"] = targets
        found[f"bce_{smoothing}"] = BinaryCrossEntropy(smoothing=0)(logits, targets)
    return found


def drawn(count: int = 20_000) -> dict[str, np.ndarray]:
    torch.manual_seed(0)
    np.random.seed(0)
    image = torch.empty(3, 375, 500)
    boxes = np.array([RandomResizedCrop.get_params(image, (0.08, 1.0), (3 / 4, 4 / 3)) for _ in range(count)])
    top, _, h, w = boxes.T
    share = [1 - cutmix_bbox_and_lam((3, 32, 32), np.random.beta(1, 1))[1] for _ in range(count)]
    values = dict(crop_area=h * w / (375 * 500), crop_aspect=w / h, crop_top=top / 375, cutmix_share=share)
    return {name: np.quantile(value, QUANTILES) for name, value in values.items()} | {"quantiles": QUANTILES}


if __name__ == "__main__":
    pixels = picture()
    image = Image.fromarray(pixels)
    arrays = {"picture": pixels} | crops(image) | colours(image) | timm_randaug(image) | mixed() | drawn()
    save("augment", arrays, packages=["torch", "timm", "torchvision", "pillow"])
