"""Cached, batched, chunked, pre-empted or forked: a prompt's logits are the same."""

import pytest
from model_folders import descriptions, ragged, write_folder
from recording import Run, difference, equal, load

from mindbatch import LLM, DecodingParams
from mindbatch.kernels.native_library import find_library

GREEDY = DecodingParams(max_new_tokens=20)
SAMPLING = DecodingParams(max_new_tokens=12, do_sample=True, num_return_sequences=4, seed=5, logprobs=2)
Case = tuple[str, str, str]
"""Model, kernels, type."""
# Rotary positions with windows in each type, and a table of positions. Other models and kernels hold by what
# the tests of kernels and models say; on demand here too.
ALWAYS = [
    ("qwen2", "native", "float32"),
    ("qwen2", "native", "bfloat16"),
    ("qwen2", "native", "int8"),
    pytest.param(("gpt2", "native", "float32"), marks=pytest.mark.slow),
]
ON_DEMAND = [
    ("llama3", "native", "float32"),
    ("gemma", "native", "float32"),
    ("gemma", "native", "int8"),
    ("gpt2", "native", "bfloat16"),
    ("gpt2", "native", "int8"),
    ("qwen2", "reference", "float32"),
]
CASES = [*ALWAYS, *(pytest.param(each, marks=pytest.mark.on_demand) for each in ON_DEMAND)]


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    if found[1] == "native" and find_library() is None:
        pytest.skip("the C++ kernels were not built")
    return found


@pytest.fixture(scope="module")
def llm(case: Case, tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder = tmp_path_factory.mktemp(case[0])
    write_folder(folder, descriptions()[case[0]])
    kind = {"quantization": case[2]} if case[2] == "int8" else {"dtype": case[2]}
    return load(folder, kernels=case[1], max_batched_tokens=32, first_buckets=(1, 8), **kind)


@pytest.fixture(scope="module")
def tolerance(case: Case) -> float:
    """The C++ kernels compute each row by itself, so nothing at all may change."""
    return 0.0 if case[1] == "native" else 1e-5


@pytest.fixture(scope="module")
def prompts(case: Case) -> list[list[int]]:
    return [prompt for prompt in ragged(case[0]) if len(prompt) > 4][::2]


@pytest.fixture(scope="module")
def batched(llm: LLM, prompts: list[list[int]], tolerance: float) -> Run:
    return Run(llm, prompts, GREEDY, tolerance=tolerance)


def test_batched_is_alone(llm: LLM, prompts: list[list[int]], batched: Run, tolerance: float) -> None:
    for number in (0, 3, len(prompts) - 1):
        alone = Run(llm, prompts[number : number + 1], GREEDY, first=number, tolerance=tolerance)
        assert alone.tokens == [batched.tokens[number]]
        assert difference(alone.logits, batched.logits) <= tolerance


def test_static_is_continuous(llm: LLM, prompts: list[list[int]], batched: Run, tolerance: float) -> None:
    """One seat: each request waits for the one before it."""
    equal(Run(llm, prompts, GREEDY, batch_size=1, tolerance=tolerance), batched, tolerance)


def test_cached_is_uncached(llm: LLM, prompts: list[list[int]], batched: Run, tolerance: float) -> None:
    equal(Run(llm, prompts, GREEDY, use_past=False, tolerance=tolerance), batched, tolerance)


@pytest.mark.parametrize("budget", [pytest.param(1, marks=pytest.mark.slow), 8, 13])
def test_chunked_is_unchunked(
    budget: int, llm: LLM, prompts: list[list[int]], batched: Run, tolerance: float
) -> None:
    assert max(map(len, prompts)) <= 32, "the other run takes every prompt in one piece"
    equal(Run(llm, prompts, GREEDY, max_batched_tokens=budget, tolerance=tolerance), batched, tolerance)


def test_preempted_is_not_preempted(
    llm: LLM, prompts: list[list[int]], batched: Run, tolerance: float
) -> None:
    cramped = Run(llm, prompts, GREEDY, num_blocks=5, tolerance=tolerance)
    assert cramped.num_preemptions > 0
    assert batched.num_preemptions == 0
    equal(cramped, batched, tolerance)


@pytest.mark.parametrize("limits", [{}, {"num_blocks": 7}, {"batch_size": 1}])
def test_a_found_beginning_is_a_computed_one(
    limits: dict[str, int], llm: LLM, prompts: list[list[int]], tolerance: float
) -> None:
    head = (prompts[0] * 40)[:37]
    longer = [head + prompt for prompt in prompts[:6]]
    computed = Run(llm, longer, GREEDY, prefix_caching=False, tolerance=tolerance)
    found = Run(llm, longer, GREEDY, tolerance=tolerance, **limits)
    assert computed.engine.statistics.cached_prompt_tokens == 0
    assert found.engine.statistics.cached_prompt_tokens >= 5 * 32
    equal(found, computed, tolerance)


@pytest.mark.parametrize(
    "limits",
    [pytest.param({"use_past": False}, marks=pytest.mark.slow), {"num_blocks": 13}, {"batch_size": 1}],
)
def test_samples_are_the_same_however_they_share(
    limits: dict[str, int], llm: LLM, prompts: list[list[int]], tolerance: float
) -> None:
    """Forks share blocks until they write; without a cache nothing is shared."""
    shared = Run(llm, prompts[:4], SAMPLING, tolerance=tolerance)
    assert len({tuple(tokens) for tokens in shared.tokens}) == 16
    equal(Run(llm, prompts[:4], SAMPLING, tolerance=tolerance, **limits), shared, tolerance)


def test_samples_are_separate_runs(llm: LLM, prompts: list[list[int]], tolerance: float) -> None:
    """A sample's randomness does not know how many others there are."""
    together = Run(llm, prompts[:2], SAMPLING, tolerance=tolerance)
    for count in (1, 3):
        params = DecodingParams(
            max_new_tokens=12, do_sample=True, num_return_sequences=count, seed=5, logprobs=2
        )
        fewer = Run(llm, prompts[:2], params, tolerance=tolerance)
        assert fewer.tokens == together.tokens[:count] + together.tokens[4 : 4 + count]
        assert difference(fewer.logits, together.logits) <= tolerance
