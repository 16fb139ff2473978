"""Files: durable, whole or not at all; temporary folders that go; those of others, which may be anything."""

import errno
import gc
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.faulty_storage import MOMENTS, CountingStorage, FailingStorage, InterruptingStorage, Moment
from mindbatch.config import paths
from mindbatch.io.regular_file import first_bytes, open_regular, read_regular
from mindbatch.io.storage import (
    BUFFERED_BYTES,
    Storage,
    StorageError,
    TemporaryFolder,
    WholeFile,
    hold,
    remove_abandoned,
    remove_leftovers,
    write_whole,
)

IN_ORDER = ["create", "write", "sync", "close", "replace", "sync_folder"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "file"
    found.write_bytes(b"old")
    return found


def only_old_is_left(path: Path) -> None:
    assert path.read_bytes() == b"old"
    assert os.listdir(path.parent) == ["file"]


def test_the_content_is_durable_before_it_has_its_name_and_then_the_name_is(path: Path) -> None:
    storage = CountingStorage()
    write_whole(path, b"new", storage)
    assert storage.operations == IN_ORDER
    assert path.read_bytes() == b"new"
    assert os.listdir(path.parent) == ["file"]


def test_what_is_small_is_gathered(path: Path) -> None:
    storage = CountingStorage()
    with WholeFile(path, storage) as file:
        for _ in range(3):
            file.write(bytes(BUFFERED_BYTES // 2))
        assert file.tell() == 3 * (BUFFERED_BYTES // 2)
    assert storage.operations.count("write") == 2
    assert path.stat().st_size == 3 * (BUFFERED_BYTES // 2)


def test_a_new_file_has_the_mode_that_the_user_gives_to_files(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(b"")
    write_whole(path, b"new")
    assert path.stat().st_mode == other.stat().st_mode


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EACCES])
@pytest.mark.parametrize("place", range(len(IN_ORDER)))
def test_a_failure_leaves_the_old_file_and_says_what_failed(path: Path, place: int, number: int) -> None:
    with pytest.raises(StorageError) as caught:
        write_whole(path, b"new", FailingStorage(place, number))
    assert caught.value.lines == (f"{path}: cannot be written ({os.strerror(number)})",)
    if IN_ORDER[place] == "sync_folder":  # renamed already, though nobody knows whether for good
        assert path.read_bytes() == b"new"
        assert os.listdir(path.parent) == ["file"]
    else:
        only_old_is_left(path)


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("place", range(len(IN_ORDER)))
def test_an_interrupt_leaves_the_old_file_or_the_new_one(path: Path, place: int, moment: Moment) -> None:
    with pytest.raises(KeyboardInterrupt):
        write_whole(path, b"new", InterruptingStorage(place, moment))
    assert path.read_bytes() in (b"old", b"new")
    assert os.listdir(path.parent) == ["file"]


def test_a_file_that_is_given_up_leaves_nothing(path: Path) -> None:
    def fail() -> None:
        with WholeFile(path) as file:
            file.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    only_old_is_left(path)
    file = WholeFile(path).__enter__()
    file.write(b"half")
    file.close()
    only_old_is_left(path)
    with pytest.raises(ValueError, match="not open"):
        file.write(b"more")
    file = WholeFile(path).__enter__()
    del file
    gc.collect()
    only_old_is_left(path)


def test_a_file_that_was_closed_within_is_no_whole_file(path: Path) -> None:
    with pytest.raises(ValueError, match="closed"), WholeFile(path) as file:
        file.close()
    only_old_is_left(path)


def test_short_writes_are_written_on(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr("os.write", lambda file, data: write(file, bytes(data[:3])))
    write_whole(path, b"0123456789")
    assert path.read_bytes() == b"0123456789"


def test_a_file_system_that_cannot_sync_folders_is_no_fault(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(number: int) -> None:
        raise OSError(refusal, os.strerror(refusal))

    monkeypatch.setattr("os.fsync", refuse)
    refusal = errno.EINVAL
    Storage().sync_folder(path.parent)
    refusal = errno.EIO
    with pytest.raises(OSError, match="Input/output"):
        Storage().sync_folder(path.parent)


def test_what_a_killed_process_left_goes_when_its_file_is_written_again(path: Path) -> None:
    left, others = WholeFile(path)._temporary, WholeFile(path.with_name("other"))._temporary
    for each in (left, others):
        each.write_bytes(b"half")
    write_whole(path, b"new")
    assert sorted(os.listdir(path.parent)) == sorted([path.name, others.name])


def test_what_another_process_is_writing_stays(path: Path) -> None:
    with WholeFile(path) as file:
        file.write(b"of the one that is done last")
        write_whole(path, b"new")
    assert path.read_bytes() == b"of the one that is done last"
    assert os.listdir(path.parent) == ["file"]


def test_leftovers_of_killed_processes_go_and_nothing_else(path: Path) -> None:
    leftover = WholeFile(path)._temporary
    leftover.write_bytes(b"half")
    names = (".hidden", "x.0123456789abcdef", ".x.0123456789abcde", ".theirs.0123456789abcdef")
    kept = [path.with_name(name) for name in names]
    for each in kept:
        each.write_bytes(b"")
    ours = {path.name}.__contains__
    remove_leftovers(path.parent, Storage(), ours)
    assert sorted(path.parent.iterdir()) == sorted([path, *kept])
    leftover.write_bytes(b"half")
    with pytest.raises(StorageError, match=r"cannot be written \(Permission denied\)"):
        remove_leftovers(path.parent, FailingStorage(0, errno.EACCES), ours)


def a_link(path: Path) -> None:
    victim = path.with_name("victim")
    victim.write_text("theirs")
    path.symlink_to(victim)


@pytest.mark.parametrize("make", [os.mkfifo, a_link, os.mkdir], ids=["pipe", "link", "folder"])
def test_only_regular_files_are_written_or_written_over(make: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "ours"
    make(path)
    before = path.lstat()
    for act in (Storage().append, Storage().reopen):
        with pytest.raises(OSError, match="not a regular file|symbolic link|Is a directory"):
            act(path)
    with pytest.raises(StorageError, match=r"ours: cannot be written \("):
        write_whole(path, b"new")
    assert os.path.samestat(path.lstat(), before)
    if path.is_symlink():
        assert path.read_text() == "theirs"
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


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
    assert paths.run_folder_error(tmp_path / "run") is None
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


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))


SPECIAL: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "socket": a_socket,
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
    "link to a pipe": lambda path: (os.mkfifo(f"{path}.pipe"), path.symlink_to(f"{path}.pipe")),
}


@pytest.mark.parametrize("kind", SPECIAL)
def test_what_is_no_regular_file_is_refused_at_once(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's name must be short
    path = Path("x")
    SPECIAL[kind](path)
    for read in (open_regular, lambda path: first_bytes(path, 1), lambda path: read_regular(path, 10)):
        with pytest.raises(OSError, match="not a regular file"):
            read(path)


def test_a_file_that_becomes_a_pipe_after_it_was_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"x")
    looked_at = os.stat(tmp_path / "file")
    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", lambda path: looked_at)
        with pytest.raises(OSError, match="not a regular file"):
            open_regular(tmp_path / "pipe")


def test_reading_is_bounded_and_a_folder_is_called_one(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match="Is a directory"):
        open_regular(tmp_path)
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_regular(path, 5) == b"12345"
    assert first_bytes(path, 3) == b"123"
    assert first_bytes(path, 1 << 50) == b"12345"
    with pytest.raises(OSError, match="5 bytes; at most 4 are allowed"):
        read_regular(path, 4)
    os.truncate(path, 1 << 40)
    with pytest.raises(OSError, match="at most 4"):
        read_regular(path, 4)
