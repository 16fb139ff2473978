"""Files of llama.cpp are read strictly: what is damaged or not understood is refused in a line."""

import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_bytes import gguf_bytes, tensor, text, value
from mindbatch.checkpoint.formats.gguf_file import Texts, open_gguf
from mindbatch.checkpoint.gguf.folder import GgufFiles, GgufFolder
from mindbatch.checkpoint.gguf.metadata import Metadata
from mindbatch.checkpoint.gguf.tokenizer import tokenizer_of
from mindbatch.checkpoint.gguf.unpacked import gguf_paths, pointed_files, unpacked
from mindbatch.io.errors import CheckpointError
from mindbatch.io.storage import StorageError

WRITTEN = Path(__file__).with_name("written")
GOOD: dict[str, Any] = {"general.architecture": "llama", "a": ["x", "é"], "b": [1.5, 2.0], "c": True}
TENSORS = {
    "first": ("F32", (2, 3), np.arange(6, dtype=np.float32).tobytes()),
    "second": ("Q8_0", (1, 64), bytes(range(68))),
}


def written(folder: Path, data: bytes) -> Path:
    path = folder / "model.gguf"
    path.write_bytes(data)
    return path


def test_metadata_and_tensors_are_those_of_the_file(tmp_path: Path) -> None:
    with open_gguf(written(tmp_path, gguf_bytes(GOOD, TENSORS))) as file:
        texts = file.metadata["a"]
        assert isinstance(texts, Texts)
        assert texts.decoded() == ["x", "é"]
        assert file.metadata["b"].tolist() == [1.5, 2.0]
        assert file.metadata["c"] is True
        assert {name: (info.dtype, info.shape) for name, info in file.tensors.items()} == {
            "first": ("F32", (2, 3)),
            "second": ("U8", (1, 68)),
        }
        assert file.shapes["second"] == (1, 64)
        assert file.blocks["second"].name == "Q8_0"
        data = bytearray(24)
        file.read_into("first", 0, memoryview(data))
        assert np.frombuffer(data, np.float32).tolist() == [0, 1, 2, 3, 4, 5]


