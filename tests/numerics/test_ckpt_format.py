"""Both formats against MindSpore and the safetensors library: what one writes, the other reads."""

import json

import mindspore as ms
import numpy as np
import pytest
from mindspore.train import serialization
from safetensors import safe_open

from mindbatch.checkpoint.formats.ckpt_file import WRITTEN_TYPES, ckpt_layout
from mindbatch.checkpoint.formats.open_file import open_tensor_file
from mindbatch.checkpoint.formats.safetensors_file import safetensors_layout
from mindbatch.checkpoint.formats.stored import DTYPES
from mindbatch.io.errors import CheckpointError
from tensor_files import write_tensor_file
from verified_sources import open_verified

MS_TYPES = {
    "BOOL": ms.bool_, "I8": ms.int8, "U8": ms.uint8, "I16": ms.int16, "U16": ms.uint16, "I32": ms.int32,
    "U32": ms.uint32, "I64": ms.int64, "U64": ms.uint64, "F16": ms.float16, "BF16": ms.bfloat16,
    "F32": ms.float32, "F64": ms.float64,
}  # fmt: skip
SHAPES = [(), (1,), (3, 5), (2, 3, 4)]


def random_bytes(dtype, shape, seed=0):
    """Bytes of random bits; booleans are 0 or 1."""
    count = int(np.prod(shape)) * DTYPES[dtype]
    data = np.random.default_rng(seed).integers(0, 256, count, np.uint8)
    return (data % 2 if dtype == "BOOL" else data).tobytes()


def tensor_of(dtype, shape, content):
    tensor = serialization.Tensor_.convert_bytes_to_tensor(content, shape, MS_TYPES[dtype])
    return ms.Parameter(tensor)


@pytest.fixture(scope="module")
def tensors():
    entries = [(f"{dtype}.{len(shape)}", dtype, shape) for dtype in MS_TYPES for shape in SHAPES]
    return {entry: random_bytes(*entry[1:], seed) for seed, entry in enumerate(entries)}


def read_here(path):
    """Name to dtype, shape and bytes."""
    with open_tensor_file(path) as file:
        return {
            name: (info.dtype, info.shape, b"".join(map(bytes, file.chunks(name))))
            for name, info in file.tensors.items()
        }


def written(tensors):
    return {name: (dtype, shape, content) for (name, dtype, shape), content in tensors.items()}


def write(path, layout, tensors):
    contents = {name: content for (name, _, _), content in tensors.items()}
    write_tensor_file(path, layout, lambda name: [contents[name]])


def check_loaded(loaded, tensors):
    """Everything is there, and as it was; a NaN has the same bits."""
    assert set(loaded) == {name for name, _, _ in tensors}
    for (name, dtype, shape), content in tensors.items():
        assert loaded[name].dtype == MS_TYPES[dtype]
        assert loaded[name].shape == shape
        assert loaded[name].asnumpy().tobytes() == content


@pytest.mark.parametrize("slice_bytes", [7, 16, 1 << 20])
def test_mindspore_loads_the_ckpt_written_here(tensors, tmp_path, slice_bytes):
    write(tmp_path / "w.ckpt", ckpt_layout(tensors, slice_bytes), tensors)
    check_loaded(ms.load_checkpoint(str(tmp_path / "w.ckpt")), tensors)
    assert read_here(tmp_path / "w.ckpt") == written(tensors)


def test_all_dtypes_that_mindspore_loads_are_written():
    assert set(WRITTEN_TYPES) == set(MS_TYPES)


def test_mindspore_and_the_library_load_the_safetensors_written_here(tensors, tmp_path):
    path = tmp_path / "w.safetensors"
    write(path, safetensors_layout(tensors), tensors)
    check_loaded(ms.load_checkpoint(str(path), format="safetensors"), tensors)
    with safe_open(path, "np") as file:
        assert file.metadata() == {"format": "pt"}
        for (name, dtype, shape), content in tensors.items():
            found = file.get_slice(name)
            assert (found.get_dtype(), tuple(found.get_shape())) == (dtype, shape)
            if dtype != "BF16":  # NumPy has none
                assert file.get_tensor(name).tobytes() == content
    assert read_here(path) == written(tensors)


def saved(path, tensors, **options):
    params = [
        {"name": name, "data": tensor_of(dtype, shape, content)}
        for (name, dtype, shape), content in tensors.items()
    ]
    ms.save_checkpoint(params, str(path), **options)
    return path


