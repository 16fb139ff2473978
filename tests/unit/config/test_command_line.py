"""Splitting of the command line into task, flags and overrides."""

from pathlib import Path

import pytest

from mindbatch.config.command_line import CommandLine, parse_command_line
from mindbatch.errors import ConfigError


def test_flags_may_stand_anywhere() -> None:
    expected = CommandLine("generate", ["a=1", "~b"], {"--verbose"}, {"--config": Path("x.yaml")})
    assert parse_command_line(["generate", "a=1", "~b", "--verbose", "--config", "x.yaml"]) == expected
    assert parse_command_line(["-v", "--config=x.yaml", "generate", "a=1", "~b"]) == expected


def test_nothing_is_nothing() -> None:
    assert parse_command_line([]) == CommandLine()


def test_all_bad_flags_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_command_line(
            ["--confg", "--model", "--model.type=x", "--help=1", "--config", "--verbose", "-", "--config-dir"]
        )
    assert caught.value.faults == (
        "--confg: unknown flag; did you mean --config?",
        "--model: unknown flag; keys are given as key=value, without dashes",
        "--model.type: unknown flag; keys are given as key=value, without dashes",
        "--help=1: --help takes no value",
        "--config: needs a FILE",
        "-: unknown flag; keys are given as key=value, without dashes",
        "--config-dir: needs a DIR",
    )


def test_a_home_folder_in_the_path_of_a_flag(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    paths = parse_command_line(["doctor", "--config=~/a.yaml", "--config-dir", "~/more"]).paths
    assert paths == {"--config": tmp_path / "a.yaml", "--config-dir": tmp_path / "more"}
    with pytest.raises(ConfigError, match="~nobody-has-this-name/a: the home folder cannot be"):
        parse_command_line(["doctor", "--config=~nobody-has-this-name/a"])
