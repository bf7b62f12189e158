"""What the makers of golden vectors share. They run in an environment of their own, which does not know this library:

    python -m venv /tmp/goldens && /tmp/goldens/bin/pip install torch==2.14.1 torchvision==0.29.1
    /tmp/goldens/bin/pip install transformers==5.24.0 timm==1.0.31 scipy
    /tmp/goldens/bin/python tests/goldens/make_rotary_grid.py

Some makers name further packages or clones. `versions` in an .npz says what made it, where that was another version.
"""

from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).parent


def save(name: str, arrays: dict, packages=("torch", "transformers", "timm")) -> None:
    """Writes NAME.npz: arrays and tensors, and the versions of the packages that made them."""
    arrays = {key: value.detach().numpy() if torch.is_tensor(value) else value for key, value in arrays.items()}
    versions = np.array([f"{package} {version(package)}" for package in packages])
    np.savez_compressed(HERE / f"{name}.npz", versions=versions, **arrays)


def half(x):
    """Rounds a tensor to half precision, so that it is small in the file and exact in any type."""
    return x.detach().half().float()


def noise(*shape, std=1.0):
    """Returns normal noise that half precision holds."""
    return half(std * torch.randn(*shape))
