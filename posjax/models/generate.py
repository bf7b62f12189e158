"""Sampling from a decoder, or an encoder-decoder, with a key-value cache."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int32, Key

from posjax.encoding import Array, Site
from posjax.hosting import batch_axis
from posjax.models.decoder import Decoder
from posjax.models.encoder_decoder import EncoderDecoder, Memory


class Sampling(NamedTuple):
    """How a token is chosen; numbers are traced, so that other ones compile nothing anew."""

    temperature: float | jax.Array | None  # None: the likeliest token
    top_k: int | jax.Array | None
    top_p: float | jax.Array | None
    stop: int | jax.Array | None


def generate(
    model: Decoder | EncoderDecoder,
    variables,
    tokens: Int32[Array, "B T"],
    site: Site,
    *,
    steps: int,
    memory: Memory | None = None,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop: int | None = None,
    key: Key[Array, ""] | None = None,
) -> Int32[jax.Array, "B steps"]:
    """Continues prompts by `steps` tokens; each stands one position behind the last in its row's last document.

    Caches hold T + steps tokens, or, in layers with a window, no more than a query sees of them (see `Decoder.prefill`).

    Args:
      tokens, site: prompts with their sites [B, T, ...], or [T, ...] for all alike; shorter ones are padded left or right
        with segment 0.
      memory: of an `EncoderDecoder`, what its `encode` makes of the sources; prompts then are where its decoder begins.
      temperature: 0 takes the likeliest token; above, tokens are drawn and `key` is needed.
      top_k, top_p: what tokens are drawn from, as in `truncated`, after the temperature.
      stop: a token behind which a row holds nothing but its repetition.

    Raises:
      ValueError: for a negative temperature, a missing key, a top_k or stop outside the vocabulary, a top_p outside (0, 1],
        either of them where nothing is drawn, a prompt row without tokens, an `EncoderDecoder` without memory or another
        model with it; for sites with a relation, which says nothing of tokens to come.
      FloatingPointError: where logits are not finite, as behind the end of a learned table (not under an outer jit).
    """
    _check(model, steps, temperature, top_k, top_p, stop, key)
    if jax.tree.leaves(site.relation):
        raise ValueError(
            "generated tokens stand one position further each, and site.relation does not say how they are related: call the "
            "model's prefill and extend, with the site of each token"
        )
    if isinstance(model, EncoderDecoder) != (memory is not None):
        raise ValueError("an EncoderDecoder, and no other model, needs memory=model.apply(..., method='encode')")
    key = jax.random.key(0) if key is None else key
    sampling = Sampling(temperature or None, top_k, top_p, stop)
    if batch_axis(site) is None:
        site = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (len(tokens), *leaf.shape)), site)
    continued, finite, full = _generate(model, variables, tokens, site, steps, sampling, key, memory)
    if not isinstance(finite, jax.core.Tracer):
        if not bool(full.all()):
            raise ValueError(f"prompt rows {[int(i) for i in jnp.flatnonzero(~full)]} hold no token (segment > 0)")
        if not bool(finite.all()):
            step = int(jnp.argmin(finite))
            raise FloatingPointError(
                f"logits are not finite from generated token {step} on: is position "
                f"{tokens.shape[1] - 1 + step} behind the end of a learned table (length={model.length})? Beside a window, "
                "positions must rise by at least 1 from token to token."
            )
    return continued


def truncated(
    logits: Float[Array, "*B V"],
    top_k: int | Int32[Array, ""] | None = None,
    top_p: float | Float[Array, ""] | None = None,
) -> Float[jax.Array, "*B V"]:
    """Logits with -inf for all but the `top_k` likeliest tokens and, of these, the nucleus that holds `top_p`.

    The nucleus is the smallest set of likeliest tokens whose probabilities sum to top_p or more: Holtzman et al. (2019),
    arXiv 1904.09751, section 3.1. Of equally likely tokens those with smaller numbers come first.
    """
    logits = jnp.asarray(logits)
    order = jnp.argsort(-logits, axis=-1, stable=True)
    rank = jnp.argsort(order, axis=-1)
    if top_k is not None:
        logits = jnp.where(rank < top_k, logits, -jnp.inf)
    if top_p is not None:
        share = jnp.take_along_axis(jax.nn.softmax(logits, axis=-1), order, axis=-1)
        before = jnp.cumsum(share, axis=-1) - share  # what likelier tokens hold
        logits = jnp.where(jnp.take_along_axis(before, rank, axis=-1) < top_p, logits, -jnp.inf)
    return logits


def _check(model, steps, temperature, top_k, top_p, stop, key) -> None:
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    if temperature < 0 or (temperature > 0 and key is None):
        raise ValueError(f"temperature {temperature} must be 0, or positive with a key")
    if temperature == 0 and (top_k is not None or top_p is not None):
        raise ValueError("top_k and top_p say what is drawn from: set a temperature above 0, or leave them out")
    if top_k is not None and not 1 <= top_k <= model.vocab_size:
        raise ValueError(f"top_k must be between 1 and the {model.vocab_size} tokens of the model, got {top_k}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p must be above 0 and at most 1, got {top_p}")
    if stop is not None and not 0 <= stop < model.vocab_size:
        raise ValueError(f"stop must be one of the model's {model.vocab_size} tokens, 0 or above, got {stop}")


def _run(model, variables, tokens, site, steps, sampling, key, memory):
    last = jnp.max(jnp.where(site.segment > 0, jnp.arange(tokens.shape[1], dtype=jnp.int32), -1), axis=1)  # [B]
    size, reads = tokens.shape[1] + steps, () if memory is None else (memory,)
    logits, caches = model.apply(variables, tokens, site, *reads, cache_size=size, method="prefill")

    def at_last(x):
        return jnp.take_along_axis(x, last.reshape(-1, *[1] * (x.ndim - 1)), axis=1)

    def step(carry, index):
        logits, site, caches, stopped = carry
        token = choose_tokens(logits, jax.random.fold_in(key, index), sampling, stopped)
        finite = jnp.isfinite(logits).all(axis=1) | stopped
        if sampling.stop is not None:
            stopped = stopped | (token == sampling.stop)
        site = site._replace(position=site.position + 1)
        out, caches = model.apply(variables, token[:, None], site, *reads, caches, method="extend")
        return (out[:, 0], site, caches, stopped), (token, finite.all())

    first = at_last(logits)[:, 0]
    start = (first, jax.tree.map(at_last, site), caches, jnp.zeros(len(tokens), bool))
    _, (continued, finite) = jax.lax.scan(step, start, jnp.arange(steps, dtype=jnp.int32))
    return continued.T, finite, last >= 0


def choose_tokens(
    logits: Float[jax.Array, "B V"], key: Key[Array, ""], sampling: Sampling, stopped: Bool[jax.Array, " B"]
) -> Int32[jax.Array, " B"]:
    if sampling.temperature is None:
        token = jnp.argmax(logits, axis=-1)
    else:
        logits = logits / sampling.temperature
        if sampling.top_k is not None or sampling.top_p is not None:
            logits = truncated(logits, sampling.top_k, sampling.top_p)
        token = jax.random.categorical(key, logits, axis=-1)
    token = token.astype(jnp.int32)
    return token if sampling.stop is None else jnp.where(stopped, jnp.int32(sampling.stop), token)


_generate = jax.jit(_run, static_argnums=(0, 4))
