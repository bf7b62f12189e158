"""Embeddings of texts by a bidirectional encoder: how far words move them by their place, and reading beyond the table.

    embed = text_embedder(model, params, special_ends(tokenizer))
    far = moved_embeddings(embed, texts, words, share=0.25)               # texts and words as tokens, without special ones

An embedding is the mean of the token vectors of the last layer, special tokens included, scaled to length 1 (Reimers &
Gurevych 2019, arXiv 1908.10084). Every function returns one number per text, the unit of repetition.
"""

import functools
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from posjax.data.tokens import Tokenizer
from posjax.encoding import Site
from posjax.models import Encoder
from posjax.models.transformer import layer_hosts
from posjax.spec import parse_layers

Embed = Callable[[Sequence[np.ndarray]], Float[np.ndarray, "N M"]]
Ends = tuple[tuple[int, ...], tuple[int, ...]]

READINGS = ("truncated", "interpolated", "grouped", "recurrent", "windows")
PLACES = {"start": 0.0, "middle": 0.5, "end": 1.0}
_TOKENS = 8192  # most tokens of a batch
_STEP = 64  # lengths of batches are multiples: each is compiled once
GRASS = b"The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
_NAMES = (
    "Ada Boris Carla Dmitri Elena Farid Greta Hugo Irene Jamal Keiko Luis Maya Nils Olga Pablo Quinn Rosa Sven Tara",
    "Adler Brandt Castro Dubois Engel Foster Garcia Holm Ivanov Jensen Klein Lopez Moreau Novak Olsen Park Rossi Silva",
)


def special_ends(tokenizer: Tokenizer) -> Ends:
    """Returns the special tokens that the tokenizer's template puts before and behind a text, as BERT's [CLS] and [SEP]."""
    if tokenizer.rust is None:
        return (), ()
    both = tuple(tokenizer.rust.encode("").ids)
    return both[: len(tokenizer.bos)], both[len(tokenizer.bos) :]


def text_embedder(
    model: Encoder,
    params: Any,
    ends: Ends = ((), ()),
    *,
    reading: str = "truncated",
    length: int | None = None,
    shift: int = 0,
) -> Embed:
    """Returns a function from texts, as tokens [n_i], to their embeddings.

    Ways to read more tokens than the table has rows, R, as Zhu et al. (2024), LongEmbed, arXiv 2404.12096, section 4.1:
      truncated: the first R tokens, the baseline.
      interpolated: the table is resized to `length` rows, linearly with the first and last ones kept ("position
        interpolation").
      grouped: position p reads row floor(p / g), g = ceil(length / R).
      recurrent: position p reads row p mod R.
      windows: windows of R tokens, each with special tokens of its own, are embedded alone, and the mean of their token means
        is scaled to length 1 ("parallel context windows"). The last one ends with the text and may overlap the one before.
    All are equal for a `length` of at most R.

    Args:
      model: a model whose `length` is R; None is a model without a table, which takes any length.
      ends: special tokens before and behind each text.
      reading: one of `READINGS`.
      length: the longest text that will be read, special tokens included; longer ones are cut.
      shift: is added to all positions.
    """
    rows, around = model.length or sys.maxsize, sum(map(len, ends))
    length = length or rows
    size = (min(length, rows) if reading in ("truncated", "windows") else length) - around
    if reading == "interpolated" and length > rows:
        model, params = lengthened(model, params, length)
    # p // group % period + shift
    group = math.ceil(length / rows) if reading == "grouped" else 1
    period = rows if reading == "recurrent" else np.iinfo(np.int32).max
    means = functools.partial(_token_means, model, params, (group, period, shift))

    def embed(texts: Sequence[np.ndarray]) -> Float[np.ndarray, "N M"]:
        parts = [_parts(text[: length - around], size, reading) for text in texts]
        whole = means([np.concatenate([ends[0], part, ends[1]]).astype(np.int32) for text in parts for part in text])
        borders = np.cumsum([len(text) for text in parts])[:-1]
        mean = np.stack([part.mean(axis=0) for part in np.split(whole, borders)])
        return mean / np.linalg.norm(mean, axis=1, keepdims=True)

    return embed


def _parts(text: np.ndarray, size: int, reading: str) -> list[np.ndarray]:
    """Returns the pieces of a text, of `size` tokens at most, that are embedded one by one: the first alone, or windows."""
    last = max(len(text) - size, 0) if reading == "windows" else 0
    return [text[start : start + size] for start in (*range(0, last, size), last)]


def lengthened(model: Encoder, params: Any, length: int) -> tuple[Encoder, Any]:
    """Returns the model and its parameters with the tables of all layers resized linearly; first and last rows stay."""
    trunk = dict(params["trunk"])
    for name, encoding in layer_hosts(parse_layers(model.encoding), model.depth, model.injection):
        if name in trunk:
            _, trunk[name] = encoding.resized(params["trunk"][name], (model.length,), (length,), "google_npz")
    return model.clone(length=length), {**params, "trunk": trunk}


