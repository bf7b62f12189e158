"""Golden vectors of text with images, of heads with axes or parts of their own, and of BAM.

Run as tests/goldens/make.py says, with this file's name; the result is multimodal.npz. transformers' Qwen2-VL places tokens
and its Qwen3.5 turns a quarter of a head. What comes in no package is written down once more from its authors' code, which
each function names: in torch, token by token or with complex numbers.
"""

import math
from types import MethodType, SimpleNamespace

import torch
from make_bias import noise, save
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLModel
from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen

PARTS = [3, (1, 4, 6), 2, (3, 3, 2), 1, (1, 1, 5), 2]  # tokens of text, or frames, rows and columns
POSITION = torch.tensor([[0, 0, 0], [1, 1, 1], [2, 2, 3], [2, 3, 2], [7, 5, 5], [64, 9, 40]])
HEADS, DIM = 8, 8


def turned(x, angle):
    """x [..., D] in pairs of the two halves of D, as complex numbers times exp(i angle)."""
    a, b = x.chunk(2, dim=-1)
    z = torch.complex(a, b) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([z.real, z.imag], dim=-1)


def frequencies(base, dim):
    return base ** -(torch.arange(0, dim, 2) / dim)


def of_qwen2():
    """Returns Qwen2-VL's positions; no video may have more frames than rows and columns (see docs/errata.md)."""
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


def of_videorope(x, sections=(1, 2, 1)):
    """The same repository, apply_m_modify_multimodal_rotary_pos_emb: x1, y1, x2, y2, ..., t1, t2, ..."""
    angle = POSITION[:, :, None] * frequencies(10_000.0, DIM)
    spatial = sections[1] + sections[2]
    dealt = [1 if c % 2 == 0 else 2 for c in range(spatial)] + [0] * sections[0]
    return turned(x, torch.stack([angle[:, axis, c] for c, axis in enumerate(dealt)], dim=-1)[:, None])


def of_mhrope(x, key_heads=(1, 1, 1)):
    """JJJYmmm/Multimodal-RoPEs, multimodal_ropes/freq_allocation/mhrope.py: 4 key heads, each for 2 of queries."""
    angle = POSITION[:, :, None] * frequencies(1e6, DIM)
    each = [angle[:, axis] for axis, count in enumerate(key_heads) for _ in range(count)]
    each += [torch.zeros_like(each[0])] * (HEADS // 2 - len(each))
    return turned(x, torch.stack(each, dim=1).repeat_interleave(2, dim=1))


def of_flux(x, axes_dims=(4, 6, 6)):
    """black-forest-labs/flux, src/flux/modules/layers.py EmbedND and src/flux/math.py: 2 x 2 matrices, axis behind axis."""
    angle = torch.cat([POSITION[:, [a]] * frequencies(10_000.0, d) for a, d in enumerate(axes_dims)], dim=-1)
    cos, sin = angle.cos(), angle.sin()
    matrix = torch.stack([cos, -sin, sin, cos], dim=-1).unflatten(-1, (2, 2))[:, None]
    return (matrix @ x.unflatten(-1, (-1, 2, 1))).flatten(2)


def of_rope_pp(q, k, v):
    """OpenMOSS/rope_pp, rope_pp/modeling_llama_rope_pp.py, imag_mode "imag1": 2 heads of q that attend as 4, 1 of k and v."""
    length = len(q)
    angle = torch.arange(length)[:, None] * frequencies(10_000.0, DIM)
    cos, sin = (torch.cat([wave, wave], dim=-1)[:, None] for wave in (angle.cos(), angle.sin()))
    across = lambda x: torch.cat([-x[..., DIM // 2 :], x[..., : DIM // 2]], dim=-1)  # noqa: E731
    real, imaginary = q * cos + across(q) * sin, q * sin - across(q) * cos
    heads = torch.stack([real, imaginary], dim=2).reshape(length, -1, DIM)
    logits = torch.einsum("thd,sd->hts", heads, turned(k, angle[:, None])[:, 0]) / math.sqrt(DIM)
    logits = logits.masked_fill(torch.ones(length, length).triu(1).bool(), -math.inf)
    return torch.einsum("hts,sd->thd", logits.softmax(-1), v[:, 0])


def of_bam(scale, shape, location, length=9):
    """ArthurSBianchessi/BAM, models/bam.py, AttentionPrior."""
    position = torch.arange(length).float()
    away = position[None, None] - position[None, :, None] - (location.exp() - (-location).exp())[:, None, None]
    return -((away.abs() + 1e-5) ** shape[:, None, None]) * scale.exp()[:, None, None]


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
    x, wide, uneven = noise(len(POSITION), HEADS, DIM), noise(len(POSITION), 1, 256), noise(len(POSITION), 2, 16)
    arrays |= {"position": POSITION, "x": x, "wide": wide, "uneven": uneven, "qwen3_5": of_qwen3_5(wide)}
    arrays |= {"videorope": of_videorope(x), "mhrope": of_mhrope(x), "flux": of_flux(uneven)}
    q, k, v = noise(11, 2, DIM), noise(11, 1, DIM), noise(11, 1, DIM)
    arrays |= {"q": q, "k": k, "v": v, "rope_pp": of_rope_pp(q, k, v)}
    bam = {"bam_scale": noise(3), "bam_shape": 0.5 * noise(3), "bam_location": noise(3)}
    tokens = torch.tensor([5, 869, 7, 7, 7, 7, 7, 13, 869, 2, 4])
    arrays |= bam | {"bam": of_bam(*bam.values()), "tokens": tokens, "bilevel": bilevel(tokens)}
    save("multimodal", {name: value.detach().numpy() for name, value in arrays.items()})
