"""Golden vectors of masks, from transformers.

Masks come from transformers: Mistral's and the bidirectional sliding window as they are, Longformer's and BigBird's by
what their attention returns for given queries, keys and values.
"""

import numpy as np
import torch
from maker import save
from transformers import BigBirdConfig, LongformerConfig, masking_utils
from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention, BigBirdModel
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

HEADS, DIM = 3, 4
WIDTH = HEADS * DIM
WINDOWS = [1, 2, 5, 16]
LONGFORMER = [(4, 0), (4, 1), (6, 3)]  # attention window, global tokens; its code takes no window of 2
BIGBIRD = [(4, 6), (3, 9)]  # block size, blocks


def masks() -> None:
    out = {}
    for window in WINDOWS:
        for name, function in (
            ("causal", masking_utils.sliding_window_causal_mask_function(window)),
            ("bidirectional", masking_utils.sliding_window_bidirectional_mask_function(window)),
        ):
            out[f"{name}_{window}"] = masking_utils.sdpa_mask(
                1, 13, 13, mask_function=function, allow_is_causal_skip=False, allow_is_bidirectional_skip=False
            )[0, 0]
    settings = dict(windows=WINDOWS, longformer=LONGFORMER, bigbird=BIGBIRD)
    save("masks", settings | out | longformer() | bigbird())


def longformer() -> dict:
    """Local and global attention with one set of projections, so that q, k and v tell everything."""
    out = {}
    for window, num_global in LONGFORMER:
        length = 6 * window
        config = LongformerConfig(hidden_size=WIDTH, num_attention_heads=HEADS, attention_window=[window])
        layer = LongformerSelfAttention(config, 0).eval()
        for name in ("query", "key", "value"):
            torch.nn.init.normal_(getattr(layer, name).weight, std=0.5)
            getattr(layer, f"{name}_global").load_state_dict(getattr(layer, name).state_dict())
        x = torch.randn(1, length, WIDTH)
        is_global = torch.arange(length)[None] < num_global
        read = layer(
            x,
            attention_mask=10_000.0 * is_global,
            is_index_masked=torch.zeros(1, length, dtype=torch.bool),
            is_index_global_attn=is_global,
            is_global_attn=bool(num_global),
        )[0]
        q, k, v = (getattr(layer, name)(x)[0].reshape(length, HEADS, DIM) for name in ("query", "key", "value"))
        out |= {f"longformer_{window}_{num_global}_{name}": y for name, y in zip("qkv", (q, k, v), strict=True)}
        out[f"longformer_{window}_{num_global}_out"] = read[0].reshape(length, HEADS, DIM)
    return out


def bigbird() -> dict:
    """With the last block (global there) hidden as padding, and all that is drawn at random in it."""
    out = {}
    for block, blocks in BIGBIRD:
        length = block * blocks
        config = BigBirdConfig(
            hidden_size=WIDTH, num_attention_heads=HEADS, block_size=block, num_random_blocks=1, use_bias=False
        )
        layer = BigBirdBlockSparseAttention(config, 0).eval()
        for name in ("query", "key", "value"):
            torch.nn.init.normal_(getattr(layer, name).weight, std=0.5)
        drawn = np.full((blocks - 2, 1), blocks - 1)
        layer._bigbird_block_rand_mask_with_head = lambda drawn=drawn, **_: [drawn] * HEADS
        x = torch.randn(1, length, WIDTH)
        padding = (torch.arange(length)[None] < length - block).float()
        sparse = BigBirdModel.create_masks_for_block_sparse_attn(padding, block)
        blocked, band, rows, columns = sparse
        read = layer(
            x, band_mask=band, from_mask=rows, to_mask=columns, from_blocked_mask=blocked, to_blocked_mask=blocked
        )[0]
        q, k, v = (getattr(layer, name)(x)[0].reshape(length, HEADS, DIM) for name in ("query", "key", "value"))
        out |= {f"bigbird_{block}_{blocks}_{name}": y for name, y in zip("qkv", (q, k, v), strict=True)}
        out[f"bigbird_{block}_{blocks}_out"] = read[0].reshape(length, HEADS, DIM)
    config = BigBirdConfig(hidden_size=WIDTH, num_attention_heads=HEADS, block_size=4, num_random_blocks=2)
    draws = BigBirdBlockSparseAttention(config, 0).eval()._bigbird_block_rand_mask(64, 64, 4, 4, 2)
    return out | {"bigbird_eval_draws": draws}


if __name__ == "__main__":
    torch.manual_seed(0)
    masks()
