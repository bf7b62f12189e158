"""Golden vectors of data-dependent ALiBi per row, from x-transformers itself:

    python -m venv /tmp/goldens && /tmp/goldens/bin/pip install torch==2.13.0 x-transformers==2.31.10 numpy
    /tmp/goldens/bin/python tests/goldens/make_per_row.py

The result is per_row.npz: tokens, the layer's weights, and the biases that it returns.
"""

from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from x_transformers.x_transformers import PerRowDataDependentAlibi

LENGTH, HEADS, WIDTH, GATE_DIM = 11, 3, 8, 5

if __name__ == "__main__":
    torch.manual_seed(0)
    layer = PerRowDataDependentAlibi(WIDTH, HEADS, dim_head=GATE_DIM, post_log_scale=1.5)
    linear = layer.to_forget_gates[0]
    linear.weight.data = (0.3 * torch.randn_like(linear.weight)).half().float()
    x = torch.randn(LENGTH, WIDTH).half().float()
    arrays = {
        "x": x.half().numpy(),
        "kernel": linear.weight.data.T.reshape(WIDTH, 2, HEADS, GATE_DIM).half().numpy(),
        "bias": layer(x[None])[0].detach().numpy(),
    }
    versions = [f"{name} {version(name)}" for name in ("torch", "x-transformers")]
    np.savez_compressed(Path(__file__).with_name("per_row.npz"), versions=np.array(versions), **arrays)
