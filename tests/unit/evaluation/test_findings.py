"""Who stands out: only beyond what other prompts, or another moment of the machine, could bring."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from mindbatch.decoding import DecodingParams
from mindbatch.evaluation.comparison import Comparison, Setup, StrategyRun, compare
from mindbatch.evaluation.findings import BEST, LEVEL, headlines, marks_of, untold
from mindbatch.evaluation.noise import FEWEST_PROMPTS
from strategy_results import completion, result

QUICK, SLOW = [1.0, 1.1, 1.0], [2.0, 2.1, 1.9]


def run_of(
    name: str,
    logprobs: Sequence[float],
    timings: Sequence[float] = QUICK,
    tokens: Sequence[int] = (1, 2, 3, 4),
) -> StrategyRun:
    """A strategy that gave each prompt the same tokens, as likely as the prompt's number says."""
    results = [result(key, completion(0, tokens, logprob)) for key, logprob in enumerate(logprobs)]
    return StrategyRun(name, DecodingParams(), results, timings)


def told(setup: Setup, *runs: StrategyRun) -> dict[str, tuple[str, str]]:
    return {each.title: (each.who, each.number) for each in headlines(compare(setup, runs))}


def test_better_for_every_prompt_stands_out(setup: Setup) -> None:
    likely = [-1.0 - key % 3 for key in range(12)]
    good, bad = run_of("good", likely), run_of("bad", [value - 1 for value in likely])
    found = told(setup, bad, good)
    assert found["Likeliest text"] == ("good", "perplexity 1.65")
    assert "Most varied" not in found  # they gave the same tokens
    assert "Fastest" not in found  # within the noise of the timings


def test_better_for_one_prompt_and_worse_for_another_is_noise(setup: Setup) -> None:
    first = run_of("first", [-1.0, -3.0] * 6)
    second = run_of("second", [-3.0, -0.8] * 6)
    found = compare(setup, [first, second])
    values = [report.metrics.perplexity for report in found.strategies]
    assert values[0] != values[1]
    assert found.leaders["perplexity"] == ["first", "second"]
    assert marks_of(found, "perplexity") == {}


def test_ties_share_a_headline(setup: Setup) -> None:
    good = run_of("good", [-1.0] * 8)
    found = told(setup, good, replace(good, name="again"), run_of("bad", [-2.0] * 8))
    assert found["Likeliest text"][0] == "good, again"


def test_who_is_level_with_the_best_has_its_own_number_and_no_star(setup: Setup) -> None:
    """The best of all by a little, and by a lot for some prompts only."""
    best = run_of("best", [-1.0, -3.0] * 6)
    level = run_of("level", [-3.0, -1.2] * 6)
    same = run_of("same", [-1.0, -3.0001] * 6)
    found = compare(setup, [level, same, best, run_of("bad", [-9.0] * 12)])
    likeliest = headlines(found)[0]
    assert (likeliest.who, likeliest.number) == ("same, best", "perplexity 1.65")
    assert likeliest.level == "level 1.69"
    assert marks_of(found, "perplexity") == {"level": LEVEL, "same": BEST, "best": BEST}


@pytest.mark.parametrize("count", [2, FEWEST_PROMPTS - 1])
def test_too_few_prompts_tell_nothing(setup: Setup, count: int) -> None:
    found = compare(setup, [run_of("good", [-1.0] * count), run_of("bad", [-9.0] * count)])
    assert headlines(found) == []
    assert not any("perplexity" in report.intervals for report in found.strategies)
    assert f"{count} prompts are too few" in untold(found)[0]


def test_the_fastest_is_faster_in_each_timing(setup: Setup) -> None:
    quick, slow = run_of("quick", [-1.0] * 2), run_of("slow", [-1.0] * 2, SLOW)
    assert told(setup, slow, quick)["Fastest"] == ("quick", "tokens/s 8")
    overlapping = run_of("overlapping", [-1.0] * 2, [1.05, 2.0, 2.0])
    found = compare(setup, [quick, overlapping, slow])
    [fastest] = headlines(found)
    assert (fastest.who, fastest.number, fastest.level) == ("quick", "tokens/s 8", "overlapping 4")
    assert marks_of(found, "tokens_per_second") == {"quick": BEST, "overlapping": LEVEL}
    soon = run_of("soon over", [-1.0] * 2, [0.5, 0.5, 0.5], tokens=(1,))
    assert told(setup, soon, quick)["Fastest"] == ("quick", "tokens/s 8")


def test_one_timing_crowns_nobody(setup: Setup) -> None:
    found = compare(setup, [run_of("quick", [-1.0] * 9, [1.0]), run_of("slow", [-1.0] * 9, [9.0])])
    assert headlines(found) == []
    assert "Timed fewer than 3 times" in untold(found)[0]


def test_a_short_text_is_not_the_most_varied(setup: Setup) -> None:
    """Of the same sequence the beginning has the larger share of different tokens."""
    tokens = [1, 2, 3, 4, 1, 2, 3, 4]
    found = compare(
        setup, [run_of("short", [-1.0] * 8, tokens=tokens[:4]), run_of("long", [-1.0] * 8, tokens=tokens)]
    )
    assert found.tokens_compared == 32
    assert found.strategies[0].metrics.distinct_2 == found.strategies[1].metrics.distinct_2
    assert "Most varied" not in {each.title for each in headlines(found)}


def interval_of(found: Comparison) -> tuple[float, float]:
    return found.strategies[0].intervals["logprob"]


def test_intervals_hold_the_value_and_shrink_with_more_prompts(setup: Setup) -> None:
    few = compare(setup, [run_of("a", [-1.0, -3.0] * 5)])
    many = compare(setup, [run_of("a", [-1.0, -3.0] * 50)])
    for found in (few, many):
        low, high = interval_of(found)
        assert low < -2.0 < high
    # The standard error of the mean is 1 / sqrt(prompts): 0.32 and 0.1.
    assert interval_of(few)[1] - interval_of(few)[0] == pytest.approx(4 * 0.32, rel=0.25)
    assert interval_of(many)[1] - interval_of(many)[0] == pytest.approx(4 * 0.1, rel=0.25)
