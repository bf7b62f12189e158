# %% [markdown]
# # Positions from zero
#
# The examples of [positions from zero](../from_zero.md) ([中文](../zh/from_zero.md)), to run and to change. It takes less
# than a minute on two CPU cores and downloads nothing.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import posjax as pj
from posjax.encodings.tables import Table

np.set_printoptions(precision=4, suppress=True)

# %% [markdown]
# ## 1. Attention sees a set
#
# Queries, keys and values are the words themselves. Shuffled words give shuffled outputs, unless they have positions.

# %%
CONTENT = {"cat": (1, 0), "chases": (0, 1), "mouse": (1, 1)}


def attended(words, spec):
    x = jnp.array([CONTENT[word] for word in words], jnp.float32)
    x, hosted = pj.host(pj.parse(spec), (), x, pj.sites(len(words)), key=None)
    return np.asarray(hosted.attend(x[:, None], x[:, None], x[:, None], x=x)[:, 0])


for spec in ("none", "sinusoidal"):
    one, other = attended(["cat", "chases", "mouse"], spec), attended(["mouse", "chases", "cat"], spec)
    print(
        f"{spec}: outputs of cat {one[0]} and {other[2]}; the means differ by {abs(one.mean(0) - other.mean(0)).max():.4f}"
    )

# %% [markdown]
# ## 3. Sines and cosines
#
# Four words, eight channels. The squares of each row sum to the number of pairs, 4.

# %%
code = np.asarray(pj.parse("sinusoidal").embed((), jnp.zeros((128, 8)), pj.sites(128)))
print(code[:4])
print("sums of squares:", np.sum(code[:4] ** 2, axis=1))

figure, panels = plt.subplots(1, 2, figsize=(9, 2.8), layout="constrained")
panels[0].imshow(code[:64].T, cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto")
panels[0].set(xlabel="position", ylabel="channel")
for width in (8, 32, 128):
    wide = np.asarray(pj.parse("sinusoidal").embed((), jnp.zeros((128, width)), pj.sites(128)))
    panels[1].plot(wide[:100] @ wide[0] / (width / 2), label=f"width {width}")
panels[1].set(xlabel="distance", ylabel="cosine")
panels[1].legend(frameon=False)
plt.show()

# %% [markdown]
# ## 4. A learned table
#
# A class token and 2 x 2 patches: five rows of four channels. Resized to 3 x 3, the middle is the mean of the four. Beyond
# the last row there is nothing.

# %%
learned = pj.parse("learned")
rows = jnp.array([[1, 1, 1, 1], [1, 0, 0, 2], [2, 1, 2, 0], [3, 0, 1, 0], [4, 2, 0, 1]], jnp.float32) / 10
table = Table(rows, extent=(2, 2))
print(np.asarray(learned.embed(table, jnp.zeros((5, 4)), pj.grid(2, 2, prefix=1))))
larger = learned.resized(table, (2, 2), (3, 3), method="torch_bilinear")[1]
print(np.asarray(larger.rows[1:, 0]).reshape(3, 3))
try:
    learned.embed(table, jnp.zeros((9, 4)), pj.grid(3, 3))
except ValueError as error:
    print("ValueError:", error)

# %% [markdown]
# ## 6. RoPE
#
# A query at m and a key at n, with NumPy's seed 42. Equal differences give equal products.

# %%
rope = pj.parse("rope(layout='interleaved')")
np.random.seed(42)
q, k = (jnp.asarray(np.random.randn(8), jnp.float32)[None, None] for _ in range(2))
for m, n in ((0, 0), (5, 3), (9, 7), (3, 5), (10, 0), (0, 10)):
    turned = rope.rotate((), q, pj.sites(1, m), k, pj.sites(1, n))
    before, after = (float(jnp.sum(a * b)) for a, b in ((q, k), turned))
    print(f"m = {m:2}, n = {n:2}, m - n = {m - n:3}: {after:.4f}, before {before:.4f}")

# %% [markdown]
# ## 7. ALiBi
#
# Slopes of four heads, and the biases of the last of five queries.

# %%
zeros = jnp.zeros((5, 4, 8))
print(np.asarray(pj.parse("alibi").bias((), zeros, pj.sites(5), zeros, pj.sites(5)))[:, -1])

# %% [markdown]
# ## Try another
#
# Any of posjax's encodings, by name: which logits does a word have to equal words before it?

# %%
SPECS = ("rope", "alibi", "t5(bidirectional=False)", "rope + window(16)")
figure, panels = plt.subplots(1, len(SPECS), figsize=(10, 2.6), layout="constrained", sharex=True)
for panel, spec in zip(panels, SPECS, strict=True):
    encoding, ones = pj.parse(spec), jnp.ones((64, 4, 16))
    params = encoding.init(jax.random.key(0), pj.Dims(width=64, num_heads=4, head_dim=16, length=64))
    _, weights = pj.attend(
        encoding, params, ones, ones, ones, pj.sites(64), pj.sites(64), causal=True, return_weights=True
    )
    panel.plot(np.asarray(weights)[:, -1, ::-1].T)
    panel.set(title=spec, xlabel="distance")
panels[0].set_ylabel("attention, a line a head")
plt.show()
print(len(pj.names()), "names:", ", ".join(pj.names()[:8]), "...")
