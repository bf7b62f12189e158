"""Pictures of a patch's attention under encodings without a closed form: on the trained grid, and on another one."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from experiments.atlas.landscapes import DIMS, as_bytes, compile_quickly, initial, look
from posjax.describe.catalogue import documentation, summary
from posjax.encoding import Dims, Encoding, Params, grid
from posjax.encodings.placement import FitGrid
from posjax.spec import parse

TRAINED, OTHER = (7, 7), (6, 10)
# Encodings of grids whose pictures depend on learned parameters, or that the page has no form for.
SPECS = (
    *("rope_mixed()", "dinov3()", "liere()", "learned()", "learned_factorized()", "fourier()", "sincos2d_mae()"),
    *("swin()", "swin_v2()", "t5()"),
)


def images() -> dict[str, Any]:
    """Returns {"trained", "other": sizes, "encodings": [{"name", "spec", "summary", four pictures of all pairs of patches}]}.

    The pictures are "trained", "resized", "rescaled" and "extrapolated"; a refused one is {"refused": reason}.
    """
    return {"trained": TRAINED, "other": OTHER, "encodings": [_of(parse(spec)) for spec in SPECS]}


def _of(encoding: Encoding) -> dict[str, Any]:
    dims = DIMS._replace(grid=TRAINED)
    params = initial(encoding, dims)

    def rescaled() -> dict[str, Any]:
        return _picture(FitGrid(*TRAINED) >> encoding, ((), params), dims, OTHER)

    def resized() -> dict[str, Any]:
        other, others = encoding.resized(params, TRAINED, OTHER)
        if other == encoding and others is params:
            return {"refused": "It has no table to resize: it extrapolates."}
        return _picture(other, others, dims._replace(grid=OTHER), OTHER)

    return {
        "name": encoding.spec_name,
        "spec": str(encoding),
        "summary": summary(documentation(type(encoding))),
        "trained": _picture(encoding, params, dims, TRAINED),
        "resized": _or_refused(resized),
        "rescaled": _or_refused(rescaled),
        "extrapolated": _or_refused(lambda: _picture(encoding, params, dims, OTHER)),
    }


def _or_refused(make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Returns a picture, or the encoding's message if it refuses the grid."""
    try:
        return make()
    except ValueError as error:
        return {"refused": str(error)}


def _picture(encoding: Encoding, params: Params, dims: Dims, sizes: tuple[int, int]) -> dict[str, Any]:
    site = grid(*sizes)  # known while tracing, so that an encoding can refuse it
    run = compile_quickly(jax.jit(lambda params: look(encoding, dims, params, site)).lower(params))
    like, _, seen = run(params)
    return as_bytes(np.asarray(like)[0], np.asarray(seen))
