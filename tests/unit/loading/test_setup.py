"""What is read of a model folder before MindSpore is loaded."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from mindbatch.config.model_schema import ModelConfig, RuntimeConfig
from mindbatch.config.paths import data_root
from mindbatch.io.errors import CheckpointError
from mindbatch.loading.build import load_engine
from mindbatch.loading.setup import model_eos_ids, prepare
from mindbatch.parallel.topology import Topology

SHIPPED = data_root() / "examples/tiny_gpt2"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SHIPPED, tmp_path / "model"))


def write_eos(folder: Path, name: str, ids: Any) -> None:
    content = json.loads((folder / name).read_text()) if (folder / name).exists() else {}
    (folder / name).write_text(json.dumps({**content, "eos_token_id": ids}))


def test_the_nearest_file_says_what_ends_a_sequence(folder: Path) -> None:
    write_eos(folder, "config.json", 5)
    write_eos(folder, "generation_config.json", [7, 9])
    read = prepare(ModelConfig(checkpoint_name_or_path=str(folder)), RuntimeConfig())
    assert read.eos_token_ids == (7, 9)
    write_eos(folder, "generation_config.json", None)
    read = prepare(ModelConfig(checkpoint_name_or_path=str(folder)), RuntimeConfig())
    assert read.eos_token_ids == (5,)
    write_eos(folder, "config.json", None)
    read = prepare(ModelConfig(checkpoint_name_or_path=str(folder)), RuntimeConfig())
    assert read.tokenizer is not None
    assert read.eos_token_ids == read.tokenizer.eos_token_ids
    assert model_eos_ids(read.opened.folder, None) == ()


@pytest.mark.parametrize("ids", ["2", True, [1, None], {}])
def test_what_is_no_token_id_is_refused_before_mindspore(
    ids: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mindspore", None)
    write_eos(folder, "generation_config.json", ids)
    with pytest.raises(CheckpointError, match=r"generation_config.json: eos_token_id=.*: must be a token id"):
        load_engine(prepare(ModelConfig(checkpoint_name_or_path=str(folder)), RuntimeConfig()))


def test_a_rank_that_follows_reads_no_tokenizer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    model = ModelConfig(checkpoint_name_or_path=str(folder), assistant=str(SHIPPED))
    read = prepare(model, RuntimeConfig(), with_tokenizer=False)
    assert read.tokenizer is None
    assert read.assistant is not None


@pytest.mark.parametrize(
    ("options", "stages", "tokens"),
    [
        ({}, 1, 512),
        ({}, 2, 64),
        ({"dtype": "bfloat16"}, 2, 128),
        ({"quantization": "int8"}, 2, 256),
        ({"quantization": "int8"}, 3, 170),
        ({"use_past": False}, 2, None),
    ],
)
def test_steps_of_stages_have_few_tokens_of_prompts(
    options: dict[str, Any], stages: int, tokens: int | None
) -> None:
    model = ModelConfig(checkpoint_name_or_path=str(SHIPPED), **options)
    part = Topology(pipeline_stage=stages).part_of(0)
    settings = prepare(model, RuntimeConfig(), part, with_tokenizer=False).settings
    assert settings.max_prompt_tokens == tokens


@pytest.mark.parametrize(
    ("options", "bytes_of_a_number"),
    [
        ({}, 4),
        ({"cache_dtype": "bfloat16"}, 2),
        ({"dtype": "bfloat16"}, 2),
        ({"quantization": "int8"}, 2),
        ({"dtype": "bfloat16", "cache_dtype": "float32"}, 4),
    ],
)
def test_the_cache_is_rounded_as_the_weights_are(options: dict[str, Any], bytes_of_a_number: int) -> None:
    model = ModelConfig(checkpoint_name_or_path=str(SHIPPED), **options)
    setup = prepare(model, RuntimeConfig(), with_tokenizer=False)
    assert setup.cache_bytes_per_token == bytes_of_a_number * setup.spec.cache_bytes_per_token(1)


@pytest.mark.parametrize(
    ("asked", "tokens", "sequences"), [({}, 512, 32), ({}, 5, 5), ({"batch_size": 4}, 5, 4)]
)
def test_a_step_has_no_more_sequences_than_tokens(asked: dict[str, Any], tokens: int, sequences: int) -> None:
    model = ModelConfig(checkpoint_name_or_path=str(SHIPPED), **asked)
    runtime = RuntimeConfig(max_batched_tokens=tokens)
    assert prepare(model, runtime, with_tokenizer=False).settings.batch_size == sequences
