# %% [markdown]
# # Look into models that are trained already
#
# `results/trained` holds forty small models: decoders of Python's documentation under twenty encodings, and vision
# transformers of handwritten digits under twenty. Each takes half a megabyte and knows its own training, so that every
# command and `load_run` take its folder as a run. This notebook looks at what their heads have learned to see, and reads one
# of them under other encodings. It takes about a minute on two CPU cores.

# %%
import pathlib

import jax
import matplotlib.pyplot as plt
import numpy as np
import optax

import experiments
import posjax as pj
from experiments.atlas.trained import look_at_decoder, look_at_vit
from posjax import data
from posjax.models.replacing import with_encoding
from posjax.training.runs import load_run

TRAINED = pathlib.Path(experiments.__file__).parents[1] / "results" / "trained"
run = load_run(TRAINED / "decoder" / "rope")
count = sum(leaf.size for leaf in jax.tree.leaves(run.of(0)))
print(f"{run.model.encoding}: {count:,} parameters, {run.step} steps on windows of {run.config.data.length} bytes")
print(sorted(path.name for path in (TRAINED / "decoder").iterdir()))
print(sorted(path.name for path in (TRAINED / "vit").iterdir()))

# %% [markdown]
# ## What heads look at, by distance
#
# A line is a head of a decoder: its mean attention to the token so many bytes before, over the later half of its windows,
# in units of uniform attention. Colours are layers.

# %%
SHOWN = ("none", "learned", "rope", "alibi", "t5", "fox", "inkling", "path")
COLORS = ("#0072b2", "#d55e00", "#009e73")  # of layers
figure, panels = plt.subplots(2, 4, figsize=(10, 4.4), sharex=True, layout="constrained")
for panel, name in zip(panels.flat, SHOWN, strict=True):
    for layer, color in zip(look_at_decoder(TRAINED / "decoder" / name)["heads"], COLORS, strict=True):
        panel.plot(np.transpose(layer), color=color, linewidth=1, alpha=0.8)
    panel.axhline(1, color="#7a7a7a", linestyle=":", linewidth=0.8)
    panel.set_yscale("symlog", linthresh=1)
    panel.set_ylim(bottom=0)
    panel.set_title(name, fontsize=10)
    panel.spines[["top", "right"]].set_visible(False)
figure.supxlabel("distance (bytes)")
figure.supylabel("times uniform")
plt.show()

# %% [markdown]
# ## What heads look at, by direction
#
# A map is a head of a vision transformer's first layer: its mean attention to patches by their offset from the query, which
# is in the middle. Every pixel of the digits is a token.

# %%
SHOWN = ("none", "learned", "axial_rope", "lookhere", "swin", "peg")
figure, panels = plt.subplots(4, len(SHOWN), figsize=(10, 6.6), layout="constrained")
for column, name in zip(panels.T, SHOWN, strict=True):
    column[0].set_title(name, fontsize=10)
    for panel, head in zip(column, look_at_vit(TRAINED / "vit" / name)["heads"], strict=True):
        panel.imshow(head, cmap="viridis", vmin=0, extent=(-7.5, 7.5, 7.5, -7.5))
        panel.set(xticks=(-7, 0, 7), yticks=(-7, 0, 7))
plt.show()

# %% [markdown]
# ## Read one under other encodings
#
# The decoder with RoPE was trained on 128 bytes. The same weights are read at up to four times that, as they are, with
# frequencies scaled, and with distances clipped; the decoder with ALiBi needs none of it.

# %%
documents = data.load_documents("pydoc_topics", "validation")
text = np.concatenate(documents.texts)


def losses(run, spec, length):
    """Mean nats a byte of 16 windows of this length, under an encoding."""
    model, params = with_encoding(
        run.model, run.of(0), spec, lambda changed: changed.init(jax.random.key(0), *changed.example())["params"]
    )
    windows = jax.numpy.asarray(text[: 16 * (length + 1)].reshape(16, length + 1), "int32")
    logits = jax.jit(model.apply)({"params": params}, windows[:, :-1], pj.sites(length))
    return float(optax.softmax_cross_entropy_with_integer_labels(logits, windows[:, 1:]).mean())


alibi = load_run(TRAINED / "decoder" / "alibi")
ROWS = {
    "rope": (run, "rope"),
    "rope, ntk": (run, "rope(scaling=ntk(factor=4))"),
    "rope, yarn": (run, "rope(scaling=yarn(factor=4, original_length=128))"),
    "rope, rerope": (run, "rerope(window=64) >> rope"),
    "alibi": (alibi, "alibi"),
}
print(f"{'':14}" + "".join(f"{length:>8}" for length in (128, 256, 512)))
for name, (trained, spec) in ROWS.items():
    print(f"{name:14}" + "".join(f"{losses(trained, spec, length):8.3f}" for length in (128, 256, 512)))
