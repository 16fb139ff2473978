"""Logits that are no numbers end the row that has them; where the first rows all have them, the run."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from shadow_model import ShadowOutput, make_engine, request, run_all, settings

from mindbatch.engine.request import Request
from mindbatch.io.errors import MindBatchError

STRATEGIES: list[dict[str, Any]] = [
    {},
    {"do_sample": True, "num_return_sequences": 2},
    {"num_beams": 2},
    {"penalty_alpha": 0.6, "top_k": 2},
    {"prompt_lookup_num_tokens": 2},
]


def rows(*prompts: list[int], **params: Any) -> list[Request]:
    return [
        request(f"row{number}", prompt, max_new_tokens=4, **params) for number, prompt in enumerate(prompts)
    ]


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The places, among the tokens of every step, whose logits are no numbers."""
    places: set[int] = set()
    plain = ShadowOutput.logits

    def logits(self: ShadowOutput, tokens: Sequence[int]) -> NDArray[np.float32]:
        found = plain(self, tokens)
        found[[token in places for token in tokens]] = np.nan
        return found

    monkeypatch.setattr(ShadowOutput, "logits", logits)
    return places


@pytest.mark.parametrize("params", STRATEGIES)
def test_one_row_ends_alone(params: dict[str, Any], poisoned: set[int]) -> None:
    asked = rows([3, 1, 4], [1, 5], **params)
    expected = run_all(make_engine(settings()), asked[1:])["row1"]
    poisoned.add(2)  # the last token of the first prompt, in the first step
    engine = make_engine(settings())
    for each in asked:
        engine.add(each)
    [failed] = engine.step().finished
    poisoned.clear()
    assert failed.error == (
        "row0: the logits after 0 tokens of output are NaN or infinite; the model's weights or its number "
        "format do not fit"
    )
    assert [each.token_ids for each in run_all(engine, [])["row1"].outputs] == [
        each.token_ids for each in expected.outputs
    ]


def test_a_single_row_may_be_the_first(poisoned: set[int]) -> None:
    poisoned.add(2)
    engine = make_engine(settings())
    assert "NaN" in str(run_all(engine, rows([3, 1, 4]))["row0"].error)
    poisoned.clear()
    assert run_all(engine, rows([3, 1, 4]))["row0"].error is None


def test_of_a_model_that_gives_no_numbers_the_run_ends_at_once(poisoned: set[int]) -> None:
    poisoned.update(range(64))
    with pytest.raises(MindBatchError, match=r"^the logits of all 2 rows of the first step are NaN"):
        run_all(make_engine(settings()), rows([3, 1, 4], [1, 5]))
