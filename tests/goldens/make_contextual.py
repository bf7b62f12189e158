"""Golden vectors of content-dependent encodings: whole attentions of transformers.

Run as tests/goldens/maker.py says, with this file's name; the result is contextual.npz.
"""

import torch
from maker import noise, save
from transformers import DebertaV2Config, Wav2Vec2BertConfig, XLNetConfig, XLNetModel
from transformers.models.deberta_v2.modeling_deberta_v2 import DisentangledSelfAttention, make_log_bucket_position
from transformers.models.wav2vec2_bert.modeling_wav2vec2_bert import (
    Wav2Vec2BertRelPositionalEmbedding,
    Wav2Vec2BertSelfAttention,
)

BUCKETS = [(8, 20), (16, 128), (32, 64), (256, 512), (128, 512), (64, 300), (6, 9), (4, 100)]
DEBERTA = [  # buckets, max distance, types, tokens
    (8, 20, ["p2c", "c2p"], 33),
    (-1, 6, ["c2p", "p2c"], 15),
    (16, 40, ["c2p"], 45),
    (4, 5, ["p2c"], 9),
]
XLNET = [(9, 9, -1), (7, 16, -1), (11, 11, 4), (1, 8, 3)]  # queries, keys (memories first), clamp_len


def heads(x, num_heads):
    return x.reshape(x.shape[0], num_heads, -1)


def deberta(number, buckets, far, types, tokens):
    num_heads, width = 3, 24
    config = DebertaV2Config(
        hidden_size=width,
        num_attention_heads=num_heads,
        relative_attention=True,
        position_buckets=buckets,
        max_relative_positions=far,
        pos_att_type=types,
    )
    attention = DisentangledSelfAttention(config).eval()
    for weight in attention.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    x, table = noise(1, tokens, width), noise(2 * attention.pos_ebd_size, width)
    out = {"out": attention(x, torch.ones(1, 1, tokens, tokens), rel_embeddings=table)[0][0]}
    projections = {"q": "query_proj", "k": "key_proj", "v": "value_proj"}
    out |= {what: getattr(attention, name)(x[0]) for what, name in projections.items()}
    for what, name in {"pos_key": "pos_key_proj", "pos_query": "pos_query_proj"}.items():
        if hasattr(attention, name):
            out[what] = getattr(attention, name)(table)
    return {f"deberta_{number}_{what}": heads(value, num_heads) for what, value in out.items()}


def deberta_buckets():
    offset = torch.arange(-1100, 1101)
    return {f"buckets_{b}_{far}": make_log_bucket_position(offset, b, far).to(torch.int16) for b, far in BUCKETS}


def xlnet(number, queries, keys, clamp_len):
    num_heads, width = 3, 18
    config = XLNetConfig(d_model=width, n_head=num_heads, n_layer=1, d_inner=4, vocab_size=3, clamp_len=clamp_len)
    model = XLNetModel(config).eval()
    attention = model.layer[0].rel_attn
    for weight in attention.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    q, k, v = (noise(n, 1, num_heads, width // num_heads) for n in (queries, keys, keys))
    r = torch.einsum("ibh,hnd->ibnd", model.relative_positional_encoding(queries, keys, bsz=1), attention.r)
    out = {"q": q, "k": k, "v": v, "out": attention.rel_attn_core(q, k, v, r)}
    out = {what: value[:, 0] for what, value in out.items()}
    out |= {"u": attention.r_w_bias, "v_bias": attention.r_r_bias, "position": attention.r}
    return {f"xlnet_{number}_{what}": value for what, value in out.items()}


def wav2vec2_bert(kind, tokens):
    """relative_key is Shaw's without values; relative is Transformer-XL's with sines and cosines in turns."""
    num_heads, width = 3, 18
    config = Wav2Vec2BertConfig(
        hidden_size=width,
        num_attention_heads=num_heads,
        position_embeddings_type=kind,
        left_max_position_embeddings=4,
        right_max_position_embeddings=4,
        attn_implementation="eager",
    )
    attention = Wav2Vec2BertSelfAttention(config).eval()
    for weight in attention.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    attention.linear_out = torch.nn.Identity()
    x = noise(1, tokens, width)
    positions = Wav2Vec2BertRelPositionalEmbedding(config)(x) if kind == "relative" else None
    out = {"out": attention(x, relative_position_embeddings=positions)[0][0]}
    out |= {what: getattr(attention, f"linear_{what}")(x[0]) for what in "qkv"}
    out = {what: heads(value, num_heads) for what, value in out.items()}
    if kind == "relative":
        weight = attention.linear_pos.weight.T.reshape(width, num_heads, -1)
        sines_first = torch.cat([weight[0::2], weight[1::2]])
        out |= {"u": attention.pos_bias_u, "v_bias": attention.pos_bias_v, "position": sines_first}
    else:
        out["key"] = attention.distance_embedding.weight
    return {f"wav2vec2_{kind}_{what}": value for what, value in out.items()}


if __name__ == "__main__":
    torch.manual_seed(0)
    arrays = deberta_buckets()
    for number, setting in enumerate(DEBERTA):
        arrays |= deberta(number, *setting)
    for number, setting in enumerate(XLNET):
        arrays |= xlnet(number, *setting)
    arrays |= wav2vec2_bert("relative", 11) | wav2vec2_bert("relative_key", 14)
    save("contextual", arrays)
