"""A transformer block and its parts, all described by one value, `BlockConfig`."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Float

from posjax.attention import Cache, ContextParallel, attend
from posjax.attention.devices import device_of
from posjax.encoding import Encoding, Site
from posjax.hosting import Hosted, batch_axis
from posjax.models.latent import Latent, LatentAttention
from posjax.models.layers import Linear, Norm, at_tokens, attend_whole, normalised, outputs_of_heads
from posjax.spec import nearest, plain_arguments

NORMS = ["layer", "rms"]
PLACEMENTS = ["after", "parallel", "parallel_shared", "post", "pre", "sandwich"]
QK_NORMS = [False, True, "all_heads", "unit"]
ATTENTION_GATES = [None, "channel", "head"]
_PROJECTIONS = ("query", "key", "value", "out")
_EXACT_GELU = functools.partial(nn.gelu, approximate=False)


def _quick_gelu(x: jax.Array) -> jax.Array:
    return x * jax.nn.sigmoid(1.702 * x)


GATED = {"geglu": nn.gelu, "geglu_exact": _EXACT_GELU, "quick_geglu": _quick_gelu, "swiglu": nn.silu}
_ACTIVATIONS: dict[str, Callable] = {
    **GATED,
    "gelu": nn.gelu,
    "gelu_exact": _EXACT_GELU,
    "quick_gelu": _quick_gelu,
    "relu": nn.relu,
}
MLPS = sorted(_ACTIVATIONS)


@plain_arguments
@dataclass(frozen=True)
class BlockConfig:
    """The sizes and parts of a block, and the way it is computed.

    Args:
      width, num_heads: channels of a token (M) and heads of queries (H).
      head_dim: channels of a head (D); None: width / num_heads.
      num_kv_heads: heads of keys and values (K), each for H / K query heads in a row (grouped queries, Ainslie et al. 2023,
        arXiv 2305.13245; K = 1: Shazeer 2019, arXiv 1911.02150). None: num_heads.
      latent: sizes of multi-head latent attention (see `LatentAttention`), which replaces keys and values of each head.
        `width` may then be any number, and "key" and "value" are one projection.
      mlp: the activation. "gelu" is the tanh approximation, as in Google's ViTs and GPT-2; "gelu_exact" the exact one, as in
        timm's and transformers' ViTs; "quick_gelu" x sigmoid(1.702 x), as in CLIP; "relu". Gated (Shazeer 2020, arXiv
        2002.05202): "swiglu" silu(gate) * up; "geglu" gelu(gate) * up, as in Gemma; "geglu_exact"; "quick_geglu"
        g sigmoid(1.702 g) * (u + 1), as in gpt-oss, for projections g <= mlp_clip and |u| <= mlp_clip.
      mlp_dim: channels inside the MLP; None: 4 * width.
      mlp_bias: whether the MLP's projections have biases; None: only without a gate.
      mlp_clip: the bound in "quick_geglu"; None: no bound.
      mlp_norm: whether the input of the MLP's last projection is normed, as in EVA-02's base and large models.
      num_experts: MLPs beside each other; 0: one MLP, without a router. A router scores them for each token, which gets the
        best `experts_per_token`, weighted by the softmax of their scores, as in gpt-oss. All are computed: time grows with
        their number.
      attention_bias: the projections of attention with biases, of "query", "key", "value" and "out".
      norm: "layer", or "rms" (Zhang & Sennrich 2019, arXiv 1910.07467), which has no bias.
      norm_bias: whether a "layer" norm has a bias; False in ModernBERT and MPT.
      norm_epsilon: added to the variance or mean square.
      norm_offset: added to the learned scale of a norm, which starts at 1 - norm_offset; 1 in Gemma.
      placement: the place of norms.
        pre: x + f(norm(x)); post: norm(x + f(x)), as BERT; sandwich: x + norm(f(norm(x))), as Gemma 2;
        parallel: x + attention(norm(x)) + mlp(norm'(x)), as GPT-NeoX; parallel_shared: the same with one norm, as GPT-J;
        after: x + norm(f(x)), as OLMo 2.
      qk_norm: RMS norms of queries and keys before their rotation. False: none; True: each head, with a learned scale [D], as
        in Qwen3 and Gemma 3; "all_heads": all heads of a token together, with a learned scale [H D], as in OLMo 2; "unit":
        each head, without a scale. A tuple is a pattern over the layers: ("unit", False) in Llama 4.
      qkv_clip: bound of |q|, |k| and |v| behind their projection, as in MPT.
      logit_scale: factor of q . k; None: 1 / sqrt(head_dim).
      softcap: bound of the scaled q . k, see `posjax.attend`; not with a `context`.
      attention_gate: the gate of self-attention, see `outputs_of_heads`: "head" or "channel"; None: no gate.
      branch_scale: factor of a branch's output before it is added to the tokens; below 1 in Granite.
      layer_scale: initial value of a learned factor on each channel of a branch (Touvron et al. 2021, arXiv 2103.17239).
      dropout: rate, on each branch's output.
      drop_path: rate of stochastic depth in the last block; it grows linearly from 0 (see `drop_path`).
      drop_path_constant: True: all blocks have this rate, as in DeiT III (Touvron et al. 2022, arXiv 2204.07118).
      implementation: of attention, see `posjax.attend`.
      dtype, attention_dtype, param_dtype: of activations; of q, k and v (None: dtype); of parameters.
      context: the devices that share each sequence.

    Raises:
      ValueError: heads that do not divide the width, or keys' heads that do not divide the heads; an unknown name; a rate
        outside [0, 1); a field without meaning in latent attention.

    >>> c = BlockConfig(width=64, num_heads=8, num_kv_heads=2, mlp="swiglu", mlp_dim=172)
    >>> c.channels, c.key_heads, c.mlp_channels
    (8, 2, 172)
    >>> BlockConfig(width=64, num_heads=6)
    Traceback (most recent call last):
    ValueError: width 64 is not divisible by num_heads 6
    """

    width: int = 256
    num_heads: int = 4
    head_dim: int | None = None
    num_kv_heads: int | None = None
    latent: Latent | None = None
    mlp: str = "gelu"
    mlp_dim: int | None = None
    mlp_bias: bool | None = None
    mlp_clip: float | None = None
    mlp_norm: bool = False
    num_experts: int = 0
    experts_per_token: int = 1
    attention_bias: tuple[str, ...] = _PROJECTIONS
    norm: str = "layer"
    norm_bias: bool = True
    norm_epsilon: float = 1e-6
    norm_offset: float = 0.0
    placement: str = "pre"
    qk_norm: bool | str | tuple[bool | str, ...] = False
    qkv_clip: float | None = None
    logit_scale: float | None = None
    softcap: float | None = None
    attention_gate: str | None = None
    branch_scale: float = 1.0
    layer_scale: float | None = None
    dropout: float = 0.0
    drop_path: float = 0.0
    drop_path_constant: bool | None = None
    implementation: str = "auto"
    dtype: Any = jnp.float32
    attention_dtype: Any = None
    param_dtype: Any = jnp.float32
    context: ContextParallel | None = None

    def __post_init__(self):
        _check_names("norm", [self.norm], NORMS)
        _check_names("placement", [self.placement], PLACEMENTS)
        _check_names("MLP", [self.mlp], MLPS)
        _check_names("qk_norm", self.qk_norms, QK_NORMS)
        _check_names("attention_gate", [self.attention_gate], ATTENTION_GATES)
        _check_names("projection", self.attention_bias, list(_PROJECTIONS))
        if self.latent is not None:
            self._check_latent()
        elif self.num_heads < 1 or (self.head_dim is None and self.width % self.num_heads):
            raise ValueError(f"width {self.width} is not divisible by num_heads {self.num_heads}")
        if self.key_heads < 1 or self.num_heads % self.key_heads:
            divisors = [n for n in range(1, self.num_heads + 1) if self.num_heads % n == 0]
            raise ValueError(
                f"num_kv_heads {self.num_kv_heads} does not divide num_heads {self.num_heads}: it may be one of {divisors}"
            )
        if self.softcap is not None and self.context is not None:
            raise ValueError(
                f"softcap={self.softcap}: devices that share sequences know none; leave context or softcap out"
            )
        if self.num_experts and self.mlp_norm:
            raise ValueError("mlp_norm=True: experts have no norm; set mlp_norm=False, or num_experts=0")
        if self.num_experts and not 1 <= self.experts_per_token <= self.num_experts:
            raise ValueError(
                f"experts_per_token={self.experts_per_token} must lie between 1 and num_experts={self.num_experts}"
            )
        for name in ("dropout", "drop_path"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must lie in [0, 1)")

    def _check_latent(self) -> None:
        for name, plain in (("head_dim", None), ("num_kv_heads", None), ("qk_norm", False), ("qkv_clip", None)):
            if getattr(self, name) != plain:
                raise ValueError(
                    f"{name}={getattr(self, name)!r} is not of latent attention, whose sizes and norms are {self.latent}'s: "
                    f"set {name}={plain!r}, or latent=None"
                )
        if ("key" in self.attention_bias) != ("value" in self.attention_bias):
            raise ValueError(
                f"attention_bias={self.attention_bias}: latent attention projects to keys and values at once, so name both "
                "or neither"
            )

    @property
    def channels(self) -> int:
        """Channels of a head's queries and keys."""
        if self.latent is not None:
            return self.latent.head_dim
        return self.width // self.num_heads if self.head_dim is None else self.head_dim

    @property
    def turning_channels(self) -> int:
        """Channels of a head that an encoding may rotate."""
        return self.channels if self.latent is None else self.latent.qk_rope_head_dim

    @property
    def key_heads(self) -> int:
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def mlp_channels(self) -> int:
        """Channels inside the MLP."""
        return 4 * self.width if self.mlp_dim is None else self.mlp_dim

    @property
    def has_mlp_bias(self) -> bool:
        return self.mlp not in GATED if self.mlp_bias is None else self.mlp_bias

    @property
    def scale(self) -> float:
        """Factor of q . k."""
        return self.channels**-0.5 if self.logit_scale is None else self.logit_scale

    @property
    def qk_norms(self) -> tuple[bool | str, ...]:
        """`qk_norm` as a pattern over the layers."""
        return self.qk_norm if isinstance(self.qk_norm, tuple) else (self.qk_norm,)

    def of_layer(self, layer: int) -> "BlockConfig":
        """Returns the config of one layer: a field that is a pattern over the layers has that layer's value."""
        norms = self.qk_norms
        return self if len(norms) == 1 else replace(self, qk_norm=norms[layer % len(norms)])

    @property
    def types(self) -> dict[str, Any]:
        """The arguments `dtype` and `param_dtype` of a module."""
        return dict(dtype=self.dtype, param_dtype=self.param_dtype)


BLOCK_FIELDS = tuple(field.name for field in fields(BlockConfig))


def activation(name: str) -> Callable:
    """Returns the activation of this name.

    Raises:
      ValueError: for an unknown name.
    """
    _check_names("activation", [name], sorted(_ACTIVATIONS))
    return _ACTIVATIONS[name]


def _check_names(field: str, names, known: list) -> None:
    for name in names:
        if name not in known:
            raise ValueError(f"no {field} is named {name!r}; {nearest(str(name), list(map(str, known)))}")


class Attention(nn.Module):
    """Multi-head self-attention over [B, T, M] with a hosted encoding.

    One kernel [M, K, H / K + 2, D] projects to queries, keys and values: for each key head its query heads, its key and its
    value, so that devices may share the key heads. A gate has a kernel of its own: see `outputs_of_heads`.

    Where the collection "intermediates" is mutable, attention is dense; its "weights" [B, H, T, T] and the encoding's
    arguments "queries", "keys" and "values" [B, T, H, D] are sown.
    """

    config: BlockConfig
    causal: bool = False

    @nn.compact
    def __call__(
        self,
        x: Float[jax.Array, "B T M"],
        hosted: Hosted,
        cache: Cache | None = None,
        cache_size: int | None = None,
    ) -> tuple[Float[jax.Array, "B T M"], Cache | None]:
        c = self.config
        inner, served = c.attention_dtype or c.dtype, c.num_heads // c.key_heads
        use_bias = tuple(name in c.attention_bias for name in ("query",) * served + ("key", "value"))
        outputs = (c.key_heads, served + 2, c.channels)
        project = Linear(outputs, use_bias=use_bias, parts=(served, 1, 1), **c.types, name="qkv")
        hosted = hosted.in_layer(lambda rows: tuple(self._by_head(part) for part in project(rows)[:2]))
        q, k, v = map(self._by_head, project(x))
        q, k, v = (each.astype(inner) for each in (*qk_normed(c, q, k), v))
        options = dict(scale=c.logit_scale) | ({} if c.softcap is None else dict(softcap=c.softcap))
        if cache is not None or cache_size is not None:
            options |= dict(implementation=c.implementation, cache=cache, cache_size=cache_size)
            read, cache = hosted.attend_cached(q, k, v, x=x, **options)
        else:
            read = attend_whole(self, hosted, q, k, v, x, **options)
        return outputs_of_heads(c, x, read), cache

    def _by_head(self, x):
        """Returns a part of the projection, [..., K, N, D], by head, [..., K N, D]."""
        c = self.config
        x = x if c.qkv_clip is None else jnp.clip(x, -c.qkv_clip, c.qkv_clip)
        return x.reshape(*x.shape[:-3], -1, c.channels)


def qk_normed(c: BlockConfig, q: Float[jax.Array, "B T H D"], k: Float[jax.Array, "B S K D"]):
    """Returns queries and keys, normed by `c.qk_norm`; called within a module of attention, which holds the scales."""
    if c.qk_norm is False:
        return q, k
    if c.qk_norm == "unit":
        return tuple(normalised(x, False, c.norm_epsilon).astype(x.dtype) for x in (q, k))
    whole = c.qk_norm == "all_heads"
    normed = (
        Norm(c, "rms", name=name)(x.reshape(*x.shape[:2], -1) if whole else x).reshape(x.shape)
        for name, x in (("query_norm", q), ("key_norm", k))
    )
    return tuple(normed)


class CrossAttention(nn.Module):
    """Attention of tokens [B, T, M] over a memory [B, S, M'], such as the output of an encoder.

    There is no encoding; a query sees the memory of its own document (`site.segment`).
    """

    config: BlockConfig

    @nn.compact
    def __call__(
        self,
        x: Float[jax.Array, "B T M"],
        site: Site,
        memory: Float[jax.Array, "B S M2"],
        memory_site: Site,
    ) -> Float[jax.Array, "B T M"]:
        c, inner = self.config, self.config.attention_dtype or self.config.dtype
        linear = functools.partial(Linear, **c.types)
        q = linear((c.num_heads, c.channels), use_bias="query" in c.attention_bias, name="query")(x)
        k = linear((c.key_heads, c.channels), use_bias="key" in c.attention_bias, name="key")(memory)
        v = linear((c.key_heads, c.channels), use_bias="value" in c.attention_bias, name="value")(memory)
        q, k = qk_normed(c, q, k)
        options = dict(scale=c.logit_scale, softcap=c.softcap, implementation=c.implementation)
        run = functools.partial(attend, Encoding(), (), **options)
        sites = [each._replace(position=jnp.zeros_like(each.segment), state=()) for each in (site, memory_site)]
        axes = (0, 0, 0, *map(batch_axis, sites))
        read = jax.vmap(run, in_axes=axes)(q.astype(inner), k.astype(inner), v.astype(inner), *sites)
        return linear((c.width,), 2, "out" in c.attention_bias, name="out")(read.astype(c.dtype))


class Mlp(nn.Module):
    """Two projections around an activation, or three around a gated one."""

    config: BlockConfig

    @nn.compact
    def __call__(self, x: Float[jax.Array, "*B T M"]) -> Float[jax.Array, "*B T M"]:
        c = self.config
        linear = functools.partial(Linear, use_bias=c.has_mlp_bias, **c.types)
        inside = (c.mlp_channels,)
        up = linear(inside, name="up")(x)
        gate = linear(inside, name="gate")(x) if c.mlp in GATED else None
        inner = activated(c, up, gate)
        return linear((x.shape[-1],), name="down")(Norm(c, name="norm")(inner) if c.mlp_norm else inner)


def activated(c: BlockConfig, up: Float[jax.Array, "..."], gate: Float[jax.Array, "..."] | None):
    """Returns the input of an MLP's last projection."""
    # The backward pass computes the derivative again: cheaper than to store and read it. On GPUs XLA would merge both, and
    # lose the activation and bias that cuBLAS adds to the product.
    active = jax.checkpoint(activation(c.mlp), prevent_cse=device_of(up).platform == "gpu")
    if gate is None:
        return active(up)
    if c.mlp != "quick_geglu":
        return active(gate) * up
    if c.mlp_clip is not None:
        gate, up = jnp.minimum(gate, c.mlp_clip), jnp.clip(up, -c.mlp_clip, c.mlp_clip)
    return active(gate) * (up + 1)


class Experts(nn.Module):
    """MLPs that a router weights for each token; see `BlockConfig.num_experts`.

    Kernels are [E, M, F] and [E, F, M], biases [E, F] and [E, M], for E experts of F channels inside.
    """

    config: BlockConfig

    @nn.compact
    def __call__(self, x: Float[jax.Array, "B T M"]) -> Float[jax.Array, "B T M"]:
        c = self.config
        scores = Linear((c.num_experts,), **c.types, name="router")(x)
        best, which = jax.lax.top_k(scores, c.experts_per_token)
        weights = jax.nn.softmax(best, axis=-1)
        weights = jnp.einsum("btk,btke->bte", weights, jax.nn.one_hot(which, c.num_experts, dtype=weights.dtype))
        up = self._project("up", "btm,emf->btef", x, c.mlp_channels)
        gate = self._project("gate", "btm,emf->btef", x, c.mlp_channels) if c.mlp in GATED else None
        out = self._project("down", "btef,efm->btem", activated(c, up, gate), c.width)
        return jnp.einsum("btem,bte->btm", out, weights)

    def _project(self, name: str, product: str, x, outputs: int):
        c = self.config
        init = nn.initializers.lecun_normal(batch_axis=(0,))
        kernel = self.param(f"{name}_kernel", init, (c.num_experts, x.shape[-1], outputs), c.param_dtype)
        y = jnp.einsum(product, x, kernel.astype(c.dtype))
        if not c.has_mlp_bias:
            return y
        bias = self.param(f"{name}_bias", nn.initializers.zeros, (c.num_experts, outputs), c.param_dtype)
        return y + at_tokens(bias, y)


class Block(nn.Module):
    """Self-attention, cross-attention where there is a memory, and an MLP, each added to the tokens [B, T, M]."""

    config: BlockConfig
    causal: bool = False
    attention_norm: bool = True  # False leaves out the norm before attention

    @nn.compact
    def __call__(
        self,
        x: Float[jax.Array, "B T M"],
        hosted: Hosted,
        code: Float[jax.Array, "B T M"] | None = None,
        rate: float | Float[jax.Array, ""] = 0.0,
        key: jax.Array | None = None,
        *,
        memory: tuple[Float[jax.Array, "B S M2"], Site] | None = None,
        cache: Cache | None = None,
        cache_size: int | None = None,
    ) -> tuple[Float[jax.Array, "B T M"], Cache | None]:
        """Returns the tokens behind the block, and its cache.

        Args:
          code: is normed and added to the input of attention.
          rate: of stochastic depth.
          key: of dropout and stochastic depth; None outside training.
          memory: tokens for cross-attention, and their site.
        """
        c = self.config
        keys = iter([None] * 3 if key is None else jax.random.split(key, 3))
        joined = functools.partial(self._joined, rate=rate)
        normed = self._before("attention", x)
        read = normed if code is None else normed + Norm(c, name="code_norm")(code)
        attention = Attention if c.latent is None else LatentAttention
        y, cache = attention(c, self.causal, name="attention")(read, hosted, cache, cache_size)
        behind = joined("attention", x, y, next(keys))
        if memory is not None:
            y = CrossAttention(c, name="cross")(self._before("cross", behind), hosted.site, *memory)
            behind = joined("cross", behind, y, next(keys))
        if c.placement == "parallel_shared":
            before = normed
        else:
            before = self._before("mlp", x if c.placement == "parallel" else behind)
        mlp = Experts(c, name="experts") if c.num_experts else Mlp(c, name="mlp")
        return joined("mlp", behind, mlp(before), next(keys)), cache

    def _before(self, branch: str, x):
        """Returns the input of a branch."""
        bare = self.config.placement in ("after", "post") or (branch == "attention" and not self.attention_norm)
        return x if bare else Norm(self.config, name=f"{branch}_norm")(x)

    def _joined(self, branch: str, x, y, key, rate):
        """Adds a branch's output y to tokens x."""
        c = self.config
        if c.placement in ("after", "sandwich"):
            y = Norm(c, name=f"{branch}_out_norm" if c.placement == "sandwich" else f"{branch}_norm")(y)
        y = y if c.branch_scale == 1 else y * c.branch_scale
        y = nn.Dropout(c.dropout, deterministic=key is None)(y, rng=key)
        if c.layer_scale is not None:
            init = nn.initializers.constant(c.layer_scale)
            y = y * at_tokens(self.param(f"{branch}_scale", init, (c.width,), c.param_dtype), y)
        if key is not None and c.drop_path:
            y = drop_path(jax.random.fold_in(key, 1), y, rate)
        x = x + y
        return Norm(c, name=f"{branch}_norm")(x).astype(x.dtype) if c.placement == "post" else x


def drop_path(key: jax.Array, x: Float[jax.Array, "B T M"], rate: float | jax.Array) -> Float[jax.Array, "B T M"]:
    """Stochastic depth: returns a branch x with zeros for a share `rate` of the sequences.

    Huang et al. (2016), arXiv 1603.09382. The other sequences are divided by 1 - rate, as in timm and big_vision.
    """
    keep = jax.random.bernoulli(key, jnp.float32(1 - rate), (x.shape[0], 1, 1))
    return jnp.where(keep, x / (1 - rate), 0).astype(x.dtype)
