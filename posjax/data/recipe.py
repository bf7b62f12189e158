"""The augmentation of a training as one text, `config.data.augment`.

    "inception_crop(224) + flip + randaug(2, 10) + mixup(0.2)"    big_vision's ViT-S/16 on ImageNet-1k
    "shift(2) + flip"                                             on the device alone

The text is read as the text of an encoding is (posjax/spec.py). Operations stand in the order in which they act: `repeat`,
then operations on single images on the host, then those on batches on the device, then mixup and cutmix. `flip` runs on the
host before another operation of the host, and on the device elsewhere.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from posjax.data.augment import Cutmix, DeviceOperation, Flip, MixOperation, Mixup, Operation, ResizedCrop, Shift
from posjax.data.host_augment import (
    ColorJitter,
    HostFlip,
    HostOperation,
    InceptionCrop,
    RandAugment,
    ThreeAugment,
    TimmRandAugment,
)
from posjax.spec import parse_sum


@dataclass(frozen=True)
class Repeat(Operation):
    """Gives a batch `n` copies of each of its images, each augmented by draws of its own.

    Repeated augmentation: Hoffer et al. (2019), arXiv 1901.09335. A batch has all its first copies, then all second ones: so
    mixup and cutmix mix no image with itself.

    Args:
      n: number of copies, at least 2.

    Raises:
      ValueError: n is below 2.
    """

    spec_name: ClassVar[str] = "repeat"
    ranges: ClassVar[tuple[str, ...]] = ("n >= 2",)

    n: int


_STAGES = (Repeat, HostOperation, DeviceOperation, MixOperation)
_ORDER = "the order is repeat, operations on the host, on the device, mixup and cutmix"
OPERATIONS: Mapping[str, type[Operation]] = {
    kind.spec_name: kind
    for kind in (
        *(Repeat, InceptionCrop, ThreeAugment, RandAugment, TimmRandAugment, ColorJitter),
        *(Flip, Shift, ResizedCrop, Mixup, Cutmix),
    )
}


class Recipe(NamedTuple):
    """Augmentation as operations in their order.

    Attributes:
      operations: all of them. `str` writes the text that `parse_augment` reads.
    """

    operations: tuple[Operation, ...] = ()

    def _of(self, stage: type) -> tuple[Operation, ...]:
        return tuple(operation for operation in self.operations if isinstance(operation, stage))

    @property
    def repeats(self) -> int:
        """Copies of an image in a batch; 1 without `repeat`."""
        return next((operation.n for operation in self._of(Repeat)), 1)

    @property
    def host(self) -> tuple[HostOperation, ...]:
        """Operations on single images: operation(image [h, w, c] uint8, rng) returns an image."""
        return self._of(HostOperation)

    @property
    def device(self) -> tuple[DeviceOperation, ...]:
        """Operations on batches: operation(key, images [b, h, w, c]) returns images."""
        return self._of(DeviceOperation)

    @property
    def mix(self) -> tuple[MixOperation, ...]:
        """Mixup, cutmix or both, for `posjax.data.mix`."""
        return self._of(MixOperation)

    def sized(self, height: int, width: int) -> "Recipe":
        """Returns the recipe for a model of images of this size in pixels, which its crop takes where it names none.

        Raises:
          ValueError: the crop names another size.
        """

        size = height if height == width else (height, width)

        def of(operation: Operation) -> Operation:
            if not isinstance(operation, InceptionCrop):
                return operation
            if operation.size not in (None, (height, width), size):
                raise ValueError(f"{operation} differs from the model's images of {height}x{width}: give it no size")
            return replace(operation, size=size)

        return Recipe(tuple(map(of, self.operations)))

    def __str__(self) -> str:
        return " + ".join(map(str, self.operations))


@functools.cache
def parse_augment(text: str | None) -> Recipe:
    """Reads a spec of augmentation; None is a recipe without operations.

    Raises:
      ValueError: as `posjax.parse`: a text that is no spec, an unknown name or argument (the message names the nearest known
        one), a value of the wrong type or out of range; also operations that stand twice or in another order.

    >>> recipe = parse_augment("inception_crop + flip + randaug(2, 10) + mixup(0.2)")
    >>> print(*recipe.host, "|", *recipe.device, "|", *recipe.mix)
    inception_crop() flip() randaug(n=2, m=10) | | mixup(alpha=0.2)
    >>> parse_augment("flop")
    Traceback (most recent call last):
    ValueError: no augmentation is named 'flop'; did you mean 'flip'? known: ...
    """
    if text is None:
        return Recipe()
    operations = parse_sum(text, OPERATIONS, "augmentation")
    last = max((i for i, operation in enumerate(operations) if isinstance(operation, HostOperation)), default=0)
    operations = tuple(
        HostFlip() if isinstance(operation, Flip) and i < last else operation for i, operation in enumerate(operations)
    )
    names = [operation.spec_name for operation in operations]
    if twice := [name for i, name in enumerate(names) if name in names[:i]]:
        raise ValueError(f"{twice[0]} stands twice in the augmentation {text!r}")
    stages = [next(i for i, kind in enumerate(_STAGES) if isinstance(operation, kind)) for operation in operations]
    for i in range(1, len(stages)):
        if stages[i] < stages[i - 1]:
            raise ValueError(f"{names[i]} cannot follow {names[i - 1]} in the augmentation {text!r}: {_ORDER}")
    return Recipe(operations)
