"""Sampling from a decoder, or an encoder-decoder, with a key-value cache."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Bool, Float, Int32, Key, Shaped

from posjax.attention.explicit import spec_of, split_by_compiler
from posjax.encoding import Array, Site
from posjax.hosting import batch_axis
from posjax.models.decoder import Decoder
from posjax.models.encoder_decoder import EncoderDecoder, Memory
from posjax.models.transformer import token_at


class Sampling(NamedTuple):
    """The choice of a token; its numbers are traced, so that other numbers need no new compilation."""

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
    """Continues prompts by `steps` tokens, in the last document of each row.

    On a line each token stands one position behind the last. Text among images, whose positions have several axes, continues
    at 1 + the largest coordinate of its document. Any other continuation (an image in raster order, text behind an image in
    another layout than `Offset` or `Circle`) needs a `site` of all T + steps tokens.

        generate(model, variables, tokens, grid(16, 16), steps=256 - tokens.shape[1])
        generate(model, variables, tokens, multimodal([5, (1, 4, 6), 20], Diagonal()), steps=20)

    Caches hold T + steps tokens, or, in layers with a window, no more than a query sees of them (see `Decoder.prefill`).

    Args:
      model, variables: the model, and its parameters as `apply` takes them.
      tokens, site: prompts with their site, of T or T + steps tokens, [B, ...] or alike for all rows. Shorter prompts are
        padded left or right with segment 0.
      steps: the number of generated tokens.
      memory: of an `EncoderDecoder`: the result of its `encode` for the sources; the prompts then begin its decoder's text.
      temperature: 0 takes the likeliest token; above, tokens are drawn with `key`.
      top_k, top_p: restrict the draw, as in `truncated`, after the temperature.
      stop: a token that ends a row; the row then repeats it.

    Raises:
      ValueError: for a negative temperature, a missing key, a top_k or stop outside the vocabulary, a top_p outside (0, 1],
        top_k or top_p at temperature 0, a prompt row without tokens, an `EncoderDecoder` without memory or another model
        with it; for sites of another length, and for a site of the prompts alone on a grid (not checked under an outer jit)
        or with a relation.
      FloatingPointError: where logits are not finite, as behind the end of a learned table (not under an outer jit).

    >>> import posjax as pj
    >>> from posjax.models import BlockConfig
    >>> model = Decoder(vocab_size=256, encoding="alibi", block=BlockConfig(width=16, num_heads=2), depth=1)
    >>> tokens, site = jnp.int32([[72, 105], [65, 0]]), pj.padded(jnp.int32([[1, 1], [1, 0]]))
    >>> variables = jax.jit(model.init)(jax.random.key(0), tokens, site)
    >>> generate(model, variables, tokens, site, steps=3).shape
    (2, 3)
    """
    _check(model, steps, temperature, top_k, top_p, stop, key)
    if isinstance(model, EncoderDecoder) != (memory is not None):
        raise ValueError("an EncoderDecoder, and no other model, needs memory=model.apply(..., method='encode')")
    key = jax.random.key(0) if key is None else key
    sampling = Sampling(temperature or None, top_k, top_p, stop)
    if batch_axis(site) is None:
        site = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (len(tokens), *leaf.shape)), site)
    site, ahead = sites_ahead(site, tokens.shape[1], steps)
    continued, finite = _generate(model, variables, tokens, site, ahead, sampling, key, memory)
    if not isinstance(finite, jax.core.Tracer) and not bool(finite.all()):
        step = int(jnp.argmin(finite))
        position, length = tokens.shape[1] - 1 + step, model.length
        if length is not None and position >= length:
            why = f"is position {position} behind the end of a learned table (length={length})?"
        else:
            why = f"does {jnp.dtype(model.block.dtype).name} hold all activations and parameters?"
        raise FloatingPointError(
            f"logits are not finite from generated token {step} on: {why} Beside a window, positions must rise by at least "
            "1 from token to token."
        )
    return continued


def sites_ahead(site: Site, length: int, steps: int) -> tuple[Site, Site]:
    """Returns the sites [B, T] of prompts, and the sites [B, steps] of the tokens generated behind them."""
    given = site.segment.shape[1]
    if given not in (length, length + steps):
        raise ValueError(
            f"the site has {given} tokens: give those of the {length} in the prompts, or of all {length + steps} with the "
            f"{steps} that are generated"
        )
    prompt, ahead = (
        jax.tree.map(lambda leaf, part=part: leaf[:, part], site) for part in (slice(length), slice(length, None))
    )
    last = _last(prompt)
    if not isinstance(last, jax.core.Tracer) and bool((last < 0).any()):
        raise ValueError(f"prompt rows {[int(i) for i in jnp.flatnonzero(last < 0)]} hold no token (segment > 0)")
    if given > length:
        return prompt, ahead
    if jax.tree.leaves(site.relation):
        raise ValueError(
            "site.relation of the prompts does not say how generated tokens are related to them: give a site of all "
            f"{length + steps} tokens"
        )
    ends = jax.tree.map(lambda leaf: token_at(leaf, last), prompt)
    position, known = ends.position + 1, jnp.array(True)
    if site.position.ndim > 2 and site.position.shape[2] > 1:
        position, known = jax.vmap(_text_goes_on)(prompt, ends)
    if not isinstance(known, jax.core.Tracer) and not bool(known.all()):
        raise ValueError(
            f"positions of {site.position.shape[2]} axes that show no text do not say where the next token stands: give a "
            f"site of all {length + steps} tokens, as grid(height, width) in raster order, or multimodal([..., {steps}])"
        )
    count = jnp.arange(steps).reshape(-1, *[1] * (position.ndim - 2)).astype(position.dtype)
    ahead = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (len(leaf), steps, *leaf.shape[2:])), ends)
    return prompt, ahead._replace(position=position + count)


def _text_goes_on(site: Site, last: Site) -> tuple[Shaped[jax.Array, "1 A"], Bool[jax.Array, ""]]:
    """Returns the position of text behind a row's last token, on several axes, and whether its document has any text.

    Text stands on the diagonal, and its coordinates rise by 1 together; in raster order they never do.
    """
    position, own = jnp.asarray(site.position), (site.segment == last.segment) & (site.prefix == 0)
    largest = jnp.max(position, axis=(0, 1), where=own[:, None], initial=jnp.min(position))
    on_diagonal = (last.position == last.position[:, :1]).all()
    rises = ((position[1:] - position[:-1] == 1) & (own[1:] & own[:-1])[:, None]).all(axis=1).any()
    others = own & (position != last.position).any(axis=1)
    behind = on_diagonal & others.any() & ((position < last.position) | ~others[:, None]).all()
    return jnp.where(on_diagonal, last.position, largest) + 1, rises | behind


def _last(site: Site) -> Int32[jax.Array, " B"]:
    """Returns the index of each row's last token; -1 for a row without tokens."""
    return jnp.max(jnp.where(site.segment > 0, jnp.arange(site.segment.shape[1], dtype=jnp.int32), -1), axis=1)


