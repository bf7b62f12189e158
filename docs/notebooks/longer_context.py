# %% [markdown]
# # Extend a pretrained model's context
#
# A decoder that was trained on short windows loses its way beyond them, because its rotary encoding turns to angles that it
# has never seen. Scaling the frequencies, or clipping the distances, brings far tokens back to angles that it knows,
# without training. This notebook loads a model from a folder of transformers, reads it under several such encodings and
# shows perplexity by length.
#
# No published weights are needed: the folder is made here, by a small Llama that learns bytes for some seconds. With a
# folder of your own, set `FOLDER` to it, leave out the training, and take texts that its tokenizer has read.

# %%
import functools
import itertools
import json
import pathlib
import pydoc_data.topics
import tempfile

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import posjax as pj
from posjax import pretrained
from posjax.models import BlockConfig, Decoder
from posjax.models.replacing import with_encoding

FOLDER = tempfile.mkdtemp()
TRAINED, LONG, STEPS, BATCH = 64, 512, 300, 16
text = np.frombuffer("\n".join(pydoc_data.topics.topics.values()).encode(), np.uint8).astype(np.int32)
train, held_out = text[: -len(text) // 10], text[-len(text) // 10 :]


def losses_of(model, params, windows):
    """Nats of every byte but the first of each window, [B, T - 1]."""
    logits = model.apply(params, windows[:, :-1], pj.sites(windows.shape[1] - 1))
    return optax.softmax_cross_entropy_with_integer_labels(logits, windows[:, 1:])


# %% [markdown]
# ## A small Llama
#
# RMS norms, a gated MLP, grouped queries, RoPE: the fields of `Decoder` that a Llama has. It is trained on windows of 64
# bytes of Python's own documentation.


# %%
def windows_of(length, steps, batch, seed):
    """[steps, batch, length + 1] bytes."""
    starts = np.random.default_rng(seed).integers(0, len(train) - length - 1, (steps, batch))
    return jnp.asarray(train[starts[..., None] + np.arange(length + 1)])


@functools.partial(jax.jit, static_argnums=(0, 3))
def fit(model, params, batches, rate):
    """The parameters after a step of Adam on each batch, and the losses."""
    optimizer = optax.adam(optax.cosine_decay_schedule(rate, len(batches)))

    def step(carry, windows):
        params, state = carry
        loss, grads = jax.value_and_grad(lambda params: losses_of(model, params, windows).mean())(params)
        updates, state = optimizer.update(grads, state)
        return (optax.apply_updates(params, updates), state), loss

    (params, _), losses = jax.lax.scan(step, (params, optimizer.init(params)), batches)
    return params, losses


own = Decoder(
    vocab_size=256,
    encoding="rope",
    length=TRAINED,
    block=BlockConfig(width=64, num_heads=4, num_kv_heads=2, norm="rms", mlp="swiglu", mlp_dim=128, attention_bias=()),
    depth=2,
    embedding_scale=1.0,
)
params = jax.jit(own.init)(jax.random.key(0), *own.example())
params, losses = fit(own, params, windows_of(TRAINED, STEPS, BATCH, seed=0), 1e-2)
pretrained.save(FOLDER, own, params)
print(f"loss {losses[0]:.2f} -> {losses[-10:].mean():.2f} nats a byte")

# %% [markdown]
# ## Load it
#
# `pretrained.load` reads `config.json` and the safetensors of a folder as transformers writes it, without torch. The model
# says which encoding it was trained with.

# %%
model, params = pretrained.load(FOLDER)
count = sum(leaf.size for leaf in jax.tree.leaves(params))
print(
    f"{type(model).__name__} with {model.encoding}, {count:,} parameters in {jnp.dtype(model.block.param_dtype).name}"
)

# %% [markdown]
# ## Read it beyond its length
#
# Another encoding is another text: `with_encoding` keeps the weights. Frequencies are scaled for 8 times the trained length
# by position interpolation (`linear`), by a larger base (`ntk`) or channel by channel (`yarn`); ReRoPE keeps near distances
# as they are and sees all farther distances alike; a window hides far tokens.

# %%
FACTOR = LONG // TRAINED
SPECS = {
    "rope": "rope",
    "linear": f"rope(scaling=linear(factor={FACTOR}))",
    "ntk": f"rope(scaling=ntk(factor={FACTOR}))",
    "yarn": f"rope(scaling=yarn(factor={FACTOR}, original_length={TRAINED}))",
    "rerope": f"rerope(window={TRAINED // 2}) >> rope",
    "window": f"rope + window({TRAINED})",
}
COLORS = dict(zip(SPECS, ["#7a7a7a", "#332288", "#4a9fd0", "#117733", "#cc6677", "#b8922a"], strict=True))
tests = jnp.asarray(held_out[: 24 * (LONG + 1)].reshape(24, LONG + 1))
EDGES = [0, TRAINED // 2, *(TRAINED * 2**n for n in range(LONG.bit_length() - TRAINED.bit_length() + 1))]


def under(spec):
    """The model and its weights under another encoding."""
    return with_encoding(model, params, spec, init=lambda changed: changed.init(jax.random.key(0), *changed.example()))


def by_context(model, params):
    """Perplexity of the bytes that have between EDGES[i] and EDGES[i + 1] bytes before them, and the losses [T]."""
    losses = np.asarray(jax.jit(functools.partial(losses_of, model))(params, tests)).mean(axis=0)
    return [float(np.exp(losses[a:b].mean())) for a, b in itertools.pairwise(EDGES)], losses


read = {name: by_context(*under(spec)) for name, spec in SPECS.items()}


def table(read):
    """Perplexities by context."""
    print(f"{'bytes before':16}" + "".join(f"{f'{a}-{b}':>10}" for a, b in itertools.pairwise(EDGES)))
    for name, (perplexities, _) in read.items():
        print(f"{name:16}" + "".join(f"{each:10.2f}" for each in perplexities))


table(read)

# %%
figure, panel = plt.subplots(figsize=(7, 3.6), layout="constrained")


def draw(panel, name, losses, color, **style):
    """Perplexity by context, smoothed over 32 bytes."""
    smooth = np.exp(np.convolve(losses, np.ones(32) / 32, mode="valid"))
    panel.plot(np.arange(len(smooth)) + 16, smooth, color=color, linewidth=1.3, label=name, **style)


for name, (_, losses) in read.items():
    draw(panel, name, losses, COLORS[name])
panel.axvline(TRAINED, color="#7a7a7a", linestyle=":", linewidth=0.8)
panel.set(xlabel=f"bytes read before (trained on {TRAINED})", ylabel="perplexity a byte")
panel.set_yscale("log")
panel.minorticks_off()
panel.set_yticks([8, 16, 32], ["8", "16", "32"])
panel.spines[["top", "right"]].set_visible(False)
panel.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

# %% [markdown]
# As trained, RoPE fails soon behind its length. `linear` moves every angle, also those that tell neighbours apart, so it
# needs training before it is of use. `ntk` keeps the near ones and holds for about half of the factor; `yarn` holds to the
# end at some price near by. ReRoPE and the window never leave the trained distances. The window reads no farther than it
# was trained, which on these texts costs nothing: a model of bytes finds little that far away. Perplexity alone does not
# show whether far tokens are *used*; `experiments.ablate` measures retrieval beside it.
#
# ## A short fine-tune
#
# A few steps on long windows take most of the price away. The result is a folder again: its `config.json` says how the
# frequencies are scaled, in transformers' words.

# %%
tuned, start = under(SPECS["yarn"])
adapted, _ = fit(tuned, start, windows_of(LONG, STEPS // 10, BATCH // 4, seed=1), 1e-3)
read["yarn, tuned"] = by_context(tuned, adapted)
table({name: read[name] for name in ("rope", "yarn", "yarn, tuned")})

figure, panel = plt.subplots(figsize=(7, 3), layout="constrained")
draw(panel, "rope", read["rope"][1], COLORS["rope"])
draw(panel, "yarn", read["yarn"][1], COLORS["yarn"])
draw(panel, "yarn, tuned", read["yarn, tuned"][1], COLORS["yarn"], linestyle="--")
panel.axvline(TRAINED, color="#7a7a7a", linestyle=":", linewidth=0.8)
panel.set(xlabel=f"bytes read before (trained on {TRAINED})", ylabel="perplexity a byte", ylim=(5, 20))
panel.spines[["top", "right"]].set_visible(False)
panel.legend(frameon=False, fontsize=8)
plt.show()

longer = tempfile.mkdtemp()
pretrained.save(longer, tuned, adapted)
print(json.loads((pathlib.Path(longer) / "config.json").read_text())["rope_parameters"])
