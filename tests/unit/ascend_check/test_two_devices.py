"""The job over two devices, judged by what its commands give; the commands are played."""

import json
from pathlib import Path
from typing import Any

import pytest

from ascend_check import two_devices
from ascend_check.page import COMPILED, FAILED, PASSED, SKIPPED
from ascend_check.two_devices import CommandError

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
    assert found.detail == f"{prompt!r}: token {place} of 24 is another than on a CPU"
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
