"""The user's callable and the row's constraint: what they see, and what happens when they disagree."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mindbatch.decoding import DecodingParams
from mindbatch.decoding.processors import adjust
from mindbatch.decoding.row import NoTokenLeftError, Row
from mindbatch.io.errors import MindBatchError

SCORES = np.array([1, 2, 3, 4], dtype=np.float32)
END = 3


class Only:
    """A constraint that allows the same tokens always."""

    fault: str | None = None

    is_complete = False

    def __init__(self, *token_ids: int) -> None:
        self.token_ids = token_ids

    def allowed(self, eos_token_ids: tuple[int, ...]) -> NDArray[np.bool_]:
        return np.isin(np.arange(SCORES.size), self.token_ids)

    def advance(self, token_id: int) -> None: ...

    def fork(self) -> "Only":
        return self


def after(
    constraint: Only | None = None,
    output: Sequence[int] = (0,),
    eos: tuple[int, ...] = (END,),
    **params: Any,
) -> set[int]:
    """The tokens that stay possible after a prompt of one token."""
    row = Row(DecodingParams(**params), [0], list(output), eos, row_hash=1, key="r", constraint=constraint)
    return {int(token) for token in np.flatnonzero(np.isfinite(adjust(SCORES, row)))}


def test_the_callable_sees_the_rows_key_and_its_tokens() -> None:
    seen = []

    def allow(key: str, tokens: Sequence[int]) -> list[int]:
        seen.append((key, list(tokens)))
        return [1, END]

    assert after(output=[2], prefix_allowed_tokens_fn=allow) == {1, END}
    assert seen == [("r", [0, 2])]


@pytest.mark.parametrize("given", [{1, 2}, (2, 1), iter([1, 2]), np.array([1, 2], dtype=np.int32)])
def test_the_callable_gives_any_collection(given: Any) -> None:
    assert after(prefix_allowed_tokens_fn=lambda key, tokens: given) == {1, 2}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ([4], "0 to 3"),
        ([-1], "0 to 3"),
        ([1.0], "whole numbers, not float64"),
        ([True], "not bool"),
        ([[1, 2]], r"shape \(1, 2\)"),
        (None, "NoneType"),
    ],
)
def test_a_wrong_answer_of_the_callable_is_named(given: Any, reason: str) -> None:
    with pytest.raises(MindBatchError, match=rf"^r: decoding.prefix_allowed_tokens_fn: .*{reason}"):
        after(prefix_allowed_tokens_fn=lambda key, tokens: given)


def test_a_failure_of_the_callable_names_the_row_and_keeps_its_cause() -> None:
    def allow(key: str, tokens: Sequence[int]) -> list[int]:
        raise KeyError("trie")

    with pytest.raises(MindBatchError, match=r"^r: .*KeyError\('trie'\)") as raised:
        after(prefix_allowed_tokens_fn=allow)
    assert isinstance(raised.value.__cause__, KeyError)


@pytest.mark.parametrize("given", [(), np.array([], dtype=np.int64)])
def test_a_callable_that_allows_nothing_leaves_no_token(given: Any) -> None:
    with pytest.raises(NoTokenLeftError, match="prefix_allowed_tokens_fn"):
        after(prefix_allowed_tokens_fn=lambda key, tokens: given)


def test_a_constraint_keeps_the_scores_of_what_it_allows() -> None:
    row = Row(DecodingParams(), [0], [], (END,), row_hash=1, constraint=Only(0, 2))
    assert adjust(SCORES, row).tolist() == [1, -np.inf, 3, -np.inf]


def test_a_constraint_that_no_token_can_go_on_with_says_why() -> None:
    constraint = Only(0, 2)
    constraint.fault = "decoding.regex='a.': no token of the model continues 'a'"
    row = Row(DecodingParams(), [0], [], (END,), row_hash=1, key="r", constraint=constraint)
    with pytest.raises(NoTokenLeftError, match="^r: decoding.regex='a.': no token"):
        adjust(np.zeros(5, dtype=np.float32), row)


def test_a_minimum_length_forbids_the_end_that_a_constraint_allows() -> None:
    assert after(Only(1, END), min_new_tokens=9) == {1}


def test_where_the_constraint_can_only_end_it_ends_below_a_minimum_length() -> None:
    assert after(Only(END), min_new_tokens=9) == {END}
    assert after(Only(2, END), eos=(2, END, 99), min_new_tokens=9) == {2, END}


def test_a_forced_end_against_the_constraint_is_left_to_the_length_limit() -> None:
    assert after(Only(1, 2), forced_eos_token_id=END, max_new_tokens=2) == {1, 2}
    assert after(Only(1, END), forced_eos_token_id=END, max_new_tokens=2) == {END}


@pytest.mark.parametrize("kind", [{"regex": "a"}, {"json_schema": {"type": "null"}}], ids=["regex", "schema"])
def test_a_forced_beginning_against_the_constraint_leaves_no_token(kind: dict[str, Any]) -> None:
    """What the forced token overrules is not blamed."""
    reasons = f"forbidden by forced_bos_token_id, {next(iter(kind))};"
    with pytest.raises(NoTokenLeftError, match=f"^r: .*{reasons}"):
        after(Only(1), output=(), forced_bos_token_id=2, bad_words_ids=[[0]], **kind)
    assert after(Only(1), forced_bos_token_id=2, **kind) == {1}
