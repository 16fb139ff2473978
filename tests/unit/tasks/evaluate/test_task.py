"""The task as a whole over a model without a network; it writes over its own files only."""

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import orjson
import pytest

from mindbatch.config.paths import page_error
from mindbatch.io.errors import ConfigError
from mindbatch.prompts.tokenizer import Tokenizer
from mindbatch.tasks.evaluate.schema import GENERATOR, EvaluateConfig, evaluation_folder_error
from mindbatch.tasks.evaluate.task import run
from shadow_llm import load_tokenizer, logits_after, make_llm
from stub_job import lines_of, shared_tokenizer

from .conftest import Configured

FIRST, SECOND = "2026-07-30", "2026-07-31"


def results(config: EvaluateConfig) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads((Path(config.output.dir or "") / "results.json").read_bytes())
    return found


def finish(config: EvaluateConfig) -> dict[str, Any]:
    assert run(config) == 0
    return results(config)


def logprob_of(tokens: list[int], first: int) -> float:
    """Of tokens[first:], by the rule of the model itself."""
    total = 0.0
    for place in range(first, len(tokens)):
        logits = logits_after(tokens[:place]).astype(np.float64)
        total += logits[tokens[place]] - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
    return total


def test_perplexity_is_that_of_the_right_answers(configured: Configured, shadow: mock.Mock) -> None:
    found = finish(configured(("perplexity", "bits_per_byte")))["columns"]["model"]["results"]
    tokenizer = shared_tokenizer()
    prompts = [tokenizer.encode(f"{number} and {number} is") for number in range(6)]
    whole = [tokenizer.encode(f"{number} and {number} is {2 * number}") for number in range(6)]
    total = sum(logprob_of(tokens, len(prompt)) for tokens, prompt in zip(whole, prompts, strict=True))
    count = sum(map(len, whole)) - sum(map(len, prompts))
    assert found["perplexity,none"] == pytest.approx(np.exp(-total / count), rel=1e-5)
    num_bytes = sum(len(f" {2 * number}") for number in range(6))
    assert found["bits_per_byte,none"] == pytest.approx(-total / num_bytes / np.log(2), rel=1e-5)


def test_the_likeliest_choice_is_the_models(configured: Configured, shadow: mock.Mock) -> None:
    config = configured(("acc",), choices="options")
    found = finish(config)["columns"]["model"]["results"]
    tokenizer, right = shared_tokenizer(), 0
    for number in range(6):
        prompt = tokenizer.encode(f"{number} and {number} is")
        sums = [
            logprob_of(tokenizer.encode(f"{number} and {number} is {text}"), len(prompt))
            for text in (str(2 * number), "99")
        ]
        right += sums[0] >= sums[1]
    assert found["acc,none"] == pytest.approx(right / 6)


def test_a_column_that_is_added_is_all_that_is_run(configured: Configured, shadow: mock.Mock) -> None:
    first = finish(configured(("exact_match", "perplexity")))
    assert shadow.call_count == 1
    finish(configured(("exact_match", "perplexity")))
    assert shadow.call_count == 1, "nothing was left to run, so nothing is loaded"
    home = Path(configured().output.dir or "")
    ledgers = [home / "columns/model+greedy/generation", home / "scored/model/likelihood"]
    before = [(folder / "ledger.jsonl").stat().st_mtime_ns for folder in ledgers]
    both = finish(configured(("exact_match", "perplexity"), ("greedy", "sampling")))
    assert (shadow.call_count, list(both["columns"])) == (2, ["greedy", "sampling"])
    assert both["columns"]["greedy"]["results"] == first["columns"]["model"]["results"]
    assert [(folder / "ledger.jsonl").stat().st_mtime_ns for folder in ledgers] == before
    assert sorted(each.name for each in (home / "scored").iterdir()) == ["model"]
    assert both["columns"]["sampling"]["differences"]["exact_match"]["test"] == "mcnemar"


def test_extracted_answers_are_scored_and_shown_as_samples(configured: Configured, shadow: mock.Mock) -> None:
    config = configured(("exact_match",), extract="pattern", extract_pattern="(.)", reference_column="prompt")
    finish(config)
    samples = Path(config.output.dir or "") / "columns/model+greedy/samples_sums.jsonl"
    lines = [orjson.loads(line) for line in samples.read_bytes().splitlines()]
    assert [line["doc_id"] for line in lines] == list(range(6))
    text = lines[0]["resps"][0][0]
    visible = text.replace("\n", "")
    assert lines[0]["filtered_resps"] == [visible[-1] if visible else None]
    assert lines[0]["exact_match"] in (0.0, 1.0)


def test_instructions_are_no_answers_to_be_extracted(configured: Configured, shadow: mock.Mock) -> None:
    names = ["prompt_level_strict_acc", "inst_level_strict_acc"]
    row = {"prompt": "a", "ids": ["keywords:existence"], "kwargs": [{"keywords": ["no such word"]}]}
    columns = {"instructions_column": "ids", "arguments_column": "kwargs"}
    found = finish(configured((*names,), asked=[row], extract="letter", **columns))
    assert [found["columns"]["model"]["results"][f"{name},none"] for name in names] == [0.0, 0.0]


