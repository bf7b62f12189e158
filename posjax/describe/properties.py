"""The properties that every encoding must have, as one list; `check` runs it on an encoding of your own.

    for row in check(pj.parse("mine(slope=2)")):
        print(row)

Most properties compare two runs of one attention layer that must agree (posjax/describe/runs.py). The repository's tests
run the same list over every registered encoding, and compare with formulas besides, which `check` cannot do.
"""

import contextlib
import difflib
import inspect
import math
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxprs_in_params

from posjax import spec
from posjax.describe.catalogue import example_of
from posjax.describe.runs import LATER, ORDER, PACKED, PADDING, Runs, layer
from posjax.describe.worlds import (
    HookError,
    World,
    axes_taken,
    default_dims,
    layer_output,
    make_world,
    placed_parts,
    shaped,
    site_from,
    tokens_at,
)
from posjax.encoding import HOOKS, Dims, Encoding, Needs, Params, Site
from posjax.mask import Mask
from posjax.spec import parse

_QUERIES = 5  # of 14 tokens, so that no two sizes of a tile are equal
_ABSOLUTE = 1e-3  # an encoding with relative=False must change the outputs by more than this when all tokens move
_FAR = 300, 66_000  # bfloat16 tells every second position apart beyond 256, every 512th beyond 65,536
# A mistaken hook raises these when it is traced or given shapes that it did not expect; reported, not raised.
_HOOK_ERRORS = (ValueError, TypeError, AttributeError, LookupError, NotImplementedError)
# Outputs have size 1 to 10. Two programs were seen to differ by 7.6e-6 at most, and from a formula in float64 by 4e-6.
_CLOSE = 1e-5


class Property(NamedTuple):
    """A property that every encoding must have.

    Attributes:
      error: returns the worst difference between values that must be equal; raises `NotApplicable`, or any error
        that a hook may raise.
      tolerance: the largest error that is allowed.
      deep: whether it costs seconds for an encoding, so that the tests run it on fewer of them.
      first: whether nothing else is asked of an encoding whose hooks raise here.
    """

    error: Callable[[Runs], float]
    tolerance: float = _CLOSE
    deep: bool = False
    first: bool = False


class Outcome(NamedTuple):
    """One line of the report. `error` is NaN where the encoding's declared traits rule the property out."""

    name: str
    error: float
    ok: bool
    note: str = ""

    def __str__(self):
        state = "-" if math.isnan(self.error) else "ok" if self.ok else "FAILS"
        error = "" if math.isnan(self.error) else f"{self.error:.1e}"
        return f"{state:6}{error:>9}  {self.name}{f' ({self.note})' if self.note else ''}"


class NotApplicable(Exception):
    """A declared trait rules this property out; the message names it."""


def check(encoding: Encoding, dims: Dims | None = None, num_axes: int | None = None) -> list[Outcome]:
    """Runs every property on 14 tokens; where a hook returns a wrong shape or cannot be traced, none after that.

    Args:
      dims: sizes of the model; by default 3 heads of 8 channels, tables for 24 positions or a grid of 6 x 7.
      num_axes: of positions; by default the smallest number that the encoding takes. Beyond 1 there are 2 prefix tokens.

    Raises:
      ValueError: where the encoding refuses `dims`, or does not take so many axes, or any number of them.

    >>> class Mine(Encoding):
    ...     def bias(self, params, q, q_site, k, k_site):
    ...         return q_site.position[:, None] - k_site.position    # no axis of heads
    >>> print(*check(Mine()), sep="\\n")
    FAILS       inf  hooks return their shapes (bias returned [5, 14], expected [H, T, S], ...
    """
    taken = axes_taken(encoding)
    num_axes = taken[0] if num_axes is None else num_axes
    if num_axes not in taken:
        raise ValueError(f"{encoding} takes positions of {taken} axes, not {num_axes}")
    dims = default_dims(encoding, num_axes) if dims is None else dims
    try:
        runs = Runs(make_world(encoding, dims, num_axes))
    except HookError as problem:  # of `init` or `place`
        return [Outcome(next(iter(PROPERTIES)), math.inf, False, str(problem))]
    found = []
    for name, each in PROPERTIES.items():
        found.append(check_one(name, runs))
        if each.first and found[-1].error == math.inf:
            break
        if len(found) == 1:
            jax.eval_shape(lambda: layer_output(*runs.world))  # raises where the encoding refuses these sizes
    return found


