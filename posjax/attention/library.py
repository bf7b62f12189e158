"""Kernels of others, for encodings that do not change logits once queries and keys are rotated; splash takes learned sinks.

cuDNN's flash attention on GPUs, and jax's splash attention (arXiv 2205.14135 with sparse masks) on TPUs. Neither takes
positions, so they support a window only if positions are known at tracing time and count one by one; cuDNN supports no
documents either. The library tokamax (openxla/tokamax) takes any mask, as a matrix of all pairs.
"""

import functools
import importlib
import importlib.util
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int32

from posjax.attention.dense import Operands, visible
from posjax.encoding import Array, Encoding, Needs, Site, members
from posjax.mask import Term, near

_AMPERE, _HOPPER = 8.0, 9.0  # compute capabilities
_LANES = 128  # the unit of splash attention's layouts


def cudnn_refusal(encoding: Encoding, x: Operands, capability: str | None) -> str | None:
    """Why cuDNN cannot compute this attention on a GPU of this compute capability; None if it can.

    `jax.nn.dot_product_attention` has the same bounds, and also checks the version of cuDNN. An unknown capability
    has the bounds of the oldest GPUs.
    """
    q, k, v = x.q, x.k, x.v
    if capability and float(capability) < _AMPERE:
        return f"cuDNN's flash attention needs compute capability {_AMPERE}, this GPU has {capability}"
    if q.dtype not in (jnp.bfloat16, jnp.float16) or not q.dtype == k.dtype == v.dtype:
        return f"cuDNN multiplies half precision of one dtype, got {q.dtype}, {k.dtype}, {v.dtype}: cast to bfloat16"
    largest = 256 if capability and float(capability) >= _HOPPER else 128
    if q.shape[2] != v.shape[2] or q.shape[2] % 8 or q.shape[2] > largest:
        return f"cuDNN takes one head dim, a multiple of 8 up to {largest} here, got {q.shape[2]} and {v.shape[2]}"
    if x.q_order is None and (q.shape[0] % 2 or k.shape[0] % 2):
        return f"jax has gradients through cuDNN for even numbers of tokens only, got {q.shape[0]} and {k.shape[0]}"
    if Needs.HEAD_DIM in encoding.needs:
        return f"cuDNN takes one head dim, and {encoding} changes that of queries and keys"
    if not _is_one_document(x.q_site, x.k_site):
        return "cuDNN knows no documents and padding, and the sites are not known to be free of them when traced"
    return _plain_refusal(encoding, x) or _window_refusal(encoding, x.q_order is not None)


def splash_refusal(encoding: Encoding, x: Operands) -> str | None:
    """Why splash attention cannot compute this attention; None if it can."""
    if found := [str(member) for member in members(encoding) if Needs.SINK_OF_QUERIES in member.needs]:
        return f"{found[0]} has a sink for each query, and the kernel takes one for each head"
    return _plain_refusal(encoding, x)


def cudnn(encoding: Encoding, x: Operands, *, scale: float, implementation: str = "cudnn") -> Float[jax.Array, "T H E"]:
    """Computes `dense` by cuDNN, for any request that `cudnn_refusal` allows.

    To an odd number of tokens it adds one behind them, which causality hides: jax has no gradients for odd numbers.

    Args:
      implementation: of `jax.nn.dot_product_attention`; "xla" computes the same anywhere, for tests.
    """
    window, length = _window(encoding), len(x.rotated_q)
    factors = x.rotated_q, x.rotated_k, _like(x.rotated_k, x.v)
    out = jax.nn.dot_product_attention(
        *(factors if x.q_order is None else (jnp.pad(y, [(0, length % 2), (0, 0), (0, 0)]) for y in factors)),
        scale=scale,
        is_causal=x.q_order is not None,
        local_window_size=window and (window[0], 0),
        implementation=implementation,
    )
    return out[:length]


