"""The folder of a run: begun durably, never in the midst of other things, cleared in the safe order."""

import errno
import os
from pathlib import Path

import pytest

from harness.faulty_storage import CountingStorage, FailingStorage
from harness.ledger_session import RECORD, check_finished, kept, run_session
from mindbatch.io.errors import ConfigError
from mindbatch.io.storage import StorageError
from mindbatch.ledger.run_folder import RESULT_NAMES, RunFolder


@pytest.fixture
def storage() -> CountingStorage:
    return CountingStorage()


def test_folders_are_made_from_the_top_and_each_is_synced_into_the_one_above(
    tmp_path: Path, storage: CountingStorage
) -> None:
    folder = RunFolder(tmp_path / "a" / "b")
    folder.make(storage)
    assert folder.path.is_dir()
    assert storage.operations == ["make_folder", "sync_folder"] * 2


def test_making_it_again_syncs_what_a_killed_process_may_have_made(
    tmp_path: Path, storage: CountingStorage
) -> None:
    folder = RunFolder(tmp_path / "a")
    folder.make(CountingStorage())
    folder.make(storage)
    assert storage.operations == ["sync_folder"]


def test_a_folder_of_other_things_is_refused_and_left_alone(tmp_path: Path, storage: CountingStorage) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(ConfigError) as caught:
        RunFolder(tmp_path).make(storage)
    assert str(caught.value) == (
        f"output.dir={tmp_path}: has thesis.tex in it but no run; give a new or empty folder"
    )
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_a_file_is_no_folder(tmp_path: Path, storage: CountingStorage) -> None:
    path = tmp_path / "file"
    path.write_text("")
    with pytest.raises(ConfigError, match=f"output.dir={path}: not a folder"):
        RunFolder(path).make(storage)
    with pytest.raises(StorageError, match=r"below: cannot be written \(Not a directory\)"):
        RunFolder(path / "below").make(storage)


def test_what_a_killed_beginning_left_is_no_obstacle(tmp_path: Path, storage: CountingStorage) -> None:
    folder = RunFolder(tmp_path)
    folder.make(storage)
    for path in (folder.lock, folder.standard_input, folder.index, tmp_path / ".run.json.0123456789abcdef"):
        path.write_text("")
    folder.make(storage)
    folder.remove_leftovers(storage)
    assert not (tmp_path / ".run.json.0123456789abcdef").exists()
    assert folder.lock.exists()


def test_no_room_for_a_folder_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(StorageError) as caught:
        RunFolder(tmp_path / "a").make(FailingStorage(0, errno.ENOSPC))
    assert str(caught.value) == f"{tmp_path / 'a'}: cannot be written (No space left on device)"


def test_a_folder_above_that_may_not_be_listed_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    RunFolder(tmp_path / "a").make(FailingStorage(1, errno.EACCES))
    assert (tmp_path / "a").is_dir()


def test_clearing_takes_all_but_record_lock_and_what_is_to_be_kept(
    tmp_path: Path, storage: CountingStorage
) -> None:
    folder = RunFolder(tmp_path / "run")
    run_session(folder.path, 20, storage, group=4)
    for path in (folder.errors, folder.manifest, folder.metrics, folder.standard_input, folder.config_file):
        path.write_text("old")
    folder.clear(storage, keep=[folder.standard_input])
    assert sorted(os.listdir(folder.path)) == ["input.spool", "lock", "run.json"]
    assert storage.operations[-1] == "sync_folder"


def test_a_clearing_that_stops_anywhere_leaves_a_run_that_can_be_resumed(
    tmp_path: Path, storage: CountingStorage
) -> None:
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


def test_cleared_rows_do_not_come_back_under_a_new_record(tmp_path: Path, storage: CountingStorage) -> None:
    run_session(tmp_path / "run", 20, storage, group=4)
    folder = RunFolder(tmp_path / "run")
    folder.clear(storage)
    RECORD.write(folder, storage)
    assert kept(folder.path) == []


def test_every_format_has_a_file_that_clearing_knows(tmp_path: Path, storage: CountingStorage) -> None:
    folder = RunFolder(tmp_path)
    folder.make(storage)
    for format in RESULT_NAMES:
        folder.results(format).write_text("old")
    folder.clear(storage)
    assert [*tmp_path.iterdir()] == []


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


def test_linked_folders_under_our_names_are_refused(tmp_path: Path) -> None:
    folder, elsewhere = RunFolder(tmp_path / "a"), tmp_path / "elsewhere"
    folder.path.mkdir()
    elsewhere.mkdir()
    folder.logs.symlink_to(elsewhere)
    folder.tensorboard.symlink_to(elsewhere)
    with pytest.raises(ConfigError) as caught:
        folder.make(CountingStorage())
    assert [line.rpartition("/")[2] for line in caught.value.faults] == [
        "tensorboard: must be a folder of the run's own; move it away",
        "logs: must be a folder of the run's own; move it away",
    ]


def test_clearing_leaves_files_of_others(tmp_path: Path, storage: CountingStorage) -> None:
    run_session(tmp_path, 3, storage, 2)
    folder = RunFolder(tmp_path)
    names = [".theirs.0123456789abcdef", "ledger-1.jsonl", "thesis.tex"]
    for name in names:
        (folder.path / name).write_text("theirs")
    folder.remove_leftovers(storage)
    folder.clear(storage)
    assert sorted(os.listdir(folder.path)) == sorted([*names, "lock", "run.json"])
