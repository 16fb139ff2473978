"""How a step becomes sequences for Ascend's operators, and what these do not take."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindbatch.engine.buckets import buckets_up_to, pad_to_bucket
from mindbatch.kernels.ascend.step import (
    CHUNKS,
    PROMPTS,
    TOKENS,
    AscendBatch,
    arrays_of,
    flash_is_legal,
    is_plain,
    limit_errors,
    max_gathered_tokens,
    rounded_sequences,
    shape_of,
)
from mindbatch.kernels.memory import BFLOAT16, FLOAT16
from mindbatch.kernels.shapes import Alibi, AttentionShape
from mindbatch.kernels.step import Batch, Span, StepShape

BLOCK, WIDTH, PADDING = 16, 4, 99
CAPACITY = BLOCK * WIDTH


def pad(tokens: int) -> int:
    return pad_to_bucket(tokens, buckets_up_to(512))


def batch_of(spans: list[Span], size: int) -> Batch:
    """As `engine.model_runner.flatten` lays it out; sequence r has blocks 4 r, 4 r + 1, ..."""
    ids, positions, rows, lengths = (np.zeros(size, np.int32) for _ in range(4))
    slots, tables = np.full(size, -1, np.int32), np.zeros((size, WIDTH), np.int32)
    at = 0
    for row, (start, stop) in enumerate(spans):
        place, span = np.arange(start, stop), slice(at, at + stop - start)
        tables[row] = WIDTH * row + np.arange(WIDTH)
        ids[span], positions[span], rows[span], lengths[span] = 7 + place, place, row, place + 1
        slots[span] = tables[row, place // BLOCK] * BLOCK + place % BLOCK
        at = span.stop
    return Batch(ids, positions, slots, rows, tables, lengths)


def laid_out(
    spans: list[Span], *, flash: bool = True, is_windowed: bool = False
) -> tuple[StepShape, AscendBatch]:
    shape = shape_of(spans, pad, CAPACITY, flash=flash, is_windowed=is_windowed)
    return shape, arrays_of(batch_of(spans, shape.tokens), shape, PADDING, BLOCK)


@pytest.mark.parametrize(
    ("spans", "flash", "graph"),
    [
        ([(4, 5), (0, 1)], True, TOKENS),
        ([(0, 5), (0, 1)], True, PROMPTS),
        ([(0, 5), (0, 1)], False, CHUNKS),
        ([(0, 5), (3, 4)], True, CHUNKS),
    ],
)
def test_the_graph_of_a_step(spans: list[Span], flash: bool, graph: str) -> None:
    assert shape_of(spans, pad, CAPACITY, flash=flash).graph == graph


def test_decoding_has_a_sequence_for_each_token() -> None:
    shape, step = laid_out([(4, 5), (17, 18), (0, 1)])
    assert (shape.tokens, shape.sequences) == (4, 4)
    assert step.block_tables.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [PADDING] * 4]
    assert step.batch_valid_length.tolist() == [5, 18, 1, 1]
    assert step.q_seq_lens.tolist() == [1, 1, 1, 1]
    assert step.slots.tolist() == [4, 5 * BLOCK + 1, 8 * BLOCK, PADDING * BLOCK]


def test_chunks_are_followed_by_sequences_of_padding() -> None:
    shape, step = laid_out([(2, 7), (17, 18)])
    assert shape == StepShape(CHUNKS, 8, 3)
    assert step.q_seq_lens.tolist() == [5, 1, 2]
    assert step.batch_valid_length.tolist() == [7, 18, 2]
    assert step.block_tables[2].tolist() == [PADDING] * 4
    assert step.positions.tolist() == [2, 3, 4, 5, 6, 17, 0, 1]
    assert step.slots[6:].tolist() == [PADDING * BLOCK, PADDING * BLOCK + 1]


SPANS = st.lists(
    st.integers(0, CAPACITY - 1).flatmap(
        lambda start: st.tuples(st.just(start), st.integers(start + 1, CAPACITY))
    ),
    min_size=1,
    max_size=9,
)


@given(SPANS, st.booleans(), st.booleans())
def test_sequences_cover_the_bucket(spans: list[Span], flash: bool, is_windowed: bool) -> None:
    """No sequence is empty or longer than a block table has room for, and no slot is negative."""
    shape, step = laid_out(spans, flash=flash, is_windowed=is_windowed)
    assert shape.tokens >= sum(stop - start for start, stop in spans)
    assert step.q_seq_lens.sum() == shape.tokens == len(step.ids) == len(step.slots) == len(step.positions)
    assert len(step.q_seq_lens) == len(step.batch_valid_length) == len(step.block_tables) == shape.sequences
    assert step.q_seq_lens.min() >= 1
    assert (step.q_seq_lens <= step.batch_valid_length).all()
    assert step.batch_valid_length.max() <= CAPACITY
    assert step.slots.min() >= 0
    assert {array.dtype for array in step} == {np.dtype(np.int32)}
    if is_windowed:  # the operator looks at its mask
        assert shape.graph == CHUNKS
        assert step.q_seq_lens[len(spans) :].max() > 1
    if shape.graph == TOKENS:
        return
    assert shape.sequences == rounded_sequences(shape.sequences)
    ends = [stop for _, stop in spans]
    assert step.batch_valid_length[: len(spans)].tolist() == ends
    padding = step.slots[sum(stop - start for start, stop in spans) :]
    assert (padding // BLOCK == PADDING).all()


@pytest.mark.parametrize(("count", "rounded"), [(1, 2), (2, 2), (3, 3), (4, 5), (9, 9), (10, 17)])
def test_few_sizes_for_all_numbers_of_sequences(count: int, rounded: int) -> None:
    assert rounded_sequences(count) == rounded


@pytest.mark.parametrize(
    ("head_dim", "block_size", "expected"),
    [
        (128, 128, None),
        (256, 64, None),
        (24, 16, None),
        (128, 8, "runtime.block_size=8: .*multiples of 16 up to 128"),
        (320, 16, "heads of 320 numbers: .*at most 256"),
        (256, 128, "runtime.block_size=128: .*at most 16384 .*: at most 64"),
    ],
)
def test_limits(head_dim: int, block_size: int, expected: str | None) -> None:
    faults = list(limit_errors(head_dim, block_size))
    assert len(faults) == (expected is not None)
    if expected:
        head, _, rest = expected.partition(".*")
        assert faults[0].startswith(head)
        for words in rest.split(".*"):
            assert words in faults[0]
        assert "runtime.device_target=Ascend" in faults[0]


def test_what_plain_operators_compute_has_no_limits_of_heads() -> None:
    shape = AttentionShape(2, 2, 256, 1.0, alibi=Alibi((0.5, 0.25)))
    assert not is_plain(shape)
    rounded = Alibi((0.5, 0.25), is_rounded=True)
    for change in ({"head_dim": 257}, {"alibi": rounded}, {"softcap": 30.0}, {"has_sinks": True}):
        assert is_plain(replace(shape, **change))
    assert list(limit_errors(576, 128, is_gathered=True)) == []
    [fault] = limit_errors(576, 8, is_gathered=True)
    assert fault.startswith("runtime.block_size=8")
    assert max_gathered_tokens(2048, 2 * 4 * 256) == 128


@pytest.mark.parametrize(("head_dim", "legal"), [(16, True), (24, False), (128, True), (272, False)])
def test_flash_attention_takes_heads_of_whole_sixteens(head_dim: int, legal: bool) -> None:
    assert flash_is_legal(8, head_dim, BFLOAT16) == legal
    assert not flash_is_legal(8, head_dim, FLOAT16)


def test_flash_attention_takes_at_most_256_heads() -> None:
    assert flash_is_legal(256, 128, BFLOAT16)
    assert not flash_is_legal(257, 128, BFLOAT16)
