"""The bias and the mask of a composition, as a kernel computes them: term by term, on one head of one tile."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int32

from posjax.encoding import Array, Encoding, Params, Placed, Site, Sum
from posjax.encodings.in_kernel import InKernel, hosted

HIDDEN = -1e30  # the logit of a key that is not seen
DOCUMENT, ORDER, STANDS, POSITIONS = 0, 1, 2, 3  # rows of the marks; one more per term behind them


class Term(NamedTuple):
    """A member of a composition that acts on logits, with its parameters and its own view of where tokens stand."""

    encoding: InKernel
    params: Params
    q_site: Site
    k_site: Site


def members(encoding: Encoding) -> Iterator[Encoding]:
    """Those of a composition that are none themselves, in the order of `terms`, which leaves some out.

    Only of `Placed` and `Sum` themselves: what derives from them composes in a way of its own.
    """
    if type(encoding) is Placed:
        yield from members(encoding.encoding)
    elif type(encoding) is Sum:
        for part in encoding.parts:
            yield from members(part)
    else:
        yield encoding


def supported(encoding: Encoding) -> str | None:
    """Why the kernel cannot compute this encoding's bias, mask or product; None if it can."""
    for member in members(encoding):
        if "sink" in member.hooks:
            return f"{member} has a sink in the softmax's denominator, which the kernel does not know"
        if "read" in member.hooks:
            return f"{member} reads the attention weights, which the kernel never holds"
        if type(member).product is not Encoding.product:
            return f"{member} has a product of queries and keys of its own"
        if not hosted(member):
            return f"the bias or the mask of {member} is not written for a kernel (posjax/encodings/in_kernel.py)"
    return None


def acting(encoding: Encoding) -> tuple[InKernel, ...]:
    return tuple(member for member in members(encoding) if isinstance(member, InKernel))


def terms(encoding: Encoding, params: Params, q_site: Site, k_site: Site) -> list[Term]:
    """What acts on logits, each with the sites that it sees (`Placed` and `Sum` say whose these are).

    `params` may be None, for who asks of the sites only.
    """
    if type(encoding) is Placed:
        return terms(encoding.encoding, None if params is None else params[1], q_site, k_site)
    if type(encoding) is Sum:
        count = len(encoding.parts)
        views = [site.state if site.state else (site,) * count for site in (q_site, k_site)]
        parts = zip(encoding.parts, (None,) * count if params is None else params, *views, strict=True)
        return [term for part, p, *sites in parts for term in terms(part, p, *sites)]
    return [Term(encoding, params, q_site, k_site)] if isinstance(encoding, InKernel) else []


def constants(found: list[Term], num_heads: int) -> Float[jax.Array, "H P"]:
    """What every term knows of each head, side by side."""
    each = [jnp.asarray(t.encoding.kernel_constants(t.params, num_heads), jnp.float32) for t in found]
    return jnp.concatenate([*each, jnp.zeros((num_heads, 0))], axis=1)


def marks(
    site: Site, order: Array | None, positions: list[Array], padding: int, length: int
) -> Int32[jax.Array, "R N"]:
    """All that the kernel knows of where tokens stand, a row each: document, order, whether it stands, positions by term.

    Padding has document `padding`, as have the tokens added up to `length`.
    """
    document = jnp.where(site.segment > 0, site.segment, padding)
    order = jnp.zeros_like(document) if order is None else order
    rows = [document, order, jnp.where(site.prefix == 0, 1, 0), *positions]
    stacked = jnp.stack([jnp.asarray(row, jnp.int32) for row in rows])
    added = [(0, 0), (0, length - stacked.shape[1])]
    return jnp.concatenate(
        [jnp.pad(stacked[:1], added, constant_values=padding), jnp.pad(stacked[1:], added, mode="edge")]
    )


class Learns(NamedTuple):
    """A term with the columns of its constants; `learned` says whether they want a gradient."""

    encoding: InKernel
    start: int
    stop: int
    learned: bool


class Pairs(NamedTuple):
    """The marks of a tile's queries and keys, ready to be spread over the tile."""

    q: Callable[[int], jax.Array]  # the row of the marks, over the tile
    k: Callable[[int], jax.Array]
    q_bounds: Callable[[int], tuple]  # the least and the greatest position of a term
    k_bounds: Callable[[int], tuple]


