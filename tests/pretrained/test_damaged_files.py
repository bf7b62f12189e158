"""Damaged files: one line says which file and what to do. Nothing is unpickled."""

import json
import pickle

import numpy as np
import pytest
import safetensors.numpy
from goldens.pretrained_weights import google_shapes, google_tensors

from posjax import cli, pretrained
from posjax.pretrained.files import WeightsFile


def refused(path, message):
    with pytest.raises(ValueError, match=message) as told:
        pretrained.load(path)
    assert path.name in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_file_that_is_cut_off(share, tmp_path):
    """test_gguf.py cuts GGUF files."""
    arrays = google_tensors(google_shapes(16, 1, 2, 32, 4, 2, head=3), "old")
    np.savez(tmp_path / "a.npz", **arrays)
    safetensors.numpy.save_file(
        {"patch_embed.proj.weight": np.ones((4, 3, 2, 2), np.float32)}, tmp_path / "a.safetensors"
    )
    for path in sorted(tmp_path.iterdir()):
        content = path.read_bytes()
        path.write_bytes(content[: int(share * len(content))])
        refused(path, "cut off or no .*: fetch it again")


def test_an_array_whose_bytes_are_others(tmp_path):
    np.savez(tmp_path / "a.npz", w=np.arange(9000.0))
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[5000] ^= 1
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.npz is damaged at w .*: fetch it again"):
        WeightsFile.of(tmp_path / "a.npz")["w"]


def test_files_of_other_kinds(tmp_path, capsys):
    with pytest.raises(FileNotFoundError, match="there is no file"):
        pretrained.load(tmp_path / "none.npz")
    for name in ("a.pth", "a.bin"):
        (tmp_path / name).write_bytes(pickle.dumps({}))
        refused(tmp_path / name, "is pickled.*safetensors.torch.save_file")
    np.savez(tmp_path / "a.npz", **{"embedding/kernel": np.array([{}], object)})
    refused(tmp_path / "a.npz", "embedding/kernel.* is pickled")
    (tmp_path / "a.h5").write_bytes(b"")
    refused(tmp_path / "a.h5", "neither")
    np.savez(tmp_path / "a.npz", weights=np.zeros(3))
    refused(tmp_path / "a.npz", "weights, ...: names of no known family.*embedding/kernel.*timm vit")
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00\x04\x00((((")
    assert cli.main(["audit", f"--inv-freq={tmp_path / 'a.npy'}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {tmp_path}/a.npy holds no array of numbers: ")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("config.json", "[1]", "config.json is not a JSON object but list"),
        ("config.json", '{"a": NaN}', "config.json is not JSON"),
        ("model.safetensors.index.json", '{"weight_map": ["a"]}', "has no weight_map"),
    ],
)
def test_json_beside_the_weights(name, text, message, tmp_path):
    if name == "config.json":
        safetensors.numpy.save_file({"a": np.zeros(2, np.float32)}, tmp_path / "model.safetensors")
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        WeightsFile.of(tmp_path)


def test_a_header_of_a_newer_posjax(tmp_path):
    path = tmp_path / "vit.safetensors"
    header = {"names": "timm", "model": {"num_classes": 3, "colour": 3}}
    safetensors.numpy.save_file({"a": np.zeros(2, np.float32)}, path, metadata={"posjax": json.dumps(header)})
    with pytest.raises(ValueError, match="has a model with 'colour', which a ViT has not"):
        pretrained.load(path)
