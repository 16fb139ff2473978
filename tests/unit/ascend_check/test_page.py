"""The page that is sent back, the words for the terminal, and the job over two devices."""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from ascend_check import __main__ as check
from ascend_check import two_devices
from ascend_check.page import COMPILED, FAILED, PASSED, SKIPPED, Result, page
from ascend_check.two_devices import CommandError
from mindbatch.io.errors import BackendError

RESULTS = [
    Result("operator", "RmsNorm", "bfloat16", PASSED, "0.00100 of 0.05000 allowed"),
    Result("model", "qwen3", "bfloat16", FAILED, "a | b\nc"),
    Result("devices", "two of them", "", SKIPPED, "one process"),
]


@pytest.mark.needs("mindspore")
def test_the_page_counts_and_lists_every_check() -> None:
    text = page(RESULTS, simulated=False)
    assert "Checked on an NPU: 1 passed, 0 compiled, 1 failed, 1 skipped." in text
    assert "| operator | RmsNorm | bfloat16 | passed | 0.00100 of 0.05000 allowed |" in text
    assert "| model | qwen3 | bfloat16 | failed | a \\| b c |" in text
    assert f"- mindspore: {version('mindspore')}" in text


def test_what_a_failed_job_said_is_below_the_table() -> None:
    log = ("rank_0.log: no device", "```\033[2J")
    text = page([Result("devices", "two of them", "", FAILED, "exit code 1", log)], simulated=False)
    assert "| devices | two of them |  | failed | exit code 1 |\n" in text
    assert "Log of devices, two of them:\n\n    rank_0.log: no device\n    ```\\x1b[2J\n" in text


@pytest.mark.parametrize(("outcome", "code"), [(COMPILED, 0), (FAILED, 1)])
def test_a_failed_check_is_the_exit_code(
    outcome: str,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    results = [Result("model", "qwen3", "bfloat16", outcome, "shape (29, 96)")]
    monkeypatch.setattr(check, "_results", lambda *options: iter(results))
    assert check.main(["--simulate", "--page", str(tmp_path / "page.md")]) == code
    assert f"{outcome}  " in capsys.readouterr().out
    assert "in simulation: compiled, nothing computed" in (tmp_path / "page.md").read_text()


def test_a_machine_without_a_device_still_has_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none(*options: object) -> None:
        raise BackendError("runtime.device_target=Ascend: not available here")

    monkeypatch.setattr(check, "_results", none)
    assert check.main(["--page", str(tmp_path / "page.md")]) == 1
    assert "not available here" in capsys.readouterr().err
    assert (
        "| devices | Ascend |  | failed | runtime.device_target=Ascend: not"
        in (tmp_path / "page.md").read_text()
    )


def test_unknown_models_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        check.main(["--models", "qwen9"])
    assert ended.value.code == 2
    assert "qwen9" in capsys.readouterr().err


GOOD = {"kind": "decode", "is_compiled": True, "operator": "", "rule": None}
BAD = {"kind": "head", "is_compiled": False, "operator": "MatMul", "rule": "not this"}


def test_the_recorded_tokens_are_of_the_prompts() -> None:
    assert {*two_devices.recorded()} == {*two_devices.PROMPTS}


@pytest.fixture
def tokens(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """What the job gives; those that are recorded, unless they are changed."""
    given = two_devices.recorded()
    monkeypatch.setattr(two_devices, "generated", lambda folder, *words: given)
    return given


def test_the_tokens_of_a_cpu_pass(tokens: dict[str, list[int]], tmp_path: Path) -> None:
    assert two_devices.judged(tmp_path).outcome == PASSED


@pytest.mark.parametrize(("kept", "place"), [(1, 2), (0, 2), (1, 3)])
def test_the_first_other_token_is_named_with_the_logs(
    kept: int, place: int, tokens: dict[str, list[int]], tmp_path: Path
) -> None:
    prompt = two_devices.PROMPTS[0]
    tokens[prompt] = tokens[prompt][:place] + [7] * kept
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/rank_1.log").write_text("a line\n")
    found = two_devices.judged(tmp_path)
    assert found.outcome == FAILED
    assert found.detail == f"{prompt!r}: token {place} of 24 differs from a CPU"
    assert found.log == ("rank_1.log: a line",)


def test_a_machine_with_one_device_skips_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "davinci0").touch()
    (tmp_path / "davinci_manager").touch()
    monkeypatch.setattr(two_devices, "_DEVICES", tmp_path)
    assert two_devices.run_on_npus().outcome == SKIPPED


@pytest.mark.parametrize(
    ("graphs", "error", "outcome", "detail"),
    [
        ([GOOD], None, COMPILED, "1 graphs of rank 0, 1 graphs of rank 1"),
        ([GOOD, BAD], None, FAILED, "rank 0, head: MatMul: not this; rank 1, head: MatMul: not this"),
        ([], "gone", FAILED, "rank 0: gone; rank 1: gone"),
    ],
)
def test_the_graphs_of_both_ranks(
    graphs: list[dict[str, Any]],
    error: str | None,
    outcome: str,
    detail: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks = [{"rank": rank, "graphs": graphs, "error": error} for rank in (0, 1)]
    monkeypatch.setattr(two_devices, "said_by", lambda *words, **_: json.dumps({"ranks": ranks}))
    found = two_devices.compile_graphs()
    assert (found.outcome, found.detail) == (outcome, detail)


def test_a_command_that_fails_is_told_with_what_it_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*words: str, **_: object) -> str:
        raise CommandError("exit code 1: no room", "rank_0.log: out of memory")

    monkeypatch.setattr(two_devices, "said_by", fail)
    for found in (two_devices.compile_graphs(), two_devices.judged(tmp_path)):
        assert (found.outcome, found.detail) == (FAILED, "exit code 1: no room")
        assert found.log == ("rank_0.log: out of memory",)