def wrong_hook() -> str | None:
    """Returns a line on a hook of the user's that returns a wrong value: its file, class and name; None if there is none.

    An error that such a value causes later names only the line of posjax that used it.
    """
    for cls in spec.REGISTRY.values():
        encoding = None if cls.__module__.startswith("posjax.") else example_of(cls)
        if not isinstance(encoding, Encoding):
            continue
        try:
            num_axes = axes_taken(encoding)[0]
            hooks_return_their_shapes(Runs(make_world(encoding, default_dims(encoding, num_axes), num_axes)))
        except HookError as problem:
            return f"{inspect.getfile(cls)}: {cls.__name__}: {problem}"
        except _HOOK_ERRORS:
            continue
    return None


def check_one(name: str, runs: Runs, table: "dict[str, Property] | None" = None) -> Outcome:
    """Runs one property of a table, by default `PROPERTIES`, on one world."""
    function, tolerance, *_ = (PROPERTIES if table is None else table)[name]
    try:
        error = function(runs)
    except NotApplicable as reason:
        return Outcome(name, math.nan, True, str(reason))
    except _HOOK_ERRORS as problem:
        return Outcome(name, math.inf, False, _note(problem, runs))
    error = math.inf if math.isnan(error) else float(error)
    return Outcome(name, error, error <= tolerance)


def _note(problem: Exception, runs: Runs) -> str:
    """Returns the message of an error in a hook, and its line in the encoding's file."""
    note = " ".join(str(problem).split())[:200]
    if isinstance(problem, HookError):
        return note
    w = runs.world
    files = {inspect.getfile(type(part.encoding)) for part in placed_parts(w.encoding, w.params, w.site)}
    frames = [each for each in traceback.extract_tb(problem.__traceback__) if each.filename in files]
    where = f", line {frames[-1].lineno} of {frames[-1].filename}" if frames else ""
    return f"{type(problem).__name__}: {note}{where}"


def gap(*pairs: tuple[Any, Any]) -> float:
    """The largest absolute difference of pairs of trees; infinite where something is NaN."""
    leaves = [both for a, b in pairs for both in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)]
    gaps = [np.max(np.abs(np.asarray(x, np.float64) - np.asarray(y, np.float64)), initial=0.0) for x, y in leaves]
    return math.inf if np.isnan(gaps).any() else float(max(gaps, default=0.0))


def hooks_return_their_shapes(runs: Runs) -> float:
    """Calls each hook of each part, on a tile of 5 queries and all keys; a method that is nearly one fails."""
    w = runs.world
    for e in (part.encoding for part in placed_parts(w.encoding, w.params, w.site)):
        for name in dir(e):
            near = difflib.get_close_matches(name, HOOKS.keys() - e.hooks, n=1, cutoff=0.8)
            if near and callable(getattr(e, name)) and not hasattr(Encoding, name):
                raise HookError(f"{name} is no hook, and is never called: did you mean {near[0]}?")

    def call():
        for part in placed_parts(w.encoding, w.params, w.site):
            site = site_from("place", part.encoding.place(part.params, part.site), len(w.x))
            x = shaped("embed", part.encoding.embed(part.params, w.x, site), "[T, M]", w.x.shape)
            site = site_from("observe", part.encoding.observe(part.params, x, site), len(w.x))
            _call_on_tile(part.encoding, part.params, jnp.einsum("tm,nmhd->nthd", x, w.weights), site)

    # "jit is eager" reports hooks that cannot be traced.
    with contextlib.suppress(jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError):
        jax.eval_shape(call)  # compiles nothing
    return 0.0


