"""Matrices as llm-compressor and ModelOpt store them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from quantised_matrices import Draw, Method, Quantised, fp8, nvfp4, scales_of, words


def compressed_settings(form: str, activations: Mapping[str, Any] | None, **weights: Any) -> dict[str, Any]:
    """As llm-compressor writes them."""
    scheme = {"targets": ["Linear"], "input_activations": activations, "output_activations": None}
    arguments = {"type": "int", "symmetric": True, "dynamic": False, "actorder": None, "observer": "minmax"}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "quantization_status": "compressed",
        "config_groups": {"group_0": scheme | {"weights": arguments | weights}},
    }


def compressed_int8() -> Method:
    """W8A8: weights in int8 by channel, activations rounded for each token as they come."""

    def draw(chance: np.random.Generator, outputs: int, inputs: int) -> Quantised:
        numbers = chance.integers(-128, 128, (outputs, inputs)).astype(np.int8)
        scales = scales_of(chance, outputs, 1)
        return Quantised({"weight": numbers, "weight_scale": scales}, numbers * scales.astype(np.float32))

    activations = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
    settings = compressed_settings(
        "int-quantized", activations, num_bits=8, strategy="channel", group_size=None
    )
    return Method(settings, draw)


def asymmetric_int8() -> Method:
    """W8A8 with zeros."""

    def draw(chance: np.random.Generator, outputs: int, inputs: int) -> Quantised:
        numbers, zeros = chance.integers(-128, 128, (outputs, inputs)), chance.integers(-9, 9, (outputs, 1))
        scales = scales_of(chance, outputs, 1)
        tensors = {
            "weight": numbers.astype(np.int8),
            "weight_scale": scales,
            "weight_zero_point": zeros.astype(np.int8),
        }
        return Quantised(tensors, (numbers - zeros) * scales.astype(np.float32))

    weights = {"num_bits": 8, "strategy": "channel", "symmetric": False}
    return Method(compressed_settings("int-quantized", None, **weights), draw)


def compressed_packed(
    bits: int = 4, group_size: int = 16, *, symmetric: bool = True, actorder: str | None = None
) -> Method:
    """W4A16, or W8A16."""

    def draw(chance: np.random.Generator, outputs: int, inputs: int) -> Quantised:
        groups, half = inputs // group_size, 1 << (bits - 1)
        numbers = chance.integers(-half, half, (outputs, inputs))
        scales, index = scales_of(chance, outputs, groups), np.arange(inputs) // group_size
        zeros = np.zeros((outputs, groups), np.int64)
        tensors = {
            "weight_packed": words(numbers + half, bits),
            "weight_scale": scales,
            "weight_shape": np.array([outputs, inputs], np.int64),
        }
        if not symmetric:
            zeros = chance.integers(-half, half, (outputs, groups))
            tensors["weight_zero_point"] = np.ascontiguousarray(words((zeros + half).T, bits).T)
        if actorder == "group":
            index = chance.permutation(index)
            tensors["weight_g_idx"] = index.astype(np.int32)
        return Quantised(tensors, (numbers - zeros[:, index]) * scales.astype(np.float32)[:, index])

    arguments = {"num_bits": bits, "strategy": "group", "group_size": group_size, "symmetric": symmetric}
    return Method(compressed_settings("pack-quantized", None, **arguments, actorder=actorder), draw)


def compressed_fp8(block: tuple[int | None, int | None], **weights: Any) -> Method:
    """FP8 as llm-compressor writes it, activations rounded as they come."""
    activations = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "token", "dynamic": True}
    settings = compressed_settings("float-quantized", activations, num_bits=8, **weights | {"type": "float"})
    return fp8(settings, "weight_scale", block, is_flat=weights["strategy"] == "tensor")


def compressed_floats(form: str, draw: Draw, bits: int, group_size: int) -> Method:
    """The forms of floats in groups."""
    strategy = "tensor_group" if form.startswith("nv") else "group"
    settings = compressed_settings(form, None, num_bits=bits, type="float", strategy=strategy)
    settings["config_groups"]["group_0"]["weights"]["group_size"] = group_size
    return Method(settings, draw)


def compressed_mixed() -> Method:
    """NVFP4 experts or MLPs, FP8 by output elsewhere: by expressions, as llm-compressor writes them."""
    of_fp8 = compressed_fp8((1, None), strategy="channel")
    settings = of_fp8.settings | {"format": "mixed-precision"}
    weights = {
        "num_bits": 4,
        "type": "float",
        "strategy": "tensor_group",
        "group_size": 16,
        "symmetric": True,
    }
    own = settings["config_groups"]["group_0"] | {"format": "float-quantized"}
    other = own | {"format": "nvfp4-pack-quantized", "targets": ["re:.*mlp.*"], "weights": weights}
    settings["config_groups"] = {"group_0": own, "group_1": other}
    return Method(
        settings, of_fp8.draw, {".mlp.": nvfp4("weight_packed", "weight_global_scale", is_divisor=True)}
    )


def modelopt_mixed() -> Method:
    """FP8 attention with one scale, NVFP4 elsewhere; each layer is listed in a file beside config.json."""
    of_fp8 = fp8({}, "weight_scale", (None, None), is_flat=True).draw
    names = {"self_attn": "FP8", "mlp": "NVFP4"}
    layers = {
        f"model.layers.{layer}.{name}": {"quant_algo": algorithm}
        | ({"group_size": 16} if name == "mlp" else {})
        for layer in range(2)
        for name, algorithm in names.items()
    }
    content = {
        "producer": {"name": "modelopt", "version": "0.39.0"},
        "quantization": {
            "quant_algo": "MIXED_PRECISION",
            "kv_cache_quant_algo": "FP8",
            "quantized_layers": layers,
        },
    }
    return Method(
        {}, nvfp4("weight", "weight_scale_2", is_scalar=True), {"self_attn": of_fp8}, modelopt=content
    )


def modelopt_blocks() -> Method:
    """FP8 in blocks of 128 x 128, whose scales have four dimensions."""
    plain = fp8({}, "weight_scale", (128, 128)).draw

    def draw(chance: np.random.Generator, outputs: int, inputs: int) -> Quantised:
        tensors, floats = plain(chance, outputs, inputs)
        scales = tensors["weight_scale"]
        return Quantised(tensors | {"weight_scale": scales[:, None, :, None]}, floats)

    return Method({"quant_method": "modelopt", "quant_algo": "fp8_pb_wo"}, draw)
