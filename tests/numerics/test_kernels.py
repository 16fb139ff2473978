"""Each C++ kernel, in each instruction set of this machine, equals MindSpore's operators to 1e-5."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn
from numpy.typing import NDArray

from mindbatch.errors import ConfigError
from mindbatch.kernels.alibi import Alibi, alibi_slopes
from mindbatch.kernels.choice import compiled
from mindbatch.kernels.interface import Kernels
from mindbatch.kernels.memory import BFLOAT16, FLOAT32, INT8, FloatType
from mindbatch.kernels.native import NativeKernels
from mindbatch.kernels.native_library import NativeLibrary, find_library
from mindbatch.kernels.reference import ReferenceKernels
from mindbatch.kernels.shapes import AttentionShape, CacheGeometry

Arrays = list[NDArray[np.float32]]
TOLERANCE = 1e-5
LIBRARY = find_library()

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="the C++ kernels were not built")


@pytest.fixture(scope="module")
def library() -> Iterator[NativeLibrary]:
    assert LIBRARY is not None
    best = LIBRARY.variant
    yield LIBRARY
    LIBRARY.set_variant(best)


def numbers(*shape: int, scale: float = 1.0) -> NDArray[np.float32]:
    generator = np.random.default_rng(list(shape))
    return (generator.standard_normal(shape) * scale).astype(np.float32)


def outputs(cell: nn.Cell, inputs: Sequence[NDArray[Any]]) -> Arrays:
    found = cell(*(Tensor(array) for array in inputs))
    return [tensor.asnumpy() for tensor in (found if isinstance(found, tuple) else (found,))]


def packed(kernels: Kernels, weight: NDArray[np.float32]) -> NDArray[Any]:
    """The weight in the kernels' layout, written in two pieces as a fused matrix is."""
    array = kernels.packed_zeros(*weight.shape)
    half = len(weight) // 2
    kernels.pack(array, 0, weight[:half])
    kernels.pack(array, half, weight[half:])
    return array


def check(library: NativeLibrary, native: nn.Cell, mine: Sequence[Any], expected: Arrays) -> None:
    """Every variant gives the expected arrays."""
    for variant in library.variants:
        library.set_variant(variant)
        for ours, theirs in zip(outputs(native, mine), expected, strict=True):
            assert ours.shape == theirs.shape
            error = np.abs(ours - theirs).max()
            assert error <= TOLERANCE * max(1.0, np.abs(theirs).max()), f"{variant}: {error}"


def test_there_is_a_portable_variant_and_a_wrong_name_is_refused(library: NativeLibrary) -> None:
    assert "portable" in library.variants
    with pytest.raises(ConfigError, match="runtime.instruction_set=sse9: .* allowed here: auto, .*portable"):
        library.set_variant("sse9")


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "biased"),
    [(1, 8, 5, True), (3, 33, 31, False), (14, 257, 33, True), (15, 300, 97, False), (64, 20, 129, True)],
)
def test_linear(library: NativeLibrary, rows: int, depth: int, columns: int, biased: bool) -> None:
    native, reference = compiled(NativeKernels(library)), ReferenceKernels()
    x, weight = numbers(rows, depth), numbers(columns, depth, scale=depth**-0.5)
    bias = numbers(columns) if biased else np.zeros(1, np.float32)
    expected = outputs(reference.linear(columns), [x, packed(reference, weight), bias])
    np.testing.assert_allclose(expected[0], x @ weight.T + bias, atol=TOLERANCE)
    check(library, native.linear(columns), [x, packed(native, weight), bias], expected)


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("rows", [2, 13, 15, 29])
def test_rows_do_not_influence_one_another(library: NativeLibrary, rows: int) -> None:
    """Bit for bit: what batched = alone rests on."""
    native = compiled(NativeKernels(library))
    weight, bias = packed(native, numbers(70, 300)), numbers(70)
    x, cell = numbers(rows, 300), native.linear(70)
    for variant in library.variants:
        library.set_variant(variant)
        together = outputs(cell, [x, weight, bias])[0]
        for row in range(rows):
            alone = outputs(cell, [x[row : row + 1], weight, bias])[0]
            np.testing.assert_array_equal(together[row], alone[0])


