"""The engine's numbers are those of what it did."""

import pytest
from shadow_model import drain, make_engine, request, settings

from mindbatch.engine.engine import Engine
from mindbatch.engine.statistics import EngineStatistics

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
SAMPLING = {"do_sample": True, "seed": 1}


def used(engine: Engine) -> tuple[int, int, int]:
    now = engine.statistics
    return now.running_sequences, now.waiting_requests, now.blocks_used


def test_a_new_engine_has_done_nothing() -> None:
    fresh = make_engine(settings()).statistics
    assert fresh == EngineStatistics(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 400, 0.0)
    assert (fresh.prefix_hit_rate, fresh.cache_use) == (0.0, 0.0)


def test_totals_and_load() -> None:
    engine = make_engine(settings(batch_size=2, num_blocks=20))
    for key in "abc":
        engine.add(request(key, PROMPT, max_new_tokens=3))
    assert used(engine) == (0, 3, 0)
    engine.step()
    assert used(engine) == (1, 2, 3), "the second waits for what the first computes"
    engine.step()
    assert used(engine) == (2, 1, 4), "and shares two of its blocks"
    assert engine.statistics.cache_use == 4 / 20
    drain(engine)
    end = engine.statistics
    assert (end.prompt_tokens, end.cached_prompt_tokens, end.prefix_hit_rate) == (30, 16, 16 / 30)
    assert (end.generated_tokens, end.num_preemptions) == (9, 0)
    assert end.computed_tokens == 30 - 16 + 3 * 2, "the last token of an output is never computed"
    assert used(engine) == (0, 0, 0)


@pytest.mark.parametrize(("prefix_caching", "cached"), [(False, 0), (True, 2)])
def test_tokens_computed_again_count_as_computed_only(prefix_caching: bool, cached: int) -> None:
    engine = make_engine(settings(block_size=2, num_blocks=10, prefix_caching=prefix_caching))
    for last in (1, 2):
        engine.add(request(str(last), [*PROMPT[:3], last], max_new_tokens=12))
    drain(engine)
    end = engine.statistics
    assert end.num_preemptions > 0
    assert (end.prompt_tokens, end.cached_prompt_tokens, end.generated_tokens) == (8, cached, 24)
    assert end.computed_tokens > 8 - cached + 24 - 2


def test_waste_is_the_share_of_empty_slots_over_all_steps() -> None:
    """Blocks of four; after the steps, 2 of 12, 1 of 12 and 0 of 12 slots hold no token."""
    engine = make_engine(settings())
    engine.add(request("a", PROMPT, max_new_tokens=3))
    drain(engine)
    assert engine.statistics.cache_waste == pytest.approx(3 / 36)


def test_a_shared_block_wastes_once() -> None:
    """Five samples: all share three blocks after the prompt; then four copies of the last are made."""
    engine = make_engine(settings())
    engine.add(request("a", PROMPT, max_new_tokens=3, num_return_sequences=5, **SAMPLING))
    engine.step()
    assert engine.statistics.cache_waste == pytest.approx(2 / 12)
    engine.step()
    assert engine.statistics.cache_waste == pytest.approx((2 + 5) / (12 + 28))
    drain(engine)
    assert (engine.statistics.generated_tokens, engine.statistics.prompt_tokens) == (15, 10)


def test_forks_that_have_not_parted_yet_waste_once() -> None:
    """The step of three tokens has no room for three samples beside the other sequence."""
    engine = make_engine(settings(max_batched_tokens=3))
    engine.add(request("other", [1], max_new_tokens=3))
    engine.add(request("forks", [2, 3], max_new_tokens=3, num_return_sequences=3, **SAMPLING))
    engine.step()
    assert engine.statistics.cache_waste == pytest.approx((3 + 2) / 8)
    engine.step()
    assert engine.statistics.running_sequences == 4
    assert engine.statistics.cache_waste == pytest.approx((3 + 2 + 2 + 2) / 16)
