"""A folder for MindFormers' legacy Llama is checked as a whole before MindFormers is imported."""

import json
from pathlib import Path
from typing import Any

import pytest

from legacy_folders import CHATGLM, LLAMA, rank_folder
from mindbatch.backends.mindformers.families import describe
from mindbatch.backends.mindformers.folder_model import open_folder
from mindbatch.backends.mindformers.legacy.folder_model import LegacyModel, open_legacy
from mindbatch.backends.mindformers.legacy.models import generation_options
from mindbatch.config.model_schema import ModelConfig, RuntimeConfig
from mindbatch.engine.prepare import engine_settings
from mindbatch.errors import CheckpointError, ConfigError
from mindbatch.models import registry
from mindbatch.models.config_reader import NONE_IGNORED
from mindbatch.parallel.topology import WHOLE, TensorSlice


def opened(folder: Path, shard: TensorSlice = WHOLE) -> LegacyModel:
    return open_legacy(folder, "auto", NONE_IGNORED, shard)


def test_the_provider_opens_what_reshard_makes(tmp_path: Path) -> None:
    model = open_folder(rank_folder(tmp_path, "target.qkv_concat=true"), "auto", NONE_IGNORED)
    assert isinstance(model, LegacyModel)
    assert model.options["qkv_concat"]
    assert model.options["theta"] == pytest.approx(10000.0)
    assert model.facts.devices == ("Ascend",)


def test_a_rank_has_its_share_of_the_cache(tmp_path: Path) -> None:
    model = opened(rank_folder(tmp_path, "target.model_parallel=2"), TensorSlice(1, 2))
    assert model.facts.cached_numbers == 1 * 1 * (16 + 16)
    assert not model.options["qkv_concat"]


def test_a_cpu_is_refused_with_what_would_run_it(tmp_path: Path) -> None:
    facts = opened(rank_folder(tmp_path)).facts
    with pytest.raises(ConfigError, match=r"=CPU: .* allowed: Ascend, or model\.provider=native"):
        engine_settings(facts, ModelConfig(), RuntimeConfig())
    assert engine_settings(facts, ModelConfig(), RuntimeConfig(device_target="Ascend"))


def test_a_hugging_face_folder_is_refused_with_the_command(tmp_path: Path) -> None:
    rank_folder(tmp_path)
    with pytest.raises(CheckpointError, match=r"mindbatch reshard source=.* target\.names=mindformers"):
        opened(tmp_path / "source")


def test_another_cut_is_refused(tmp_path: Path) -> None:
    folder = rank_folder(tmp_path, "target.model_parallel=2")
    with pytest.raises(ConfigError, match="was cut for 2 ranks .* give parallel.model_parallel=2, or make a"):
        opened(folder)
    (folder / "rank_1/model.safetensors").rename(tmp_path / "gone")
    with pytest.raises(CheckpointError, match="rank_1: "):
        opened(folder, TensorSlice(1, 2))


def test_ranks_with_hugging_face_names_are_refused(tmp_path: Path) -> None:
    folder = rank_folder(tmp_path, "target.model_parallel=2", "target.names=hf")
    with pytest.raises(CheckpointError, match=r"needed are those of MindFormers, target\.names=mindformers"):
        opened(folder, TensorSlice(0, 2))


def test_tensors_joined_on_each_rank_are_refused(tmp_path: Path) -> None:
    words = ("target.model_parallel=2", "target.qkv_concat=true", "target.qkv_grouped=false")
    with pytest.raises(CheckpointError, match="qkv_grouped=true"):
        opened(rank_folder(tmp_path, *words), TensorSlice(0, 2))


def test_tensors_of_another_model_are_named(tmp_path: Path) -> None:
    folder = rank_folder(tmp_path)
    (folder / "config.json").write_text(json.dumps(LLAMA | {"intermediate_size": 64}))
    with pytest.raises(CheckpointError, match=r"w1\.weight' has shape \[96, 64\], needed is \[64, 64\]"):
        opened(folder)


@pytest.mark.parametrize(
    ("changed", "size", "expected"),
    [
        (
            {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
            1,
            "rope_scaling: .*model.provider=native",
        ),
        ({"vocab_size": 97}, 2, "must divide vocab_size, 97"),
        ({"mlp_bias": True}, 1, "mlp_bias=true"),
    ],
)
def test_what_its_network_does_not_compute_is_refused(
    changed: dict[str, Any], size: int, expected: str
) -> None:
    config = LLAMA | changed
    arch = registry.describe(config)
    with pytest.raises((CheckpointError, ConfigError), match=expected):
        generation_options(arch, config, size, qkv_concat=False)


def test_the_base_of_rotations_is_that_of_the_model() -> None:
    config = LLAMA | {"rope_theta": 500000.0}
    arch = registry.describe(config)
    assert generation_options(arch, config, 1, qkv_concat=False)["theta"] == pytest.approx(500000.0, rel=1e-7)


@pytest.mark.parametrize(("words", "size"), [((), 1), (("target.qkv_concat=true",), 2)])
def test_chatglm_is_opened_as_reshard_makes_it(words: tuple[str, ...], size: int, tmp_path: Path) -> None:
    folder = rank_folder(tmp_path, f"target.model_parallel={size}", *words, config=CHATGLM)
    shard = TensorSlice(size - 1, size)
    model = opened(folder, shard)
    assert model.options["qkv_concat"] is bool(words)
    assert (model.options["rope_ratio"], model.options["max_positions"]) == (50.0, 64)
    assert model.facts.cached_numbers == 1 * 2 // size * (16 + 16)
    assert model.facts.devices == ("Ascend",)


def test_chatglm_with_hugging_faces_names_runs_natively(tmp_path: Path) -> None:
    rank_folder(tmp_path, config=CHATGLM)
    with pytest.raises(CheckpointError, match=r"`mindbatch reshard source=.* makes.*model\.provider=native"):
        open_folder(tmp_path / "source", "auto", NONE_IGNORED)


@pytest.mark.parametrize(
    ("changed", "size", "expected"),
    [
        ({"rmsnorm": False}, 1, "rmsnorm=false: not supported; allowed: true"),
        ({"original_rope": False}, 1, "original_rope=false"),
        ({"apply_residual_connection_post_layernorm": True}, 1, "allowed: false"),
        ({"fp32_residual_connection": True}, 1, "allowed: false"),
        ({"quantization_bit": 4}, 1, "quantization_bit=4"),
        ({"tie_word_embeddings": True}, 1, "has a head of its own"),
        ({}, 4, "must divide multi_query_group_num, 2"),
        ({"padded_vocab_size": 97}, 2, "must divide vocab_size, 97"),
    ],
)
def test_what_chatglm_does_not_compute_is_refused(changed: dict[str, Any], size: int, expected: str) -> None:
    config = CHATGLM | changed
    with pytest.raises((CheckpointError, ConfigError), match=expected):
        generation_options(registry.describe(config, to_be_run=False), config, size, qkv_concat=False)


def test_the_newer_networks_are_described_as_before() -> None:
    with pytest.raises(CheckpointError, match="allowed: qwen2"):
        describe({"model_type": "llama"})
