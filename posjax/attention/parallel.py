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
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Float, Int32

from posjax.attention.attend import check, check_consumed, finish, orders_of, scaled, transform
from posjax.attention.backends import backend
from posjax.attention.blockwise import SAVED
from posjax.attention.choose import choose
from posjax.attention.dense import Operands, Part
from posjax.attention.devices import device_of
from posjax.attention.ring import Keys, Queries, Ring, attend_in_ring
from posjax.encoding import Array, Encoding, Needs, Params, Site, canonical, reads_rows
from posjax.gradients import split_known, split_leaves

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

    mesh: Mesh | AbstractMesh
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
    batch: int = 1,
) -> Float[jax.Array, "T H E"]:
    """`posjax.attend`, computed by the devices along `context.axis`; `jax.vmap` it over a batch.

    Each device attends for its share of the queries; the keys, values and sites of the others come to it. Lengths that the
    devices do not divide are padded.

    To vmap over a batch that is split over an axis of the mesh, say so: `jax.vmap(..., spmd_axis_name="data")`.

    Args:
      q_order, k_order: as in `attend`, for tokens out of their order, such as those laid out by `zigzag`.
      consumed, batch: as in `attend`.

    Raises:
      ValueError: as `attend`; where keys come in a ring, for an encoding that needs all of them at once, or another
        implementation than the blockwise one.
    """
    check_consumed(encoding, consumed)
    q_site, k_site = canonical(q_site), canonical(k_site)
    check(q, k, v, q_site, k_site)
    q_order, k_order = orders_of(q, k, causal, q_order, k_order)
    zigzags = causal and context.order == "zigzag" and context.size > 1
    parts, length = context.size * (2 if zigzags else 1), len(q)
    q, k, v, q_site, k_site = _padded((q, k, v, q_site, k_site), parts)
    q_order, k_order = (None if order is None else _counted_on(order, parts) for order in (q_order, k_order))
    sites = (q_site, q_order), (k_site, k_order)
    if context.keys == "ring":
        _check_ring(encoding, implementation)
        ring = Ring(encoding, context.axis, context.size, q.shape[-1] ** -0.5 if scale is None else scale)
        arrays, part = ((q,), (k, v)), None

        def run(params, queries, keys):
            return attend_in_ring(ring, params, Queries(*queries), Keys(*keys))

    else:
        options = dict(causal=causal, q_order=q_order, k_order=k_order, implementation=implementation)
        kind = device_of(context.mesh)
        options |= dict(devices=context.size, platform=kind.platform, capability=kind.capability, batch=batch)
        name = choose(encoding, q, k, v, q_site, k_site, **options).implementation
        x = transform(encoding, params, q, k, v, q_site, k_site)
        x, scale = scaled(encoding, x, scale, name)
        params, arrays = x.params, ((x.q, x.rotated_q), (x.k, x.rotated_k, x.v))
        part = _part(arrays, q_order, context, zigzags) if backend(name).parts else None
        options = dict(scale=scale) | (dict(part=part) if part else {})

        def run(params, queries, keys):
            (q, rotated_q, q_site, q_order), (k, rotated_k, v, k_site, k_order) = queries, _gathered(keys, context)
            x = Operands(params, q, k, rotated_q, rotated_k, v, q_site, k_site, q_order, k_order)
            return backend(name).run(encoding, x, **options)

    out = _on_all_devices(run, params, arrays, sites, context, zigzags, part)
    return finish(encoding, params, out, q_site)[:length]


def _part(arrays: Any, q_order: Array | None, context: ContextParallel, zigzags: bool) -> Part:
    """Returns the part that each device computes by a kernel: its share of the queries, and of heads that it divides."""
    axis = context.heads_axis
    devices = 1 if axis is None else context.mesh.shape[axis]
    divided = devices > 1 and all(x.shape[1] % devices == 0 for x in jax.tree.leaves(arrays))
    orders = np.arange(len(arrays[0][0]), dtype=np.int32) if q_order is None else q_order
    if not isinstance(orders, np.ndarray):
        orders = None
    elif zigzags:  # as `to_zigzag` leaves the queries: of a device's two chunks the even one first
        chunks = _zigzag_chunks(context.size).reshape(-1, 2)
        chunks = np.take_along_axis(chunks, np.argsort(chunks % 2, axis=1), axis=1)
        orders = _chunks_taken(orders, chunks.reshape(-1), 0)
    return Part(
        heads=(axis, devices) if divided else None,
        queries=(context.axis, context.size) if context.size > 1 else None,
        orders=orders,
    )


def _on_all_devices(
    run, params, arrays, sites, context: ContextParallel, zigzags: bool, part: Part | None
) -> jax.Array:
    """The output of `run(params, queries, keys)` on every device, for its share of the queries.

    Args:
      arrays: [T, H, ...] of the queries, and of the keys.
      sites: their sites and orders, which stay known when this is traced if each device has whole sequences.
      part: of a kernel, which is given its share of the heads; None: the compiler splits heads.
    """
    of_heads, in_ring = (
        PartitionSpec(context.axis, part.heads[0] if part and part.heads else None),
        context.keys == "ring",
    )
    leaves, joined = split_known(sites) if context.size == 1 else split_leaves(sites, lambda leaf: True)

    def of_one_device(params, arrays, leaves):
        queries, keys = ((*own, *site) for own, site in zip(arrays, joined(leaves), strict=True))
        if zigzags:
            queries = to_zigzag(queries, context)
            keys = to_zigzag(keys, context) if in_ring else keys  # for equal work at every step of the ring
        out = run(params, queries, keys)
        return _from_zigzag(out, context) if zigzags else out

    if context.size > 1:
        # The backward pass gathers other devices' keys again; the outputs are kept, by name.
        policy = jax.checkpoint_policies.save_only_these_names(SAVED)
        of_one_device = jax.checkpoint(of_one_device, policy=policy)
    # check_vma=False: attention starts scans from constants, which device tracking would refuse.
    return jax.shard_map(
        of_one_device,
        mesh=context.mesh,
        in_specs=(PartitionSpec(), of_heads, PartitionSpec(context.axis)),
        out_specs=of_heads,
        axis_names=context.manual_axes if part is None else frozenset(context.mesh.axis_names),
        check_vma=False,
    )(params, arrays, leaves)


def _check_ring(encoding: Encoding, implementation: str) -> None:
    if Needs.DOCUMENT_LENGTH in encoding.needs or reads_rows(encoding):
        raise ValueError(f"{encoding} needs the keys of all devices at once: ContextParallel(keys='gather')")
    if implementation not in ("auto", "blockwise"):
        raise ValueError(
            f"keys in a ring are attended blockwise: implementation={implementation!r} needs keys='gather'"
        )


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


def _counted_on(order: Array, parts: int) -> Array:
    """Appends numbers for the tokens that `_padded` adds: an order that counts tokens counts these, too."""
    length = len(order)
    numpy = np if isinstance(order, np.ndarray) else jnp
    return numpy.concatenate([order, np.arange(length, length + -length % parts, dtype=np.int32)])


def _padded(tree: Any, parts: int) -> Any:
    """Appends tokens of segment 0, which are never seen, until `parts` divides their number."""

    def one(x):
        numpy = np if isinstance(x, np.ndarray) else jnp  # known values stay known
        return numpy.pad(x, [(0, -x.shape[0] % parts)] + [(0, 0)] * (x.ndim - 1))

    return jax.tree.map(one, tree)