def _call_on_tile(e: Encoding, params: Params, qkv, site: Site) -> None:
    """Calls the hooks of attention on [3, S, H, D] queries, keys and values."""
    (q, k, v), q_site, kept = (
        (qkv[0, :_QUERIES], *qkv[1:]),
        tokens_at(site, slice(_QUERIES)),
        Needs.HEAD_DIM not in e.needs,
    )
    logits, read = (q.shape[1], len(q), len(k)), (*q.shape[:2], v.shape[2])
    turned = e.rotate(params, q, q_site, k, site)
    if not isinstance(turned, tuple) or len(turned) != 2:
        raise HookError(f"rotate returned {type(turned).__name__}, expected the pair of queries and keys")
    resized = "product" in e.hooks or {each.shape[-1] for each in turned} != {q.shape[-1]}
    for what, before, after in (("queries", q, turned[0]), ("keys", k, turned[1])):
        sized = before.shape if kept else (*before.shape[:2], *np.shape(after)[2:3])
        shaped("rotate", after, f"{what} {list(before.shape[:2])} by {'head dim' if kept else 'any size'}", sized)
    if resized == kept:
        raise HookError(
            f"rotate or product {'needs' if resized else 'does not need'} HEAD_DIM, which is {'not ' * kept}declared"
        )
    value = e.value(params, v, site)
    wide = not kept and Needs.DOCUMENT_LENGTH in e.needs
    words, sized = ("[S, K] by any size", (*v.shape[:2], *np.shape(value)[2:3])) if wide else ("[S, K, E]", v.shape)
    shaped("value", value, words, sized)
    product = shaped("product", e.product(turned[0], q_site, turned[1], site), "[H, T, S]", logits)
    bias = e.bias(params, q, q_site, k, site)
    shaped("bias", bias, "[H, T, S], [1, T, S] or a number", logits, (1, *logits[1:]), ())
    if not isinstance(e.mask(), Mask):
        raise HookError(f"mask returned {type(e.mask()).__name__}, expected a mask, see posjax/mask.py")
    if (sink := e.sink(params, q_site, q.shape[1])) is not None:
        of_queries = Needs.SINK_OF_QUERIES in e.needs
        words = "[T, H], as it needs SINK_OF_QUERIES" if of_queries else "[H], or [T, H] with SINK_OF_QUERIES"
        shaped("sink", sink, words, logits[1::-1] if of_queries else logits[:1])
    seen = jnp.ones(logits[1:], bool)
    weights = shaped("weigh", e.weigh(params, product + bias, seen, q_site, site), "[H, T, S]", logits)
    shaped("read", e.read(params, weights, q_site, site), "[T, H, E] or a number", read, ())
    shaped("output", e.output(params, jnp.ones((*read[:2], value.shape[2])), q_site), "[T, H, E]", read)


def placed_sites_are_well_formed(runs: Runs) -> float:
    """`place` keeps documents and prefix tokens, and makes arrays of int32 and float32."""
    placed, site = runs.world.placed, runs.world.site
    if wrong := {leaf.dtype.name for leaf in jax.tree.leaves(placed)} - {"int32", "float32"}:
        raise HookError(f"place returned arrays of {', '.join(sorted(wrong))}, expected int32 and float32")
    return gap((placed.segment, site.segment), (placed.prefix, site.prefix))


def text_form_is_read_back(runs: Runs) -> float:
    encoding = runs.world.encoding
    if not all(part.spec_name for part in _leaves(encoding)):
        raise NotApplicable("not registered, so it has no text form")
    if parse(str(encoding)) != encoding:
        raise ValueError(f"parse({str(encoding)!r}) is another encoding")
    return 0.0


def _leaves(encoding: Encoding) -> Iterator[Encoding]:
    for part in getattr(encoding, "members", ()):
        yield from _leaves(part)
    if not hasattr(encoding, "members"):
        yield encoding


def sites_may_be_traced(runs: Runs) -> float:
    """Sites that are known while tracing, as a ViT has them, and traced ones, as a packed decoder has them."""
    return gap(*((known, runs.batch[causal]["documents"]) for causal, known in enumerate(runs.documents)))


def any_part_of_a_site_may_be_traced(runs: Runs) -> float:
    """One part is traced and the rest known while tracing, as of padded rows of one grid."""
    w = runs.world
    for names in [("segment",), ("prefix",), ("position",), ("segment", "prefix")]:
        traced = {name: getattr(w.site, name) for name in names}
        jax.eval_shape(lambda traced: layer_output(*w._replace(site=w.site._replace(**traced))), traced)
    return 0.0


def jit_is_eager(runs: Runs) -> float:
    return gap((runs.batch[1]["documents"], layer(runs.world, runs.sequences["documents"], causal=True)))


def vmap_is_a_loop(runs: Runs) -> float:
    """Rows of a batch stand at different sites: other orders, other documents."""
    return max(_gap_of_documents(runs.batch[0][name], out) for name, out in runs.loop.items())


