"""From a model type to the module that describes it."""

import re
from pathlib import Path

import pytest

import mindbatch
from mindbatch.io.errors import CheckpointError, ConfigError
from mindbatch.models.registry import MODEL_TYPES, declaration, describe, tensor_specs
from small_configs import LLAMA


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_every_type_is_declared(model_type: str) -> None:
    assert callable(declaration(model_type).tree)


def test_a_type_is_named_in_two_files_beside_its_module() -> None:
    """As docs/architecture.md counts what a type costs; tables of MindFormers', of wholes and of the formats
    of messages aside."""
    package = Path(mindbatch.__file__).parent
    tools = Path(__file__).parents[3] / "tools"
    others = ("backends/mindformers/", "checkpoint/names/", "config/predict_yaml/", "models/config_forms.py")
    others += ("message_formats/",)
    modules = {f"models/{name}.py" for name in MODEL_TYPES}
    name = re.compile(rf'"({"|".join(MODEL_TYPES)})"')
    naming = {
        path.relative_to(folder).as_posix()
        for folder in (package, tools)
        for path in folder.rglob("*.py")
        if name.search(path.read_text(encoding="utf-8"))
    }
    assert {each for each in naming - modules if not each.startswith(others)} == {
        "models/registry.py",
        "ascend_check/models.py",
    }


@pytest.mark.parametrize(("name", "hint"), [("lama", "llama"), ("Qwen-2", "qwen2"), ("gpt_2", "gpt2")])
def test_a_near_type_is_suggested(name: str, hint: str) -> None:
    with pytest.raises(
        CheckpointError, match=f"^a/config.json: model type '{name}' is not .*did you mean {hint}"
    ):
        describe({"model_type": name}, source="a/config.json")


@pytest.mark.parametrize("model_type", ["mixtral-of-experts", 7, ["llama"], "../evil", "registry"])
def test_other_types_are_refused(model_type: object) -> None:
    with pytest.raises(
        CheckpointError, match="is not supported; allowed: bloom, chatglm, chatglm_6b, cohere"
    ):
        describe({"model_type": model_type})


def test_a_missing_type_is_named() -> None:
    with pytest.raises(
        CheckpointError, match="model_type is missing; allowed: bloom, chatglm, chatglm_6b, cohere"
    ):
        describe({})


def test_an_explicit_type_serves_a_folder_of_an_unknown_one() -> None:
    arch = describe(LLAMA | {"model_type": "my_llama"}, "llama")
    assert arch.model_type == "llama"
    assert tensor_specs(arch)


def test_a_contradicting_type_is_refused() -> None:
    with pytest.raises(ConfigError, match="model.type=gpt2"):
        describe(LLAMA, "gpt2")
