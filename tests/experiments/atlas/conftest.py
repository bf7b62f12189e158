"""The atlas made once from the committed records, with pictures of a few encodings: pictures of all take minutes."""

import pathlib

import pytest

import posjax as pj


@pytest.fixture(scope="session")
def pictured() -> list[str]:
    return ["none", "rope", "alibi", "learned", "fire", "axial_rope", "swin"]


@pytest.fixture(scope="session")
def atlas(pictured, tmp_path_factory) -> pathlib.Path:
    from experiments.atlas import images
    from experiments.atlas.__main__ import main

    out = tmp_path_factory.mktemp("atlas") / "site"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pj.encodings, "__all__", pictured)
        patch.setattr(images, "SPECS", ("learned()", "rope_mixed()"))
        assert main([f"--out={out}", "--compare", "rope() + alibi()"]) == 0
    return out
