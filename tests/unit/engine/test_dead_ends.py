"""A request that cannot go on ends with its reason; the others do not notice."""

from collections.abc import Sequence
from typing import Any

import pytest
from shadow_model import drain, make_engine, request, run_all, settings

PROMPT = [3, 1, 4]
STRATEGIES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampling": {"do_sample": True, "num_return_sequences": 2},
    "sample_and_rank": {"do_sample": True, "best_of": 3},
    "contrastive": {"penalty_alpha": 0.6, "top_k": 3},
    "beam_search": {"num_beams": 3},
    "beam_sampling": {"num_beams": 3, "do_sample": True},
    "group_beam_search": {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5},
    "speculative": {"prompt_lookup_num_tokens": 2},
}


def nothing_after_four(key: str, tokens: Sequence[int]) -> Sequence[int]:
    """Allows everything until there are four tokens of output."""
    return range(1, 12) if len(tokens) < len(PROMPT) + 4 else []


def others() -> list[Any]:
    """A request of each strategy."""
    return [request(f"other {name}", PROMPT, **more) for name, more in STRATEGIES.items()]


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """The results of the others where none has a dead end."""
    return run_all(make_engine(settings(batch_size=32)), others())


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize("params", STRATEGIES.values(), ids=STRATEGIES)
def test_a_dead_end_ends_one_request(params: dict[str, Any], alone: dict[str, Any]) -> None:
    engine = make_engine(settings(batch_size=32))
    dead = request("dead", PROMPT, **params, prefix_allowed_tokens_fn=nothing_after_four)
    for asked in [*others()[:3], dead, *others()[3:]]:
        engine.add(asked)
    results, _ = drain(engine)
    failed = results.pop("dead")
    assert failed.outputs == []
    assert failed.error is not None
    assert failed.error.startswith("dead: no token is left")
    assert "prefix_allowed_tokens_fn" in failed.error
    assert {key: [o.token_ids for o in result.outputs] for key, result in results.items()} == {
        key: [o.token_ids for o in result.outputs] for key, result in alone.items()
    }


def test_a_function_that_fails_is_named() -> None:
    def broken(key: str, tokens: Sequence[int]) -> Sequence[int]:
        raise KeyError("colour")

    results = run_all(make_engine(settings()), [request("row", PROMPT, prefix_allowed_tokens_fn=broken)])
    assert results["row"].error == "row: decoding.prefix_allowed_tokens_fn: KeyError('colour')"


def test_a_function_that_fails_for_one_beam_ends_the_search() -> None:
    calls = []

    def broken(key: str, tokens: Sequence[int]) -> Sequence[int]:
        calls.append(tokens)
        if len(calls) == 4:
            raise KeyError("colour")
        return range(12)

    asked = request("row", PROMPT, num_beams=3, prefix_allowed_tokens_fn=broken)
    results = run_all(make_engine(settings()), [asked])
    assert results["row"].error == "row: decoding.prefix_allowed_tokens_fn: KeyError('colour')"
