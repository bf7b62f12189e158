"""What must hold for every encoding, as a function: for one that is your own, before you train with it.

    for row in check(pj.parse("mine(slope=2)")):
        print(row)

Each property runs one small attention layer in two ways that must agree. The repository's tests say the same of every
registered encoding, and compare formulas besides, which nobody can do for you here.
"""

import inspect
import math
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxprs_in_params

from posjax.attention import BEFORE_ATTENTION, attend, attend_cached, empty_cache
from posjax.attention.attend import finish, transform
from posjax.attention.blockwise import blockwise
from posjax.attention.cache import slots_needed
from posjax.describe.worlds import World, axes_taken, default_dims, joined, make_world, moved, parts, rows
from posjax.encoding import Dims, Encoding, Needs, Params, Site
from posjax.mask import Mask
from posjax.spec import parse

_HOSTED = dict(implementation="dense", consumed=BEFORE_ATTENTION)  # `project` runs what acts before attention
_SLOTS = 17  # of a cache: more than there are tokens
_ABSOLUTE = 1e-3  # what is declared not relative must change the outputs by more than this when moved
# What a mistaken hook raises when it is traced or given shapes that it did not expect; reported, not raised.
_HOOK_ERRORS = (ValueError, TypeError, AttributeError, LookupError, NotImplementedError)
_FAR = (300, 66_000)  # bfloat16 tells every second position apart beyond 256, every 512th beyond 65,536
_QUERIES = 5  # of 14 tokens, so that no two sizes of a tile are equal


class Property(NamedTuple):
    """One line of the report. `error` is NaN where the encoding's declared traits rule the property out."""

    name: str
    error: float  # the worst difference between what must be equal
    ok: bool
    note: str = ""

    def __str__(self):
        state = "-" if math.isnan(self.error) else "ok" if self.ok else "FAILS"
        error = "" if math.isnan(self.error) else f"{self.error:.1e}"
        return f"{state:6}{error:>9}  {self.name}{f' ({self.note})' if self.note else ''}"


class HookError(ValueError):
    """A hook returned what the contract does not allow."""


class NotApplicable(Exception):
    """A declared trait rules this property out; the message names it."""


def check(encoding: Encoding, dims: Dims | None = None, num_axes: int | None = None) -> list[Property]:
    """Runs every property on 14 tokens; where a hook returns a wrong shape, none but the first.

    Args:
      dims: sizes of the model; by default 3 heads of 8 channels, tables for 24 positions or a grid of 6 x 7.
      num_axes: of positions; by default the smallest number that the encoding takes. Beyond 1 there are 2 prefix tokens.

    Raises:
      ValueError: where the encoding refuses `dims`, or does not take so many axes, or any number of them.
    """
    taken = axes_taken(encoding)
    num_axes = taken[0] if num_axes is None else num_axes
    if num_axes not in taken:
        raise ValueError(f"{encoding} takes positions of {taken} axes, not {num_axes}")
    dims = default_dims(encoding, num_axes) if dims is None else dims
    world = make_world(encoding, dims, num_axes)
    first = next(iter(PROPERTIES))
    try:
        PROPERTIES[first][1](world)
        forward(world)
    except _HOOK_ERRORS as problem:
        if type(problem) is ValueError:  # it refuses these sizes
            raise
        return [_failed(first, world, problem)]
    return [check_one(name, world) for name in PROPERTIES]


def check_one(name: str, world: World) -> Property:
    """One property, in one world."""
    tolerance, function = PROPERTIES[name]
    try:
        error = function(world)
    except NotApplicable as reason:
        return Property(name, math.nan, True, str(reason))
    except _HOOK_ERRORS as problem:
        return _failed(name, world, problem)
    error = math.inf if math.isnan(error) else float(error)
    return Property(name, error, error <= tolerance)