def splash(encoding: Encoding, x: Operands, *, scale: float, interpret: bool = False) -> Float[jax.Array, "T H E"]:
    """Computes `dense` by splash attention, for any request that `splash_refusal` allows.

    Args:
      interpret: runs the kernel as plain operations, on any machine, for tests.
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import SegmentIds

    (length, heads, _), width = x.q.shape, x.v.shape[2]
    queries, keys, values = map(_laid_out, (x.rotated_q * scale, x.rotated_k, _like(x.rotated_k, x.v)))
    segments = SegmentIds(*(_laid_out_ids(site, none) for site, none in ((x.q_site, 0), (x.k_site, -1))))
    shape = (queries.shape[1], keys.shape[1])
    kernel = _splash_kernel(shape, heads, _window(encoding), x.q_order is not None, interpret)
    sink = encoding.sink(x.params, x.q_site, heads)
    sinks = None if sink is None else _with_single_gradient(sink)
    out = kernel(queries, keys, values, segments, sinks)[:, :length, :width].transpose(1, 0, 2)
    # The kernel's output for a query that sees nothing is arbitrary.
    sees = _sees_any(*(jnp.asarray(site.segment) for site in (x.q_site, x.k_site)), x.q_order is not None)
    return jnp.where(sees[:, None, None], out, 0.0).astype(x.q.dtype)


def tokamax_refusal(encoding: Encoding, x: Operands) -> str | None:
    """Why tokamax cannot compute this attention; None if it can."""
    if importlib.util.find_spec("tokamax") is None:
        return "it needs tokamax: pip install 'posjax[tokamax]', on Python 3.12 and newer"
    return None


def tokamax(
    encoding: Encoding, x: Operands, *, scale: float, softcap: float | None = None, implementation: str | None = None
) -> Float[jax.Array, "T H E"]:
    """Computes `dense` by `tokamax.dot_product_attention`, which chooses a kernel for the device.

    Documents, padding, and all masks but one window of positions that are known to count one by one cost a matrix of T x S
    booleans.

    Args:
      implementation: of tokamax, as "triton" or "xla"; None lets it choose.
    """
    causal, window = x.q_order is not None, _window(encoding)
    seen = visible(encoding, x.q_site, x.k_site, x.q_order, x.k_order)
    if _is_one_document(x.q_site, x.k_site) and _plain_refusal(encoding, x) is None:
        options = dict(is_causal=causal, local_window_size=window and (window[0], 0 if causal else window[1]))
    else:
        options = dict(mask=seen[None])
    heads = x.rotated_q, x.rotated_k, _like(x.rotated_k, x.v)
    options |= dict(scale=scale, logits_soft_cap=softcap, implementation=implementation)
    out = importlib.import_module("tokamax").dot_product_attention(*heads, **options)
    out = jnp.where(jnp.any(seen, axis=1)[:, None, None], out, 0.0) if "mask" in options else out
    return out.astype(x.q.dtype)


@jax.custom_vjp
def _with_single_gradient(sink: Float[Array, " H"]) -> Float[jax.Array, " H"]:
    """The sink in float32, and its gradient too: the kernel returns a gradient in the dtype of the queries."""
    return sink.astype(jnp.float32)


_with_single_gradient.defvjp(
    lambda sink: (sink.astype(jnp.float32), jnp.zeros(0, sink.dtype)), lambda like, g: (g.astype(like.dtype),)
)


def _sees_any(q_segment: Int32[Array, " T"], k_segment: Int32[Array, " S"], causal: bool) -> Bool[jax.Array, " T"]:
    """Marks queries that see any key: a key of their document that, if causal, lies no later."""
    by_document = jnp.argsort(k_segment, stable=True)
    first = by_document[jnp.minimum(jnp.searchsorted(k_segment[by_document], q_segment), len(k_segment) - 1)]
    found = (k_segment[first] == q_segment) & (q_segment > 0)
    return found & (first <= jnp.arange(len(q_segment), dtype=jnp.int32)) if causal else found


def _splash_kernel(shape: tuple[int, int], heads: int, window: tuple[int, int] | None, causal: bool, interpret: bool):
    from jax.experimental.pallas.ops.tpu import splash_attention as library

    if window is not None:
        mask = library.LocalMask(shape, (window[0], 0 if causal else window[1]), 0)
    else:
        mask = library.CausalMask(shape) if causal else library.FullMask(shape)
    make = functools.partial(library.make_splash_mha, head_shards=1, q_seq_shards=1, interpret=interpret)
    return make(library.MultiHeadMask([mask] * heads))


def _laid_out(x: Float[Array, "N H D"]) -> Float[Array, "H L C"]:
    """Heads first, with zeros up to whole lanes of tokens and channels."""
    return jnp.pad(x.transpose(1, 0, 2), [(0, 0), (0, -x.shape[0] % _LANES), (0, -x.shape[2] % _LANES)])


def _laid_out_ids(site: Site, none: int) -> Int32[Array, " L"]:
    """Documents, with `none` for padding, so that no query sees it."""
    document = jnp.where(site.segment > 0, site.segment, none)
    return jnp.pad(document, (0, -len(document) % _LANES), constant_values=none)


def _like(k, v):
    """Repeats values to the heads of the keys, if an encoding has repeated the keys."""
    return v if k.shape[1] == v.shape[1] else jnp.repeat(v, k.shape[1] // v.shape[1], axis=1)


def _plain_refusal(encoding: Encoding, x: Operands) -> str | None:
    """Why this is more than softmax(q' k'^T) v with documents, causality in array order and one window, or None."""
    orders = x.q_order, x.k_order
    if x.q_order is not None and not (len(x.q_order) == len(x.k_order) and all(map(_counts, orders))):
        return "the kernel is causal in the order of the arrays, and q_order and k_order are not known to be that"
    found = [str(member) for member in members(encoding) if "mask" in member.hooks]
    if not found:
        return None
    if len(found) > 1 or _window(encoding) is None:
        return f"{' and '.join(found)} hide keys: the kernel takes one window(size) at most"
    if not _is_regular(x.q_site, x.k_site, *encoding.mask().terms(x.q_site, x.k_site)):
        return "the kernel's window counts tokens, and positions are not known to count them one by one when traced"
    return None


def _window_refusal(encoding: Encoding, causal: bool) -> str | None:
    return None if causal or _window(encoding) is None else "cuDNN has windows in causal attention only"


def _window(encoding: Encoding) -> tuple[int, int] | None:
    """How many keys before and after a query a member's window shows; None where no member has one."""
    masks = (member.mask() for member in members(encoding))
    return next((_sides(mask) for mask in masks if isinstance(mask, near) and not mask.inclusive), None)


