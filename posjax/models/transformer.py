"""Blocks that host any encoding: what all models but the ResNet are made of."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Float, Int32

from posjax.attention import Cache
from posjax.attention.blockwise import SAVED
from posjax.encoding import Array, Dims, Encoding, Needs, Site, sites
from posjax.hosting import Hosted, place
from posjax.models.block import BLOCK_FIELDS, Block, BlockConfig
from posjax.models.latent import Latent
from posjax.models.layers import Norm, watched
from posjax.models.patch_dropout import Kept, take, taken
from posjax.spec import nearest, parse_layers

INJECTIONS = ["every_layer", "every_layer_shared", "lape", "stem"]
# What the backward pass finds saved of a block's forward pass; the rest is computed again.
_SAVED = {
    "none": None,
    "full": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "attention": jax.checkpoint_policies.save_only_these_names(SAVED),
}


class Transformer(nn.Module):
    """Blocks over [B, T, M] with a final norm; the place where encodings are hosted.

    Parameters are encoding or encoding_{l}, block_{l} and norm; embedding_norm where there is one.

    Training (`train=True`) takes an rng "place" for encodings that move tokens, and "dropout" where there is any.
    Where the collection "intermediates" is mutable, "tokens_in" and each block's output, "tokens_{l}", are sown.

    Args:
      encodings: a pattern over the layers, repeated: layer l hosts encodings[l % len(encodings)].
      block: what each block is. Its `context` shares each sequence among devices; tokens and sites come and go in their own
        order all the same.
      injection: where `encoding.embed` acts, and whose parameters the layers use.
        stem: once, before the first block; attention in every layer shares the same parameters (as T5 does).
        every_layer: before every block, each with parameters of its own, for its attention too.
        every_layer_shared: before every block, with one set of parameters.
        lape: the code that would be added at the stem goes, through a LayerNorm of each layer's own, to the normed input of
          attention, and not into the residual stream: attention(norm(x) + norm_l(code)). Yu et al. (2023), "LaPE:
          Layer-adaptive Position Embedding", ICCV, eq. 5; the authors' code chains the norms from layer to layer, the
          paper does not.
        In a pattern, layers whose encodings are equal share them; at the stem each is embedded once.
      scan: runs the blocks as a loop over repeats of the pattern, which is traced once, in place of a copy of each layer. The
        parameters are the same either way: the loop stacks them when it starts. Without effect where layers differ or are
        looked into: with injection "every_layer", with caches and with intermediates. On CPUs a training step was measured
        at 1.2 times the time, and compiling 12 and 24 layers at twice.
      remat: what of a block the backward pass computes again: "none"; "full": all of it; "dots": all but matrix products;
        "attention": all but the result of blockwise attention.
      length, grid: positions that a 1-D table must hold; (height, width) of a 2-D one.
      final_norm: whether the output of the last block is normed.
      embedding_norm: whether tokens are normed behind the stem, before the first block, as in BERT and BLOOM.
      first_norm: whether the first block's attention reads normed tokens; ModernBERT's does not: its embeddings are normed.

    Raises (on call):
      ValueError: for an unknown injection or remat, an encoding that mixes tokens in a causal model, or one that places whole
        documents in cached decoding; for cached decoding with a `context`; for "lape" where nothing is added to tokens.
    """

    encodings: tuple[Encoding, ...]
    block: BlockConfig
    depth: int
    injection: str = "stem"
    scan: bool = False
    remat: str = "none"
    causal: bool = False
    length: int | None = None
    grid: tuple[int, int] | None = None
    prefix: int = 0
    final_norm: bool = True
    embedding_norm: bool = False
    first_norm: bool = True

    @nn.compact
    def __call__(
        self,
        x: Float[jax.Array, "B T M"],
        site: Site,
        *,
        train: bool = False,
        memory: tuple[Float[jax.Array, "B S M2"], Site] | None = None,
        caches: list[Cache] | None = None,
        cache_size: int | None = None,
        kept: Kept | None = None,
    ) -> tuple[Float[jax.Array, "B K M"], list[Cache | None]]:
        """The output of the last block, and the caches.

        Args:
          memory: tokens that a cross-attention of every block reads, and where they stand.
          caches, cache_size: for cached decoding, see `Decoder.prefill`.
          kept: the tokens that go through the blocks, placed among all; the others are left out.
        """
        cached = caches is not None or cache_size is not None
        self._refuse(cached)
        hosts = layer_hosts(self.encodings, self.depth, self.injection)
        x, hosted = self._hosted(hosts, x, site, kept, train)
        if self.embedding_norm:
            x = Norm(self.block, name="embedding_norm")(x)
        if self.block.context is not None and not self.is_initializing():
            x = self.block.context.shared(x)
        self.sow("intermediates", "tokens_in", x)
        layers = [_Layer(*hosted[name], **each) for (name, _), each in zip(hosts, self._drops(train), strict=True)]
        if self.is_initializing() or cached or watched(self):
            x, written = self._bound(x, layers, memory, caches or [None] * self.depth, cache_size)
        else:
            x, written = self._run(x, layers, memory), [None] * self.depth
        return Norm(self.block, name="norm")(x) if self.final_norm else x, written

    def _refuse(self, cached: bool) -> None:
        for what, given, known in (("injection", self.injection, INJECTIONS), ("remat", self.remat, list(_SAVED))):
            if given not in known:
                raise ValueError(f"no {what} is named {given!r}; {nearest(given, known)}")
        if self.block.context is not None and cached:
            raise ValueError("a cache is not shared by devices: decode with model.with_fields(context=None)")

    def _hosted(self, hosts, x, site: Site, kept, train: bool):
        """The tokens that enter the blocks, and {name: (hosted encoding, its code for "lape" or None)}."""
        c = self.block
        dims = Dims(c.width, c.num_heads, c.turning_channels, self.length, self.grid, self.prefix)
        place_key = self.make_rng("place") if train else None
        hosted = {}
        for name, encoding in hosts:
            if name in hosted:
                continue
            params = self.param(name, encoding.init, dims)
            one, code = place(encoding, params, site, key=place_key, batch=x.shape[0]), None
            if self.injection == "stem":
                x = one.embed(x)
            elif self.injection == "lape" and "embed" in encoding.hooks:
                start = x if Needs.BOTH_DIRECTIONS in encoding.needs else jnp.zeros_like(x)
                code = one.embed(start) - start
            hosted[name] = one, code
        if self.injection == "lape" and all(code is None for _, code in hosted.values()):
            raise ValueError(
                f"injection='lape' normalises what is added to tokens, and {', '.join(map(str, self.encodings))} adds "
                "nothing; take injection='stem'"
            )
        if kept is None:
            return x, hosted
        held = {
            name: (dataclasses.replace(one, site=taken(one.site, kept)), None if code is None else take(code, kept))
            for name, (one, code) in hosted.items()
        }
        return take(x, kept), held

    def _drops(self, train: bool) -> list[dict[str, Any]]:
        """The rate of stochastic depth and the key of each layer."""
        c = self.block
        key = self.make_rng("dropout") if train and (c.dropout or c.drop_path) else None
        rates = [c.drop_path * layer / max(self.depth - 1, 1) for layer in range(self.depth)]
        return [dict(rate=rate, key=key if key is None else jax.random.fold_in(key, i)) for i, rate in enumerate(rates)]

    def _bound(self, x, layers, memory, caches, cache_size):
        """The blocks as modules of this one: they make parameters, sow intermediates and write caches."""
        written = []
        for index, (layer, cache) in enumerate(zip(layers, caches, strict=True)):
            block = Block(self.block.of_layer(index), self.causal, self._normed(index), name=f"block_{index}")
            x, cache = block(self._entering(x, layer), *layer, memory=memory, cache=cache, cache_size=cache_size)
            self.sow("intermediates", f"tokens_{index}", x)
            written.append(cache)
        return x, written

    def _run(self, x, layers, memory):
        """The blocks as functions of their parameters, as jax.checkpoint and jax.lax.scan need them."""

        def runner(block: Block):
            def one(x, params, layer):
                x, _ = block.apply({"params": params}, self._entering(x, layer), *layer, memory=memory)
                return x

            return one if self.remat == "none" else jax.checkpoint(one, policy=_SAVED[self.remat])

        layer_kinds = [(self.block.of_layer(layer), self.causal, self._normed(layer)) for layer in range(self.depth)]
        runners = {kind: runner(Block(*kind, parent=None)) for kind in dict.fromkeys(layer_kinds)}
        ones = [runners[kind] for kind in layer_kinds]
        params = [self.variables["params"][f"block_{layer}"] for layer in range(self.depth)]
        period = math.lcm(len(self.encodings), len(self.block.qk_norms))
        alike = self.injection != "every_layer" and self.first_norm
        repeats = self.depth // period if self.scan and alike else 1
        if repeats > 1:
            x = _scanned(ones, x, params, layers, period, repeats)
        for one, *each in list(zip(ones, params, layers, strict=True))[period * repeats if repeats > 1 else 0 :]:
            x = one(x, *each)
        return x

    def _normed(self, layer: int) -> bool:
        """Whether the attention of a layer reads normed tokens."""
        return self.first_norm or layer > 0

    def _entering(self, x, layer: "_Layer"):
        return layer.hosted.embed(x) if self.injection.startswith("every_layer") else x


class _Layer(NamedTuple):
    """What a block takes beside tokens and parameters."""

    hosted: Hosted
    code: jax.Array | None
    rate: float | jax.Array
    key: jax.Array | None


def _scanned(ones: list[Callable], x, params: list, layers: list[_Layer], period: int, repeats: int):
    """x behind the first period * repeats layers; those `period` apart host the same encoding and the same code."""

    def stacked(position: int):
        chosen = range(position, period * repeats, period)
        trees = [(params[layer], layers[layer].rate, layers[layer].key) for layer in chosen]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)

    def pattern(x, stacks):
        for one, layer, (own, rate, key) in zip(ones[:period], layers[:period], stacks, strict=True):
            x = one(x, own, layer._replace(rate=rate, key=key))
        return x, None

    return jax.lax.scan(pattern, x, [stacked(position) for position in range(period)])[0]


def layer_hosts(pattern: tuple[Encoding, ...], depth: int, injection: str) -> list[tuple[str, Encoding]]:
    """For each layer of a transformer the name of its encoding's parameters, and the encoding."""
    hosts = []
    for layer in range(depth):
        encoding = pattern[layer % len(pattern)]
        own = layer if injection == "every_layer" else pattern.index(encoding)
        alone = pattern.count(encoding) == len(pattern) and injection != "every_layer"
        hosts.append(("encoding" if alone else f"encoding_{own}", encoding))
    return hosts


