"""Files of weights that are damaged, or lie: each is read or refused with the reason, in the memory of its size."""

import io
import json
import struct
import tracemalloc
import zipfile

import jax
import numpy as np
import pytest
import safetensors.numpy
from fuzzing import counts, damaged, damaged_json, fuzz
from goldens.language_cases import CASES
from goldens.language_cases import weights_of as weights_of_language
from goldens.pretrained_cases import SPEC, asked, weights_of
from goldens.pretrained_weights import google_shapes, google_tensors
from hypothesis import strategies as st

from posjax import cli, pretrained
from posjax.models import BlockConfig, ViT
from posjax.pretrained.files import WeightsFile
from posjax.pretrained.language.families import find_family
from posjax.pretrained.parameters import expected_params
from posjax.pretrained.vision.loading import Hints, describe_file

SHAPES = google_shapes(16, 1, 2, 32, 4, 2, head=3)
LANGUAGE = ["llama", "gpt_neox", "gptj", "bloom", "mpt", "falcon new", "gemma3", "phi3", "llama4", "smollm3", "gpt_oss"]
LANGUAGE += ["granite", "olmo3", "exaone4", "cohere2", "phi", "glm4", "deepseek_v3"]
LANGUAGE += ["bert", "deberta", "modernbert", "t5", "qwen2", "gemma2"]
LANGUAGE = [case for case in CASES if case in LANGUAGE or case.split()[0] in LANGUAGE]
VISION = [case for case in SPEC["cases"] if "config" in SPEC["cases"][case]]
REFUSALS = (ValueError, FileNotFoundError)


def npz(compressed=False):
    buffer = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(buffer, **google_tensors(SHAPES, "old"))
    return buffer.getvalue()


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """The bytes of a file that `save` wrote, and what its header says."""
    path = tmp_path_factory.mktemp("own") / "vit.safetensors"
    model = ViT(
        num_classes=3,
        image_size=(8, 12),
        patch_size=4,
        block=BlockConfig(width=16, num_heads=2),
        depth=1,
        encoding="rope_mixed",
    )
    leaves = jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype), expected_params(model, 3))
    pretrained.save(path, model, leaves)
    return path.read_bytes()


def read(path, told=None, *, whole=False):
    """All that is done before the model is traced; all of it if `whole`."""
    if whole:
        return pretrained.load(path, **(told or {}))
    weights = WeightsFile.of(path)
    for name in weights:
        assert weights[name].shape == weights.shapes[name]
    if "vocab_size" in weights.config or ("model_type" in weights.config and "image_size" not in weights.config):
        family = find_family(weights.config)
        return family.entries(family.made(weights.config, weights.shapes))
    return describe_file(weights, Hints(**(told or {})))


@counts(40, 300)
@pytest.mark.parametrize("kind", ["npz", "npz compressed", "safetensors"])
def test_damaged_bytes(kind, count, tmp_path, own):
    content = own if kind == "safetensors" else npz("compressed" in kind)
    path = tmp_path / ("weights.safetensors" if kind == "safetensors" else "weights.npz")

    def once(changed):
        path.write_bytes(changed)
        read(path)

    found = fuzz(count, damaged(content), once, REFUSALS)
    assert found["refused"] > count // 4


def header_of(content):
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def with_header(header, body):
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


@counts(60, 300)
def test_a_damaged_header_of_our_own(count, tmp_path, own):
    header, body = header_of(own)
    path = tmp_path / "weights.safetensors"
    spec = json.loads(header["__metadata__"]["posjax"])

    def once(changed):
        metadata = {"posjax": changed if isinstance(changed, str) else json.dumps(changed)}
        path.write_bytes(with_header(header | {"__metadata__": metadata}, body))
        read(path)

    strategies = damaged_json({"all": spec}).map(lambda tree: tree.get("all")) | damaged(json.dumps(spec).encode()).map(
        lambda text: text.decode("utf-8", "replace")
    )
    fuzz(count, strategies, once, REFUSALS)


