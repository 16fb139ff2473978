"""The page: what it says, and that nothing of the data is more than text on it."""

import re
from pathlib import Path
from typing import Any

import orjson
import pytest

from browser import PHONE, Tags, needs_chromium, width_on_a_phone
from mindbatch.evaluation import metric_of
from mindbatch.tasks.evaluate import report
from mindbatch.tasks.evaluate.task import run

from .conftest import Configured

HOSTILE = "</p></details></script><script>alert(1)</script><img src=x onerror=alert(2)> \u202e javascript:3"


def page_of(configured: Configured, tmp_path: Path, rows: list[dict[str, object]]) -> str:
    config = configured(("exact_match", "f1"), ("greedy", "sampling"), asked=rows)
    config.report = str(tmp_path / "report.html")
    run(config)
    return Path(config.report).read_text(encoding="utf-8")


@pytest.mark.usefixtures("shadow")
def test_hostile_texts_are_text(configured: Configured, tmp_path: Path) -> None:
    page = page_of(configured, tmp_path, [{"prompt": HOSTILE, "reference": HOSTILE}])
    found = Tags(page)
    assert not {"script", "img", "a", "iframe", "link", "object"} & {tag for tag, _ in found.tags}
    assert not [name for _, attributes in found.tags for name in attributes if name.startswith("on")]
    policies = [each["content"] or "" for tag, each in found.tags if tag == "meta" and "http-equiv" in each]
    assert [policy.partition(";")[0] for policy in policies] == ["default-src 'none'"]
    assert "alert(1)" in found.text
    assert "\u202e" not in page


@pytest.mark.usefixtures("shadow")
def test_filters_count_the_questions_that_they_show(configured: Configured, tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"prompt": f"{n} is", "reference": "x"} for n in range(8)]
    page = page_of(configured, tmp_path, rows)
    labels = dict(re.findall(r'<label for="show-(\w+)">[^<]*\((\d+)\)</label>', page))
    assert labels == {"all": "8", "wrong": "8"}
    assert len(re.findall(r'class="question [^"]*wrong', page)) == 8
    assert "No column differs from greedy by more than noise in: Exact match" in page


@pytest.mark.usefixtures("shadow")
def test_a_page_of_bounded_size_has_the_questions_that_differ(
    configured: Configured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "MAX_QUESTIONS", 3)
    monkeypatch.setattr(report, "LONGEST_TEXT", 5)
    rows: list[dict[str, object]] = [{"prompt": f"{n} is a number", "reference": "x"} for n in range(6)]
    page = page_of(configured, tmp_path, rows)
    assert page.count('class="question') == 3
    assert "3 of 6 questions" in page
    assert "… (13 characters)" in page


@pytest.mark.usefixtures("shadow")
@pytest.mark.parametrize(
    ("metrics", "task", "said", "scored", "arguments"),
    [
        ("perplexity", {}, "the first right answer, after one space", "&#x27; 7&#x27;", [" 7"]),
        (
            "perplexity",
            {"target_prefix": " "},
            "the first right answer, after task.target_prefix=&#x27; &#x27;",
            "&#x27;  7&#x27;",
            ["  7"],
        ),
        ("acc", {"choices": "options"}, "each choice, after one space", None, [" 7", " 8"]),
        ("perplexity", {"text_column": "prompt"}, "every token of a text", None, [None]),
        ("exact_match", {}, None, None, [None]),
    ],
)
def test_page_and_samples_say_what_was_scored(
    configured: Configured,
    tmp_path: Path,
    metrics: str,
    task: dict[str, Any],
    said: str | None,
    scored: str | None,
    arguments: list[str | None],
) -> None:
    row = {"prompt": "3 and 4 is", "reference": " 7", "options": ["7", "8"], "answer": 0}
    config = configured((metrics,), asked=[row], **task)
    config.report = str(tmp_path / "report.html")
    assert run(config) == 0
    page = Path(config.report).read_text(encoding="utf-8")
    assert (f"Scored: {said}" in page) == ("Scored: " in page) == (said is not None)
    assert (f"of {scored}" in page) == ("scored: " in page) == (scored is not None)
    [sample] = (tmp_path / "evaluation/columns/model+greedy").glob("samples_*.jsonl")
    asked = orjson.loads(sample.read_bytes())["arguments"].values()
    assert [each.get("arg_1") for each in asked] == arguments


@needs_chromium
@pytest.mark.slow
@pytest.mark.usefixtures("shadow")
def test_nothing_runs_out_of_a_phone(configured: Configured, tmp_path: Path) -> None:
    long = "a_name_that_no_phone_has_room_for_even_if_it_is_a_large_one"
    rows: list[dict[str, object]] = [{"prompt": f"{n} is {long}", "reference": long} for n in range(6)]
    page = page_of(configured, tmp_path, rows).replace("sampling", long).replace("asked", long)
    assert width_on_a_phone(page, tmp_path) <= PHONE


@pytest.mark.parametrize(
    ("metric", "value", "sign", "text"),
    [
        ("exact_match", -0.0004, "", "0.0%"),
        ("exact_match", -0.0004, "+", "+0.0%"),
        ("exact_match", -0.0006, "+", "-0.1%"),
        ("perplexity", -0.004, "+", "+0.00"),
        ("perplexity", -1.994, "", "-1.99"),
    ],
)
def test_what_is_shown_as_zero_has_no_minus(metric: str, value: float, sign: str, text: str) -> None:
    assert metric_of(metric).text(value, sign) == text
