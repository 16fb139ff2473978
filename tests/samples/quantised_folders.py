"""Model folders with quantised matrices, written word by word as the tools for it describe them."""

import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors_writer import write_folder

from reshard_models import tensors_of

Array = NDArray[Any]
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


class Quantised(NamedTuple):
    """The tensors of a matrix by the ends of their names, and what it is in float32."""

    tensors: dict[str, Array]
    floats: NDArray[np.float32]


Draw = Callable[[np.random.Generator, int, int], Quantised]
"""Gives a random matrix of some outputs and inputs."""


class Method(NamedTuple):
    """A way of storing.

    settings: those of quantization_config; none where a file beside config.json says it.
    draws_by_name: other ways, of matrices whose names hold these words.
    ascend_type: what msModelSlim calls it; None for other tools.
    modelopt: the content of hf_quant_config.json.
    """

    settings: dict[str, Any]
    draw: Draw
    draws_by_name: Mapping[str, Draw] = MappingProxyType({})
    ascend_type: str | None = None
    modelopt: dict[str, Any] | None = None


def words(numbers: Array, bits: int, order: tuple[int, ...] | None = None) -> NDArray[np.int32]:
    """[n, m] of unsigned numbers, neighbours of a row in one word, padded with zeros at the end."""
    many = 32 // bits
    padded = np.pad(numbers, ((0, 0), (0, -numbers.shape[1] % many))).astype(np.uint32)
    found = np.zeros((len(padded), padded.shape[1] // many), np.uint32)
    for place, number in enumerate(order or range(many)):
        found |= padded[:, number::many] << np.uint32(bits * place)
    return found.view(np.int32)


def scales_of(chance: np.random.Generator, *shape: int) -> NDArray[np.float16]:
    """Random scales."""
    return chance.uniform(0.001, 0.02, shape).astype(np.float16)


def gptq(
    bits: int = 4, group_size: int = 16, *, has_order: bool = False, checkpoint_format: str = "gptq"
) -> Method:
    """GPTQ, with every zero that there is."""

    def draw(chance: np.random.Generator, outputs: int, inputs: int) -> Quantised:
        size = inputs if group_size == -1 else group_size
        groups = -(-inputs // size)
        numbers = chance.integers(0, 1 << bits, (outputs, inputs))
        zeros = chance.integers(0, 1 << bits, (groups, outputs))
        scales, index = scales_of(chance, groups, outputs), np.arange(inputs) // size
        if has_order:
            index = chance.permutation(index)
        less = (zeros - 1) % (1 << bits) if checkpoint_format == "gptq" else zeros
        tensors = {
            "qweight": np.ascontiguousarray(words(numbers, bits).T),
            "qzeros": words(less, bits),
            "scales": scales,
            "g_idx": index.astype(np.int32),
        }
        return Quantised(tensors, (numbers - zeros[index].T) * scales.astype(np.float32)[index].T)

    settings = {"quant_method": "gptq", "bits": bits, "group_size": group_size, "desc_act": has_order}
    return Method(settings | {"sym": False, "checkpoint_format": checkpoint_format}, draw)


def awq(group_size: int = 16) -> Method:
    """AWQ, version gemm."""

    def draw(chance: np.random.Generator, outputs: int, inputs: int) -> Quantised:
        groups = inputs // group_size
        numbers = chance.integers(0, 16, (inputs, outputs))
        zeros, scales = chance.integers(0, 16, (groups, outputs)), scales_of(chance, groups, outputs)
        tensors = {
            "qweight": words(numbers, 4, AWQ_ORDER),
            "qzeros": words(zeros, 4, AWQ_ORDER),
            "scales": scales,
        }
        wide = [np.repeat(each, group_size, axis=0) for each in (zeros, scales.astype(np.float32))]
        return Quantised(tensors, np.ascontiguousarray(((numbers - wide[0]) * wide[1]).T))

    settings = {"quant_method": "awq", "bits": 4, "group_size": group_size, "zero_point": True}
    return Method(settings | {"version": "gemm", "modules_to_not_convert": None}, draw)


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


def e4m3(code: int) -> float:
    """Sign, four bits of exponent with a bias of 7, three of mantissa."""
    sign, exponent, mantissa = code >> 7, code >> 3 & 15, code & 7
    size = mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return -size if sign else size


E4M3 = np.array([e4m3(code) for code in range(256)], np.float32)


def fp8(
    settings: dict[str, Any], end: str, block: tuple[int | None, int | None], *, is_flat: bool = False
) -> Method:
    """FP8 with a scale for each block; None: as many outputs or inputs as there are."""

    def draw(chance: np.random.Generator, outputs: int, inputs: int) -> Quantised:
        rows, columns = block[0] or outputs, block[1] or inputs
        codes = chance.integers(0, 0x7F, (outputs, inputs)) | chance.integers(0, 2, (outputs, inputs)) << 7
        scales = chance.uniform(0.0001, 0.001, (-(-outputs // rows), -(-inputs // columns))).astype(
            np.float32
        )
        wide = np.repeat(np.repeat(scales, rows, 0), columns, 1)[:outputs, :inputs]
        numbers = E4M3[codes]
        tensors = {
            "weight": codes.astype(np.uint8).view("V1"),
            end: scales.reshape(-1) if is_flat else scales,
        }
        return Quantised(tensors, numbers * wide)

    return Method(settings, draw)


FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}


def compressed_fp8(block: tuple[int | None, int | None], **weights: Any) -> Method:
    """FP8 as llm-compressor writes it, activations rounded as they come."""
    activations = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "token", "dynamic": True}
    settings = compressed_settings("float-quantized", activations, num_bits=8, **weights | {"type": "float"})
    return fp8(settings, "weight_scale", block, is_flat=weights["strategy"] == "tensor")


def exponents(chance: np.random.Generator, *shape: int) -> Array:
    """Random powers of two as bytes."""
    return chance.integers(110, 122, shape).astype(np.uint8)


def powers(exponents: Array) -> NDArray[np.float32]:
    return (2.0 ** (exponents.astype(np.float64) - 127)).astype(np.float32)


def e2m1(code: int) -> float:
    """Sign, two bits of exponent with a bias of 1, one of mantissa."""
    sign, exponent, mantissa = code >> 3, code >> 1 & 3, code & 1
    size = mantissa / 2 if exponent == 0 else (1 + mantissa / 2) * 2 ** (exponent - 1)
    return -size if sign else size


E2M1 = np.array([e2m1(code) for code in range(16)], np.float32)


def fp4_codes(chance: np.random.Generator, outputs: int, inputs: int) -> tuple[Array, NDArray[np.float32]]:
    """Bytes of two codes, the first in the lower bits, and their numbers."""
    codes = chance.integers(0, 16, (outputs, inputs))
    return (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8), E2M1[codes]


def nvfp4(main: str, of_matrix: str, *, is_divisor: bool = False, is_scalar: bool = False) -> Draw:
    """NVFP4: scales of E4M3 for 16 inputs, and one for the matrix."""

    def draw(chance: np.random.Generator, outputs: int, inputs: int) -> Quantised:
        pairs, numbers = fp4_codes(chance, outputs, inputs)
        scale_codes = chance.integers(1, 0x7F, (outputs, inputs // 16))
        scales = E4M3[scale_codes]
        of_all = np.float32(357.25 if is_divisor else 0.00021)
        wide = np.repeat(scales / of_all if is_divisor else scales * of_all, 16, axis=1)
        tensors = {
            main: pairs,
            "weight_scale": scale_codes.astype(np.uint8).view("V1"),
            of_matrix: np.array(of_all) if is_scalar else np.array([of_all]),
            "input_scale": np.array([0.5], np.float32),
        }
        return Quantised(tensors, numbers * wide)

    return draw


def mx(main: str, *, bits: int, end: str = "weight_scale") -> Draw:
    """MXFP4 or MXFP8: an exponent for 32 inputs, or for fewer at the end."""

    def draw(chance: np.random.Generator, outputs: int, inputs: int) -> Quantised:
        stored = exponents(chance, outputs, -(-inputs // 32))
        wide = np.repeat(powers(stored), 32, axis=1)[:, :inputs]
        if bits == 4:
            pairs, numbers = fp4_codes(chance, outputs, inputs)
            return Quantised({main: pairs, end: stored}, numbers * wide)
        codes = chance.integers(0, 0x7F, (outputs, inputs))
        tensors = {main: codes.astype(np.uint8).view("V1"), end: stored}
        return Quantised(tensors, E4M3[codes] * wide)

    return draw


def compressed_floats(form: str, draw: Draw, bits: int, group_size: int) -> Method:
    """The forms of floats in groups."""
    strategy = "tensor_group" if form.startswith("nv") else "group"
    settings = compressed_settings(form, None, num_bits=bits, type="float", strategy=strategy)
    settings["config_groups"]["group_0"]["weights"]["group_size"] = group_size
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


def auto_round(packing: str, checkpoint_format: str) -> Method:
    """AutoRound, packed as GPTQ."""
    settings = {"quant_method": "auto-round", "bits": 4, "group_size": 16, "sym": False, "data_type": "int"}
    own = {"packing_format": packing, "extra_config": {"lm_head": {"bits": 16}}}
    return Method(settings | own, gptq(checkpoint_format=checkpoint_format).draw)


NF4 = [
    # fmt: off
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
    # fmt: on
]


def nf4(*, is_nested: bool, block_size: int = 64) -> Method:
    """bitsandbytes' NF4; blocks go on from one output to the next."""

    def draw(chance: np.random.Generator, outputs: int, inputs: int) -> Quantised:
        codes, blocks = chance.integers(0, 16, outputs * inputs), -(-outputs * inputs // block_size)
        state = {
            "quant_type": "nf4",
            "blocksize": block_size,
            "dtype": "bfloat16",
            "shape": [outputs, inputs],
        }
        tensors = {
            "weight": (codes[::2] << 4 | codes[1::2]).astype(np.uint8)[:, None],
            "weight.quant_map": np.array(NF4, np.float32),
        }
        scales = chance.uniform(0.01, 0.1, blocks).astype(np.float32)
        tensors["weight.absmax"] = scales
        if is_nested:
            table = np.linspace(-1, 1, 256).astype(np.float32)
            of_scales, of_blocks = chance.integers(0, 256, blocks), scales_of(chance, -(-blocks // 16))
            tensors["weight.absmax"] = of_scales.astype(np.uint8)
            tensors["weight.nested_absmax"] = of_blocks.astype(np.float32)
            tensors["weight.nested_quant_map"] = table
            state |= {"nested_blocksize": 16, "nested_dtype": "float32", "nested_offset": 0.05}
            wide = np.repeat(of_blocks.astype(np.float32), 16)[:blocks]
            scales = table[of_scales] * wide + np.float32(0.05)
        text = np.frombuffer(json.dumps(state).encode(), np.uint8)
        tensors["weight.quant_state.bitsandbytes__nf4"] = text
        numbers = np.array(NF4, np.float32)[codes] * np.repeat(scales, block_size)[: len(codes)]
        return Quantised(tensors, numbers.reshape(outputs, inputs))

    settings = {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False}
    return Method(settings | {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": is_nested}, draw)


def llm_int8() -> Method:
    """bitsandbytes' int8."""

    def draw(chance: np.random.Generator, outputs: int, inputs: int) -> Quantised:
        numbers = chance.integers(-127, 128, (outputs, inputs)).astype(np.int8)
        largest = chance.uniform(0.1, 2, outputs).astype(np.float32)
        tensors = {"weight": numbers, "SCB": largest, "weight_format": np.array(0, np.uint8)}
        return Quantised(tensors, numbers * (largest / np.float32(127))[:, None])

    return Method({"quant_method": "bitsandbytes", "load_in_8bit": True, "load_in_4bit": False}, draw)


def ascend_int8(chance: np.random.Generator, outputs: int, inputs: int) -> Quantised:
    """W8A8_DYNAMIC."""
    numbers = chance.integers(-128, 128, (outputs, inputs)).astype(np.int8)
    scales = chance.uniform(0.001, 0.02, (outputs, 1)).astype(np.float32)
    tensors = {"weight": numbers, "weight_scale": scales, "weight_offset": np.zeros((outputs, 1), np.float32)}
    return Quantised(tensors, numbers * scales)


def ascend_static(*, is_old: bool) -> Draw:
    """W8A8; as of old, with the scales of weights, and deq_scale of a float16 model."""

    def draw(chance: np.random.Generator, outputs: int, inputs: int) -> Quantised:
        numbers = chance.integers(-128, 128, (outputs, inputs)).astype(np.int8)
        scales = (2.0 ** chance.integers(-9, -5, outputs)).astype(np.float32)
        of_inputs, offset = np.array([0.03125], np.float32), np.array([5], np.float32)
        steps = scales * of_inputs
        tensors = {
            "weight": numbers,
            "input_scale": of_inputs,
            "input_offset": offset,
            "quant_bias": -5 * numbers.sum(axis=1, dtype=np.int32),
            "deq_scale": steps.view(np.int32).astype(np.int64) if is_old else steps,
        }
        if is_old:
            tensors["weight_scale"] = scales[:, None]
            tensors["weight_offset"] = np.zeros((outputs, 1), np.float32)
        return Quantised(tensors, numbers * scales[:, None])

    return draw


def ascend_grouped(chance: np.random.Generator, outputs: int, inputs: int) -> Quantised:
    """W8A16 in groups of 16, with offsets."""
    numbers = chance.integers(-128, 128, (outputs, inputs)).astype(np.int8)
    scales = chance.uniform(0.001, 0.02, (outputs, inputs // 16)).astype(np.float32)
    offsets = chance.integers(-9, 9, scales.shape).astype(np.float32)
    floats = (numbers - np.repeat(offsets, 16, 1)) * np.repeat(scales, 16, 1)
    return Quantised({"weight": numbers, "weight_scale": scales, "weight_offset": offsets}, floats)


def ascend_int4(chance: np.random.Generator, outputs: int, inputs: int) -> Quantised:
    """W4A8_DYNAMIC of version 1.0.0, in groups of 16."""
    numbers = chance.integers(-8, 8, (outputs, inputs)).astype(np.int8)
    scales = chance.uniform(0.5, 2, (outputs, 1)).astype(np.float32)
    of_groups = chance.uniform(0.01, 0.1, (outputs, inputs // 16)).astype(np.float32)
    tensors = {
        "weight": numbers[::2] & 15 | numbers[1::2] << 4,
        "weight_scale": scales,
        "weight_offset": np.zeros_like(scales),
        "weight_scale_second": of_groups,
        "weight_offset_second": np.zeros(of_groups.shape, np.int64),
        "scale_bias": np.ones((outputs, 1), np.float32),
    }
    return Quantised(tensors, numbers * np.repeat(scales * of_groups, 16, 1))


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


ASCEND_NAME = "quant_model_description.json"


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