def truncated(
    logits: Float[Array, "*B V"],
    top_k: int | Int32[Array, ""] | None = None,
    top_p: float | Float[Array, ""] | None = None,
) -> Float[jax.Array, "*B V"]:
    """Returns logits with -inf for all but the `top_k` likeliest tokens and, among these, the nucleus of `top_p`.

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
        before = jnp.cumsum(share, axis=-1) - share  # the share of likelier tokens
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


@split_by_compiler(lambda given: (spec_of(given["tokens"]), PartitionSpec()))
@functools.partial(jax.jit, static_argnums=0)
def _generate(model, variables, tokens, site, ahead, sampling, key, memory):
    steps = ahead.segment.shape[1]
    size, reads = tokens.shape[1] + steps, () if memory is None else (memory,)
    logits, caches = model.apply(variables, tokens, site, *reads, cache_size=size, at=_last(site), method="prefill")

    def choose(logits, index, stopped):
        token = choose_tokens(logits, jax.random.fold_in(key, index), sampling, stopped)
        finite = jnp.isfinite(logits).all(axis=1) | stopped
        if sampling.stop is not None:
            stopped = stopped | (token == sampling.stop)
        return token, stopped, finite.all()

    def step(carry, each):
        (token, stopped, caches), (index, site) = carry, each
        logits, caches = model.apply(variables, token[:, None], site, *reads, caches, method="extend")
        token, stopped, finite = choose(logits[:, 0], index, stopped)
        return (token, stopped, caches), (token, finite)

    first, stopped, first_finite = choose(logits[:, 0], jnp.int32(0), jnp.zeros(len(tokens), bool))
    by_step = jax.tree.map(lambda leaf: jnp.moveaxis(jnp.asarray(leaf), 1, 0)[:-1, :, None], ahead)
    indices = jnp.arange(1, steps, dtype=jnp.int32)
    _, (others, finite) = jax.lax.scan(step, (first, stopped, caches), (indices, by_step))
    return jnp.concatenate([first[None], others]).T, jnp.concatenate([first_finite[None], finite])


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
