"""`quantization_config`: what is read, what is refused by its setting, and by which tasks."""

from pathlib import Path
from typing import Any

import pytest

from mindbatch.backends import native
from mindbatch.config.model_schema import ModelConfig
from mindbatch.config_json.quantisation import read_scheme
from mindbatch.config_json.reader import IgnoredKeys
from mindbatch.io.errors import CheckpointError
from mindbatch.loading.providers import open_model
from mindbatch.model_spec.registry import describe
from mindbatch.tasks.inspect import InspectConfig
from mindbatch.tasks.inspect import run as inspect
from quantised_folders import METHODS, sample
from quantising_methods import awq, gptq
from quantising_toolkits import compressed_int8, compressed_packed
from small_configs import GPT2, LLAMA

TITLES = {
    "int8": "int8, a scale for each output",
    "packed": "packed, 4 bits, groups of 16",
    "gptq_whole": "GPTQ, 4 bits",
    "gptq8": "GPTQ, 8 bits, groups of 16",
    "awq": "AWQ, 4 bits, groups of 16",
    "mxfp8": "FP8, groups of 32",
    "compressed_mixed": "FP8, a scale for each output and NVFP4",
    "nf4": "bitsandbytes, nf4",
}


def with_settings(settings: dict[str, Any], model: dict[str, Any] = LLAMA) -> dict[str, Any]:
    return model | {"quantization_config": settings}


@pytest.mark.parametrize("method", TITLES)
def test_the_method_is_told(method: str) -> None:
    scheme = read_scheme(with_settings(METHODS[method].settings), "config.json")
    assert scheme is not None
    assert scheme.title == TITLES[method]


def test_settings_that_are_passed_over_tell_nothing() -> None:
    config = with_settings(gptq().settings)
    assert read_scheme(config, "config.json", ("quantization_config",)) is None
    assert describe(config, ignore=IgnoredKeys(("quantization_config",))) == describe(LLAMA)


INT8 = compressed_int8().settings
PACKED = compressed_packed().settings


def grouped(settings: dict[str, Any], **scheme: Any) -> dict[str, Any]:
    """With another scheme; of `weights`, other keys."""
    group = settings["config_groups"]["group_0"]
    weights = group["weights"] | scheme.pop("weights", {})
    return settings | {"config_groups": {"group_0": group | scheme | {"weights": weights}}}


REFUSED: list[tuple[dict[str, Any], list[str]]] = [
    (gptq().settings | {"bits": 3}, ["bits=3: must be 4 or 8"]),
    (
        gptq().settings | {"bits": "4", "group_size": 0},
        [
            "bits='4': must be 4 or 8",
            "group_size=0: must be a whole number",
        ],
    ),
    (gptq().settings | {"checkpoint_format": "marlin"}, ["must be gptq or gptq_v2"]),
    (gptq().settings | {"pack_dtype": "int16"}, ["pack_dtype='int16': not supported; allowed: 'int32'"]),
    (
        gptq().settings | {"dynamic": {"+:.*": {"bits": 3}, "-:(": {}}},
        ["+:.*: bits=3: must be 4 or 8", "must be a regular expression"],
    ),
    (awq().settings | {"version": "gemv"}, ["version='gemv': must be gemm"]),
    (
        awq().settings | {"bits": 8, "zero_point": False},
        ["bits=8: must be 4", "zero_point=false: must be true"],
    ),
    (
        INT8 | {"format": "marlin-24"},
        ["format='marlin-24': must be one of float-quantized, int-quantized, mixed-precision, mxfp4-pack"],
    ),
    (INT8 | {"config_groups": {}}, ["must hold a group"]),
    (
        INT8 | {"transform_config": {"config_groups": {}}},
        ["transform_config={config_groups: {}}: must be null"],
    ),
    (INT8 | {"sparsity_config": {"format": "sparse-24-bitmask"}}, ["must be of format dense"]),
    (
        grouped(INT8, input_activations={"num_bits": 2, "type": "int", "dynamic": False}),
        ["config_groups: group_0: input_activations: num_bits=2: not supported; allowed: 4, 8"],
    ),
    (grouped(INT8, weights={"type": "float"}), ["weights: type='float': not supported; allowed: 'int'"]),
    (grouped(INT8, weights={"strategy": "block"}), ["block_structure=null: must be two positive numbers"]),
    (grouped(INT8, weights={"strategy": "all"}), ["strategy='all': must be one of block, channel, group"]),
    (grouped(INT8, targets=["re:(a+)+b"]), ["must be a list of names, classes"]),
    (
        gptq().settings | {"dynamic": {"+:(.*x)*y": {"bits": 8}}},
        ["+:(.*x)*y={bits: 8}: must have at most 1000 characters, and no group that is repeated"],
    ),
    (grouped(INT8, targets=["re:("]), ["targets=['re:(']: must be a list of names, classes"]),
    ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, ["quant_algo='W4A8_AWQ': must be one of FP8, "]),
    (
        {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": {}}},
        ["quantized_layers: a: quant_algo=null: must be one of FP8"],
    ),
    ({"quant_method": "mxfp8", "weight_block_size": [32, 32]}, ["not supported; allowed: [1, 32]"]),
    (
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "int4"},
        ["bnb_4bit_quant_type='int4': must be one of fp4, nf4"],
    ),
    (
        {"quant_method": "auto-round", "bits": 2, "group_size": 16, "packing_format": "auto_round:auto_awq"},
        ["bits=2: must be 4"],
    ),
    (grouped(PACKED, weights={"num_bits": 2}), ["num_bits=2: must be 4 or 8"]),
    (
        PACKED
        | {"config_groups": PACKED["config_groups"] | grouped(PACKED)["config_groups"] | {"b": "W8A8"}},
        ["config_groups: b='W8A8': must be settings"],
    ),
]


@pytest.mark.parametrize(("settings", "said"), REFUSED)
def test_what_is_not_read_is_refused_by_its_setting(settings: dict[str, Any], said: list[str]) -> None:
    with pytest.raises(CheckpointError) as refused:
        describe(with_settings(settings), source="folder/config.json")
    faults = "\n".join(refused.value.lines)
    assert all(line.startswith("folder/config.json: quantization_config") for line in refused.value.lines)
    assert [line for line in said if line not in faults] == []


def test_matrices_that_are_stored_by_inputs_are_not_read() -> None:
    with pytest.raises(CheckpointError, match="quantised weights of gpt2 are not read"):
        describe(with_settings(gptq().settings, GPT2))


@pytest.mark.parametrize("method", ["int8", "gptq"])
def test_only_running_and_planning_takes_them(tmp_path: Path, method: str) -> None:
    made = sample(method, LLAMA)
    with pytest.raises(
        CheckpointError, match=r"are quantised \((GPTQ|compressed).*, which tasks that run a model read"
    ):
        describe(made.config, to_be_run=False)
    model = open_model(ModelConfig(checkpoint_name_or_path=str(made.write(tmp_path))))
    assert model.spec.num_parameters == sum(array.size for array in made.floats.values())
    with pytest.raises(CheckpointError, match="are not merged with; use lora.mode=live"):
        native.merge(model.spec, model.folder, None)  # type: ignore[arg-type]


def test_inspect_says_how_the_matrices_are_stored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(sample("gptq", LLAMA).write(tmp_path))
    inspect(InspectConfig(path=path))
    assert "quantised: GPTQ, 4 bits, groups of 16, 6.1 bits a number" in capsys.readouterr().out
    inspect(InspectConfig(path=path, format="json"))
    assert '"quantised": "GPTQ, 4 bits, groups of 16, 6.1 bits a number"' in capsys.readouterr().out
