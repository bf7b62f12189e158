"""Small networks of the offset between two tokens, and one that reads their logits too."""

import math
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from posjax.encoding import Composition, Encoding, Needs, order_of
from posjax.encodings.bias import Kerple
from posjax.encodings.gates import Order
from posjax.encodings.pairs import OffsetBias, length, linear, linear_init, log_offset, pairwise, related
from posjax.spec import register

_KERPLE = Kerple()


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LogCpb:
    """The two layers of `swin_v2`, and the window by which its offsets are divided."""

    layers: Any  # [{"kernel": [A, hidden], "bias": [hidden]}, {"kernel": [hidden, H]}]
    window: tuple[int, ...] = field(metadata={"static": True})


@register("swin_v2")
@dataclass(frozen=True)
class SwinV2(OffsetBias):
    """Swin v2's log-spaced continuous position bias: 16 sigmoid(MLP(sign(x) log2(1 + |x|) / log2(8))),
    x = 8 (q - k) / (w - 1).

    Liu et al. (2021), arXiv 2111.09883, section 3.3, with the constants 8 and 16 of the authors' code; the MLP has one ReLU
    layer and an output layer without bias. w is the window, in tokens along each axis: the grid (or length) that the model
    is made for, or pretrained_window where the network was trained on another one. It is a function of the offset, not a
    table: positions may be fractional and of any extent. A window of 1 divides by 1, as in timm. On another grid it stays
    the same function: `resized` sets pretrained_window to the window of training, as the authors' `pretrained_window_size`.
    Zero where a token stands nowhere. The cosine attention and the learned temperature of Swin v2 are the model's.

    Parameters: a LogCpb, its layers initialised as torch.nn.Linear.

    Raises:
      ValueError: for a hidden_dim below 1, or a window that is not positive or (on call) of another number of axes;
        from `init` where neither `dims` nor pretrained_window gives one.
    """

    family = "learned bias"
    formula = (
        r"b_{mn} = 16\,\sigma\left(\mathrm{MLP}\left(\frac{\mathrm{sgn}(x)\log_2(1+|x|)}{\log_2"
        r" 8}\right)\right)",
        r"x = \frac{8\,(m-n)}{w-1}",
    )

    dimensions = (1, 2)

    hidden_dim: int = 512
    pretrained_window: tuple[int, ...] | None = None

    def __post_init__(self):
        _check_hidden(self)
        if self.pretrained_window is not None and not all(type(n) is int and n > 0 for n in self.pretrained_window):
            raise ValueError(f"swin_v2(pretrained_window=...) is a tuple of sizes, got {self.pretrained_window}")

    def init(self, key, dims):
        if self.pretrained_window is None and dims.length is None and dims.grid is None:
            raise ValueError(
                "swin_v2 needs to know its window: give Dims(grid=...), Dims(length=...) or pretrained_window"
            )
        window = self.pretrained_window or ((dims.length,) if dims.grid is None else tuple(dims.grid))
        keys = jax.random.split(key)
        hidden = linear_init(keys[0], len(window), self.hidden_dim)
        return LogCpb([hidden, linear_init(keys[1], self.hidden_dim, dims.num_heads, bias=False)], window)

    def resized(self, params, old_grid, new_grid, method="torch_bicubic"):
        return (self if old_grid == new_grid else replace(self, pretrained_window=params.window)), params

    def of_offset(self, params, offset, num_heads):
        if offset.shape[-1] != len(params.window):
            raise ValueError(f"swin_v2 has a window of {len(params.window)} axes, got positions of {offset.shape[-1]}")
        unit = np.array([max(size - 1, 1) for size in params.window], np.float32)
        features = log_offset(-8 * jnp.asarray(offset, jnp.float32) / unit) / math.log(8)
        return 16 * jax.nn.sigmoid(pairwise(lambda x: _mlp(params.layers, x, jax.nn.relu), features, self.hidden_dim))


