"""Each C++ kernel, in each instruction set of this machine, equals its NumPy function to 1e-5."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from kernel_runs import computed, numbers, packed
from numpy.typing import NDArray

from mindbatch.io.errors import ConfigError
from mindbatch.kernels.memory import BFLOAT16, FLOAT32, INT8, FloatType
from mindbatch.kernels.native import NativeKernels
from mindbatch.kernels.native_library import NativeLibrary
from mindbatch.kernels.operations import attention, dense, rotation
from mindbatch.kernels.shapes import Alibi, AttentionShape, CacheGeometry, alibi_slopes

Arrays = list[NDArray[np.float32]]
TOLERANCE = 1e-5


def check(library: NativeLibrary, compute: Callable[..., Any], mine: Sequence[Any], expected: Arrays) -> None:
    """Every variant gives the expected arrays. compute: of symbols for `mine`."""
    for variant in library.variants:
        library.set_variant(variant)
        for ours, theirs in zip(computed(NativeKernels(library), compute, *mine), expected, strict=True):
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
    x, weight = numbers(rows, depth), numbers(columns, depth, scale=depth**-0.5)
    bias = numbers(columns) if biased else None
    expected = dense.linear(x, weight, bias, outputs=columns)
    matrix = packed(NativeKernels(library), weight)
    check(library, lambda x: dense.linear(x, matrix, bias, outputs=columns), [x], [expected])


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("rows", [2, 13, 15, 29])
def test_rows_do_not_influence_one_another(library: NativeLibrary, rows: int) -> None:
    """Bit for bit: what batched = alone rests on."""
    native = NativeKernels(library)
    weight, bias, x = packed(native, numbers(70, 300)), numbers(70), numbers(rows, 300)
    for variant in library.variants:
        library.set_variant(variant)

        def product(x: Any) -> Any:
            return dense.linear(x, weight, bias, outputs=70)

        together = computed(native, product, x)[0]
        for row in range(rows):
            np.testing.assert_array_equal(together[row], computed(native, product, x[row : row + 1])[0][0])


@pytest.mark.parametrize(("vocabulary", "width"), [(97, 20), (33, 64)])
def test_embedding(library: NativeLibrary, vocabulary: int, width: int) -> None:
    """An id outside the table, which another rank holds, gives zeros."""
    table = numbers(vocabulary, width)
    ids = np.array([0, vocabulary - 1, 5, 32, -1, 10_000, 5], np.int32)
    expected = dense.embedding(ids, table, width=width)
    np.testing.assert_array_equal(expected[:4], table[ids[:4]])
    # The panels' padding columns hold zeros too.
    matrix = packed(NativeKernels(library), table)
    check(library, lambda ids: dense.embedding(ids, matrix, width=width), [ids], [expected])


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize(("rows", "width"), [(5, 33), (1, 8), (9, 257)])
def test_norms(library: NativeLibrary, rows: int, width: int, centred: bool) -> None:
    x, residual = numbers(rows, width) + 3, numbers(rows, width, scale=2.0)
    weight, bias = numbers(width), numbers(width, scale=0.3) if centred else None
    how = {"epsilon": 1e-5, "centred": centred}
    expected = dense.norm(x, weight, bias, **how)
    check(library, lambda x: dense.norm(x, weight, bias, **how), [x], [expected])
    of_sum = dense.add_norm(x, residual, weight, bias, **how)
    check(library, lambda x, y: dense.add_norm(x, y, weight, bias, **how), [x, residual], [*of_sum])


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "rotary_dim", "normed", "interleaved"),
    [
        (3, 1, 20, 20, True, False),
        (9, 3, 64, 32, False, True),
        (4, 2, 8, 8, False, False),
        (2, 2, 80, 80, True, False),
        (1, 1, 6, 2, True, True),
    ],
)
def test_rotary(
    library: NativeLibrary,
    heads: int,
    kv_heads: int,
    head_dim: int,
    rotary_dim: int,
    normed: bool,
    interleaved: bool,
) -> None:
    shape = AttentionShape(heads, kv_heads, head_dim, 1.0)
    angles = numbers(7, rotary_dim // 2, scale=3.0)
    norms = [numbers(head_dim) + 1 if normed else None for _ in range(2)]
    inputs = [numbers(7, shape.qkv_width), np.cos(angles), np.sin(angles)]
    kinds = [{"is_interleaved": interleaved, "in_halves": False}]
    if rotary_dim % 4 == 0 and rotary_dim == head_dim:
        kinds.append({"is_interleaved": False, "in_halves": True})
    for kind in kinds:

        def rotate(*given: Any, kind: dict[str, bool] = kind) -> Any:
            return rotation.rotary(*given, *norms, shape=shape, epsilon=1e-6, **kind)

        check(library, rotate, inputs, [rotate(*inputs)])


def test_norms_over_all_heads_are_of_the_ranks_that_divide_them(library: NativeLibrary) -> None:
    """Two ranks' sums added are those of one process, to the bits."""
    shape, half = AttentionShape(8, 4, 20, 1.0), AttentionShape(4, 2, 20, 1.0)
    kernels, qkv = NativeKernels(library), numbers(7, shape.qkv_width)
    norms = (numbers(8 * 20) + 1, numbers(4 * 20) + 1)

    def sums_of(x: Any, shape: AttentionShape, segments: tuple[int, int]) -> Any:
        [found] = computed(kernels, lambda x: rotation.square_sums(x, shape=shape, segments=segments), x)
        return found

    whole = sums_of(qkv, shape, (8, 4))
    query, key, value = np.split(qkv, np.cumsum(shape.widths)[:2], 1)
    of_ranks = zip(*(np.split(part, 2, 1) for part in (query, key, value)), strict=True)
    one, other = (sums_of(np.concatenate(parts, 1), half, (4, 2)) for parts in of_ranks)
    np.testing.assert_array_equal(whole, one + other)
    totals = (8 * 20, 4 * 20)

    def normed(x: Any, sums: Any) -> Any:
        return rotation.norm_by_sums(x, sums, *norms, shape=shape, epsilon=1e-6, totals=totals)

    parts = (
        dense.norm(part, norm, None, epsilon=1e-6, centred=False)
        for part, norm in zip((query, key), norms, strict=True)
    )
    check(library, normed, [qkv, whole], [np.concatenate((*parts, value), 1)])


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("kind", ["gelu_tanh", "gelu", "silu", "relu", "quick_gelu"])
def test_activations(library: NativeLibrary, kind: str, gated: bool) -> None:
    x = np.concatenate([np.linspace(-100, 100, 41), np.linspace(-6, 6, 25)]).astype(np.float32)
    given = np.stack([x, x[::-1], numbers(66)])

    def activate(x: Any) -> Any:
        return dense.activation(x, kind=kind, gated=gated)

    check(library, activate, [given], [activate(given)])


