"""Searches through the engine: what they return, what they stream and where they end."""

from typing import Any

import numpy as np
import pytest
from shadow_model import (
    VOCABULARY,
    drain,
    fingerprints,
    hidden_of,
    logits_of,
    make_engine,
    request,
    run_all,
    settings,
    text_of,
)

from mindbatch.engine.request import CompletionOutput

PROMPT = [3, 1, 4, 1, 5]
CONTRASTIVE: dict[str, Any] = {"penalty_alpha": 0.6, "top_k": 4}
RANKED: dict[str, Any] = {"do_sample": True, "best_of": 6, "seed": 4}
BEAMS: dict[str, Any] = {"num_beams": 4}
SEARCHES = {
    "contrastive": CONTRASTIVE,
    "sample_and_rank": RANKED,
    "beam_search": BEAMS,
    "beam_sampling": {**BEAMS, "do_sample": True, "seed": 2},
    "group_beam_search": {**BEAMS, "num_beam_groups": 2, "diversity_penalty": 0.7},
}


def contrastive_tokens(prompt: list[int], count: int, alpha: float, k: int) -> list[int]:
    """What contrastive search must give, straight from its definition."""
    tokens = list(prompt)
    for _ in range(count):
        states = fingerprints(tokens)
        logits = logits_of(states[-1]).astype(np.float64)
        probabilities = np.exp(logits) / np.exp(logits).sum()
        context = [unit(state) for state in states]
        scores = {}
        for candidate in np.argsort(-logits)[:k].tolist():
            hidden = unit(fingerprints([*tokens, candidate])[-1])
            likeness = max(float(hidden @ other) for other in context)
            scores[candidate] = (1 - alpha) * probabilities[candidate] - alpha * likeness
        tokens.append(max(scores, key=lambda candidate: scores[candidate]))
    return tokens[len(prompt) :]


def unit(state: int) -> Any:
    hidden = hidden_of(state).astype(np.float64)
    return hidden / np.linalg.norm(hidden)


def one(params: dict[str, Any], eos: tuple[int, ...] = (), **sizes: int) -> CompletionOutput:
    """The only output of PROMPT."""
    results = run_all(make_engine(settings(**sizes), eos), [request("row", PROMPT, **params)])
    [output] = results["row"].outputs
    return output


@pytest.mark.parametrize("alpha", [0.2, 0.6, 1.0])
@pytest.mark.parametrize("k", [2, 4, VOCABULARY])
def test_contrastive_search_follows_its_definition(alpha: float, k: int) -> None:
    output = one({"penalty_alpha": alpha, "top_k": k, "max_new_tokens": 12}, batch_size=12)
    assert output.token_ids == contrastive_tokens(PROMPT, 12, alpha, k)
    assert (output.finish_reason, output.score, output.rank) == ("length", None, None)


def test_contrastive_search_knows_a_prompt_that_came_in_chunks_and_from_the_cache() -> None:
    engine = make_engine(settings(max_batched_tokens=4, block_size=2))
    long = [*PROMPT, 9, 2, 6, 5, 3]
    for key in "ab":  # the second finds the blocks of the first, and may not use them
        results = run_all(engine, [request(key, long, **CONTRASTIVE, max_new_tokens=8)])
        assert results[key].outputs[0].token_ids == contrastive_tokens(long, 8, 0.6, 4)


def test_ranked_samples_are_the_likeliest_of_all() -> None:
    both = {"do_sample": True, "seed": 4, "max_new_tokens": 9}
    ranked, free = (
        run_all(make_engine(settings(), eos=(0,)), [request("row", PROMPT, **both, **more)])["row"].outputs
        for more in ({"best_of": 6, "num_return_sequences": 3}, {"num_return_sequences": 6})
    )
    free.sort(key=lambda output: -output.cumulative_logprob / len(output.token_ids))
    assert [output.token_ids for output in ranked] == [output.token_ids for output in free[:3]]
    assert [output.rank for output in ranked] == [1, 2, 3]
    for output in ranked:
        assert output.score == pytest.approx(output.cumulative_logprob / len(output.token_ids))
    assert len({len(output.token_ids) for output in free}) > 1


def test_contrastive_search_streams_each_token_once_it_is_taken() -> None:
    engine = make_engine(settings())
    engine.add(request("row", PROMPT, **CONTRASTIVE, max_new_tokens=6))
    _, events = drain(engine)
    assert [len(event.token_ids) for event in events] == [1] * 6


@pytest.mark.parametrize("search", [CONTRASTIVE, RANKED], ids=["contrastive", "sample_and_rank"])
def test_a_search_ends_at_a_stop_string(search: dict[str, Any]) -> None:
    params = {**search, "max_new_tokens": 12}
    free = one(params)
    place = next(n for n in range(3, 12) if free.text.find(free.text[n - 1 : n + 1]) == n - 1)
    if search is RANKED:
        params |= {"length_penalty": 0.0, "best_of": 1}
        free = one(params)
    stop = free.text[place - 1 : place + 1]
    output = one({**params, "stop": [stop]})
    assert stop in free.text
    assert (output.text, output.finish_reason) == (free.text[: free.text.index(stop)], "stop")
    assert text_of(output.token_ids) == free.text[: free.text.index(stop) + 2]
