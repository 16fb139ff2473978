"""What is said of a tool's wrong flags: everything, one a line."""

import pytest

from mindbatch.io.tool_parser import ToolParser


def faults(capsys: pytest.CaptureFixture[str], *words: str, needs: bool = False) -> list[str]:
    parser = ToolParser.of_page("tool.py", "A page.")
    parser.add_argument("--rank_id", type=int, default=0)
    parser.add_argument("--scaling", type=float, required=needs)
    parser.add_argument("--format", choices=["ckpt", "safetensors"])
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(words)
    assert ended.value.code == 2
    return capsys.readouterr().err.splitlines()


def test_all_faults_are_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert faults(capsys, "--rank_id", "x", "--scalling=2", "7", "--scaling", "much") == [
        "tool.py: --rank_id 'x': must be a whole number",
        "tool.py: --scaling 'much': must be a number",
        "tool.py: --scalling: unknown flag; did you mean --scaling?",
    ]


def test_what_ends_the_reading_comes_last(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = faults(capsys, "--rank_id", "x", "--format", "bin")
    assert first == "tool.py: --rank_id 'x': must be a whole number"
    assert second.startswith("tool.py: --format: invalid choice: 'bin'")
    assert faults(capsys, "--rank_id", needs=True) == ["tool.py: --rank_id: expected one argument"]


def test_a_word_too_many(capsys: pytest.CaptureFixture[str]) -> None:
    assert faults(capsys, "--rank_id", "1", "more") == ["tool.py: 'more': one too many"]
