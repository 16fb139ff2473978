"""Copies of a command on one host find the first one, and nobody else's."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from mindbatch.io.errors import MindBatchError
from mindbatch.launch.started_as import CopyMeeting, Front

FRONT = Front(("127.0.0.1", 4711), bytes(range(32)))


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def ignore(text: str) -> None:
    pass


def test_the_first_is_found_while_the_others_come() -> None:
    meeting = CopyMeeting.next_of("job 1")
    with meeting.opened(FRONT):
        assert meeting.wait(ignore) == FRONT
        assert meeting.file.stat().st_uid == os.getuid()
        assert meeting.file.parent.stat().st_mode & 0o777 == 0o700
    assert [*meeting.file.parent.iterdir()] == []


def test_it_is_waited_for() -> None:
    meeting, notices, waited = CopyMeeting.next_of("job 1"), list[str](), list[float]()
    with pytest.raises(
        MindBatchError, match="rank 0 has not loaded this model in 0 s: under a launcher every"
    ):
        meeting.wait(notices.append, seconds=0, sleep=waited.append)
    assert (notices, waited) == (["waiting for rank 0"], [])


def test_each_model_of_a_job_and_each_job_has_its_own() -> None:
    meetings = [CopyMeeting.next_of(job) for job in ("job 1", "job 1", "job 2")]
    assert len({meeting.file for meeting in meetings}) == 3


@pytest.mark.parametrize("left", ["ended", "reused", "damaged", "empty"])
def test_what_a_killed_job_has_left_is_nothing(left: str) -> None:
    meeting = CopyMeeting.next_of("job 1")
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with meeting.opened(FRONT):
        said = json.loads(meeting.file.read_bytes())
    said["process"] = [ended.pid, 5] if left == "ended" else [os.getpid(), 5]
    text = {"damaged": '{"process": 7', "empty": ""}.get(left, json.dumps(said))
    meeting.file.write_text(text)
    with pytest.raises(MindBatchError, match="rank 0 has not loaded this model"):
        meeting.wait(ignore, seconds=0)
    with meeting.opened(FRONT):
        assert meeting.wait(ignore) == FRONT


def test_another_job_at_the_same_place_is_refused_and_not_disturbed() -> None:
    meeting = CopyMeeting.next_of("job 1")
    with meeting.opened(FRONT):
        with pytest.raises(MindBatchError, match="another job on this host"), meeting.opened(FRONT):
            pass
        assert meeting.wait(ignore) == FRONT


@pytest.mark.parametrize("kind", ["open", "link", "file"])
def test_a_folder_that_others_may_have_made_is_refused(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / f"mindbatch-{os.getuid()}"
    if kind == "open":
        folder.mkdir()
        folder.chmod(0o755)
    elif kind == "link":
        (tmp_path / "theirs").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "theirs")
    else:
        folder.touch(mode=0o700)
    with pytest.raises(MindBatchError, match="must be a folder of this user that nobody else may enter"):
        CopyMeeting.next_of("job 1")