class View(NamedTuple):
    """A term on one head of one tile."""

    encoding: InKernel
    learned: bool
    constants: tuple  # scalars
    q: jax.Array  # positions, over the tile
    k: jax.Array
    beyond: tuple | None  # whether the bias is one constant on this tile, and an offset that has it


def views(members: tuple[Learns, ...], constants: list, pairs: Pairs) -> list[View]:
    """Every term as this tile shows it; `constants` are the head's."""
    found = []
    for index, (encoding, start, stop, learned) in enumerate(members):
        q, k = pairs.q(POSITIONS + index), pairs.k(POSITIONS + index)
        found.append(View(encoding, learned, tuple(constants[start:stop]), q, k, _beyond(encoding, index, pairs)))
    return found


def _beyond(encoding: InKernel, index: int, pairs: Pairs) -> tuple | None:
    if not np.isfinite(least := encoding.constant_beyond):
        return None
    (q_low, q_high), (k_low, k_high) = pairs.q_bounds(index), pairs.k_bounds(index)
    after, before = k_low - q_high >= least, k_high - q_low <= -least
    return after | before, jnp.where(after, jnp.int32(least), jnp.int32(-least))


def add_bias(found: list[View], causal: bool, s: jax.Array, pairs: Pairs) -> jax.Array:
    """Logits of a tile with every term's bias, and HIDDEN where the query does not see the key."""
    seen = pairs.q(DOCUMENT) == pairs.k(DOCUMENT)
    if causal:
        seen = seen & (pairs.k(ORDER) <= pairs.q(ORDER))
    if not found:
        return jnp.where(seen, s, HIDDEN)
    bias, shown = 0.0, True
    for view in found:
        shown = shown & view.encoding.kernel_mask(view.q, view.k)
        bias = bias + (_bias(view) if view.constants else 0.0)
    apart = _apart(pairs)
    s = s if isinstance(bias, float) else s + jnp.where(apart, 0.0, bias)
    return jnp.where(seen if shown is True else seen & (shown | apart), s, HIDDEN)


def pull_bias(found: list[View], d_s: jax.Array, pairs: Pairs) -> list[jax.Array]:
    """The gradients of a tile's logits, [T, S], to the constants that want one, each summed over keys: [T]."""
    learned = [view for view in found if view.learned]
    d_bias = jnp.where(_apart(pairs), 0.0, d_s) if learned else d_s
    return [row for view in learned for row in _pull(view, d_bias)]


def _apart(pairs: Pairs) -> jax.Array:
    """Where one of the two tokens stands nowhere: such pairs have no bias and are shown."""
    return pairs.q(STANDS) + pairs.k(STANDS) < 2


def _bias(view: View) -> jax.Array:
    def by_offset():
        return view.encoding.kernel_bias(view.constants, view.k - view.q)

    if view.beyond is None:
        return by_offset()
    is_constant, offset = view.beyond
    constant = view.encoding.kernel_bias(view.constants, offset)
    return jax.lax.cond(is_constant, lambda: jnp.full(view.q.shape, constant, jnp.float32), by_offset)


def _pull(view: View, d_bias: jax.Array) -> tuple[jax.Array, ...]:
    encoding, shape = view.encoding, d_bias.shape

    def by_offset():
        def bias(rows):  # a constant per query, so that its gradient is a sum over keys
            return encoding.kernel_bias(tuple(jax.lax.broadcast_in_dim(r, shape, (0,)) for r in rows), view.k - view.q)

        rows = tuple(jnp.full(shape[:1], constant, jnp.float32) for constant in view.constants)
        return jax.vjp(bias, rows)[1](d_bias)[0]

    if view.beyond is None:
        return by_offset()
    is_constant, offset = view.beyond

    def constant():
        (weights,) = jax.vjp(lambda own: encoding.kernel_bias(own, offset), view.constants)[1](jnp.float32(1.0))
        total = jnp.sum(d_bias, axis=1)
        return tuple(weight * total for weight in weights)

    return jax.lax.cond(is_constant, constant, by_offset)
