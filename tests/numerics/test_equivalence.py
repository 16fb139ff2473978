"""Cached, batched, chunked, pre-empted, drafted or forked: a prompt's logits are the same."""

from __future__ import annotations

from typing import Any

import pytest
from recording import Run, difference, equal, load
from type_cases import prompts_of, write_case

from mindbatch import LLM, DecodingParams, RequestOutput
from mindbatch.kernels.native_library import find_library

GREEDY = DecodingParams(max_new_tokens=20)
SAMPLING: dict[str, Any] = {"max_new_tokens": 12, "do_sample": True, "seed": 5, "logprobs": 2}
FOUR = DecodingParams(**SAMPLING, num_return_sequences=4)
Case = tuple[str, str, str]
"""Model, kernels, type."""
# Rotary positions with windows in each type, a table of positions, layers with states, chunks, others' keys.
# Other models and kernels hold by what the tests of kernels and models say; on demand here too.
ALWAYS = [("qwen2", "native", kind) for kind in ("float32", "bfloat16", "int8")]
SLOW = [
    ("gpt2", "native", "float32"),
    *((model, "native", "float32") for model in ("lfm2", "lfm2_biased", "qwen3_next", "qwen3_5_text_kinds")),
    *((model, "native", "float32") for model in ("gemma4_text", "llama4_text")),
]
ON_DEMAND = [
    ("llama3", "native", "float32"),
    ("gemma", "native", "float32"),
    ("gemma", "native", "int8"),
    ("gpt2", "native", "bfloat16"),
    ("gpt2", "native", "int8"),
    ("qwen2", "reference", "float32"),
]
CASES = [
    *ALWAYS,
    *(pytest.param(each, marks=pytest.mark.slow) for each in SLOW),
    *(pytest.param(each, marks=pytest.mark.on_demand) for each in ON_DEMAND),
]


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    if found[1] == "native" and find_library() is None:
        pytest.skip("the C++ kernels were not built")
    return found


