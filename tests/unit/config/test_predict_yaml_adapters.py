"""`pet_config` of a predict YAML: its adapters become those of the section `lora`."""

import json
from pathlib import Path

import pytest

from mindbatch.config.model_task import ModelTaskConfig
from mindbatch.config.predict_yaml.apply import Applied, apply_table
from mindbatch.config.schema import schema_keys
from predict_yamls import LLAMA

KEYS = schema_keys(ModelTaskConfig)
ADAPTER = "load_checkpoint: lora.ckpt\npretrained_model_dir: model\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(LLAMA))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def applied(pet: dict[str, object], top: str = "", overrides: dict[str, object] | None = None) -> Applied:
    file = Path("p.yaml")
    file.write_text(f"{top}model: {{model_config: {json.dumps({'pet_config': pet, 'num_layers': 2})}}}\n")
    return apply_table(file, KEYS, overrides)


def of_interest(result: Applied) -> dict[str, object]:
    assert result.errors == []
    wanted = ("model.checkpoint_name_or_path", "model.tokenizer")
    return {
        key: setting.value
        for key, setting in result.settings.items()
        if key.startswith("lora.") or key in wanted
    }


def reasons(result: Applied) -> dict[str, str]:
    return {key.rpartition(".")[2]: why for why, keys in result.unused.items() for key in keys}


def test_the_adapter_of_lora_is_every_row_s() -> None:
    training = {"lora_dropout": 0.01, "lora_a_init": "normal", "lora_b_init": "zero", "freeze_include": ["*"]}
    pet = {"pet_type": "lora", "lora_rank": 8, "lora_alpha": 20, "target_modules": ".*wq|.*wv"}
    result = applied(pet | training | {"compute_dtype": "float16", "exclude_layers": None}, ADAPTER)
    assert of_interest(result) == {
        "model.checkpoint_name_or_path": "model",
        "lora.adapters": {"pet_config": {"path": "lora.ckpt", "scaling": 2.5}},
        "lora.default": "pet_config",
    }
    why = reasons(result)
    assert {why[name] for name in training} == {"of training"}
    assert why["target_modules"] == why["exclude_layers"] == "it is read from the adapter's files"
    assert why["compute_dtype"] == "it is read from the adapter's files"


def test_without_both_numbers_the_adapter_must_say_its_scaling() -> None:
    for pet in ({}, {"lora_rank": 8}, {"lora_alpha": 16}, {"lora_rank": None, "lora_alpha": 16}):
        result = applied({"pet_type": "lora", **pet}, ADAPTER)
        assert of_interest(result)["lora.adapters"] == {"pet_config": "lora.ckpt"}


def test_the_list_of_slora() -> None:
    pet = {"pet_type": "slora", "adapter_path": "./loras", "lora_num": 3, "lora_rank": 8, "lora_alpha": 8}
    result = applied(pet | {"lora_extra_vocab_size": 0}, "adapter_id: law\npretrained_model_dir: model\n")
    assert of_interest(result) == {
        "model.checkpoint_name_or_path": "model",
        "lora.adapters": "./loras",
        "lora.default": "law",
    }
    assert reasons(result)["lora_rank"] == "it is read from the adapter's files"


def test_settings_override_it() -> None:
    overrides = {"lora.adapters": {"law": "law"}}
    result = applied({"pet_type": "lora", "lora_rank": 8}, ADAPTER, overrides)
    assert of_interest(result) == {"model.checkpoint_name_or_path": "model"}
    assert reasons(result)["load_checkpoint"] == reasons(result)["pet_type"] == "lora.adapters overrides it"


@pytest.mark.parametrize(
    ("pet", "top", "fault"),
    [
        ({"pet_type": "ptuning2"}, "", "pet_type=ptuning2: only lora and slora are supported"),
        ({"pet_type": "lora"}, "load_checkpoint: model\n", "pet_type=lora: needs the adapter in"),
        (
            {"pet_type": "lora"},
            "load_checkpoint: model\npretrained_model_dir: ./model\n",
            "merge a checkpoint of both with tools/transform_ckpt_lora.py, or use lora.adapters='{NAME: ",
        ),
        ({"pet_type": "lora", "lora_rank": 0}, ADAPTER, "lora_rank=0: must be a number above 0"),
        ({"pet_type": "lora", "lora_alpha": True}, ADAPTER, "lora_alpha=true: must be a number above 0"),
        (
            {"pet_type": "lora", "lora_rnk": 8},
            ADAPTER,
            "unknown key; did you mean model.model_config.pet_con",
        ),
        (
            {"pet_type": "lora", "adapter_path": "x"},
            ADAPTER,
            "adapter_path=x: needs pet_type: slora; for one",
        ),
        (
            {"pet_type": "slora", "adapter_path": "x", "lora_extra_vocab_size": 5},
            "",
            "lora_extra_vocab_size=5: added tokens are not supported; set it to 0",
        ),
        ({}, "adapter_id: law\n", "adapter_id=law: needs adapter_path in pet_config"),
    ],
)
def test_what_is_refused(pet: dict[str, object], top: str, fault: str) -> None:
    [line] = applied(pet, top).errors
    assert fault in line


@pytest.mark.parametrize("pet", [None, {}, {"pet_type": None, "adapter_path": ""}])
def test_what_asks_for_nothing(pet: dict[str, object]) -> None:
    assert of_interest(applied(pet, "load_checkpoint: model\n")) == {"model.checkpoint_name_or_path": "model"}