def head(tensors: int, keys: int, rest: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + rest


def one_key(content: bytes) -> bytes:
    return head(1, 1, text("k") + content + b"\0" * 64)


def one_tensor(*arguments: Any) -> bytes:
    return head(1, 0, tensor(*arguments)) + b"\0" * 200


REFUSED = {
    "magic": (gguf_bytes(GOOD, TENSORS, magic=b"GGML"), "must be a file of llama.cpp"),
    "version": (head(1, 1, version=1), "version 1 of GGUF; must be 2 or 3"),
    "big-endian": (head(1, 1, version=3 << 24), "version 50331648 of GGUF"),
    "truncated": (gguf_bytes(GOOD, TENSORS)[:40], "truncated"),
    "no data": (gguf_bytes(GOOD, TENSORS)[:-64], "tensor 'second': truncated: ends behind"),
    "tensors": (head(1 << 60, 0), "1152921504606846976 tensors; at most 200000"),
    "keys": (head(0, 1 << 60), "1152921504606846976 keys; at most 10000"),
    "none": (head(0, 0), "holds no tensors"),
    "a key twice": (head(0, 2, (text("k") + value(1)) * 2), "key 'k' is there twice"),
    "a long text": (one_key(struct.pack("<IQ", 8, 1 << 33)), "8589934592 bytes of a text; at most 16777216"),
    "long texts": (one_key(struct.pack("<IIQQ", 9, 8, 1, 1 << 33)), "a text of 8589934592 bytes; at most"),
    "a long array": (one_key(struct.pack("<IIQ", 9, 4, 1 << 60)), "entries of an array; at most"),
    "an array of 40": (one_key(struct.pack("<IIQ", 9, 4, 40)), "truncated: 160 bytes are needed"),
    "arrays in arrays": (one_key(struct.pack("<IIQ", 9, 9, 1)), "an array of type 9; must be of numbers"),
    "a type": (one_key(struct.pack("<I", 13)), "type 13 of a value; known are 0 to 12"),
    "a flag": (one_key(struct.pack("<IB", 7, 2)), "2 as a truth value; must be 0 or 1"),
    "no UTF-8": (one_key(struct.pack("<I", 8) + text(b"\xff")), "is no UTF-8"),
    "alignment": (gguf_bytes({"general.alignment": 0}, TENSORS), "must be a power of two"),
    "alignment of 48": (gguf_bytes({"general.alignment": 48}, TENSORS), "must be a power of two"),
    "dimensions": (head(1, 0, text("a") + struct.pack("<I", 9) + b"\0" * 99), "9 dimensions; at most 4"),
    "no size": (one_tensor("a", (0, 4), 0, 0), "must be of positive sizes"),
    "a huge size": (one_tensor("a", (1 << 40, 1 << 40), 0, 0), "must be of positive sizes, not too large"),
    "a type of tensors": (one_tensor("a", (1, 256), 16, 0), "type IQ2_XXS is not read; read are F32, F16"),
    "no type of tensors": (one_tensor("a", (1, 256), 999, 0), "type 999 is not read"),
    "half a block": (one_tensor("a", (1, 33), 8, 0), "33 numbers in a row; Q8_0 has blocks of 32"),
    "an offset": (one_tensor("a", (1, 4), 0, 32), "begins at byte 32 of the data; must be 0"),
    "a name": (one_tensor("../a", (1, 4), 0, 0), "must be printable, without '..'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_damaged_is_refused_at_once(tmp_path: Path, case: str) -> None:
    data, said = REFUSED[case]
    began = time.process_time()
    with pytest.raises(CheckpointError) as refused:
        open_gguf(written(tmp_path, data))
    assert said in str(refused.value)
    assert str(tmp_path) in str(refused.value)
    assert time.process_time() - began < 0.5


def metadata_of(name: str, **changes: Any) -> Metadata:
    with open_gguf(WRITTEN / f"{name}.gguf") as file:
        values = {**file.metadata, **{key.replace("__", "."): new for key, new in changes.items()}}
    return Metadata(values, WRITTEN / f"{name}.gguf")


TOKENIZERS: list[tuple[dict[str, Any], str]] = [
    ({"tokenizer__ggml__model": "bert"}, "tokenizer.ggml.model='bert': is not read; read are llama and gpt2"),
    ({"tokenizer__ggml__pre": "viking"}, "tokenizer.ggml.pre='viking': is not read; read are default, gpt-2"),
    ({"tokenizer__ggml__tokens": 3}, "tokenizer.ggml.tokens=3: must be an array of texts"),
    ({"tokenizer__ggml__token_type": np.ones(3)}, "must be 300 numbers"),
    ({"tokenizer__ggml__token_type": np.full(300, 9)}, "tokenizer.ggml.token_type: holds 9; must be 1 to 6"),
    ({"tokenizer__ggml__tokens": Texts(text("a") * 300, 300)}, "tokenizer.ggml.tokens: has tokens twice"),
    ({"tokenizer__ggml__merges": Texts(text("a zz"), 1)}, "'a zz' is no pair of tokens that make a token"),
    ({"tokenizer__ggml__bos_token_id": 300}, "tokenizer.ggml.bos_token_id=300: must be the id of one of 300"),
    ({"tokenizer__ggml__add_bos_token": 1}, "tokenizer.ggml.add_bos_token=1: must be true or false"),
    (
        {"tokenizer__ggml__model": "llama", "tokenizer__ggml__scores": np.zeros(300)},
        "tokenizer.ggml.scores: are all the same, which merges nothing",
    ),
]


@pytest.mark.parametrize(("changes", "said"), TOKENIZERS)
def test_a_tokenizer_that_is_not_read_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(CheckpointError) as refused:
        tokenizer_of(metadata_of("qwen2", **changes))
    assert said in str(refused.value)


MODELS: list[tuple[str, dict[str, Any], str]] = [
    (
        "qwen2",
        {"general__architecture": "mamba"},
        "general.architecture='mamba': must be one of llama",
    ),
    ("qwen2", {"qwen2__block_count": 0}, "qwen2.block_count=0: must be a whole number from 1 to 1024"),
    ("gemma3", {"gemma3__block_count": 1 << 31}, "gemma3.block_count=2147483648: must be a whole number"),
    ("qwen2", {"qwen2__attention__head_count": np.array([2, 4])}, "the same for all layers"),
    ("qwen2", {"qwen2__attention__clamp_kqv": 3.0}, "qwen2.attention.clamp_kqv: is not understood"),
    (
        "qwen2",
        {"qwen2__rope__dimension_count": 4},
        "qwen2.rope.dimension_count=4: must be 8, the size of a head",
    ),
    (
        "qwen2",
        {"qwen2__rope__scaling__type": "longrope", "qwen2__rope__scaling__factor": 2.0},
        "qwen2.rope.scaling.type='longrope': must be none, linear or yarn",
    ),
    ("deepseek_v2", {"deepseek2__expert_gating_func": 2}, "deepseek2.expert_gating_func=2: must be 1"),
    ("llama3", {"llama__rope__freq_base": 10000.0}, "rope_freqs.weight: is not the scaling of Llama 3.1"),
]


@pytest.mark.parametrize(("name", "changes", "said"), MODELS)
def test_a_model_that_is_not_understood_is_refused(name: str, changes: dict[str, Any], said: str) -> None:
    with GgufFiles([WRITTEN / f"{name}.gguf"]) as files:
        files.files[0].metadata = metadata_of(name, **changes).values
        with pytest.raises(CheckpointError) as refused:
            files.model()
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("name", "part", "said"),
    [
        ("gpt_oss", "ffn_up_exps.weight", "is missing; needed are 96 rows of 32"),
        ("gpt_oss", "ffn_down_exps.bias", "is missing; needed is [3, 32]"),
    ],
)
def test_parts_that_are_missing_are_named(name: str, part: str, said: str) -> None:
    with GgufFiles([WRITTEN / f"{name}.gguf"]) as files:
        del files.shapes[f"blk.1.{part}"]
        with pytest.raises(CheckpointError) as refused:
            files.model()
    assert f"tensor 'blk.1.{part}': {said}" in str(refused.value)


def shards(folder: Path, count: int) -> list[Path]:
    """The tensors of a file in several."""
    paths = []
    for number in range(count):
        metadata = {"split.no": number, "split.count": count, "split.tensors.count": count}
        name = f"blk.{number}.attn_norm.weight"
        data = gguf_bytes(metadata, {name: ("F32", (4,), np.full(4, number, np.float32).tobytes())})
        paths.append(folder / f"m-{number + 1:05}-of-{count:05}.gguf")
        paths[-1].write_bytes(data)
    return paths


def test_a_model_may_be_in_several_files(tmp_path: Path) -> None:
    paths = shards(tmp_path, 3)
    assert gguf_paths(paths[1]) == paths
    assert gguf_paths(tmp_path) == paths
    with GgufFiles(paths) as files:
        assert [*files.shapes] == [f"blk.{number}.attn_norm.weight" for number in range(3)]
    with pytest.raises(CheckpointError, match=r"split.count=3: 2 files are there"):
        GgufFiles(paths[:2])
    with pytest.raises(CheckpointError, match=r"m-00002-of-00003.gguf: split.no must be 0"):
        GgufFiles([paths[1], paths[0], paths[2]])
    paths[2].unlink()
    with pytest.raises(CheckpointError, match=r"m-00003-of-00003.gguf: missing; the model is in 3 files"):
        gguf_paths(tmp_path)


def test_a_folder_of_several_models_is_ambiguous(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match=r"holds 2 models of llama.cpp, such as 'a.gguf'; give one"):
        gguf_paths(tmp_path)


def test_a_file_that_has_changed_is_another_model(tmp_path: Path) -> None:
    path = written(tmp_path, (WRITTEN / "qwen2.gguf").read_bytes())
    home = unpacked([path], tmp_path / "cache")
    assert unpacked([path], tmp_path / "cache") == home
    assert pointed_files(home) == [path]
    path.write_bytes((WRITTEN / "qwen3.gguf").read_bytes())
    with pytest.raises(CheckpointError, match="is not the file any more that"):
        pointed_files(home)
    assert unpacked([path], tmp_path / "cache") != home


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, (WRITTEN / "qwen2.gguf").read_bytes())
    with pytest.raises(StorageError, match=r"model.gguf/gguf/.*: cannot be written \(Not a directory\)"):
        unpacked([path], path)


def test_scales_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    data = bytearray((WRITTEN / "qwen3.gguf").read_bytes())
    with open_gguf(WRITTEN / "qwen3.gguf") as file:
        offset = file.tensors["blk.1.ffn_down.weight"].extents[0].offset
    data[offset : offset + 2] = np.float16(np.nan).tobytes()
    path = written(tmp_path, bytes(data))
    home = unpacked([path], tmp_path / "cache")
    with (
        GgufFolder(home, [path]) as folder,
        pytest.raises(CheckpointError, match=r"'blk.1.ffn_down.weight': holds scales that are not finite"),
    ):
        folder.floats("model.layers.1.mlp.down_proj.weight")