@register("dpb")
@dataclass(frozen=True)
class Dpb(OffsetBias):
    """CrossFormer's dynamic position bias: a network of the offset q - k, three times LayerNorm, ReLU and a linear layer.

    Wang et al. (2021), arXiv 2108.00154, section 3.3, without the residual connections that the authors' code offers and
    leaves off. Their hidden_dim is M/16. log_distance=True feeds the network sign(x) ln(1 + |x|), an option of
    x-transformers, whose network differs (SiLU, no LayerNorm by default). Takes any number of position axes. Zero where a
    token stands nowhere.

    Parameters: "offset", the layer into the hidden dim, "norms" and "layers", three of each; linear layers
    initialised as torch.nn.Linear. The number of axes is that of dims.grid, 1 without one.

    Raises:
      ValueError: for a hidden_dim below 2 (LayerNorm leaves nothing of one feature), or (on call) another number of axes.
    """

    family = "learned bias"
    formula = (r"b_{mn} = \mathrm{MLP}(m-n),\quad \text{three times LayerNorm, ReLU and a linear layer}",)

    hidden_dim: int = 16
    log_distance: bool = False

    def __post_init__(self):
        _check_hidden(self, least=2)

    def init(self, key, dims):
        keys, hidden = jax.random.split(key, 4), self.hidden_dim
        sizes = [hidden, hidden, dims.num_heads]
        return {
            "offset": linear_init(keys[0], 1 if dims.grid is None else len(dims.grid), hidden),
            "norms": [{"scale": jnp.ones(hidden, jnp.float32), "bias": jnp.zeros(hidden, jnp.float32)} for _ in sizes],
            "layers": [linear_init(keys[1 + i], hidden, size) for i, size in enumerate(sizes)],
        }

    def of_offset(self, params, offset, num_heads):
        if offset.shape[-1] != (axes := params["offset"]["kernel"].shape[0]):
            raise ValueError(f"dpb has a network for {axes} position axes, got {offset.shape[-1]}")

        def network(x):
            x = linear(params["offset"], x)
            for norm, layer in zip(params["norms"], params["layers"], strict=True):
                x = linear(layer, jax.nn.relu(_layer_norm(norm, x)))
            return x

        features = -jnp.asarray(offset, jnp.float32)
        return pairwise(network, log_offset(features) if self.log_distance else features, self.hidden_dim)


@register("fire")
@dataclass(frozen=True)
class Fire(Encoding):
    """FIRE: an MLP of the distance, normalised by the query's position: f(ln(c |q - k| + 1) / ln(c max(q, L) + 1)).

    Li et al. (2023), arXiv 2310.04418, eq. 4: f has one ReLU layer, c and L are learned. Constants, eps (added to the
    denominator) and the absolute values of c and L follow the only public code, chuanyang-Zheng/DAPE.
    The normaliser is the query's position, so beyond L the bias is not a function of the distance: documents
    have to begin at position 0 for the paper's numbers, and a shift changes them. Without a causal mask, keys after the
    query are at distance |q - k|, on which the paper is silent. Zero where a token stands nowhere.

    On a grid the distance is Euclidean, and the normaliser is the query's distance from the first patch, or L: on one row or
    column of patches that is FIRE on a line. The paper has one axis. openreview mEGr7Fm54B reports that FIRE keeps 63.1 % of
    its accuracy at 4.57 times the trained resolution (RoPE: 18.9 %), but its abstract, all that was at hand, says neither
    which distance nor which normaliser. As images have keys after the query, a ratio may be above 1 near the first patch.
    Give init_L in patches of the trained grid: below 512 of them the default leaves one normaliser for all queries.

    Parameters: "layers"; "c", [1], initialised init_c; "L_multiplier", [1], initialised 1; L is init_L times the latter.

    Raises:
      ValueError: for a hidden_dim below 1, or an init_c, init_L or eps that is not positive.
    """

    family = "learned bias"
    formula = (
        r"b_{mn} = f\left(\frac{\ln\left(c\,|m-n| + 1\right)}{\ln\left(c\,\max(m, L) +"
        r" 1\right)}\right)",
    )

    relative = False

    hidden_dim: int = 32
    init_c: float = 0.1
    init_L: float = 512.0
    eps: float = 1e-6

    def __post_init__(self):
        _check_hidden(self)
        if not min(self.init_c, self.init_L, self.eps) > 0:
            raise ValueError(f"fire needs a positive init_c, init_L and eps, got {self}")

    def init(self, key, dims):
        keys = jax.random.split(key)
        layers = [linear_init(keys[0], 1, self.hidden_dim), linear_init(keys[1], self.hidden_dim, dims.num_heads)]
        return {"layers": layers, "c": jnp.full(1, self.init_c, jnp.float32), "L_multiplier": jnp.ones(1, jnp.float32)}

    def bias(self, params, q, q_site, k, k_site):
        query, key = (jnp.asarray(self.coordinates(site), jnp.float32).T for site in (q_site, k_site))
        c, threshold = jnp.abs(params["c"]), jnp.abs(self.init_L * params["L_multiplier"])
        distance = length(tuple(query[:, :, None] - key[:, None]))
        from_start = length(tuple(jnp.maximum(query, 0)))
        normaliser = jnp.log1p(c * jnp.maximum(from_start, threshold)) + self.eps
        ratio = jnp.log1p(c * distance) / normaliser[:, None]
        bias = pairwise(lambda x: _mlp(params["layers"], x, jax.nn.relu), ratio[..., None], self.hidden_dim)
        return jnp.where(related(q_site, k_site), bias, 0.0)


