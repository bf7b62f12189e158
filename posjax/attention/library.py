"""Kernels of others, for encodings that do not change logits once queries and keys are rotated; splash takes learned sinks.

cuDNN's flash attention on GPUs, and jax's splash attention (arXiv 2205.14135 with sparse masks) on TPUs. Neither takes
positions, so they support a window only if positions are known at tracing time and count one by one; cuDNN supports no
documents either. The library tokamax (openxla/tokamax) takes any mask, as a matrix of all pairs.
"""

import importlib
import importlib.util
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int32

from posjax.attention.blockwise import SAVED
from posjax.attention.dense import WHOLE, Operands, Part, repeated, visible
from posjax.attention.tpu.rows import side_of_block
from posjax.encoding import Array, Encoding, Needs, Site, members
from posjax.mask import Term, near

_AMPERE, _HOPPER = 8.0, 9.0  # compute capabilities
_BLOCKS = (1024, 896, 768, 640, 512)  # tokens a side of its blocks: larger ones do not fit a TPU's vector memory
_WIDE, _BLOCKS_OF_WIDE = 256, (256, 128)  # heads of more channels, as of rayrope, take smaller blocks
_FUSED = 4  # most blocks of keys for one kernel of all gradients, which holds the gradient of queries once a block


def cudnn_refusal(encoding: Encoding, x: Operands, capability: str | None, devices: int = 1) -> str | None:
    """Why cuDNN cannot compute this attention on GPUs of this compute capability; None if it can.

    `jax.nn.dot_product_attention` has the same bounds, and also checks the version of cuDNN. An unknown capability
    has the bounds of the oldest GPUs.

    Args:
      devices: that share the queries of a sequence.
    """
    q, k, v = x.q, x.k, x.v
    if capability and float(capability) < _AMPERE:
        return f"cuDNN's flash attention needs compute capability {_AMPERE}, this GPU has {capability}"
    if q.dtype not in (jnp.bfloat16, jnp.float16) or not q.dtype == k.dtype == v.dtype:
        return f"cuDNN multiplies half precision of one dtype, got {q.dtype}, {k.dtype}, {v.dtype}: cast to bfloat16"
    largest = 256 if capability and float(capability) >= _HOPPER else 128
    if q.shape[2] != v.shape[2] or q.shape[2] % 8 or q.shape[2] > largest:
        return f"cuDNN takes one head dim, a multiple of 8 up to {largest} here, got {q.shape[2]} and {v.shape[2]}"
    if Needs.HEAD_DIM in encoding.needs:
        return f"cuDNN takes one head dim, and {encoding} changes that of queries and keys"
    if not _is_one_document(x.q_site, x.k_site):
        return "cuDNN knows no documents and padding, and the sites are not known to be free of them when traced"
    if devices > 1 and x.q_order is not None:
        return "cuDNN is causal in the order of the arrays, and the queries of each device have an order of their own"
    return _plain_refusal(encoding, x) or _window_refusal(encoding, x.q_order is not None)


def splash_refusal(encoding: Encoding, x: Operands) -> str | None:
    """Why splash attention cannot compute this attention; None if it can."""
    if found := [str(member) for member in members(encoding) if Needs.SINK_OF_QUERIES in member.needs]:
        return f"{found[0]} has a sink for each query, and the kernel takes one for each head"
    return _plain_refusal(encoding, x) or _bias_refusal(encoding, x)


def _bias_refusal(encoding: Encoding, x: Operands) -> str | None:
    """Why the bias cannot be channels of queries and keys; None if it can, or there is none."""
    biased = [str(member) for member in members(encoding) if "bias" in member.hooks]
    positions = x.q_site.position, x.k_site.position
    beside = all(isinstance(position, np.ndarray) for position in positions) and np.array_equal(*positions)
    taken = x.q_order is not None and "sink" not in encoding.hooks and beside and encoding.is_difference(x.k_site)
    if not biased or taken:
        return None
    return (
        f"{' and '.join(biased)} adds to logits; the kernel takes a bias where attention is causal and has no sink, and the "
        "bias is a difference of a number of the key and one of the query, as ALiBi's at positions that are known to rise"
    )


