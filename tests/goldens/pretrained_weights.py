"""Weights made from names, so that those who write the golden vectors and those who test against them need no files."""

import re
import zlib

import numpy as np

Shapes = dict[str, tuple[int, ...]]


def made(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The float32 tensor of this name and shape: always the same, of a size at which activations stay of order 1."""
    normal = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    last = name.replace("/", ".").split(".")[-1]
    if len(shape) > 1 and re.search("token|pos|cls|probe|latent", name):
        return (0.5 * normal).astype(np.float32)
    if last in ("scale", "gamma", "lambda1", "gamma_1", "gamma_2") or (last == "weight" and len(shape) == 1):
        return (0.7 + 0.2 * normal).astype(np.float32)
    if len(shape) > 1:
        return (normal * (np.prod(shape) / max(shape)) ** -0.5).astype(np.float32)
    return (0.2 * normal).astype(np.float32)


def images(height: int, width: int) -> np.ndarray:
    """Two images [2, height, width, 3]."""
    return 5 * made(f"images {height}x{width}", (2, height, width, 3))


def google_shapes(width, depth, heads, mlp, patch, grid, *, head, token=True, pool=False, stem=None) -> Shapes:
    """Names and shapes of a file of Google's, as big_vision has them but for the rows of the position table."""
    shapes: Shapes = {}
    channels = 3
    if stem is not None:
        channels = 64 if not stem else 256 * 2 ** (len(stem) - 1)
        shapes |= _stem_shapes(stem)
    shapes |= {"embedding/kernel": (patch, patch, channels, width), "embedding/bias": (width,)}
    shapes |= {"cls": (1, 1, width)} if token else {}
    shapes["pos_embedding"] = (1, token + grid * grid, width)
    for layer in range(depth):
        block = f"Transformer/encoderblock_{layer}/"
        shapes |= _norm(f"{block}LayerNorm_0", width) | _norm(f"{block}LayerNorm_1", width)
        shapes |= _attention_and_mlp(block, width, heads, mlp)
    shapes |= _norm("Transformer/encoder_norm", width)
    if pool:
        shapes |= {"MAPHead_0/probe": (1, 1, width)} | _norm("MAPHead_0/LayerNorm_0", width)
        shapes |= _attention_and_mlp("MAPHead_0/", width, heads, mlp)
    return shapes | ({"head/kernel": (width, head), "head/bias": (head,)} if head else {})


def google_tensors(shapes: Shapes, spelling: str) -> dict[str, np.ndarray]:
    """The same weights under the names of "old", "optimiser", "params", "siglip", "stacked" or "bfloat16" files."""
    tensors = {name: made(name, shape) for name, shape in shapes.items()}
    if spelling == "bfloat16":  # as numpy brings it back: the upper halves of float32, rounded to even
        bits = {name: array.view(np.uint32) for name, array in tensors.items()}
        upper = {n: ((b + 0x7FFF + ((b >> 16) & 1)) >> 16).astype(np.uint16) for n, b in bits.items()}
        return {name: array.view("V2") for name, array in upper.items()}
    if spelling == "stacked":
        return _stacked(tensors)
    if spelling in ("params", "siglip"):
        prefix = {"params": "params/", "siglip": "params/img/"}[spelling]
        text = {"params/txt/head/bias": np.zeros(3), "params/t": np.zeros(1), "params/b": np.zeros(1)}
        return {prefix + name: array for name, array in tensors.items()} | (text if spelling == "siglip" else {})
    prefix = {"old": "", "optimiser": "opt/target/"}[spelling]
    return {prefix + _old_name(name): array for name, array in tensors.items()}


def _old_name(name: str) -> str:
    if name == "pos_embedding":
        return "Transformer/posembed_input/pos_embedding"
    for new, old in (
        ("MultiHeadDotProductAttention_0", "MultiHeadDotProductAttention_1"),
        ("LayerNorm_1", "LayerNorm_2"),
    ):
        name = name.replace(new, old)
    return name.replace("MlpBlock_0", "MlpBlock_3")


def _stacked(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    layers: dict[str, list[np.ndarray]] = {}
    rest = {}
    for name, array in tensors.items():
        match = re.fullmatch(r"Transformer/encoderblock_\d+/(.*)", name)
        if match:
            layers.setdefault(f"Transformer/encoderblock/{match[1]}", []).append(array)
        else:
            rest[name] = array
    return rest | {name: np.stack(arrays) for name, arrays in layers.items()}


def _norm(name: str, width: int) -> Shapes:
    return {f"{name}/scale": (width,), f"{name}/bias": (width,)}


def _attention_and_mlp(block: str, width: int, heads: int, mlp: int) -> Shapes:
    shapes: Shapes = {}
    attention, dense = f"{block}MultiHeadDotProductAttention_0", f"{block}MlpBlock_0/Dense_"
    for part in ("query", "key", "value"):
        shapes[f"{attention}/{part}/kernel"] = (width, heads, width // heads)
        shapes[f"{attention}/{part}/bias"] = (heads, width // heads)
    shapes |= {f"{attention}/out/kernel": (heads, width // heads, width), f"{attention}/out/bias": (width,)}
    shapes |= {f"{dense}0/kernel": (width, mlp), f"{dense}0/bias": (mlp,)}
    return shapes | {f"{dense}1/kernel": (mlp, width), f"{dense}1/bias": (width,)}


def _stem_shapes(stem) -> Shapes:
    shapes: Shapes = {"conv_root/kernel": (7, 7, 3, 64)} | _group_norm("gn_root", 64)
    channels = 64
    for stage, units in enumerate(stem):
        inner = 64 * 2**stage
        for unit in range(units):
            at = f"block{stage + 1}/unit{unit + 1}/"
            kernels = [(1, 1, channels, inner), (3, 3, inner, inner), (1, 1, inner, 4 * inner)]
            for i, kernel in enumerate(kernels, 1):
                shapes[f"{at}conv{i}/kernel"] = kernel
                shapes |= _group_norm(f"{at}gn{i}", kernel[-1])
            if not unit:
                shapes[f"{at}conv_proj/kernel"] = (1, 1, channels, 4 * inner)
                shapes |= _group_norm(f"{at}gn_proj", 4 * inner)
            channels = 4 * inner
    return shapes


def _group_norm(name: str, channels: int) -> Shapes:
    return {f"{name}/{kind}": (1, 1, 1, channels) for kind in ("scale", "bias")}  # as released
