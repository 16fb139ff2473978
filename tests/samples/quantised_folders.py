"""Model folders with quantised matrices, written word by word as the tools for it describe them."""

from collections.abc import Callable, Mapping
from pathlib import Path
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


class Method(NamedTuple):
    """A way of storing: its settings in config.json, and a random matrix in it."""

    settings: dict[str, Any]
    draw: Callable[[np.random.Generator, int, int], Quantised]


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
        numbers = np.vectorize(e4m3)(codes).astype(np.float32)
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


METHODS = {
    "fp8": fp8(FP8 | {"weight_block_size": [16, 32]}, "weight_scale_inv", (16, 32)),
    "fp8_channel": compressed_fp8((1, None), strategy="channel"),
    "fp8_tensor": compressed_fp8((None, None), strategy="tensor"),
    "fp8_block": compressed_fp8((32, 16), strategy="block", block_structure=[32, 16]),
    "int8": compressed_int8(),
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
    """A model's config.json, its tensors as they are stored, and as floats."""

    config: dict[str, Any]
    tensors: dict[str, Array]
    floats: dict[str, NDArray[np.float32]]

    def write(self, folder: Path) -> Path:
        """The quantised folder."""
        return write_folder(folder, self.tensors, self.config)

    def write_floats(self, folder: Path) -> Path:
        """The folder of the same model in float32."""
        config = {key: value for key, value in self.config.items() if key != "quantization_config"}
        return write_folder(folder, self.floats, config)


def sample(method: str, config: Mapping[str, Any]) -> Sample:
    """A random model of the Llama family whose linear layers are quantised."""
    chance, kind = np.random.default_rng(7), METHODS[method]
    tensors: dict[str, Array] = {}
    floats = tensors_of(config)
    for name, array in floats.items():
        if not name.endswith("_proj.weight"):
            floats[name] = tensors[name] = array / np.float32(8)
            continue
        found = kind.draw(chance, *array.shape)
        floats[name] = found.floats.astype(np.float32)
        tensors |= {f"{name.removesuffix('.weight')}.{end}": each for end, each in found.tensors.items()}
    return Sample(dict(config) | {"quantization_config": kind.settings}, tensors, floats)
