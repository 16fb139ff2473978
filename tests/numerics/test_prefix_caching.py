"""Trained models: prefix caching, batch size and row order change no bit of any logit, nor any token."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_folders import STORIES
from recording import Run, equal, load

from mindbatch import LLM, DecodingParams
from mindbatch.kernels.native_library import find_library

FOLDERS = {"tiny_gpt2": Path(__file__).parents[2] / "examples/tiny_gpt2", "stories260K": STORIES}
HEADS = {
    "tiny_gpt2": "2 + 3 = 5. 4 + 4 = 8. one plus one is two. two plus two is four. An increasing sequence: "
    "one, two, three, four, five, six, seven, eight, nine, ten,",
    "stories260K": "Once upon a time, there was a little girl named Lily. She loved to play outside "
    "with her big red ball. One day she saw a cat in the park. The cat was sad. Lily wanted to help.",
}
PARAMS = {
    "greedy": DecodingParams(max_new_tokens=14),
    "sampling": DecodingParams(max_new_tokens=14, do_sample=True, temperature=0.9, top_p=0.95, seed=7),
    "samples": DecodingParams(
        max_new_tokens=8, do_sample=True, top_k=20, num_return_sequences=3, seed=7, logprobs=1
    ),
}
ROWS = 24
ORDERS = {
    "forward": list(range(ROWS)),
    "shuffled": np.random.default_rng(0).permutation(ROWS).tolist(),
}


@pytest.fixture(
    scope="module", params=["tiny_gpt2", pytest.param("stories260K", marks=pytest.mark.on_demand)]
)
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    if not (FOLDERS[found] / "model.safetensors").exists():
        pytest.skip(f"needs the model in {FOLDERS[found]}, which is not shipped")
    if find_library() is None:
        pytest.skip("the C++ kernels were not built: only they promise the same bits")
    return found


@pytest.fixture(scope="module")
def llm(name: str) -> LLM:
    return load(FOLDERS[name], kernels="native", batch_size=32, max_batched_tokens=96, first_buckets=(1, 8))


@pytest.fixture(scope="module")
def prompts(name: str, llm: LLM) -> list[list[int]]:
    """Beginnings of several lengths, the same prompt twice, and suffixes of their own."""
    head = llm.required_tokenizer.encode(HEADS[name])
    assert len(head) > 48
    suffixes = [head[place : place + 1 + place % 9] for place in range(ROWS)]
    cuts = [len(head), len(head), 49, 16]
    return [head[: cuts[place % 4]] + suffixes[place // 2 * 2] for place in range(ROWS)]


@pytest.fixture(
    scope="module", params=["greedy", "samples", pytest.param("sampling", marks=pytest.mark.on_demand)]
)
def params(request: pytest.FixtureRequest) -> DecodingParams:
    return PARAMS[request.param]


@pytest.fixture(scope="module")
def alone(llm: LLM, prompts: list[list[int]], params: DecodingParams) -> Run:
    """One row after the other, each computed whole."""
    run = Run(llm, prompts, params, tolerance=0.0, batch_size=1, prefix_caching=False)
    assert run.engine.statistics.cached_prompt_tokens == 0
    return run


# Every value of the three options; all their combinations on demand.
SOME = [(True, 1, "forward"), (True, 4, "shuffled"), (False, 32, "shuffled")]
OTHERS = [each for each in product((True, False), (1, 4, 32), ORDERS) if each not in SOME]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prefix_caching", "batch_size", "order"),
    [*SOME, *(pytest.param(*each, marks=pytest.mark.on_demand) for each in OTHERS)],
)
def test_nothing_changes_a_bit(
    llm: LLM,
    prompts: list[list[int]],
    params: DecodingParams,
    alone: Run,
    prefix_caching: bool,
    batch_size: int,
    order: str,
) -> None:
    limits: dict[str, Any] = {"batch_size": batch_size, "prefix_caching": prefix_caching}
    run = Run(llm, prompts, params, tolerance=0.0, order=ORDERS[order], **limits)
    assert (run.engine.statistics.prefix_hit_rate > 0.5) == prefix_caching
    equal(run, alone, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("num_blocks", [16, 24])
def test_found_again_after_preemption(
    llm: LLM, prompts: list[list[int]], params: DecodingParams, alone: Run, num_blocks: int
) -> None:
    """Few blocks: requests are pre-empted and what was cached is evicted all the time."""
    run = Run(llm, prompts, params, tolerance=0.0, num_blocks=num_blocks)
    assert run.num_preemptions > 0
    equal(run, alone, 0.0)


@pytest.mark.slow
def test_a_second_call_finds_the_first_ones_prompts(name: str, llm: LLM) -> None:
    params = DecodingParams(max_new_tokens=10)
    first, second = (llm.generate(HEADS[name], params)[0] for _ in range(2))
    assert second.num_cached_tokens > 32
    assert second.outputs[0].token_ids == first.outputs[0].token_ids
    assert second.outputs[0].cumulative_logprob == first.outputs[0].cumulative_logprob


@pytest.mark.slow
def test_it_can_be_switched_off(name: str) -> None:
    llm = load(FOLDERS[name], prefix_caching=False)
    results = [llm.generate(HEADS[name], DecodingParams(max_new_tokens=2))[0] for _ in range(2)]
    assert [result.num_cached_tokens for result in results] == [0, 0]


def test_choices_after_one_context_have_the_scores_of_whole_prompts(llm: LLM, name: str) -> None:
    """To the last bit, and the context is computed once: from the second choice on it is in the cache."""
    context = llm.required_tokenizer.encode(HEADS[name])[:50]
    choices = [[*context, *context[place : place + 1 + place % 3]] for place in range(4)]
    params = DecodingParams(max_new_tokens=1, prompt_logprobs=0)
    whole = [result.prompt_logprobs for result in llm.generate(choices, params)]
    found = llm.generate(choices, params, prompt_logprobs_start=len(context))
    assert [result.num_cached_tokens for result in found] == [48] * 4
    assert [result.prompt_logprobs for result in found] == [(each or [])[len(context) :] for each in whole]
