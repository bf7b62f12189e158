"""Blocks that host any encoding: the part that all models but the ResNet share."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import checkpoint_policies as policies
from jaxtyping import Float, Int32, Shaped

from posjax.attention import Cache
from posjax.attention.blockwise import SAVED
from posjax.attention.explicit import spec_of, split_by_compiler
from posjax.encoding import Array, Dims, Encoding, Needs, Site, sites
from posjax.encodings.rotary import TABLES
from posjax.gradients import einsum, split_known
from posjax.hosting import Hosted, place
from posjax.models.block import BLOCK_FIELDS, Block, BlockConfig
from posjax.models.latent import Latent
from posjax.models.layers import Norm, watched
from posjax.models.patch_dropout import Kept, take, taken
from posjax.spec import nearest, parse_layers, plain_arguments

INJECTIONS = ["every_layer", "every_layer_shared", "lape", "stem"]
# The intermediates of a block that the forward pass saves for the backward pass, which computes the rest again. All save the
# rotary tables that heads share: these are small, and layers share them too where angles depend on sites alone.
_TABLES = policies.save_only_these_names(TABLES)
_SAVED = {
    "none": None,
    "full": _TABLES,
    "dots": policies.save_from_both_policies(policies.dots_with_no_batch_dims_saveable, _TABLES),
    "attention": policies.save_only_these_names(SAVED, TABLES),
}


class Transformer(nn.Module):
    """Blocks over tokens [B, T, M] and a final norm; hosts the encodings.

    Parameters: encoding or encoding_{l}, block_{l}, norm, and embedding_norm where there is one. Training (`train=True`)
    takes the rngs "place", for encodings that move tokens, and "dropout". Where the collection "intermediates" is mutable,
    "tokens_in" and the output of each block, "tokens_{l}", are sown.

    Args:
      encodings: a pattern over the layers, repeated: layer l hosts encodings[l % len(encodings)].
      block: the config of each block. Its `context` shares each sequence among devices; tokens and sites keep their order.
      depth: the number of blocks.
      injection: where `encoding.embed` acts, and which layers share parameters of the encoding.

        - stem: once, before the first block; attention in every layer shares the parameters (as T5 does).
        - every_layer: before every block, each with parameters of its own, for its attention too.
        - every_layer_shared: before every block, with one set of parameters.
        - lape: the code that the stem would add goes, through a LayerNorm of each layer, to the input of attention alone:
          attention(norm(x) + norm_l(code)). Yu et al. (2023), "LaPE: Layer-adaptive Position Embedding", ICCV, eq. 5; the
          authors' code chains the norms from layer to layer, the paper does not.

        In a pattern, layers with equal encodings share parameters; the stem embeds each encoding once.
      scan: runs the blocks as a loop over repeats of the pattern, which is traced once. The parameters are the same either
        way: the loop stacks them when it starts. No effect with injection "every_layer", first_norm=False, caches or
        intermediates. On CPUs a training step took 1.2 times as long, compiling 12 and 24 layers twice as long.
      remat: the part of a block that the backward pass computes again: "none", "full" (all), "dots" (all but matrix
        products) or "attention" (all but the result of blockwise attention).
      causal: whether a token sees earlier tokens only.
      length, grid: positions that a 1-D table must hold; (height, width) of a 2-D table.
      prefix: the number of prefix tokens.
      final_norm: whether the output of the last block is normed.
      embedding_norm: whether tokens are normed behind the stem, before the first block, as in BERT and BLOOM.
      first_norm: whether the first block's attention reads normed tokens; False in ModernBERT, which norms embeddings.

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
        """Returns the output of the last block, and a cache for each layer (None without cached decoding).

        Args:
          memory: tokens for the cross-attention of every block, and their site.
          caches, cache_size: for cached decoding, see `Decoder.prefill`.
          kept: the tokens that go through the blocks; encodings place them among all tokens.
        """
        for field, name, known in (("injection", self.injection, INJECTIONS), ("remat", self.remat, list(_SAVED))):
            if name not in known:
                raise ValueError(f"no {field} is named {name!r}; {nearest(name, known)}")
        if self.block.context is not None and (caches is not None or cache_size is not None):
            raise ValueError("a cache is not shared by devices: decode with model.with_fields(context=None)")
        hosts = layer_hosts(self.encodings, self.depth, self.injection)
        x, hosted = self._hosted(hosts, x, site, kept, train)
        if self.embedding_norm:
            x = Norm(self.block, name="embedding_norm")(x)
        if self.block.context is not None and not self.is_initializing():
            x = self.block.context.shared(x)
        self.sow("intermediates", "tokens_in", x)
        layers = [_Layer(*hosted[name], **drops) for (name, _), drops in zip(hosts, self._drops(train), strict=True)]
        x, written = self._blocks(x, layers, memory, caches, cache_size)
        return Norm(self.block, name="norm")(x) if self.final_norm else x, written

    def _hosted(self, hosts, x, site: Site, kept, train: bool):
        """Returns the tokens that enter the blocks, and {name: (hosted encoding, its code for "lape" or None)}."""
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
        return take(x, kept), {
            name: (dataclasses.replace(one, site=taken(one.site, kept)), None if code is None else take(code, kept))
            for name, (one, code) in hosted.items()
        }

    def _drops(self, train: bool) -> list[dict[str, Any]]:
        """Returns the rate of stochastic depth and the key of each layer."""
        c = self.block
        key = self.make_rng("dropout") if train and (c.dropout or c.drop_path) else None
        rates = [c.drop_path * layer / max(self.depth - 1, 1) for layer in range(self.depth)]
        rates = [c.drop_path] * self.depth if c.drop_path_constant else rates
        return [dict(rate=rate, key=key if key is None else jax.random.fold_in(key, i)) for i, rate in enumerate(rates)]

    def _blocks(self, x, layers: list["_Layer"], memory, caches, cache_size):
        """Returns the tokens behind the last block, and the caches.

        Blocks are modules where they make parameters, sow intermediates or write caches, else functions of their parameters,
        as jax.checkpoint and jax.lax.scan need them.
        """
        kinds = [(self.block.of_layer(i), self.causal, self.first_norm or i > 0) for i in range(self.depth)]
        embeds = self.injection.startswith("every_layer")
        if self.is_initializing() or caches is not None or cache_size is not None or watched(self):
            caches, written = caches or [None] * self.depth, []
            for index, (kind, layer, cache) in enumerate(zip(kinds, layers, caches, strict=True)):
                x = layer.hosted.embed(x) if embeds else x
                block = Block(*kind, name=f"block_{index}")
                x, cache = block(x, *layer, memory=memory, cache=cache, cache_size=cache_size)
                self.sow("intermediates", f"tokens_{index}", x)
                written.append(cache)
            return x, written

        def function(block: Block):
            def run(x, params, layer):
                x = layer.hosted.embed(x) if embeds else x
                return block.apply({"params": params}, x, *layer, memory=memory)[0]

            return run if self.remat == "none" else _again(run, _SAVED[self.remat])

        functions = {kind: function(Block(*kind, parent=None)) for kind in dict.fromkeys(kinds)}
        runs = [functions[kind] for kind in kinds]
        params = [self.variables["params"][f"block_{index}"] for index in range(self.depth)]
        period = math.lcm(len(self.encodings), len(self.block.qk_norms))
        alike = self.injection != "every_layer" and self.first_norm
        repeats = self.depth // period if self.scan and alike else 1
        scanned = period * repeats if repeats > 1 else 0
        if scanned:
            x = _scanned(runs[:period], x, params[:scanned], layers[:scanned])
        for index in range(scanned, self.depth):
            x = runs[index](x, params[index], layers[index])
        return x, [None] * self.depth


