"""Golden vectors of encodings made for inputs larger than the trained ones:

    git clone https://github.com/DTU-PAS/parabolic-position-encoding /tmp/pape  # commit 21cb390
    /tmp/goldens/bin/python tests/goldens/make_larger_inputs.py /tmp/pape

in the environment that tests/goldens/maker.py describes; the result is larger_inputs.npz.
"""

import sys
from types import ModuleType, SimpleNamespace

import torch
from maker import save

HEADS, DIM = 3, 12


def parabolas(clone):
    """Logits of the authors' modules on 3 x 4 patches, columns first, with queries and keys of 0: biases alone."""
    sys.path.insert(0, clone)
    configs = ModuleType("pape.configs")  # names types only, and imports packages for a command line
    configs.Config = configs.Positional = object
    sys.modules["pape.configs"] = configs
    from pape.nn.positions.pape import ParabolicPositionEncoder
    from pape.nn.positions.pape_ri import ParabolicRotationInvariantPositionEncoder

    width, count = 20, 5
    sizes = SimpleNamespace(hidden_size=width, num_heads=HEADS, head_size=DIM)
    config = SimpleNamespace(model=sizes, pape=SimpleNamespace(parabolas=count), num_positions=2)
    x = torch.randn(1, 12, width).float().double()
    position = torch.stack([torch.arange(1, 5).repeat(3), torch.arange(1, 4).repeat_interleave(4)], -1)[None].double()
    out = {"pape_x": x[0]}
    for name, encoder in (
        ("pape", ParabolicPositionEncoder(config)),
        ("pape_ri", ParabolicRotationInvariantPositionEncoder(config)),
    ):
        encoder.register_layer_weights()
        encoder.float().double()  # weights that float32 holds
        nothing = torch.zeros(1, HEADS, 12, DIM)
        q, k = encoder.encode_query_key(x, nothing, nothing, position)
        out[f"{name}_logits"] = (q @ k.mT)[0] * DIM**-0.5
        out |= {f"{name}_{key}": value for key, value in encoder.state_dict().items()}
    return out


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    save("larger_inputs", parabolas(sys.argv[1]), packages=["torch"])
