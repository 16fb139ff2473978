"""The page that is sent back, and the words for the terminal."""

from importlib.metadata import version
from pathlib import Path

import pytest

from ascend_check import __main__ as check
from ascend_check.page import COMPILED, FAILED, PASSED, SKIPPED, Result, page
from mindbatch.io.errors import BackendError

RESULTS = [
    Result("operator", "RmsNorm", "bfloat16", PASSED, "0.00100 of 0.05000 allowed"),
    Result("model", "qwen3", "bfloat16", FAILED, "a | b\nc"),
    Result("devices", "two of them", "", SKIPPED, "one process"),
]


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
    assert "What devices, two of them, said:\n\n    rank_0.log: no device\n    ```\\x1b[2J\n" in text


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
