"""A run's fingerprint changes with what decides the results alone; what else may decide bits is told."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from mindbatch.config.paths import data_root
from mindbatch.io.errors import CheckpointError
from mindbatch.kernels.native_library import arithmetic_of
from mindbatch.run.batch_config import BatchConfig
from mindbatch.run.identity import fingerprint_fields
from mindbatch.tasks.reshard.schema import ReshardConfig
from mindbatch.tasks.reshard.task import run as reshard
from peft_folders import write_adapter
from small_qwen3 import write_small_qwen3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(data_root() / "examples/tiny_gpt2", tmp_path / "model"))


def fields(folder: Path, **changes: Any) -> dict[str, Any]:
    """Of a configuration with some keys changed; `__` stands for the dot."""
    config = BatchConfig()
    config.model.checkpoint_name_or_path = str(folder)
    for name, value in changes.items():
        section, _, key = name.partition("__")
        setattr(getattr(config, section), key, value)
    return fingerprint_fields(config)


def changed(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    return {name for name in before if before[name] != after[name]}


def test_where_the_model_is_and_how_fast_it_runs_are_not_in_it(folder: Path, tmp_path: Path) -> None:
    before = fields(folder)
    assert before.keys() >= {
        "weights",
        "tokenizer",
        "model.dtype",
        "decoding.seed",
        "data.template",
    }
    moved = shutil.move(folder, tmp_path / "elsewhere")
    speed = {"model__batch_size": 3, "model__use_past": False, "runtime__cache_memory": "2GiB"}
    rows = {"data__path": "x.jsonl", "data__limit": 3, "output__dir": "runs/a", "output__format": "csv"}
    assert fields(moved, parallel__data_parallel=2, parallel__model_parallel=2, **speed, **rows) == before


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("model.safetensors", "weights"),
        ("tokenizer.json", "tokenizer"),
        ("chat_template.jinja", "tokenizer"),
        ("config.json", "model.config"),
        ("generation_config.json", "model.config"),
    ],
)
def test_each_file_is_in_one_digest(folder: Path, name: str, field: str) -> None:
    before = fields(folder)
    path = folder / name
    content = path.read_bytes() if path.exists() else b""
    # The last byte of a weight, or white space that changes no meaning.
    path.write_bytes(content[:-1] + b"\x11" if name == "model.safetensors" else content + b"\n")
    assert changed(before, fields(folder)) == {field}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"model__dtype": "float32"}, "model.dtype"),
        ({"model__seq_length": 64}, "model.seq_length"),
        ({"decoding__temperature": 0.7}, "decoding.temperature"),
        ({"decoding__seed": 1}, "decoding.seed"),
        ({"decoding__logit_bias": {"5": 1}}, "decoding.logit_bias"),
        ({"data__template": "{{ q }}"}, "data.template"),
        ({"data__key_column": "id"}, "data.key_column"),
        ({"data__system": "Be brief."}, "data.system"),
        ({"data__tools": [{"name": "f"}]}, "data.tools"),
        ({"data__chat_template_kwargs": {"enable_thinking": False}}, "data.chat_template_kwargs"),
        ({"data__tools_column": "t"}, "data.tools_column"),
    ],
)
def test_each_setting_that_decides_is_in_it_by_name(folder: Path, change: dict[str, Any], field: str) -> None:
    assert changed(fields(folder), fields(folder, **change)) == {field}


def test_adapters_are_in_it_by_name_with_all_that_acts(folder: Path, tmp_path: Path) -> None:
    plain, path = fields(folder), write_adapter(tmp_path / "law", 2, seed=1)
    same = Path(shutil.copytree(path, tmp_path / "elsewhere"))
    adapters = {"law": str(path), "base": None}
    before = fields(folder, lora__adapters=adapters)
    assert {name: before[name] for name in plain} == plain
    assert before.keys() - plain.keys() == {
        "lora.adapters.law",
        "lora.adapters.base",
        "lora.default",
        "lora.mode",
    }
    assert before["lora.adapters.base"] == "base"
    assert fields(folder, lora__adapters=adapters | {"law": str(same)}, lora__max_loaded=1) == before
    assert changed(before, fields(folder, lora__adapters=adapters, lora__default="law")) == {"lora.default"}
    config = same / "adapter_config.json"
    config.write_text(config.read_text().replace('"lora_alpha": 4', '"lora_alpha": 5'))
    other = fields(folder, lora__adapters=adapters | {"law": str(same)})
    assert changed(before, other) == {"lora.adapters.law"}
    asked = fields(folder, lora__adapters=adapters, data__adapter_column="who")
    assert asked == before | {"data.adapter_column": "who"}


def test_a_template_is_the_same_wherever_it_stands(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "template").write_text("{{ q }}")
    in_file = fields(folder, data__template_file=str(tmp_path / "template"))
    assert in_file == fields(folder, data__template="{{ q }}")


def test_the_same_decoding_is_the_same_however_it_is_written(folder: Path) -> None:
    one = fields(folder, decoding__logit_bias={"5": 1, "3": -2}, decoding__json_schema={"type": "null"})
    other = fields(
        folder, decoding__logit_bias=[[3, -2.0], [5, 1]], decoding__json_schema='{ "type": "null" }'
    )
    assert one == other


def test_an_assistant_counts(folder: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(folder, tmp_path / "assistant"))
    before = fields(folder, model__assistant=str(other))
    assert changed(fields(folder), before) == {"assistant"}
    moved = Path(shutil.move(other, tmp_path / "elsewhere"))
    assert fields(folder, model__assistant=str(moved)) == before
    (moved / "config.json").write_bytes((moved / "config.json").read_bytes() + b"\n")
    assert changed(before, fields(folder, model__assistant=str(moved))) == {"assistant"}


def test_keys_of_the_model_that_the_user_ignores(folder: Path) -> None:
    assert fields(folder)["model.ignore_config_keys"] == []
    config = folder / "config.json"
    config.write_text(config.read_text().replace("{", '{"mystery": 1, "riddle": 2, ', 1))
    with pytest.raises(CheckpointError, match=r"the results: 'model.ignore_config_keys=\[mystery,riddle\]'"):
        fields(folder)
    after = fields(folder, model__ignore_config_keys=["riddle", "mystery"])
    assert after["model.ignore_config_keys"] == ["mystery", "riddle"]


def test_the_provider_is_in_it(tmp_path: Path) -> None:
    folder = write_small_qwen3(tmp_path / "qwen3")
    before, after = fields(folder), fields(folder, model__provider="mindformers")
    assert changed(before, after) == {"model.provider"}


@pytest.mark.parametrize("cut", ["model_parallel", "pipeline_stage"])
def test_the_files_of_all_ranks_count_where_the_model_is_cut(cut: str, folder: Path, tmp_path: Path) -> None:
    config = ReshardConfig(source=str(folder))
    config.target.dir = str(tmp_path / "cut")
    setattr(config.target, cut, 2)
    assert reshard(config) == 0
    before = fields(tmp_path / "cut", **{f"parallel__{cut}": 2})
    assert changed(before, fields(folder)) == {"weights"}
    [last] = (tmp_path / "cut/rank_1").glob("*.safetensors")
    content = bytearray(last.read_bytes())
    content[-1] ^= 1
    last.write_bytes(content)
    assert changed(before, fields(tmp_path / "cut", **{f"parallel__{cut}": 2})) == {"weights"}


@pytest.mark.parametrize(
    ("kernels", "weights", "bits"),
    [
        ("avx512", "float32", "vectors"),
        ("avx512_bf16, avx512_vnni", "int8", "vectors"),
        ("amx", "float32", "vectors"),
        ("amx", "int8", "tiles"),
        ("amx, avx2", "bfloat16", "tiles, vectors"),
        ("neon_i8mm_bf16", "bfloat16", "vectors"),
        ("neon, portable", "float32", "vectors, vectors without multiply-add"),
        ("ascend", "float32", "ascend"),
        ("reference", "float32", "reference"),
    ],
)
def test_kernels_of_the_same_bits_have_one_name(kernels: str, weights: str, bits: str) -> None:
    assert arithmetic_of(kernels, weights) == bits
