"""The small parts of configuration: sizes, names, paths, keys and the schema's agreement with decoding."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hydra.core.config_store import ConfigStore

from mindbatch.config import paths
from mindbatch.config.compose import compose_task
from mindbatch.config.error_log import ErrorLog
from mindbatch.config.llm_options import own_keywords
from mindbatch.config.lora_schema import LoraConfig
from mindbatch.config.machine import parse_bytes
from mindbatch.config.model_schema import DecodingConfig, ModelConfig, ParallelConfig, RuntimeConfig
from mindbatch.config.model_task import ModelTaskConfig
from mindbatch.config.other_names import INSTEAD
from mindbatch.config.schema import own_key, schema_keys
from mindbatch.decoding.params import DecodingParams
from mindbatch.model_spec.registry import MODEL_TYPES
from mindbatch.run.batch_config import BatchConfig
from mindbatch.tasks.registry import TASKS
from mindbatch.tasks.reshard.schema import ReshardConfig


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1GiB", 2**30),
        ("512MB", 512_000_000),
        ("1.5 KiB", 1536),
        ("4096", 4096),
        ("7B", 7),
        ("2tib", 2**41),
        (" 3 kb ", 3000),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["", "GiB", "-1", "1e9", "1 XB", "1G", "0", "0.1B", "9" * 19, "1.5.2MB", "nan", "١MB"]
)
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        parse_bytes(text)


def test_decoding_keys_are_those_of_decoding_params_with_the_same_defaults() -> None:
    config = DecodingParams(**dataclasses.asdict(DecodingConfig()))
    assert config == DecodingParams()
    names = [field.name for field in dataclasses.fields(DecodingParams)]
    names.remove("prefix_allowed_tokens_fn")  # a function: a configuration never names code
    assert [field.name for field in dataclasses.fields(DecodingConfig)] == names


def test_shipped_data_is_found_in_a_checkout_and_in_a_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "pipeline" / "mindbatch"
    (tmp_path / "configs").mkdir()
    package.mkdir(parents=True)
    monkeypatch.setattr(paths, "_PACKAGE", package)
    assert paths.configs_folder() == tmp_path / "configs"
    (package / "configs").mkdir()
    assert paths.configs_folder() == package / "configs"


def test_a_path_is_the_users_unless_it_is_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert paths.resolve_path("a/b") == Path("a/b")
    assert paths.resolve_path("~/b") == Path("/home/someone/b")
    assert paths.resolve_path("shipped:examples/x") == paths.data_root() / "examples" / "x"
    for outside in ("shipped:../x", "shipped:/etc"):
        with pytest.raises(ValueError, match="leads out"):
            paths.resolve_path(outside)


def test_consequences_of_a_fault_are_dropped_by_whole_names() -> None:
    log = ErrorLog()
    log.add("prompts: bad", "prompts")
    log.add("model=x: no such option", "model")
    log.mark_valid("model.dtype")
    log.add_consequences(
        ["prompts=1: bad", "prompts_file=x: missing", "model.type=y: bad", "model.dtype=z: bad"]
    )
    assert log.lines[2:] == ["prompts_file=x: missing", "model.dtype=z: bad"]


KEYS = schema_keys(ModelTaskConfig)


def own_errors(**sections: Any) -> list[str]:
    return [*ModelTaskConfig(**sections).own_errors(KEYS)]


def test_options_given_from_python_are_checked_too() -> None:
    assert own_errors(runtime=RuntimeConfig(num_threads=2)) == []
    model = ModelConfig(type="lama", batch_size=True, seq_length=0, use_past=1, tokenizer=3)  # type: ignore[arg-type]
    runtime = RuntimeConfig(block_size=None, kernels=None)  # type: ignore[arg-type]
    parallel, lora = ParallelConfig(data_parallel=0), LoraConfig(max_loaded=0)
    config = ModelTaskConfig(model=model, runtime=runtime, parallel=parallel, lora=lora)
    assert [*config.read_values(KEYS).values()] == [
        f"model.type=lama: must be one of auto, {', '.join(MODEL_TYPES)}; did you mean llama?",
        "model.use_past=1: must be true or false",
        "model.batch_size=true: must be a whole number, at least 1",
        "model.seq_length=0: must be a whole number, at least 1",
        "model.tokenizer=3: must be text",
        "lora.max_loaded=0: must be a whole number, at least 1",
        "parallel.data_parallel=0: must be a whole number, at least 1",
        "runtime.block_size=null: must be one of 8, 16, 32, 64, 128",
        "runtime.kernels=null: must be one of auto, native, reference",
    ]
    (line,) = own_errors(runtime=RuntimeConfig(cache_memory="lots"))
    assert line.startswith("runtime.cache_memory=lots: must be bytes")


def test_hydra_has_its_own_configuration_again() -> None:
    before = ConfigStore.instance().load("hydra/config.yaml").node
    compose_task(TASKS["doctor"], [])
    assert ConfigStore.instance().load("hydra/config.yaml").node == before
    assert before.defaults


def test_every_task_and_python_have_the_same_batch() -> None:
    """It is made smaller where a step has fewer tokens; who asks for more than fit is refused."""
    keys = [schema_keys(task.schema).keys for task in TASKS.values()]
    assert {key["model.batch_size"].default for key in keys if "model.batch_size" in key} == {32}
    small = RuntimeConfig(max_batched_tokens=16)
    assert own_errors(runtime=small) == []
    assert own_errors(model=ModelConfig(batch_size=17), runtime=small) == [
        "runtime.max_batched_tokens=16: must be at least model.batch_size=17, for each sequence takes one "
        "token of a step"
    ]


BATCH_KEYS = schema_keys(BatchConfig).keys


def test_every_name_of_the_table_stands_for_a_key() -> None:
    others = [other for key in BATCH_KEYS.values() for other in key.aliases]
    assert len(others) == len({*others})
    leaves = {key.rpartition(".")[2] for key in BATCH_KEYS}
    assert [name for name in (*others, *INSTEAD) if name in leaves] == []


def test_a_key_that_a_command_lacks_is_not_named() -> None:
    assert own_key("max_tokens", schema_keys(ReshardConfig).keys) is None


def test_two_names_of_one_argument_are_refused() -> None:
    keywords = {"batch_size": KEYS.keys["model.batch_size"]}
    assert own_keywords({"max_num_seqs": 2, "dtype": "auto"}, keywords) == {"batch_size": 2, "dtype": "auto"}
    with pytest.raises(TypeError, match="max_num_seqs: batch_size is given too, and means the same"):
        own_keywords({"max_num_seqs": 2, "batch_size": 3}, keywords)
    with pytest.raises(TypeError, match="max_num_seqs: batch_size is given too, and means the same"):
        own_keywords({"batch_size": 3, "max_num_seqs": 2}, keywords)