@pytest.mark.parametrize(("vocabulary", "width"), [(97, 20), (33, 64)])
def test_embedding(library: NativeLibrary, vocabulary: int, width: int) -> None:
    """An id outside the table, which another rank holds, gives zeros."""
    native, reference = compiled(NativeKernels(library)), ReferenceKernels()
    table = numbers(vocabulary, width)
    ids = np.array([0, vocabulary - 1, 5, 32, -1, 10_000, 5], np.int32)
    expected = outputs(reference.embedding(width), [ids, packed(reference, table)])
    np.testing.assert_array_equal(expected[0][:4], table[ids[:4]])
    # The panels' padding columns hold zeros too.
    check(library, native.embedding(width), [ids, packed(native, table)], expected)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize(
    ("rows", "width"),
    [(5, 33), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((1, 8), (9, 257)))],
)
def test_norms(library: NativeLibrary, rows: int, width: int, centred: bool) -> None:
    native, reference = compiled(NativeKernels(library)), ReferenceKernels()
    x, residual = numbers(rows, width) + 3, numbers(rows, width, scale=2.0)
    bias = numbers(width, scale=0.3) if centred else np.zeros(1, np.float32)
    inputs = [x, numbers(width), bias]
    check(library, native.norm(1e-5, centred), inputs, outputs(reference.norm(1e-5, centred), inputs))
    inputs.insert(1, residual)
    check(library, native.add_norm(1e-5, centred), inputs, outputs(reference.add_norm(1e-5, centred), inputs))


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "rotary_dim", "normed", "interleaved"),
    [
        (3, 1, 20, 20, True, False),
        pytest.param(9, 3, 64, 32, False, True, marks=pytest.mark.slow),
        pytest.param(4, 2, 8, 8, False, False, marks=pytest.mark.slow),
        pytest.param(2, 2, 80, 80, True, False, marks=pytest.mark.slow),
        pytest.param(1, 1, 6, 2, True, True, marks=pytest.mark.slow),
        (3, 1, 20, 20, "whole", False),
    ],
)
def test_rotary(
    library: NativeLibrary,
    heads: int,
    kv_heads: int,
    head_dim: int,
    rotary_dim: int,
    normed: bool | str,
    interleaved: bool,
) -> None:
    shape = AttentionShape(heads, kv_heads, head_dim, 1.0)
    angles = numbers(7, rotary_dim // 2, scale=3.0)
    widths = [count * head_dim for count in ((heads, kv_heads) if normed == "whole" else (1, 1))]
    norms = [numbers(width) + 1 if normed else np.zeros(1, np.float32) for width in widths]
    inputs = [numbers(7, shape.qkv_width), np.cos(angles), np.sin(angles), *norms]
    kinds = [{"is_interleaved": interleaved}]
    if rotary_dim % 4 == 0 and rotary_dim == head_dim:
        kinds.append({"in_halves": True})
    for kind in kinds:
        expected = outputs(ReferenceKernels().rotary(shape, 1e-6, **kind), inputs)
        check(library, compiled(NativeKernels(library)).rotary(shape, 1e-6, **kind), inputs, expected)


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("kind", ["gelu_tanh", "gelu", "silu", "relu"])
def test_activations(library: NativeLibrary, kind: str, gated: bool) -> None:
    x = np.concatenate([np.linspace(-100, 100, 41), np.linspace(-6, 6, 25)]).astype(np.float32)
    inputs = [np.stack([x, x[::-1], numbers(66)])]
    expected = outputs(ReferenceKernels().activation(kind, gated), inputs)
    check(library, compiled(NativeKernels(library)).activation(kind, gated), inputs, expected)


@pytest.mark.parametrize("shape", [(1, 3), pytest.param((5, 2000), marks=pytest.mark.slow)])
def test_capped(library: NativeLibrary, shape: tuple[int, int]) -> None:
    inputs = [numbers(*shape, scale=40.0)]
    expected = [30 * np.tanh(inputs[0].astype(np.float64) / 30)]
    for each in (compiled(NativeKernels(library)), ReferenceKernels()):
        check(library, each.capped(30.0), inputs, expected)


@dataclass(frozen=True)
class Case:
    """One step over a paged cache: (tokens cached before, new tokens) of each sequence."""

    heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    sequences: tuple[tuple[int, int], ...]
    window: int = 0
    padding: int = 0
    alibi: Alibi | None = None
    softcap: float = 0.0

    @property
    def shape(self) -> AttentionShape:
        heads, scale = (self.heads, self.kv_heads, self.head_dim), self.head_dim**-0.5
        return AttentionShape(*heads, scale, self.window, self.alibi, self.softcap)


# Further ones on demand; tests/fuzz/test_kernels.py draws shapes, too.
ATTENTION = [
    Case(2, 1, 20, 16, ((0, 19), (5, 1), (40, 3)), padding=3, softcap=0.7),
    *(
        pytest.param(case, marks=pytest.mark.slow)
        for case in (
            Case(5, 1, 128, 64, ((63, 1), (64, 1), (200, 5)), window=65, alibi=Alibi(alibi_slopes(5))),
            Case(6, 1, 8, 128, ((0, 2), (127, 2), (255, 1))),
            Case(14, 2, 20, 48, ((47, 1), (0, 49)), window=1, softcap=50.0),
            Case(4, 4, 80, 32, ((1000, 2), (0, 1)), window=500),
            Case(3, 1, 64, 8, ((0, 1), (7, 2), (300, 9)), padding=2, alibi=Alibi(alibi_slopes(3), 0.2, True)),
        )
    ),
    *(
        pytest.param(case, marks=pytest.mark.on_demand)
        for case in (
            Case(1, 1, 8, 16, ((0, 1),)),
            Case(3, 1, 64, 32, ((31, 2), (32, 1), (0, 33)), window=7),
            Case(4, 4, 128, 24, ((50, 1), (0, 25))),
            Case(8, 2, 80, 16, ((100, 1), (17, 9)), padding=1),
            Case(8, 1, 64, 16, ((15, 17),), window=16),
            Case(18, 2, 8, 16, ((30, 9), (3, 1)), padding=2),
            Case(2, 2, 128, 16, ((1500, 1),)),
            Case(8, 2, 20, 8, ((100, 3), (13, 1)), window=21),
        )
    ),
]


class OneStep(nn.Cell):
    """Attention with the cache as parameters, as the model holds it."""

    def __init__(self, attend: nn.Cell, keys: NDArray[np.float32], values: NDArray[np.float32]) -> None:
        super().__init__(auto_prefix=False)
        self.attend = attend
        self.keys = Parameter(Tensor(keys), name="keys", requires_grad=False)
        self.values = Parameter(Tensor(values), name="values", requires_grad=False)

    def construct(self, qkv: Tensor, slots: Tensor, rows: Tensor, tables: Tensor, lengths: Tensor) -> Tensor:
        return self.attend(qkv, self.keys, self.values, slots, rows, tables, lengths)


def step_of(case: Case) -> tuple[list[NDArray[np.int32]], NDArray[np.bool_]]:
    """slots, rows, block tables, lengths; and which slots of the cache hold something before the step."""
    blocks = [-(-(before + new) // case.block_size) for before, new in case.sequences]
    order = np.random.default_rng(0).permutation(sum(blocks)).astype(np.int32)
    total = sum(new for _, new in case.sequences) + case.padding
    slots, rows = np.full(total, -1, np.int32), np.zeros(total, np.int32)
    tables, lengths = np.zeros((total, max(blocks) + 1), np.int32), np.zeros(total, np.int32)
    filled = np.zeros((sum(blocks) + 1) * case.block_size, np.bool_)
    at = used = 0
    for row, (before, new) in enumerate(case.sequences):
        table = order[used : used + blocks[row]]
        used += blocks[row]
        tables[row, : len(table)] = table
        where = [
            table[p // case.block_size] * case.block_size + p % case.block_size for p in range(before + new)
        ]
        filled[where[:before]] = True
        slots[at : at + new], rows[at : at + new] = where[before:], row
        lengths[at : at + new] = np.arange(before + 1, before + new + 1)
        at += new
    return [slots, rows, tables, lengths], filled.reshape(-1, case.block_size)


def native_layout(case: Case, keys: NDArray[np.float32], values: NDArray[np.float32]) -> Arrays:
    """[block, slot, head, dim] to the native caches' layouts."""
    padded = -(-case.head_dim // 16) * 16
    wide = np.full((*values.shape[:3], padded), np.nan, np.float32)
    wide[..., : case.head_dim] = values
    return [np.ascontiguousarray(keys.transpose(0, 2, 3, 1)), np.ascontiguousarray(wide.swapaxes(1, 2))]


@pytest.mark.parametrize("case", ATTENTION, ids=repr)
def test_attention(library: NativeLibrary, case: Case) -> None:
    step, filled = step_of(case)
    size = (*filled.shape, case.kv_heads, case.head_dim)
    keys, values = numbers(*size), numbers(*size, 1)[..., 0]
    qkv = numbers(len(step[0]), case.shape.qkv_width)
    empty = ~filled[:, :, None, None]
    keys, values = np.where(empty, 0, keys), np.where(empty, 0, values)
    reference = OneStep(ReferenceKernels().attention(case.shape), keys, values)
    expected = outputs(reference, [qkv, *step])[0][: len(qkv) - case.padding]
    # What was never written is poison to the native kernels; they must not let it through.
    poisoned = native_layout(case, np.where(empty, np.nan, keys), np.where(empty, np.nan, values))
    kernels = compiled(NativeKernels(library))
    geometry = CacheGeometry(len(filled) - 1, case.block_size)
    assert kernels.cache_shapes(case.shape, geometry) == tuple(array.shape for array in poisoned)
    native = OneStep(kernels.attention(case.shape), *poisoned)
    for variant in library.variants:
        library.set_variant(variant)
        native.keys.set_data(Tensor(poisoned[0]))
        native.values.set_data(Tensor(poisoned[1]))
        ours = outputs(native, [qkv, *step])[0]
        assert np.abs(ours[: len(expected)] - expected).max() <= TOLERANCE, variant
        assert not ours[len(expected) :].any(), "padding tokens give zeros"
        check_cache(case, native, reference, step[0])


@pytest.mark.parametrize("weights", [FLOAT32, BFLOAT16], ids=lambda kind: kind.name)
@pytest.mark.parametrize(("group", "window"), [(3, 0), pytest.param(3, 290, marks=pytest.mark.slow), (11, 0)])
def test_a_token_attends_alike_in_every_step(
    library: NativeLibrary, group: int, window: int, weights: FloatType
) -> None:
    """Bit for bit, over more than one chunk of positions: alone, in a short step, in a long one."""
    case = Case(2 * group, 2, 20, 16, ((0, 531),), window=window)
    (slots, rows, tables, lengths), filled = step_of(case)
    qkv = numbers(len(slots), case.shape.qkv_width)
    zeros = [np.zeros((*filled.shape, case.kv_heads, case.head_dim), np.float32)] * 2
    kernels = compiled(NativeKernels(library, weights))
    step = OneStep(kernels.attention(case.shape), *native_layout(case, *zeros))
    for variant in library.variants:
        library.set_variant(variant)
        together = outputs(step, [qkv, slots, rows, tables, lengths])[0]
        for first, last in ((0, 40), (40, 513), (513, 514), (514, 531)):
            q, s, r, n = (array[first:last] for array in (qkv, slots, rows, lengths))
            apart = outputs(step, [q, s, r, tables, n])[0]
            np.testing.assert_array_equal(apart, together[first:last], variant)


@pytest.mark.parametrize("weights", [FLOAT32, BFLOAT16], ids=lambda kind: kind.name)
@pytest.mark.parametrize("heads", [6, 14])
def test_a_token_of_many_sequences_attends_as_alone(
    library: NativeLibrary, heads: int, weights: FloatType
) -> None:
    """Bit for bit: where threads have enough sequences, they take all heads of one together."""
    case = Case(heads, 2, 20, 16, tuple((before, 1) for before in (255, 256, 0, 300, 530, 400)) * 4)
    (slots, rows, tables, lengths), filled = step_of(case)
    qkv, size = numbers(len(slots), case.shape.qkv_width), (*filled.shape, case.kv_heads, case.head_dim)
    kernels = compiled(NativeKernels(library, weights))
    step = OneStep(
        kernels.attention(case.shape), *native_layout(case, numbers(*size), numbers(*size, 1)[..., 0])
    )
    for variant in library.variants:
        library.set_variant(variant)
        together = outputs(step, [qkv, slots, rows, tables, lengths])[0]
        for t in range(6):
            one = slice(t, t + 1)
            alone = outputs(step, [qkv[one], slots[one], rows[one], tables, lengths[one]])[0]
            np.testing.assert_array_equal(alone, together[one], variant)


@pytest.mark.parametrize("head_dim", [20, 64])
def test_attention_beside_rounded_weights_is_as_near_as_bfloat16(
    library: NativeLibrary, head_dim: int
) -> None:
    """Half a unit of 2^-8 of the largest value, for each of three roundings; exact where nothing rounds."""
    case = Case(8, 2, head_dim, 16, ((0, 40), (300, 1)), softcap=3.0, alibi=Alibi(alibi_slopes(8)))
    step, filled = step_of(case)
    qkv, size = numbers(len(step[0]), case.shape.qkv_width), (*filled.shape, case.kv_heads, head_dim)
    caches = native_layout(case, numbers(*size), numbers(*size, 1)[..., 0])
    found = {}
    for weights in (FLOAT32, BFLOAT16, INT8):
        kernels = compiled(NativeKernels(library, weights))
        for variant in library.variants:
            library.set_variant(variant)
            attend = OneStep(kernels.attention(case.shape), *caches)
            found[weights, variant] = outputs(attend, [qkv, *step])[0]
    for variant in library.variants:
        exact, rounded = found[FLOAT32, variant], found[BFLOAT16, variant]
        np.testing.assert_array_equal(rounded, found[INT8, variant])
        difference = np.abs(rounded - exact).max()
        assert difference <= 3 * 2**-9 * np.abs(qkv).max(), variant
        assert (difference > 0) == (variant == "amx"), variant


def check_cache(case: Case, native: OneStep, reference: OneStep, slots: NDArray[np.int32]) -> None:
    """Both wrote the step's keys and values to the same places."""
    block, offset = np.divmod(slots[slots >= 0], case.block_size)
    keys, values = native.keys.asnumpy(), native.values.asnumpy()[..., : case.head_dim]
    expected = reference.keys.asnumpy(), reference.values.asnumpy()
    np.testing.assert_array_equal(keys.transpose(0, 3, 1, 2)[block, offset], expected[0][block, offset])
    np.testing.assert_array_equal(values.swapaxes(1, 2)[block, offset], expected[1][block, offset])


@pytest.mark.slow
def test_a_step_outside_the_cache_is_refused(library: NativeLibrary) -> None:
    """Nothing is read or written there; tests/fuzz/kernels tries every number of a step."""
    case = Case(2, 1, 20, 16, ((0, 3), (17, 1)))
    (slots, *others), filled = step_of(case)
    slots[-1] = filled.size
    keys, values = native_layout(case, *(np.zeros((*filled.shape, 1, 20), np.float32) for _ in "kv"))
    step = OneStep(compiled(NativeKernels(library)).attention(case.shape), keys, values)
    with pytest.raises(RuntimeError):
        outputs(step, [numbers(len(slots), case.shape.qkv_width), slots, *others])
    assert not step.keys.asnumpy().any()
