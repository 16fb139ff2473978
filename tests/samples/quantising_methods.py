"""Matrices as GPTQ, AWQ, AutoRound, bitsandbytes and msModelSlim store them."""

import json

import numpy as np

from quantised_matrices import Draw, Method, Quantised, scales_of, words

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


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


def auto_round(packing: str, checkpoint_format: str) -> Method:
    """AutoRound, packed as GPTQ."""
    settings = {"quant_method": "auto-round", "bits": 4, "group_size": 16, "sym": False, "data_type": "int"}
    own = {"packing_format": packing, "extra_config": {"lm_head": {"bits": 16}}}
    return Method(settings | own, gptq(checkpoint_format=checkpoint_format).draw)


NF4 = [
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
