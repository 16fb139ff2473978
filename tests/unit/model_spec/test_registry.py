"""From a model type to the module that describes it."""

import re
from pathlib import Path
from typing import Any

import pytest

import mindbatch
from mindbatch.config_json.reader import IgnoredKeys
from mindbatch.io.errors import CheckpointError, ConfigError
from mindbatch.model_spec.registry import (
    MODEL_TYPES,
    declaration,
    describe,
    nearest_supported,
    tensor_specs,
)
from small_configs import LLAMA


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_every_type_is_declared(model_type: str) -> None:
    assert callable(declaration(model_type).tree)


def test_a_type_is_named_in_two_files_beside_its_module() -> None:
    """As docs/architecture.md counts what a type costs; tables of MindFormers', of llama.cpp's, of wholes and
    of the formats of messages aside, and the models that benchmarks measure."""
    package = Path(mindbatch.__file__).parent
    tools = Path(__file__).parents[3] / "tools"
    others = ("backends/mindformers/", "checkpoint/names/", "config/predict_yaml/", "config_json/forms.py")
    others += ("message_formats/", "bench/", "meters/", "checkpoint/gguf/")
    modules = {f"models/{name}.py" for name in MODEL_TYPES}
    name = re.compile(rf'"({"|".join(MODEL_TYPES)})"')
    naming = {
        path.relative_to(folder).as_posix()
        for folder in (package, tools)
        for path in folder.rglob("*.py")
        if name.search(path.read_text(encoding="utf-8"))
    }
    assert {each for each in naming - modules if not each.startswith(others)} == {
        "model_spec/registry.py",
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
        CheckpointError, match="is not supported; allowed: apertus, bloom, chatglm, chatglm_6b"
    ):
        describe({"model_type": model_type})


def test_a_missing_type_is_named() -> None:
    with pytest.raises(
        CheckpointError, match="model_type is missing; allowed: apertus, bloom, chatglm, chatglm_6b"
    ):
        describe({})


def test_an_explicit_type_serves_a_folder_of_an_unknown_one() -> None:
    arch = describe(LLAMA | {"model_type": "my_llama"}, "llama")
    assert arch.model_type == "llama"
    assert tensor_specs(arch)


def test_a_contradicting_type_is_refused() -> None:
    with pytest.raises(ConfigError, match="model.type=gpt2"):
        describe(LLAMA, "gpt2")


def quantised(**settings: Any) -> dict[str, Any]:
    return LLAMA | {"quantization_config": settings}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            quantised(quant_method="hqq", bits=4),
            "quantised (HQQ, 4 bits), which are not read (read are compressed-tensors (int8",
        ),
        (
            quantised(quant_method="torchao"),
            "bitsandbytes (NF4, FP4, int8)); take the folder",
        ),
        (quantised(quant_method="quanto", load_in_8bit=True), "quantised (Quanto, 8 bits)"),
        (quantised(quant_method="eetq"), "quantised (EETQ)"),
        (quantised(group_size=64, bits=4), "quantised (MLX, 4 bits)"),
        (quantised(quant_method=["x"]), "a method unknown here"),
        (
            LLAMA | {"quantization": {"group_size": 64, "bits": 8}},
            "quantization: the weights are quantised (MLX",
        ),
        (
            LLAMA | {"architectures": ["LlamaForSequenceClassification"]},
            "classifies texts and generates none",
        ),
        (LLAMA | {"architectures": ["Qwen2ForProcessRewardModel"]}, "scores texts"),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "fills gaps in a text"),
        ({"model_type": "bert"}, "model type 'bert', an encoder, which generates no text, is not supported"),
        (
            {"model_type": "jetmoe"},
            "'jetmoe', a mixture of experts, is not supported; allowed: apertus, bloom, chatglm, chatglm_6b",
        ),
        ({"model_type": "mystery", "num_experts": 8}, "'mystery', a mixture of experts,"),
        ({"model_type": "umt5"}, "'umt5', an encoder-decoder model,"),
        ({"model_type": "odd", "is_encoder_decoder": True}, "'odd', an encoder-decoder model,"),
        ({"model_type": "mamba2"}, "'mamba2', a recurrent or state-space model,"),
        ({"model_type": "llava", "text_config": {"model_type": "llama"}}, "text_config: a multimodal model"),
        ({"model_type": "qwen2_vl"}, "'qwen2_vl', multimodal,"),
    ],
)
def test_what_it_is_is_said(config: dict[str, Any], said: str) -> None:
    with pytest.raises(CheckpointError) as refused:
        describe(config, source="folder/config.json")
    [fault] = refused.value.lines
    assert said in fault
    assert "did you mean" not in fault


