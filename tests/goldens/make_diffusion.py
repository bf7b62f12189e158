"""Golden logits of the rotary encodings of twelve diffusion transformers, from diffusers.

    pip install diffusers==0.42.1

Each model's own module makes the angles on a grid 3 rows higher than the default of its pipeline, so that it is neither even
nor of the default's proportions; four tokens of it and one that is not rotated are queries and keys. Positions are those of
its pipeline, the turn is its own function; inside the processors of Wan, Mochi and Z-Image, where none can be called, it is
transcribed as a product of complex numbers. Queries and keys are integers by a formula, so only logits are stored.
`experiments/report/diffusion.py` has the same models in posjax.
"""

import numpy as np
import torch
from diffusers.models.embeddings import apply_rotary_emb, get_3d_rotary_pos_embed
from diffusers.models.transformers import transformer_anyflow_far as anyflow
from diffusers.models.transformers import transformer_cosmos as cosmos
from diffusers.models.transformers import transformer_flux as flux
from diffusers.models.transformers import transformer_hunyuan_video as hunyuan_video
from diffusers.models.transformers import transformer_ideogram4 as ideogram
from diffusers.models.transformers import transformer_ltx2 as ltx2
from diffusers.models.transformers import transformer_minimax_h3 as minimax
from diffusers.models.transformers import transformer_mochi as mochi
from diffusers.models.transformers import transformer_qwenimage21 as qwen
from diffusers.models.transformers import transformer_wan as wan
from diffusers.models.transformers import transformer_z_image as z_image
from diffusers.modular_pipelines.minimax_h3.before_denoise import MiniMaxH3PrepareLayoutStep
from diffusers.pipelines.cogvideo.pipeline_cogvideox import get_resize_crop_region_for_grid
from diffusers.pipelines.flux.pipeline_flux import FluxPipeline
from diffusers.pipelines.ideogram4.pipeline_ideogram4 import Ideogram4Pipeline
from maker import save

TEXT = 3  # tokens of text before the image, where text is rotated


def whole(*shape):
    """Returns numbers in [-1, 1) that float32 holds, by a formula."""
    return torch.from_numpy((np.arange(np.prod(shape)) * 40503 % 65536 / 32768 - 1).reshape(shape)).float()


def latents(frames, rows, columns):
    return torch.zeros(1, 1, frames, rows, columns)


def complex_turn(x, angles):
    """x [T, H, D] by cos + i sin [T, C] or [T, H, C], pairs of neighbouring channels."""
    angles = angles if angles.ndim == 3 else angles[:, None]
    return torch.view_as_real(torch.view_as_complex(x.double().unflatten(-1, (-1, 2))) * angles).flatten(-2)


def real_turn(cos, sin, pairs=-1):
    """The function that most of the models share, of x [T, H, D]."""
    return len(cos), lambda x, at: apply_rotary_emb(
        x[None], (cos[at], sin[at]), use_real_unbind_dim=pairs, sequence_dim=1
    )[0]


def by_flux(frames, rows, columns):
    image = FluxPipeline._prepare_latent_image_ids(1, rows, columns, "cpu", torch.float32)
    return real_turn(*flux.FluxPosEmbed(10_000, [16, 56, 56])(torch.cat([torch.zeros(TEXT, 3), image])))


def by_qwen(frames, rows, columns):
    images = torch.arange(TEXT + rows * columns) >= TEXT
    angles = qwen.QwenImage21Rope(10_000, [16, 56, 56])([(1, rows, columns)], images, torch.device("cpu"))
    return len(angles), lambda x, at: qwen.apply_rotary_emb_qwen(x[None], angles[at], use_real=False)[0]


def by_z_image(frames, rows, columns):
    grid = z_image.ZImageTransformer2DModel.create_coordinate_grid
    ids = [grid((TEXT, 1, 1), (1, 0, 0)).flatten(0, 2), grid((1, rows, columns), (TEXT + 1, 0, 0)).flatten(0, 2)]
    angles = z_image.RopeEmbedder(256.0, [32, 48, 48], [1024, 512, 512])(torch.cat(ids))
    return len(angles), lambda x, at: complex_turn(x, angles[at])


def by_ideogram(frames, rows, columns):
    ids, *_ = Ideogram4Pipeline._prepare_ids([TEXT], rows, columns, TEXT, torch.device("cpu"))
    cos, sin = (each[0, :, None] for each in ideogram.Ideogram4MRoPE(256, 5_000_000, (24, 20, 20))(ids))
    return len(cos), lambda x, at: x * cos[at] + ideogram._rotate_half(x) * sin[at]