def _failed(name: str, world: World, problem: Exception) -> Property:
    """The line of a property for which a hook raised something, with the line of the encoding's own file."""
    note = " ".join(str(problem).split())[:200]
    if not isinstance(problem, HookError):
        files = {inspect.getfile(type(part.encoding)) for part in parts(*world[:2], world.site)}
        frames = [each for each in traceback.extract_tb(problem.__traceback__) if each.filename in files]
        where = f", line {frames[-1].lineno} of {frames[-1].filename}" if frames else ""
        note = f"{type(problem).__name__}: {note}{where}"
    return Property(name, math.inf, False, note)


def project(w: World, x, site: Site, past: Site | None = None):
    """Codes added, state observed, and q, k and v; `site` is placed."""
    x = w.encoding.embed(w.params, x, site)
    site = w.encoding.observe(w.params, x, site, past)
    q, k, v = jnp.einsum("tm,nmhd->nthd", x, w.weights.astype(x.dtype))
    return q, k, v, site


def forward(w: World, *, causal: bool = False, tile: int | None = None):
    """One attention layer; blockwise where a tile size is given."""
    q, k, v, site = project(w, w.x, w.encoding.place(w.params, w.site))
    if tile is None:
        return attend(w.encoding, w.params, q, k, v, site, site, causal=causal, **_HOSTED)
    order = np.arange(len(q), dtype=np.int32) if causal else None
    operands = transform(w.encoding, w.params, q, k, v, site, site, order, order)
    out = blockwise(w.encoding, operands, scale=q.shape[-1] ** -0.5, tile=tile)
    return finish(w.encoding, w.params, out, site)


