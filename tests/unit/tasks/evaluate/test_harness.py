"""Tasks of lm-evaluation-harness as columns: what has no effect, what is finished, and without it."""

import logging
import subprocess
import sys
from pathlib import Path
from unittest import mock

import orjson
import pytest

from mindbatch.config.compose import compose_task
from mindbatch.io.amounts import today
from mindbatch.io.errors import ConfigError
from mindbatch.io.installation import missing
from mindbatch.lm_eval.__main__ import main
from mindbatch.tasks.evaluate.harness import (
    DATE,
    FINGERPRINT,
    _begun_on,
    _finished,
    _quiet,
    harness_page,
    run_harness,
)
from mindbatch.tasks.evaluate.harness import OURS as OUR_LOGGER
from mindbatch.tasks.evaluate.schema import EvaluateConfig
from mindbatch.tasks.registry import TASKS

FIRST, SECOND = "2026-07-30", "2026-07-31"
OURS = ["model=tiny_gpt2", "harness.tasks=[mine]", "harness.include_path=."]


def test_its_tasks_need_no_data() -> None:
    config = compose_task(TASKS["evaluate"], OURS).finish()
    assert isinstance(config, EvaluateConfig)
    assert config.harness.tasks == ["mine"]


def test_the_date_of_their_chats_can_be_given() -> None:
    asked = [*OURS, "harness.apply_chat_template=true", f"data.date={FIRST}"]
    config = compose_task(TASKS["evaluate"], asked).finish()
    assert isinstance(config, EvaluateConfig)
    assert config.data.date == FIRST


def test_a_page_has_its_baseline(tmp_path: Path) -> None:
    config = compose_task(TASKS["evaluate"], [*OURS, f"report={tmp_path}/page.html", "baseline=x"]).finish()
    assert isinstance(config, EvaluateConfig)
    assert config.output.dir == f"{tmp_path}/page"


def test_what_others_print_is_hidden_and_our_warnings_are_not(capfd: pytest.CaptureFixture[str]) -> None:
    for verbose in (False, True):
        config = EvaluateConfig()
        config.runtime.verbose = verbose
        with _quiet(config, "base") as on_progress:
            subprocess.run(["sh", "-c", "echo noise; echo noise >&2"], check=True)
            logging.getLogger(f"{OUR_LOGGER}.model").warning("cut")
            if on_progress is not None:
                on_progress("loglikelihood", 1, 2)
        printed = capfd.readouterr()
        assert printed.out == "noise\n" * verbose
        assert (printed.err == "mindbatch: base: cut\n") == (not verbose)
        assert printed.err.count("noise") == verbose


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ([*OURS, "metrics=[bleu]"], "metrics: has no effect with harness.tasks"),
        ([*OURS, "data.path=pyproject.toml"], "data.path: has no effect with harness.tasks"),
        ([*OURS, "baseline=x"], "baseline: has no effect with harness.tasks but on the page of report=FILE"),
        ([*OURS, f"data.date={FIRST}"], "data.date: has no effect with harness.tasks"),
        ([*OURS, "harness.apply_chat_template=true", "data.date=0"], "must be a day as YYYY-MM-DD"),
        ([*OURS, "decoding=[greedy,top_p]"], "decoding: has no effect with harness.tasks"),
        ([*OURS, "decoding.max_new_tokens=3"], "decoding: has no effect with harness.tasks"),
        ([*OURS, "task.extract=first_line"], "task.extract: has no effect with harness.tasks"),
        (["model=tiny_gpt2", "harness.limit=3"], "harness.limit: has no effect without harness.tasks"),
        (["model=tiny_gpt2", "harness.tasks=[]"], "harness.tasks=[]: must be a list of names"),
        ([*OURS, "harness.include_path=missing_folder"], "no such folder"),
    ],
)
def test_what_has_no_effect_is_refused(overrides: list[str], problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        compose_task(TASKS["evaluate"], overrides).finish()
    assert any(problem in line for line in error.value.lines), error.value.lines


def test_results_are_those_of_the_same_things_only(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    assert _finished(path, "a", FIRST) is None
    path.write_bytes(orjson.dumps({"results": {}, FINGERPRINT: "a"}))
    assert _finished(path, "a", FIRST) == {"results": {}, FINGERPRINT: "a"}
    assert _finished(path, "b", FIRST) is None
    path.write_bytes(orjson.dumps({"results": {}, FINGERPRINT: "a", DATE: FIRST}))
    assert _finished(path, "a", FIRST) is not None
    assert _finished(path, "a", SECOND) is None
    path.write_bytes(b'{"results": {')
    assert _finished(path, "a", FIRST) is None


def test_a_column_that_is_added_is_told_the_date_of_the_first(tmp_path: Path) -> None:
    for name, day in (("b", SECOND), ("a", FIRST), ("c", None)):
        (tmp_path / "columns" / name).mkdir(parents=True)
        (tmp_path / "columns" / name / "results.json").write_bytes(orjson.dumps({DATE: day}))
    assert _begun_on(tmp_path) == FIRST
    assert _begun_on(tmp_path / "columns") == today()


def test_the_table_has_a_row_for_each_metric_and_escapes_names() -> None:
    one = {"t": {"acc,none": 0.5, "acc_stderr,none": 0.25, "f1,strict": None}}
    two = {"t": {"acc,none": 1.0, "acc_stderr,none": "N/A"}, "u\x1b": {"bits,none": 2}}
    lines = [line.split() for line in harness_page({"base": one, "sft": two}).splitlines()]
    assert lines[0] == ["task", "metric", "filter", "base", "sft"]
    assert lines[2:] == [
        ["t", "acc", "none", "0.5000", "±", "0.2500", "1.0000"],
        ["t", "f1", "strict", "-", "-"],
        [lines[4][0], "bits", "none", "-", "2.0000"],
    ]
    assert "\x1b" not in lines[4][0]


@pytest.fixture
def lm_eval_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.delitem(sys.modules, "mindbatch.lm_eval.model", raising=False)


@pytest.mark.usefixtures("lm_eval_is_missing")
def test_its_command_line_says_in_a_line_that_it_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 2
    assert capsys.readouterr().err == f"mindbatch: {missing('lm_eval')}\n"


@pytest.mark.usefixtures("lm_eval_is_missing")
def test_evaluate_says_that_it_is_missing_before_a_model_is_loaded() -> None:
    config = EvaluateConfig()
    config.harness.tasks = ["mine"]
    with mock.patch("mindbatch.tasks.evaluate.runs.LLM") as llm, pytest.raises(ConfigError) as error:
        run_harness(config)
    assert error.value.lines == (f"harness.tasks: {missing('lm_eval')}",)
    assert not llm.mock_calls