class _Layer(NamedTuple):
    """The arguments of a block beside tokens and parameters."""

    hosted: Hosted
    code: jax.Array | None
    rate: float | jax.Array
    key: jax.Array | None


def _again(run: Callable, policy: Callable) -> Callable:
    """Returns run(x, params, layer) whose intermediates are computed again in the backward pass; known sites stay known."""

    def of_traced(x, params, layer):
        leaves, joined = split_known(layer)
        again = jax.checkpoint(lambda x, params, leaves: run(x, params, joined(leaves)), policy=policy)
        return again(x, params, leaves)

    return of_traced


def _scanned(runs: list[Callable], x, params: list, layers: list[_Layer]):
    """Returns x behind the layers; those `len(runs)` apart have the same function, encoding and code."""
    period = len(runs)

    def stacked(first: int):
        trees = [(params[i], layers[i].rate, layers[i].key) for i in range(first, len(layers), period)]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)

    def pattern(x, stacks):
        for run, layer, (own, rate, key) in zip(runs, layers[:period], stacks, strict=True):
            x = run(x, own, layer._replace(rate=rate, key=key))
        return x, None

    return jax.lax.scan(pattern, x, [stacked(first) for first in range(period)])[0]


def layer_hosts(pattern: tuple[Encoding, ...], depth: int, injection: str) -> list[tuple[str, Encoding]]:
    """Returns the name of the encoding's parameters, and the encoding, of each layer of a transformer."""
    hosts = []
    for layer in range(depth):
        encoding = pattern[layer % len(pattern)]
        own = layer if injection == "every_layer" else pattern.index(encoding)
        alone = pattern.count(encoding) == len(pattern) and injection != "every_layer"
        hosts.append(("encoding" if alone else f"encoding_{own}", encoding))
    return hosts


