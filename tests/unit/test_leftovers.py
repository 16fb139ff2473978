"""Temporary folders: gone after their use, and after the next one's making where a process was killed."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from mindbatch.config import paths
from mindbatch.io.storage import TemporaryFolder, hold, remove_abandoned


def left_by_a_killed_process(parent: Path) -> Path:
    """A folder with a file, whose owner was killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        folder = TemporaryFolder(parent=parent)
        (folder.path / "file").write_text("text")
        os.write(writing, os.fsencode(folder.path))
        signal.pause()
    found = Path(os.fsdecode(os.read(reading, 4096)))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    for each in (reading, writing):
        os.close(each)
    return found


def test_a_folder_is_for_its_owner_alone_and_goes_with_what_is_in_it(tmp_path: Path) -> None:
    with TemporaryFolder(parent=tmp_path) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "file").write_text("text")
    assert not [*tmp_path.iterdir()]


def test_a_killed_process_leaves_a_folder_until_the_next_one_is_made(tmp_path: Path) -> None:
    left = left_by_a_killed_process(tmp_path)
    assert left.is_dir()
    with TemporaryFolder(parent=tmp_path) as folder, TemporaryFolder(parent=tmp_path) as another:
        assert {*tmp_path.iterdir()} == {folder, another}


def test_what_is_not_provably_left_by_us_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / f"mindbatch-{'0' * 16}").symlink_to(elsewhere)
    (tmp_path / "mindbatch-results").mkdir()
    TemporaryFolder(parent=tmp_path).remove()
    assert len([*tmp_path.iterdir()]) == 3
    left = left_by_a_killed_process(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)  # another user's
    TemporaryFolder(parent=tmp_path).remove()
    assert left.is_dir()


def test_a_forked_process_leaves_its_parents_folder(tmp_path: Path) -> None:
    folder = TemporaryFolder(parent=tmp_path)
    child = os.fork()
    if child == 0:
        folder.remove()
        os._exit(0)
    os.waitpid(child, 0)
    assert folder.path.is_dir()
    folder.remove()
    folder.remove()
    assert not folder.path.exists()


def test_who_holds_what_was_removed_knows_it(tmp_path: Path) -> None:
    """As between the making of a file and its lock."""
    file = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
    remove_abandoned(tmp_path, lambda name: name == "file")
    assert not hold(file)
    os.close(file)


def test_a_probe_leaves_nothing_and_takes_what_killed_ones_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY | os.O_EXCL | os.O_CREAT)  # a file system without it
    (tmp_path / f".mindbatch-{'1' * 16}").touch()
    assert paths.run_folder_fault(tmp_path / "run") is None
    assert not [*tmp_path.iterdir()]


def test_a_folder_that_is_removed_before_it_is_held_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, removed = os.open, list[Path]()

    def open_after_removal(path: Any, flags: int) -> int:
        if isinstance(path, Path) and not removed:
            removed.append(path)
            path.rmdir()
        return opened(path, flags)

    monkeypatch.setattr(os, "open", open_after_removal)
    with TemporaryFolder(parent=tmp_path) as folder:
        assert folder.is_dir()
        assert removed != [folder]