@counts(40, 300)
def test_a_damaged_header_of_safetensors(count, tmp_path, own):
    header, body = header_of(own)
    path = tmp_path / "weights.safetensors"

    def once(changed):
        path.write_bytes(with_header(changed, body))
        read(path)

    fuzz(count, damaged_json(header), once, REFUSALS)


@counts(60, 300)
def test_a_damaged_configuration_of_a_language_model(count, tmp_path):
    content = {case: safetensors.numpy.save(weights_of_language(case)) for case in LANGUAGE}

    def once(drawn):
        case, config = drawn
        (tmp_path / "model.safetensors").write_bytes(content[case])
        (tmp_path / "config.json").write_text(json.dumps(config))
        read(tmp_path)

    cases = st.sampled_from(LANGUAGE)
    fuzz(
        count, cases.flatmap(lambda case: st.tuples(st.just(case), damaged_json(CASES[case]["config"]))), once, REFUSALS
    )


@counts(60, 300)
def test_a_damaged_configuration_of_a_vision_model(count, tmp_path):
    content = {case: safetensors.numpy.save(weights_of(case)) for case in VISION}

    def once(drawn):
        case, config = drawn
        (tmp_path / "model.safetensors").write_bytes(content[case])
        (tmp_path / "config.json").write_text(json.dumps(config))
        read(tmp_path, asked(case))

    def of(case):
        config = SPEC["cases"][case]["config"] | {"id2label": {"0": "a", "1": "b"}, "model_args": {"img_size": 8}}
        return st.tuples(st.just(case), damaged_json(config))

    fuzz(count, st.sampled_from(VISION).flatmap(of), once, REFUSALS)


@counts(3, 12)
def test_models_of_damaged_files_are_read_whole_or_refused(count, tmp_path, own):
    """Continues the tests above up to the parameters: files that can be read can be loaded."""
    header, body = header_of(own)
    spec = json.loads(header["__metadata__"]["posjax"])
    path = tmp_path / "weights.safetensors"

    def once(changed):
        path.write_bytes(with_header(header | {"__metadata__": {"posjax": json.dumps(changed)}}, body))
        read(path, whole=True)

    fuzz(count, damaged_json(spec["model"], 1).map(lambda model: spec | {"model": model}), once, REFUSALS)


@pytest.mark.slow
def test_language_models_of_damaged_configurations_are_read_whole_or_refused(tmp_path):
    content = safetensors.numpy.save(weights_of_language("llama"))

    def once(config):
        (tmp_path / "model.safetensors").write_bytes(content)
        (tmp_path / "config.json").write_text(json.dumps(config))
        read(tmp_path, whole=True)

    fuzz(60, damaged_json(CASES["llama"]["config"], 1), once, REFUSALS)


def npy(shape, dtype="<f4", content=b""):
    header = str({"descr": dtype, "fortran_order": False, "shape": shape}).encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content


@pytest.mark.parametrize(
    ("members", "method", "message"),
    [
        ({"a.npy": npy((4, 2**32), content=b"\0" * 64)}, zipfile.ZIP_STORED, r"a says that it is \[4, 4294967296\]"),
        ({"a.npy": npy((2**40, 0))}, zipfile.ZIP_STORED, None),  # nothing is nothing
        ({"a.npy": npy((-1, -16), content=b"\0" * 64)}, zipfile.ZIP_STORED, r"a says that it is \[-1, -16\]"),
        ({"a.npy": npy((True, 16), content=b"\0" * 64)}, zipfile.ZIP_STORED, None),
        ({"a.npy": npy((2,), "|S32", b"\0" * 64)}, zipfile.ZIP_STORED, "a holds |S32, which are no weights"),
        ({"a.npy": npy((2,), "|O", b"\0" * 16)}, zipfile.ZIP_STORED, "a is pickled"),
        ({"a.npy": npy((2**26,), content=bytes(2**28))}, zipfile.ZIP_DEFLATED, "would unpack to 268,435,"),
        ({"a.npy": npy((16,), content=b"\0" * 64)}, zipfile.ZIP_LZMA, "packs a.npy in another way than numpy does"),
    ],
)
def test_what_an_array_claims_is_checked_before_it_is_made(members, method, message, tmp_path):
    path = tmp_path / "weights.npz"
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    tracemalloc.start()
    if message is None:
        assert list(WeightsFile.of(path)) == ["a"]
    else:
        with pytest.raises(ValueError, match=message.replace("|", r"\|")):
            WeightsFile.of(path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2**22


HEADERS = {
    "brackets": "((((",
    "signs": "-" * 5000 + "1",
    "a key without a hash": "{[]: 1}",
    "a sum": "+".join("1" * 3000),
    "a broken type": "{'descr': '<f4'',,', 'fortran_order': False, 'shape': (2, 3)}",
    "a large size": f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({'9' * 50},)}}",
    "digits": f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({'9' * 5000},)}}",
}