def tokens_and_sites_permute_together(runs: Runs) -> float:
    return gap((runs.batch[0]["permuted"], runs.batch[0]["plain"][ORDER]))


def moving_all_tokens_changes_nothing(runs: Runs) -> float:
    """Moving must change outputs where `relative` is declared False. All tokens stand somewhere."""
    difference = gap((runs.batch[0]["moved"], runs.batch[0]["standing"]))
    if runs.world.encoding.relative:
        return difference
    if difference > _ABSOLUTE:
        raise NotApplicable(f"declared relative=False, and moving all tokens changes the outputs by {difference:.1e}")
    raise ValueError(f"declared relative=False, yet moving all tokens changes the outputs by {difference:.1e} only")


def prefix_tokens_stand_nowhere(runs: Runs) -> float:
    """The position of a prefix token has no effect; its number among them may have."""
    if not runs.world.site.prefix.any():
        raise NotApplicable("there are no prefix tokens on a line")
    return gap((runs.batch[0]["nowhere"], runs.batch[0]["plain"]))


def packed_documents_are_alone(runs: Runs) -> float:
    """Compares two documents in a row with each alone, and with the second when the first stands elsewhere."""
    first = PACKED[0]
    return max(
        max(
            gap((out["packed"][:first], out["first"][:first]), (out["packed"][first:], alone)),
            _gap_of_documents(out["beside"][first:], out["apart"][first:]),
        )
        for out, alone in zip(runs.batch, runs.second, strict=True)
    )


def _gap_of_documents(a: np.ndarray, b: np.ndarray) -> float:
    """`gap` of outputs, except where both are NaN: there a table had no row for a token that stands nowhere."""
    return gap((np.where(np.isnan(b), 0, a), np.where(np.isnan(a), 0, b)))


def causal_queries_see_no_later_tokens(runs: Runs) -> float:
    if Needs.BOTH_DIRECTIONS in runs.world.encoding.needs:
        raise NotApplicable("it needs BOTH_DIRECTIONS: not for causal models")
    return gap((runs.batch[1]["later"][:LATER], runs.batch[1]["plain"][:LATER]))


def left_padding_is_invisible(runs: Runs) -> float:
    outs = zip(runs.batch, runs.second, strict=True)
    return gap(*((out["padded"], np.pad(alone, [(PACKED[0], 0), (0, 0), (0, 0)])) for out, alone in outs))


def blockwise_is_dense(runs: Runs) -> float:
    """Tiles have 5 tokens; there are documents and padding, and on lines causality; and once neither."""
    (tiled, _), (dense, _) = runs.tiled
    return gap((tiled, dense), (runs.grouped["blockwise"], runs.grouped["dense"]))


def blockwise_gradients_are_dense(runs: Runs) -> float:
    """The gap of gradients, relative to the largest number of an array if that is above 3."""
    pairs = zip(*(jax.tree.leaves(gradients) for _, gradients in runs.tiled), strict=True)
    return max(gap((a, b)) / max(3, np.abs(b).max(initial=0)) for a, b in pairs)


def grouped_queries_share_a_key(runs: Runs) -> float:
    """One key head for all query heads, as if it was repeated."""
    repeated = runs.grouped["repeated"]
    return gap((runs.grouped["dense"], repeated), (runs.grouped["blockwise"], repeated))


def gradients_are_finite(runs: Runs) -> float:
    """Gradients of a wavy sum, with two tokens at one place and padding; to positions too where these may be floats."""
    params, x, *_ = gradients = runs.gradients["stacked"][1]
    unused = [
        jax.tree_util.keystr(path, simple=True, separator=".")
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
        if not np.any(leaf)
    ]
    if unused and Needs.CONSTANT_PARAMS not in runs.world.encoding.needs:
        raise ValueError(f"parameters that nothing depends on: {', '.join(unused)}")
    if np.any(x[:, PADDING]):
        raise ValueError("padding gets a gradient")
    if not np.any(x[:, PADDING + 1], axis=1).all():
        raise ValueError("the token behind the padding gets no gradient")
    return gap((gradients, gradients))


