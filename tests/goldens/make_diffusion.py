"""Golden logits of the rotary encodings of twelve diffusion transformers, from diffusers.

    pip install diffusers==0.42.1

Each model's module makes the angles at the positions of its pipeline, on a grid 3 rows higher than the pipeline's default, so
that it is neither even nor of the default's proportions. Queries and keys are numbers by a formula, turned by the model's own
function; where that is inside a processor (Wan, Mochi, Z-Image) it is transcribed as a product of complex numbers.
`experiments/report/diffusion.py` has the same models in posjax.
"""

from importlib import import_module

import numpy as np
import torch
from diffusers.models.embeddings import apply_rotary_emb, get_3d_rotary_pos_embed
from diffusers.modular_pipelines.minimax_h3.before_denoise import MiniMaxH3PrepareLayoutStep
from diffusers.pipelines.cogvideo.pipeline_cogvideox import get_resize_crop_region_for_grid
from diffusers.pipelines.flux.pipeline_flux import FluxPipeline
from diffusers.pipelines.ideogram4.pipeline_ideogram4 import Ideogram4Pipeline
from maker import save

TEXT = 3  # tokens of a prompt that is rotated


def whole(*shape):
    """Returns numbers in [-1, 1) that float32 holds, by a formula."""
    return torch.from_numpy((np.arange(np.prod(shape)) * 40503 % 65536 / 32768 - 1).reshape(shape)).float()


def by_pairs(angles):
    """(number of tokens, turn of x [T, H, D]) of complex angles [T, C] or [T, H, C], for pairs of neighbouring channels."""
    angles = angles if angles.ndim == 3 else angles[:, None]
    pairs = torch.view_as_real, torch.view_as_complex
    return len(angles), lambda x, at: pairs[0](pairs[1](x.double().unflatten(-1, (-1, 2))) * angles[at]).flatten(-2)


def shared(cos, sin, pairs=-1):
    """The same by the function that most of the models share."""
    options = dict(use_real_unbind_dim=pairs, sequence_dim=1)
    return len(cos), lambda x, at: apply_rotary_emb(x[None], (cos[at], sin[at]), **options)[0]


