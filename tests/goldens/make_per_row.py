"""Golden vectors of data-dependent ALiBi per row, from x-transformers itself:

    python -m venv /tmp/goldens && /tmp/goldens/bin/pip install torch==2.13.0 x-transformers==2.31.10 numpy
    /tmp/goldens/bin/python tests/goldens/make_per_row.py

The result is per_row.npz: tokens, the layer's weights, and the biases that it returns.
"""

import torch
from maker import half, noise, save
from x_transformers.x_transformers import PerRowDataDependentAlibi

LENGTH, HEADS, WIDTH, GATE_DIM = 11, 3, 8, 5

if __name__ == "__main__":
    torch.manual_seed(0)
    layer = PerRowDataDependentAlibi(WIDTH, HEADS, dim_head=GATE_DIM, post_log_scale=1.5)
    linear = layer.to_forget_gates[0]
    linear.weight.data = half(0.3 * torch.randn_like(linear.weight))
    x = noise(LENGTH, WIDTH)
    arrays = {
        "x": x.half(),
        "kernel": linear.weight.data.T.reshape(WIDTH, 2, HEADS, GATE_DIM).half(),
        "bias": layer(x[None])[0],
    }
    save("per_row", arrays, packages=["torch", "x-transformers"])
