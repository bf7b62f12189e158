"""Encodings that give logits separate terms for content and position, and divide them by the number of terms."""

import bisect
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int32, Shaped

from posjax.encoding import Array, Encoding, Needs, Site, axes, stands
from posjax.encodings.offsets import ProductBias, at
from posjax.encodings.pairs import Steps
from posjax.encodings.tables import Learned, resized_table
from posjax.mask import offset
from posjax.spec import nearest, register

_TERMS = ["c2p", "p2c"]
_EPSILON = 1e-5  # of a layer norm


@register("deberta")
@dataclass(frozen=True)
class Deberta(ProductBias):
    """Disentangled attention: logits (q . k + q . K_r + k . Q_r) / sqrt(3 D), with r the bucket of query minus key.

    He et al. (2020), arXiv 2006.03654, section 3.1, as in the authors' code and in transformers. The buckets follow
    DeBERTa-v2 and v3: position_buckets / 2 whole distances on either side, then logarithmic ones up to
    max_relative_positions, computed in exact integers; position_buckets=-1 has a row for every distance below
    max_relative_positions, as DeBERTa-v1. pos_att_type says which terms there are: "c2p" is q . K_r, "p2c" is k . Q_r; the
    3 in the root counts them. `rotate` divides every query by the root of that number, a class token's too; else tokens
    that stand nowhere have neither term. A fractional distance counts as the whole distance below it.

    The third term reads row query - key, like the second, as checkpoints have it; the paper writes key - query there.

    Parameters: pos_key and pos_query (those that pos_att_type needs) [2 R, H, D], R being position_buckets, or
    max_relative_positions without; row R is distance 0, row 0 a key far after the query. DeBERTa projects one table
    of all layers, under a layer norm, by matrices of each layer: pos_key = norm(table) @ W + b converts a checkpoint.
    Initialised N(0, 0.02^2 M), as the product of such a table with a BERT matrix is.

    shared=True keeps what checkpoints of v2 and v3 have (share_att_key): parameters are the table [2 R, M], N(0, 0.02^2), and
    the scale and shift [M] of its layer norm, one set for all layers, and the matrices are those by which a layer makes
    queries and keys of its tokens. A model gives them by `Hosted.in_layer`, as ours do.

    Args:
      shared: see above.
      norm_epsilon: of that layer norm.

    Raises:
      ValueError: for an odd number of buckets or fewer than 4, max_relative_positions not beyond the whole distances, or
        unknown terms; for positions of more than one axis; for shared=True without `in_layer`.
    """

    family = "learned bias"
    formula = (
        r"\ell_{mn} = \frac{q_m\cdot k_n + q_m\cdot K_r + k_n\cdot Q_r}{\sqrt{3D}},\quad r ="
        r" \mathrm{bucket}(m-n)",
    )

    dimensions = (1,)

    position_buckets: int = 256
    max_relative_positions: int = 512
    pos_att_type: tuple[str, ...] = ("c2p", "p2c")
    shared: bool = False
    norm_epsilon: float = 1e-7

    def __post_init__(self):
        buckets, far, terms = self.position_buckets, self.max_relative_positions, self.pos_att_type
        if buckets != -1 and (buckets < 4 or buckets % 2):
            raise ValueError(
                f"deberta(position_buckets=...) must be even and at least 4, or -1 for none; got {buckets}"
            )
        if far < max(buckets // 2 + 2, 1):
            least = max(buckets // 2 + 2, 1)
            raise ValueError(f"deberta(max_relative_positions=...) must be at least {least} here, got {far}")
        if not isinstance(terms, tuple) or not terms or len({*terms}) < len(terms):
            raise ValueError(f"deberta(pos_att_type=...) lists one or both of {', '.join(_TERMS)}; got {terms!r}")
        for term in terms:
            if term not in _TERMS:
                raise ValueError(f"deberta has no attention of type {term!r}; {nearest(str(term), _TERMS)}")

    def init(self, key, dims):
        if self.shared:
            table = 0.02 * jax.random.normal(key, (2 * self._span, dims.width), jnp.float32)
            return {
                "table": table,
                "scale": jnp.ones(dims.width, jnp.float32),
                "shift": jnp.zeros(dims.width, jnp.float32),
            }
        shape = (2 * self._span, dims.num_heads, dims.head_dim)
        stddev = 0.02 * dims.width**0.5
        keys = zip(self._names, jax.random.split(key, 2), strict=False)
        return {name: stddev * jax.random.normal(one, shape, jnp.float32) for name, one in keys}

    def in_layer(self, params, project):
        if not self.shared:
            return params
        rows = _normed(params["table"], self.norm_epsilon) * params["scale"] + params["shift"]
        queries, keys = project(rows)
        keys = jnp.repeat(keys, queries.shape[1] // keys.shape[1], axis=1)
        projected = {"pos_key": keys.astype(jnp.float32), "pos_query": queries.astype(jnp.float32)}
        return {name: projected[name] for name in self._names}

    @property
    def _names(self) -> list[str]:
        """The factor of each term."""
        return [name for term, name in zip(_TERMS, ("pos_key", "pos_query"), strict=True) if term in self.pos_att_type]

    def rotate(self, params, q, q_site, k, k_site):
        return (q * jnp.float32((1 + self.terms) ** -0.5)).astype(q.dtype), k

    def factors(self, params, q, q_site, k, k_site):
        if "table" in params:
            raise ValueError(
                f"{self} projects its table by each layer's own matrices: take hosted.in_layer(project).attend(...), or "
                "shared=False"
            )
        scale = ((1 + self.terms) * q.shape[-1]) ** -0.5
        vectors = (scale * x.astype(jnp.float32) for x in (q, k))
        return tuple(x if term in self.pos_att_type else None for term, x in zip(_TERMS, vectors, strict=True))

    def of_offset(self, params, offset):
        row = self._row(-offset)
        return tuple(params[n][row] if n in self._names else None for n in ("pos_key", "pos_query"))

    def anywhere(self, params, factors, q_site, k_site):
        row, bias = self._row(offset(axes(k_site)[:, 0], axes(q_site))), 0.0
        if (asked := factors[0]) is not None:
            bias = bias + at(jnp.einsum("thd,rhd->htr", asked, params["pos_key"]), row)
        if (answered := factors[1]) is not None:
            bias = bias + at(jnp.einsum("shd,rhd->hsr", answered, params["pos_query"]), row.T).swapaxes(1, 2)
        return bias

    def _row(self, distance: Shaped[Array, "*N"]) -> Int32[Array, "*N"]:
        return self.steps().at(distance)

    def steps(self) -> Steps:
        """The row of each distance, query minus key."""
        far, last = self.max_relative_positions, 2 * self._span - 1
        least = range(far + 1) if self.position_buckets == -1 else self._log_buckets()
        return Steps.of_distances(least, far, lambda n: self._span - n, lambda n: np.minimum(self._span + n, last))

    def _log_buckets(self) -> list[int]:
        """The least distance of each bucket.

        Beyond the middle it is middle + ceil((middle - 1) log(distance / middle) / log((far - 1) / middle)),
        compared in whole numbers.
        """
        middle, far = self.position_buckets // 2, self.max_relative_positions
        edges = [(far - 1) ** n * middle ** (middle - 1 - n) for n in range(middle)]
        power = lambda distance: distance ** (middle - 1)  # noqa: E731
        return [*range(middle + 1), *(bisect.bisect_right(range(far + 1), edge, key=power) for edge in edges)]

    @property
    def _span(self) -> int:
        return self.max_relative_positions if self.position_buckets == -1 else self.position_buckets

    @property
    def terms(self) -> int:
        return len(self.pos_att_type)


@register("tupe")
@dataclass(frozen=True)
class Tupe(Encoding):
    """Untied positional attention: logits (q . k + (p_q U_Q) . (p_k U_K)) / sqrt(2 D), with p learned rows.

    Ke et al. (2020), arXiv 2006.15595, section 3; TUPE-R is tupe() + t5(). Tokens that stand nowhere are untied from
    positions, as [CLS] is in the paper: each head learns one logit for such a query with any key, and one for any other
    query with such a key. As in the authors' code p is a layer-normed row of the table (the norm's scale is part of U; its
    shift and the biases of projections are left out). Table and U can be shared by all layers: then inject the encoding
    once. A grid has a row for every place, and `resized` resizes the table like that of `learned`.

    `rotate` appends the channels of position to the channels of content, so queries and keys have 2 D channels.

    Parameters: table (as learned's), query and key (U) [M, H, D], all initialised N(0, stddev^2); with prefix tokens,
    untied [2, H]: their logits as queries, then as keys, initialised 0.

    Raises:
      ValueError: for a stddev that is not positive; from `init` where `dims` gives neither length nor grid; for a position
        outside the table where it is known at tracing time, and where it is not, NaN.
    """

    family = "tables"
    formula = (
        r"\ell_{mn} = \frac{q_m\cdot k_n + \left(p_m U_Q\right)\cdot\left(p_n"
        r" U_K\right)}{\sqrt{2D}},\quad p_t = \mathrm{LayerNorm}(E_t)",
    )

    relative = False
    needs = Needs.WHOLE_POSITIONS | Needs.HEAD_DIM | Needs.EVERY_HEAD | Needs.WHOLE_HEAD
    ranges = ("stddev > 0",)

    stddev: float = 0.02

    def init(self, key, dims):
        table_key, *keys = jax.random.split(key, 3)
        shape = (dims.width, dims.num_heads, dims.head_dim)
        params = {
            n: self.stddev * jax.random.normal(k, shape, jnp.float32)
            for n, k in zip(("query", "key"), keys, strict=True)
        }
        params["table"] = Learned(self.stddev).init(table_key, dims._replace(prefix=0))
        return params | ({"untied": jnp.zeros((2, dims.num_heads), jnp.float32)} if dims.prefix else {})

    def resized(self, params, old_grid, new_grid, method="torch_bicubic"):
        return self, params | {"table": resized_table(self, params["table"], old_grid, new_grid, method)}

    def rotate(self, params, q, q_site, k, k_site):
        q = jnp.concatenate([q.astype(jnp.float32), self._project(params, "query", q_site)], axis=-1).astype(q.dtype)
        k = jnp.concatenate([k.astype(jnp.float32), self._project(params, "key", k_site)], axis=-1).astype(k.dtype)
        return (q * jnp.float32(2**-0.5)).astype(q.dtype), k

    def bias(self, params, q, q_site, k, k_site):
        if "untied" not in params:
            return 0.0
        as_query, as_key = params["untied"][:, :, None, None]
        return jnp.where(stands(q_site)[:, None], jnp.where(stands(k_site)[None], 0.0, as_key), as_query)

    def _project(self, params, which: str, site: Site) -> Float[Array, "T H D"]:
        # For the table a token that stands nowhere is like padding: it has no row and gets zeros.
        site = site._replace(segment=site.segment * (site.prefix == 0).astype(np.int32), prefix=0 * site.prefix)
        rows = Learned().embed(params["table"], jnp.zeros((len(site.segment), len(params[which])), jnp.float32), site)
        return jnp.einsum("tm,mhd->thd", _normed(rows, _EPSILON), params[which])


def _normed(rows: Float[Array, "R M"], epsilon: float) -> Float[jax.Array, "R M"]:
    """Rows less their mean, over their standard deviation."""
    rows = rows - rows.mean(axis=-1, keepdims=True)
    return rows * jax.lax.rsqrt(jnp.square(rows).mean(axis=-1, keepdims=True) + epsilon)
