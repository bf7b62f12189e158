"""Golden logits of ViT-5, and one layer of it, from the authors' code:

    git clone https://github.com/wangf3014/ViT-5 /tmp/vit5    # b7b0796 when last run
    /tmp/goldens/bin/pip install einops
    /tmp/goldens/bin/python tests/goldens/make_vit5.py /tmp/vit5

in the environment that tests/goldens/maker.py describes; the result is vit5.npz. The weights of the model are made by name,
as make_pretrained.py makes them; at another size its table is resized as the authors' main.py does it for a fine-tune.
"""

import functools
import json
import sys

import torch
from maker import save
from pretrained_weights import images, made

sys.path.insert(0, sys.argv[1])
torch.Tensor.cuda = lambda self: self  # rope.py moves its positions to a GPU

import models_vit5

NORM = functools.partial(models_vit5.RMSNorm, eps=1e-6)
SMALL = dict(patch_size=8, embed_dim=32, depth=2, num_heads=2, num_classes=5, num_registers=4)
AS_VIT5 = dict(norm_layer=NORM, rope=True, reg_theta=100, qk_norm=True, flash=False)  # what vit5_small and others give


def model(side, tensors):
    """The authors' model of images of this side, and the shapes of its state_dict but for the buffers of RoPE."""
    vit = models_vit5.vit_models(img_size=side, **SMALL, **AS_VIT5).eval()
    shapes = {name: tuple(x.shape) for name, x in vit.state_dict().items()}
    tensors = tensors or {n: torch.from_numpy(made(n, s)) for n, s in shapes.items() if not n.endswith("freqs")}
    vit.load_state_dict(tensors, strict=False)
    return vit, shapes, tensors


@torch.no_grad()
def logits():
    out, tensors = {}, None
    for side in (32, 48):
        if tensors is not None:
            table = tensors["pos_embed"].reshape(1, 4, 4, -1).permute(0, 3, 1, 2)
            table = torch.nn.functional.interpolate(table, size=(6, 6), mode="bicubic", align_corners=False)
            tensors = tensors | {"pos_embed": table.permute(0, 2, 3, 1).flatten(1, 2)}
        vit, shapes, tensors = model(side, tensors)
        out[f"vit-5 {side}x{side}"] = vit(torch.from_numpy(images(side, side)).permute(0, 3, 1, 2))
        out.setdefault("json", json.dumps({"vit-5": dict(names=shapes, config={})}))
    return out


@torch.no_grad()
def layer():
    """Class token, 3 x 3 patches and 4 registers, in this order."""
    own = dict(rope_size=3, rope_reg_size=2, num_registers=4, reg_theta=100, flash=False)
    attention, x = models_vit5.Attention(24, 2, **own), torch.randn(1, 14, 24)
    for matrix in (attention.qkv.weight, attention.proj.weight):
        torch.nn.init.normal_(matrix, std=0.3)
    torch.nn.init.zeros_(attention.proj.bias)
    parts = {"qkv": attention.qkv.weight, "proj": attention.proj.weight, "out": attention(x)[0]}
    return {f"layer_{name}": array for name, array in (parts | {"x": x[0]}).items()}


if __name__ == "__main__":
    torch.manual_seed(0)
    save("vit5", logits() | layer(), ("torch", "timm"))