def cudnn(
    encoding: Encoding, x: Operands, *, scale: float, part: Part = WHOLE, implementation: str = "cudnn"
) -> Float[jax.Array, "T H E"]:
    """Computes `dense` by cuDNN, for any request that `cudnn_refusal` allows.

    To an odd number of tokens it adds one behind them, which causality or its length hides: jax has no gradients for odd
    numbers.

    Args:
      implementation: of `jax.nn.dot_product_attention`; "xla" computes the same anywhere, for tests.
    """
    window, causal = _window(encoding), x.q_order is not None
    factors = x.rotated_q, x.rotated_k, repeated(x.v, x.rotated_k.shape[1])
    lengths = [len(y) for y in factors[:2]]
    options = {}
    if not causal and any(length % 2 for length in lengths):
        names = ("query_seq_lengths", "key_value_seq_lengths")
        zero = (factors[0][:1, 0, 0] > jnp.inf).astype(jnp.int32)  # jax wants lengths batched as queries are
        options = {name: zero + length for name, length in zip(names, lengths, strict=True)}
    out = jax.nn.dot_product_attention(
        *(jnp.pad(y, [(0, len(y) % 2), (0, 0), (0, 0)]) for y in factors),
        scale=scale,
        is_causal=causal,
        local_window_size=window and (window[0], 0),
        implementation=implementation,
        **options,
    )
    return out[: lengths[0]]


def splash(
    encoding: Encoding, x: Operands, *, scale: float, part: Part = WHOLE, interpret: bool = False
) -> Float[jax.Array, "T H E"]:
    """Computes `dense` by splash attention, for any request that `splash_refusal` allows.

    Args:
      interpret: runs the kernel as plain operations, on any machine, for tests.
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import SegmentIds

    (length, heads, _), causal = x.rotated_q.shape, x.q_order is not None
    q, k = x.rotated_q * scale, x.rotated_k
    sides = _BLOCKS if max(k.shape[2], x.v.shape[2]) <= _WIDE else _BLOCKS_OF_WIDE
    blocks = [side_of_block(length, sides), side_of_block(len(k), sides)]
    if "bias" in encoding.hooks:
        q, k = _with_channels(q, k, part.own_heads(encoding.potential(x.params, x.k_site, part.all_heads(heads)), 1))
    queries = _laid_out(q, blocks[0])
    keys, values = (_laid_out(y, blocks[1]) for y in (k, repeated(x.v, k.shape[1])))
    segments, one_document = None, _is_one_document(x.q_site, x.k_site)
    if not (one_document and (causal or keys.shape[1] == len(x.rotated_k))):
        sides = zip((x.q_site, x.k_site), (0, -1), blocks, strict=True)
        segments = SegmentIds(*(_laid_out_ids(site, none, block) for site, none, block in sides))
    kernel = _splash_kernel(queries.shape, keys.shape, blocks, _window(encoding), causal, part, interpret)
    sink = encoding.sink(x.params, x.q_site, part.all_heads(heads))
    sinks = None if sink is None else part.own_heads(_with_single_gradient(sink))
    out = kernel(queries, keys, values, segments, sinks)[:, :length].transpose(1, 0, 2)
    if not one_document:  # the kernel's output for a query that sees nothing is arbitrary
        sees = _sees_any(*(jnp.asarray(site.segment) for site in (x.q_site, x.k_site)), x.q_order)
        out = jnp.where(sees[:, None, None], out, 0.0)
    return out.astype(x.q.dtype)


def tokamax_refusal() -> str | None:
    """Why tokamax cannot compute any attention; None if it can."""
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
    heads = x.rotated_q, x.rotated_k, repeated(x.v, x.rotated_k.shape[1])
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


def _with_channels(q: Float[Array, "T H D"], k: Float[Array, "S K D"], u: Float[Array, "S H"]):
    """Returns queries with ones, and keys with u in three parts that half precision holds, which products sum exactly."""
    parts, rest = [], u
    for _ in range(3):
        parts.append(jax.lax.reduce_precision(rest, exponent_bits=8, mantissa_bits=7))
        rest = rest - parts[-1]
    k = jnp.concatenate([repeated(k, q.shape[1]), jnp.stack(parts, axis=-1).astype(k.dtype)], axis=-1)
    return jnp.concatenate([q, jnp.ones((*q.shape[:2], len(parts)), q.dtype)], axis=-1), k


def _sees_any(
    q_segment: Int32[Array, " T"], k_segment: Int32[Array, " S"], q_order: Int32[Array, " T"] | None
) -> Bool[jax.Array, " T"]:
    """Marks queries that see any key: a key of their document that, if causal, lies no later than their order."""
    by_document = jnp.argsort(k_segment, stable=True)
    first = by_document[jnp.minimum(jnp.searchsorted(k_segment[by_document], q_segment), len(k_segment) - 1)]
    found = (k_segment[first] == q_segment) & (q_segment > 0)
    return found if q_order is None else found & (first <= q_order)


def _splash_kernel(q_shape, k_shape, blocks: list[int], window, causal: bool, part: Part, interpret: bool):
    """The kernel of a device's queries [H, L, C] over all keys [K, N, C], which are laid out in whole blocks."""
    from jax.experimental.pallas.ops.tpu import splash_attention as library

    (heads, length, _), devices = q_shape, (part.queries or (None, 1))[1]
    shape = (length * devices, k_shape[1])
    if window is not None:
        mask = library.LocalMask(shape, (window[0], 0 if causal else window[1]), 0)
    else:
        mask = library.CausalMask(shape) if causal else library.FullMask(shape)
    if part.orders is not None and not isinstance(mask, library.FullMask):
        orders = part.orders.reshape(devices, -1)
        mask.q_sequence = np.pad(orders, [(0, 0), (0, length - orders.shape[1])], mode="edge").reshape(-1)
    q, k = blocks
    sides = dict(block_q=q, block_kv=k, block_kv_compute=k, block_q_dkv=q, block_kv_dkv=k, block_kv_dkv_compute=k)
    fused = k_shape[1] <= _FUSED * k
    sides |= dict(use_fused_bwd_kernel=True) if fused else dict(block_q_dq=q, block_kv_dq=k)
    kernel = library.make_splash_mha(
        library.MultiHeadMask([mask] * heads),
        block_sizes=library.BlockSizes(**sides),
        head_shards=1,
        q_seq_shards=devices,
        residual_checkpoint_name=SAVED,
        interpret=interpret,
    )
    tables = (kernel.fwd_mask_info, kernel.dq_mask_info, kernel.dkv_mask_info)
    return type(kernel)(*(table and _own_table(table, part) for table in tables), **kernel.kwargs)


