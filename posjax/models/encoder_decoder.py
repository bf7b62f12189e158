"""An encoder and a decoder that reads its output, each with any encoding."""

import flax.linen as nn
import jax
from jaxtyping import Float, Int32

from posjax.attention import Cache
from posjax.encoding import Array, Encoding, Site
from posjax.models.transformer import BlockModel, TokenHead, embedded, tied_logits, token_at

Memory = tuple[Float[jax.Array, "B S M"], Site]


class EncoderDecoder(BlockModel):
    """Tokens [B, T] and a source [B, S] to next-token logits [B, T, V] in float32.

    Vaswani et al. (2017), arXiv 1706.03762, with one token embedding and one config of blocks for both stacks. A token of the
    decoder sees the source of its own document, through cross-attention without an encoding. The default encodings are T5's
    (Raffel et al. 2019, arXiv 1910.10683).

    For cached decoding: `memory = model.apply(params, source, source_site, method="encode")`, then `prefill` and `extend`.

    Args:
      vocab_size: V.
      encoding, decoder_encoding: of the two stacks, one encoding or a pattern over layers.
      decoder_depth: blocks of the decoder; None: `depth`.
      length: positions that a table must hold.
      tied_embedding: whether the token embedding is the head.
      embedding_scale: factor of token embeddings.
      head_scale: factor of the head's input; T5 has 1 / sqrt(width) with a tied head.

    >>> import jax, jax.numpy as jnp, posjax as pj
    >>> from posjax.models import BlockConfig
    >>> block = BlockConfig(width=16, num_heads=2, norm="rms", mlp="relu", logit_scale=1.0, attention_bias=())
    >>> model = EncoderDecoder(vocab_size=256, block=block, depth=1)
    >>> source, tokens = (jnp.zeros((3, 7), jnp.int32), pj.sites(7)), (jnp.zeros((3, 5), jnp.int32), pj.sites(5))
    >>> jax.eval_shape(model.init_with_output, jax.random.key(0), *source, *tokens)[0].shape
    (3, 5, 256)
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
        """Returns arguments of `init`: a source of one token, one token, and their sites."""
        return super().example() * 2

    def setup(self):
        types = self.block.types
        self.token_embedding = nn.Embed(
            self.vocab_size, self.block.width, embedding_init=nn.initializers.normal(1.0), **types
        )
        self.encoder = self.transformer(self.encoding, length=self.length)
        depth = self.depth if self.decoder_depth is None else self.decoder_depth
        self.decoder = self.transformer(self.decoder_encoding, depth=depth, length=self.length, causal=True)
        if not self.tied_embedding:
            self.head = TokenHead(self.vocab_size, param_dtype=self.block.param_dtype)

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
        """Returns the memory of a source: the encoder's output [B, S, M] and its site."""
        return self.encoder(self._embedded(source), source_site, train=train)[0], source_site

    def prefill(
        self,
        tokens: Int32[Array, "B T"],
        site: Site,
        memory: Memory,
        *,
        cache_size: int,
        at: Int32[Array, " B"] | None = None,
    ):
        """Returns the logits of the first tokens, or of the token `at` of each row, and caches as `Decoder.prefill`."""
        return self._decode(tokens, site, memory, at, cache_size=cache_size)

    def extend(self, tokens: Int32[Array, "B T"], site: Site, memory: Memory, caches: list[Cache]):
        """Returns the logits of further tokens, and the caches with these tokens."""
        return self._decode(tokens, site, memory, caches=caches)

    def _embedded(self, tokens):
        return embedded(self.token_embedding, tokens) * self.embedding_scale

    def _decode(self, tokens, site, memory, at=None, **options):
        x, caches = self.decoder(self._embedded(tokens), site, memory=memory, **options)
        x = self.head_scale * (x if at is None else token_at(x, at))
        if not self.tied_embedding:
            return self.head(x), caches
        return tied_logits(self.token_embedding, x), caches