def gap(a, b) -> float:
    """The largest absolute difference of two trees; infinite where something is NaN."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    gaps = [np.max(np.abs(np.asarray(x, np.float64) - np.asarray(y, np.float64)), initial=0.0) for x, y in pairs]
    return math.inf if np.isnan(gaps).any() else max(gaps, default=0.0)


def hooks_return_their_shapes(w: World) -> float:
    """Calls each hook of each part, on a tile of 5 queries and all keys."""
    for part in parts(w.encoding, w.params, w.site):
        site = _site_of("place", part.encoding.place(part.params, part.site), len(w.x))
        x = _shaped("embed", part.encoding.embed(part.params, w.x, site), "[T, M]", w.x.shape)
        site = _site_of("observe", part.encoding.observe(part.params, x, site), len(w.x))
        _call_on_tile(part.encoding, part.params, jnp.einsum("tm,nmhd->nthd", x, w.weights), site)
    return 0.0


def _call_on_tile(e: Encoding, params: Params, qkv, site: Site) -> None:
    """Calls the hooks of attention on [3, S, H, D] queries, keys and values."""
    (q, k, v), q_site, kept = (qkv[0, :_QUERIES], *qkv[1:]), rows(site, slice(_QUERIES)), Needs.HEAD_DIM not in e.needs
    logits, read = (q.shape[1], len(q), len(k)), (*q.shape[:2], v.shape[2])
    turned = e.rotate(params, q, q_site, k, site)
    if not isinstance(turned, tuple) or len(turned) != 2:
        raise HookError(f"rotate returned {type(turned).__name__}, expected the pair of queries and keys")
    for what, before, after in (("queries", q, turned[0]), ("keys", k, turned[1])):
        sized = before.shape if kept else (*before.shape[:2], *np.shape(after)[2:3])
        _shaped("rotate", after, f"{what} {list(before.shape[:2])} by {'head dim' if kept else 'any size'}", sized)
    _shaped("value", e.value(params, v, site), "[S, K, E]", v.shape)
    product = _shaped("product", e.product(turned[0], q_site, turned[1], site), "[H, T, S]", logits)
    bias = e.bias(params, q, q_site, k, site)
    _shaped("bias", bias, "[H, T, S], [1, T, S] or a number", logits, (1, *logits[1:]), ())
    if not isinstance(e.mask(), Mask):
        raise HookError(f"mask returned {type(e.mask()).__name__}, expected a mask, see posjax/mask.py")
    if (sink := e.sink(params, q_site, q.shape[1])) is not None:
        _shaped("sink", sink, "[H], [T, H] or None", logits[:1], logits[1::-1])
    seen = jnp.ones(logits[1:], bool)
    weights = _shaped("weigh", e.weigh(params, product + bias, seen, q_site, site), "[H, T, S]", logits)
    _shaped("read", e.read(params, weights, q_site, site), "[T, H, E] or a number", read, ())
    _shaped("output", e.output(params, jnp.ones(read), q_site), "[T, H, E]", read)


def _shaped(hook: str, value: Any, words: str, *shapes: tuple[int, ...]) -> Any:
    """The value, if it has one of the shapes; numbers have the shape ()."""
    shape = () if isinstance(value, int | float) else getattr(value, "shape", None)
    if shape not in shapes:
        returned = type(value).__name__ if shape is None else list(shape)
        sizes = f", here {' or '.join(str(list(each)) for each in shapes if each)}"
        raise HookError(f"{hook} returned {returned}, expected {words}{sizes}")
    return value


def _site_of(hook: str, value: Any, count: int) -> Site:
    if not isinstance(value, Site):
        raise HookError(f"{hook} returned {type(value).__name__}, expected the site: site._replace(...)")
    for leaf in jax.tree.leaves(value):
        if np.shape(leaf)[:1] != (count,):
            raise HookError(
                f"{hook} returned a site with a leaf of {list(np.shape(leaf))}, expected a row for each of {count}"
            )
    return value


def positions_are_not_rounded_to_bfloat16(w: World) -> float:
    """Far tokens in bfloat16 err as near ones do; and where all is float32, nothing is computed in half precision."""
    traced = jax.make_jaxpr(lambda x, site: forward(w._replace(x=x, site=site)))(w.x, w.site)
    if halves := {*_halves(traced.jaxpr)}:
        raise HookError(f"computes in {', '.join(sorted(halves))} though tokens are float32: keep positions in float32")
    near = _error_of_bfloat16(w)
    for start in _FAR:
        stands = (w.site.prefix == 0).reshape(-1, *[1] * (w.site.position.ndim - 1))
        there = w._replace(site=w.site._replace(position=w.site.position + np.int32(start) * stands))
        try:
            far = _error_of_bfloat16(there)
        except ValueError:
            raise NotApplicable(f"it refuses positions from {start}") from None
        if far > 4 * near + 0.02:
            raise HookError(
                f"with tokens in bfloat16 outputs err by {far:.2g} at positions from {start}, by {near:.2g} near 0: "
                "positions or angles are rounded to bfloat16, keep them in float32 and cast what is made of them"
            )
    return 0.0


def _halves(jaxpr) -> Iterator[str]:
    for equation in jaxpr.eqns:
        yield from (
            name
            for each in equation.outvars
            if (name := str(getattr(each.aval, "dtype", ""))) in ("bfloat16", "float16")
        )
        for inner in jaxprs_in_params(equation.params):
            yield from _halves(inner)


def _error_of_bfloat16(w: World) -> float:
    """The largest difference that bfloat16 tokens make, over the size of the outputs."""
    low = w.x.astype(jnp.bfloat16)
    exact = forward(w._replace(x=low.astype(jnp.float32), weights=w.weights.astype(jnp.bfloat16).astype(jnp.float32)))
    return gap(forward(w._replace(x=low)), exact) / (1e-6 + float(jnp.abs(exact).max()))


def jit_is_eager(w: World) -> float:
    traced = jax.jit(lambda params, x, site: forward(w._replace(params=params, x=x, site=site)))
    return gap(traced(w.params, w.x, w.site), forward(w))


def vmap_is_a_loop(w: World) -> float:
    """Rows of a batch stand at different sites, in different orders."""
    orders = [np.random.default_rng(seed).permutation(len(w.x)) for seed in range(3)]
    batch = [w._replace(x=(1 + n) * w.x, site=rows(w.site, order)) for n, order in enumerate(orders)]
    xs = jnp.stack([each.x for each in batch])
    sites = jax.tree.map(lambda *leaves: np.stack(leaves), *[each.site for each in batch])
    together = jax.vmap(lambda x, site: forward(w._replace(x=x, site=site)))(xs, sites)
    return gap(together, jnp.stack([forward(each) for each in batch]))


def tokens_and_sites_permute_together(w: World) -> float:
    order = np.random.default_rng(0).permutation(len(w.x))
    return gap(forward(w._replace(x=w.x[order], site=rows(w.site, order))), forward(w)[order])


def moving_all_tokens_changes_nothing(w: World) -> float:
    """Or something, where `relative` is declared False."""
    w = w._replace(site=w.site._replace(prefix=np.zeros_like(w.site.prefix)))
    difference = gap(forward(w._replace(site=moved(w.site))), forward(w))
    if w.encoding.relative:
        return difference
    if difference > _ABSOLUTE:
        raise NotApplicable(f"declared relative=False, and moving all tokens changes the outputs by {difference:.1e}")
    raise ValueError(f"declared relative=False, yet moving all tokens changes the outputs by {difference:.1e} only")


def packed_documents_are_alone(w: World) -> float:
    first, second = rows(w.site, slice(5)), rows(w.site, slice(9))
    both = w._replace(site=joined(first, second._replace(segment=np.full(9, 2, np.int32))))
    alone = w._replace(x=w.x[:5], site=first), w._replace(x=w.x[5:], site=second)
    outs = [jnp.concatenate([forward(each, causal=causal) for each in alone]) for causal in (False, True)]
    return max(gap(forward(both, causal=causal), out) for causal, out in zip((False, True), outs, strict=True))


def causal_queries_see_no_later_tokens(w: World) -> float:
    if Needs.BOTH_DIRECTIONS in w.encoding.needs:
        raise NotApplicable("it needs BOTH_DIRECTIONS: not for causal models")
    changed = w._replace(x=w.x.at[8:].multiply(-1))
    return gap(forward(changed, causal=True)[:8], forward(w, causal=True)[:8])


def left_padding_is_invisible(w: World) -> float:
    pad, tokens = rows(w.site, slice(5)), rows(w.site, slice(9))
    pad = pad._replace(position=pad.position - np.int32(9), segment=np.zeros(5, np.int32))
    out = forward(w._replace(x=w.x.at[:5].mul(1e3), site=joined(pad, tokens)), causal=True)
    alone = forward(w._replace(x=w.x[5:], site=tokens), causal=True)
    return gap(out, jnp.concatenate([jnp.zeros_like(out[:5]), alone]))


def _gradients(w: World, tile: int | None):
    """Gradients, of a wavy sum, with two tokens at one place and padding; to positions too where these may be floats."""
    position = np.array(w.site.position)
    position[4] = position[5]
    segment = np.where(np.arange(len(w.x)) == 7, 0, 1).astype(np.int32)

    def loss(params, x, weights, floats):
        site = w.site._replace(
            position=position if Needs.WHOLE_POSITIONS in w.encoding.needs else floats, segment=segment
        )
        changed = w._replace(params=params, x=x, weights=weights, site=site)
        return jnp.sum(jnp.sin(forward(changed, tile=tile)))

    argnums = (0, 1, 2, 3)
    return jax.jit(jax.grad(loss, argnums))(w.params, w.x, w.weights, jnp.asarray(position, jnp.float32))


def blockwise_is_dense(w: World) -> float:
    return max(gap(forward(w, causal=causal, tile=5), forward(w, causal=causal)) for causal in (False, True))


def blockwise_gradients_are_dense(w: World) -> float:
    return gap(_gradients(w, 5), _gradients(w, None))


def grouped_queries_share_a_key(w: World) -> float:
    """One key head for all query heads, as if it was repeated."""
    q, k, v, site = project(w, w.x, w.encoding.place(w.params, w.site))

    def read(k, v):
        return attend(w.encoding, w.params, q, k, v, site, site, **_HOSTED)

    return gap(read(k[:, :1], v[:, :1]), read(*(jnp.repeat(x[:, :1], q.shape[1], axis=1) for x in (k, v))))


def gradients_are_finite(w: World) -> float:
    grads = _gradients(w, None)
    unused = [
        jax.tree_util.keystr(path, simple=True, separator=".")
        for path, leaf in jax.tree_util.tree_leaves_with_path(grads[0])
        if not np.any(leaf)
    ]
    if unused and Needs.CONSTANT_PARAMS not in w.encoding.needs:
        raise ValueError(f"parameters that nothing depends on: {', '.join(unused)}")
    return gap(grads, grads)


def decoding_token_by_token_is_the_full_pass(w: World) -> float:
    for need in (Needs.BOTH_DIRECTIONS, Needs.WHOLE_DOCUMENT):
        if need in w.encoding.needs:
            raise NotApplicable(f"it needs {need.name}: no cached decoding")
    site = w.encoding.place(w.params, w.site)
    out = _decoded(w, site)
    if Needs.DOCUMENT_LENGTH not in w.encoding.needs:
        return gap(out, forward(w, causal=True))
    # Each token sees the past as a full pass over no more than the past shows it.
    prefixes = [(w._replace(x=w.x[:n]), rows(site, slice(n))) for n in range(1, len(w.x) + 1)]
    return max(gap(out[len(part.x) - 1], _attended(part, part_site)[-1]) for part, part_site in prefixes)


def _attended(w: World, placed: Site):
    q, k, v, site = project(w, w.x, placed)
    return attend(w.encoding, w.params, q, k, v, site, site, causal=True, **_HOSTED)


def _decoded(w: World, site: Site):
    @jax.jit
    def step(x, site, cache):
        q, k, v, site = project(w, x, site, cache.site)
        return attend_cached(w.encoding, w.params, q, k, v, site, cache, consumed=BEFORE_ATTENTION)

    observed = jax.eval_shape(lambda: project(w, w.x, site))[3]
    slots = slots_needed(w.encoding, site, _SLOTS)  # as few as `memory` promises to need
    cache = empty_cache(slots, *w.weights.shape[2:], observed)
    outs = []
    for t in range(len(w.x)):
        out, cache = step(w.x[t : t + 1], rows(site, slice(t, t + 1)), cache)
        outs.append(out)
    return jnp.concatenate(outs)


def text_form_is_read_back(w: World) -> float:
    if not all(part.spec_name for part in _leaves(w.encoding)):
        raise NotApplicable("not registered, so it has no text form")
    if parse(str(w.encoding)) != w.encoding:
        raise ValueError(f"parse({str(w.encoding)!r}) is another encoding")
    return 0.0


def _leaves(encoding: Encoding) -> Iterator[Encoding]:
    for part in getattr(encoding, "members", ()):
        yield from _leaves(part)
    if not hasattr(encoding, "members"):
        yield encoding


_EXACT, _SUMS = 1e-5, 5e-5
PROPERTIES: dict[str, tuple[float, Callable[[World], float]]] = {
    function.__name__.replace("_", " "): (tolerance, function)
    for tolerance, function in [
        (0.0, hooks_return_their_shapes),
        (0.0, positions_are_not_rounded_to_bfloat16),
        (0.0, text_form_is_read_back),
        (_EXACT, jit_is_eager),
        (_EXACT, vmap_is_a_loop),
        (_EXACT, tokens_and_sites_permute_together),
        (_SUMS, moving_all_tokens_changes_nothing),
        (_EXACT, packed_documents_are_alone),
        (_EXACT, causal_queries_see_no_later_tokens),
        (_EXACT, left_padding_is_invisible),
        (_EXACT, blockwise_is_dense),
        (_SUMS, blockwise_gradients_are_dense),
        (_EXACT, grouped_queries_share_a_key),
        (0.0, gradients_are_finite),
        (_EXACT, decoding_token_by_token_is_the_full_pass),
    ]
}
