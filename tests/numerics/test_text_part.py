"""The text part of a multimodal folder is the model of text with the same weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recording import LastRun, load
from safetensors.numpy import load_file, save_file
from type_cases import config_of, prompts_of, write_case

from mindbatch import DecodingParams
from mindbatch.io.errors import CheckpointError, ConfigError, PromptError
from mindbatch.models.config_forms import nested_names
from mindbatch.models.merged_adapter import adapter_renames
from mindbatch.models.registry import describe, tensor_specs
from mindbatch.models.tensor_spec import source_shapes
from mindbatch.tasks.reshard.schema import ReshardConfig
from mindbatch.tasks.reshard.source import open_reshard_source

TIED, UNTIED = "gemma3", "gemma3_local"
GREEDY = DecodingParams(max_new_tokens=8)
WHERE = ("language_model.model.", "model.language_model.")
IMAGES = {
    "vision_tower.x.weight": np.ones((3, 4), np.float32),
    "multi_modal_projector.y": np.ones(2, np.float32),
}


def configuration(case: str, **settings: Any) -> dict[str, Any]:
    """The case's as the text part of a gemma3."""
    images = {"vision_config": {"model_type": "siglip_vision_model"}, "mm_tokens_per_image": 256}
    return {"model_type": "gemma3", "text_config": config_of(case), **images, **settings}


@pytest.mark.slow
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("case", [TIED, UNTIED])
def test_logits_and_tokens_are_those_of_the_model_of_text(case: str, where: str, tmp_path: Path) -> None:
    plain, nested = write_case(tmp_path / "text", case), tmp_path / "nested"
    tensors: dict[str, Any] = {}
    for file in plain.glob("*.safetensors"):
        tensors |= load_file(file)
    names = nested_names("model.", [where])
    assert names is not None
    nested.mkdir()
    image = max(config_of(case)["vocab_size"] - 1, *map(max, prompts_of(case)[:4]))
    (nested / "config.json").write_text(json.dumps(configuration(case, image_token_index=image)))
    images = {where.removesuffix("language_model.") + name: each for name, each in IMAGES.items()}
    images = IMAGES if where == WHERE[0] else images
    save_file({names(name): each for name, each in tensors.items()} | images, nested / "model.safetensors")
    prompts = [prompt for prompt in prompts_of(case)[:4] if image not in prompt]
    expected, found = (LastRun(load(folder), prompts, GREEDY) for folder in (plain, nested))
    assert found.tokens == expected.tokens
    assert {key: each.tobytes() for key, each in found.logits.items()} == {
        key: each.tobytes() for key, each in expected.logits.items()
    }
    with pytest.raises(PromptError, match=f"token id {image} at position 1 is the image_token_index"):
        load(nested).generate([[2, image]])


def test_the_names_that_adapters_have() -> None:
    arch = describe(configuration(TIED))
    assert arch.model_type == "gemma3_text"
    renames = adapter_renames(arch, source_shapes(tensor_specs(arch)))
    for where in WHERE:
        assert renames[f"{where}layers.0.mlp.up_proj.weight"] == "model.layers.0.mlp.up_proj.weight"


def test_ids_of_images_compute_nothing_wherever_they_stand() -> None:
    plain = configuration(TIED)
    ids = {"vision_token_id": 3, "image_start_token_id": 4, "video_token_index": None}
    inner = {**plain, "text_config": plain["text_config"] | ids}
    assert describe(plain | ids) == describe(inner) == describe(plain)


def test_what_is_not_understood_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="something=3: unknown key"):
        describe(configuration(TIED, something=3))
    with pytest.raises(CheckpointError, match="text_config, vision_config: a multimodal model"):
        describe(configuration(TIED) | {"model_type": "qwen2_5_vl"})
    with pytest.raises(CheckpointError, match="text_config, vision_config: a multimodal model"):
        describe(configuration(TIED) | {"model_type": ["gemma3"]})
    (tmp_path / "config.json").write_text(json.dumps(configuration(TIED)))
    save_file(IMAGES, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match="whose text part runs as it is and is not resharded"):
        open_reshard_source(ReshardConfig(source=str(tmp_path)))
