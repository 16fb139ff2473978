"""Model folders with quantised matrices, written word by word as the tools for it describe them."""

import json
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors_writer import write_folder

from quantised_matrices import Array, Method, fp8, mx, nvfp4
from quantising_methods import (
    ascend_grouped,
    ascend_int4,
    ascend_int8,
    ascend_static,
    auto_round,
    awq,
    gptq,
    llm_int8,
    nf4,
)
from quantising_toolkits import (
    asymmetric_int8,
    compressed_floats,
    compressed_fp8,
    compressed_int8,
    compressed_mixed,
    compressed_packed,
    modelopt_blocks,
    modelopt_mixed,
)
from reshard_models import tensors_of

ASCEND_NAME = "quant_model_description.json"
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
STATIC_FP8 = {"quant_method": "fp8", "activation_scheme": "static"}
METHODS = {
    "fp8": fp8(FP8 | {"weight_block_size": [16, 32]}, "weight_scale_inv", (16, 32)),
    "fp8_channel": compressed_fp8((1, None), strategy="channel"),
    "fp8_tensor": compressed_fp8((None, None), strategy="tensor"),
    "fp8_block": compressed_fp8((32, 16), strategy="block", block_structure=[32, 16]),
    "fp8_static": fp8(STATIC_FP8, "weight_scale", (None, None), is_flat=True),
    "fbgemm": fp8({"quant_method": "fbgemm_fp8"}, "weight_scale", (1, None)),
    "mxfp8": Method({"quant_method": "mxfp8"}, mx("weight", bits=8, end="weight_scale_inv")),
    "modelopt_nvfp4": Method(
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16},
        nvfp4("weight", "weight_scale_2"),
    ),
    "modelopt_mixed": modelopt_mixed(),
    "nvfp4": compressed_floats(
        "nvfp4-pack-quantized", nvfp4("weight_packed", "weight_global_scale", is_divisor=True), 4, 16
    ),
    "compressed_mxfp8": compressed_floats("mxfp8-quantized", mx("weight", bits=8), 8, 32),
    "compressed_mixed": compressed_mixed(),
    "nf4": nf4(is_nested=False),
    "nf4_nested": nf4(is_nested=True),
    "llm_int8": llm_int8(),
    "modelopt_blocks": modelopt_blocks(),
    "auto_round": auto_round("auto_round:gptqmodel", "gptq_v2"),
    "auto_round_gptq": auto_round("auto_round:auto_gptq", "gptq"),
    "ascend_mxfp8": Method({}, mx("weight", bits=8), ascend_type="W8A8_MXFP8"),
    "ascend_dynamic": Method({}, ascend_int8, ascend_type="W8A8_DYNAMIC"),
    "ascend_static": Method({}, ascend_static(is_old=False), ascend_type="W8A8"),
    "ascend_mix": Method({}, ascend_static(is_old=True), ascend_type="W8A8_MIX"),
    "ascend_grouped": Method({}, ascend_grouped, ascend_type="W8A16"),
    "ascend_int4": Method({}, ascend_int4, ascend_type="W4A8_DYNAMIC"),
    "int8": compressed_int8(),
    "int8_zeros": asymmetric_int8(),
    "packed": compressed_packed(),
    "packed8": compressed_packed(8),
    "packed_zeros": compressed_packed(symmetric=False),
    "packed_order": compressed_packed(actorder="group"),
    "gptq": gptq(),
    "gptq8": gptq(8),
    "gptq_whole": gptq(group_size=-1),
    "gptq_order": gptq(has_order=True),
    "gptq_v2": gptq(checkpoint_format="gptq_v2"),
    "awq": awq(),
}


class Sample(NamedTuple):
    """A model's config.json, its tensors as they are stored, and as floats.

    files: JSON files beside config.json, by name.
    """

    config: dict[str, Any]
    tensors: dict[str, Array]
    floats: dict[str, NDArray[np.float32]]
    files: dict[str, Any] = {}

    def write(self, folder: Path) -> Path:
        """The quantised folder."""
        write_folder(folder, self.tensors, self.config)
        for name, content in self.files.items():
            (folder / name).write_text(json.dumps(content))
        if ASCEND_NAME in self.files:
            (folder / "model.safetensors").rename(folder / "quant_model_weight_w8a8.safetensors")
        return folder

    def write_floats(self, folder: Path) -> Path:
        """The folder of the same model in float32."""
        config = {key: value for key, value in self.config.items() if key != "quantization_config"}
        return write_folder(folder, self.floats, config)


def sample(method: str, config: Mapping[str, Any]) -> Sample:
    """A random model of the Llama family whose linear layers are quantised."""
    chance, kind = np.random.default_rng(7), METHODS[method]
    tensors: dict[str, Array] = {}
    types: dict[str, str] = {}
    floats = tensors_of(config)
    for name, array in floats.items():
        if not name.endswith("_proj.weight"):
            floats[name] = tensors[name] = array / np.float32(8)
            types[name] = "FLOAT"
            continue
        draw = next((draw for word, draw in kind.draws_by_name.items() if word in name), kind.draw)
        quantised = draw(chance, *array.shape)
        floats[name] = quantised.floats.astype(np.float32)
        own = {f"{name.removesuffix('.weight')}.{end}": part for end, part in quantised.tensors.items()}
        tensors |= own
        types |= dict.fromkeys(own, str(kind.ascend_type))
    config = dict(config) | ({"quantization_config": kind.settings} if kind.settings else {})
    files: dict[str, Any] = {}
    if kind.ascend_type is not None:
        about = {"version": "1.0.0", "model_quant_type": kind.ascend_type, "metadata": {}, "optional": {}}
        files[ASCEND_NAME] = about | {"group_size": 16 if kind.ascend_type[1] == "4" else 0} | types
        if method == "ascend_grouped":
            files[ASCEND_NAME]["group_size"] = 16
    if kind.modelopt is not None:
        files["hf_quant_config.json"] = deepcopy(kind.modelopt)
    return Sample(config, tensors, floats, files)
