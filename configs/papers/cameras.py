"""Cameras as positions (PRoPE, Li et al. 2025; RayRoPE, Wu et al. 2026): what a new camera sees, at unseen focal lengths
and from more views.

    python -m experiments.ablate --config=configs/papers/cameras.py

Cost: an hour of one CPU core, a third of it RayRoPE's. The papers make photographs of new views, with larger models.
Accelerators:
--config.studies.novel_view.steps=20000 --config.studies.novel_view.batch_size=128
--config.studies.novel_view.model.depth=6 --config.studies.novel_view.model.width=256
"""

from ml_collections import ConfigDict

from configs import algorithmic
from experiments.report.claims import Claim, Looked, Source, Table, above

_VIEWS = 3  # in training two or three, beside the new one


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.name = "cameras"
    config.title = "Cameras as positions: the pixels that a new camera sees"
    config.point = (
        "Do relative cameras (GTA, PRoPE, RayRoPE) tell more of what a new camera sees than rays do, also at unseen "
        "focal lengths and from more views?"
    )
    config.page = ConfigDict()
    config.page.says = (
        "RayRoPE finds 76 % of the pixels that a new camera sees, GTA and PRoPE 45 %, Plücker rays of patches 41 %, as "
        "many as no code of cameras. It is so from more views and at unseen focal lengths too. Intrinsics make no "
        "difference to PRoPE that a training this short shows."
    )
    config.notes = (
        "An encoder of two layers of 96 channels and four heads, 400 steps of 16 scenes, one learning rate for all "
        "rows. A scene is the inside of a sphere painted in eight colours; an image has 32 x 32 pixels, and a token for "
        "each patch of 4 x 4. The new view's tokens are blank, and accuracy is the share of pixels of the right colour "
        "where another view shows the point. Exact match asks for all of them. Lengths "
        "are the numbers of other views: two or three in training, four are unseen; zoomed cameras have half as long "
        "again focal lengths. Every row adds learned codes of a patch's row and column."
    )
    config.seeds = (0, 1, 2)
    config.studies = ConfigDict({"novel_view": _novel_view()})
    return config


def _novel_view() -> ConfigDict:
    study = algorithmic.get_config()
    study.data.update(name="novel_view", symbols=8, shortest=2, length=_VIEWS, positions="views")
    study.data.others = ("novel_view_zoomed",)
    study.update(eval_lengths=(2, _VIEWS, 4), steps=400, batch_size=16)
    study.model.update(width=96, depth=2, num_heads=4, mlp_dim=192, embedding_scale=12.5)  # of 16 pixels: unit variance
    study.optimizer.learning_rate = 3e-3
    patch = "(axis(index=1) >> learned()) + (axis(index=2) >> learned())"
    cameras = {
        "learned per view": "(axis(index=0) >> learned())",
        "plucker": "plucker(height=8, width=8)",
        "gta": "gta(height=8, width=8)",
        "prope": "prope()",
        "prope, no intrinsics": "prope(intrinsics=False)",
        "rayrope": "rayrope(views=5, height=8, width=8)",
    }
    specs = {"none": patch} | {label: f"{patch} + {spec}" for label, spec in cameras.items()}
    study.encodings = ConfigDict(specs, sort_keys=False)
    return study


LI = Source("Li et al.", 2025, "2507.10496")
WU = Source("Wu et al.", 2026, "2601.15275")
_SEEN = Table("cameras", "novel_view", "accuracy by length")
_ZOOMED = Table("cameras", "novel_view", "accuracy by length, novel_view_zoomed")

CLAIMS = (
    Claim(
        "prope-unseen-focal-lengths",
        LI,
        "abstract, generalisation to other camera intrinsics; no number was read",
        "At unseen focal lengths the projective map between cameras tells more than the rigid motion without intrinsics.",
        (above(_ZOOMED("prope", _VIEWS) - _ZOOMED("prope, no intrinsics", _VIEWS)),),
        doubt="A short training of small models, by one learning rate.",
        follow_up=(Looked(_SEEN("prope", _VIEWS) - _SEEN("prope, no intrinsics", _VIEWS), "at trained focal lengths"),),
    ),
    Claim(
        "relative-cameras-beat-rays",
        LI,
        "abstract, relative conditioning for new views; no number was read",
        "Relative cameras tell a new view better than the Plücker rays of patches.",
        tuple(above(_SEEN(row, _VIEWS) - _SEEN("plucker", _VIEWS)) for row in ("gta", "prope")),
        doubt="The paper appends the rays of pixels to their colours; here the ray of a patch is added to its token.",
        follow_up=(
            Looked(_SEEN("prope", _VIEWS) - _SEEN("none", _VIEWS), "PRoPE - none"),
            Looked(_SEEN("plucker", _VIEWS) - _SEEN("none", _VIEWS), "Plücker - none"),
        ),
    ),
    Claim(
        "relative-cameras-take-more-views",
        LI,
        "abstract, generalisation to other sequence lengths; no number was read",
        "From more views than in training PRoPE stays ahead of Plücker rays and of a learned code of each view.",
        tuple(above(_SEEN("prope", 4) - _SEEN(row, 4)) for row in ("plucker", "learned per view")),
    ),
    Claim(
        "rays-beat-projections",
        WU,
        "abstract; photographs of new views",
        "RayRoPE, rotations by points on rays, tells a new view better than the projective map between cameras.",
        (above(_SEEN("rayrope", _VIEWS) - _SEEN("prope", _VIEWS)),),
        {"lower LPIPS on RE10K (%)": 24, "lower LPIPS on CO3D (%)": 15},
        doubt="The points of these scenes are 0.5 to 1.5 away, and RayRoPE begins with a depth of 1.",
        follow_up=(
            Looked(_ZOOMED("rayrope", _VIEWS) - _ZOOMED("prope", _VIEWS), "at unseen focal lengths"),
            Looked(_SEEN("rayrope", 4) - _SEEN("prope", 4), "from more views"),
            Looked(_SEEN("rayrope", _VIEWS) - _SEEN("gta", _VIEWS), "RayRoPE - GTA"),
        ),
    ),
)
