"""DeepSeek-V3 without layers of experts: multi-head latent attention in a Llama."""

import math
from typing import Any

from posjax.checks import check
from posjax.hf.kinds import ROPE_KINDS
from posjax.models.decoder import Decoder
from posjax.models.latent import Latent
from posjax.pretrained.entries import Entry, norm, torch_linear
from posjax.pretrained.language.family import Config, Family
from posjax.pretrained.language.llama import gated_mlp, layer_norms, outside_layers
from posjax.pretrained.language.parts import BLOCK, LLAMA_CONSTANTS, LLAMA_KEYS, ROTARY_KEYS

_SIZES = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
# Keys of layers of experts and of the layers that predict further tokens, which transformers does not run.
_SILENT = """
attention_dropout aux_loss_alpha ep_size moe_intermediate_size moe_layer_freq n_group n_routed_experts n_shared_experts
norm_topk_prob num_experts_per_tok num_nextn_predict_layers qk_head_dim routed_scaling_factor scoring_func seq_aux
topk_group topk_method
"""


def _entries(model: Decoder) -> list[Entry]:
    theirs, ours, bias = "model.layers.{l}.self_attn.", f"{BLOCK}attention/", bool(model.block.attention_bias)
    up = "query" if model.block.latent.q_lora_rank is None else "query_up"
    entries = [
        *torch_linear(f"{theirs}kv_a_proj_with_mqa", f"{ours}kv_down", bias=bias),
        *norm(f"{theirs}kv_a_layernorm", f"{ours}kv_norm", bias=False),
        Entry(f"{theirs}kv_b_proj.weight", (f"{ours}key_up_kernel", f"{ours}value_up_kernel"), "(h s c) r -> r h c"),
        Entry(f"{theirs}{'q_proj' if up == 'query' else 'q_b_proj'}.weight", f"{ours}{up}/kernel", "(h d) m -> m h d"),
        Entry(f"{theirs}o_proj.weight", f"{ours}out/kernel", "m (h c) -> h c m"),
        *([Entry(f"{theirs}o_proj.bias", f"{ours}out/bias", "m -> m")] if bias else []),
    ]
    if up == "query_up":
        entries += torch_linear(f"{theirs}q_a_proj", f"{ours}query_down", bias=bias)
        entries += norm(f"{theirs}q_a_layernorm", f"{ours}query_norm", bias=False)
    return [*outside_layers(model), *layer_norms(model), *entries, *gated_mlp(model)]


def _latent(config: Config) -> dict[str, Any]:
    """Returns the fields of latent attention."""
    if missing := [name for name in _SIZES if config.get(name) is None]:
        raise ValueError(f"the configuration lacks {missing[0]}")
    dense, depth = config.get("first_k_dense_replace", 3) or 0, config["num_hidden_layers"]
    if dense < depth:
        raise ValueError(f"first_k_dense_replace={dense} must be num_hidden_layers={depth}: others have experts")
    latent = Latent(**{name: config[name] for name in _SIZES}, q_lora_rank=config.get("q_lora_rank", 1536))
    if latent.qk_nope_head_dim != latent.v_head_dim:
        raise ValueError(f"{_SIZES[1]}={latent.qk_nope_head_dim} must equal v_head_dim={latent.v_head_dim} here")
    for name, only in (("num_key_value_heads", config["num_attention_heads"]), ("head_dim", latent.qk_rope_head_dim)):
        if config.get(name, only) not in (None, only):
            raise ValueError(f"{name}={config[name]} is not computed here, only {only}")
    biased = ("key", "out", "value") + (() if latent.q_lora_rank is None else ("query",))
    return {
        "latent": latent,
        "attention_bias": tuple(sorted(biased)) if config.get("attention_bias", False) else (),
        "logit_scale": latent.head_dim**-0.5 * _growth(config) ** 2,
    }


def _growth(config: Config) -> float:
    """Returns the factor of queries and of keys, 0.1 mscale_all_dim ln s + 1 under a scaling of factor s."""
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    check("rope_parameters", parameters, ROPE_KINDS)
    factor, share = parameters.get("factor") or 1, parameters.get("mscale_all_dim") or 0
    return 0.1 * share * math.log(factor) + 1 if factor > 1 else 1.0


FAMILIES = [
    Family(
        "deepseek_v3",
        keys={name: key for name, key in LLAMA_KEYS.items() if name not in ("num_key_value_heads", "rms_norm_eps")},
        lines=_entries,
        encoding_keys=ROTARY_KEYS | {"rope_interleave"},
        constants=LLAMA_CONSTANTS | dict(mlp_bias=False),
        derived=_latent,
        derived_keys=frozenset(
            ["attention_bias", "first_k_dense_replace", "head_dim", "num_key_value_heads", "q_lora_rank", *_SIZES]
        ),
        # Norms of latents have 1e-6 in transformers whatever the key says.
        plain={"rms_norm_eps": (1e-6,)},
        silent=frozenset(_SILENT.split()),
    )
]
