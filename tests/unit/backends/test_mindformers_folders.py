"""A folder for MindFormers is checked as a whole before MindFormers is imported."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors_writer import safetensors_bytes

from mindbatch.architecture.tensor_spec import source_shapes
from mindbatch.backends.mindformers.provider import open_folder
from mindbatch.config_json.reader import NONE_IGNORED
from mindbatch.io.errors import CheckpointError, ConfigError
from mindbatch.model_spec.model_spec import ModelSpec
from mindbatch.model_spec.registry import describe, tensor_specs
from mindbatch.parallel.topology import WHOLE_MODEL
from mindformers_configs import config


def write(folder: Path, settings: dict[str, Any], **changed: Any) -> Path:
    """A folder with tensors of zeros; `changed` replaces some of them or, as None, leaves them out."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings))
    tensors: dict[str, Any] = {
        name: np.zeros(shape, np.float32)
        for name, shape in source_shapes(tensor_specs(describe(settings))).items()
    }
    tensors |= changed
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    (folder / "model.safetensors").write_bytes(safetensors_bytes(kept))
    return folder


def opened(folder: Path, model_type: str = "auto") -> ModelSpec:
    return open_folder(folder, model_type, NONE_IGNORED, WHOLE_MODEL)[1]


def faults(folder: Path) -> list[str]:
    with pytest.raises(CheckpointError) as caught:
        opened(folder)
    return [fault.removeprefix(f"{folder}/").removeprefix(f"{folder}: ") for fault in caught.value.lines]


def test_latent_attention_caches_one_vector_a_token_as_key_and_as_value(tmp_path: Path) -> None:
    spec = opened(write(tmp_path, config("deepseek_v3")))
    assert spec.cached_numbers == 2 * ((32 + 8) + 48)


def test_layers_that_predict_further_tokens_are_passed_over(tmp_path: Path) -> None:
    further = {"model.layers.2.eh_proj.weight": np.zeros(3, np.float32)}
    assert opened(write(tmp_path, config("deepseek_v3"), **further))
    assert faults(write(tmp_path, config("deepseek_v3", num_nextn_predict_layers=0), **further))


def test_types_are_not_mixed_but_for_the_correction_of_routers(tmp_path: Path) -> None:
    settings = config("glm4_moe")
    halves = {
        name: np.zeros(shape, np.float16)
        for name, shape in source_shapes(tensor_specs(describe(settings))).items()
        if not name.endswith("e_score_correction_bias")
    }
    assert opened(write(tmp_path, settings, **halves))
    norm = "model.norm.weight"
    (line,) = faults(write(tmp_path, settings, **halves | {norm: np.zeros(64, np.float32)}))
    assert line.startswith("tensors of several types: F16 (")
    assert line.endswith(f"F32 ({norm!r}); model.provider=mindformers needs weights of one type")


def test_another_type_is_refused(tmp_path: Path) -> None:
    write(tmp_path, config("qwen3"))
    assert opened(tmp_path, "qwen3")
    with pytest.raises(ConfigError, match=r"model\.type=qwen2: .* allowed: auto, qwen3"):
        opened(tmp_path, "qwen2")