@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize("version", [1, 2])
def test_a_hostile_header_of_numpy_is_one_line(header, version, tmp_path, capsys):
    text = HEADERS[header].encode()
    content = b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(text)) + text
    with zipfile.ZipFile(tmp_path / "weights.npz", "w") as archive:
        archive.writestr("a.npy", content)
    with pytest.raises(ValueError, match=f"^{tmp_path}/weights.npz"):
        WeightsFile.of(tmp_path / "weights.npz")
    (tmp_path / "a.npy").write_bytes(content)
    assert cli.main(["audit", f"--inv-freq={tmp_path / 'a.npy'}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {tmp_path}/a.npy holds no array of numbers: ")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(depth=10**6), r"depth is 1000000, which is not a whole number from 1 to 65,536"),
        (dict(depth=5000), r"depth is 5,000, and the file has \d+ tensors only"),
        (dict(width=2**30), r"width is 1,073,741,824, and the file has [\d,]+ elements only"),
        (dict(patch_size="4"), r"patch_size is '4', which is not a whole number of 1 or more"),
        (dict(num_heads=[2]), r"num_heads is \[2\], which"),
        (dict(resnet=[1], resnet_width=None), r"resnet_width is None, which"),
        (dict(image_size=[10**9, 4]), r"image_size is \[1000000000, 4\]"),
        (dict(image_size=[2**14, 2**14], patch_size=1), r"has 268,435,456 patches"),
        (dict(dtype="float33"), "dtype is 'float33', which is not a type of floats, or null"),
        (dict(colour=3), "has a model with 'colour', which a ViT has not"),
    ],
)
def test_what_a_header_says_is_checked_before_a_model_is_made(changes, message, tmp_path, own):
    header, body = header_of(own)
    spec = json.loads(header["__metadata__"]["posjax"])
    spec["model"] |= changes
    path = tmp_path / "weights.safetensors"
    path.write_bytes(with_header(header | {"__metadata__": {"posjax": json.dumps(spec)}}, body))
    with pytest.raises(ValueError, match=message):
        pretrained.load(path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("config.json", "[1]", "config.json is not a JSON object but list"),
        ("config.json", '{"a": NaN}', "config.json is not JSON: NaN is not a JSON number"),
        ("config.json", "[" * 10**5, "config.json is not JSON: "),
        (
            "model.safetensors.index.json",
            '{"weight_map": {"a": "../a.safetensors"}}',
            "'../a.safetensors', which is not the name",
        ),
        ("model.safetensors.index.json", '{"weight_map": {"a": 3}}', "has 3, which is not the name"),
        ("model.safetensors.index.json", '{"weight_map": ["a"]}', "has no weight_map"),
    ],
)
def test_a_json_beside_the_weights_that_is_none_is_named(name, text, message, tmp_path):
    if name == "config.json":
        safetensors.numpy.save_file({"a": np.zeros(2, np.float32)}, tmp_path / "model.safetensors")
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        WeightsFile.of(tmp_path)
