"""The folder of a run: begun durably, never among other things, for one run at a time, cleared in order."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.faulty_storage import CountingStorage, FailingStorage
from harness.ledger_session import check_finished, run_session
from mindbatch.io.errors import ConfigError
from mindbatch.io.storage import Storage, StorageError, lock
from mindbatch.ledger.run_folder import RESULT_NAMES, RunFolder, RunLock, is_running


def test_folders_are_made_from_the_top_and_each_is_synced_into_the_one_above(tmp_path: Path) -> None:
    storage = CountingStorage()
    folder = RunFolder(tmp_path / "a" / "b")
    folder.make(storage)
    assert folder.path.is_dir()
    made = ["make_folder", "sync_folder"] * 2
    assert storage.operations == made
    folder.make(storage)
    assert storage.operations == [*made, "sync_folder"], "a killed process may have made it"


def test_a_folder_of_other_things_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(ConfigError) as caught:
        RunFolder(tmp_path).make(CountingStorage())
    assert str(caught.value) == (
        f"output.dir={tmp_path}: has thesis.tex in it but no run; give a new or empty folder"
    )
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    with pytest.raises(ConfigError, match=f"output.dir={path}: not a folder"):
        RunFolder(path).make(CountingStorage())
    with pytest.raises(StorageError, match=r"below: cannot be written \(Not a directory\)"):
        RunFolder(path / "below").make(CountingStorage())


def test_what_a_killed_beginning_left_is_no_obstacle(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.make(CountingStorage())
    for path in (folder.lock, folder.standard_input, folder.index, tmp_path / ".run.json.0123456789abcdef"):
        path.write_text("")
    folder.make(CountingStorage())
    folder.remove_leftovers(CountingStorage())
    assert not (tmp_path / ".run.json.0123456789abcdef").exists()
    assert folder.lock.exists()


def test_a_folder_above_that_may_not_be_listed_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    RunFolder(tmp_path / "a").make(FailingStorage(1, errno.EACCES))
    assert (tmp_path / "a").is_dir()


def test_clearing_takes_all_but_record_lock_what_is_to_be_kept_and_files_of_others(tmp_path: Path) -> None:
    storage = CountingStorage()
    folder = RunFolder(tmp_path / "run")
    run_session(folder.path, 20, storage, group=4)
    files = [folder.errors, folder.manifest, folder.metrics, folder.standard_input, folder.config_file]
    for path in [*files, *map(folder.results, RESULT_NAMES)]:
        path.write_text("old")
    theirs = [".theirs.0123456789abcdef", "ledger-1.jsonl", "thesis.tex"]
    for name in theirs:
        (folder.path / name).write_text("theirs")
    folder.remove_leftovers(storage)
    folder.clear(storage, keep=[folder.standard_input])
    assert sorted(os.listdir(folder.path)) == sorted(["input.spool", "lock", "run.json", *theirs])
    assert storage.operations[-1] == "sync_folder"


def test_a_clearing_that_stops_anywhere_leaves_a_run_that_can_be_resumed(tmp_path: Path) -> None:
    storage = CountingStorage()
    run_session(tmp_path / "counted", 20, storage, group=4)
    before = len(storage.operations)
    RunFolder(tmp_path / "counted").clear(storage)
    for place in range(len(storage.operations) - before):
        run = tmp_path / f"run{place}"
        run_session(run, 20, CountingStorage(), group=4)
        with pytest.raises(StorageError, match=f"^{run}: cannot be written"):
            RunFolder(run).clear(FailingStorage(place, errno.EIO))
        run_session(run, 20, CountingStorage(), group=4)
        check_finished(run, 20)


OURS = ("lock", "run.json", "results.jsonl", "metrics.jsonl", "config.yaml", ".index.sqlite", "input.spool")


@pytest.mark.parametrize("name", [*OURS, "ledger.jsonl"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_special_files_under_our_names_are_named_before_anything_is_touched(
    name: str, kind: str, tmp_path: Path
) -> None:
    folder, victim = RunFolder(tmp_path / "a"), tmp_path / "victim"
    victim.write_text("theirs")
    (folder.path / name).parent.mkdir(parents=True)
    if kind == "link":
        (folder.path / name).symlink_to(victim)
    else:
        os.mkfifo(folder.path / name)
    with pytest.raises(ConfigError, match=f"{name}: must be a file of the run's own.*; move it away"):
        folder.make(CountingStorage())
    assert victim.read_text() == "theirs"
    assert not (folder.path / "lock").is_file() or name == "lock"


def test_a_linked_folder_under_our_name_is_refused(tmp_path: Path) -> None:
    folder, elsewhere = RunFolder(tmp_path / "a"), tmp_path / "elsewhere"
    folder.path.mkdir()
    elsewhere.mkdir()
    folder.logs.symlink_to(elsewhere)
    with pytest.raises(ConfigError) as caught:
        folder.make(CountingStorage())
    assert [line.rpartition("/")[2] for line in caught.value.lines] == [
        "logs: must be a folder of the run's own; move it away",
    ]


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
def locked(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def test_a_second_run_is_told_who_is_there(locked: RunFolder) -> None:
    with RunLock(locked), pytest.raises(ConfigError) as caught, RunLock(locked):
        pass
    host = os.uname().nodename
    start = f"{locked.path}: another run is writing here (process {os.getpid()} on {host} since 20"
    assert str(caught.value).startswith(start)
    with RunLock(locked):
        pass


def test_the_lock_of_a_killed_process_is_free(locked: RunFolder) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(locked.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match=f"process {holder.pid} on"), RunLock(locked):
            pass
        assert is_running(locked)
        holder.kill()
    assert not is_running(locked)
    with RunLock(locked):
        assert is_running(locked)


def test_a_run_that_begins_waits_for_whoever_looks(
    locked: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `is_running` does, in another process."""
    locked.lock.touch()
    looking = os.open(locked.lock, os.O_RDONLY)
    assert lock(looking, shared=True)
    monkeypatch.setattr("time.sleep", lambda seconds: os.close(looking))
    with RunLock(locked):
        assert is_running(locked)


def test_a_lock_that_is_never_free_is_refused(locked: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    locked.lock.touch()
    with locked.lock.open() as file:
        assert lock(file.fileno(), shared=True)
        with pytest.raises(ConfigError, match="lock: a process that writes no run here keeps it locked"):
            RunLock(locked)


def test_looking_takes_no_lock_and_makes_no_file(locked: RunFolder) -> None:
    assert not is_running(locked)
    assert not locked.lock.exists()
    with RunLock(locked):
        pass
    assert not is_running(locked)


@pytest.mark.parametrize("note", [b"", b"{", b"[1]", b'{"process": "1", "host": 2}'])
def test_a_holder_without_a_note_is_refused_all_the_same(locked: RunFolder, note: bytes) -> None:
    with RunLock(locked):
        locked.lock.write_bytes(note)
        with pytest.raises(ConfigError) as caught, RunLock(locked):
            pass
    assert str(caught.value) == f"{locked.path}: another run is writing here"


def test_an_old_note_is_replaced(locked: RunFolder) -> None:
    locked.lock.write_bytes(b"x" * 1000)
    with RunLock(locked):
        assert locked.lock.stat().st_size < 200
        assert f'"process":{os.getpid()}'.encode() in locked.lock.read_bytes()


def test_a_lock_that_loses_its_name_while_it_is_taken_is_taken_anew(
    locked: RunFolder, monkeypatch: pytest.MonkeyPatch
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
    with RunLock(locked, storage):
        assert storage.num_opened == 2
        with pytest.raises(ConfigError), RunLock(locked):
            pass