def turning(name, frames, rows, columns):
    """The number of tokens, and a function that turns x [T, H, D] to the places of tokens."""
    text, latents = torch.zeros(TEXT, 3), torch.zeros(1, 1, frames, 2 * rows, 2 * columns)
    if name == "cogvideox":
        crop = get_resize_crop_region_for_grid((rows, columns), 45, 30)
        return shared(*get_3d_rotary_pos_embed(64, crop, (rows, columns), frames))
    model = import_module(f"diffusers.models.transformers.transformer_{name}")
    if name == "flux":
        ids = FluxPipeline._prepare_latent_image_ids(1, rows, columns, "cpu", torch.float32)
        return shared(*model.FluxPosEmbed(10_000, [16, 56, 56])(torch.cat([text, ids])))
    if name == "qwenimage21":
        image, rope = torch.arange(TEXT + rows * columns) >= TEXT, model.QwenImage21Rope(10_000, [16, 56, 56])
        angles = rope([(1, rows, columns)], image, torch.device("cpu"))
        return len(angles), lambda x, at: model.apply_rotary_emb_qwen(x[None], angles[at], use_real=False)[0]
    if name == "z_image":
        grid = model.ZImageTransformer2DModel.create_coordinate_grid
        ids = [grid((TEXT, 1, 1), (1, 0, 0)).flatten(0, 2), grid((1, rows, columns), (TEXT + 1, 0, 0)).flatten(0, 2)]
        return by_pairs(model.RopeEmbedder(256.0, [32, 48, 48], [1024, 512, 512])(torch.cat(ids)))
    if name == "ideogram4":
        ids, *_ = Ideogram4Pipeline._prepare_ids([TEXT], rows, columns, TEXT, torch.device("cpu"))
        cos, sin = (each[0, :, None] for each in model.Ideogram4MRoPE(256, 5_000_000, (24, 20, 20))(ids))
        return len(cos), lambda x, at: x * cos[at] + model._rotate_half(x) * sin[at]
    if name == "wan":
        cos, sin = model.WanRotaryPosEmbed(128, (1, 2, 2), 1024)(latents)
        return by_pairs(torch.complex(cos[0, :, 0, 0::2], sin[0, :, 0, 1::2]))
    if name == "hunyuan_video":
        return shared(*model.HunyuanVideoRotaryPosEmbed(2, 1, [16, 56, 56], 256.0)(latents))
    if name == "mochi":
        rope = model.MochiRoPE()
        return by_pairs(torch.complex(*rope(whole(3, 24, 64) / 8, frames, rows, columns, dtype=torch.float32)))
    if name == "ltx2":
        rope, turn = model.LTX2AudioVideoRotaryPosEmbed(4096), model.apply_interleaved_rotary_emb
        cos, sin = rope(rope.prepare_video_coords(1, frames, rows, columns, "cpu"))
        return cos.shape[1], lambda x, at: turn(x.flatten(1)[None], (cos[:, at], sin[:, at]))[0].view(x.shape)
    if name == "cosmos":
        return shared(*model.CosmosRotaryPosEmbed(128)(latents, fps=30), pairs=-2)
    if name == "minimax_h3":
        build = MiniMaxH3PrepareLayoutStep.build_packed_sequence
        ids, *_ = build(torch.ones(TEXT), frames, 2 * rows, 2 * columns, 0, (1, 2, 2), 2, 2, 0)
        cos, sin = model.MiniMaxH3RotaryPosEmbed()(ids)
        return len(cos), lambda x, at: model._apply_rotary_emb(x[None], cos[at], sin[at])[0]
    layout = dict(full_frame_shape=(rows, columns), compressed_frame_shape=(rows // 2, columns // 2))
    layout |= dict(total_frames=frames, num_compressed_frames=frames - 3)
    rope, turn = model.AnyFlowCausalRotaryPosEmbed(128, (1, 2, 2), (1, 4, 4), 1024), model.apply_rotary_emb
    angles = rope(layout, torch.device("cpu"))["query"]
    return angles.shape[2], lambda x, at: turn(x[None].transpose(1, 2), angles[:, :, at]).transpose(1, 2)[0]


def logits(placed, heads=1, dim=128):
    """Returns [5, 5]: the first token is not rotated, the others are spread over the sequence from its second token on."""
    count, turn = placed
    at = np.linspace(1, count - 1, 4).astype(int)
    q, k = (torch.cat([x[:1], turn(x[1:], at)]).double() for x in whole(2, 5, heads, dim))
    return (torch.einsum("thd,shd->ts", q, k) / (heads * dim) ** 0.5).float()


if __name__ == "__main__":
    made = {
        "FLUX.1": logits(turning("flux", 1, 67, 64)),
        "Qwen-Image 2.1": logits(turning("qwenimage21", 1, 67, 64)),
        "Z-Image": logits(turning("z_image", 1, 67, 64)),
        "Ideogram 4": logits(turning("ideogram4", 1, 131, 128), dim=256),
        "Wan 2.1": logits(turning("wan", 21, 33, 52)),
        "HunyuanVideo": logits(turning("hunyuan_video", 33, 48, 80)),
        "CogVideoX": logits(turning("cogvideox", 13, 33, 45), dim=64),
        "Mochi 1": logits(turning("mochi", 4, 33, 53), heads=24),
        "LTX-2": logits(turning("ltx2", 16, 19, 24), heads=32),
        "Cosmos 1": logits(turning("cosmos", 16, 47, 80)),
        "MiniMax-H3": logits(turning("minimax_h3", 37, 27, 42)),
        "AnyFlow": logits(turning("anyflow_far", 21, 33, 52)),
    }
    arrays = {"logits": torch.stack([*made.values()]), "models": np.array(", ".join(made))}
    save("diffusion", arrays, ("torch", "diffusers"))