def one_token() -> tuple[Int32[Array, "1 1"], Site]:
    """Arguments to make parameters with, which depend on no number of tokens."""
    return jnp.zeros((1, 1), jnp.int32), sites(1)


def tied_logits(embedding: nn.Embed, x: Float[jax.Array, "B T M"]) -> Float[jax.Array, "B T V"]:
    """Logits of features by the token embedding, in float32."""
    table = jnp.asarray(embedding.embedding, x.dtype)
    return jnp.einsum("btm,vm->btv", x, table, preferred_element_type=jnp.float32)


class BlockModel(nn.Module, kw_only=True):
    """A model with a `Transformer`. These are its fields by keyword, beside its own.

    Configurations and files hold the fields of a model and of its block side by side; `from_config` reads that form, and
    `fields` writes it.

    Args:
      block: the config of every block.
      depth: the number of blocks.
      injection, scan, remat: see `Transformer`.
    """

    block: BlockConfig = BlockConfig()
    depth: int = 4
    injection: str = "stem"
    scan: bool = False
    remat: str = "none"

    @classmethod
    def from_config(cls, fields: Mapping[str, Any], **given: Any) -> "BlockModel":
        """Returns the model of these fields, those of its block among them; `given` come before `fields`.

        `latent` may be a text.

        Raises:
          TypeError: for an unknown field.
          ValueError: as `BlockConfig`.
        """
        fields = {**fields, **given}
        block = {name: fields.pop(name) for name in BLOCK_FIELDS if name in fields}
        return cls(block=BlockConfig(**block | dict(latent=Latent.read(block.get("latent")))), **fields)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the model and of its block, as `from_config` takes them."""
        names = [field.name for field in dataclasses.fields(self) if field.name not in ("block", "name", "parent")]
        return {name: getattr(self.block if name in BLOCK_FIELDS else self, name) for name in (*names, *BLOCK_FIELDS)}

    def with_fields(self, **fields: Any) -> "BlockModel":
        """Returns the model with other values of its own fields or its block's: model.with_fields(dtype=jnp.bfloat16)."""
        block = {name: fields.pop(name) for name in BLOCK_FIELDS if name in fields}
        return self.clone(block=dataclasses.replace(self.block, **block), **fields)

    def transformer(self, encoding: Any, **own: Any) -> Transformer:
        """Returns the blocks, hosting an encoding or a pattern of them; `own` are further fields of `Transformer`."""
        shared = dict(injection=self.injection, scan=self.scan, remat=self.remat)
        return Transformer(parse_layers(encoding), self.block, self.depth, **shared, **own)