@register("dape")
@dataclass(frozen=True)
class Dape(Composition):
    """DAPE: a bias b that adapts to the content, b + f([q k / sqrt(D), b]), f an MLP across the heads of one pair of tokens.

    Zheng et al. (2024), arXiv 2405.14722, eq. 3, around any encoding that only biases logits: `dape(encoding=fire())`,
    `dape(encoding=none())`. f has one LeakyReLU layer (slope 0.01) of hidden_dim. It sees logits divided by sqrt(D), of q
    and k before any rotation. Zero where a token stands nowhere.

    kernel_size=3 is DAPE v2 (arXiv 2410.04798, DAPE_1x3), after the authors' code (chuanyang-Zheng/DAPE,
    megatron/model/positional_embeddings.py): both layers of f are convolutions along the keys of a query, and keys later
    than it count as zeros. A key's neighbours are tokens of its document by their positions, on a line, wherever they lie in
    the arrays; nothing is before the first one. Behind the last one, the query's own, f goes on over zeros; in the authors'
    code it does so except for the last query of the array, so that a token decoded with a cache would get another bias
    than in training. Keys later than the query have b alone. A query then needs all of its keys in one tile. Keys at the
    query's own position are among its neighbours: positions of a document are to differ and to rise along the arrays.

    Args:
      kernel_size: keys that each layer of f spans, odd.

    Parameters: "encoding", the inner one's, and "layers", initialised as torch.nn.Linear or torch.nn.Conv2d; kernels are
    [inputs, outputs], or [kernel_size, inputs, outputs] above a kernel_size of 1.

    Raises:
      ValueError: for an inner encoding that does more than bias logits, a hidden_dim below 1 or an even kernel_size; above a
        kernel_size of 1, for positions of several axes.
    """

    family = "learned bias"
    formula = (
        r"\ell'_{mn} = \ell_{mn} + b_{mn} + f\left(\left[\frac{q_m \cdot k_n}{\sqrt"
        r" D},\ b_{mn}\right]\right)",
    )

    encoding: Encoding = _KERPLE
    hidden_dim: int = 32
    kernel_size: int = 1

    def __post_init__(self):
        _check_hidden(self)
        if self.kernel_size < 1 or self.kernel_size % 2 == 0:
            raise ValueError(f"dape needs an odd kernel_size, which has a middle, got {self.kernel_size}")
        if not isinstance(self.encoding, Encoding) or self.encoding.hooks - {"place", "observe", "bias"}:
            raise ValueError(
                f"dape takes an encoding that only biases logits, as in dape(alibi()); got {self.encoding}"
            )

    @property
    def members(self):
        return (self.encoding,)

    @property
    def hooks(self):
        return super().hooks | {"bias"}

    @property
    def needs(self):
        return super().needs | (Needs.WHOLE_ROWS if self.kernel_size > 1 else Needs(0))

    @property
    def dimensions(self):
        return self.encoding.dimensions if self.kernel_size == 1 else (1,)

    def init(self, key, dims):
        keys, size = jax.random.split(key, 3), self.kernel_size
        widths = [2 * dims.num_heads, self.hidden_dim, dims.num_heads]
        layers = [linear_init(keys[n], size * widths[n], widths[n + 1]) for n in range(2)]
        if size > 1:
            layers = [x | {"kernel": x["kernel"].reshape(size, -1, x["kernel"].shape[1])} for x in layers]
        return {"encoding": self.encoding.init(keys[2], dims), "layers": layers}

    def resized(self, params, old_grid, new_grid, method="torch_bicubic"):
        encoding, inner = self.encoding.resized(params["encoding"], old_grid, new_grid, method)
        return replace(self, encoding=encoding), params | {"encoding": inner}

    def place(self, params, site, key=None):
        return self.encoding.place(params["encoding"], site, key)

    def observe(self, params, x, site, past=None):
        return self.encoding.observe(params["encoding"], x, site, past)

    def bias(self, params, q, q_site, k, k_site):
        if self.kernel_size > 1:
            return self._convolved(params, q, q_site, k, k_site)
        features, inner = self._features(params, q, q_site, k, k_site)
        adapted = pairwise(lambda x: _mlp(params["layers"], x, jax.nn.leaky_relu), features, self.hidden_dim)
        return jnp.where(related(q_site, k_site), inner + adapted, 0.0)

    def _features(self, params, q, q_site, k, k_site) -> tuple[Float[jax.Array, "T S F"], Float[jax.Array, "H T S"]]:
        """The inputs of f (logits and biases of all heads), and the biases."""
        logits = q.shape[-1] ** -0.5 * jnp.einsum("thd,shd->tsh", q, k, preferred_element_type=jnp.float32)
        inner = jnp.asarray(self.encoding.bias(params["encoding"], q, q_site, k, k_site), jnp.float32)
        inner = jnp.broadcast_to(inner, (logits.shape[2], *logits.shape[:2]))
        return jnp.concatenate([logits, jnp.moveaxis(inner, 0, -1)], axis=-1), inner

    def _convolved(self, params, q, q_site, k, k_site):
        order = Order.of(k_site, None)
        k, k_site = jax.tree.map(lambda leaf: jnp.asarray(leaf)[order.index], (k, k_site))
        pairs = related(q_site, k_site)
        counted = pairs & (order_of(k_site)[None] <= order_of(q_site)[:, None])
        features, inner = self._features(params, q, q_site, k, k_site)
        # Tokens that stand nowhere come first in this order, then the documents: tokens before a query's own
        # document are no neighbours. Behind its last key stand zeros, as far as the second layer reaches.
        beyond, document = self.kernel_size // 2, jnp.where(k_site.prefix == 0, k_site.segment, 0)
        begun = jnp.broadcast_to(document[None] >= q_site.segment[:, None], counted.shape)
        features = jnp.pad(jnp.where(counted[..., None], features, 0.0), ((0, 0), (0, beyond), (0, 0)))
        begun = jnp.pad(begun.astype(jnp.float32), ((0, 0), (0, beyond)), constant_values=1)

        def network(x):
            hidden = jax.nn.leaky_relu(_convolution(params["layers"][0], x[..., :-1]))
            hidden = jnp.where(x[..., -1:] > 0, hidden, 0.0)
            return _convolution(params["layers"][1], hidden)

        features = jnp.concatenate([features, begun[..., None]], axis=-1)
        adapted = pairwise(network, features, self.hidden_dim)[..., : len(k)]
        bias = jnp.where(pairs, inner + jnp.where(counted, adapted, 0.0), 0.0)
        return bias[:, :, order.rank]


