"""Tiny encoders of transformers at odd settings, by name: class of the model, that of its configuration, and arguments.

Tables of positions have room for 21 tokens; what needs none is trained to 12 and computed for 9 and for 21.
"""

SHORT, LONG, TRAINED, VOCABULARY = 9, 21, 12, 29

_BERT = dict(
    vocab_size=VOCABULARY,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=40,
    max_position_embeddings=LONG + 3,
)
_DEBERTA = dict(
    _BERT,
    relative_attention=True,
    share_att_key=True,
    norm_rel_ebd="layer_norm",
    position_biased_input=False,
    pos_att_type="p2c|c2p",
    position_buckets=4,
    max_position_embeddings=TRAINED,
)
_MODERN = dict(_BERT, num_hidden_layers=4, max_position_embeddings=TRAINED, local_attention=6, pad_token_id=0)
_T5 = dict(vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=40, num_layers=2, num_heads=4)

SETTINGS: dict[str, tuple[str, str, dict]] = {
    "bert": ("BertForMaskedLM", "BertConfig", dict(_BERT, layer_norm_eps=1e-3)),
    "bert of pairs": (
        "BertForPreTraining",
        "BertConfig",
        dict(_BERT, type_vocab_size=3, hidden_act="gelu_new", num_attention_heads=2),
    ),
    "bert without head": ("BertModel", "BertConfig", dict(_BERT, hidden_act="relu")),
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", dict(_BERT, type_vocab_size=1, layer_norm_eps=1e-5)),
    "deberta v3": ("DebertaV2ForMaskedLM", "DebertaV2Config", _DEBERTA),
    "deberta with a table": (
        "DebertaV2ForMaskedLM",
        "DebertaV2Config",
        dict(
            _DEBERTA,
            position_biased_input=True,
            pos_att_type=["c2p"],
            position_buckets=8,
            max_relative_positions=20,
            type_vocab_size=2,
            max_position_embeddings=LONG + 3,
            legacy=False,
            layer_norm_eps=1e-4,
        ),
    ),
    "modernbert": ("ModernBertForMaskedLM", "ModernBertConfig", _MODERN),
    "modernbert biased": (
        "ModernBertForMaskedLM",
        "ModernBertConfig",
        dict(
            _MODERN,
            norm_bias=True,
            attention_bias=True,
            mlp_bias=True,
            classifier_bias=True,
            decoder_bias=False,
            hidden_activation="silu",
            classifier_activation="relu",
            norm_eps=1e-3,
            layer_types=["sliding_attention", "full_attention", "full_attention", "sliding_attention"],
            rope_parameters=dict(
                full_attention=dict(rope_type="linear", factor=2.0, rope_theta=900.0),
                sliding_attention=dict(rope_type="default", rope_theta=70.0),
            ),
        ),
    ),
    "t5": ("T5ForConditionalGeneration", "T5Config", _T5),
    "t5 gated": (
        "T5ForConditionalGeneration",
        "T5Config",
        dict(
            _T5,
            d_kv=6,
            num_decoder_layers=3,
            feed_forward_proj="gated-gelu",
            tie_word_embeddings=False,
            relative_attention_num_buckets=8,
            relative_attention_max_distance=10,
            layer_norm_epsilon=1e-3,
        ),
    ),
}
UNTIED = {"t5 gated": "lm_head.weight"}  # tensors that transformers does not save where it has tied them, but reads
