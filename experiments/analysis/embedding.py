"""Embeddings of texts by a bidirectional encoder: how far words move them by their place, and reading beyond the table.

    embed = text_embedder(model, params, special_ends(tokenizer))
    far = moved_embeddings(embed, texts, words, share=0.25)               # texts and words as tokens, without special ones

An embedding is the mean of the token vectors of the last layer, special tokens included, scaled to length 1 (Reimers &
Gurevych 2019, arXiv 1908.10084). Every function returns one number per text, the unit of repetition.
"""

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from posjax.data.tokens import Tokenizer
from posjax.encoding import Site
from posjax.models import Encoder
from posjax.models.transformer import layer_hosts
from posjax.spec import nearest, parse_layers

Embed = Callable[[Sequence[np.ndarray]], Float[np.ndarray, "N M"]]
Ends = tuple[tuple[int, ...], tuple[int, ...]]

READINGS = ("truncated", "interpolated", "grouped", "recurrent", "windows")
PLACES = (0.0, 0.5, 1.0)  # start, middle, end
_TOKENS = 8192  # most tokens of a batch
_STEP = 64  # lengths of batches are multiples: each is compiled once
GRASS = b"The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
_FIRST = (
    "Ada Boris Carla Dmitri Elena Farid Greta Hugo Irene Jamal Keiko Luis Maya Nils Olga Pablo Quinn Rosa Sven Tara"
)
_LAST = (
    "Adler Brandt Castro Dubois Engel Foster Garcia Holm Ivanov Jensen Klein Lopez Moreau Novak Olsen Park Rossi Silva"
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
      params: {"params": tree}.
      ends: special tokens before and behind each text.
      reading: one of `READINGS`.
      length: the longest text that will be read, special tokens included; longer ones are cut.
      shift: is added to all positions; the table must have the rows of the texts that will be read.

    Raises:
      ValueError: the reading is unknown, the length has no room for a text, or another reading than the first is asked for
        without a length or a table.
    """
    if reading not in READINGS:
        raise ValueError(f"no reading is named {reading!r}; {nearest(reading, list(READINGS))}")
    if reading != READINGS[0] and (length is None or model.length is None):
        raise ValueError(f"reading={reading!r} needs length=, the tokens of the longest text, and a model with a table")
    rows, around = model.length or sys.maxsize, sum(map(len, ends))
    length = length or rows
    size = (min(length, rows) if reading in ("truncated", "windows") else length) - around
    if size < 1:
        raise ValueError(f"length={length} leaves no room for a text beside {around} special tokens")
    if reading == "interpolated" and length > rows:
        model, params = lengthened(model, params, length)
    position: Mapping[str, Callable] = {
        "grouped": lambda places: places // math.ceil(length / rows),
        "recurrent": lambda places: places % rows,
    }
    means = _token_means(model, params, position.get(reading, lambda places: places + shift))

    def embed(texts: Sequence[np.ndarray]) -> Float[np.ndarray, "N M"]:
        parts = [_parts(text[: length - around], size, reading) for text in texts]
        found = means([np.concatenate([ends[0], part, ends[1]]).astype(np.int32) for each in parts for part in each])
        borders = np.cumsum([len(each) for each in parts])[:-1]
        mean = np.stack([part.mean(axis=0) for part in np.split(found, borders)])
        return mean / np.linalg.norm(mean, axis=1, keepdims=True)

    return embed


def _parts(text: np.ndarray, size: int, reading: str) -> list[np.ndarray]:
    """Returns the pieces of a text, of `size` tokens at most, that are embedded one by one: the first alone, or windows."""
    last = max(len(text) - size, 0) if reading == "windows" else 0
    return [text[start : start + size] for start in (*range(0, last, size), last)]


def lengthened(model: Encoder, params: Any, length: int) -> tuple[Encoder, Any]:
    """Returns the model and its parameters with the tables of all layers resized linearly; first and last rows stay.

    Raises:
      ValueError: the encodings have no table.
    """
    tree, pattern = params["params"], parse_layers(model.encoding)
    trunk = dict(tree["trunk"])
    for name, encoding in layer_hosts(pattern, model.depth, model.injection):
        if name in trunk:
            _, trunk[name] = encoding.resized(tree["trunk"][name], (model.length,), (length,), "google_npz")
    if all(trunk[name] is leaves for name, leaves in tree["trunk"].items()):
        raise ValueError(
            f"{model.encoding} has no table of {model.length} rows that could be resized: read it as it is"
        )
    return model.clone(length=length), {**params, "params": {**tree, "trunk": trunk}}


class Moved(NamedTuple):
    """Cosine distances of changed texts to the originals, by place of the change."""

    inserted: Float[np.ndarray, "P N"]
    removed: Float[np.ndarray, "P N"]


def moved_embeddings(
    embed: Embed, texts: Sequence[np.ndarray], words: np.ndarray, share: float, places: Sequence[float] = PLACES
) -> Moved:
    """Measures how far embeddings move when words are inserted, and when words are removed, at some places of the texts.

    Lee, Goel & Ramchandran (2024), arXiv 2412.15241, section 3: both are a share of the text's tokens. 1 less their cosine
    similarity. A text with the insertion should fit the model, as the end is cut otherwise.

    Args:
      texts: tokens of each text.
      words: tokens of an unrelated text; its beginning is inserted, again and again if it is short.
      share: in (0, 1), of each text's tokens; at least one token.
      places: 0 for the start, 1 for the end.

    Raises:
      ValueError: the share or a place is out of range.
    """
    if not 0 < share < 1 or not all(0 <= place <= 1 for place in places):
        raise ValueError(f"share={share} must lie between 0 and 1, and the places {tuple(places)} within them")
    original, sizes = embed(texts), [max(1, int(share * len(text))) for text in texts]
    inserted, removed = [], []
    for place in places:
        cuts = [int(place * len(text)) for text in texts]
        longer = [
            np.concatenate([text[:cut], np.resize(words, size), text[cut:]])
            for text, cut, size in zip(texts, cuts, sizes, strict=True)
        ]
        shorter = [
            _without(text, int(place * (len(text) - size)), size) for text, size in zip(texts, sizes, strict=True)
        ]
        inserted.append(cosine_distance(original, embed(longer)))
        removed.append(cosine_distance(original, embed(shorter)))
    return Moved(np.stack(inserted), np.stack(removed))


def cosine_distance(first: Float[np.ndarray, "N M"], second: Float[np.ndarray, "N M"]) -> Float[np.ndarray, " N"]:
    """Returns 1 less the cosine of the rows."""
    product = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return 1 - (first * second).sum(axis=1) / product


class PasskeySet(NamedTuple):
    """Documents that hold another person's pass key each, and the question for each of them, as tokens."""

    documents: list[np.ndarray]
    queries: list[np.ndarray]
    depth: Float[np.ndarray, " N"]  # share of the filler before the pass key


def passkey_set(
    tokenizer: Tokenizer, *, size: int, count: int, seed: int = 0, filler: np.ndarray | None = None
) -> PasskeySet:
    """Makes documents for passkey retrieval by embeddings.

    Wang et al. (2023), arXiv 2401.00368, section 5.2, and LongEmbed: "NAME's pass key is KEY. Remember it. KEY is the pass
    key for NAME." stands at a random depth in a filler that all documents share. The question asks for the
    pass key of NAME.

    Args:
      size: tokens of each document, without special ones.
      count: N, the number of documents.
      seed: of names, keys and depths.
      filler: tokens of a text, repeated if short; None for the repeated sentences of the paper.

    Raises:
      ValueError: the pass key does not fit, or there are fewer names than documents.
    """
    names = [f"{first} {last}" for first in _FIRST.split() for last in _LAST.split()]
    if count > len(names):
        raise ValueError(f"count={count} documents need as many names, and there are {len(names)}")
    rng = np.random.default_rng(seed)
    chosen, depth, keys = rng.permutation(names)[:count], rng.random(count), rng.integers(10_000, 100_000, count)
    filler = np.resize(tokenizer.encode([GRASS])[0] if filler is None else filler, size)
    facts = [
        f" {name}'s pass key is {key}. Remember it. {key} is the pass key for {name}. ".encode()
        for name, key in zip(chosen, keys, strict=True)
    ]
    documents = []
    for share, fact in zip(depth, tokenizer.encode(facts), strict=True):
        if (free := size - len(fact)) < 0:
            raise ValueError(f"a pass key of {len(fact)} tokens does not fit into a document of size={size}")
        before = round(share * free)
        documents.append(np.concatenate([filler[:before], fact, filler[before:free]]))
    queries = tokenizer.encode([f"what is the pass key for {name}?".encode() for name in chosen])
    return PasskeySet(documents, queries, depth)


def retrieval_rank(documents: Float[np.ndarray, "N M"], queries: Float[np.ndarray, "N M"]) -> Int[np.ndarray, " N"]:
    """Returns for each query the number of other documents that are as near or nearer than its own; 0 is retrieved."""
    near = queries @ documents.T
    return (near >= np.diagonal(near)[:, None]).sum(axis=1) - 1


def passkey_ranks(
    model: Encoder,
    params: Any,
    tokenizer: Tokenizer,
    *,
    lengths: Sequence[int],
    readings: Sequence[str] = READINGS,
    count: int = 24,
    seed: int = 0,
    filler: np.ndarray | None = None,
) -> Iterator[tuple[str, int, Int[np.ndarray, " N"]]]:
    """Yields (reading, length, `retrieval_rank` of each document) for documents of each length under each reading.

    Documents differ between lengths and are the same for all readings. At lengths within the table all readings are equal:
    one is computed.

    Args:
      params: {"params": tree}.
      lengths: tokens of the documents, special ones included.
      readings: names in `READINGS`.
      count, seed, filler: as in `passkey_set`.

    Raises:
      ValueError: see `passkey_set` and `text_embedder`.
    """
    ends = special_ends(tokenizer)
    plain = text_embedder(model, params, ends)
    for length in lengths:
        size = length - sum(map(len, ends))
        made = passkey_set(tokenizer, size=size, count=count, seed=seed, filler=filler)
        queries, rank = plain(made.queries), None
        for reading in readings:
            if rank is None or length > (model.length or math.inf):
                embed = text_embedder(model, params, ends, reading=reading, length=length)
                rank = retrieval_rank(embed(made.documents), queries)
            yield reading, length, rank


def _without(text: np.ndarray, start: int, size: int) -> np.ndarray:
    return np.concatenate([text[:start], text[start + size :]])


def _token_means(model: Encoder, params: Any, position_of: Callable) -> Embed:
    """Returns a function from tokens [n_i] to the mean of the features of each text."""

    @jax.jit
    def means(params, tokens, mask):
        places = position_of(jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape))
        x = model.apply(params, tokens, Site(places * mask, mask), method="features")
        return jnp.where(mask[..., None] > 0, x, 0).sum(axis=1) / mask.sum(axis=1, keepdims=True)

    def batches(texts: Sequence[np.ndarray]) -> Float[np.ndarray, "N M"]:
        order, found = np.argsort([len(text) for text in texts], kind="stable"), [None] * len(texts)
        while len(order):
            length = -(-len(texts[order[-1]]) // _STEP) * _STEP
            size = max(1, _TOKENS // length)
            chosen, order = order[-size:], order[:-size]
            tokens, mask = np.zeros((2, size, length), np.int32)
            mask[len(chosen) :, 0] = 1  # rows that fill up the batch
            for row, index in enumerate(chosen):
                tokens[row, : len(texts[index])], mask[row, : len(texts[index])] = texts[index], 1
            for index, mean in zip(chosen, np.asarray(means(params, tokens, mask), np.float64), strict=False):
                found[index] = mean
        return np.stack(found)

    return batches
