"""Multi-head latent attention: keys and values of all heads out of one compressed vector per token."""

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Float

from posjax.attention import Cache
from posjax.attention.tile_bias import reads_content
from posjax.encoding import spec_text
from posjax.encodings.decoupled import decoupled
from posjax.hosting import Hosted, batch_axis
from posjax.models.layers import Linear, Norm, attend_whole, outputs_of_heads
from posjax.spec import parse_value, plain_arguments


@plain_arguments
@dataclass(frozen=True)
class Latent:
    """The sizes of multi-head latent attention, under the names in DeepSeek's configurations.

    `str` writes a text that `Latent.read` reads. DeepSeek-V3 has latent(kv_lora_rank=512, qk_nope_head_dim=128,
    qk_rope_head_dim=64, v_head_dim=128, q_lora_rank=1536).

    Args:
      kv_lora_rank: channels of the latent. A cache keeps it, and the rotated key of `qk_rope_head_dim` channels.
      qk_nope_head_dim: channels of a head's query and key without positions.
      qk_rope_head_dim: channels of a head's query and key that encodings rotate.
      v_head_dim: channels of a head's values.
      q_lora_rank: channels of the compressed queries; None: no compression.

    Raises:
      ValueError: for a size below 1.

    >>> from posjax.models import BlockConfig
    >>> latent = Latent(kv_lora_rank=8, qk_nope_head_dim=4, qk_rope_head_dim=2, v_head_dim=4)
    >>> BlockConfig(width=64, num_heads=4, latent=latent).channels    # of a head's queries and keys
    6
    """

    spec_name: ClassVar[str] = "latent"

    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None = None

    def __post_init__(self):
        for field in fields(self):
            size = getattr(self, field.name)
            if size is None and field.name == "q_lora_rank":
                continue
            if type(size) is not int or size < 1:
                raise ValueError(f"latent({field.name}=...) is a number of channels of at least 1, got {size!r}")

    @staticmethod
    def read(given: "Latent | str | None") -> "Latent | None":
        """Parses a text; returns other values unchanged.

        Raises:
          ValueError: for a text that `Latent` does not write.
        """
        return parse_value(given, Latent) if isinstance(given, str) else given

    def __str__(self) -> str:
        return spec_text(self)

    @property
    def head_dim(self) -> int:
        """Channels of a head's queries and keys."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim


class LatentAttention(nn.Module):
    """Multi-head latent attention with decoupled rotary embedding over [B, T, M], with a hosted encoding.

    DeepSeek-AI (2024), DeepSeek-V2, arXiv 2405.04434, section 2.1 and appendix C; DeepSeek-V3, arXiv 2412.19437, section
    2.1.1. A token's latent is c = norm(W_DKV x); its rotated key, one for all heads, is R k = R W_KR x. Head i has the key
    [W_UK_i c, R k], the value W_UV_i c and the query [q_i, R q'_i], projected from norm(W_DQ x), or from x. The encoding
    acts on k and q' alone, as if a head had no other channels; see `posjax.encodings.decoupled`. The scale of the logits is
    1 / sqrt(qk_nope_head_dim + qk_rope_head_dim), or the config's `logit_scale`: under a YaRN of factor s, DeepSeek-V3
    multiplies it by (0.1 mscale_all_dim ln s + 1)^2. The formulas have no norms. Section 3.1.2 of DeepSeek-V2 adds norms and
    factors of the compressed vectors; published code, and this code, have the norms alone.

    In cached decoding the cache holds [c, R k] alone. Since q_i . W_UK_i c = (W_UK_i^T q_i) . c, all heads share one key; its
    first channels are the value, and W_UV_i multiplies the sums.

    Parameters: query_down, query_norm and query_up, or query; kv_down [M, L + R]; kv_norm; key_up_kernel [L, H, N] and
    value_up_kernel [L, H, E]; out [H, E, M]; a gate's as in `outputs_of_heads`. The bias of queries is in query_down, or
    query; the bias of keys and values in kv_down. Norms are RMS norms with the config's `norm_epsilon`; the published code
    always has 1e-6.

    Intermediates: as `Attention`.

    Raises (on call):
      ValueError: for an encoding that reads the content of queries or keys in its bias; as `decoupled`.
    """

    config: Any  # a `BlockConfig` with `latent`
    causal: bool = False

    @nn.compact
    def __call__(
        self,
        x: Float[jax.Array, "B T M"],
        hosted: Hosted,
        cache: Cache | None = None,
        cache_size: int | None = None,
    ) -> tuple[Float[jax.Array, "B T M"], Cache | None]:
        c, sizes = self.config, self.config.latent
        in_heads = replace(hosted, encoding=decoupled(hosted.encoding, sizes.qk_nope_head_dim))
        _refuse(hosted, x, c.num_heads, c.turning_channels)
        options = dict(scale=c.scale) | ({} if c.softcap is None else dict(softcap=c.softcap))
        q, channels = self._queries(x), sizes.kv_lora_rank + sizes.qk_rope_head_dim
        down = Linear((channels,), use_bias="key" in c.attention_bias, **c.types, name="kv_down")(x)
        # Latents [B, T, L], and the keys that heads share, [B, T, R].
        latent, shared = jnp.split(down, [sizes.kv_lora_rank], axis=-1)
        latent = Norm(c, "rms", name="kv_norm")(latent)
        key_up, value_up = self._up("key", sizes.qk_nope_head_dim), self._up("value", sizes.v_head_dim)
        if cache is None:
            read = self._whole(x, q, latent, shared, key_up, value_up, in_heads, options)
        if cache is not None or cache_size is not None:
            rank, inner = sizes.kv_lora_rank, c.attention_dtype or c.dtype
            in_latents = replace(hosted, encoding=decoupled(hosted.encoding, rank))
            content, turned = jnp.split(q, [sizes.qk_nope_head_dim], axis=-1)
            q = jnp.concatenate([jnp.einsum("bthn,lhn->bthl", content, key_up), turned], axis=-1).astype(inner)
            k = jnp.concatenate([latent, shared], axis=-1)[:, :, None].astype(inner)
            if cache is None:
                cache = in_latents.remember(q, k, None, x=x, cache_size=cache_size, value_dim=rank)
            else:
                sums, cache = in_latents.attend_cached(q, k, None, x=x, cache=cache, value_dim=rank, **options)
                read = jnp.einsum("bthl,lhe->bthe", sums.astype(c.dtype), value_up)
        return outputs_of_heads(c, x, read), cache

    def _whole(self, x, q, latent, shared, key_up, value_up, hosted: Hosted, options):
        """Returns the attention of a whole sequence, with keys and values of every head: [B, T, H, E]."""
        c = self.config
        inner = c.attention_dtype or c.dtype
        content = jnp.einsum("btl,lhn->bthn", latent, key_up)
        # In float32, as the gradient of a key that heads share is a sum over heads.
        wide = shared.astype(jnp.promote_types(shared.dtype, jnp.float32))[:, :, None]
        turned = jnp.broadcast_to(wide, (*content.shape[:3], shared.shape[-1])).astype(shared.dtype)
        k, v = jnp.concatenate([content, turned], axis=-1), jnp.einsum("btl,lhe->bthe", latent, value_up)
        q, k, v = (each.astype(inner) for each in (q, k, v))
        return attend_whole(self, hosted, q, k, v, x, **options)

    def _queries(self, x) -> Float[jax.Array, "B T H D"]:
        c, sizes = self.config, self.config.latent
        heads, use_bias = (c.num_heads, sizes.head_dim), "query" in c.attention_bias
        if sizes.q_lora_rank is None:
            return Linear(heads, use_bias=use_bias, **c.types, name="query")(x)
        compressed = Linear((sizes.q_lora_rank,), use_bias=use_bias, **c.types, name="query_down")(x)
        compressed = Norm(c, "rms", name="query_norm")(compressed)
        return Linear(heads, use_bias=False, **c.types, name="query_up")(compressed)

    def _up(self, name: str, channels: int) -> Float[jax.Array, "L H C"]:
        """Returns the kernel from the latent to the keys or the values of each head."""
        c = self.config
        shape = (c.latent.kv_lora_rank, c.num_heads, channels)
        init = nn.initializers.lecun_normal((0,), (1, 2))
        return self.param(f"{name}_up_kernel", init, shape, c.param_dtype).astype(c.dtype)


def _refuse(hosted: Hosted, x: Float[jax.Array, "B T M"], num_heads: int, head_dim: int) -> None:
    """Refuses an encoding whose bias reads queries or keys: a cache of latents holds no keys."""
    encoding, params = hosted.encoding, hosted.params
    if "bias" not in encoding.hooks:
        return

    def check_token(site, x, q):
        site = encoding.observe(params, x, site)
        if any(reads_content(encoding, params, q, q, site, site)):
            raise ValueError(
                f"{encoding} reads the content of queries or keys in its bias, which latent attention does not keep; leave "
                "`latent` or this encoding out"
            )

    leading = 1 if batch_axis(hosted.site) is None else 2
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape[leading:]), leaf.dtype), hosted.site)
    q = jax.ShapeDtypeStruct((1, num_heads, head_dim), x.dtype)
    jax.eval_shape(check_token, shapes, jax.ShapeDtypeStruct((1, x.shape[-1]), x.dtype), q)
