"""An encoder and a decoder that reads what it makes, each hosting any encoding."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Float, Int32

from posjax.attention import Cache
from posjax.encoding import Array, Encoding, Site
from posjax.models.transformer import BlockModel, one_token, tied_logits
from posjax.spec import parse_layers

Memory = tuple[Float[jax.Array, "B S M"], Site]


class EncoderDecoder(BlockModel):
    """Next-token logits [B, T, V], in float32, of tokens [B, T] given a source [B, S].

        model = EncoderDecoder(vocab_size=256, norm="rms", mlp="relu", logit_scale=1.0, attention_bias=())
        logits = model.apply(params, source, source_site, tokens, site)

    Vaswani et al. (2017), arXiv 1706.03762, with one token embedding for both. The fields of the blocks are those of both
    stacks; a token of the decoder sees the source of its own document, through cross-attention without an encoding. By
    default encodings are those of T5 (Raffel et al. 2019, arXiv 1910.10683).

    For cached decoding: `memory = model.apply(params, source, source_site, method="encode")`, then `prefill` and `extend`,
    which take it.

    Args:
      encoding, decoder_encoding: of the two stacks, one or a pattern over layers.
      decoder_depth: blocks of the decoder; `depth` where None.
      length: the number of positions that a table must hold.
      tied_embedding: whether the head is the token embedding.
      embedding_scale: factor of token embeddings.
      head_scale: factor of what the head reads; T5 has 1 / sqrt(width) where the head is tied.
    """

    vocab_size: int
    encoding: str | Encoding | tuple[str | Encoding, ...] = "t5"
    decoder_encoding: str | Encoding | tuple[str | Encoding, ...] = "t5(bidirectional=False)"
    decoder_depth: int | None = None
    length: int | None = None
    tied_embedding: bool = True
    embedding_scale: float = 1.0
    head_scale: float = 1.0

    def example(self) -> tuple[Int32[Array, "1 1"], Site, Int32[Array, "1 1"], Site]:
        """Arguments of `init`."""
        return one_token() * 2

    def setup(self):
        types = self.block.types
        self.token_embedding = nn.Embed(
            self.vocab_size, self.block.width, embedding_init=nn.initializers.normal(1.0), **types
        )
        self.encoder = self.transformer(self.encoding, length=self.length)
        depth = self.depth if self.decoder_depth is None else self.decoder_depth
        told: dict[str, Any] = dict(causal=True, depth=depth, encodings=parse_layers(self.decoder_encoding))
        self.decoder = self.transformer(self.encoding, length=self.length).clone(**told, parent=self)
        if not self.tied_embedding:
            self.head = nn.Dense(self.vocab_size, use_bias=False, dtype=jnp.float32, param_dtype=self.block.param_dtype)

    def __call__(
        self,
        source: Int32[Array, "B S"],
        source_site: Site,
        tokens: Int32[Array, "B T"],
        site: Site,
        *,
        train: bool = False,
    ) -> Float[jax.Array, "B T V"]:
        memory = self.encode(source, source_site, train=train)
        return self._decode(tokens, site, memory, train=train)[0]

    def encode(self, source: Int32[Array, "B S"], source_site: Site, *, train: bool = False) -> Memory:
        """What the decoder reads of a source: the encoder's output [B, S, M] and its site."""
        return self.encoder(self._embedded(source), source_site, train=train)[0], source_site

    def prefill(self, tokens: Int32[Array, "B T"], site: Site, memory: Memory, *, cache_size: int):
        """Logits of the first tokens and the caches, of `cache_size` slots, that remember them: one for each layer."""
        return self._decode(tokens, site, memory, cache_size=cache_size)

    def extend(self, tokens: Int32[Array, "B T"], site: Site, memory: Memory, caches: list[Cache]):
        """Logits of further tokens and the caches with them in it."""
        return self._decode(tokens, site, memory, caches=caches)

    def _embedded(self, tokens):
        return self.token_embedding(tokens) * self.embedding_scale

    def _decode(self, tokens, site, memory, **options):
        x, caches = self.decoder(self._embedded(tokens), site, memory=memory, **options)
        x = x * self.head_scale
        if not self.tied_embedding:
            return self.head(x), caches
        return tied_logits(self.token_embedding, x), caches
