"""Encoders in transformers' folders: its features and logits in padded batches; unknown keys and tensors are refused."""

import functools
import json

import jax
import numpy as np
import pytest
from goldens.encoder_cases import CASES, FILE, batch_of, tokens_of, types_of, weights_of, written
from goldens.encoder_settings import LONG
from goldens.language_cases import error

import posjax as pj
from posjax import pretrained
from posjax.models import Encoder, EncoderDecoder
from posjax.pretrained.language import FAMILIES

BOUND = 1e-4  # of the largest value


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    return functools.cache(
        lambda case: pretrained.load(written(case, tmp_path_factory.mktemp("models") / case.replace(" ", "_")))
    )


@pytest.mark.parametrize("case", [pytest.param(c, marks=[] if c == "t5" else pytest.mark.slow) for c in CASES])
def test_outputs_are_theirs(case, loaded):
    """In a batch with padding before and behind; beyond the trained length where there is no table. T5 reads the line and
    writes it turned round."""
    model, params = loaded(case)
    (tokens, site), rows = batch_of((3, LONG, 0), (0, LONG, 3)), (slice(3, None), slice(-3))

    @jax.jit
    def run(params, types):
        if isinstance(model, EncoderDecoder):
            behind = np.stack([tokens_of()[::-1]] * 2)
            place = jax.tree.map(lambda leaf: np.stack([leaf] * 2), pj.sites(LONG))
            memory = model.apply(params, tokens, site, method="encode")
            return memory[0], model.apply(params, tokens, site, behind, place)
        features = model.apply(params, tokens, site, types, method="features")
        return features, None if model.head is None else model.apply(params, features, method="logits")

    num_types = getattr(model, "num_types", 0)
    types = np.stack([np.pad(types_of(LONG, num_types), pad) for pad in ((3, 0), (0, 3))]) if num_types else None
    features, logits = run(params, types)
    assert max(error(one[row], FILE[f"{case} long features"]) for one, row in zip(features, rows, strict=True)) < BOUND
    if logits is not None:
        rows = rows if isinstance(model, Encoder) else (slice(None),) * 2
        assert max(error(one[row], FILE[f"{case} long logits"]) for one, row in zip(logits, rows, strict=True)) < BOUND


@pytest.mark.slow
@pytest.mark.parametrize(("case", "name"), [("bert of pairs", "pairs"), ("bert without head", "pooled")])
def test_what_the_first_token_says(case, name, loaded):
    model, params = loaded(case)
    given = (tokens_of()[None], pj.sites(LONG), types_of(LONG, model.num_types)[None])
    method = {"pairs": "pair_logits", "pooled": "pooled"}[name]
    assert error(model.apply(params, *given, method=method)[0], FILE[f"{case} long {name}"]) < BOUND
    if model.head is None:
        np.testing.assert_array_equal(model.apply(params, *given), model.apply(params, *given, method="features"))


