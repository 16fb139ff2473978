"""Patterns match what Python's glob matches, and one over a whole machine is refused."""

import glob
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindbatch.config.paths import rows_error
from mindbatch.dataset.data_files import find_files
from mindbatch.io import file_patterns
from mindbatch.io.errors import ConfigError
from mindbatch.io.file_patterns import matching_files

NAMES = ("a", "b", ".c", "a.jsonl", "[x]")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("tree")
    for first in NAMES:
        for second in NAMES:
            (top / first).mkdir(exist_ok=True)
            (top / first / second).mkdir()
            for name in NAMES:
                (top / first / second / f"{name}.txt").write_text("")
                (top / first / f"{name}.csv").write_text("")
    (top / "link").symlink_to(top / "a")
    (top / "b/broken").symlink_to(top / "none")
    return top


PARTS = st.sampled_from(
    ["*", "**", "a", "?", "[ab]", "*.txt", ".*", "a*", "**.txt", "[[]x]", "link", "none", "b*"]
)


@given(st.lists(PARTS, min_size=1, max_size=4))
def test_it_matches_what_glob_matches(tree: Path, parts: list[str]) -> None:
    pattern = tree.joinpath(*parts)
    expected = {Path(name) for name in glob.glob(str(pattern), recursive=True) if os.path.isfile(name)}
    assert matching_files(pattern) == sorted(expected)


def test_a_pattern_over_too_much_is_refused_with_a_line(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_patterns, "MAX_LOOKED_AT", 50)
    with pytest.raises(ConfigError) as refused:
        find_files(tree / "**/*.jsonl")
    [line] = refused.value.lines
    assert "**/*.jsonl" in line
    assert line.endswith("(it covers more than 50 files and folders; name the folder more closely)")
    refused_early = rows_error(tree / "*/*/*.jsonl")
    assert refused_early == "it covers more than 50 files and folders; name the folder more closely"


def test_a_folder_that_is_linked_within_itself_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two", "three"):
        (tmp_path / name).symlink_to(tmp_path)
    monkeypatch.setattr(file_patterns, "MAX_LOOKED_AT", 5000)
    with pytest.raises(file_patterns.TooMany):
        matching_files(tmp_path / "**/*.jsonl")
