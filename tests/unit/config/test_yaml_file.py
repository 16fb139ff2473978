"""Strict YAML: bounded, no aliases, tags, duplicate or Hydra keys; every fault names file and line."""

import os
from pathlib import Path

import pytest

from mindbatch.config.yaml_file import LARGEST_FILE, read_mapping, read_with_lines
from mindbatch.io.errors import ConfigError

BOMB = "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n"


def fault(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        read_mapping(path)
    return "\n".join(caught.value.faults)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\nb: {c: [x, 2.5, null, true]}\n", {"a": 1, "b": {"c": ["x", 2.5, None, True]}}),
        ("", {}),
        ("# nothing\n", {}),
        ("a: 2024-01-01\n", {"a": "2024-01-01"}),
        ("\ufeffa: 你好\n", {"a": "你好"}),
    ],
)
def test_plain_mappings_are_read(text: str, expected: object, tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(text, encoding="utf-8")
    assert read_mapping(file) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BOMB, ", line 1: YAML anchors (&) and aliases (*) are not allowed"),
        ("a: 1\nb: *c\n", ", line 2: YAML anchors (&) and aliases (*) are not allowed"),
        ("a: !!python/object/apply:os.system [x]\n", ", line 1: YAML tags (tag:yaml.org,2002:python/"),
        ("a: 1\nb: 2\na: 3\n", ", line 3: a: given twice"),
        ("a:\n  _target_: os.system\n", ", line 2: _target_: names that begin with _ are special"),
        ("a: [{_args_: 1}]\n", ", line 1: _args_: names that begin with _ are special"),
        ("1: a\n", ", line 1: a key must be text"),
        ("[a]: 1\n", ", line 1: a key must be text"),
        ("<<: {a: 1}\n", ", line 1: a key must be text"),
        ("- a\n", ": must hold a mapping of keys to values"),
        ("a: [\n", ": not valid YAML: "),
        ("a: \x07\n", ": not valid YAML: "),
        ("a: 1\n---\nb: 1\n", "more than one document"),
        ("a: " + "[" * 5000 + "]" * 5000, "nested deeper than 32 levels"),
        ("a: " + "9" * 5000, ": a number is too long to be read"),
        ("# @package _global_\na: 1\n", ": Hydra's @package header has no meaning in this file; remove it"),
    ],
)
def test_everything_else_is_refused(text: str, expected: str, tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(text)
    line = fault(file)
    assert line.startswith(str(file))
    assert expected in line


def test_all_bad_keys_are_named_at_once(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("a: {_x: 1}\nb: {c: 1, c: 2}\n2: 3\n")
    assert len(fault(file).splitlines()) == 3


def test_size_is_bounded(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_bytes(b"#" * LARGEST_FILE)
    assert read_mapping(file) == {}
    file.write_bytes(b"#" * (10 * LARGEST_FILE))
    assert "larger than 1 MiB" in fault(file)


def test_what_is_no_readable_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe9\n")
    os.mkfifo(tmp_path / "pipe")
    assert "not UTF-8 text (byte 3)" in fault(tmp_path / "latin.yaml")
    assert "not a regular file" in fault(tmp_path / "pipe")
    assert "Is a directory" in fault(tmp_path)
    assert f"no such file; did you mean {tmp_path / 'latin.yaml'}?" in fault(tmp_path / "latin.yml")


def test_every_key_has_its_line(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("a: 1\n\nb:\n  c: {d: 2}\n")
    assert read_with_lines(file) == ({"a": 1, "b": {"c": {"d": 2}}}, {"a": 1, "b": 3, "b.c": 4, "b.c.d": 4})


@pytest.mark.parametrize("of", ["{x: &a [1], y: *a}", "&a [*a, *a]", "[[&a 1], {y: *a}]"])
def test_aliases_are_allowed_where_nothing_is_built(of: str, tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(f"unread: {of}\nz: 1\n")
    assert read_with_lines(file, ("unread",))[0] == {"unread": None, "z": 1}
    assert "line 1: YAML anchors" in fault(file)


@pytest.mark.parametrize("text", ["unread: &a 1\nz: *a\n", "unread: 1\nz: &a 1\n", "z: {unread: &a 1}\n"])
def test_aliases_are_refused_everywhere_else(text: str, tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match="anchors"):
        read_with_lines(file, ("unread",))


def test_tags_are_refused_everywhere(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("unread: !!python/object/apply:os.getcwd []\n")
    with pytest.raises(ConfigError, match="tags"):
        read_with_lines(file, ("unread",))
