"""Golden vectors of preprocessing, from timm, transformers and torchvision.

`size`, `max_patches`, `grid`: NaFlex's rule as timm and transformers (SigLIP 2) have it, which agree on all of these.
`picture`, and by name crop_<H>x<W>_<fraction>: what torchvision's Resize and CenterCrop make of it, as timm evaluates.
"""

import numpy as np
from maker import save
from PIL import Image
from timm.data.naflex_transforms import get_image_size_for_seq
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F
from transformers.models.siglip2.image_processing_siglip2 import get_image_size_for_max_num_patches

PATCH = 16


def grids() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    size, most = rng.integers(20, 700, (400, 2)), rng.integers(1, 600, 400)
    size = np.concatenate([size, [(100, 100), (37, 500), (3000, 17), (224, 225), (480, 640), (128, 192)]])
    most = np.append(most, [64] * 6)
    found = []
    for (h, w), m in zip(size.tolist(), most.tolist(), strict=True):
        ours = get_image_size_for_seq((h, w), PATCH, m)[1]
        theirs = get_image_size_for_max_num_patches(h, w, PATCH, m)
        assert tuple(ours) == tuple(theirs), (h, w, m, ours, theirs)
        found.append([ours[0] // PATCH, ours[1] // PATCH])
    return dict(size=size.astype(np.int32), max_patches=most.astype(np.int32), grid=np.array(found, np.int32))


def crops() -> dict[str, np.ndarray]:
    rows, columns = np.mgrid[:60, :83]
    waves = [np.sin(rows / 7 + c) + np.cos(columns / (5 + c)) for c in range(3)]
    pixels = (np.stack(waves, axis=-1) * 60 + 128).astype(np.uint8)
    pixels[10:30, 20:50] = (250, 5, 99)
    out = {"picture": pixels}
    for picture, name in ((pixels, "wide"), (pixels.swapaxes(0, 1), "tall")):
        for side, fraction, filter in ((32, 0.875, "bicubic"), (24, 1.0, "bilinear"), (71, 0.9, "bicubic")):
            resized = F.resize(Image.fromarray(picture), int(side / fraction), InterpolationMode(filter))
            out[f"{name}_{side}_{fraction}_{filter}"] = np.asarray(F.center_crop(resized, [side, side]))
    return out


if __name__ == "__main__":
    save("preprocess", grids() | crops(), packages=["torch", "transformers", "timm", "torchvision"])
