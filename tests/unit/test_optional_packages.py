"""Tests that need an optional package are skipped where it is not installed, and nowhere else."""

import subprocess
import sys
from pathlib import Path

import pytest

from mindbatch.io import installation
from optional_packages import OPTIONAL, reason_to_skip

CHECKOUT = Path(__file__).parents[2]
NOT_IN_ALL = {"lm_eval"}
"""Of no environment of scripts/test.sh: its tests are run where somebody has installed it."""


def test_where_all_are_installed_nothing_is_skipped_for_them() -> None:
    """The environment of scripts/test.sh has them all, pinned."""
    pins = (CHECKOUT / "constraints.txt").read_text().lower().replace("_", "-").splitlines()
    names = {line.partition("==")[0] for line in pins}
    needed = OPTIONAL - NOT_IN_ALL
    assert {package.replace("_", "-") for package in needed} <= names
    if (CHECKOUT / ".venv/installed-for-test").exists() and Path(sys.prefix) == CHECKOUT / ".venv":
        assert reason_to_skip(*needed) is None


@pytest.mark.needs("mindspore")
def test_marked_tests_run_where_it_is_installed_only() -> None:
    assert installation.is_installed("mindspore")


def test_the_reason_names_what_is_absent_and_the_line_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "find_spec", lambda name: None if name == "ray" else name)
    assert reason_to_skip("mindspore") is None
    reason = reason_to_skip("mindspore", "ray")
    assert reason is not None
    assert reason.startswith("Ray is not installed here; ")
    assert "mindbatch[ray]" in reason
    with pytest.raises(AssertionError, match="in no extra"):
        reason_to_skip("numpy")


@pytest.mark.parametrize(("name", "outcome"), [("mindspore", "skipped"), ("no_such_package", "error")])
def test_a_file_that_imports_one_is_skipped_and_one_that_imports_another_thing_is_not(
    name: str, outcome: str, tmp_path: Path
) -> None:
    (tmp_path / "test_imports.py").write_text(f"import {name}\ndef test_it(): pass\n")
    tests, arguments = CHECKOUT / "tests", ["-p", "conftest", "-p", "no:cacheprovider", "-rs", str(tmp_path)]
    program = (
        f"import sys; sys.path[:0] = {[str(tests), str(tests / 'samples')]}; sys.modules[{name!r}] = None\n"
        f"import pytest; pytest.main({arguments})"
    )
    command = [sys.executable, "-I", "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert f"1 {outcome}" in done.stdout, done.stdout
    assert ("is not installed here" in done.stdout) is (outcome == "skipped")
