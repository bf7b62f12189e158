"""Golden vectors of Inkling's relative bias and Inkling 2's sinks: whole attentions of transformers.

Run as tests/goldens/maker.py says, with this file's name; the result is inkling.npz. q, k and v are what
the attentions' own projections, convolutions and norms make of noise, before any temperature; `out` is what their heads
read, before the output projection.
"""

import torch
from maker import noise, save
from transformers import Inkling2TextConfig, InklingTextConfig
from transformers.models.inkling.modeling_inkling import InklingAttention
from transformers.models.inkling2.modeling_inkling2 import Inkling2FullAttention, Inkling2SlidingAttention

LENGTH, HEADS, KEY_HEADS, HEAD_DIM, WINDOW = 13, 4, 2, 8, 4
WIDTH = HEADS * HEAD_DIM
RANK = 5
SIZES = dict(
    hidden_size=WIDTH,
    num_hidden_layers=2,
    layer_types=["hybrid", "hybrid_sliding"],
    num_attention_heads=HEADS,
    swa_num_attention_heads=HEADS,
    num_key_value_heads=KEY_HEADS,
    swa_num_key_value_heads=KEY_HEADS,
    head_dim=HEAD_DIM,
    swa_head_dim=HEAD_DIM,
    sliding_window_size=WINDOW,
    d_rel=RANK,
    rel_extent=6,
    log_scaling_n_floor=3,
    log_scaling_alpha=0.5,
    attn_implementation="eager",
)


def randomized(module):
    """Runs in evaluation mode, with weights exact in half precision."""
    for name, weight in module.named_parameters():
        weight.data = (2.0 if name.endswith("scale") else 0.25) * noise(*weight.shape)
    return module.eval()


def small(x):
    """The array in half precision, if that holds it."""
    x = x.detach()
    return (x.half() if torch.equal(x.half().float(), x) else x).numpy()


def masked(window):
    """0 where a query sees a key, the least number elsewhere."""
    hidden = (distance() < 0) | (distance() >= window)
    return torch.zeros(1, 1, LENGTH, LENGTH).masked_fill(hidden, torch.finfo(torch.float32).min)


def distance():
    return torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)


def run(attention, modules, *arguments, **named):
    """The outputs of the named modules and the input of the output projection, as tokens of heads."""
    kept = {}
    for name, module in modules.items():
        module.register_forward_hook(lambda module, inputs, out, name=name: kept.update({name: out}))
    attention.o_proj.register_forward_pre_hook(lambda module, inputs: kept.update(out=inputs[0]))
    attention(*arguments, **named)
    return {name: tokens(x[0]) for name, x in kept.items()}


def tokens(x):
    """[T, H, D] of the heads-first, token-first or flat arrays that the modules return."""
    return x.transpose(0, 1) if x.ndim == 3 and x.shape[1] == LENGTH else x.reshape(LENGTH, -1, HEAD_DIM)


def project(linear):
    """[1, M, H, rank] of the projection to relative states."""
    return linear.weight.T.reshape(1, WIDTH, HEADS, -1)


def inkling(layer, window):
    attention = randomized(InklingAttention(InklingTextConfig(**SIZES), layer))
    modules = dict(q=attention.q_norm, k=attention.k_norm, v=attention.v_sconv)
    x = noise(1, LENGTH, WIDTH)
    found = run(attention, modules, x, masked(window))
    found |= {"x": x[0], "project": project(attention.r_proj), "profiles": attention.rel_logits_proj.proj[None]}
    return {f"first_{layer}_{name}": value for name, value in found.items()}


def inkling2(layer, window):
    cls = Inkling2SlidingAttention if layer else Inkling2FullAttention
    attention = randomized(cls(Inkling2TextConfig(**SIZES), layer))
    query = attention.q_proj.norm if layer else attention.q_proj.norm.l2_clip
    modules = dict(q=query, k=attention.k_proj, v=attention.v_proj)
    x, relative = noise(1, LENGTH, WIDTH), attention.relative_position_bias
    named = dict(relative_distance=distance(), position_ids=torch.arange(LENGTH)[None], attention_mask=masked(window))
    found = run(attention, modules, x, **named, key_hidden_states=x, value_hidden_states=x)
    found |= {"x": x[0], "project": project(relative.linear), "profiles": relative.proj[None]}
    found |= {"scale": relative.norm.scale[None], "sink": attention.sink_proj.weight.T}
    return {f"second_{layer}_{name}": value for name, value in found.items()}


if __name__ == "__main__":
    torch.manual_seed(0)
    arrays = {}
    for number, window in enumerate((LENGTH, WINDOW)):
        arrays |= inkling(number, window) | inkling2(number, window)
    save("inkling", {name: small(x) for name, x in arrays.items()}, packages=["torch", "transformers"])
