"""Durable files: whole or not at all, in the order that a power cut asks for, with one line when it fails."""

import errno
import gc
import io
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.faulty_storage import MOMENTS, CountingStorage, FailingStorage, InterruptingStorage, Moment
from mindbatch.io.storage import (
    BUFFERED_BYTES,
    Storage,
    StorageError,
    WholeFile,
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


def test_the_old_file_stays_until_the_end(path: Path) -> None:
    with WholeFile(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"


def test_what_is_small_is_gathered(path: Path) -> None:
    storage = CountingStorage()
    with WholeFile(path, storage) as file:
        for _ in range(3):
            file.write(bytes(BUFFERED_BYTES // 2))
        assert file.tell() == 3 * (BUFFERED_BYTES // 2)
    assert storage.operations.count("write") == 2
    assert path.stat().st_size == 3 * (BUFFERED_BYTES // 2)


def test_an_empty_file_is_a_file(path: Path) -> None:
    write_whole(path, b"")
    assert path.read_bytes() == b""


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
    assert caught.value.faults == (f"{path}: cannot be written ({os.strerror(number)})",)
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


def test_an_interrupt_while_it_is_opened_is_tidied_up_at_once(path: Path) -> None:
    file = WholeFile(path, InterruptingStorage(0, "after"))
    with pytest.raises(KeyboardInterrupt):
        file.__enter__()
    only_old_is_left(path)


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


def test_a_missing_folder_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "absent" / "file"
    with pytest.raises(StorageError) as caught:
        write_whole(path, b"new")
    assert str(caught.value) == f"{path}: cannot be written (No such file or directory)"


def test_libraries_write_through_it(path: Path) -> None:
    with WholeFile(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8")
        text.write("今天\n")
        text.flush()
    assert path.read_text(encoding="utf-8") == "今天\n"
    table = pa.table({"n": list(range(1000))})
    with WholeFile(path) as file, pq.ParquetWriter(file, table.schema) as writer:
        writer.write_table(table)
    assert pq.read_table(path) == table


def test_a_full_disk_reaches_through_a_library(path: Path) -> None:
    table = pa.table({"n": list(range(1000))})
    with (
        pytest.raises(StorageError, match="No space left"),
        WholeFile(path, FailingStorage(1, errno.ENOSPC)) as file,
        pq.ParquetWriter(file, table.schema) as writer,
    ):
        writer.write_table(table)
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
    left, others = WholeFile(path)._beside, WholeFile(path.with_name("other"))._beside
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
    leftover = WholeFile(path)._beside
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