@pytest.mark.parametrize("shape", [(1, 3), (5, 2000)])
def test_capped(library: NativeLibrary, shape: tuple[int, int]) -> None:
    x = numbers(*shape, scale=40.0)
    expected = 30 * np.tanh(x.astype(np.float64) / 30)
    np.testing.assert_allclose(dense.capped(x, cap=30.0), expected, rtol=1e-6)
    check(library, lambda x: dense.capped(x, cap=30.0), [x], [expected])


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
    has_sinks: bool = False

    @property
    def shape(self) -> AttentionShape:
        heads, scale = (self.heads, self.kv_heads, self.head_dim), self.head_dim**-0.5
        return AttentionShape(*heads, scale, self.window, self.alibi, self.softcap, self.has_sinks)

    @property
    def sinks(self) -> list[NDArray[np.float32]]:
        """Above most scores, so that they are the largest of some softmaxes and not of others."""
        return [numbers(self.heads, 1)[:, 0] * np.float32(3)] if self.has_sinks else []


# Further ones on demand; tests/fuzz/test_kernels.py draws shapes, too.
ATTENTION = [
    Case(2, 1, 20, 16, ((0, 19), (5, 1), (40, 3)), padding=3, softcap=0.7),
    Case(6, 2, 10, 16, ((0, 19), (5, 1), (300, 3)), window=7, padding=2, has_sinks=True),
    Case(1, 1, 64, 16, ((0, 1), (20, 2)), has_sinks=True),
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


class OneStep:
    """Attention of a shape over a cache."""

    def __init__(
        self, kernels: NativeKernels, case: Case, keys: NDArray[np.float32], values: NDArray[np.float32]
    ) -> None:
        self._kernels, self._shape, self._sinks = kernels, case.shape, case.sinks
        self.keys, self.values = keys.copy(), values.copy()

    def __call__(self, qkv: NDArray[np.float32], *step: NDArray[np.int32]) -> NDArray[np.float32]:
        def attend(qkv: Any, *step: Any) -> Any:
            return attention.attention(qkv, self.keys, self.values, *step, *self._sinks, shape=self._shape)

        return computed(self._kernels, attend, qkv, *step)[0]


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
    # What was never written is poison to the native kernels; they must not let it through.
    poisoned = native_layout(case, np.where(empty, np.nan, keys), np.where(empty, np.nan, values))
    keys, values = np.where(empty, 0, keys), np.where(empty, 0, values)
    expected = attention.attention(qkv, keys, values, *step, *case.sinks, shape=case.shape)
    expected = expected[: len(qkv) - case.padding]
    kernels = NativeKernels(library)
    geometry = CacheGeometry(len(filled) - 1, case.block_size)
    assert kernels.cache_shapes(case.shape, geometry) == tuple(array.shape for array in poisoned)
    for variant in library.variants:
        library.set_variant(variant)
        native = OneStep(kernels, case, *poisoned)
        ours = native(qkv, *step)
        assert np.abs(ours[: len(expected)] - expected).max() <= TOLERANCE, variant
        assert not ours[len(expected) :].any(), "padding tokens give zeros"
        check_cache(case, native, (keys, values), step[0])


@pytest.mark.parametrize("weights", [FLOAT32, BFLOAT16], ids=lambda kind: kind.name)
@pytest.mark.parametrize("has_sinks", [False, True])
@pytest.mark.parametrize(("group", "window"), [(3, 0), pytest.param(3, 290, marks=pytest.mark.slow), (11, 0)])
def test_a_token_attends_alike_in_every_step(
    library: NativeLibrary, group: int, window: int, weights: FloatType, has_sinks: bool
) -> None:
    """Bit for bit, over more than one chunk of positions: alone, in a short step, in a long one."""
    case = Case(2 * group, 2, 20, 16, ((0, 531),), window=window, has_sinks=has_sinks)
    (slots, rows, tables, lengths), filled = step_of(case)
    qkv = numbers(len(slots), case.shape.qkv_width)
    zeros = [np.zeros((*filled.shape, case.kv_heads, case.head_dim), np.float32)] * 2
    step = OneStep(NativeKernels(library, weights), case, *native_layout(case, *zeros))
    for variant in library.variants:
        library.set_variant(variant)
        together = step(qkv, slots, rows, tables, lengths)
        for first, last in ((0, 40), (40, 513), (513, 514), (514, 531)):
            q, s, r, n = (array[first:last] for array in (qkv, slots, rows, lengths))
            apart = step(q, s, r, tables, n)
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
    caches = native_layout(case, numbers(*size), numbers(*size, 1)[..., 0])
    step = OneStep(NativeKernels(library, weights), case, *caches)
    for variant in library.variants:
        library.set_variant(variant)
        together = step(qkv, slots, rows, tables, lengths)
        for t in range(6):
            one = slice(t, t + 1)
            alone = step(qkv[one], slots[one], rows[one], tables, lengths[one])
            np.testing.assert_array_equal(alone, together[one], variant)


@pytest.mark.parametrize(("head_dim", "has_sinks"), [(20, False), (64, False), (20, True)])
def test_attention_beside_rounded_weights_is_as_near_as_bfloat16(
    library: NativeLibrary, head_dim: int, has_sinks: bool
) -> None:
    """Half a unit of 2^-8 of the largest value, for each of three roundings; exact where nothing rounds."""
    changed = {"softcap": 3.0, "alibi": Alibi(alibi_slopes(8)), "has_sinks": has_sinks}
    case = Case(8, 2, head_dim, 16, ((0, 40), (300, 1)), **changed)
    step, filled = step_of(case)
    qkv, size = numbers(len(step[0]), case.shape.qkv_width), (*filled.shape, case.kv_heads, head_dim)
    caches = native_layout(case, numbers(*size), numbers(*size, 1)[..., 0])
    found = {}
    for weights in (FLOAT32, BFLOAT16, INT8):
        for variant in library.variants:
            library.set_variant(variant)
            found[weights, variant] = OneStep(NativeKernels(library, weights), case, *caches)(qkv, *step)
    for variant in library.variants:
        exact, rounded = found[FLOAT32, variant], found[BFLOAT16, variant]
        np.testing.assert_array_equal(rounded, found[INT8, variant])
        difference = np.abs(rounded - exact).max()
        assert difference <= 3 * 2**-9 * np.abs(qkv).max(), variant
        assert (difference > 0) == (variant == "amx"), variant


def check_cache(case: Case, native: OneStep, expected: Sequence[Any], slots: NDArray[np.int32]) -> None:
    """Both wrote the step's keys and values to the same places."""
    block, offset = np.divmod(slots[slots >= 0], case.block_size)
    keys, values = native.keys, native.values[..., : case.head_dim]
    np.testing.assert_array_equal(keys.transpose(0, 3, 1, 2)[block, offset], expected[0][block, offset])
    np.testing.assert_array_equal(values.swapaxes(1, 2)[block, offset], expected[1][block, offset])


def test_a_step_outside_the_cache_is_refused(library: NativeLibrary) -> None:
    """Nothing is read or written there; tests/fuzz/kernels tries every number of a step."""
    case = Case(2, 1, 20, 16, ((0, 3), (17, 1)))
    (slots, *others), filled = step_of(case)
    slots[-1] = filled.size
    caches = native_layout(case, *(np.zeros((*filled.shape, 1, 20), np.float32) for _ in "kv"))
    step = OneStep(NativeKernels(library), case, *caches)
    with pytest.raises(RuntimeError):
        step(numbers(len(slots), case.shape.qkv_width), slots, *others)
    assert not step.keys.any()
