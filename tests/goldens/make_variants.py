"""Golden vectors of arguments that few models set: slopes, clips of either side, odd widths.

Run as tests/goldens/maker.py says, with this file's name and x-transformers 2.31.10; the result is variants.npz.
"""

import torch
from maker import save
from transformers import Wav2Vec2BertConfig
from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
from transformers.models.wav2vec2_bert.modeling_wav2vec2_bert import Wav2Vec2BertSelfAttention
from x_transformers.x_transformers import AlibiPositionalBias

LENGTH, HEADS, DIM = 14, 3, 4
LEFT, RIGHT = 5, 2


def shaw():
    width = HEADS * DIM
    sizes = dict(left_max_position_embeddings=LEFT, right_max_position_embeddings=RIGHT)
    config = Wav2Vec2BertConfig(
        hidden_size=width, num_attention_heads=HEADS, position_embeddings_type="relative_key", **sizes
    )
    layer, x = Wav2Vec2BertSelfAttention(config).eval(), torch.randn(1, LENGTH, width)
    torch.nn.init.eye_(layer.linear_out.weight)
    torch.nn.init.zeros_(layer.linear_out.bias)
    q, k, v = (part(x).reshape(LENGTH, HEADS, DIM) for part in (layer.linear_q, layer.linear_k, layer.linear_v))
    out = layer(x)[0].reshape(LENGTH, HEADS, DIM)
    return dict(shaw_q=q, shaw_k=k, shaw_v=v, shaw_key=layer.distance_embedding.weight, shaw_out=out)


if __name__ == "__main__":
    torch.manual_seed(0)
    arrays = {f"mpt_{heads}": build_mpt_alibi_tensor(heads, 9, alibi_bias_max=4)[:, 0] for heads in (4, 6)}
    arrays["unbiased"] = AlibiPositionalBias(heads=2, total_heads=5)(9, 9)
    arrays["odd"] = M2M100SinusoidalPositionalEmbedding.get_embedding(9, 7)
    save("variants", arrays | shaw(), ("torch", "transformers", "x-transformers"))
