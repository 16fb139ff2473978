"""What is read of a model folder before MindSpore is loaded."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.random_model import GPT2_124M, write_random
from mindbatch.config.model_schema import DEFAULT_BATCH_SIZE, ModelConfig, RuntimeConfig
from mindbatch.config.paths import data_root
from mindbatch.decoding import DecodingParams
from mindbatch.engine.request import Request
from mindbatch.io.errors import CheckpointError, ConfigError, PromptError
from mindbatch.loading.build import dry_run_engine, load_engine
from mindbatch.loading.setup import EngineSetup, model_eos_ids, prepare
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


SHAPE = GPT2_124M | {"vocab_size": 97, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 2}
TOKENIZER = Path(__file__).parents[3] / "examples/tiny_gpt2"
BYTES_PER_TOKEN = 2 * 2 * (16 + 16) * 4  # layers, heads, key and value of a head, float32


def setup_of(folder: Path, cache_memory: str = "1MiB", **model: Any) -> EngineSetup:
    config = ModelConfig(checkpoint_name_or_path=str(folder), **model)
    return prepare(config, RuntimeConfig(cache_memory=cache_memory))


def test_weights_and_cache_are_counted_without_being_made(tmp_path: Path) -> None:
    stored = write_random(tmp_path, SHAPE)
    found = setup_of(tmp_path)
    assert found.stored_bytes == stored
    assert found.weight_bytes == stored  # stored as float32; the head is the embedding
    assert found.cache_bytes_per_token == BYTES_PER_TOKEN
    assert found.cache_tokens == found.settings.num_blocks * 16
    assert found.cache_bytes == found.cache_tokens * BYTES_PER_TOKEN + 16 * BYTES_PER_TOKEN
    assert found.cache_bytes <= 1 << 20 < found.cache_bytes + 16 * BYTES_PER_TOKEN
    assert found.tokenizer is None


def test_the_tokenizer_may_be_in_another_folder(tmp_path: Path) -> None:
    write_random(tmp_path, SHAPE)
    assert setup_of(tmp_path, tokenizer=str(TOKENIZER)).tokenizer is not None


def test_a_dry_run_engine_judges_by_the_limits_of_the_model(tmp_path: Path) -> None:
    write_random(tmp_path, SHAPE)
    engine = dry_run_engine(setup_of(tmp_path, seq_length=20))
    params = DecodingParams(max_new_tokens=4)
    engine.add(Request("0", (1, 96), params))
    with pytest.raises(PromptError, match="token id 97 is outside the vocabulary"):
        engine.add(Request("1", (1, 97), params))
    with pytest.raises(PromptError, match="the prompt has 20 tokens"):
        engine.add(Request("2", (1,) * 20, params))


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        setup_of(tmp_path)


def test_options_beyond_the_model_are_refused(tmp_path: Path) -> None:
    write_random(tmp_path, SHAPE)
    assert json.loads((tmp_path / "config.json").read_text())["n_positions"] == 64
    with pytest.raises(ConfigError, match=r"model\.seq_length=65"):
        setup_of(tmp_path, seq_length=65)
    with pytest.raises(ConfigError, match=r"runtime\.cache_memory"):
        setup_of(tmp_path, cache_memory="10KB")


def on_ascend(
    folder: Path, dtype: str = "auto", block_size: int = 16, cache_memory: str = "1MiB", batch_size: int = 8
) -> EngineSetup:
    model = ModelConfig(checkpoint_name_or_path=str(folder), dtype=dtype, batch_size=batch_size)
    runtime = RuntimeConfig(device_target="Ascend", cache_memory=cache_memory, block_size=block_size)
    return prepare(model, runtime)


def test_weights_and_cache_are_half_as_large_on_ascend(tmp_path: Path) -> None:
    stored = write_random(tmp_path, SHAPE)
    found = on_ascend(tmp_path)
    assert (found.weight_bytes, found.cache_bytes_per_token) == (stored // 2, BYTES_PER_TOKEN // 2)
    with pytest.raises(ConfigError, match="model.dtype=float32: not with runtime.device_target=Ascend"):
        on_ascend(tmp_path, "float32")


def test_what_operators_of_ascend_do_not_take_is_refused_before_loading(tmp_path: Path) -> None:
    write_random(tmp_path, SHAPE | {"n_embd": 256, "n_head": 1, "n_layer": 1})
    with pytest.raises(ConfigError, match="runtime.block_size=128: .*allowed with heads of 256: at most 64"):
        on_ascend(tmp_path, block_size=128)


def test_a_step_of_gathered_attention_is_bounded_by_its_memory(tmp_path: Path) -> None:
    """Heads beyond what PagedAttention takes; 2 GiB hold the keys and values of so many tokens."""
    wide = SHAPE | {"n_embd": 512, "n_head": 1, "n_layer": 1, "n_positions": 16384}
    write_random(tmp_path, wide)
    found = on_ascend(tmp_path, cache_memory="1GiB")
    assert found.settings.max_batched_tokens == (2 << 30) // (16384 * 2 * 512 * 4) == 32
    with pytest.raises(
        ConfigError, match="batch_size=33: .*16384 tokens for every sequence; allowed: 1 to 32"
    ):
        on_ascend(tmp_path, cache_memory="1GiB", batch_size=33)
    write_random(tmp_path, wide | {"n_positions": 32768})
    found = on_ascend(tmp_path, cache_memory="1GiB", batch_size=DEFAULT_BATCH_SIZE)
    assert found.settings.batch_size == found.settings.max_batched_tokens == 16
