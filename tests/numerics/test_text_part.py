"""The text part of a multimodal folder is the model of text with the same weights."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recording import LastRun, load
from safetensors.numpy import load_file, save_file
from type_cases import config_of, prompts_of, write_case

from mindbatch import LLM, DecodingParams
from mindbatch.architecture.tensor_spec import source_shapes
from mindbatch.backends.merged_adapter import adapter_renames
from mindbatch.cli import main
from mindbatch.config.model_schema import ModelConfig
from mindbatch.config_json.forms import TEXT_TYPES, TIE, nested_names
from mindbatch.io.errors import CheckpointError, ConfigError, PromptError
from mindbatch.loading.providers import open_model
from mindbatch.model_spec.registry import declaration, describe, tensor_specs
from mindbatch.tasks.reshard.schema import ReshardConfig
from mindbatch.tasks.reshard.source import open_reshard_source

TIED, UNTIED = "gemma3", "gemma3_local"
GREEDY = DecodingParams(max_new_tokens=8)
LAYOUTS = {
    "published for transformers 4": ("language_model.model.", "language_model.lm_head.weight"),
    "of the class, saved by 5": ("model.language_model.", "lm_head.weight"),
    "head of the other layout": ("language_model.model.", "lm_head.weight"),
    "head within": ("model.language_model.", "model.language_model.lm_head.weight"),
    "saved without the class that has the head": ("language_model.", "lm_head.weight"),
}
"""In front of the names of the text part, and the head's."""
IMAGES = {
    "vision_tower.x.weight": np.ones((3, 4), np.float32),
    "multi_modal_projector.y": np.ones(2, np.float32),
}


def configuration(case: str, **settings: Any) -> dict[str, Any]:
    """The case's as the text part of a gemma3."""
    images = {"vision_config": {"model_type": "siglip_vision_model"}, "mm_tokens_per_image": 256}
    return {"model_type": "gemma3", "text_config": config_of(case), **images, **settings}


def nested_name(layout: str, name: str) -> str:
    where, head = LAYOUTS[layout]
    return head if name == "lm_head.weight" else where + name.removeprefix("model.")


@dataclass(frozen=True)
class Folders:
    """A model of text, and the multimodal one with its weights. image: the token id that stands for one."""

    case: str
    text: Path
    nested: Path
    image: int

    @property
    def prompts(self) -> list[list[int]]:
        """Some prompts without an image."""
        return [prompt for prompt in prompts_of(self.case) if self.image not in prompt][:4]


def folders_of(home: Path, case: str, layout: str) -> Folders:
    text, nested = write_case(home / "text", case), home / "nested"
    tensors: dict[str, Any] = {}
    for file in text.glob("*.safetensors"):
        tensors |= load_file(file)
    nested.mkdir()
    image = max(config_of(case)["vocab_size"] - 1, *map(max, prompts_of(case)[:4]))
    (nested / "config.json").write_text(json.dumps(configuration(case, image_token_index=image)))
    shell = "" if LAYOUTS[layout][0].startswith("language_model.") else "model."
    images = {shell + name: tensor for name, tensor in IMAGES.items()}
    if "lm_head.weight" not in tensors and "without" not in layout:  # a copy, as some files have it
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    renamed = {nested_name(layout, name): tensor for name, tensor in tensors.items()}
    save_file(renamed | images, nested / "model.safetensors")
    return Folders(case, text, nested, image)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", [TIED, UNTIED])
