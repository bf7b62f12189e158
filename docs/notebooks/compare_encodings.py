# %% [markdown]
# # Compare positional encodings in five minutes
#
# An encoding of posjax is a value. It is written as a text, composed with `+`, and knows no model. This notebook looks at
# what five of them tell attention, then trains the same small decoder under each of them and reads it beyond its training
# length. It needs no download and takes about a minute on two CPU cores.

# %%
import functools
import pydoc_data.topics

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import posjax as pj
from experiments.report.statistics import mean_interval
from posjax.models import BlockConfig, Decoder

SPECS = {
    "none": "none",
    "sinusoidal": "sinusoidal",
    "learned": "learned(stddev=1)",
    "rope": "rope",
    "alibi": "alibi",
}
COLORS = dict(zip(SPECS, ["#7a7a7a", "#332288", "#cc6677", "#117733", "#44aa99"], strict=True))
print(pj.parse("rope(base=500000) + window(512)"))
print([name for name in pj.names() if name.startswith("alibi") or name.endswith("rope")])

# %% [markdown]
# ## What attention sees of a distance
#
# Every token is the same random vector here, so whatever attention weights differ by comes from the encoding. The curves
# are the weights of the last of 64 tokens, of one head, divided by the uniform weight. Codes that are added to the tokens
# (`sinusoidal`, `learned`) pass through random projections.

# %%
length, width, heads, channels = 64, 64, 4, 16
projections = jax.random.normal(jax.random.key(1), (3, width, heads, channels)) * width**-0.5
tokens = jnp.tile(jax.random.normal(jax.random.key(2), (1, width)), (length, 1))


def weights_by_distance(spec):
    """[heads, length]: how much the last token reads of the one `distance` before it."""
    encoding = pj.parse(spec)
    params = encoding.init(jax.random.key(0), pj.Dims(width, heads, channels, length=length))
    x, hosted = pj.host(encoding, params, tokens, pj.sites(length), key=None)
    q, k, v = jnp.einsum("tm,nmhd->nthd", x, projections)
    _, weights = hosted.attend(q, k, v, x=x, causal=True, return_weights=True)
    return weights[:, -1, ::-1]


figure, panels = plt.subplots(1, 5, figsize=(10, 2.4), sharex=True, layout="constrained")
for panel, (name, spec) in zip(panels.flat, SPECS.items(), strict=True):
    curves = np.asarray(weights_by_distance(spec)) * length
    panel.plot(curves.T, color=COLORS[name], linewidth=1, alpha=0.8)
    panel.set_title(name, color=COLORS[name], fontsize=10)
    panel.spines[["top", "right"]].set_visible(False)
figure.supxlabel("distance (tokens)", fontsize=9)
figure.supylabel("weight / uniform weight", fontsize=9)
plt.show()

# %% [markdown]
# `none` is flat. ALiBi forgets at a rate of each head's own. RoPE's waves are the same wherever the query stands: only
# distance counts. What the other two say depends on the position itself, and a learned table is noise until it is trained.
#
# ## The same decoder under each
#
# The text is Python's own documentation, byte by byte. Each model trains on windows of 64 bytes, from three seeds at once
# (`vmap`), and is then read on windows of up to 512. Positions are an argument, `pj.sites(length)`: nothing is implied by a
# shape.

# %%
text = np.frombuffer("\n".join(pydoc_data.topics.topics.values()).encode(), np.uint8).astype(np.int32)
train, held_out = text[: -len(text) // 10], text[-len(text) // 10 :]
TRAINED, LENGTHS, SEEDS, STEPS, BATCH = 64, (64, 256, 512), 3, 120, 8
random = np.random.default_rng(0)
starts = random.integers(0, len(train) - TRAINED - 1, (STEPS, BATCH))
batches = jnp.asarray(train[starts[..., None] + np.arange(TRAINED + 1)])
tests = {n: jnp.asarray(held_out[: 8 * 512].reshape(-1, n)) for n in LENGTHS}  # the same bytes
optimizer = optax.adam(optax.warmup_cosine_decay_schedule(0.0, 1e-2, STEPS // 6, STEPS))


def loss_of(model, params, windows):
    """Nats a byte."""
    site = pj.sites(windows.shape[1] - 1)
    logits = model.apply(params, windows[:, :-1], site)
    return optax.softmax_cross_entropy_with_integer_labels(logits, windows[:, 1:]).mean()


def trained(model, key):
    """The parameters of one seed and its losses."""
    params = model.init(key, batches[0, :, :-1], pj.sites(TRAINED))

    def step(carry, windows):
        params, state = carry
        loss, grads = jax.value_and_grad(functools.partial(loss_of, model))(params, windows)
        updates, state = optimizer.update(grads, state)
        return (optax.apply_updates(params, updates), state), loss

    (params, _), losses = jax.lax.scan(step, (params, optimizer.init(params)), batches)
    return params, losses


curves, scores = {}, {}
for name, spec in SPECS.items():
    model = Decoder(
        vocab_size=256, encoding=spec, length=max(LENGTHS), block=BlockConfig(width=32, num_heads=2), depth=2
    )
    params, losses = jax.jit(jax.vmap(functools.partial(trained, model)))(jax.random.split(jax.random.key(0), SEEDS))
    curves[name] = np.asarray(losses)
    for n in LENGTHS:
        read = jax.jit(jax.vmap(functools.partial(loss_of, model), in_axes=(0, None)))
        scores[name, n] = np.asarray(read(params, tests[n]))
    print(f"{name:12}" + "".join(f"  {n}: {mean_interval(map(float, scores[name, n]))}" for n in LENGTHS))

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
for name in SPECS:
    smooth = np.convolve(curves[name].mean(axis=0), np.ones(10) / 10, mode="valid")
    left.plot(np.arange(len(smooth)) + 10, smooth, color=COLORS[name], linewidth=1.2, label=name)
    mean = np.array([scores[name, n].mean() for n in LENGTHS])
    right.plot(LENGTHS, mean, "o-", color=COLORS[name], linewidth=1.2, markersize=3)
    for seed in range(SEEDS):
        right.plot(LENGTHS, [scores[name, n][seed] for n in LENGTHS], ".", color=COLORS[name], markersize=2, alpha=0.5)
left.set(xlabel="step", ylabel="training loss (nats a byte)")
left.legend(frameon=False, fontsize=8)
right.set(xlabel="length read (bytes); trained on 64", ylabel="loss (nats a byte)")
right.set_xscale("log", base=2)
right.set_xticks(LENGTHS, LENGTHS)
for panel in (left, right):
    panel.spines[["top", "right"]].set_visible(False)
plt.show()

# %% [markdown]
# On windows of the trained length RoPE has learned most. Read further, it loses its lead: it sees distances that it was
# never trained on, while ALiBi's biases go on as they began. `learned` has rows for all 512 positions, but 448 of them were
# never trained.
#
# Three seeds of a small model show directions, not sizes. `python -m experiments.ablate --config=configs/quickstart.py`
# trains five seeds of the same comparison in under five minutes and writes tables with intervals, records and plots; see
# [docs/experiments.md](../experiments.md). `posjax explain "rope(base=500000)" --plot=plots` shows what one
# encoding does, and [docs/catalogue.md](../catalogue.md) lists them all.
