"""Writes tests/unit/checkpoint/quantised/written/: matrices that tools have quantised themselves, and undone.

Run with a Python that has torch, safetensors, compressed-tensors 0.20, bitsandbytes 0.50 and nvidia-modelopt
0.47; the tests do not need them. A folder for each form has config.json, the tensors of a matrix `m`, and in
floats.safetensors what its tool makes of them.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from bitsandbytes import functional
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from modelopt.torch.quantization.qtensor import FP8QTensor, NVFP4QTensor
from safetensors.torch import save_file

HOME = Path(__file__).parents[1] / "unit/checkpoint/quantised/written"
OUTPUTS, INPUTS = 32, 64
FLOAT4 = {"num_bits": 4, "type": "float", "symmetric": True}
FLOAT8, INT8 = FLOAT4 | {"num_bits": 8}, {"num_bits": 8, "type": "int", "symmetric": True}
COMPRESSED: dict[str, tuple[str, dict[str, Any]]] = {
    "nvfp4": (
        "nvfp4-pack-quantized",
        FLOAT4 | {"strategy": "tensor_group", "group_size": 16, "scale_dtype": torch.float8_e4m3fn},
    ),
    "mxfp4": (
        "mxfp4-pack-quantized",
        FLOAT4 | {"strategy": "group", "group_size": 32, "scale_dtype": torch.uint8},
    ),
    "mxfp8": (
        "mxfp8-quantized",
        FLOAT8 | {"strategy": "group", "group_size": 32, "scale_dtype": torch.uint8},
    ),
    "fp8_channel": ("float-quantized", FLOAT8 | {"strategy": "channel"}),
    "fp8_tensor": ("float-quantized", FLOAT8 | {"strategy": "tensor"}),
    "fp8_block": ("float-quantized", FLOAT8 | {"strategy": "block", "block_structure": [16, 32]}),
    "int8": ("int-quantized", INT8 | {"strategy": "channel"}),
    "int8_zeros": ("int-quantized", INT8 | {"strategy": "channel", "symmetric": False}),
    "int8_group": ("int-quantized", INT8 | {"strategy": "group", "group_size": 32}),
    "packed": (
        "pack-quantized",
        INT8 | {"num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": False},
    ),
}


def save(name: str, tensors: dict[str, torch.Tensor], settings: dict[str, Any], floats: torch.Tensor) -> None:
    """A folder with the matrix."""
    folder = HOME / name
    folder.mkdir(parents=True)
    own = {f"m.{end}": tensor.contiguous() for end, tensor in tensors.items()}
    save_file(own, folder / "model.safetensors")
    save_file({"floats": floats.contiguous()}, folder / "floats.safetensors")
    content = {"model_type": "llama", "quantization_config": settings}
    (folder / "config.json").write_text(json.dumps(content, indent=1) + "\n")


def bounds(weight: torch.Tensor, weights: QuantizationArgs) -> tuple[torch.Tensor, torch.Tensor]:
    """The least and the largest number of what has a scale together."""
    if weights.strategy in ("group", "tensor_group"):
        groups = weight.reshape(OUTPUTS, -1, weights.group_size)
        return groups.amin(-1), groups.amax(-1)
    if weights.strategy == "block":
        rows, columns = weights.block_structure
        blocks = weight.reshape(OUTPUTS // rows, rows, INPUTS // columns, columns)
        return blocks.amin((1, 3)), blocks.amax((1, 3))
    if weights.strategy == "channel":
        return weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
    return weight.amin().reshape(1), weight.amax().reshape(1)


def compress(weight: torch.Tensor, name: str) -> None:
    """A form of compressed-tensors."""
    form, arguments = COMPRESSED[name]
    weights = QuantizationArgs(**arguments)
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)
    state = {"weight": weight.clone()}
    of_all = None
    if weights.strategy == "tensor_group":
        of_all = state["weight_global_scale"] = generate_gparam(weight.amin(), weight.amax()).reshape(1)
    state["weight_scale"], zeros = calculate_qparams(*bounds(weight, weights), weights, global_scale=of_all)
    if not weights.symmetric:
        state["weight_zero_point"] = zeros
    compressor = BaseCompressor.get_value_from_registry(form)
    tensors = compressor.compress(state, scheme)
    floats = compressor.decompress({end: tensor.clone() for end, tensor in tensors.items()}, scheme)["weight"]
    group = json.loads(scheme.model_dump_json()) | {"format": form}
    settings = {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}}
    save(name, tensors, settings, floats)


def quantise_by_bitsandbytes(weight: torch.Tensor) -> None:
    """NF4 and FP4, with scales that are quantised and with plain ones; and int8."""
    for kind in ("nf4", "fp4"):
        for is_nested in (False, True):
            codes, state = functional.quantize_4bit(
                weight.to(torch.bfloat16), blocksize=64, quant_type=kind, compress_statistics=is_nested
            )
            parts = {f"weight.{end}": part for end, part in state.as_dict(packed=True).items()}
            settings = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": kind}
            floats = functional.dequantize_4bit(codes, state)
            save(f"bitsandbytes_{kind}{'_nested' * is_nested}", {"weight": codes, **parts}, settings, floats)
    numbers, largest, _ = functional.int8_vectorwise_quant(weight.half())
    tensors = {"weight": numbers, "SCB": largest, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    floats = functional.int8_vectorwise_dequant(numbers, largest)
    save("bitsandbytes_int8", tensors, {"quant_method": "bitsandbytes", "load_in_8bit": True}, floats)


def quantise_by_modelopt(weight: torch.Tensor) -> None:
    """NVFP4 and FP8."""
    packed, scales, of_all = NVFP4QTensor.quantize(weight, 16)
    floats = packed.dequantize(torch.float32, scale=scales, double_scale=of_all, block_sizes={-1: 16})
    tensors = {"weight": packed._quantized_data, "weight_scale": scales, "weight_scale_2": of_all}
    save("modelopt_nvfp4", tensors, {"quant_method": "modelopt", "quant_algo": "NVFP4"}, floats)
    numbers, scale = FP8QTensor.quantize(weight, scales=weight.abs().amax() / 448)
    floats = numbers.dequantize(torch.float32, scale=scale)
    tensors = {"weight": numbers._quantized_data, "weight_scale": scale.reshape(())}
    save("modelopt_fp8", tensors, {"quant_method": "modelopt", "quant_algo": "FP8"}, floats)


def main() -> None:
    shutil.rmtree(HOME, ignore_errors=True)
    torch.manual_seed(0)
    weight = torch.randn(OUTPUTS, INPUTS)
    for name in COMPRESSED:
        compress(weight, name)
    quantise_by_bitsandbytes(weight)
    quantise_by_modelopt(weight)


if __name__ == "__main__":
    main()