@pytest.mark.parametrize(
    ("suffix", "crc_check"), [("ckpt", False), ("ckpt", True), ("safetensors", False)]
)  # MindSpore cannot compute the checksum of safetensors with bfloat16
def test_what_mindspore_saves_is_read_the_same(tensors, tmp_path, suffix, crc_check):
    path = saved(tmp_path / f"w.{suffix}", tensors, crc_check=crc_check, format=suffix)
    assert read_here(path) == written(tensors)
    open_verified(path).close()


def test_parameters_that_mindspore_cuts_are_read_whole_and_cut_the_same_here(tmp_path, monkeypatch):
    monkeypatch.setattr(serialization, "SLICE_SIZE", 1)  # KiB
    large = {(dtype, dtype, (3, 700)): random_bytes(dtype, (3, 700)) for dtype in MS_TYPES}
    path = saved(tmp_path / "w.ckpt", large)
    assert read_here(path) == written(large)
    with open_tensor_file(path) as file:
        assert min(len(info.extents) for info in file.tensors.values()) > 2
    write(tmp_path / "ours.ckpt", ckpt_layout(large, 1024), large)
    assert (tmp_path / "ours.ckpt").read_bytes() == path.read_bytes()


def test_both_writers_give_the_same_bytes_for_the_same_parts(tensors, tmp_path):
    """Nothing but the sizes of the parts is chosen: with MindSpore's, the file is MindSpore's."""
    path = saved(tmp_path / "theirs.ckpt", tensors)
    write(tmp_path / "ours.ckpt", ckpt_layout(tensors), tensors)
    assert (tmp_path / "ours.ckpt").read_bytes() == path.read_bytes()


def test_appended_values_are_read(tensors, tmp_path):
    values = {"epoch_num": 3, "loss": 0.5, "flag": True, "note": "hé"}
    path = saved(tmp_path / "w.ckpt", tensors, append_dict=values)
    with open_tensor_file(path) as file:
        assert dict(file.texts) == {"note": "hé"}
        found = [file.tensors[name] for name in ("epoch_num", "loss", "flag")]
        assert [(tensor.dtype, tensor.shape) for tensor in found] == [("I64", ()), ("F32", ()), ("BOOL", ())]
        assert b"".join(file.chunks("epoch_num")) == (3).to_bytes(8, "little")


@pytest.mark.parametrize("enc_mode", ["AES-GCM", "AES-CBC", "SM4-CBC"])
def test_encrypted_files_are_refused_by_name(tensors, tmp_path, enc_mode):
    path = saved(tmp_path / "w.ckpt", tensors, enc_key=b"0" * 16, enc_mode=enc_mode)
    with pytest.raises(CheckpointError, match="an encrypted MindSpore checkpoint"):
        open_tensor_file(path)


def test_a_wrong_checksum_is_found_by_both(tensors, tmp_path):
    path = saved(tmp_path / "w.ckpt", tensors, crc_check=True)
    with open_tensor_file(path) as file:
        offset = file.tensors["F32.2"].extents[0].offset
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.unlink()
    path.write_bytes(content)
    with pytest.raises(ValueError, match="Failed to read the checkpoint"):
        ms.load_checkpoint(str(path), crc_check=True)
    with pytest.raises(CheckpointError, match="its CRC-32 is"):
        open_verified(path)


@pytest.mark.parametrize("dtype", ["complex64", "float8_e4m3fn", "float8_e5m2"])
def test_dtypes_that_mindspore_saves_and_cannot_load_are_read(tmp_path, dtype):
    path = tmp_path / "w.ckpt"
    value = ms.Tensor(np.arange(6).reshape(2, 3).astype(np.int8), getattr(ms, dtype))
    ms.save_checkpoint([{"name": "x", "data": value}], str(path))
    name = {"complex64": "C64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"}[dtype]
    assert read_here(path)["x"][:2] == (name, (2, 3))
    with pytest.raises(ValueError, match="Failed|failed"):
        ms.load_checkpoint(str(path))
    with pytest.raises(CheckpointError, match=f"MindSpore loads no {name} from .ckpt"):
        ckpt_layout([("x", name, (2, 3))])


def test_the_header_is_plain_json(tensors):
    head = safetensors_layout(tensors).head[0][1]
    assert len(head) % 8 == 0
    assert set(json.loads(head[8:])) == {"__metadata__", *(name for name, _, _ in tensors)}
