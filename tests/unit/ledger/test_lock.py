"""One run at a time in a folder; the lock is free when its process has died."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mindbatch.io.errors import ConfigError
from mindbatch.io.storage import Storage, StorageError
from mindbatch.ledger.run_folder import RunFolder, RunLock, is_running

HOLD = """
import sys
from pathlib import Path
from mindbatch.ledger.run_folder import RunLock
from mindbatch.ledger.run_folder import RunFolder
with RunLock(RunFolder(Path(sys.argv[1]))):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def test_a_second_run_is_told_who_is_there(folder: RunFolder) -> None:
    with RunLock(folder), pytest.raises(ConfigError) as caught, RunLock(folder):
        pass
    host = os.uname().nodename
    start = f"{folder.path}: another run is writing here (process {os.getpid()} on {host} since 20"
    assert str(caught.value).startswith(start)
    with RunLock(folder):
        pass


def test_the_lock_of_a_killed_process_is_free(folder: RunFolder) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match=f"process {holder.pid} on"), RunLock(folder):
            pass
        assert is_running(folder)
        holder.kill()
    assert not is_running(folder)
    with RunLock(folder):
        assert is_running(folder)


def test_looking_takes_no_lock_and_makes_no_file(folder: RunFolder) -> None:
    assert not is_running(folder)
    assert not folder.lock.exists()
    with RunLock(folder):
        pass
    assert not is_running(folder)


@pytest.mark.parametrize("note", [b"", b"{", b"[1]", b'{"process": "1", "host": 2}'])
def test_a_holder_without_a_note_is_refused_all_the_same(folder: RunFolder, note: bytes) -> None:
    with RunLock(folder):
        folder.lock.write_bytes(note)
        with pytest.raises(ConfigError) as caught, RunLock(folder):
            pass
    assert str(caught.value) == f"{folder.path}: another run is writing here"


def test_an_old_note_is_replaced(folder: RunFolder) -> None:
    folder.lock.write_bytes(b"x" * 1000)
    with RunLock(folder):
        assert folder.lock.stat().st_size < 200
        assert f'"process":{os.getpid()}'.encode() in folder.lock.read_bytes()


def test_a_lock_that_loses_its_name_while_it_is_taken_is_taken_anew(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Removing(Storage):
        """The first time, the run before removes the file between the opening and the locking."""

        num_opened = 0

        def append(self, path: Path) -> int:
            file = super().append(path)
            self.num_opened += 1
            if self.num_opened == 1:
                path.unlink()
                path.write_bytes(b"")  # somebody else's
            return file

    storage = Removing()
    with RunLock(folder, storage):
        assert storage.num_opened == 2
        with pytest.raises(ConfigError), RunLock(folder):
            pass


def test_no_folder_is_one_line(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "absent")
    with pytest.raises(StorageError) as caught, RunLock(folder):
        pass
    assert str(caught.value) == f"{folder.lock}: cannot be written (No such file or directory)"
