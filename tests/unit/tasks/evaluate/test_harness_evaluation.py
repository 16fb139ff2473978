"""What the harness left of its columns as an evaluation, for the page."""

import re
from pathlib import Path
from typing import Any

import orjson
import pytest

from mindbatch.io.errors import ConfigError
from mindbatch.tasks.evaluate.columns import columns_of
from mindbatch.tasks.evaluate.harness_evaluation import harness_evaluation
from mindbatch.tasks.evaluate.report import report_page
from mindbatch.tasks.evaluate.results import Evaluation

from .conftest import Configured

COUNT = 8


def sample(number: int, *, filtered: str = "none", **parts: Any) -> dict[str, Any]:
    return {"doc_id": number, "filter": filtered, "target": 0, **parts}


def column(is_right: bool) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
    """results.json and samples: choices, answers read in two ways, texts, and a score of pairs of texts."""
    answer, loglikelihood = " two" if is_right else " three", -2.0 if is_right else -3.0
    choices = [["<b>one is", " one"], ["<b>one is", " two"]]
    samples = {
        "choose": [
            sample(
                n,
                arguments=choices,
                resps=[[[-1.0, 1]], [[-2.0, 0]]],
                filtered_resps=[],
                acc=float(is_right or n > 0),
            )
            for n in range(COUNT)
        ],
        "say": [
            sample(
                n,
                filtered=filtered,
                arguments=[["one and one is", {"until": ["."]}]],
                resps=[[answer]],
                filtered_resps=[answer.strip()],
                target=" two",
                exact_match=float(is_right),
                bleu=["a", "b"],
            )
            for filtered in ("strict", "loose")
            for n in range(COUNT)
        ],
        "read": [
            sample(
                n,
                arguments=[["one two"]],
                resps=[[loglikelihood]],
                filtered_resps=[loglikelihood],
                word_perplexity=[loglikelihood, 2],
            )
            for n in range(COUNT)
        ],
    }
    right, perplexity = float(is_right), 2.718281828459045 ** (-loglikelihood / 2)
    accuracy = 1.0 if is_right else (COUNT - 1) / COUNT
    results = {
        "results": {
            "choose": {"alias": "choose", "acc,none": accuracy, "acc_stderr,none": 0.0},
            "say": {
                "exact_match,strict": right,
                "exact_match,loose": right,
                "bleu,strict": 30.0,
                "bleu_stderr,strict": 2.0,
            },
            "read": {"word_perplexity,none": perplexity},
        },
        "groups": {"all": {"acc,none": 0.5, "acc_stderr,none": "N/A"}},
        "configs": dict.fromkeys(samples, {}),
        "higher_is_better": {"choose": {"acc": True}, "read": {"word_perplexity": False}},
        "n-samples": {name: {"effective": COUNT} for name in samples},
    }
    return results, samples


def evaluation(configured: Configured, **keys: Any) -> Evaluation:
    config = configured(decodings=("greedy", "sampling"))
    config.harness.tasks = ["choose", "say", "read"]
    for name, value in keys.items():
        setattr(config, name, value)
    columns = columns_of(config)
    for each, is_right in zip(columns, (True, False), strict=True):
        folder = Path(config.output.dir or "") / "columns" / each.folder
        folder.mkdir(parents=True)
        results, samples = column(is_right)
        (folder / "results.json").write_bytes(orjson.dumps(results))
        for name, lines in samples.items():
            data = b"".join(orjson.dumps(line) + b"\n" for line in lines)
            (folder / f"samples_{name}.jsonl").write_bytes(data)
    return harness_evaluation(config, columns)


def test_scores_that_follow_from_the_questions_are_compared(configured: Configured) -> None:
    found = {each.metric.title: each for each in evaluation(configured).scores}
    assert list(found) == [
        "choose: acc",
        "say: exact_match (strict)",
        "say: exact_match (loose)",
        "say: bleu (strict)",
        "read: word_perplexity",
        "all: acc",
    ]
    right = found["say: exact_match (loose)"].differences["sampling"]
    assert (right.value, right.test, right.lost, right.is_beyond_chance) == (-1.0, "mcnemar", COUNT, True)
    perplexity = found["read: word_perplexity"]
    assert perplexity.metric.best == "low"
    assert perplexity.differences["sampling"].value == pytest.approx(4.48169 - 2.71828, abs=1e-4)
    assert not found["choose: acc"].differences["sampling"].is_beyond_chance


def test_other_scores_are_as_the_harness_has_them(configured: Configured) -> None:
    found = {each.metric.title: each for each in evaluation(configured).scores}
    bleu = found["say: bleu (strict)"]
    assert (bleu.differences, bleu.estimates["greedy"].interval) == ({}, pytest.approx((26.08, 33.92)))
    group = found["all: acc"]
    assert (group.estimates["greedy"].value, group.estimates["greedy"].interval) == (0.5, None)


def test_the_page_has_every_answer_and_its_verdict(configured: Configured) -> None:
    page = report_page(evaluation(configured))
    assert page.count('<details class="question') == 3 * COUNT
    assert page.count("verdict wrong") == COUNT + 1
    assert page.count("verdict right") == 3 * COUNT - 1
    assert "likeliest: one (-1.00)" in page
    assert "&lt;b&gt;one is" in page
    assert "<b>one is" not in page


def test_a_point_is_empty_where_a_column_is_worse_beyond_chance(configured: Configured) -> None:
    """Not where it is worse for one question of eight."""
    page = report_page(evaluation(configured))
    charts = dict(re.findall(r"<figure><h3>([^<]*)</h3>(.*?)</figure>", page))
    empty = {title: chart.count("behind") for title, chart in charts.items()}
    assert empty == {
        "choose: acc": 0,
        "say: exact_match (strict)": 1,
        "say: exact_match (loose)": 1,
        "say: bleu (strict)": 0,
        "read: word_perplexity": 1,
        "all: acc": 0,
    }
    assert "An empty point is worse than greedy by more than noise." in page


def test_the_baseline_is_a_column(configured: Configured) -> None:
    found = evaluation(configured, baseline="sampling")
    assert [*found.scores[1].differences] == ["greedy"]
    misspelt = _named(configured, "samplin")
    with pytest.raises(ConfigError, match="did you mean sampling"):
        harness_evaluation(misspelt, columns_of(misspelt))


def _named(configured: Configured, baseline: str) -> Any:
    config = configured(decodings=("greedy", "sampling"))
    config.baseline, config.harness.tasks = baseline, ["say"]
    return config