def positions_are_not_rounded_to_bfloat16(runs: Runs) -> float:
    """Far tokens in bfloat16 err as near ones do; and where all is float32, nothing is computed in half precision."""
    w = runs.world
    half = {np.dtype(jnp.bfloat16), np.dtype(np.float16)}
    made = [getattr(each.aval, "dtype", None) for equation in _equations(w, w.x) for each in equation.outvars]
    if found := half & {*made}:
        names = ", ".join(sorted(each.name for each in found))
        raise HookError(f"computes in {names} though tokens are float32: keep positions in float32")
    waves = [each for each in _equations(w, w.x.astype(jnp.bfloat16)) if each.primitive.name in ("sin", "cos")]
    if any(each.invars[0].aval.dtype in half for each in waves):
        raise HookError("takes the sine or cosine of bfloat16 where tokens are bfloat16: keep angles in float32")
    stands = (w.site.prefix == 0).reshape(-1, *[1] * (w.site.position.ndim - 1))
    places = {start: w.site.position + np.int32(start) * stands for start in (0, *_FAR)}
    refused = [start for start in _FAR if start > w.encoding.reach or not _takes(w, places[start])]
    places = {start: position for start, position in places.items() if start not in refused}
    lows, exacts = runs.halves(np.stack([*places.values()]))
    errors = [gap((low, exact)) / (1e-6 + np.abs(exact).max()) for low, exact in zip(lows, exacts, strict=True)]
    for start, error in zip(places, errors, strict=True):
        if not error <= 4 * errors[0] + 0.02:
            raise HookError(
                f"with tokens in bfloat16 outputs err by {error:.2g} at positions from {start}, by {errors[0]:.2g} near 0: "
                "positions or angles are rounded to bfloat16, keep them in float32 and cast what is made of them"
            )
    if lows.dtype != jnp.bfloat16:
        raise HookError(f"makes {lows.dtype} of tokens in bfloat16")
    if refused:
        raise NotApplicable(f"it refuses positions from {refused[0]}")
    return 0.0


def _equations(w: World, x: jax.Array) -> Iterator[Any]:
    """All equations of the program of a layer on these tokens, at traced sites."""
    pending = [jax.make_jaxpr(lambda x, site: layer_output(*w._replace(x=x, site=site)))(x, w.site).jaxpr]
    while pending:
        for equation in pending.pop().eqns:
            yield equation
            pending += jaxprs_in_params(equation.params)


def _takes(w: World, position: np.ndarray) -> bool:
    """Whether the encoding takes tokens at these positions when they are known."""
    try:
        jax.eval_shape(lambda: layer_output(*w._replace(site=w.site._replace(position=position))))
    except ValueError:
        return False
    return True


def decoding_token_by_token_is_the_full_pass(runs: Runs) -> float:
    needs = runs.world.encoding.needs
    if Needs.BOTH_DIRECTIONS in needs:
        raise NotApplicable("it needs BOTH_DIRECTIONS: no cached decoding")
    (out, segments), full = runs.decoded, runs.batch[1]["plain"]
    if np.any(segments[len(out) :]):
        raise ValueError("free slots of the cache were written to")
    if Needs.DOCUMENT_LENGTH not in needs:
        return gap((out, full))
    # Each token sees the past as a full pass over no more than the past shows it.
    return gap(*((out[len(past) - 1], past[-1]) for past in (*runs.short.values(), full)))


PROPERTIES: dict[str, Property] = {
    each.error.__name__.replace("_", " "): each
    for each in [
        Property(hooks_return_their_shapes, 0.0, first=True),
        Property(placed_sites_are_well_formed, 0.0),
        Property(text_form_is_read_back, 0.0),
        Property(jit_is_eager, deep=True, first=True),
        Property(sites_may_be_traced),
        Property(any_part_of_a_site_may_be_traced, deep=True),
        Property(vmap_is_a_loop, deep=True),
        Property(tokens_and_sites_permute_together),
        Property(moving_all_tokens_changes_nothing, 2e-5),
        Property(prefix_tokens_stand_nowhere),
        Property(packed_documents_are_alone),
        Property(causal_queries_see_no_later_tokens),
        Property(left_padding_is_invisible),
        Property(positions_are_not_rounded_to_bfloat16, 0.0, deep=True),
        Property(blockwise_is_dense, deep=True),
        Property(blockwise_gradients_are_dense, 2e-5, deep=True),
        Property(grouped_queries_share_a_key, deep=True),
        Property(gradients_are_finite, 0.0, deep=True),
        Property(decoding_token_by_token_is_the_full_pass, deep=True),
    ]
}
