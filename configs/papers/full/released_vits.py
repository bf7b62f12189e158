"""The released weights of RoPE-ViT, DeiT III, ViT-5 and DINOv3 at 144 to 512 pixels. Nothing is trained.

Not run here: it takes ImageNet and the weights. It ran on random weights of these shapes, and on DINOv2.

    python -m experiments.prepare --name=imagenet2012        # of archives that image-net.org gives to members
    python -m experiments.ablate --config=configs/papers/full/released_vits.py
    python -m experiments.ablate --config=configs/papers/full/released_vits.py:small,base,large

The hub's timm/ has the weights as safetensors, read by name or from a folder: --config.studies.small.rows.NAME.init_from=DIR.
Heo et al. (2024), arXiv 2403.13298, github naver-ai/rope-vit: DeiT III's recipe for 400 epochs, at 224 pixels. Touvron et al.
(2022), 2204.07118: DeiT III, a table, for 800 epochs. Simeoni et al. (2025), 2508.10104: DINOv3 has no head; here each class
is the mean of its features over a tenth of the training images, which are seen once. Wang et al. (2026), 2602.08071: ViT-5,
a table, rotations and registers, for 800 epochs (L: 400). Its files on the hub (FengWang3211/ViT-5) are pickled: convert
them into ViT-5/ as docs/pretrained.md says.

Cost: 4 to 60 GFLOP an image at 144 to 512 pixels for S, 4 times that for B: 2e17 for 14 models on 50,000 images at 7 sizes, a
quarter of an H100-hour at 35 % of the peak (989 TFLOP/s); reading the images takes longer.
Expected: top-1 (%) at 224 and 384 pixels, S: axial 80.9 and 80.0, mixed 80.9 and 81.8, mixed and table 80.9 and 81.7; B:
axial 83.6 and 83.9, mixed 83.8 and 84.4. At 224 DeiT III S 81.4, B 83.8; ViT-5 S 82.2, B 84.2, L 84.9.
"""

from ml_collections import ConfigDict

from configs import finetune
from experiments.report.claims import Claim, Source, Table, above
from experiments.studies.readings import RESIZED

_MODELS = {
    "axial": "timm/vit_{}_patch16_rope_224.naver_in1k",
    "mixed": "timm/vit_{}_patch16_rope_mixed_224.naver_in1k",
    "axial and table": "timm/vit_{}_patch16_rope_ape_224.naver_in1k",
    "mixed and table": "timm/vit_{}_patch16_rope_mixed_ape_224.naver_in1k",
    "table": "timm/deit3_{}_patch16_224.fb_in1k",
    "ViT-5": "ViT-5/vit5_{}_patch16_224.safetensors",
    "DINOv3": "timm/vit_{}_patch16_dinov3.lvd1689m",
}
_SIZES = (144, 192, 224, 256, 320, 384, 512)


def get_config(sizes: str = "small,base") -> ConfigDict:
    config = ConfigDict()
    config.name = "released_vits"
    config.title = "Released vision transformers at other resolutions than they were trained at"
    config.point = "Which published weights keep their accuracy at other resolutions?"
    config.page = ConfigDict()
    config.page.says = (
        "Mixed rotations should gain at 384 pixels what a table loses there. This has not been run: it takes ImageNet."
    )
    config.notes = (
        "A row is a model as it was released, its tables resized. DINOv3 was trained at 256 pixels and more, others at 224; "
        "it has no head, and is asked for the class with the nearest mean feature: its loss says nothing."
    )
    config.seeds = (0,)
    config.studies = ConfigDict({size: _study(size) for size in sizes.split(",")}, sort_keys=False)
    return config


def _study(size: str) -> ConfigDict:
    study = finetune.get_config("vit")
    del study.seed
    study.data.update(name="imagenet2012", eval_split="validation")
    study.data.fraction = 0.1  # of the images that make DINOv3's head
    study.data.image_size = (224, 224)
    study.steps = 0
    rows = {label: {"init_from": name.format(size)} for label, name in _MODELS.items()}
    rows["DINOv3"]["init_head"] = "means"
    study.rows = ConfigDict(rows, sort_keys=False)
    tables = [label for label in _MODELS if "table" in label or label == "ViT-5"]
    resized = {label: {label: None, f"{label}, resized": RESIZED} for label in tables}
    study.variants = ConfigDict(resized, sort_keys=False)
    study.measures = ConfigDict({"resolutions": dict(images=50_000, resolutions=_SIZES, batch_tokens=65_536)})
    study.measures.resolutions.resize = "torch_bicubic_antialias"  # as timm's code
    return study


HEO = Source("Heo et al.", 2024, "2403.13298")
_SMALL, _BASE = (Table("released_vits", size, "accuracy") for size in ("small", "base"))

CLAIMS = (
    Claim(
        "released-mixed-ahead-of-axial",
        HEO,
        "README of the authors' code, trained at 224",
        "The released weights of mixed rotations are ahead of those of axial ones on larger images.",
        tuple(above(table("mixed", 384) - table("axial", 384)) for table in (_SMALL, _BASE)),
        {"S: mixed at 384 (%)": 81.8, "axial": 80.0, "B: mixed": 84.4, "B: axial": 83.9},
    ),
    Claim(
        "released-mixed-gains-above-its-size",
        HEO,
        "README of the authors' code, trained at 224",
        "The released weights of mixed rotations are better at 384 pixels than at the trained 224.",
        tuple(above(table("mixed", 384) - table("mixed", 224)) for table in (_SMALL, _BASE)),
        {"S at 224 (%)": 80.9, "at 384": 81.8, "B at 224": 83.8, "B at 384": 84.4},
    ),
)