def _token_means(
    model: Encoder, params: Any, numbering: tuple[int, int, int], texts: Sequence[np.ndarray]
) -> Float[np.ndarray, "N M"]:
    """Returns the mean of the features of each text [n_i]."""
    order, features = np.argsort([len(text) for text in texts], kind="stable"), [None] * len(texts)
    while len(order):
        length = -(-len(texts[order[-1]]) // _STEP) * _STEP
        size = max(1, _TOKENS // length)
        chosen, order = order[-size:], order[:-size]
        tokens, mask = np.zeros((2, size, length), np.int32)
        mask[len(chosen) :, 0] = 1  # rows that fill up the batch
        for row, index in enumerate(chosen):
            tokens[row, : len(texts[index])], mask[row, : len(texts[index])] = texts[index], 1
        means = np.asarray(_batch_means(model, params, numbering, tokens, mask), np.float64)
        for index, mean in zip(chosen, means, strict=False):
            features[index] = mean
    return np.stack(features)


@functools.partial(jax.jit, static_argnums=0)
def _batch_means(model, params, numbering, tokens, mask):
    group, period, shift = numbering
    places = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape) // group % period + shift
    x = model.apply({"params": params}, tokens, Site(places * mask, mask), method="features")
    return jnp.where(mask[..., None] > 0, x, 0).sum(axis=1) / mask.sum(axis=1, keepdims=True)


def moved_embeddings(
    embed: Embed, texts: Sequence[np.ndarray], words: np.ndarray, share: float
) -> dict[str, Float[np.ndarray, " N"]]:
    """Measures how far embeddings move when words are inserted, and when words are removed, at `PLACES` of the texts.

    Lee, Goel & Ramchandran (2024), arXiv 2412.15241, section 3: both are a share of the text's tokens. 1 less their cosine
    similarity. A text with the insertion should fit the model, as the end is cut otherwise.

    Args:
      texts: tokens of each text.
      words: tokens of an unrelated text; its beginning is inserted, again and again if it is short.
      share: in (0, 1), of each text's tokens; at least one token.

    Returns:
      {"words inserted at the start": a distance for each text, ...}.
    """
    original, distances = embed(texts), {}
    for name, place in PLACES.items():
        longer, shorter = [], []
        for text in texts:
            size = max(1, int(share * len(text)))
            cut, start = int(place * len(text)), int(place * (len(text) - size))
            longer.append(np.concatenate([text[:cut], np.resize(words, size), text[cut:]]))
            shorter.append(np.concatenate([text[:start], text[start + size :]]))
        distances[f"words inserted at the {name}"] = cosine_distance(original, embed(longer))
        distances[f"words removed at the {name}"] = cosine_distance(original, embed(shorter))
    return distances


def cosine_distance(first: Float[np.ndarray, "N M"], second: Float[np.ndarray, "N M"]) -> Float[np.ndarray, " N"]:
    """Returns 1 less the cosine of the rows."""
    product = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return 1 - (first * second).sum(axis=1) / product


def passkey_set(tokenizer: Tokenizer, *, size: int, count: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Returns documents that hold another person's pass key each, and the question for each of them, as tokens.

    Wang et al. (2023), arXiv 2401.00368, section 5.2, and LongEmbed: "NAME's pass key is KEY. Remember it. KEY is the pass
    key for NAME." stands at a random depth in a filler that all documents share. The question asks for the
    pass key of NAME.

    Args:
      size: tokens of each document, without special ones.
      count: N, the number of documents.

    Raises:
      ValueError: there are fewer names than documents.
    """
    names = [" ".join(name) for name in itertools.product(*(part.split() for part in _NAMES))]
    if count > len(names):
        raise ValueError(f"--num_texts={count}: pass keys need as many names, and there are {len(names)}")
    rng = np.random.default_rng(0)
    chosen, depth, keys = rng.permutation(names)[:count], rng.random(count), rng.integers(10_000, 100_000, count)
    filler = np.resize(tokenizer.encode([GRASS])[0], size)
    facts = [
        f" {name}'s pass key is {key}. Remember it. {key} is the pass key for {name}. ".encode()
        for name, key in zip(chosen, keys, strict=True)
    ]
    documents = []
    for share, fact in zip(depth, tokenizer.encode(facts), strict=True):
        free = size - len(fact)
        before = round(share * free)
        documents.append(np.concatenate([filler[:before], fact, filler[before:free]]))
    return documents, tokenizer.encode([f"what is the pass key for {name}?".encode() for name in chosen])


def retrieval_rank(documents: Float[np.ndarray, "N M"], queries: Float[np.ndarray, "N M"]) -> Int[np.ndarray, " N"]:
    """Returns for each query the number of other documents that are as near or nearer than its own; 0 is retrieved."""
    near = queries @ documents.T
    return (near >= np.diagonal(near)[:, None]).sum(axis=1) - 1


def passkey_ranks(
    model: Encoder, params: Any, tokenizer: Tokenizer, *, lengths: Sequence[int], readings: Sequence[str], count: int
) -> Iterator[tuple[str, int, Int[np.ndarray, " N"]]]:
    """Yields (reading, length, `retrieval_rank` of each document) for documents of each length under each reading.

    Documents differ between lengths and are the same for all readings. At lengths within the table all readings are equal:
    one is computed.

    Args:
      lengths: tokens of the documents, special ones included.
      readings: names in `READINGS`.
    """
    ends = special_ends(tokenizer)
    plain = text_embedder(model, params, ends)
    for length in lengths:
        documents, questions = passkey_set(tokenizer, size=length - sum(map(len, ends)), count=count)
        queries, rank = plain(questions), None
        for reading in readings:
            if rank is None or length > (model.length or math.inf):
                embed = text_embedder(model, params, ends, reading=reading, length=length)
                rank = retrieval_rank(embed(documents), queries)
            yield reading, length, rank
