"""Matrices that stay as codes: what a rank packs, and products to the bits of their declaration."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from adapter_models import GEOMETRY, logits
from safetensors_writer import safetensors_bytes

from mindbatch.backends import native
from mindbatch.backends.loader import kept_as_codes, load_weights
from mindbatch.checkpoint.lora.adapter import open_adapter
from mindbatch.checkpoint.quantised.small_floats import E4M3
from mindbatch.config.model_schema import ModelConfig, RuntimeConfig
from mindbatch.kernels.choice import choose_kernels
from mindbatch.kernels.codes import INT8_BY_OUTPUT, Codes, CodeType, packed_type
from mindbatch.kernels.memory import FLOAT32, INT8
from mindbatch.kernels.native import NativeKernels
from mindbatch.kernels.native_library import NativeLibrary, find_library
from mindbatch.kernels.operations.dense import embedding, linear
from mindbatch.kernels.recording import Recording
from mindbatch.loading.providers import open_model
from mindbatch.loading.setup import prepare
from mindbatch.model_spec.model_spec import ModelSpec
from mindbatch.model_spec.registry import describe
from mindbatch.parallel.topology import WHOLE, RankPart, TensorSlice
from quantised_folders import METHODS, sample
from quantised_matrices import E2M1
from small_configs import LLAMA

pytestmark = pytest.mark.skipif(find_library() is None, reason="the C++ kernels were not built")

Floats = npt.NDArray[np.float32]
LARGER = {**LLAMA, "hidden_size": 256, "intermediate_size": 512}
KINDS = [
    CodeType(numbers, group, has_offsets)
    for numbers in ("int4", "float4", "int8", "float8")
    for group in (16, 32, 64, 128)
    for has_offsets in (False, True)
    if not (numbers == "float8" and has_offsets)
]
NUMBERS = {"int4": range(-8, 8), "float4": [int(2 * number) for number in E2M1], "int8": range(-128, 128)}
FLOAT8 = [code for code in range(256) if code & 0x7F != 0x7F]
OUTPUTS = 70


def library() -> NativeLibrary:
    if (found := find_library()) is None:
        pytest.skip("the C++ kernels were not built")
    return found


def drawn(kind: CodeType, inputs: int, seed: int = 0) -> Codes:
    chance = np.random.default_rng(seed)
    if kind.numbers == "float8":
        numbers = chance.choice(FLOAT8, (OUTPUTS, inputs)).astype(np.uint8).view(np.int8)
    else:
        numbers = chance.choice(NUMBERS[kind.numbers], (OUTPUTS, inputs)).astype(np.int8)
    scales = chance.uniform(1e-3, 1e-2, (OUTPUTS, inputs // (kind.group or inputs))).astype(np.float32)
    offsets = chance.normal(0, 1e-2, scales.shape).astype(np.float32) if kind.has_offsets else None
    return Codes(numbers, scales, offsets)


def packed(kernels: NativeKernels, kind: CodeType, codes: Codes, segments: int) -> npt.NDArray[np.uint8]:
    """In several calls, as the parts of a joined matrix are packed."""
    weight = kernels.coded_zeros(kind, OUTPUTS, codes.numbers.shape[1], segments)
    for first, last in ((0, 5), (5, 37), (37, OUTPUTS)):
        parts = [None if values is None else values[first:last] for values in codes]
        kernels.pack_codes(weight, first, kind, Codes(*parts))  # type: ignore[arg-type]
    return weight


def product(kernels: NativeKernels, weight: npt.NDArray[np.uint8], x: Floats) -> Floats:
    recording = Recording()
    symbol = recording.input((x.shape[1],), np.float32)
    recording.outputs = [linear(symbol, weight, None, outputs=OUTPUTS)]
    [y] = kernels.program(kernels.lowered(recording)).run([x])
    return y


def rows_of(kernels: NativeKernels, weight: npt.NDArray[np.uint8], ids: list[int], width: int) -> Floats:
    recording = Recording()
    symbol = recording.input((), np.int32)
    recording.outputs = [embedding(symbol, weight, width=width)]
    [y] = kernels.program(kernels.lowered(recording)).run([np.array(ids, np.int32)])
    return y


def numbers_of(kind: CodeType, codes: Codes) -> Floats:
    if kind.numbers == "float8":
        return E4M3[codes.numbers.view(np.uint8)]
    return codes.numbers.astype(np.float32)


def floats_of(kind: CodeType, codes: Codes) -> Floats:
    numbers = numbers_of(kind, codes).reshape(*codes.scales.shape, -1)
    floats = numbers * codes.scales[:, :, None]
    if codes.offsets is not None:
        floats = floats + codes.offsets[:, :, None]
    return floats.reshape(len(floats), -1)


def fused(a: Floats, b: Floats, c: Floats) -> Floats:
    """a * b + c, rounded once: the product is exact in float64."""
    return (a.astype(np.float64) * b + c).astype(np.float32)


def by_segments(groups: int, segments: int, added: Callable[[int, Floats], Floats], rows: int) -> Floats:
    """added: (group, sum before it) -> the sum with it."""
    parts = []
    for segment in np.split(np.arange(groups), segments):
        total = np.zeros((rows, OUTPUTS), np.float32)
        for group in segment:
            total = added(group, total)
        parts.append(total)
    while len(parts) > 1:
        parts = [left + right for left, right in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def declared_float8(x: Floats, codes: Codes, segments: int) -> Floats:
    """The product as csrc/linear_float8.h declares it."""
    groups = codes.scales.shape[1]
    bits = x.view(np.uint32)
    rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
    grouped = rounded.reshape(len(x), groups, -1)
    numbers = numbers_of(CodeType("float8"), codes).reshape(OUTPUTS, groups, -1)

    def added(group: int, total: Floats) -> Floats:
        its_x, its_numbers = grouped[:, group], numbers[:, group]
        own = np.zeros_like(total)
        for pair in range(its_x.shape[1] // 2):
            for k in (2 * pair + 1, 2 * pair):
                own = fused(its_x[:, k, None], its_numbers[:, k], own)
        return fused(own, codes.scales[:, group], total)

    return by_segments(groups, segments, added, len(x))


def declared(x: Floats, codes: Codes, segments: int) -> Floats:
    """The product as csrc/linear_codes.h declares it."""
    groups = codes.scales.shape[1]
    grouped = x.reshape(len(x), groups, -1)
    most = np.abs(grouped).max(-1)
    whole = np.rint(grouped * (np.float32(127) / most)[..., None]).astype(np.int64)
    scales = most / np.float32(127)
    numbers = codes.numbers.reshape(OUTPUTS, groups, -1).astype(np.int64)
    exact = np.einsum("rgi,ogi->gro", whole, numbers).astype(np.float32)
    sums = whole.sum(-1).astype(np.float32) * scales

    def added(group: int, total: Floats) -> Floats:
        total = fused(exact[group] * scales[:, group, None], codes.scales[:, group], total)
        if codes.offsets is not None:
            total = fused(sums[:, group, None], codes.offsets[:, group], total)
        return total

    return by_segments(groups, segments, added, len(x))


@pytest.mark.parametrize("variant", ["portable", "neon", "avx2", "avx512", "avx512_vnni", "amx"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_product_has_the_bits_of_its_declaration(kind: CodeType, variant: str) -> None:
    """With every instruction set, for any number of rows; without multiply-adds nearly."""
    used = library()
    best = used.variant.encode()
    if not used.handle.mb_set_variant(variant.encode()):
        pytest.skip("this machine does not have it")
    try:
        kernels = NativeKernels(used, keeps_codes=True)
        for segments in (1, 4):
            inputs = (kind.group or 0) * segments * 3
            codes = drawn(kind, inputs)
            weight = packed(kernels, kind, codes, segments)
            for rows in (1, 2, 3, 4, 9, 17):
                x = np.random.default_rng(rows).normal(size=(rows, inputs)).astype(np.float32)
                of_kind = declared_float8 if kind.numbers == "float8" else declared
                y, expected = product(kernels, weight, x), of_kind(x, codes, segments)
                if variant == "portable":
                    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
                else:
                    np.testing.assert_array_equal(y, expected)
    finally:
        used.handle.mb_set_variant(best)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_rows_of_a_table_are_number_times_scale(kind: CodeType) -> None:
    kernels, codes = NativeKernels(library(), keeps_codes=True), drawn(kind, 3 * 128)
    weight = packed(kernels, kind, codes, 1)
    rows = rows_of(kernels, weight, [0, OUTPUTS - 1, 33, -1, 1 << 20], 3 * 128)
    np.testing.assert_array_equal(rows[:3], floats_of(kind, codes)[[0, OUTPUTS - 1, 33]])
    assert not rows[3:].any()


@pytest.mark.parametrize(
    ("stored", "inputs", "expected"),
    [
        ([CodeType("int4", 128)], 4096, CodeType("int4", 128)),
        ([CodeType("int4", 128)], 1376, CodeType("int4", 32)),
        ([CodeType("int4", None, True)], 960, CodeType("int4", 64, True)),
        ([CodeType("int4", 256), CodeType("float4", 16)], 512, CodeType("int8", 16)),
        ([CodeType("int8"), CodeType("int8", None, True)], 512, CodeType("int8", 128, True)),
        ([CodeType("int8")], 100, CodeType("int8")),
        ([CodeType("int4", 32)], 40, None),
        ([CodeType("float8", 128)], 4096, CodeType("float8", 128)),
        ([CodeType("float8", 128), CodeType("int8", 128)], 4096, None),
        ([CodeType("int4", 8)], 64, None),
    ],
)
def test_joined_matrices_have_one_type(
    stored: list[CodeType], inputs: int, expected: CodeType | None
) -> None:
    """The smallest of the groups, whole ones of the inputs that are summed by themselves."""
    assert packed_type(stored, inputs) == expected


@pytest.mark.parametrize("shard", [WHOLE, TensorSlice(1, 2)], ids=["whole", "rank"])
@pytest.mark.parametrize("method", METHODS)
def test_a_rank_keeps_the_numbers_of_its_slice(tmp_path: Path, method: str, shard: TensorSlice) -> None:
    """Unpacked by the library they are the floats of the folder, but for a last digit of offsets."""
    made, parameters, used = sample(method, LARGER), [], library()
    made.write(tmp_path)
    spec = ModelSpec.of(describe(made.config), RankPart(shard))
    with open_model(ModelConfig(checkpoint_name_or_path=str(tmp_path))).folder as folder:
        for keeps in (True, False):
            kernels = NativeKernels(used, keeps_codes=keeps)
            parameters.append(load_weights(spec, folder, kernels))
    kept, floats = parameters
    kernels = NativeKernels(used)
    for parameter in spec.parameters:
        width = parameter.local_inputs(shard)
        if width is None or not hasattr(kept.parameters[parameter.name], "kind"):
            continue
        ids = [*range(kept.outputs[parameter.name])]
        rows = [rows_of(kernels, each.parameters[parameter.name], ids, width) for each in (kept, floats)]
        np.testing.assert_allclose(*rows, rtol=0, atol=3e-7 * np.abs(rows[1]).max())


@pytest.mark.parametrize("method", ["gptq", "awq", "packed8", "nvfp4", "modelopt_mixed", "ascend_static"])
def test_a_model_of_codes_is_near_that_of_its_floats(tmp_path: Path, method: str) -> None:
    """Activations are rounded to int8 of their group; weights are what the folder has."""
    made, found = sample(method, LARGER), []
    made.write(tmp_path)
    rows = [([1, 5, 9, 30, 2], 0), ([7, 7, 8], 0)]
    for quantization in ("auto", None):
        folder, spec = open_model(ModelConfig(checkpoint_name_or_path=str(tmp_path)))
        with folder:
            kernels = choose_kernels("native", "CPU", quantization=quantization)
            found.append(np.concatenate(logits(native.load(spec, folder, kernels, GEOMETRY), rows)))
    difference = np.abs(found[0] - found[1]).max() / np.abs(found[1]).max()
    assert 0 < difference < 0.08


def test_plans_count_the_bits_of_codes(tmp_path: Path) -> None:
    made = sample("packed", LARGER)
    model = ModelConfig(checkpoint_name_or_path=str(made.write(tmp_path)))
    setup = prepare(model, RuntimeConfig(), with_tokenizer=False)
    with setup.opened.folder as folder:
        numbers, nbytes = kept_as_codes(setup.spec, folder)
    assert nbytes == numbers * (4 + 32 / 16) / 8
    floats = (setup.num_parameters - numbers) * FLOAT32.itemsize
    assert setup.weight_bytes == pytest.approx(floats + nbytes, abs=1)
    share = f"{numbers / setup.num_parameters:.0%}"
    assert setup.weight_types == f"the folder's own 6.0 bits ({share} of them), else in float32"
    plain = prepare(
        ModelConfig(checkpoint_name_or_path=str(tmp_path), quantization=None),
        RuntimeConfig(),
        with_tokenizer=False,
    )
    assert plain.weight_bytes == plain.num_parameters * FLOAT32.itemsize
    assert plain.weight_types == "float32"


def write_adapter(folder: Path) -> Path:
    """A PEFT folder that changes the queries and what the feed-forwards give."""
    chance, pairs = np.random.default_rng(5), {}
    for layer in range(LARGER["num_hidden_layers"]):
        for name, outputs, inputs in (("self_attn.q_proj", 256, 256), ("mlp.down_proj", 256, 512)):
            module = f"base_model.model.model.layers.{layer}.{name}"
            pairs[f"{module}.lora_A.weight"] = chance.normal(0, 0.05, (4, inputs)).astype(np.float32)
            pairs[f"{module}.lora_B.weight"] = chance.normal(0, 0.05, (outputs, 4)).astype(np.float32)
    settings = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"]}
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    (folder / "adapter_model.safetensors").write_bytes(safetensors_bytes(pairs))
    return folder


@pytest.mark.parametrize("method", ["gptq", "fp8", "modelopt_mixed"])
def test_an_adapter_beside_codes_changes_its_own_rows(tmp_path: Path, method: str) -> None:
    """Rows without it have the bits of the model alone; it adds nearly what it adds to the floats."""
    made, adapter = sample(method, LARGER), open_adapter(write_adapter(tmp_path / "adapter"))
    made.write(tmp_path)
    changes = []
    for quantization in ("auto", None):
        folder, spec = open_model(ModelConfig(checkpoint_name_or_path=str(tmp_path)))
        with folder:
            kernels = choose_kernels("native", "CPU", quantization=quantization)
            alone = native.load(spec, folder, kernels, GEOMETRY)
            fitted = native.fit_adapters(spec, {"own": adapter})
            beside = native.load(spec, folder, kernels, GEOMETRY, adapters=fitted)
            assert beside.adapters is not None
            beside.adapters.load(1, "own")
        [base] = logits(alone, [([1, 5, 9], 0)])
        plain, own = logits(beside, [([1, 5, 9], 0), ([1, 5, 9], 1)])
        np.testing.assert_array_equal(plain, base)
        changes.append(own - plain)
    assert np.abs(changes[1]).max() > 0.005
    assert np.abs(changes[0] - changes[1]).max() < 0.5 * np.abs(changes[1]).max()


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (CodeType("int8"), INT8_BY_OUTPUT),
        (CodeType("int4"), INT8_BY_OUTPUT),
        (CodeType("int8", None, True), None),
        (CodeType("int4", 32), None),
        (CodeType("float8"), None),
    ],
)
def test_int8_keeps_whole_numbers_with_a_scale_for_each_output(
    stored: CodeType, expected: CodeType | None
) -> None:
    assert NativeKernels(library(), INT8).code_type([stored], 64) == expected