def _own_table(table, part: Part):
    """The rows of a table of the kernel's blocks that are of a device's queries."""
    axes = dict(data_next=1, mask_next=1, block_mask=1, q_sequence=0)
    held = {name: (getattr(table, name), axis) for name, axis in axes.items()}
    own = {name: part.own_queries(x, axis) for name, (x, axis) in held.items() if x is not None}
    return table._replace(**own)


def _laid_out(x: Float[Array, "N H D"], block: int) -> Float[Array, "H L D"]:
    """Heads first, with zeros up to whole blocks of tokens."""
    return jnp.pad(x.transpose(1, 0, 2), [(0, 0), (0, -x.shape[0] % block), (0, 0)])


def _laid_out_ids(site: Site, none: int, block: int) -> Int32[Array, " L"]:
    """Documents, with `none` for padding, so that no query sees it."""
    document = jnp.where(site.segment > 0, site.segment, none)
    return jnp.pad(document, (0, -len(document) % block), constant_values=none)


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
    q, k = ((site.prefix, *axes) for site, axes in ((q_site, window.q), (k_site, window.k)))
    if len(window.q) != 1 or not all(isinstance(leaf, np.ndarray) for leaf in (*q, *k)):
        return False
    prefix, position = q
    if prefix.any() or not all(map(np.array_equal, q, k)):
        return False
    lead = position - np.arange(len(position))
    segments = [site.segment for site in (q_site, k_site)]
    if (lead == lead[0]).all() or not all(isinstance(segment, np.ndarray) for segment in segments):
        return bool((lead == lead[0]).all())
    if not np.array_equal(*segments):
        return False
    segment = segments[0]
    _, first, document = np.unique(segment, return_index=True, return_inverse=True)
    return bool(((lead == lead[first][document]) | (segment <= 0)).all())
