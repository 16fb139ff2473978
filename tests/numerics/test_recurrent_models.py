"""Rows of models with states, chunks or shared keys have the same bits, whatever happens to them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import recording
from last_logits import Run
from recording import load
from type_cases import prompts_of, write_case

from mindbatch import LLM, DecodingParams
from mindbatch.kernels.native_library import find_library

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_library() is None, reason="the C++ kernels were not built"),
]
GREEDY = DecodingParams(max_new_tokens=16)
LONGER = DecodingParams(max_new_tokens=60)
DRAFTED = DecodingParams(max_new_tokens=60, prompt_lookup_num_tokens=4)
CASES = ("lfm2", "lfm2_biased", "qwen3_next", "qwen3_5_text_kinds", "gemma4_text", "llama4_text")


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def llm(case: str, tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return load(write_case(tmp_path_factory.mktemp(case), case), max_batched_tokens=64)


@pytest.fixture(scope="module")
def rows(case: str) -> list[list[int]]:
    """Prompts of which half repeat themselves, so that drafts are found in them."""
    return [row if number % 2 else (row[:5] * 6)[:29] for number, row in enumerate(prompts_of(case))]


@pytest.fixture(scope="module")
def plain(llm: LLM, rows: list[list[int]]) -> Run:
    return Run(llm, rows, GREEDY)


def check_same(run: Run, plain: Run, prefixes: Iterable[tuple[int, ...]]) -> None:
    assert run.tokens == plain.tokens
    for prefix in prefixes:
        np.testing.assert_array_equal(run.logits[prefix], plain.logits[prefix])


@pytest.mark.parametrize("tokens", [3, 7, 16])
def test_chunks_of_any_size(llm: LLM, rows: list[list[int]], tokens: int) -> None:
    """The logits after every token of every prompt."""
    whole = recording.Run(llm, rows[:4], GREEDY)
    cut = recording.Run(llm, rows[:4], GREEDY, max_batched_tokens=tokens, tolerance=0.0)
    assert cut.tokens == whole.tokens
    for prefix, logits in whole.logits.items():
        np.testing.assert_array_equal(cut.logits[prefix], logits)


def test_rows_that_are_pre_empted(llm: LLM, rows: list[list[int]], plain: Run) -> None:
    """They are computed again, from a found beginning or from the first token on."""
    for prefix_caching in (True, False):
        states = {"num_states": 5} if llm._model.engine.settings.is_recurrent else {}
        tight = {"num_blocks": 12, "block_size": 8, "prefix_caching": prefix_caching, **states}
        run = Run(llm, rows, GREEDY, **tight)
        assert run.engine.scheduler.num_preemptions > 0
        check_same(run, plain, plain.logits)


def test_drafts_change_nothing_and_are_partly_accepted(llm: LLM, rows: list[list[int]]) -> None:
    run = Run(llm, rows, DRAFTED)
    assert run.tokens == Run(llm, rows, LONGER).tokens
    counts = run.engine.statistics
    assert 0 < counts.accepted_tokens < counts.drafted_tokens


def test_beginnings_are_found(llm: LLM, rows: list[list[int]], plain: Run, tmp_path: Path) -> None:
    """Where three rows have one, the third computes it no more."""
    head = (rows[1] + rows[3])[:24]
    asked = [[*head, last] for last in range(4)]
    alone = Run(llm, asked, GREEDY, prefix_caching=False)
    found = Run(llm, asked, GREEDY, batch_size=1, block_size=8)
    check_same(found, alone, alone.logits)
    expected = 2 * 24 if llm._model.engine.settings.is_recurrent else 3 * 24
    assert found.engine.statistics.cached_prompt_tokens == expected
