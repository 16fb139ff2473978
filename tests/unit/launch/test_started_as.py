"""Which copy of a command a process is, by its launcher's variables; how copies on one host meet."""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from mindbatch.io.errors import ConfigError, MindBatchError
from mindbatch.launch.started_as import (
    CopyMeeting,
    Front,
    LauncherEnvironment,
    first_host,
    port_of,
    started_as,
)

MSRUN = {
    "MS_ROLE": "MS_WORKER",
    "MS_SCHED_HOST": "10.0.0.1",
    "MS_SCHED_PORT": "8118",
    "MS_WORKER_NUM": "4",
    "RANK_ID": "2",
    "RANK_SIZE": "4",
    "DEVICE_ID": "2",
}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "PMIX_NAMESPACE": "prterun-host-17@1",
}
TABLE = {"RANK_ID": "1", "RANK_SIZE": "2", "DEVICE_ID": "5", "RANK_TABLE_FILE": "/tables/hccl_2p.json"}
SRUN = {
    "SLURM_JOB_ID": "99",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_PROCID": "3",
    "SLURM_STEP_NODELIST": "npu[03-06]",
}
AS_MSRUN = LauncherEnvironment(
    launcher="msrun", rank=2, size=4, master_addr="10.0.0.1", master_port=8118, device_id=2
)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (MSRUN, AS_MSRUN),
        (
            MSRUN | {"MS_SCHED_HOST": "localhost"},
            replace(AS_MSRUN, master_addr="localhost", is_on_one_host=True),
        ),
        (
            MSRUN | {"MS_ROLE": "MS_SCHED", "RANK_ID": "0"},
            replace(AS_MSRUN, rank=0, is_scheduler=True),
        ),
        (
            MPIRUN,
            LauncherEnvironment(
                launcher="mpirun",
                rank=1,
                size=2,
                master_addr="127.0.0.1",
                job=MPIRUN["PMIX_NAMESPACE"],
                local_rank=1,
                is_on_one_host=True,
            ),
        ),
        (
            MPIRUN | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0"},
            LauncherEnvironment(launcher="mpirun", rank=1, size=2, job=MPIRUN["PMIX_NAMESPACE"]),
        ),
        (
            TABLE,
            LauncherEnvironment(
                launcher="rank_table", rank=1, size=2, rank_table=TABLE["RANK_TABLE_FILE"], device_id=5
            ),
        ),
        (SRUN, LauncherEnvironment(launcher="srun", rank=3, size=4, master_addr="npu03", job="slurm 99.0")),
    ],
)
def test_each_launcher_is_known_by_its_variables(
    environment: dict[str, str], expected: LauncherEnvironment
) -> None:
    assert started_as(environment) == expected


@pytest.mark.parametrize(
    ("environment", "launcher"),
    [
        (SRUN | TABLE | MPIRUN | MSRUN, "msrun"),
        (SRUN | TABLE | MPIRUN, "mpirun"),
        (SRUN | TABLE, "rank_table"),
    ],
)
def test_of_several_launchers_the_innermost_counts(environment: dict[str, str], launcher: str) -> None:
    copy = started_as(environment)
    assert copy is not None
    assert copy.launcher == launcher


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"RANK_TABLE_FILE": "/tables/hccl_2p.json"},  # exported for all commands of a machine
        {"RANK_ID": "0", "RANK_SIZE": "1", "RANK_TABLE_FILE": "/tables/hccl_1p.json"},
        {"RANK_ID": "0", "DEVICE_ID": "0"},
        {"SLURM_JOB_ID": "9", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"},  # an sbatch script
        SRUN | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},  # srun --pty bash
        MSRUN | {"MS_WORKER_NUM": "1", "RANK_ID": "0"},
    ],
)
def test_a_process_alone_is_no_copy(environment: dict[str, str]) -> None:
    assert started_as(environment) is None


def test_a_scheduler_of_one_worker_is_known_too() -> None:
    copy = started_as(MSRUN | {"MS_ROLE": "MS_SCHED", "MS_WORKER_NUM": "1"})
    assert copy is not None
    assert copy.is_scheduler


@pytest.mark.parametrize(
    ("environment", "faults"),
    [
        (
            TABLE | {"RANK_ID": "2"},
            [
                "RANK_ID='2': must be 0 to 1; who starts by a rank table sets it",
            ],
        ),
        (
            TABLE | {"RANK_ID": "-1", "RANK_SIZE": "two"},
            [
                "RANK_SIZE='two': must be 1 to 1048576; who starts by a rank table sets it",
                "RANK_ID='-1': must be 0 to 1048576; who starts by a rank table sets it",
            ],
        ),
        (
            {name: value for name, value in MSRUN.items() if name != "RANK_ID"},
            ["RANK_ID is not set: must be 0 to 3; msrun sets it"],
        ),
        (MSRUN | {"MS_ROLE": "boss"}, ["MS_ROLE='boss': must be MS_WORKER or MS_SCHED, or not set"]),
        (
            SRUN | {"SLURM_PROCID": "٣"},
            ["SLURM_PROCID='٣': must be 0 to 3; srun sets it"],
        ),
    ],
)
def test_variables_that_contradict_themselves_are_refused(
    environment: dict[str, str], faults: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        started_as(environment)
    assert [*caught.value.lines] == faults


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("npu7", "npu7"),
        ("npu[03-06],login1", "npu03"),
        ("npu[3,5-6]", "npu3"),
        ("rack[1-2]n[008-010]", "rack1n008"),
        ("a1,b[2-3]", "a1"),
        ("a;reboot", None),
        ("$(reboot)", None),
        ("", None),
    ],
)
def test_the_first_host_of_slurms_list(nodes: str, host: str | None) -> None:
    assert first_host(nodes) == host


def test_copies_of_a_job_choose_the_same_port() -> None:
    assert port_of("slurm 99.0") == port_of("slurm 99.0") != port_of("slurm 99.1")
    assert all(20_000 <= port_of(f"slurm {number}.0") < 30_000 for number in range(100))


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
