"""Rotary encodings of diffusion transformers, beside diffusers."""

import posjax as pj
from experiments.report.diffusion import MODELS, logits
from goldens.check import Check


def _check(name: str) -> Check:
    model = MODELS[name]
    return Check(pj.parse(model.spec).spec_name, "diffusers", name, lambda: tuple(logits(name)[:2]), model.bound)


CHECKS: list[Check] = [*map(_check, MODELS)]
