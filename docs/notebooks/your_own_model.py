# %% [markdown]
# # Put an encoding into your own model
#
# An encoding acts in up to four places of a transformer: it moves tokens, adds a code to them, reads a layer's input, and
# changes attention. Two calls serve them all: `pj.host` before the first layer, and `hosted.attend` in each layer. This
# notebook puts them into a model of Flax Linen, one of Flax NNX and one of Equinox. [docs/hosting.md](../hosting.md) has
# the reference.

# %%
import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx

import posjax as pj
from posjax.nnx import Positions, self_attention

# %% [markdown]
# ## A task that asks for positions
#
# Each token is to name the one three places before it. Attention without an encoding sees a bag of tokens, so it can only
# guess.

# %%
VOCAB, LENGTH, WIDTH, HEADS, BACK, STEPS = 12, 24, 32, 2, 3, 120
SITE = pj.sites(LENGTH)  # where the tokens stand
DIMS = pj.Dims(width=WIDTH, num_heads=HEADS, head_dim=WIDTH // HEADS, length=LENGTH)
TOKENS = jax.random.randint(jax.random.key(0), (STEPS, 32, LENGTH), 0, VOCAB)


def loss_of(logits, tokens):
    """Nats a token."""
    return optax.softmax_cross_entropy_with_integer_labels(logits[:, BACK:], tokens[:, :-BACK]).mean()


# %% [markdown]
# ## Flax Linen
#
# The layer here is flax's own, `nn.MultiHeadDotProductAttention`, which takes `hosted.attention_fn` in place of its
# attention. A layer with projections of its own calls `hosted.attend(q, k, v, x=h)`.


# %%
class LinenModel(nn.Module):
    spec: str

    @nn.compact
    def __call__(self, tokens, site):  # [B, T]
        encoding = pj.parse(self.spec)
        params = self.param("encoding", encoding.init, DIMS)  # a pytree that is trained with the rest
        x, hosted = pj.host(encoding, params, nn.Embed(VOCAB, WIDTH)(tokens), site, key=None)
        h = nn.LayerNorm()(x)
        x = x + nn.MultiHeadDotProductAttention(HEADS, attention_fn=hosted.attention_fn(h))(h)
        return nn.Dense(VOCAB)(nn.LayerNorm()(x))


def train_linen(spec):
    model, optimizer = LinenModel(spec), optax.adam(1e-2)

    def step(carry, tokens):
        params, state = carry
        loss, grads = jax.value_and_grad(lambda params: loss_of(model.apply(params, tokens, SITE), tokens))(params)
        updates, state = optimizer.update(grads, state)
        return (optax.apply_updates(params, updates), state), loss

    params = jax.jit(model.init)(jax.random.key(1), TOKENS[0], SITE)
    return jax.jit(lambda params: jax.lax.scan(step, (params, optimizer.init(params)), TOKENS)[1])(params)


# %% [markdown]
# ## Flax NNX
#
# `Positions` holds the encoding's parameters as `nnx.Param`, so optimizers, states and checkpoints have them.
# `self_attention` lends an `nnx.MultiHeadAttention` the encoding for one call.


# %%
class NNXModel(nnx.Module):
    def __init__(self, spec, rngs):
        self.positions = Positions(spec, DIMS, rngs=rngs)
        self.table = nnx.Embed(VOCAB, WIDTH, rngs=rngs)
        self.norm, self.last = nnx.LayerNorm(WIDTH, rngs=rngs), nnx.LayerNorm(WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
        self.head = nnx.Linear(WIDTH, VOCAB, rngs=rngs)

    def __call__(self, tokens, site):
        x, hosted = self.positions.host(self.table(tokens), site, key=None)
        x = x + self_attention(self.attention, hosted, self.norm(x))
        return self.head(self.last(x))


@nnx.jit
def nnx_step(model, optimizer, tokens):
    loss, grads = nnx.value_and_grad(lambda model: loss_of(model(tokens, SITE), tokens))(model)
    optimizer.update(model, grads)
    return loss


def train_nnx(spec):
    model = NNXModel(spec, nnx.Rngs(1))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    return jnp.stack([nnx_step(model, optimizer, tokens) for tokens in TOKENS])


# %% [markdown]
# ## Equinox
#
# Modules of Equinox take one sequence; so does `pj.host`. The layer lends its projections to `hosted.attend`.


# %%
class EquinoxModel(eqx.Module):
    encoding: pj.Encoding = eqx.field(static=True)
    positions: object
    table: eqx.nn.Embedding
    norm: eqx.nn.LayerNorm
    last: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    head: eqx.nn.Linear

    def __init__(self, spec, key):
        keys = jax.random.split(key, 4)
        self.encoding = pj.parse(spec)
        self.positions = self.encoding.init(keys[0], DIMS)
        self.table = eqx.nn.Embedding(VOCAB, WIDTH, key=keys[1])
        self.norm, self.last = eqx.nn.LayerNorm(WIDTH), eqx.nn.LayerNorm(WIDTH)
        self.attention = eqx.nn.MultiheadAttention(HEADS, WIDTH, key=keys[2])
        self.head = eqx.nn.Linear(WIDTH, VOCAB, key=keys[3])

    def __call__(self, tokens, site):  # [T]
        x, hosted = pj.host(self.encoding, self.positions, jax.vmap(self.table)(tokens), site, key=None)
        h, own = jax.vmap(self.norm)(x), self.attention
        project = own.query_proj, own.key_proj, own.value_proj
        q, k, v = (jax.vmap(one)(h).reshape(len(h), HEADS, -1) for one in project)
        x = x + jax.vmap(own.output_proj)(hosted.attend(q, k, v, x=h).reshape(x.shape))
        return jax.vmap(self.head)(jax.vmap(self.last)(x))


def train_equinox(spec):
    params, static = eqx.partition(EquinoxModel(spec, jax.random.key(1)), eqx.is_array)
    optimizer = optax.adam(1e-2)

    def step(carry, tokens):
        params, state = carry

        def loss(params):
            return loss_of(jax.vmap(eqx.combine(params, static), in_axes=(0, None))(tokens, SITE), tokens)

        value, grads = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(grads, state)
        return (optax.apply_updates(params, updates), state), value

    return jax.jit(lambda params: jax.lax.scan(step, (params, optimizer.init(params)), TOKENS)[1])(params)


# %% [markdown]
# ## The same text in each
#
# The encoding is a text, so another one is another word. Alone or composed, none needs a change of the model.

# %%
SPECS = {"none": "#7a7a7a", "alibi": "#44aa99", "rope(base=100)": "#117733", "learned + t5": "#cc6677"}
FRAMEWORKS = {"Flax Linen": train_linen, "Flax NNX": train_nnx, "Equinox": train_equinox}
curves = {(name, spec): np.asarray(train(spec)) for name, train in FRAMEWORKS.items() for spec in SPECS}

figure, panels = plt.subplots(1, 3, figsize=(9, 3), sharey=True, layout="constrained")
for panel, name in zip(panels, FRAMEWORKS, strict=True):
    for spec, color in SPECS.items():
        panel.plot(curves[name, spec], color=color, linewidth=1.2, label=spec)
    panel.axhline(np.log(VOCAB), color="#7a7a7a", linestyle=":", linewidth=0.8)
    panel.set_title(name, fontsize=10)
    panel.set_xlabel("step")
    panel.spines[["top", "right"]].set_visible(False)
panels[0].set_ylabel("loss (nats a token)")
panels[0].legend(frameon=False, fontsize=8, loc="center right")
plt.show()
for spec in SPECS:
    print(f"{spec:16}" + "".join(f"  {name}: {curves[name, spec][-10:].mean():.3f}" for name in FRAMEWORKS))

# %% [markdown]
# Without an encoding the loss stays near that of guessing (dotted). ALiBi alone sees how far a token is, not on which side:
# its biases are the same to the left and to the right, so it cannot tell the third before from the third behind. RoPE and
# the composition find the token.
#
# ## Forgotten hooks are refused
#
# A hook that nobody runs would change results in silence. Attention alone therefore refuses an encoding that acts before
# it, and a layer of flax refuses encodings that it cannot host.

# %%
x = jnp.ones((LENGTH, HEADS, WIDTH // HEADS))
_, hosted = pj.host(pj.parse("rope"), (), jnp.ones((LENGTH, WIDTH)), SITE, key=None)
fox = pj.parse("fox")
_, gated = pj.host(fox, fox.init(jax.random.key(0), DIMS), jnp.ones((LENGTH, WIDTH)), SITE, key=None)
for mistake in (
    lambda: pj.attend(pj.parse("sinusoidal"), (), x, x, x, SITE, SITE),
    lambda: gated.attend(x, x, x),
    lambda: hosted.attention_fn()(x, x, x, mask=jnp.ones((1, LENGTH, LENGTH))),
):
    try:
        mistake()
    except ValueError as error:
        print(f"- {error}\n")

# %% [markdown]
# The models of posjax are at home in NNX as well: `posjax.nnx.Model.init(Decoder(vocab_size=256, encoding="fox + rope"),
# tokens, site, rngs=nnx.Rngs(0))` is an `nnx.Module` with Linen's parameters, each an `nnx.Param`.