def test_logits_and_tokens_are_those_of_the_model_of_text(case: str, layout: str, tmp_path: Path) -> None:
    folders = folders_of(tmp_path, case, layout)
    expected, found = (
        LastRun(load(folder), folders.prompts, GREEDY) for folder in (folders.text, folders.nested)
    )
    assert found.tokens == expected.tokens
    assert {key: logits.tobytes() for key, logits in found.logits.items()} == {
        key: logits.tobytes() for key, logits in expected.logits.items()
    }
    image = folders.image
    with pytest.raises(PromptError, match=f"token id {image} at position 1 is the image_token_index"):
        load(folders.nested).generate([[2, image]])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_inspect_and_layout_find_the_head(
    layout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nested = folders_of(tmp_path, UNTIED, layout).nested
    assert main(["inspect", str(nested)]) == 0
    assert "runs as gemma3_text" in capsys.readouterr().out
    assert main(["layout", f"model.checkpoint_name_or_path={nested}", "parallel.pipeline_stage=2"]) == 0


def test_a_head_that_is_stored_counts_wherever_it_is(tmp_path: Path) -> None:
    """Whatever config.json says of it, as in transformers 5: parts of it may say two things, or none."""
    for layout, (where, head) in LAYOUTS.items():
        home = tmp_path / where / head
        home.mkdir(parents=True)
        folders = folders_of(home, TIED, layout)
        tensors = load_file(folders.nested / "model.safetensors")
        tensors[head] = tensors[f"{where}embed_tokens.weight"] + 1
        save_file(tensors, folders.nested / "model.safetensors")
        assert not open_model(ModelConfig(checkpoint_name_or_path=str(folders.nested))).spec.architecture.tied
        del tensors[head]
        save_file(tensors, folders.nested / "model.safetensors")
        assert open_model(ModelConfig(checkpoint_name_or_path=str(folders.nested))).spec.architecture.tied


@pytest.mark.parametrize(
    ("around", "within", "tied"),
    [({}, {}, True), ({TIE: False}, {}, False), ({TIE: False}, {TIE: True}, True), ({}, {TIE: False}, False)],
)
def test_without_a_head_the_part_counts_that_ties_it(
    around: dict[str, bool], within: dict[str, bool], tied: bool
) -> None:
    text = {key: value for key, value in config_of(TIED).items() if key != TIE}
    assert describe(configuration(TIED, text_config=text | within, **around)).tied == tied


@pytest.mark.parametrize("model_type", sorted(TEXT_TYPES))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_shell_has_its_names(layout: str, model_type: str) -> None:
    where, head = LAYOUTS[layout]
    prefix = declaration(TEXT_TYPES[model_type]).prefix
    names = nested_names(prefix, {f"{where}norm.weight", head})
    assert names is not None
    assert names(f"{prefix}layers.0.mlp.up_proj.weight") == f"{where}layers.0.mlp.up_proj.weight"
    assert names("lm_head.weight") == head


def write_adapter(folder: Path, names: Callable[[str], str]) -> Path:
    """A LoRA adapter of the layers and the head. names: from the weights' names in the model of text."""
    config, tensors = config_of(UNTIED), {}
    hidden = config["hidden_size"]
    layers = (f"model.layers.{layer}.mlp.up_proj" for layer in range(config["num_hidden_layers"]))
    sizes = dict.fromkeys(layers, config["intermediate_size"]) | {"lm_head": config["vocab_size"]}
    for module, outputs in sizes.items():
        place = f"base_model.model.{names(f'{module}.weight').removesuffix('.weight')}"
        random = np.random.default_rng(outputs)
        for which, shape in (("A", (2, hidden)), ("B", (outputs, 2))):
            tensors[f"{place}.lora_{which}.weight"] = random.normal(size=shape).astype(np.float32)
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["up_proj", "lm_head"]}
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_adapters_act_alike_beside_and_merged(layout: str, tmp_path: Path) -> None:
    """An adapter has the names of the multimodal model, or those of the model of text."""
    folders = folders_of(tmp_path, UNTIED, layout)
    of_text = write_adapter(tmp_path / "of_text", str)
    of_shell = write_adapter(tmp_path / "of_shell", partial(nested_name, layout))
    tokens = set()
    for folder, adapter in ((folders.text, of_text), (folders.nested, of_text), (folders.nested, of_shell)):
        for mode in ("live", "merge"):
            with LLM(folder, cache_memory="8MiB", lora_adapters={"a": adapter}, lora_mode=mode) as llm:
                results = llm.generate(folders.prompts[:2], GREEDY, adapter="a")
            tokens.add(str([result.outputs[0].token_ids for result in results]))
    assert len(tokens) == 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layer_that_an_adapter_leaves_out_is_told_by_its_names(layout: str, tmp_path: Path) -> None:
    folders = folders_of(tmp_path, UNTIED, layout)
    adapter = write_adapter(tmp_path / "of_shell", partial(nested_name, layout))
    where = LAYOUTS[layout][0]
    tensors = load_file(adapter / "adapter_model.safetensors")
    fewer = {name: tensor for name, tensor in tensors.items() if f"{where}layers.1." not in name}
    assert len(fewer) < len(tensors)
    save_file(fewer, adapter / "adapter_model.safetensors")
    settings = json.loads((adapter / "adapter_config.json").read_text())
    head = re.escape(LAYOUTS[layout][1].removesuffix(".weight"))
    settings["target_modules"] = rf"{re.escape(where)}layers\.\d+\.mlp\.up_proj|{head}"
    (adapter / "adapter_config.json").write_text(json.dumps(settings))
    with pytest.raises(
        CheckpointError, match=r"'model.layers.1.mlp.up_proj.weight' is meant by target_modules"
    ):
        LLM(folders.nested, cache_memory="8MiB", lora_adapters={"a": adapter})


def test_the_names_that_adapters_have() -> None:
    arch = describe(configuration(TIED))
    assert arch.model_type == "gemma3_text"
    renames = adapter_renames(arch, source_shapes(tensor_specs(arch)))
    for where, _ in LAYOUTS.values():
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