@pytest.fixture(scope="module")
def options(case: Case, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a model is loaded with."""
    kind = {"quantization": case[2]} if case[2] == "int8" else {"dtype": case[2]}
    folder = write_case(tmp_path_factory.mktemp(case[0]), case[0])
    sizes = {"max_batched_tokens": 32, "first_buckets": (1, 8)}
    return {"folder": folder, "kernels": case[1], **sizes, **kind}


@pytest.fixture(scope="module")
def llm(options: dict[str, Any]) -> LLM:
    return load(**options)


@pytest.fixture(scope="module")
def tolerance(case: Case) -> float:
    """The C++ kernels compute each row by itself, so nothing at all may change."""
    return 0.0 if case[1] == "native" else 1e-5


@pytest.fixture(scope="module")
def prompts(case: Case) -> list[list[int]]:
    return [prompt for prompt in prompts_of(case[0]) if len(prompt) > 4][::2]


@pytest.fixture(scope="module")
def batched(llm: LLM, prompts: list[list[int]], tolerance: float) -> Run:
    assert max(map(len, prompts)) <= 32, "every prompt is taken in one piece"
    run = Run(llm, prompts, GREEDY, tolerance=tolerance)
    assert run.num_preemptions == 0
    return run


def is_recurrent(llm: LLM) -> bool:
    return bool(llm._model.engine.settings.is_recurrent)


def test_batched_is_alone(llm: LLM, prompts: list[list[int]], batched: Run, tolerance: float) -> None:
    for number in (0, 3, len(prompts) - 1):
        alone = Run(llm, prompts[number : number + 1], GREEDY, first=number, tolerance=tolerance)
        assert alone.tokens == [batched.tokens[number]]
        assert difference(alone.logits, batched.logits) <= tolerance


@pytest.mark.parametrize(
    "limits",
    [
        {"batch_size": 1},  # static: each request waits for the one before it
        {"use_past": False},
        pytest.param({"max_batched_tokens": 1}, marks=pytest.mark.slow),
        {"max_batched_tokens": 7},
        {"max_batched_tokens": 13},
        {"num_blocks": 5},
        {"num_blocks": 5, "prefix_caching": False},
    ],
    ids=str,
)
def test_no_limit_changes_a_logit(
    limits: dict[str, Any], llm: LLM, prompts: list[list[int]], batched: Run, tolerance: float
) -> None:
    """One at a time, without a cache, in chunks, pre-empted: found again or computed again."""
    states = {"num_states": 5} if is_recurrent(llm) and "num_blocks" in limits else {}
    run = Run(llm, prompts, GREEDY, tolerance=tolerance, **limits, **states)
    assert (run.num_preemptions > 0) == ("num_blocks" in limits)
    equal(run, batched, tolerance)


@pytest.mark.parametrize("limits", [{}, {"num_blocks": 7}, {"batch_size": 1}], ids=str)
def test_a_found_beginning_is_a_computed_one(
    limits: dict[str, int], llm: LLM, prompts: list[list[int]], tolerance: float
) -> None:
    """With states, the second that has it leaves one where it ends, and the third finds that."""
    head = (prompts[0] * 40)[:37]
    longer = [head + prompt for prompt in prompts[:6]]
    computed = Run(llm, longer, GREEDY, prefix_caching=False, tolerance=tolerance)
    found = Run(llm, longer, GREEDY, tolerance=tolerance, **limits)
    assert computed.engine.statistics.cached_prompt_tokens == 0
    assert found.engine.statistics.cached_prompt_tokens >= (4 if is_recurrent(llm) else 5) * 32
    equal(found, computed, tolerance)


def test_a_later_call_finds_the_first_ones_prompt(llm: LLM, prompts: list[list[int]]) -> None:
    """The third one: with states, the second has left one."""
    prompt = (prompts[0] * 40)[:49]
    first, _, third = (llm.generate([prompt], GREEDY)[0] for _ in range(3))
    assert third.num_cached_tokens == 48
    assert first.outputs[0].token_ids == third.outputs[0].token_ids
    assert first.outputs[0].cumulative_logprob == third.outputs[0].cumulative_logprob


@pytest.mark.slow
def test_caching_of_beginnings_can_be_switched_off(options: dict[str, Any], prompts: list[list[int]]) -> None:
    llm, prompt = load(**options, prefix_caching=False), (prompts[0] * 40)[:49]
    assert [llm.generate([prompt], GREEDY)[0].num_cached_tokens for _ in range(3)] == [0, 0, 0]


def test_choices_after_one_context_have_the_scores_of_whole_prompts(
    llm: LLM, prompts: list[list[int]], tolerance: float
) -> None:
    """The context is computed once: from the second choice on it is in the cache."""
    context = (prompts[1] * 40)[:50]
    choices = [[*context, *context[place : place + 1 + place % 3]] for place in range(4)]
    params = DecodingParams(max_new_tokens=1, prompt_logprobs=0)
    whole = [scored(result)[len(context) :] for result in llm.generate(choices, params)]
    found = llm.generate(choices, params, prompt_logprobs_start=len(context))
    assert [result.num_cached_tokens for result in found][1:] == [48] * 3
    for result, expected in zip(found, whole, strict=True):
        assert scored(result) == pytest.approx(expected, abs=tolerance, rel=0)


def scored(result: RequestOutput) -> list[float]:
    """Log-probabilities of the prompt's tokens."""
    return [sum(scores.values()) if scores else 0.0 for scores in result.prompt_logprobs or ()]


@pytest.mark.parametrize(
    "limits",
    [pytest.param({"use_past": False}, marks=pytest.mark.slow), {"num_blocks": 13}, {"batch_size": 1}],
    ids=str,
)
def test_samples_are_the_same_however_they_share(
    limits: dict[str, int], llm: LLM, prompts: list[list[int]], tolerance: float
) -> None:
    """Forks share blocks until they write; without a cache nothing is shared."""
    shared = Run(llm, prompts[:4], FOUR, tolerance=tolerance)
    assert len({tuple(tokens) for tokens in shared.tokens}) == 16
    equal(Run(llm, prompts[:4], FOUR, tolerance=tolerance, **limits), shared, tolerance)


def test_samples_are_separate_runs(llm: LLM, prompts: list[list[int]], tolerance: float) -> None:
    """A sample's randomness does not know how many others there are."""
    together = Run(llm, prompts[:2], FOUR, tolerance=tolerance)
    for count in (1, 3):
        params = DecodingParams(**SAMPLING, num_return_sequences=count)
        fewer = Run(llm, prompts[:2], params, tolerance=tolerance)
        assert fewer.tokens == together.tokens[:count] + together.tokens[4 : 4 + count]
        assert difference(fewer.logits, together.logits) <= tolerance


@pytest.mark.slow
def test_drafts_change_nothing_and_are_partly_accepted(llm: LLM, prompts: list[list[int]]) -> None:
    repeated = [(prompt[:5] * 6)[:29] for prompt in prompts]
    plain, drafted = (
        Run(llm, repeated, DecodingParams(max_new_tokens=60, prompt_lookup_num_tokens=count))
        for count in (0, 4)
    )
    assert drafted.tokens == plain.tokens
    counts = drafted.engine.statistics
    assert 0 < counts.accepted_tokens < counts.drafted_tokens
