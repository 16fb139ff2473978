"""The measures of whole strategies, and the structure of the JSON."""

import json
import math
from dataclasses import replace

import pytest

from mindbatch.decoding import DecodingParams
from mindbatch.engine.request import RequestOutput
from mindbatch.evaluation.comparison import Setup, StrategyRun, compare
from mindbatch.evaluation.findings import alike
from strategy_results import completion, result


def test_measures_of_a_strategy_by_hand(setup: Setup, runs: list[StrategyRun]) -> None:
    greedy, mine = (report.metrics for report in compare(setup, runs).strategies)
    assert (greedy.num_outputs, greedy.num_tokens, greedy.logprob) == (2, 8, -3.0)
    assert greedy.logprob_per_token == pytest.approx(-6 / 8)
    assert greedy.perplexity == pytest.approx(math.exp(6 / 8))
    assert greedy.distinct_1 == 4 / 7  # one output of 4 tokens, one cut to the 3 that mine has there
    assert (greedy.distinct_2, greedy.distinct_3) == (3 / 5, 2 / 3)
    assert greedy.self_bleu == pytest.approx(100)
    assert (greedy.tokens_per_second, greedy.repetition) == (4.0, 0)
    assert mine.perplexity == pytest.approx(math.exp(24 / 8))  # every token counts the same
    assert mine.repetition == 0  # cut to 5555, which is one run of four; the other output is too short
    assert mine.distinct_1 == 4 / 7
    assert mine.tokens_per_second == 2.0


def test_self_bleu_is_among_samples_when_there_are_always_several(setup: Setup) -> None:
    same, other = completion(0, [1, 2, 3, 4, 5], -1.0), completion(1, [1, 2, 3, 4, 5], -1.0)
    apart = completion(1, [6, 7, 8, 9, 0], -1.0)
    params = DecodingParams(do_sample=True, num_return_sequences=2)
    twice = StrategyRun("twice", params, [result(0, same, other), result(1, same, apart)], [1.0])
    found = compare(setup, [twice])
    assert found.self_bleu_among == "samples"
    among_samples = found.strategies[0].metrics.self_bleu
    once = StrategyRun("once", DecodingParams(), [result(0, same), result(1, same)], [1.0])
    found = compare(setup, [twice, once])
    assert found.self_bleu_among == "prompts"
    assert found.strategies[0].metrics.self_bleu == pytest.approx(100)  # the first of each prompt
    assert among_samples is not None
    assert 50 <= among_samples < 60  # the mean of 100 and of next to nothing


def test_what_cannot_be_measured_is_missing(setup: Setup) -> None:
    run = StrategyRun("greedy", DecodingParams(), [result(0, completion(0, [], 0.0))], [1.0])
    metrics = compare(setup, [run]).strategies[0].metrics
    assert (metrics.perplexity, metrics.distinct_1, metrics.self_bleu, metrics.repetition) == (None,) * 4


def test_prompts_that_cannot_run_are_kept_with_their_reason(setup: Setup, runs: list[StrategyRun]) -> None:
    failed = RequestOutput.failed("2", "prompts[2]: too long", "long")
    runs = [replace(run, results=[*run.results, failed]) for run in runs]
    found = compare(setup, runs)
    assert [report.errors for report in found.strategies] == [1, 1]
    assert [prompt.prompt for prompt in found.prompts] == ["Count", "Count", "long"]
    assert found.strategies[0].metrics.num_outputs == 2


def test_without_a_tokenizer_token_ids_are_the_words(setup: Setup) -> None:
    outputs = [result(key, completion(0, [11, 12, 13, 14], -1.0, text="")) for key in range(2)]
    found = compare(setup, [StrategyRun("greedy", DecodingParams(), outputs, [1.0])], has_text=False)
    assert found.strategies[0].prompts[0].outputs[0].text == "11 12 13 14"
    assert found.strategies[0].metrics.self_bleu == pytest.approx(100)


def test_the_json_is_what_the_documentation_says(setup: Setup, runs: list[StrategyRun]) -> None:
    content = json.loads(compare(setup, runs).as_json())
    assert content.keys() == {
        "format", "setup", "self_bleu_among", "tokens_compared", "leaders", "prompts", "strategies"
    }  # fmt: skip
    assert (content["format"], content["tokens_compared"], content["leaders"]) == (2, 7, {})
    assert content["prompts"][0] == {"key": "0", "prompt": "Count", "prompt_token_ids": [5, 6]}
    mine = content["strategies"][1]
    assert mine.keys() == {"name", "strategy", "decoding", "metrics", "intervals", "timings", "prompts"}
    assert (mine["name"], mine["strategy"]) == ("mine", "sampling")
    assert mine["decoding"] == {"do_sample": True, "top_p": 0.9, "max_new_tokens": 5}
    assert mine["metrics"].keys() == {
        "num_outputs", "num_tokens", "logprob", "logprob_per_token", "perplexity", "distinct_1", "distinct_2",
        "distinct_3", "self_bleu", "repetition", "seconds", "tokens_per_second",
    }  # fmt: skip
    assert mine["prompts"][0].keys() == {"key", "error", "outputs"}
    assert mine["prompts"][0]["outputs"][0].keys() == {
        "index", "text", "token_ids", "finish_reason", "logprob", "logprob_per_token", "perplexity",
        "repetition", "score", "rank", "num_drafted_tokens", "num_accepted_tokens",
    }  # fmt: skip


def test_what_is_not_finite_is_null_in_json(setup: Setup) -> None:
    run = StrategyRun("greedy", DecodingParams(), [result(0, completion(0, [1], -math.inf))], [1.0])
    content = json.loads(compare(setup, [run]).as_json())
    assert content["strategies"][0]["metrics"]["perplexity"] is None


def test_strategies_that_gave_the_same_are_named(setup: Setup, runs: list[StrategyRun]) -> None:
    again = replace(runs[0], name="again")
    assert list(alike(compare(setup, [*runs, again]))) == [["greedy", "again"]]
    assert list(alike(compare(setup, runs))) == []