def test_the_nearest_type_is_told_and_what_differs() -> None:
    with pytest.raises(CheckpointError) as refused:
        describe(LLAMA | {"model_type": "mystery", "surprise": 3, "t": [1], "u": 5, "v": 5})
    [fault] = refused.value.lines
    assert "; the nearest is llama, where differs: surprise=3: unknown key that may change" in fault
    assert fault.endswith(", and 1 more")
    with pytest.raises(CheckpointError, match=r"the nearest is \w+, where differs: no key, but tensors may"):
        describe(LLAMA | {"model_type": "mystery"})
    with pytest.raises(CheckpointError) as refused:
        describe(LLAMA | {"model_type": "mamba"})
    assert "nearest" not in refused.value.lines[0]


EETQ = {"quantization_config": {"quant_method": "eetq"}}
SHELL = {"model_type": "qwen3_5", "text_config": LLAMA | {"model_type": "qwen3_5_text"}}


@pytest.mark.parametrize(
    ("config", "nearest", "difference"),
    [
        (LLAMA | {"model_type": "qwen2"} | EETQ, "qwen2", "quantised (EETQ)"),
        (LLAMA | {"model_type": "qwen2", "mystery": 1}, "qwen2", "mystery=1: unknown key"),
        (LLAMA | {"architectures": ["LlamaForSequenceClassification"]}, "llama", "classifies texts"),
        (LLAMA | {"model_type": "odd", "architectures": ["Qwen3MoeForCausalLM"]}, "qwen3_moe", None),
        (LLAMA | {"model_type": "odd", "architectures": ["Gemma3ForCausalLM"]}, "gemma3_text", None),
        (LLAMA | {"model_type": "odd", "architectures": ["GPTNeoXForTokenClassification"]}, "gpt_neox", None),
        ({"architectures": ["LlamaModel"]}, "llama", None),
        (LLAMA | {"model_type": "odd"} | EETQ, "llama", None),
        (LLAMA | {"model_type": "odd", "architectures": ["OddForRewardModel", 3]}, "llama", None),
        (SHELL | EETQ, "qwen3_5_text", "quantised (EETQ)"),
    ],
)
def test_the_nearest_type_is_the_one_that_is_named_or_most_like(
    config: dict[str, Any], nearest: str, difference: str | None
) -> None:
    near = nearest_supported(config, "config.json")
    assert near is not None
    assert near.model_type == nearest
    if difference is not None:
        assert any(difference in line for line in near.differences)


@pytest.mark.parametrize("architectures", [["LlamaForCausalLM"], ["LlamaModel"], None, [], "odd", [3]])
def test_other_architectures_are_left_aside(architectures: Any) -> None:
    assert describe(LLAMA | {"architectures": architectures}) == describe(LLAMA)


def test_a_setting_of_quantisation_that_stayed_in_the_file_may_be_ignored() -> None:
    """Where the weights are not quantised any more: what they are is checked against the sizes."""
    config = quantised(quant_method="bitsandbytes")
    assert describe(config, ignore=IgnoredKeys(("quantization_config",))) == describe(LLAMA)


@pytest.mark.parametrize("name", ["qwen4", "qwen3_5", "gpt3", "llama5"])
def test_another_number_is_another_architecture(name: str) -> None:
    with pytest.raises(CheckpointError) as refused:
        describe({"model_type": name})
    assert "did you mean" not in str(refused.value)