def _convolution(layer: dict[str, Any], x: Float[jax.Array, "*N S F"]) -> Float[jax.Array, "*N S G"]:
    """torch's along the last axis but one, over zeros beyond both ends: kernel [W, F, G], W odd."""
    size, length = len(layer["kernel"]), x.shape[-2]
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(size // 2, size // 2), (0, 0)])
    spanned = jnp.concatenate([x[..., n : n + length, :] for n in range(size)], axis=-1)
    return linear(layer | {"kernel": layer["kernel"].reshape(spanned.shape[-1], -1)}, spanned)


def _mlp(layers: list[dict[str, Any]], x: Float[jax.Array, "*N F"], activation) -> Float[jax.Array, "*N H"]:
    return linear(layers[1], activation(linear(layers[0], x)))


def _layer_norm(norm: dict[str, Any], x: Float[jax.Array, "*N F"]) -> Float[jax.Array, "*N F"]:
    x = x - x.mean(axis=-1, keepdims=True)
    return norm["scale"] * x * jax.lax.rsqrt(jnp.square(x).mean(axis=-1, keepdims=True) + 1e-5) + norm["bias"]


def _check_hidden(encoding: Encoding, least: int = 1) -> None:
    if encoding.hidden_dim < least:
        raise ValueError(f"{encoding.spec_name} needs a hidden_dim of at least {least}, got {encoding.hidden_dim}")
