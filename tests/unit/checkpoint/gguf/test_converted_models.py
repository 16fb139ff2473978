"""Files that llama.cpp's converter has made of folders are those folders: see make_gguf_fixtures.py."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from mindbatch.checkpoint.folders.model_folder import CodedWeights, ModelFolder
from mindbatch.checkpoint.folders.tensor_set import open_source
from mindbatch.checkpoint.formats.ggml_types import BLOCK_TYPES
from mindbatch.checkpoint.gguf.unpacked import gguf_paths, unpacked
from mindbatch.config import environment
from mindbatch.config.model_schema import ModelConfig
from mindbatch.config.paths import model_folder_error, resolved
from mindbatch.io.errors import CheckpointError
from mindbatch.kernels.codes import packed_type
from mindbatch.loading.providers import OpenedFolder, open_model
from mindbatch.model_spec.described_folder import as_stored
from mindbatch.model_spec.registry import describe
from mindbatch.parallel.topology import RankPart, TensorSlice
from mindbatch.prompts.tokenizer import Tokenizer

WRITTEN = Path(__file__).with_name("written")
CASES = json.loads((WRITTEN / "models.json").read_bytes())
BLOCKS = json.loads((WRITTEN / "blocks.json").read_bytes())


def opened(name: str, cache: Path) -> OpenedFolder:
    home = unpacked(gguf_paths(WRITTEN / f"{name}.gguf"), cache)
    return open_model(ModelConfig(checkpoint_name_or_path=str(home)))


def digest(values: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> str:
    return hashlib.sha256((np.ascontiguousarray(values) + np.float32(0)).tobytes()).hexdigest()[:16]


@pytest.mark.parametrize("name", CASES)
def test_a_file_has_the_architecture_and_the_tensors_of_its_folder(name: str, tmp_path: Path) -> None:
    folder, spec = opened(name, tmp_path)
    with folder:
        assert spec.architecture == as_stored(describe(CASES[name]["config"]), folder)
        assert {key: digest(folder.floats(key)) for key in folder.names} == CASES[name]["digests"]
        assert 0 < folder.nbytes < (WRITTEN / f"{name}.gguf").stat().st_size


@pytest.mark.parametrize("name", CASES)
def test_codes_times_scales_are_the_floats(name: str, tmp_path: Path) -> None:
    """Of some rows, all inputs and the last 32 of them."""
    with opened(name, tmp_path).folder as folder:
        assert isinstance(folder, CodedWeights)
        for key in folder.names:
            if (kind := folder.code_type(key)) is None:
                continue
            rows, width = slice(1, folder.info(key).shape[0]), folder.info(key).shape[1]
            packed = packed_type([kind], width)
            assert packed is not None
            for columns in (slice(0, width), slice(width - 32, width)):
                if packed.group is None or packed.group > 32:
                    continue
                numbers, scales, offsets = folder.codes(key, rows, columns, packed)
                floats = numbers.reshape(*scales.shape, -1) * scales[:, :, None]
                floats = floats if offsets is None else floats + offsets[:, :, None]
                expected = folder.floats(key, rows=rows, columns=columns)
                limit = 0 if offsets is None else 3e-7 * np.abs(expected).max()
                np.testing.assert_allclose(floats.reshape(expected.shape), expected, rtol=0, atol=limit)


@pytest.mark.parametrize("name", ["llama", "mixtral", "qwen3", "deepseek_v3"])
def test_parts_of_a_tensor_are_those_of_the_whole(name: str, tmp_path: Path) -> None:
    with opened(name, tmp_path).folder as folder:
        for key in folder.names:
            whole = folder.floats(key)
            rows = slice(1, len(whole) - 1)
            np.testing.assert_array_equal(folder.floats(key, rows=rows), whole[rows])
            if whole.ndim == 2:
                columns = slice(5, 30)
                part = folder.floats(key, rows=rows, columns=columns)
                np.testing.assert_array_equal(part, whole[rows, columns])


def test_parts_of_a_stack_are_those_of_the_whole(tmp_path: Path) -> None:
    with opened("gpt_oss", tmp_path).folder as folder:
        for key in ("gate_up_proj", "down_proj"):
            name = f"model.layers.1.mlp.experts.{key}"
            whole = folder.floats(name)
            height = whole.shape[1]
            part = folder.floats(name, rows=slice(2 * height + 3, 3 * height), columns=slice(5, 30))
            np.testing.assert_array_equal(part, whole[2, 3:, 5:30])


def test_a_rank_opens_the_files_of_the_whole(tmp_path: Path) -> None:
    home = unpacked(gguf_paths(WRITTEN / "qwen3.gguf"), tmp_path)
    model = ModelConfig(checkpoint_name_or_path=str(home))
    spec = open_model(model, RankPart(TensorSlice(1, 2))).spec
    assert spec.shard == TensorSlice(1, 2)


def test_a_file_is_given_as_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "cache_folder", lambda: tmp_path)
    errors: list[str] = []
    path = resolved("model", str(WRITTEN / "llama.gguf"), model_folder_error, errors, is_model=True)
    assert errors == []
    assert path is not None
    assert Path(path).parts[:-2] == (tmp_path / "gguf").parts
    assert Path(path).name == "llama"
    assert open_model(ModelConfig(checkpoint_name_or_path=path)).spec.model_type == "llama"


def test_a_damaged_file_is_an_error_of_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "cache_folder", lambda: tmp_path)
    (tmp_path / "model.gguf").write_bytes((WRITTEN / "llama.gguf").read_bytes()[:9000])
    errors: list[str] = []
    resolved("model", str(tmp_path / "model.gguf"), model_folder_error, errors, is_model=True)
    [error] = errors
    assert error.startswith(f"model={tmp_path}/model.gguf: {tmp_path}/model.gguf: ")
    assert "truncated" in error


def test_other_tasks_do_not_take_its_folder(tmp_path: Path) -> None:
    home = unpacked(gguf_paths(WRITTEN / "qwen2.gguf"), tmp_path)
    for refusing in (open_source, ModelFolder):
        with pytest.raises(CheckpointError, match="which only tasks that run a model take"):
            refusing(home)


@pytest.mark.parametrize("name", CASES)
def test_texts_have_the_token_ids_of_the_folder_s_tokenizer(name: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(opened(name, tmp_path).folder.path)
    assert tokenizer is not None
    for text, ids in CASES[name]["ids"]:
        assert tokenizer.encode(text) == ids


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_are_the_floats_that_the_package_gguf_makes_of_them(name: str) -> None:
    number, block = next((number, block) for number, block in BLOCK_TYPES.items() if block.name == name)
    data = np.random.default_rng(number).integers(0, 256, (64, block.nbytes)).astype(np.uint8)
    with np.errstate(all="ignore"):
        floats = block.decoded(data)
    assert floats.shape == (64, block.size)
    assert digest(np.where(np.isfinite(floats), floats, 0).astype(np.float32)) == BLOCKS[name]


def test_all_types_of_blocks_are_compared() -> None:
    assert {block.name for block in BLOCK_TYPES.values()} == BLOCKS.keys()
