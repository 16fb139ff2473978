"""The context of a prompt: what its tokens see, and the two positions of each."""

import numpy as np
import pytest

from mindbatch.engine.sequence import PromptContext, context_of
from mindbatch.io.errors import PromptError
from mindbatch.models.architecture import BlockPositions2D

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
