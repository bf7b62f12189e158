"""Sampling from a decoder with a key-value cache."""

import jax
import jax.numpy as jnp
from jaxtyping import Int32, Key

from posjax.encoding import Array, Site
from posjax.models.decoder import Decoder


def generate(
    model: Decoder,
    variables,
    tokens: Int32[Array, "B T"],
    site: Site,
    *,
    steps: int,
    temperature: float = 0.0,
    key: Key[Array, ""] | None = None,
) -> Int32[jax.Array, "B steps"]:
    """Continues prompts by `steps` tokens; each stands one position behind the last in its row's last document.

    Args:
      tokens, site: prompts with their sites [B, T, ...]; shorter ones are padded left or right with segment 0.
      temperature: 0 takes the likeliest token; above, tokens are drawn and `key` is needed.

    Raises:
      ValueError: for a negative temperature, a missing key, or a prompt row without tokens.
      FloatingPointError: where logits are not finite, as behind the end of a learned table (not under an outer jit).
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    if temperature < 0 or (temperature > 0 and key is None):
        raise ValueError(f"temperature {temperature} must be 0, or positive with a key")
    key = jax.random.key(0) if key is None else key
    continued, finite, full = _generate(model, variables, tokens, site, steps, temperature, key)
    if not isinstance(finite, jax.core.Tracer):
        if not bool(full.all()):
            raise ValueError(f"prompt rows {[int(i) for i in jnp.flatnonzero(~full)]} hold no token (segment > 0)")
        if not bool(finite.all()):
            step = int(jnp.argmin(finite))
            raise FloatingPointError(
                f"logits are not finite from generated token {step} on: is position "
                f"{tokens.shape[1] - 1 + step} behind the end of a learned table (length={model.length})?"
            )
    return continued


def _run(model, variables, tokens, site, steps, temperature, key):
    last = jnp.max(jnp.where(site.segment > 0, jnp.arange(tokens.shape[1]), -1), axis=1)  # [B]
    size = tokens.shape[1] + steps
    logits, caches = model.apply(variables, tokens, site, cache_size=size, method=Decoder.prefill)

    def at_last(x):
        return jnp.take_along_axis(x, last.reshape(-1, *[1] * (x.ndim - 1)), axis=1)

    def pick(logits, step):  # [B, V] -> [B]
        if temperature == 0:
            return jnp.argmax(logits, axis=-1).astype(jnp.int32)
        draws = jax.random.categorical(jax.random.fold_in(key, step), logits / temperature, axis=-1)
        return draws.astype(jnp.int32)

    def step(carry, index):
        logits, site, caches = carry
        token = pick(logits, index)
        site = site._replace(position=site.position + 1)
        out, caches = model.apply(variables, token[:, None], site, caches, method=Decoder.extend)
        return (out[:, 0], site, caches), (token, jnp.isfinite(logits).all())

    start = (at_last(logits)[:, 0], jax.tree.map(at_last, site), caches)
    _, (continued, finite) = jax.lax.scan(step, start, jnp.arange(steps))
    return continued.T, finite, last >= 0


_generate = jax.jit(_run, static_argnums=(0, 4, 5))
