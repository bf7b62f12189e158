"""The way of a picture into a batch, where all become one size."""

from dataclasses import dataclass

import numpy as np

from posjax.data.host_augment import HostOperation, InceptionCrop
from posjax.data.preprocess import Source, check_way, open_image, pixels_of, preprocess, resize_image


@dataclass(frozen=True)
class Frame:
    """How pictures of any size become arrays [H, W, channels] uint8.

    Attributes:
      size: (H, W) in pixels.
      mode: see `preprocess`.
      channels: 1 or 3.
      crop_fraction: see `preprocess`; of evaluation alone.
      host: operations on training images in their order (`Recipe.host`). Where the first one crops, it takes the place of
        `preprocess`; its size is `size`.

    Raises:
      ValueError: as `preprocess`, for size, mode and crop_fraction.
    """

    size: tuple[int, int]
    mode: str = "crop"
    channels: int = 3
    crop_fraction: float = 1.0
    host: tuple[HostOperation, ...] = ()

    def __post_init__(self):
        check_way(self.size, self.mode, self.crop_fraction)

    def scored(self, source: Source) -> np.ndarray:
        """Returns a picture as evaluation sees it."""
        return preprocess(source, self.size, self.mode, channels=self.channels, crop_fraction=self.crop_fraction)

    def trained(self, source: Source, rng: np.random.Generator) -> np.ndarray:
        """Returns a picture as training sees it. A crop is cut before it becomes an array."""
        crop = self.host[0] if self.host and isinstance(self.host[0], InceptionCrop) else None
        if crop is None:
            image = preprocess(source, self.size, self.mode, channels=self.channels)
        else:
            picture = open_image(source, channels=self.channels)
            top, left, height, width = crop.box(picture.height, picture.width, rng)
            box = picture.crop((left, top, left + width, top + height))
            image = pixels_of(resize_image(box, self.size, crop.resample))
        for operation in self.host[crop is not None :]:
            image = operation(image, rng)
        return image