def by_wan(frames, rows, columns):
    cos, sin = wan.WanRotaryPosEmbed(128, (1, 2, 2), 1024)(latents(frames, 2 * rows, 2 * columns))
    angles = torch.complex(cos[0, :, 0, 0::2], sin[0, :, 0, 1::2])
    return len(angles), lambda x, at: complex_turn(x, angles[at])


def by_hunyuan_video(frames, rows, columns):
    rope = hunyuan_video.HunyuanVideoRotaryPosEmbed(2, 1, [16, 56, 56], 256.0)
    return real_turn(*rope(latents(frames, 2 * rows, 2 * columns)))


def by_cogvideox(frames, rows, columns):
    crop = get_resize_crop_region_for_grid((rows, columns), 45, 30)
    return real_turn(*get_3d_rotary_pos_embed(64, crop, (rows, columns), frames))


def by_mochi(frames, rows, columns):
    cos, sin = mochi.MochiRoPE()(whole(3, 24, 64) / 8, frames, rows, columns, dtype=torch.float32)
    return len(cos), lambda x, at: complex_turn(x, torch.complex(cos, sin)[at])


def by_ltx2(frames, rows, columns):
    rope = ltx2.LTX2AudioVideoRotaryPosEmbed(4096)
    cos, sin = rope(rope.prepare_video_coords(1, frames, rows, columns, "cpu"))

    def turn(x, at):
        return ltx2.apply_interleaved_rotary_emb(x.flatten(1)[None], (cos[:, at], sin[:, at]))[0].view(x.shape)

    return cos.shape[1], turn


def by_cosmos(frames, rows, columns):
    return real_turn(*cosmos.CosmosRotaryPosEmbed(128)(latents(frames, 2 * rows, 2 * columns), fps=30), pairs=-2)


def by_minimax(frames, rows, columns):
    build = MiniMaxH3PrepareLayoutStep.build_packed_sequence
    ids, *_ = build(torch.ones(TEXT), frames, 2 * rows, 2 * columns, 0, (1, 2, 2), 2, 2, 0)
    cos, sin = minimax.MiniMaxH3RotaryPosEmbed()(ids)
    return len(cos), lambda x, at: minimax._apply_rotary_emb(x[None], cos[at], sin[at])[0]


def by_anyflow(frames, rows, columns):
    layout = dict(total_frames=frames, num_compressed_frames=frames - 3)
    layout |= dict(full_frame_shape=(rows, columns), compressed_frame_shape=(rows // 2, columns // 2))
    angles = anyflow.AnyFlowCausalRotaryPosEmbed(128, (1, 2, 2), (1, 4, 4), 1024)(layout, torch.device("cpu"))
    angles = angles["query"]
    turn = anyflow.apply_rotary_emb
    return angles.shape[2], lambda x, at: turn(x[None].transpose(1, 2), angles[:, :, at]).transpose(1, 2)[0]


# Grids in tokens: the defaults of the pipelines, with 3 rows more. Heads and head dim.
MODELS = {
    "FLUX.1": (by_flux, (1, 67, 64), 1, 128),
    "Qwen-Image 2.1": (by_qwen, (1, 67, 64), 1, 128),
    "Z-Image": (by_z_image, (1, 67, 64), 1, 128),
    "Ideogram 4": (by_ideogram, (1, 131, 128), 1, 256),
    "Wan 2.1": (by_wan, (21, 33, 52), 1, 128),
    "HunyuanVideo": (by_hunyuan_video, (33, 48, 80), 1, 128),
    "CogVideoX": (by_cogvideox, (13, 33, 45), 1, 64),
    "Mochi 1": (by_mochi, (4, 33, 53), 24, 128),
    "LTX-2": (by_ltx2, (16, 19, 24), 32, 128),
    "Cosmos 1": (by_cosmos, (16, 47, 80), 1, 128),
    "MiniMax-H3": (by_minimax, (37, 27, 42), 1, 128),
    "AnyFlow": (by_anyflow, (21, 33, 52), 1, 128),
}


def logits(make, grid, heads, dim):
    """Returns [5, 5]: the first token is not rotated, the others are spread over the sequence from its second token on."""
    count, turn = make(*grid)
    at = np.linspace(1, count - 1, 4).astype(int)
    q, k = (torch.cat([x[:1], turn(x[1:], at)]).double() for x in whole(2, 5, heads, dim))
    return torch.einsum("thd,shd->ts", q, k) / (heads * dim) ** 0.5


if __name__ == "__main__":
    made = torch.stack([logits(*model) for model in MODELS.values()]).float()
    save("diffusion", {"logits": made, "models": np.array(", ".join(MODELS))}, ("torch", "diffusers"))
