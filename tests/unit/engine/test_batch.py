"""A step laid out as arrays, and the sizes that it is padded to."""

import numpy as np
import pytest
from shadow_model import Letters, request

from mindbatch.architecture.architecture import BlockPositions2D
from mindbatch.decoding.registry import strategy_for
from mindbatch.decoding.row import Row
from mindbatch.engine.buckets import buckets_up_to, pad_to_bucket, padded
from mindbatch.engine.model_runner import flatten, wanted_tokens
from mindbatch.engine.output_text import SequenceText, StopMatcher
from mindbatch.engine.sequence import PromptContext, Sequence, SequenceGroup, context_of
from mindbatch.engine.step import ScheduledTokens, Step
from mindbatch.io.errors import PromptError


def scheduled(
    prompt: list[int], output: list[int], table: list[int], start: int, stop: int
) -> ScheduledTokens:
    asked = request("r", prompt)
    text = SequenceText(Letters(), StopMatcher(()))
    sequence = Sequence(Row(asked.params, tuple(prompt), output, (), 0), text, table)
    group = SequenceGroup(asked, strategy_for(asked.params), [sequence], 99)
    return ScheduledTokens(group, sequence, start, stop, True)


def test_lays_out_chunks_and_padding() -> None:
    step = Step(
        [scheduled([5, 6, 7], [8, 9], [4, 2], 2, 5), scheduled([1, 2], [], [3], 1, 2)], [], num_tokens=4
    )
    batch = flatten(step, sizes=(6, 6), block_size=4, table_width=3)
    assert batch.ids.tolist() == [7, 8, 9, 2, 0, 0]
    assert batch.positions.tolist() == [2, 3, 4, 1, 0, 0]
    assert batch.slots.tolist() == [4 * 4 + 2, 4 * 4 + 3, 2 * 4, 3 * 4 + 1, -1, -1]
    assert batch.rows.tolist() == [0, 0, 0, 1, 0, 0]
    assert batch.lengths.tolist() == [3, 4, 5, 2, 0, 0]
    assert batch.block_tables[:2].tolist() == [[4, 2, 0], [3, 0, 0]]
    assert {array.dtype for array in batch if array is not None} == {np.dtype(np.int32)}
    assert batch.adapters is None


def test_the_slot_of_each_tokens_adapter() -> None:
    step = Step([scheduled([5, 6, 7], [], [4], 0, 3), scheduled([1, 2], [], [3], 0, 2)], [], num_tokens=5)
    step.scheduled[0].adapter = 2
    batch = flatten(step, sizes=(6, 6), block_size=4, table_width=3, with_adapters=True)
    assert batch.adapters is not None
    assert batch.adapters.tolist() == [2, 2, 2, 0, 0, 0]


def test_the_tokens_whose_logits_or_states_may_be_asked_for() -> None:
    chunk, whole, drafted = (scheduled([5, 6, 7], [], [4], 0, count) for count in (2, 3, 3))
    chunk.num_logits, drafted.num_logits = 0, 2
    step = Step([chunk, whole, drafted], [], num_tokens=8)
    assert wanted_tokens(step).tolist() == [4, 6, 7]
    chunk.group.request = request("s", [5, 6, 7], prompt_logprobs=0)
    assert wanted_tokens(step).tolist() == [0, 1, 4, 6, 7]


def test_padding_lies_behind_the_values() -> None:
    assert padded(np.ones((1, 2)), 3).tolist() == [[1, 1], [0, 0], [0, 0]]


@pytest.mark.parametrize("largest", [1, 3, 16, 17, 384, 385, 512, 1000, 5000])
def test_buckets_rise_to_the_largest(largest: int) -> None:
    buckets = buckets_up_to(largest)
    assert buckets == sorted(set(buckets))
    assert buckets[0] == 1
    assert buckets[-1] == largest


def test_padding_stays_below_double() -> None:
    """Beyond the smallest sizes a bucket wastes at most half a step."""
    buckets = buckets_up_to(4096)
    for count in range(1, 4097):
        size = pad_to_bucket(count, buckets)
        assert count <= size < 2 * count


def test_few_buckets() -> None:
    """Each bucket is a graph to compile."""
    assert len(buckets_up_to(512)) == 15
    assert len(buckets_up_to(8192)) <= 25
    assert buckets_up_to(512, few=True) == [1, 4, 16, 64, 256, 512]
    assert buckets_up_to(8, few=True) == [1, 4, 8]


MODEL = BlockPositions2D(start_id=9, mask_ids=(8, 7))


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ((1, 2, 8, 9), PromptContext(3, 2)),
        ((8, 9, 1, 9, 8), PromptContext(1, 0)),
        ((1, 7, 2, 8, 9), PromptContext(4, 3)),  # the first kind counts
        ((1, 7, 2, 7, 9), PromptContext(4, 1)),
        ((9, 8), PromptContext(0, 1)),
    ],
)
def test_where_the_context_ends_and_the_mask_is(prompt: tuple[int, ...], expected: PromptContext) -> None:
    assert context_of("a", prompt, MODEL) == expected


def test_positions_and_what_is_seen() -> None:
    context, places = PromptContext(3, 1), np.arange(6, dtype=np.int32)
    positions, lengths = context.positions(places), context.lengths(places)
    assert positions.tolist() == [[0, 0], [1, 0], [2, 0], [1, 1], [1, 2], [1, 3]]
    assert lengths.tolist() == [3, 3, 3, 4, 5, 6]
    assert positions.dtype == lengths.dtype == np.int32
    np.testing.assert_array_equal(context.positions(places[2:5]), positions[2:5])


@pytest.mark.parametrize("prompt", [(1, 2), (1, 9), (1, 8)])
def test_prompts_without_one(prompt: tuple[int, ...]) -> None:
    with pytest.raises(PromptError, match=r"a: the prompt must have token 9, .* and a mask \(8 or 7\)"):
        context_of("a", prompt, MODEL)
