"""What holds for every model type: companions change nothing, in any dtype; nor does the cache."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from recording import LastRun, load
from type_cases import TYPE_CASES, prompts_of, type_of, write_case

from mindbatch import LLM, DecodingParams
from mindbatch.kernels.native_library import find_library
from mindbatch.model_spec.registry import MODEL_TYPES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_library() is None, reason="the C++ kernels were not built"),
]
GREEDY = DecodingParams(max_new_tokens=12)
SAMPLES = DecodingParams(max_new_tokens=10, do_sample=True, num_return_sequences=2, seed=5)
BEAMS = DecodingParams(max_new_tokens=10, num_beams=3, num_return_sequences=2)
KINDS = {"float32": {}, "bfloat16": {"dtype": "bfloat16"}, "int8": {"quantization": "int8"}}
# A row alone has the number 0, on which what is drawn depends.
STRATEGIES = [
    DecodingParams(max_new_tokens=8, do_sample=True, top_p=0.9, top_k=0, seed=3),
    DecodingParams(max_new_tokens=10),
    DecodingParams(max_new_tokens=8, num_beams=3, num_return_sequences=2),
    DecodingParams(max_new_tokens=8, penalty_alpha=0.5, top_k=4),
    DecodingParams(max_new_tokens=8, prompt_lookup_num_tokens=3),
]
BLOCK = 16


class Limits(NamedTuple):
    """Of differences from float32's logits, as parts of the largest one: half of all, nine tenths of all.

    Not of all: the rounded scores of experts may choose others.
    """

    half: float
    most: float


ROUNDED = {"bfloat16": Limits(0.02, 0.035), "int8": Limits(0.055, 0.11)}


@pytest.fixture(scope="module", params=TYPE_CASES)
def case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Models:
    """The models of a case, each loaded once, and what they make of the case's prompts."""

    def __init__(self, folder: Path, case: str) -> None:
        self.prompts = prompts_of(case)
        self.model = cache(lambda kind: load(folder, max_batched_tokens=64, **KINDS[kind]))
        self.together = cache(lambda kind: LastRun(self.model(kind), self.prompts, GREEDY))


@pytest.fixture(scope="module")
def models(case: str, tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(write_case(tmp_path_factory.mktemp(case), case), case)


def test_every_model_type_has_a_case() -> None:
    """telechat3 is Llama under other defaults: see test_mindformers_models.py."""
    assert {type_of(case) for case in TYPE_CASES} == {*MODEL_TYPES} - {"telechat3"}


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_and_logits_do_not_depend_on_companions_or_order(models: Models, kind: str) -> None:
    llm, rows, together = models.model(kind), models.prompts, models.together(kind)
    assert len(rows) == 16
    assert len({len(row) for row in rows}) > 10
    _check_same(LastRun(llm, rows, GREEDY, order=range(len(rows))[::-1]), together)
    for row, tokens in zip(rows, together.tokens, strict=True):
        alone = LastRun(llm, [row], GREEDY)
        assert alone.tokens == [tokens]
        _check_bits(alone, together, alone.logits)


@pytest.mark.parametrize("kind", ROUNDED)
def test_rounded_weights_give_nearly_the_same_logits(
    models: Models, kind: str, record_property: pytest.RecordProperty
) -> None:
    exact, rounded = models.together("float32").logits, models.together(kind).logits
    shared = exact.keys() & rounded.keys()
    assert len(shared) > 80
    gaps = [np.abs(rounded[each] - exact[each]).max() / np.abs(exact[each]).max() for each in shared]
    half, most = (float(each) for each in np.quantile(gaps, (0.5, 0.9)))
    record_property("half, most", (half, most))
    assert 0 < half <= ROUNDED[kind].half
    assert most <= ROUNDED[kind].most


@pytest.mark.parametrize("kind", KINDS)
def test_beams_samples_and_greedy_rows_in_one_batch_with_and_without_caches(
    models: Models, kind: str
) -> None:
    """Rows that begin alike; half of each kind come when the cache has their beginning."""
    llm, head = models.model(kind), (models.prompts[0] * 2)[: 2 * BLOCK]
    rows = [head + row[:6] for row in models.prompts[1:13]]
    params = [GREEDY, SAMPLES, BEAMS] * 4
    limits = {"batch_size": 6, "block_size": BLOCK}
    found = LastRun(llm, rows, params, **limits)
    _check_same(LastRun(llm, rows, params, **limits, prefix_caching=False), found)
    _check_same(LastRun(llm, rows, params, **limits, use_past=False), found)
    assert [len(outputs) for outputs in found.outputs] == [1, 2, 2] * 4
    _check_reuse(llm, found)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_all_strategies_alone_together_and_without_caches(
    tmp_path: Path, variant: str, kind: str
) -> None:
    """In every instruction set."""
    folder, prompts = write_case(tmp_path, "qwen3"), prompts_of("qwen3")
    llm = load(folder, max_batched_tokens=64, instruction_set=variant, **KINDS[kind])
    head = (prompts[0] * 2)[: 2 * BLOCK]
    rows, params = [head + row[:6] for row in prompts[1:11]], STRATEGIES * 2
    together = LastRun(llm, rows, params, batch_size=12, block_size=BLOCK)
    uncached = LastRun(llm, rows, params, batch_size=12, block_size=BLOCK, prefix_caching=False)
    alone = [LastRun(llm, [row], [own]) for row, own in zip(rows[:5], STRATEGIES, strict=True)]
    assert together.tokens == uncached.tokens
    assert together.outputs[:5] == [outputs for run in alone for outputs in run.outputs]
    for run in alone:
        _check_bits(run, together, run.logits)


def _check_same(run: LastRun, expected: LastRun) -> None:
    """The tokens, and every bit of the logits that they were chosen from."""
    assert run.tokens == expected.tokens
    assert run.logits.keys() == expected.logits.keys()
    _check_bits(run, expected, run.logits)


def _check_bits(run: LastRun, expected: LastRun, prefixes: Iterable[tuple[int, ...]]) -> None:
    for prefix in prefixes:
        np.testing.assert_array_equal(run.logits[prefix], expected.logits[prefix])


def _check_reuse(llm: LLM, run: LastRun) -> None:
    """That beginnings were found in the cache; an encoder computes every input anew."""
    cached = run.engine.statistics.cached_prompt_tokens
    assert cached == 0 if not llm.continues_prompts else cached >= 6 * BLOCK
