"""Weights that are no softmax: a stick of length 1 that keys break pieces off, one after the other."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float32, Int

from posjax.encoding import Array, Encoding, Site, both_stand, order_of
from posjax.encodings.offsets import choose, for_all
from posjax.encodings.tables import numpy_if_known
from posjax.spec import register


@register("stick_breaking")
@dataclass(frozen=True)
class StickBreaking(Encoding):
    """Weights a_ij = beta_ij prod of (1 - beta_il) over the keys l between j and i, beta = sigmoid(logit), for the softmax.

    From the query back, each key takes its share beta of the rest of a stick: of two equal logits the nearer one weighs
    more, and nothing else says where a token stands. Tan et al. (2024), arXiv 2410.17980, and the authors' code
    (shawntan/stickbreaking-attention: sb_ref.py, and ref_fwd of its tests), with q . k / sqrt(D) as logits. As there by
    default, a query does not weigh its own key, and reads what comes before it only: the first token of a document reads
    zeros. Weights sum to less than 1. Nobody reads the rest, which is the paper's main form and the authors' 3B
    model; their tests give it to the query's own value, and IBM/dolomite-engine offers a learned vector of each head for it.

    Causal by itself, with or without a causal model: the keys between are keys of the query's document by position,
    wherever they lie in the arrays. Only the order of positions matters. Tokens at one position do not weigh each other; a
    later query comes first to the one that lies later in the arrays. A class token or register comes before all other
    tokens as a key, so that it gets the rest, and behind all of them as a query. A hidden key, as by a window,
    breaks nothing off. Biases and rotations of other parts of a sum act on the logits. A query needs all of its keys in
    one tile.

    Args:
      attend_current: a query weighs its own key too, in its place in the order; the authors' option of this name. So does
        it then with other tokens at its position, which causality may hide.

    Raises:
      ValueError: for positions of several axes. A sum refuses two encodings that weigh, and one beside a sink.
    """

    family = "contextual"
    formula = (
        r"a_{mn} = \beta_{mn} \prod_{n<l<m} \left(1 - \beta_{ml}\right),\quad \beta_{mn} ="
        r" \sigma\left(\ell_{mn}\right)",
    )

    dimensions = (1,)
    attend_current: bool = False

    def weigh(self, params, logits, seen, q_site, k_site):
        passed = seen & self._passes(q_site, k_site)
        index, rank, rises = self._order(k_site)
        return choose(
            for_all(rises),
            _pieces,
            lambda logits, passed: _pieces(logits[..., index], passed[:, index])[..., rank],
            logits,
            passed,
        )

    def _passes(self, q_site: Site, k_site: Site) -> Bool[Array, "T S"]:
        """Marks keys before queries, and the queries' own keys if these count, in one document."""
        query, key = (order_of(site) for site in (q_site, k_site))
        before = key[None] <= query[:, None] if self.attend_current else key[None] < query[:, None]
        another = self.attend_current | (k_site.prefix[None] != q_site.prefix[:, None])
        return jnp.where(both_stand(q_site, k_site), before, another)

    def _order(self, site: Site) -> tuple[Int[Array, " S"], Int[Array, " S"], Bool[Array, ""] | np.bool_]:
        """The n-th key of its document in order, the inverse, and whether keys, padding aside, lie so already."""
        self.coordinates(site)
        position = jax.lax.stop_gradient(order_of(site))
        where = numpy_if_known(position, site.segment, site.prefix)
        place = where.where(site.prefix > 0, site.prefix.astype(position.dtype), position)
        index = where.lexsort((place, site.prefix == 0, site.segment))
        rank = where.argsort(index)
        counted = where.where(site.segment > 0, rank, -1)
        last = (np.maximum.accumulate if where is np else jax.lax.cummax)(counted)
        return index, rank, where.all((counted == last) | (counted < 0))


def _pieces(logits: Float32[Array, "H T S"], passed: Bool[Array, "T S"]) -> Float32[jax.Array, "H T S"]:
    """The share that each key breaks off, for keys in order: in logs, so that no product of small numbers is lost."""
    logits = jnp.where(passed, logits, 0.0)
    taken = jnp.where(passed, jax.nn.softplus(logits), 0.0)
    # The sum starts behind the key itself: taking its own part off again would leave the rounding of a large number.
    later = jnp.pad(taken[..., 1:], ((0, 0), (0, 0), (0, 1)))
    left = -jax.lax.cumsum(later, axis=2, reverse=True)
    return jnp.where(passed, jnp.exp(jax.nn.log_sigmoid(logits) + left), 0.0)
