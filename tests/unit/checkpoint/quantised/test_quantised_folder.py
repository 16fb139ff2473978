"""Folders with quantised matrices: they are read as floats; what contradicts itself is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors_writer import write_shards

from mindbatch.backends.loader import load_weights
from mindbatch.checkpoint.folders.folder_files import read_config
from mindbatch.checkpoint.folders.model_folder import ModelFolder
from mindbatch.config_json.quantisation import open_whole
from mindbatch.io.errors import CheckpointError
from mindbatch.kernels.reference import ReferenceKernels
from mindbatch.model_spec.described_folder import check_tensors
from mindbatch.model_spec.model_spec import ModelSpec
from mindbatch.model_spec.registry import describe, tensor_specs
from mindbatch.parallel.topology import RankPart, TensorSlice
from quantised_folders import METHODS, Sample, sample
from quantised_stacks import mxfp4
from quantising_methods import gptq
from small_configs import LLAMA

MATRIX = "model.layers.0.mlp.down_proj"  # [32, 48]
STATE = "weight.quant_state.bitsandbytes__nf4"
ASCEND, MODELOPT = "quant_model_description.json", "hf_quant_config.json"
STACK = "model.layers.0.mlp.experts.gate_up_proj_"  # [4, 64, 64]


def opened(folder: Path, config: dict[str, Any]) -> ModelFolder:
    return open_whole(folder, config)


def checked(path: Path, config: dict[str, Any]) -> None:
    with opened(path, config) as folder:
        arch = describe(config)
        check_tensors(arch, tensor_specs(arch), folder)


@pytest.mark.parametrize("method", METHODS)
def test_a_quantised_matrix_is_read_as_the_floats_that_it_stands_for(tmp_path: Path, method: str) -> None:
    made = sample(method, LLAMA)
    checked(made.write(tmp_path), made.config)
    with opened(tmp_path, made.config) as folder:
        assert sorted(folder.names) == sorted(made.floats)
        for name, floats in made.floats.items():
            np.testing.assert_array_equal(folder.floats(name), floats)
        rows, columns = slice(3, 30), slice(8, 41)
        part = folder.floats(f"{MATRIX}.weight", rows=rows, columns=columns)
        np.testing.assert_array_equal(part, made.floats[f"{MATRIX}.weight"][rows, columns])


@pytest.mark.parametrize("size", [1, 2])
def test_a_rank_of_mxfp4_has_the_weights_of_a_folder_of_floats(tmp_path: Path, size: int) -> None:
    made = mxfp4()
    arch = describe(made.config)
    made.write_floats(tmp_path / "floats")
    with (
        opened(made.write(tmp_path / "mxfp4"), made.config) as ours,
        ModelFolder(tmp_path / "floats") as theirs,
    ):
        assert ours.quantised == "MXFP4"
        assert sorted(ours.names) == sorted(theirs.names)
        for rank in range(size):
            spec = ModelSpec.of(arch, RankPart(TensorSlice(rank, size)))
            found, expected = (load_weights(spec, folder, ReferenceKernels()) for folder in (ours, theirs))
            for name, array in expected.parameters.items():
                np.testing.assert_array_equal(found.parameters[name], array)


def test_a_number_of_fp8_that_is_none_is_refused(tmp_path: Path) -> None:
    made = sample("fp8", LLAMA)
    made.tensors[f"{MATRIX}.weight"].view(np.uint8)[3, 5] = 0xFF
    with (
        opened(made.write(tmp_path), made.config) as folder,
        pytest.raises(CheckpointError, match=r"down_proj.weight': holds numbers that are none"),
    ):
        load_weights(ModelSpec.of(describe(made.config)), folder, ReferenceKernels())


def test_a_scale_of_mxfp4_that_is_no_number_is_refused(tmp_path: Path) -> None:
    made = mxfp4()
    made.tensors[f"{STACK}scales"][2, 5, 1] = 255
    with (
        opened(made.write(tmp_path), made.config) as folder,
        pytest.raises(CheckpointError, match="matrix 2: exponent 255"),
    ):
        load_weights(ModelSpec.of(describe(made.config)), folder, ReferenceKernels())


def broken(end: str, at: Any, value: Any) -> Any:
    """Puts a value into a tensor of the matrix."""

    def change(made: Sample) -> None:
        made.tensors[f"{MATRIX}.{end}"][at] = value

    return change


def all_read(path: Path, config: dict[str, Any]) -> None:
    checked(path, config)
    with opened(path, config) as folder:
        for name in folder.names:
            folder.floats(name)


def without(end: str, stem: str = f"{MATRIX}.") -> Any:
    return lambda made: made.tensors.pop(f"{stem}{end}")


def reshaped(end: str, cut: Any, stem: str = f"{MATRIX}.") -> Any:
    def change(made: Sample) -> None:
        made.tensors[f"{stem}{end}"] = np.ascontiguousarray(made.tensors[f"{stem}{end}"][cut])

    return change


def recast(end: str, dtype: Any, stem: str = f"{MATRIX}.") -> Any:
    def change(made: Sample) -> None:
        made.tensors[f"{stem}{end}"] = made.tensors[f"{stem}{end}"].astype(dtype)

    return change


def setting(key: str, value: Any) -> Any:
    def change(made: Sample) -> None:
        made.config["quantization_config"] = made.config["quantization_config"] | {key: value}

    return change


def entry(key: str, file: str, *value: Any) -> Any:
    """Gives an entry of a file beside config.json a value, or takes it away."""

    def change(made: Sample) -> None:
        content = made.files[file]
        content = content["quantization"]["quantized_layers"] if file == MODELOPT else content
        content.pop(key, None)
        if value:
            content[key] = value[0]

    return change


def with_rotation(made: Sample) -> None:
    made.tensors["model.layers.0.self_attn.o_proj.heads_rotation"] = np.eye(4, dtype=np.float32)


def as_bytes(made: Sample) -> None:
    made.tensors[f"{MATRIX}.weight"] = made.tensors[f"{MATRIX}.weight"].view(np.uint8)


def twice(made: Sample) -> None:
    made.tensors[f"{MATRIX}.weight"] = made.floats[f"{MATRIX}.weight"]


def stack_twice(made: Sample) -> None:
    made.tensors[STACK.removesuffix("_")] = np.zeros((4, 64, 64), np.float32)


def not_quantised(made: Sample) -> None:
    made.tensors.clear()
    made.tensors.update(made.floats)


REFUSED: list[tuple[str, Any, str]] = [
    ("gptq", broken("scales", (0, 3), np.nan), "scales: 1 of 96 scales are not above 0 and finite: nan"),
    ("gptq", broken("scales", (0, slice(3, 5)), 0), "2 of 96 scales are not above 0 and finite: 0, 0"),
    ("awq", broken("scales", (1, 0), -0.5), "finite: -0.5"),
    (
        "int8",
        broken("weight_scale", 4, np.inf),
        "weight_scale: 1 of 32 scales are not above 0 and finite: inf",
    ),
    (
        "gptq",
        broken("g_idx", 5, 3),
        "g_idx: 1 of 48 inputs are in groups that do not exist, such as 3; allowed",
    ),
    ("packed_order", broken("weight_g_idx", 5, -1), "such as -1; allowed: 0..2"),
    ("packed", broken("weight_shape", 1, 47), "weight_shape: [32, 47]; weight_packed holds [32, 48]"),
    ("gptq", without("scales"), f"tensor '{MATRIX}.scales' is missing; GPTQ, 4 bits, groups of 16 needs it"),
    ("gptq_order", without("g_idx"), f"tensor '{MATRIX}.g_idx' is missing"),
    ("int8", without("weight"), f"tensor '{MATRIX}.weight' is missing"),
    ("gptq", reshaped("qzeros", slice(2)), "has shape [2, 4], needed is [3, 4] for 32 outputs and 48 inputs"),
    ("awq", reshaped("qweight", slice(40)), "has shape [32, 40], needed is [32, 48]"),
    ("int8", recast("weight", np.int32), "has dtype I32, needed is I8"),
    ("gptq", setting("bits", 8), "(GPTQ, 8 bits, groups of 16, as config.json says)"),
    (
        "gptq",
        setting("group_size", 32),
        "needed is [1, 48] for 48 outputs and 32 inputs (GPTQ, 4 bits, groups of 32",
    ),
    ("gptq", twice, f"is stored as '{MATRIX}.qweight', too"),
    (
        "gptq",
        not_quantised,
        "GPTQ, 4 bits, groups of 16; no tensor is stored so, as *.qweight",
    ),
    ("awq", setting("group_size", -1), "needed is [1, 32]"),
    ("fp8", broken("weight_scale_inv", (0, 1), 0), "weight_scale_inv: 1 of 4 scales are not above 0"),
    ("fp8", reshaped("weight_scale_inv", slice(1)), "has shape [1, 2], needed is [2, 2] for 32 outputs"),
    ("fp8", as_bytes, "has dtype U8, needed is F8_E4M3"),
    ("fp8", setting("weight_block_size", [16]), "weight_block_size=[16]: must be two positive numbers"),
    ("fp8", setting("weight_block_size", None), "has shape [2, 2], needed is [1, 1]"),
    ("fp8", setting("activation_scheme", "none"), "activation_scheme='none': not supported"),
    ("fp8", setting("fmt", "e5m2"), "fmt='e5m2': not supported; allowed: 'e4m3'"),
    ("fp8_tensor", reshaped("weight_scale", slice(0)), "has shape [0], needed is [1, 1]"),
    ("fp8_channel", reshaped("weight_scale", slice(4)), "has shape [4, 1], needed is [32, 1]"),
    ("modelopt_nvfp4", broken("weight_scale_2", 0, 0), "weight_scale_2: 1 of 1 scales are not above 0"),
    ("modelopt_nvfp4", without("weight_scale"), "weight_scale' is missing; NVFP4 needs it"),
    ("modelopt_nvfp4", broken("input_scale", 0, np.nan), "input_scale: 1 of 1 scales are not above 0"),
    (
        "modelopt_mixed",
        entry("model.layers.0.mlp", MODELOPT, None),
        "quantized_layers: model.layers.0.mlp=null",
    ),
    (
        "modelopt_mixed",
        entry("model.layers.0.mlp", MODELOPT),
        "does not say how these, which have",
    ),
    ("nf4", broken("weight.quant_map", 3, 0.5), "weight.quant_map: is not the table of nf4"),
    ("nf4", broken("weight.absmax", 3, -1), "weight.absmax: 1 of 24 scales are not 0 or more and finite: -1"),
    ("nf4", reshaped("weight.absmax", slice(20)), "has shape [20], needed is [24]"),
    ("nf4", reshaped(STATE, slice(9)), "quant_state.bitsandbytes__nf4': JSON: "),
    ("nf4", without(STATE), "quant_state.bitsandbytes__nf4' is missing"),
    ("llm_int8", broken("weight_format", (), 2), "weight_format: 2; must be 0"),
    ("ascend_dynamic", entry(f"{MATRIX}.weight", ASCEND, "W4A4_FLATQUANT_DYNAMIC"), "'W4A4_FLATQUANT_DY"),
    (
        "ascend_dynamic",
        entry(f"{MATRIX}.rest", ASCEND, "W8A8_DYNAMIC"),
        "down_proj.rest' is not in the",
    ),
    ("ascend_dynamic", entry("group_size", ASCEND, -4), "group_size=-4: must be a number of inputs, or 0"),
    ("ascend_dynamic", with_rotation, "o_proj.heads_rotation' is to multiply activations"),
    (
        "ascend_static",
        broken("quant_bias", 3, 5000),
        "quant_bias of 1 of 32 outputs holds more than",
    ),
    ("ascend_static", broken("input_scale", 0, 0), "input_scale: 1 of 1 scales are not above 0"),
    (
        "ascend_mix",
        broken("deq_scale", 3, 1 << 33),
        "deq_scale: 1 of 32 scales are not above 0 and finite",
    ),
    ("ascend_mix", broken("weight_scale", 3, 0.5), "deq_scale: 1 of 32 are not input_scale * weight_scale"),
    ("ascend_mix", broken("weight_offset", 3, 1), "weight_offset: must be zero where deq_scale is given"),
    ("ascend_int4", broken("weight_offset_second", 3, 1), "weight_offset_second: must be zero"),
    ("mxfp4", without("scales", STACK), "gate_up_proj_scales' is missing; MXFP4 needs it"),
    ("mxfp4", recast("blocks", np.int32, STACK), "gate_up_proj_blocks' has dtype I32, needed is U8"),
    (
        "mxfp4",
        reshaped("blocks", (slice(None), slice(None), 0), STACK),
        "has shape [4, 64, 16]; needed is [matrices, outputs, blocks, 16]",
    ),
    (
        "mxfp4",
        reshaped("blocks", (..., slice(15)), STACK),
        "has shape [4, 64, 2, 15], needed is [4, 64, 2, 16]",
    ),
    (
        "mxfp4",
        reshaped("scales", (slice(None), slice(-1)), STACK),
        "has shape [4, 63, 2], needed is [4, 64, 2]",
    ),
    ("mxfp4", stack_twice, "gate_up_proj_blocks', too; one of them must go"),
    ("mxfp4", not_quantised, "config.json says MXFP4; no tensor is stored so, as *_blocks"),
]


@pytest.mark.parametrize(("method", "change", "said"), REFUSED)
def test_what_contradicts_itself_is_refused(tmp_path: Path, method: str, change: Any, said: str) -> None:
    made = mxfp4() if method == "mxfp4" else sample(method, LLAMA)
    change(made)
    with pytest.raises(CheckpointError) as refused:
        all_read(made.write(tmp_path), made.config)
    assert said in str(refused.value)


def test_scales_that_are_without_effect_are_told(tmp_path: Path) -> None:
    made = sample("modelopt_nvfp4", LLAMA)
    made.tensors["model.layers.1.self_attn.k_proj.k_scale"] = np.ones(1, np.float32)
    checked(made.write(tmp_path), made.config)
    with opened(tmp_path, made.config) as folder:
        assert folder.notes == (
            f"{tmp_path}: activations are not rounded with the folder's scales, which 14 of 14 quantised "
            "matrices have",
            f"{tmp_path}: 1 scales of keys, values and attention are without effect, as these are not "
            "rounded",
        )


def test_a_bias_in_a_product_of_rounded_activations_is_that_of_the_model(tmp_path: Path) -> None:
    config = LLAMA | {"attention_bias": True}
    made = sample("ascend_static", config)
    module = "model.layers.0.self_attn.q_proj"
    bias = np.linspace(-1, 1, len(made.tensors[f"{module}.weight"]), dtype=np.float32)
    made.tensors[f"{module}.bias"] = made.floats[f"{module}.bias"] = bias
    steps = made.tensors[f"{module}.deq_scale"]
    made.tensors[f"{module}.quant_bias"] += np.rint(bias / steps).astype(np.int32)
    checked(made.write(tmp_path), config)
    with opened(tmp_path, config) as folder:
        np.testing.assert_array_equal(folder.floats(f"{module}.bias"), bias)
        np.testing.assert_array_equal(folder.floats(f"{module}.weight"), made.floats[f"{module}.weight"])


@pytest.mark.parametrize("stem", ["quant_model_weights", "quant_model_weight_w8a8"])
def test_weights_are_found_by_the_names_that_msmodelslim_gives_them(tmp_path: Path, stem: str) -> None:
    made = sample("ascend_dynamic", LLAMA)
    shards: dict[str, dict[str, Any]] = {}
    for number, (name, array) in enumerate(made.tensors.items()):
        shards.setdefault(f"{stem}-0000{1 + number % 2}-of-00002.safetensors", {})[name] = array
    write_shards(tmp_path, shards)
    (tmp_path / "model.safetensors.index.json").rename(tmp_path / f"{stem}.safetensors.index.json")
    (tmp_path / ASCEND).write_text(json.dumps(made.files[ASCEND]))
    (tmp_path / "config.json").write_text(json.dumps(made.config | {"quantize": "w8a8_dynamic"}))
    config = read_config(tmp_path)
    checked(tmp_path, config)
    with opened(tmp_path, config) as folder:
        assert folder.quantised == "AscendV1 (int8, a scale for each output)"
        np.testing.assert_array_equal(folder.floats(f"{MATRIX}.weight"), made.floats[f"{MATRIX}.weight"])


def test_an_older_folder_of_msmodelslim_has_settings_for_mindie(tmp_path: Path) -> None:
    made = sample("ascend_dynamic", LLAMA)
    own = {"group_size": 0, "kv_quant_type": None, "fa_quant_type": None}
    config = made.config | {"quantize": "w8a8_dynamic", "quantization_config": own}
    checked(made.write(tmp_path), config)
    with opened(tmp_path, config) as folder:
        np.testing.assert_array_equal(folder.floats(f"{MATRIX}.weight"), made.floats[f"{MATRIX}.weight"])


def test_a_folder_of_golden_stick_is_refused_by_its_name(tmp_path: Path) -> None:
    made = sample("ascend_dynamic", LLAMA)
    (made.write(tmp_path) / "quant_model_description.json").rename(tmp_path / "quantization_description.json")
    with pytest.raises(
        CheckpointError, match="is of MindSpore Golden Stick, whose scales of inputs are not read"
    ):
        opened(tmp_path, made.config)


def test_modules_of_gptq_may_have_settings_of_their_own(tmp_path: Path) -> None:
    dynamic = {r"-:.*lm_head": {}, r"+:.*\.down_proj": {"bits": 8, "group_size": 8}}
    made, other = sample("gptq", LLAMA), gptq(8, 8)
    generator = np.random.default_rng(5)
    for name in [name for name in made.floats if "down_proj" in name]:
        stem, shape = name.removesuffix(".weight"), made.floats[name].shape
        quantised = other.draw(generator, *shape)
        made.floats[name] = quantised.floats.astype(np.float32)
        made.tensors.update({f"{stem}.{end}": array for end, array in quantised.tensors.items()})
    made.config["quantization_config"] = made.config["quantization_config"] | {"dynamic": dynamic}
    checked(made.write(tmp_path), made.config)
    with opened(tmp_path, made.config) as folder:
        assert folder.quantised == "GPTQ, 4 bits, groups of 16 and GPTQ, 8 bits, groups of 8"
        for name, floats in made.floats.items():
            np.testing.assert_array_equal(folder.floats(name), floats)