# config.json of published models, as they are, but for labels.
PUBLISHED = {
    "bert-base-uncased": """{"architectures": ["BertForMaskedLM"], "attention_probs_dropout_prob": 0.1,
        "gradient_checkpointing": false, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 768,
        "initializer_range": 0.02, "intermediate_size": 3072, "layer_norm_eps": 1e-12, "max_position_embeddings": 512,
        "model_type": "bert", "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 0,
        "position_embedding_type": "absolute", "transformers_version": "4.6.0.dev0", "type_vocab_size": 2,
        "use_cache": true, "vocab_size": 30522}""",
    "roberta-base": """{"architectures": ["RobertaForMaskedLM"], "attention_probs_dropout_prob": 0.1,
        "bos_token_id": 0, "eos_token_id": 2, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 768,
        "initializer_range": 0.02, "intermediate_size": 3072, "layer_norm_eps": 1e-05, "max_position_embeddings": 514,
        "model_type": "roberta", "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 1,
        "type_vocab_size": 1, "vocab_size": 50265}""",
    "deberta-v3-base": """{"model_type": "deberta-v2", "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1, "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072,
        "max_position_embeddings": 512, "relative_attention": true, "position_buckets": 256,
        "norm_rel_ebd": "layer_norm", "share_att_key": true, "pos_att_type": "p2c|c2p", "layer_norm_eps": 1e-7,
        "max_relative_positions": -1, "position_biased_input": false, "num_attention_heads": 12,
        "num_hidden_layers": 12, "type_vocab_size": 0, "vocab_size": 128100}""",
    "ModernBERT-base": """{"architectures": ["ModernBertForMaskedLM"], "attention_bias": false,
        "attention_dropout": 0.0, "bos_token_id": 50281, "classifier_activation": "gelu", "classifier_bias": false,
        "classifier_dropout": 0.0, "classifier_pooling": "mean", "cls_token_id": 50281, "decoder_bias": true,
        "deterministic_flash_attn": false, "embedding_dropout": 0.0, "eos_token_id": 50282,
        "global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "gradient_checkpointing": false,
        "hidden_activation": "gelu", "hidden_size": 768, "initializer_cutoff_factor": 2.0, "initializer_range": 0.02,
        "intermediate_size": 1152, "layer_norm_eps": 1e-05, "local_attention": 128, "local_rope_theta": 10000.0,
        "max_position_embeddings": 8192, "mlp_bias": false, "mlp_dropout": 0.0, "model_type": "modernbert",
        "norm_bias": false, "norm_eps": 1e-05, "num_attention_heads": 12, "num_hidden_layers": 22,
        "pad_token_id": 50283, "position_embedding_type": "absolute", "sep_token_id": 50282,
        "tie_word_embeddings": true, "torch_dtype": "float32", "transformers_version": "4.47.0.dev0",
        "vocab_size": 50368}""",
    "t5-small": """{"architectures": ["T5ForConditionalGeneration"], "d_ff": 2048, "d_kv": 64, "d_model": 512,
        "decoder_start_token_id": 0, "dropout_rate": 0.1, "eos_token_id": 1, "initializer_factor": 1.0,
        "is_encoder_decoder": true, "layer_norm_epsilon": 1e-06, "model_type": "t5", "n_positions": 512,
        "num_heads": 8, "num_layers": 6, "output_past": true, "pad_token_id": 0,
        "relative_attention_num_buckets": 32, "task_specific_params": {}, "vocab_size": 32128}""",
    "flan-t5-base": """{"architectures": ["T5ForConditionalGeneration"], "d_ff": 2048, "d_kv": 64, "d_model": 768,
        "decoder_start_token_id": 0, "dropout_rate": 0.1, "eos_token_id": 1, "feed_forward_proj": "gated-gelu",
        "initializer_factor": 1.0, "is_encoder_decoder": true, "layer_norm_epsilon": 1e-06, "model_type": "t5",
        "n_positions": 512, "num_decoder_layers": 12, "num_heads": 12, "num_layers": 12, "output_past": true,
        "pad_token_id": 0, "relative_attention_max_distance": 128, "relative_attention_num_buckets": 32,
        "tie_word_embeddings": false, "transformers_version": "4.23.1", "use_cache": true, "vocab_size": 32128}""",
}
ENCODINGS = {
    "bert-base-uncased": "learned()",
    "roberta-base": "learned()",
    "deberta-v3-base": "deberta(shared=True)",
    "ModernBERT-base": "rope(base=160000), rope() + window(size=65), rope() + window(size=65)",
    "t5-small": "t5()",
    "flan-t5-base": "t5()",
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations_are_read_whole(name):
    config = json.loads(PUBLISHED[name])
    model = FAMILIES[config["model_type"]].made(config)
    assert model.encoding == ENCODINGS[name]
    assert model.block.width == config.get("hidden_size", config.get("d_model"))
    if isinstance(model, EncoderDecoder):
        assert model.decoder_encoding == "t5(bidirectional=False)"
        assert model.head_scale == (1.0 if name.startswith("flan") else 512**-0.5)
    elif name == "roberta-base":
        assert (model.length, model.block.norm_epsilon) == (512, 1e-5)


REFUSED = {
    "relative BERT": ("bert", dict(position_embedding_type="relative_key"), "'relative_key' is not computed here"),
    "matrices of its own": ("deberta v3", dict(share_att_key=False), "share_att_key=False is not computed here"),
    "two activations": ("t5", dict(dense_act_fn="gelu"), "dense_act_fn='gelu' contradicts feed_forward_proj='relu'"),
    "another depth": ("t5", dict(num_decoder_layers=1), "no place for: decoder.block.1"),
}


@pytest.mark.parametrize(("case", "config", "message"), REFUSED.values(), ids=REFUSED)
def test_what_a_configuration_says_is_computed_or_refused(case, config, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        pretrained.load(written(case, tmp_path, **config))


def test_tensors_are_all_known(tmp_path):
    """Missing and left-over tensors are named; copies must be equal; old spellings are read."""
    tensors = weights_of("bert")
    table, bias = tensors["bert.embeddings.word_embeddings.weight"], tensors["cls.predictions.bias"]
    spelt = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): tensor for name, tensor in tensors.items()}
    spelt = {name.replace("LayerNorm.bias", "LayerNorm.beta"): tensor for name, tensor in spelt.items()}
    spelt |= {"cls.predictions.decoder.weight": table, "cls.predictions.decoder.bias": bias}
    spelt |= {"bert.embeddings.position_ids": np.arange(24)[None]}
    spelt |= {
        "bert.pooler.dense.weight": np.eye(32, dtype=np.float32),
        "bert.pooler.dense.bias": np.ones(32, np.float32),
    }
    model, params = pretrained.load(written("bert", tmp_path, spelt))
    assert model.pooler
    np.testing.assert_array_equal(params["params"]["decoder_bias"], bias)
    other = spelt | {"cls.predictions.decoder.bias": bias + 1}
    with pytest.raises(ValueError, match=r"cls.predictions.decoder.bias and cls.predictions.bias are one tensor"):
        pretrained.load(written("bert", tmp_path, other))
    with pytest.raises(ValueError, match=r"1 tensors .* no place for: classifier.weight"):
        pretrained.load(written("bert", tmp_path, tensors | {"classifier.weight": np.zeros((2, 32), np.float32)}))
    del tensors["bert.encoder.layer.1.output.dense.weight"]
    with pytest.raises(ValueError, match=r"lacks bert.encoder.layer.1.output.dense.weight"):
        pretrained.load(written("bert", tmp_path, tensors))
