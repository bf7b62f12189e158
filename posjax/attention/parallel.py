"""Context parallelism: the tokens of one sequence shared by the devices along an axis of a mesh.

Every device holds the queries, keys, values and sites of its share of the tokens. Sites travel with the tokens, so an
encoding sees the same as on one device; no device ever builds logits or a bias of all tokens by all tokens.

    mesh = Mesh(np.array(jax.devices()).reshape(1, 8), ("data", "context"))
    context = ContextParallel(mesh, batch_axis="data")
    out = attend_parallel(encoding, params, q, k, v, site, site, context=context, causal=True)
    model = Decoder(vocab_size=256, encoding="alibi", block=BlockConfig(context=context))  # or in a model
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Float, Int32

from posjax.attention.attend import attend, check, check_consumed, orders_of
from posjax.attention.blockwise import SAVED
from posjax.attention.ring import Keys, Queries, Ring, attend_in_ring
from posjax.encoding import Array, Encoding, Needs, Params, Site, canonical, reads_rows

_ORDERS = ["contiguous", "zigzag"]
_KEYS = ["gather", "ring"]


@dataclass(frozen=True)
class ContextParallel:
    """The devices that share the tokens of a sequence.

    Args:
      mesh: its axes must be of type Auto, as in `Mesh(devices, names)`.
      axis: the axis of the mesh along which the devices share a sequence, each an equal run of its tokens.
      batch_axis: the axis, or axes, along which they share a batch; None where they do not.
      heads_axis: an axis along which they share heads. The compiler splits these: an encoding sees all heads at once. All
        other axes of the mesh are manual, so that loops over tiles end on each device by itself.
      order: of the queries, in causal attention. With "contiguous" runs the last device has all the keys to look at and
        the first next to none. In "zigzag" device d of N attends for the chunks d and 2N - 1 - d of 2N, which is the
        same work for all (Llama 3, arXiv 2407.21783, section 3.3.2); queries go there and back by two permutations.
      keys: how keys come to the queries. "gather" holds the keys of all devices at once and suits any encoding; "ring"
        passes them on, one device's share at a time (see ring.py), so that more devices need less memory each.

    Raises:
      ValueError: for axes that the mesh lacks or that are not of type Auto, an unknown order, or other keys.
    """

    mesh: Mesh
    axis: str = "context"
    batch_axis: str | tuple[str, ...] | None = None
    heads_axis: str | None = None
    order: str = "zigzag"
    keys: str = "gather"

    def __post_init__(self):
        for name in dict.fromkeys((self.axis, *self.batch_axes, self.heads_axis or self.axis)):
            if name not in self.mesh.axis_names:
                raise ValueError(f"the mesh has no axis named {name!r}; it has {self.mesh.axis_names}")
        if any(kind != AxisType.Auto for kind in self.mesh.axis_types):
            raise ValueError(
                f"the mesh has axes of types {self.mesh.axis_types}: make it with axis_types=(AxisType.Auto, ...)"
            )
        for field, names in (("order", _ORDERS), ("keys", _KEYS)):
            if getattr(self, field) not in names:
                raise ValueError(f"ContextParallel({field}={getattr(self, field)!r}): it is one of {names}")

    @property
    def size(self) -> int:
        """The number of devices that share a sequence."""
        return self.mesh.shape[self.axis]

    @property
    def batch_axes(self) -> tuple[str, ...]:
        """The axes along which devices share a batch."""
        given = self.batch_axis or ()
        return given if isinstance(given, tuple) else (given,)

    @property
    def manual_axes(self) -> frozenset[str]:
        """The axes along which devices attend by themselves: all but an axis of heads of size above 1."""
        shape = self.mesh.shape
        return frozenset(name for name in shape if name != self.heads_axis or shape[name] == 1)

    def batch_axis_of(self, batch: int) -> tuple[str, ...] | None:
        """The axes over which a batch of this size is split; None if it does not divide evenly."""
        parts = math.prod(self.mesh.shape[name] for name in self.batch_axes)
        return self.batch_axes if self.batch_axes and batch % parts == 0 else None

    def shared(self, x: Float[Array, "B T ..."]) -> Float[jax.Array, "B T ..."]:
        """x with its batch and tokens sharded over the devices where its sizes divide."""
        tokens = self.axis if x.shape[1] % self.size == 0 else None
        spec = PartitionSpec(self.batch_axis_of(x.shape[0]), tokens)
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, spec))


def attend_parallel(
    encoding: Encoding,
    params: Params,
    q: Float[Array, "T H D"],
    k: Float[Array, "S K D"],
    v: Float[Array, "S K E"],
    q_site: Site,
    k_site: Site,
    *,
    context: ContextParallel,
    causal: bool = False,
    implementation: str = "auto",
    scale: float | None = None,
    q_order: Int32[Array, " T"] | None = None,
    k_order: Int32[Array, " S"] | None = None,
    consumed: Collection[str] = (),
) -> Float[jax.Array, "T H E"]:
    """`posjax.attend`, computed by the devices along `context.axis`; `jax.vmap` it over a batch.

    Each device attends for its share of the queries; the keys, values and sites of the others come to it. Lengths that the
    devices do not divide are padded.

    To vmap over a batch that is split over an axis of the mesh, say so: `jax.vmap(..., spmd_axis_name="data")`.

    Args:
      q_order, k_order: as in `attend`, for tokens out of their order, such as those laid out by `zigzag`.
      consumed: the hooks that were run before, as in `attend`.

    Raises:
      ValueError: as `attend`; where keys come in a ring, for an encoding that needs all of them at once, or another
        implementation than the blockwise one.
    """
    check_consumed(encoding, consumed)
    q_site, k_site = canonical(q_site), canonical(k_site)
    check(q, k, v, q_site, k_site)
    q_order, k_order = orders_of(q, k, causal, q_order, k_order)
    in_ring = context.keys == "ring"
    if in_ring:
        _check_ring(encoding, implementation)
    parts = context.size * (2 if causal and context.order == "zigzag" else 1)
    queries, keys = _padded((q, q_site, q_order), parts), _padded((k, v, k_site, k_order), parts)
    zigzags = parts > context.size > 1
    options = dict(causal=causal, implementation=implementation, scale=scale, consumed=consumed)

    def of_one_device(params, queries, keys):
        if zigzags:
            queries = to_zigzag(queries, context)
        if in_ring:
            keys = to_zigzag(keys, context) if zigzags else keys  # for equal work at every step of the ring
            ring = Ring(encoding, context.axis, context.size, q.shape[-1] ** -0.5 if scale is None else scale)
            out = attend_in_ring(ring, params, Queries(*queries), Keys(*keys))
        else:
            out = _with_all_keys(encoding, options, params, *queries, *_gathered(keys, context))
        return _from_zigzag(out, context) if zigzags else out

    return _on_all_devices(of_one_device, context)(params, queries, keys)[: q.shape[0]]


def _on_all_devices(of_one_device, context: ContextParallel):
    """(params, queries, keys) -> output; every device computes its share of the queries."""
    # The backward pass gathers other devices' keys again instead of keeping them; the outputs are kept, by name.
    kept = jax.checkpoint(of_one_device, policy=jax.checkpoint_policies.save_only_these_names(SAVED))
    tokens = PartitionSpec(context.axis)
    # check_vma=False: attention starts scans from constants, which device tracking would refuse.
    return jax.shard_map(
        kept,
        mesh=context.mesh,
        in_specs=(PartitionSpec(), tokens, tokens),
        out_specs=tokens,
        axis_names=context.manual_axes,
        check_vma=False,
    )


def _check_ring(encoding: Encoding, implementation: str) -> None:
    if Needs.DOCUMENT_LENGTH in encoding.needs or reads_rows(encoding):
        raise ValueError(f"{encoding} needs the keys of all devices at once: ContextParallel(keys='gather')")
    if implementation not in ("auto", "blockwise"):
        raise ValueError(
            f"keys in a ring are attended blockwise: implementation={implementation!r} needs keys='gather'"
        )


def _with_all_keys(encoding, options: dict[str, Any], params, q, q_site, q_order, k, v, k_site, k_order):
    return attend(encoding, params, q, k, v, q_site, k_site, q_order=q_order, k_order=k_order, **options)


def _gathered(tree: Any, context: ContextParallel) -> Any:
    """The tokens of all devices that share a sequence. Even a gather by one would copy the heads that other devices hold."""
    if context.size == 1:
        return tree
    return jax.tree.map(lambda x: jax.lax.all_gather(x, context.axis, tiled=True), tree)


def zigzag(tree: Any, num_shards: int, axis: int = 0) -> Any:
    """Lays tokens out so that each of N shards has equal causal work: shard d gets the chunks d and 2N - 1 - d of 2N.

        tokens, site = zigzag((tokens, site), 8, axis=1)          # [B, T, ...], before they are put on devices
        order = zigzag(np.arange(length, dtype=np.int32), 8)      # the q_order and k_order of `attend` for them

    Args:
      tree: of arrays with the tokens along `axis`.

    Raises:
      ValueError: for a number of tokens that 2 num_shards does not divide.

    >>> zigzag(np.arange(8), 2).tolist()    # the first shard has the first four
    [0, 1, 6, 7, 2, 3, 4, 5]
    """
    return jax.tree.map(lambda x: _chunks_taken(x, _zigzag_chunks(num_shards), axis), tree)


def unzigzag(tree: Any, num_shards: int, axis: int = 0) -> Any:
    """The inverse of `zigzag`."""
    return jax.tree.map(lambda x: _chunks_taken(x, np.argsort(_zigzag_chunks(num_shards)), axis), tree)


def _zigzag_chunks(num_shards: int) -> np.ndarray:
    first = np.arange(num_shards)
    return np.stack([first, 2 * num_shards - 1 - first], axis=1).reshape(-1)


def _chunks_taken(x: Array, chunks: np.ndarray, axis: int) -> Array:
    length = x.shape[axis]
    if length % len(chunks):
        raise ValueError(
            f"{length} tokens do not make {len(chunks)} equal chunks, two a shard: pad them with segment 0 to a multiple "
            f"of {len(chunks)}"
        )
    split = x.reshape(*x.shape[:axis], len(chunks), length // len(chunks), *x.shape[axis + 1 :])
    index = (slice(None),) * axis + (chunks,)
    return split[index].reshape(x.shape)


def to_zigzag(tree: Any, context: ContextParallel) -> Any:
    """Exchanges chunks 2d and 2d + 1 of each device d for chunks d and 2N - 1 - d, the even one first."""
    to_even, to_odd = _destinations(context.size)

    def exchanged(x):
        even, odd = jnp.split(x, 2)
        return jnp.concatenate([_sent(even, to_even, context.axis), _sent(odd, to_odd, context.axis)])

    return jax.tree.map(exchanged, tree)


def _from_zigzag(x: Array, context: ContextParallel) -> Array:
    even, odd = jnp.split(x, 2)
    back_even, back_odd = ([pair[::-1] for pair in pairs] for pairs in _destinations(context.size))
    return jnp.concatenate([_sent(even, back_even, context.axis), _sent(odd, back_odd, context.axis)])


def _destinations(size: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """(from device, to device) of the even chunks, and of the odd ones; every device is sent one of each."""
    holder = np.argsort(_zigzag_chunks(size)) // 2
    return tuple([(d, int(holder[2 * d + odd])) for d in range(size)] for odd in (0, 1))


def _sent(x: Array, pairs: list[tuple[int, int]], axis: str) -> Array:
    return jax.lax.ppermute(x, axis, pairs)


def _padded(tree: Any, parts: int) -> Any:
    """Appends tokens of segment 0, which are never seen, until `parts` divides their number."""
    return jax.tree.map(lambda x: jnp.pad(x, [(0, -x.shape[0] % parts)] + [(0, 0)] * (x.ndim - 1)), tree)