def test_a_row_that_cannot_run_is_wrong_and_told(
    configured: Configured, shadow: mock.Mock, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [{"prompt": "x" * 400, "reference": "y"}, {"prompt": "a", "reference": "b"}]
    config = configured(("exact_match", "perplexity"), asked=asked)
    assert run(config) == 1
    config.data.max_errors = 1
    assert run(config) == 0
    found = results(config)["columns"]["model"]
    assert (found["errors"], found["rows"]) == (1, {"exact_match": 2, "perplexity": 1})
    printed = capsys.readouterr()
    assert "perplexity: 1 question left out, which not every column could run" in printed.out
    assert "asked.jsonl:1: the prompt has 402 tokens" in printed.err


def test_a_column_without_a_row_that_ran_has_no_score(
    configured: Configured, shadow: mock.Mock, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [{"prompt": "x" * 400, "reference": "y"}]
    config = configured(("exact_match", "perplexity"), ("greedy", "sampling"), asked=asked)
    assert run(config) == 1
    found = results(config)["columns"]["sampling"]
    assert (found["errors"], found["rows"]) == (1, {"exact_match": 0, "perplexity": 0})
    assert (found["results"]["exact_match,none"], found["differences"]) == (None, {})
    printed = capsys.readouterr().out
    assert "exact_match: nothing was scored, for no question could be run" in printed
    assert "0.0%" not in printed


def test_an_unknown_baseline_is_refused_before_anything_runs(
    configured: Configured, shadow: mock.Mock
) -> None:
    config = configured()
    config.baseline = "gredy"
    with pytest.raises(ConfigError, match="baseline='gredy': no such column; there are model"):
        run(config)
    assert not Path(config.output.dir or "").exists()


@pytest.fixture(scope="module")
def dated(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    template = "{{ strftime_now('%d %b %Y') }} {{ messages[0].content }}"
    return load_tokenizer(tmp_path_factory.mktemp("dated"), chat_template=template)


def test_chats_of_all_columns_are_told_one_date(
    dated: Tokenizer,
    configured: Configured,
    shadow: mock.Mock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a command on a later day as well, whether the chats are continued or scored."""
    shadow.side_effect = lambda *_, **__: make_llm(dated, batch_size=3)

    def on(day: str, home: Path, decodings: tuple[str, ...]) -> dict[str, list[dict[str, Any]]]:
        for module in ("run.job", "prompts.chat", "tasks.evaluate.runs"):
            monkeypatch.setattr(f"mindbatch.{module}.today", lambda: day)
        config = configured(("exact_match", "perplexity"), decodings, data={"chat": True})
        config.output.dir = str(home)
        with mock.patch("mindbatch.tasks.evaluate.requests.Tokenizer.load", return_value=dated):
            finish(config)
        found = [*home.glob("columns/*/*/results.jsonl"), *home.glob("scored/*/*/results.jsonl")]
        return {str(path.relative_to(home)): lines_of(path) for path in found}

    both = ("greedy", "sampling")
    whole, other = on(FIRST, tmp_path / "whole", both), on(SECOND, tmp_path / "other", both)
    assert all(whole[name] != other[name] for name in whole)
    on(FIRST, tmp_path / "evaluation", both[:1])
    assert on(SECOND, tmp_path / "evaluation", both) == whole


def test_a_column_that_is_added_has_the_seed_that_was_drawn(
    configured: Configured, shadow: mock.Mock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def drawing(seed: int, home: str, names: tuple[str, ...]) -> dict[str, Any]:
        config = configured(("exact_match", "perplexity"), names)
        for each in config.variants.values():
            each.seed = seed
        config.drawn = {"decoding.seed": seed}
        config.output.dir = str(tmp_path / home)
        finish(config)
        name = "columns/model+sampling/generation/results.jsonl"
        return {"seed": config.drawn["decoding.seed"], "lines": lines_of(tmp_path / home / name)}

    both = ("greedy", "sampling")
    whole, other = drawing(11, "whole", both), drawing(12, "other", both)
    assert whole != other
    config = configured(("exact_match",), both[:1])
    config.variants["greedy"].seed, config.drawn = 11, {"decoding.seed": 11}
    config.output.dir = str(tmp_path / "evaluation")
    finish(config)
    assert drawing(13, "evaluation", both) == whole
    assert capsys.readouterr().err.count("decoding.seed=11 was drawn") == 3


@pytest.mark.parametrize("name", ["results.json", "notes.txt"])
def test_a_folder_with_somebody_elses_files_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("precious")
    expected = f"has {name} in it but no evaluation; give a new or empty folder"
    assert evaluation_folder_error(tmp_path) == expected


@pytest.mark.parametrize("names", [[], ["requests"], ["columns", "logs", "results.json"]])
def test_an_empty_folder_and_an_interrupted_evaluation_are_taken(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).touch()
    assert evaluation_folder_error(tmp_path) is None
    assert evaluation_folder_error(tmp_path / "new") is None


@pytest.mark.parametrize("content", ['{"id": 1}\n', "<!doctype html><title>ours?</title>"])
def test_a_file_that_is_no_report_is_not_replaced(tmp_path: Path, content: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(content)
    assert page_error(GENERATOR)(path) == "already exists and is no report; use another name"
    assert page_error(GENERATOR)(tmp_path / "new.html") is None


@pytest.mark.usefixtures("shadow")
def test_the_same_command_writes_its_own_files_again(configured: Configured, tmp_path: Path) -> None:
    config = configured()
    config.report = str(tmp_path / "report.html")
    assert run(config) == 0
    assert page_error(GENERATOR)(Path(config.report)) is None
    assert evaluation_folder_error(Path(config.output.dir or "")) is None
