"""Golden vectors of KERPLE, FIRE, DAPE and LookHere, from code of authors that is in no package:

    git clone https://github.com/chuanyang-Zheng/DAPE /tmp/DAPE             # 641deab when last run
    git clone https://github.com/GreenCUBIC/lookhere /tmp/lookhere          # bde344a
    /tmp/goldens/bin/pip install scipy einops
    /tmp/goldens/bin/python tests/goldens/make_bias_authors.py /tmp/DAPE /tmp/lookhere

in the environment of tests/goldens/maker.py; the result is bias_authors.npz. DAPE.py is a reference for KERPLE and
FIRE too. They are causal: numbers above the diagonal are not a bidirectional model's biases.
"""

import sys
from types import SimpleNamespace

import numpy as np
import torch
from maker import save

sys.path += sys.argv[1:]
import DAPE
import lookhere

NUM_HEADS, LENGTH, HIDDEN = 5, 14, 6
VIEWS = {180: "halves-none", 90: "corners-triangles-none", 45: "eighths1-eighths2-none"}


def layers(prefix, mlp):
    for number, layer in enumerate((mlp[0], mlp[2])):
        yield f"{prefix}_kernel_{number}", layer.weight.T
        yield f"{prefix}_bias_{number}", layer.bias


def networks():
    logits = torch.randn(1, NUM_HEADS, LENGTH, LENGTH)
    none, out = torch.zeros_like(logits), {"logits": logits[0]}
    arguments = SimpleNamespace(num_attention_heads=NUM_HEADS, pos_emb="", params_dtype=torch.float32, mlp_width=HIDDEN)
    torch.cuda.current_device = lambda: "cpu"  # where it puts its parameters
    kerple = DAPE.ParallelKerpleLog(arguments)
    dape = DAPE.ParallelKerpleLog_DAPE(arguments, 0)
    fire = DAPE.FIRE(NUM_HEADS, HIDDEN, init_c=0.3, init_L=5.0)
    fire.L_multiplier.data *= 1.3  # a threshold within the sequence
    for name, module, given in (("kerple", kerple, none), ("dape", dape, logits), ("fire", fire, none)):
        out[name] = module(given)[0]
        if name != "fire":
            out |= {f"{name}_p": module.bias_p[:, 0, 0], f"{name}_a": module.bias_a[:, 0, 0]}
    return out | dict(layers("dape", dape.mlp2)) | dict(layers("fire", fire.mlp))


def views():
    return {
        f"lookhere_{fov}_{height}_{width}": -lookhere.create_lh_layer_tensor(
            (height, width), directions, 12, "linear", "inf"
        ).astype(np.float32)
        for fov, directions in VIEWS.items()
        for height, width in ((3, 5), (4, 4))
    }


if __name__ == "__main__":
    torch.manual_seed(0)
    save("bias_authors", networks() | views())
