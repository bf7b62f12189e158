"""What blocks are made of: attention that interprets an encoding, an MLP, and what regularises a residual branch."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Float

from posjax.attention import Cache, ContextParallel
from posjax.hosting import Hosted
from posjax.spec import nearest

_MLPS = ["gelu", "gelu_exact", "swiglu"]


class Attention(nn.Module):
    """Multi-head self-attention over [B, T, M], interpreting a hosted encoding.

    With `num_kv_heads` fewer keys and values than queries, each pair of which serves as many heads in a row: grouped
    queries (Ainslie et al. 2023, arXiv 2305.13245), or a single one for all (Shazeer 2019, arXiv 1911.02150).

    Where the collection "intermediates" is mutable, attention is dense, and its "weights" [B, H, T, T], "queries" and "keys"
    as the encoding gets them, [B, T, H, D], are sown.
    """

    num_heads: int
    causal: bool = False
    implementation: str = "auto"
    dtype: Any = jnp.float32
    attention_dtype: Any = None  # of q, k and v; `dtype` where None
    param_dtype: Any = jnp.float32
    context: ContextParallel | None = None
    num_kv_heads: int | None = None  # num_heads where None

    @nn.compact
    def __call__(
        self,
        x: Float[jax.Array, "B T M"],
        hosted: Hosted,
        cache: Cache | None = None,
        cache_size: int | None = None,
    ) -> tuple[Float[jax.Array, "B T M"], Cache | None]:
        width = x.shape[-1]
        head_dim, num_kv_heads = width // self.num_heads, self.num_kv_heads or self.num_heads
        project = functools.partial(nn.DenseGeneral, dtype=self.dtype, param_dtype=self.param_dtype)
        inner = self.attention_dtype or self.dtype
        heads = {"query": self.num_heads, "key": num_kv_heads, "value": num_kv_heads}
        q, k, v = (project((count, head_dim), name=name)(x).astype(inner) for name, count in heads.items())
        context = None if self.is_initializing() else self.context  # a batch to initialise with is too small to share
        if cache is not None or cache_size is not None:
            told = dict(cache=cache, cache_size=cache_size, implementation=self.implementation)
            read, cache = hosted.attend_cached(q, k, v, x=x, **told)
        elif _watched(self):
            told = dict(causal=self.causal, implementation="dense", return_weights=True)
            read, weights = hosted.attend(q, k, v, x=x, **told)
            for name, value in {"weights": weights, "queries": q, "keys": k}.items():
                self.sow("intermediates", name, value)
        else:
            told = dict(causal=self.causal, implementation=self.implementation, context=context)
            read = hosted.attend(q, k, v, x=x, **told)
        out = project(width, axis=(-2, -1), name="out")
        return out(read.astype(self.dtype)), cache


class Mlp(nn.Module):
    """Two projections around a GELU, or three around a SwiGLU (Shazeer 2020, arXiv 2002.05202).

    kind: "gelu" is the tanh approximation, as in Google's ViTs and GPT-2; "gelu_exact" the exact one, as in timm's and
    transformers' ViTs; "swiglu" is silu(gate) * up. use_bias: None for biases around a GELU and none around a SwiGLU.
    """

    mlp_dim: int
    kind: str = "gelu"
    dtype: Any = jnp.float32
    param_dtype: Any = jnp.float32
    use_bias: bool | None = None

    @nn.compact
    def __call__(self, x: Float[jax.Array, "*B T M"]) -> Float[jax.Array, "*B T M"]:
        if self.kind not in _MLPS:
            raise ValueError(f"no MLP is named {self.kind!r}; {nearest(self.kind, _MLPS)}")
        use_bias = self.kind != "swiglu" if self.use_bias is None else self.use_bias
        dense = functools.partial(nn.Dense, use_bias=use_bias, dtype=self.dtype, param_dtype=self.param_dtype)
        hidden = dense(self.mlp_dim, name="up")(x)
        if self.kind == "swiglu":
            hidden = nn.silu(dense(self.mlp_dim, name="gate")(x)) * hidden
        else:
            hidden = nn.gelu(hidden, approximate=self.kind == "gelu")
        return dense(x.shape[-1], name="down")(hidden)


class DropPath(nn.Module):
    """Stochastic depth: a residual branch [B, T, M] is left out of a share `rate` of the sequences in training.

    Huang et al. (2016), arXiv 1603.09382; the branches that stay are divided by 1 - rate, as timm and big_vision do.
    """

    rate: float

    @nn.compact
    def __call__(self, x: Float[jax.Array, "B T M"], *, train: bool) -> Float[jax.Array, "B T M"]:
        if not 0 <= self.rate < 1:
            raise ValueError(f"drop_path={self.rate} must lie in [0, 1)")
        if not train or not self.rate:
            return x
        keep = jax.random.bernoulli(self.make_rng("dropout"), 1 - self.rate, (x.shape[0], 1, 1))
        return jnp.where(keep, x / (1 - self.rate), 0)


def _watched(module: nn.Module) -> bool:
    """Whether the caller asked for intermediates."""
    return not module.is_initializing() and module.is_mutable_collection("intermediates")
