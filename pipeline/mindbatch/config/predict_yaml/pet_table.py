"""Translates `pet_config` of a predict YAML: the adapter that MindFormers would put into the model."""

from typing import Any, NoReturn

from mindbatch.config.predict_yaml.conversions import PET_CONFIG, PET_NAME, is_positive, only
from mindbatch.config.predict_yaml.entries import (
    NOTHING,
    Agreed,
    Checked,
    Entry,
    Facts,
    Sets,
    Unfit,
    WithoutEffect,
)
from mindbatch.config.predict_yaml.run_table import TRAINING

LORA, SLORA = "lora", "slora"
GIVE_IT = "lora.adapters='{NAME: PATH}' lora.default=NAME"
OF_ADAPTER = "the adapter's own files say it"


def _pet_type(value: Any, facts: Facts) -> str:
    """lora: the one adapter is every row's; slora has a list, and adapter_id names one."""
    if value == SLORA or value in NOTHING:
        raise Agreed
    if value != LORA:
        raise Unfit(f"only {LORA} and {SLORA} are supported")
    if "lora.adapters" in facts.above:
        raise WithoutEffect("lora.adapters is given")
    if facts.adapter is None:
        raise Unfit(
            "the adapter is looked for in load_checkpoint, its model in pretrained_model_dir; a checkpoint "
            f"of both is merged by tools/transform_ckpt_lora.py, or give {GIVE_IT}"
        )
    return PET_NAME


def _adapter_path(value: Any, facts: Facts) -> str:
    if value in NOTHING:
        raise Agreed
    if facts.value(f"{PET_CONFIG}pet_type") != SLORA:
        raise Unfit(f"is of pet_type: {SLORA}; for one adapter give {GIVE_IT}")
    return str(value)


def _adapter_id(value: Any, facts: Facts) -> str:
    if value in NOTHING:
        raise Agreed
    if facts.value(f"{PET_CONFIG}adapter_path") is None and "lora.adapters" not in facts.above:
        raise Unfit(f"there are no adapters without adapter_path in pet_config; give {GIVE_IT}")
    return str(value)


def _scaling_part(value: Any, facts: Facts) -> NoReturn:
    """lora_rank and lora_alpha: of lora their quotient goes with the adapter; slora's have their own."""
    if facts.value(f"{PET_CONFIG}pet_type") != LORA:
        raise WithoutEffect(OF_ADAPTER)
    if not (value is None or is_positive(value)):
        raise Unfit("must be a number above 0")
    raise Agreed


PET: dict[str, Entry] = {
    "adapter_id": Sets("lora.default", _adapter_id),
    f"{PET_CONFIG}pet_type": Sets("lora.default", _pet_type),
    f"{PET_CONFIG}adapter_path": Sets("lora.adapters", _adapter_path),
    f"{PET_CONFIG}lora_rank": Checked(_scaling_part),
    f"{PET_CONFIG}lora_alpha": Checked(_scaling_part),
    f"{PET_CONFIG}lora_extra_vocab_size": Checked(
        only((0, None), "tokens that are added are not supported; set it to 0")
    ),
}

IDLE_PET: dict[str, str] = {
    f"{PET_CONFIG}lora_num": "lora.max_loaded says how many are in memory",
    **dict.fromkeys((f"{PET_CONFIG}lora_", f"{PET_CONFIG}freeze_"), TRAINING),
    PET_CONFIG: OF_ADAPTER,
}
"""As `run_table.IDLE`."""
