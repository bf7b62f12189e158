"""Golden vectors of text with images.

Run as tests/goldens/maker.py says, with this file's name; the result is multimodal.npz. transformers' Qwen2-VL places tokens
and its Qwen3.5 turns a quarter of a head. Layouts of no package are written down once more from their authors' code, which
each function names, token by token.
"""

import math
from types import MethodType, SimpleNamespace

import torch
from maker import noise, save
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLModel
from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen

PARTS = [3, (1, 4, 6), 2, (3, 3, 2), 1, (1, 1, 5), 2]  # tokens of text, or frames, rows and columns
POSITION = torch.tensor([[0, 0, 0], [1, 1, 1], [2, 2, 3], [2, 3, 2], [7, 5, 5], [64, 9, 40]])


def of_qwen2():
    """The positions of Qwen2-VL's tokens; no video may have more frames than rows and columns (see docs/errata.md)."""
    kinds, images, videos = [], [], []
    for part in PARTS:
        grid = part if isinstance(part, tuple) else None
        kinds += [0] * part if grid is None else [1 if grid[0] == 1 else 2] * math.prod(grid)
        if grid is not None:
            (images if grid[0] == 1 else videos).append(grid)
    model = SimpleNamespace(config=SimpleNamespace(vision_config=SimpleNamespace(spatial_merge_size=1)))
    model.get_vision_position_ids = MethodType(Qwen2VLModel.get_vision_position_ids, model)
    tokens, grids = torch.zeros(1, len(kinds), dtype=torch.long), (torch.tensor(images), torch.tensor(videos))
    return Qwen2VLModel.get_rope_index(model, tokens, torch.tensor([kinds]), *grids)[0][:, 0].T


def placed(block, behind):
    """Positions of all parts: text by itself, images by `block(t, h, w, grid)`, both from where `behind` has the last end."""
    out, start = [], 0
    for part in PARTS:
        if isinstance(part, int):
            here = [[start + i] * 3 for i in range(part)]
        else:
            grid = [(t, h, w) for t in range(part[0]) for h in range(part[1]) for w in range(part[2])]
            here = [block(start, *place, part) for place in grid]
        out += here
        start = behind(start, here, part)
    return torch.tensor(out)


def spatial_reset():
    """JJJYmmm/Multimodal-RoPEs, multimodal_ropes/pos_design/mrope_i.py, spatial_reset=True, a stride of 2."""
    return placed(
        lambda s, t, h, w, grid: [s + 2 * t, h, w],
        lambda s, here, part: (
            s + (part if isinstance(part, int) else max(2 * part[0] - 2, part[1] - 1, part[2] - 1) + 1)
        ),
    )


def diagonal():
    """Wiselnn570/VideoRoPE, videorope-transformer/modeling_videorope.py, get_t_scale_rope_index."""

    def block(start, t, h, w, grid):
        time = start + 2.0 * t
        return [time, time + h - (grid[1] - 1) // 2, time + w - (grid[2] - 1) // 2]

    return placed(block, lambda s, here, part: here[-1][0] + 1)


def circle(alpha, radius, flat, positive, grid=(4, 6), start=3):
    """lose4578/CircleRoPE, code/circle_rope.py with move_to_origin, and where text goes on behind the image."""
    rows, columns = (torch.arange(n) - (n - 1) / 2 for n in grid)
    y, x = (axis.flatten() for axis in torch.meshgrid(rows, columns, indexing="ij"))
    plane = torch.complex(x, y)
    angle = plane.angle()
    angle = (angle - angle.min()) / (angle.max() - angle.min()) * 2 * math.pi
    angle = alpha * angle + (1 - alpha) * torch.arange(len(x)) / len(x) * 2 * math.pi
    radius = max(x.max(), y.max()) if radius is None else radius
    plane = (1 - flat) * torch.polar(torch.full_like(angle, float(radius)), angle) + flat * plane
    line = torch.ones(3) / math.sqrt(3)  # of text, in (column, row, time)
    first = torch.tensor([-1.0, 1.0, 0.0]) / math.sqrt(2)
    second = torch.linalg.cross(line, first)
    place = plane.real[:, None] * first + plane.imag[:, None] * second
    place = (place + place.min().abs() * positive).flip(1) + start
    return torch.cat([place, (place.max() + 1).expand(1, 3)])


def of_qwen3_5(x):
    """Qwen3.5's sections of a quarter of its head of 256."""
    parameters = {"rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10]}
    config = qwen.Qwen3_5TextConfig(rope_parameters=parameters | {"rope_type": "default", "mrope_interleaved": True})
    cos, sin = qwen.Qwen3_5TextRotaryEmbedding(config)(x, POSITION.T[:, None])
    return qwen.apply_rotary_pos_emb(x.transpose(0, 1)[None], x.transpose(0, 1)[None], cos, sin)[0][0].transpose(0, 1)


def bilevel(tokens):
    """zhenyuhe00/BiPE, my_modeling_llama_bipe_rope.py, get_bilevel_ids: (segment, place within), places up to 3."""
    out, sentence, place = [], 0, 0
    for token in tokens.tolist():
        out.append((sentence, min(place, 3)))
        sentence, place = (sentence + 1, 0) if token in (869, 13) else (sentence, place + 1)
    return torch.tensor(out)


if __name__ == "__main__":
    torch.manual_seed(0)
    arrays = {"place_offset": of_qwen2(), "place_reset": spatial_reset(), "place_diagonal": diagonal()}
    arrays |= {"place_circle": circle(0.3, None, 0.0, 0), "place_flat": circle(1.0, 10.0, 0.25, 1)}
    wide = noise(len(POSITION), 1, 256)
    arrays |= {"position": POSITION, "wide": wide, "qwen3_5": of_qwen3_5(wide)}
    tokens = torch.tensor([5, 869, 7, 7, 7, 7, 7, 13, 869, 2, 4])
    arrays |= {"tokens": tokens, "bilevel": bilevel(tokens)}
    save("multimodal", arrays)