def _sides(window: near) -> tuple[int, int]:
    before = math.ceil(window.size) - 1
    return before, before if window.ahead is None else math.floor(window.ahead)


def _is_one_document(q_site: Site, k_site: Site) -> bool:
    """Whether all queries and keys are known, at tracing time, to be in one document."""
    if not all(isinstance(site.segment, np.ndarray) for site in (q_site, k_site)):
        return False
    segment = np.concatenate([q_site.segment, k_site.segment])
    return len(segment) > 0 and segment[0] > 0 and bool((segment == segment[0]).all())


def _counts(order) -> bool:
    return isinstance(order, np.ndarray) and np.array_equal(order, np.arange(len(order)))


def _is_regular(q_site: Site, k_site: Site, window: Term) -> bool:
    """Whether, as known at tracing time, tokens of one document stand as far apart as they lie in the arrays."""
    q, k = ((site.segment, site.prefix, *axes) for site, axes in ((q_site, window.q), (k_site, window.k)))
    if len(window.q) != 1 or not all(isinstance(leaf, np.ndarray) for leaf in (*q, *k)):
        return False
    segment, prefix, position = q
    if prefix.any() or not all(map(np.array_equal, q, k)):
        return False
    lead = position - np.arange(len(position))
    _, first, document = np.unique(segment, return_index=True, return_inverse=True)
    return bool(((lead == lead[first][document]) | (segment <= 0)).all())
