"""Attention for TPUs that computes biases and masks in the kernel, forward and backward, and holds no n x n array.

A bias that is a function of the offset (`OffsetBias`) is a row of numbers, one for each offset, where tokens of a document
stand side by side; a difference of numbers of key and query is one number for each key. Both are made outside of the
kernels. Their gradients go back to the encoding's parameters by JAX's own rules. README.md tells the kernels' state.
"""

import functools
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int32

from posjax.attention.blockwise import SAVED, with_sink, without_sink
from posjax.attention.dense import WHOLE, Operands, Part, repeated
from posjax.attention.terms import DOCUMENT, ORDER, STANDS, biased, is_of_offset, is_product, lines_refusal, marks
from posjax.attention.tiles import may_see, tile_bounds
from posjax.attention.tpu.rows import EIGHT, LANES, side_of_block
from posjax.attention.tpu.steps import (
    PARTLY,
    WHOLLY,
    KernelOperands,
    KernelPlan,
    tpu_attention,
    tpu_attention_gradients,
)
from posjax.encoding import Acting, Array, Encoding, Site, axes, members
from posjax.encodings.offsets import Line, for_all, of_batch
from posjax.encodings.tables import numpy_if_known
from posjax.gradients import split_floats, with_gradient
from posjax.mask import coordinates

_BLOCKS = (512, 384, 256)  # tokens a side of a block; README.md compares sizes
_MEMORY = 64 * 2**20  # bytes of the vector memory for a kernel
_HELD = 44 * 2**20  # of these for arrays of whole heads, each twice: gradients of queries, rows and tables with theirs

_VECTORS = "q_vectors", "q_table", "k_vectors", "k_table"  # of `KernelOperands`