def embedded(embedding: nn.Embed, tokens: Int32[Array, "B T *P"]) -> Float[jax.Array, "B T M"]:
    """Returns the rows of the tokens, of P tokens at a place their sum; in a mesh with explicit axes split as the tokens.

    A row's gradient is a sum over its tokens in the dtype of the table: in bfloat16 it stops growing at 256 equal terms.
    """
    rows = _rows(jnp.asarray(embedding.embedding), tokens).astype(embedding.dtype)
    return rows if tokens.ndim == 2 else rows.sum(axis=2)


@split_by_compiler(lambda given: spec_of(given["tokens"]))
def _rows(table: Float[Array, "V M"], tokens: Int32[Array, "B T *P"]) -> Float[jax.Array, "B T *P M"]:
    return jnp.take(table, tokens, axis=0)


def tied_logits(embedding: nn.Embed, x: Float[jax.Array, "B T M"]) -> Float[jax.Array, "B T V"]:
    """Returns the logits of features by the token embedding, in float32; its gradient multiplies numbers of x's dtype."""
    return einsum("btm,vm->btv", x, jnp.asarray(embedding.embedding, x.dtype))


class TokenHead(nn.Module):
    """Returns the logits of features by a table of its own, [M, V]; otherwise as `tied_logits`."""

    vocab_size: int
    use_bias: bool = False
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Float[jax.Array, "B T M"]) -> Float[jax.Array, "B T V"]:
        shape = x.shape[-1], self.vocab_size
        kernel = self.param("kernel", nn.initializers.lecun_normal(), shape, self.param_dtype)
        logits = einsum("btm,mv->btv", x, kernel.astype(x.dtype))
        if not self.use_bias:
            return logits
        return logits + self.param("bias", nn.initializers.zeros, shape[1:], self.param_dtype).astype(logits.dtype)


def token_at(x: Shaped[Array, "B T *C"], index: Int32[jax.Array, " B"]) -> Shaped[jax.Array, "B 1 *C"]:
    """Returns one token of each row."""
    return jnp.take_along_axis(jnp.asarray(x), index.reshape(-1, *[1] * (x.ndim - 1)), axis=1)


class BlockModel(nn.Module, kw_only=True):
    """A model with a `Transformer`; its subclasses add fields of their own.

    Configurations and files hold the fields of a model and of its block side by side. `from_config` reads that form, and
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

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        plain_arguments(cls)

    @classmethod
    def from_config(cls, fields: Mapping[str, Any], **given: Any) -> "BlockModel":
        """Returns the model of these fields, and of further ones, `given`, which replace them.

        Args:
          fields: of the model and of its block; `latent` may be a text.

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

    def example(self) -> tuple[Any, ...]:
        """Returns arguments of `init`: one token and its site."""
        return jnp.zeros((1, 1), jnp.int32), sites(1)

    def float32_head(self, outputs: int, **options: Any) -> nn.Dense:
        """Returns a linear head with activations in float32."""
        return nn.Dense(outputs, dtype=jnp.float32, param_dtype=self.block.param_dtype, **options)

    def transformer(self, encoding: Any, **own: Any) -> Transformer:
        """Returns the blocks, with an encoding or a pattern of encodings; `own` are other fields of `Transformer`."""
        fields = dict(depth=self.depth, injection=self.injection, scan=self.scan, remat=self.remat) | own
        return Transformer(parse_layers(encoding), self.block, **fields)