def refusal(encoding: Encoding, x: Operands, *, devices: int = 1) -> str | None:
    """Why the kernel cannot compute this attention; None if it can.

    Args:
      devices: that share the queries of a sequence.
    """
    if not (x.q.dtype == x.k.dtype == x.v.dtype) or x.q.dtype not in (jnp.bfloat16, jnp.float32):
        return f"q, k and v must be bfloat16, or float32, all three; got {x.q.dtype}, {x.k.dtype} and {x.v.dtype}"
    width = (x.q if x.rotated_q is None else x.rotated_q).shape[-1]
    rows, held = sum(map(_padded, (len(x.q), len(x.k)))), 4 * 2 * _padded(len(x.q)) * width
    biases = biased(encoding, None, x.q_site, x.k_site)
    # Tables, padded to whole lanes, their gradients, and the gradients of the tokens' vectors.
    terms = sum(one.encoding.terms for one in biases if is_product(one.encoding))
    held += terms * 2 * rows * (-(-width // LANES) * LANES * (4 + x.q.dtype.itemsize) + 2 * width)
    if held + 4 * 4 * 8 * rows > _HELD:
        return f"it holds gradients of a head's queries in the vector memory: {len(x.q)} of {width} channels do not fit"
    masks = [(f"the mask of {encoding}", term.q) for term in encoding.mask().terms(x.q_site, x.k_site)]
    if reason := lines_refusal(masks, most=None):
        return reason
    if biases and devices > 1:
        return f"it reads the bias of {biases[0].encoding} by places in the arrays, and each device has a part of the queries"
    for one in biases:
        if not _by_offset(one) and not _is_difference(one, x.q_order is not None):
            return _bias_refusal(one)
        known = all(isinstance(leaf, np.ndarray) for site in (one.q_site, one.k_site) for leaf in site[:3])
        if _by_offset(one) and known and not line_of(one.q_site, one.k_site).holds:
            return f"it reads the bias of {one.encoding} by places in the arrays, and tokens do not stand side by side"
    if "sink" in encoding.hooks and not all(map(_by_offset, biases)):
        return f"{encoding} has a sink and a bias that is a difference of numbers of key and query"
    return None


def _bias_refusal(one: Acting) -> str:
    if is_of_offset(one.encoding) or is_product(one.encoding):
        return lines_refusal([(f"the bias of {one.encoding}", coordinates(one.q_site))])
    return (
        f"the bias of {one.encoding} is not known to be a function of the offset (OffsetBias in posjax/encodings/pairs.py), "
        "or of that and one token (ProductBias in offsets.py) nor, in causal attention, a difference of numbers of key and "
        "query (`is_difference`)"
    )


def _by_offset(one: Acting) -> bool:
    """Whether the bias is a row of numbers, or a table of vectors, by whole offsets on a line."""
    known = is_of_offset(one.encoding) or is_product(one.encoding)
    return known and lines_refusal([("", coordinates(one.q_site))]) is None


def _is_difference(one: Acting, causal: bool) -> bool:
    """Whether the bias is known to be a potential's difference: as for splash attention, of queries that are the keys."""
    positions = one.q_site.position, one.k_site.position
    known = all(isinstance(position, np.ndarray) for position in positions)
    return causal and known and np.array_equal(*positions) and one.encoding.is_difference(one.k_site)


def line_of(q_site: Site, k_site: Site) -> Line:
    """The line of whole positions on one axis, found in O(T log T); one for all sequences of a batch."""
    where = numpy_if_known(*q_site[:3], *k_site[:3])
    (q_lead, q_document), (k_lead, k_document) = (_leads(where, site) for site in (q_site, k_site))
    q = where.argmax(q_document > 0)
    k = where.argmax((k_document == q_document[q]) & (k_document > 0))
    least = most = (k_lead[k] - q_lead[q]).astype(np.int32)
    if where is jnp:
        least, most = of_batch(least, most)
    document, lead = (where.concatenate(x) for x in ((q_document, k_document), (q_lead + least, k_lead)))
    order = where.argsort(document, stable=True)
    document, lead = document[order], lead[order]
    same = (lead[1:] == lead[:-1]) | (document[1:] != document[:-1]) | (document[1:] == 0)
    return Line(least, for_all(where.all(same)) & (least == most))


def _leads(where, site: Site) -> tuple[Int32[Array, " T"], Int32[Array, " T"]]:
    """Returns how far positions are ahead of places, and the document: 0 for tokens without a bias."""
    position, segment, prefix = (where.asarray(x) for x in (axes(site)[:, 0], site.segment, site.prefix))
    return position - np.arange(len(position), dtype=np.int32), where.where((prefix == 0) & (segment > 0), segment, 0)


class _Plan(NamedTuple):
    """The static arguments: hashable."""

    encoding: Encoding
    part: Part
    kernel: KernelPlan
    on_line: bool  # whether that is known


class _Tables(NamedTuple):
    """Tables of tiles by the places of tokens, made before known sites become traced."""

    first: list[Array]  # the lines of the biases
    holds: Array  # whether all of them are lines
    q_marks: Int32[Array, "R T"]
    k_marks: Int32[Array, "R S"]
    tiles: Int32[Array, "O N"]
    fetched_k: Int32[Array, "O N"]
    fetched_q: Int32[Array, "O N"]


def pallas_tpu(
    encoding: Encoding,
    x: Operands,
    *,
    scale: float,
    part: Part = WHOLE,
    interpret: bool = False,
    blocks: tuple[int, int] | None = None,
) -> Float[jax.Array, "T H E"]:
    """Computes `dense` for what `refusal` does not refuse; differentiable in all floats of the operands.

    Where only the running program knows how tokens stand, and they do not stand side by side, it computes in tiles.

    Args:
      interpret: runs the kernels as plain operations, on any machine, slowly.
      blocks: tokens of queries and of keys in a block, multiples of 128; None takes what suits.

    Raises:
      ValueError: with the reason why the kernel cannot compute it.
    """
    if reason := refusal(encoding, x):
        raise ValueError(f"the kernel for TPUs cannot compute this: {reason}; take implementation='blockwise'")
    blocks = blocks or (side_of_block(len(x.q), _BLOCKS), side_of_block(len(x.k), _BLOCKS))
    masks = encoding.mask().terms(x.q_site, x.k_site)
    all_stand = all(isinstance(site.prefix, np.ndarray) and not site.prefix.any() for site in (x.q_site, x.k_site))
    static = tuple((term.mask, len(term.q)) for term in masks), scale, x.q_order is not None, all_stand
    kernel = KernelPlan(*static, *blocks, _MEMORY, interpret)
    tables = _tables(kernel, encoding, x)
    plan = _Plan(encoding, part._replace(orders=None), kernel, isinstance(tables.holds, np.bool_ | bool))
    out, log_total = _attention(plan, (x, tables))
    return with_sink(encoding, x.params, x.q_site, out, log_total, part)


def _padded(length: int) -> int:
    return length + -length % side_of_block(length, _BLOCKS)


def _forward(plan: _Plan, given: tuple[Operands, _Tables]):
    """The output [T, H, E] and the log of the softmax's denominator [H, T]."""
    x, tables = given

    def in_kernel(x):
        out, log_total = tpu_attention(plan.kernel, _operands(plan, x, tables, _terms(plan, x, tables)))
        return jnp.moveaxis(out, 0, 1)[: len(x.q)], log_total[:, : len(x.q)]

    return in_kernel(x) if plan.on_line else jax.lax.cond(tables.holds, in_kernel, _in_tiles(plan), x)


def _in_tiles(plan: _Plan):
    encoding = _OwnHeads(plan.encoding, plan.part) if plan.part.heads else plan.encoding
    return lambda x: without_sink(encoding, x, scale=plan.kernel.scale)


def _backward(plan: _Plan, given: tuple[Operands, _Tables], found, cotangents):
    x, tables = given
    floats, joined = split_floats(x)

    def in_kernel(floats, found, cotangents):
        return split_floats(_pulled(plan, joined(floats), tables, found, cotangents))[0]

    def in_tiles(floats, found, cotangents):
        return jax.vjp(lambda floats: _in_tiles(plan)(joined(floats)), floats)[1](cotangents)[0]

    if plan.on_line:
        return joined(in_kernel(floats, found, cotangents)), tables
    return joined(jax.lax.cond(tables.holds, in_kernel, in_tiles, floats, found, cotangents)), tables


def _pulled(plan: _Plan, x: Operands, tables: _Tables, found, cotangents) -> Operands:
    """The gradients of the operands, by the kernel; its integers mean nothing."""
    (out, log_total), (d_out, d_log_total) = found, cotangents
    read = "params", "q", "k", "q_site", "k_site"
    floats, joined = split_floats({name: getattr(x, name) for name in read})

    def of_floats(floats):
        return _terms(plan, x._replace(**joined(floats)), tables)

    terms, pull = jax.vjp(of_floats, floats)
    operands = _operands(plan, x, tables, terms)
    added = [(0, 0), (0, operands.q.shape[1] - len(x.q))]
    inner = jnp.einsum("the,the->ht", d_out, out, preferred_element_type=jnp.float32) - d_log_total
    by_head = jnp.pad(jnp.moveaxis(d_out, 1, 0), [*added, (0, 0)]).astype(x.v.dtype)
    grads = tpu_attention_gradients(plan.kernel, operands, by_head, jnp.pad(log_total, added), jnp.pad(inner, added))
    pulled = joined(pull({name: grads[name] for name in terms})[0])
    factors = {name: _of_tokens(grads[name], y) for name, y in (("q", x.rotated_q), ("k", x.rotated_k), ("v", x.v))}
    return x._replace(**pulled, rotated_q=factors["q"], rotated_k=factors["k"], v=factors["v"])


def _of_tokens(by_head: Float[Array, "H N C"], like: Float[Array, "T K C"]) -> Float[jax.Array, "T K C"]:
    """The gradient of tokens from one of padded tokens by head of queries, summed over the heads that share one."""
    length, heads, width = like.shape
    summed = by_head.reshape(heads, -1, *by_head.shape[1:]).sum(axis=1)
    return jnp.moveaxis(summed, 0, 1)[:length].astype(like.dtype)


_attention = with_gradient(_forward, _backward, saved=SAVED)


def _laid_out(y: Float[Array, "N H C"], marks: Int32[Array, "R N2"]) -> Float[jax.Array, "H N2 C"]:
    return jnp.pad(jnp.moveaxis(y, 1, 0), [(0, 0), (0, marks.shape[1] - len(y)), (0, 0)])


def _terms(plan: _Plan, x: Operands, tables: _Tables) -> dict[str, jax.Array]:
    """The row of biases, the potential of the keys and the vectors, as `KernelOperands` has them, where a member has one."""
    sides, own = (tables.q_marks, tables.k_marks), x.rotated_q.shape[1]
    (queries, keys), heads = (marks.shape[1] for marks in sides), plan.part.all_heads(own)
    q, k = map(plan.part.among_heads, (x.q, repeated(x.k, own)))
    steps, firsts = np.arange(queries + keys, dtype=np.int32), iter(tables.first)
    found: dict[str, list] = {"row": [], "potential": [], **{name: [] for name in _VECTORS}}
    for one in biased(plan.encoding, x.params, x.q_site, x.k_site):
        member, params, q_site, k_site = one
        first = next(firsts) if _by_offset(one) else 0
        rising, falling = first + 1 - queries + steps, first - 1 + keys - steps
        numbers = None
        if is_product(member):
            numbers, factors = member.of_keys(params, k), member.factors(params, q, q_site, k, k_site)
            for n, (name, places) in enumerate((("q", rising), ("k", falling))):
                if factors[n] is not None:
                    table = jnp.moveaxis(member.of_offset(params, places)[n], 1, 0).astype(jnp.float32)
                    found[f"{name}_table"].append(jnp.broadcast_to(table, (heads, *table.shape[1:])))
                    found[f"{name}_vectors"].append(_laid_out(factors[n], sides[n]))
        elif _by_offset(one):
            row = member.of_offset(params, falling[None, :, None], heads)[:, 0]
            found["row"].append(jnp.broadcast_to(row.astype(jnp.float32), (heads, len(steps))))
        else:
            numbers = member.potential(params, k_site, heads)
        if numbers is not None:
            numbers = jnp.asarray(numbers, jnp.float32)[..., None]
            found["potential"].append(_laid_out(numbers, tables.k_marks)[..., 0])
    joined = {name: jnp.concatenate(each, 2) if name in _VECTORS else sum(each) for name, each in found.items() if each}
    return {name: plan.part.own_heads(each) for name, each in joined.items()}


def _operands(plan: _Plan, x: Operands, tables: _Tables, terms: dict[str, jax.Array]) -> KernelOperands:
    sides = (x.rotated_q, tables.q_marks), (x.rotated_k, tables.k_marks), (x.v, tables.k_marks)
    shared = {name: getattr(tables, name) for name in ("q_marks", "k_marks", "tiles", "fetched_k", "fetched_q")}
    exact = any(member.exact for member in members(plan.encoding) if is_product(member))
    dtype = jnp.float32 if exact else x.v.dtype
    vectors = {name: terms[name].astype(dtype) if name in terms else None for name in _VECTORS}
    return KernelOperands(
        *(_laid_out(*side) for side in sides), terms.get("row"), terms.get("potential"), **vectors, **shared
    )


def _tables(plan: KernelPlan, encoding: Encoding, x: Operands) -> _Tables:
    biases = biased(encoding, None, x.q_site, x.k_site)
    lines = [line_of(one.q_site, one.k_site) for one in biases if _by_offset(one)]
    unknown = [line.holds for line in lines if not isinstance(line.holds, np.bool_)]
    masks = encoding.mask().terms(x.q_site, x.k_site)
    sides = (
        (x.q_site, x.q_order, [axis for term in masks for axis in term.q], 0, plan.q_block),
        (x.k_site, x.k_order, [axis for term in masks for axis in term.k], -1, plan.k_block),
    )
    q_marks, k_marks = (
        marks(site, order, positions, padding, len(site.segment) + -len(site.segment) % block)
        for site, order, positions, padding, block in sides
    )
    bounds = [tile_bounds((site, order), site.segment > 0, block) for site, order, _, _, block in sides]
    found = may_see(encoding, *bounds).T
    whole = jnp.asarray(False) if masks else _whole(plan, q_marks, k_marks)
    tiles = jnp.where(found, jnp.where(whole, WHOLLY, PARTLY), 0)
    fetched = _fetched(_known_tiles(plan, encoding, x, found.shape))
    q_marks, k_marks = (jnp.pad(y, [(0, -len(y) % EIGHT), (0, 0)]) for y in (q_marks, k_marks))
    holds = functools.reduce(jnp.logical_and, unknown) if unknown else np.True_
    return _Tables([line.first for line in lines], holds, q_marks, k_marks, tiles, *fetched)


def _whole(plan: KernelPlan, q_marks: Int32[Array, "R T"], k_marks: Int32[Array, "R S"]) -> Bool[jax.Array, "O N"]:
    """Marks tiles in which every query sees every key and all tokens stand somewhere."""
    q, k = (y.reshape(len(y), -1, size) for y, size in ((q_marks, plan.q_block), (k_marks, plan.k_block)))
    (q_low, q_high), (k_low, k_high) = ((y.min(axis=2)[:, None], y.max(axis=2)[:, None]) for y in (q, k))
    k_low, k_high = (jnp.swapaxes(y, 1, 2) for y in (k_low, k_high))
    one = (q_low[DOCUMENT] == q_high[DOCUMENT]) & (k_low[DOCUMENT] == k_high[DOCUMENT])
    found = one & (q_low[DOCUMENT] == k_low[DOCUMENT]) & (q_low[STANDS] + k_low[STANDS] == 2)
    return found & (k_high[ORDER] <= q_low[ORDER]) if plan.causal else found


def _known_tiles(plan: KernelPlan, encoding: Encoding, x: Operands, shape: tuple[int, int]) -> Bool[np.ndarray, "O N"]:
    """The tiles that may be seen by sites and orders, or by orders alone, as far as a traced program knows them."""
    orders = [x.q_order, x.k_order]
    if not all(isinstance(leaf, np.ndarray) for leaf in orders):
        return np.ones(shape, bool)
    sites = [x.q_site, x.k_site]
    if not all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(sites)):
        sites, encoding = [Site(np.zeros_like(order)) for order in orders], Encoding()
    with jax.ensure_compile_time_eval():
        each = zip(sites, orders, (plan.q_block, plan.k_block), strict=True)
        return np.asarray(may_see(encoding, *(tile_bounds((s, o), s.segment > 0, size) for s, o, size in each))).T


def _fetched(seen: Bool[np.ndarray, "O N"]) -> list[Int32[np.ndarray, "O N"]]:
    """For each tile the block of keys, and of queries, to hold: its own where it is seen, else the last, or next, that is."""
    found = []
    for axis in (0, 1):
        block = np.indices(seen.shape, np.int32)[axis]
        last = np.maximum.accumulate(np.where(seen, block, -1), axis=axis)
        first = np.argmax(seen, axis=axis, keepdims=True).astype(np.int32)
        found.append(np.where(last < 0, first, last))
    return found


@dataclass(frozen=True)
class _OwnHeads(Encoding):
    """The bias of a device's heads, for tiles."""

    encoding: Encoding
    part: Part

    def bias(self, params, q, q_site, k, k_site):
        heads = self.part.all_heads(q.shape[1])
        q, k = map(self.part.among_heads, (q, k))
        bias = jnp.asarray(self.encoding.bias(params, q, q_site, k, k_site))
        return self.part.own_heads(bias) if bias.ndim and len(bias) == heads else bias

    def mask(self):
        return self.encoding.mask()
