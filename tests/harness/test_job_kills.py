"""Batch jobs that are killed, or whose disk fails, end as if nobody had touched them."""

import errno
import os
from pathlib import Path

import pytest

from harness.faulty_storage import CountingStorage, FailingStorage, Places, every_place, telling_places
from harness.job_kills import COMPARED, write_data
from harness.scripts import run_script
from mindbatch.io.storage import StorageError
from stub_job import job_config, make_job


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "kills", "swept", "least"),
    [(60, 12, "telling", 60), pytest.param(2000, 200, "every", 200, marks=pytest.mark.on_demand)],
)
def test_kills_at_each_operation_and_at_random(
    tmp_path: Path, rows: int, kills: int, swept: str, least: int
) -> None:
    arguments = ("--rows", rows, "--kills", kills, "--sweep-rows", 40, "--sweep", swept)
    sweep, at_random = run_script("job_kills", tmp_path / "runs", *arguments).splitlines()
    assert int(sweep.split()[0]) >= least
    assert at_random == f"{kills} kills at random in runs of {rows} rows"


ROWS = 40


def files_of(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in COMPARED}


FAULTS = [
    (errno.ENOSPC, True),
    (errno.EIO, False),
    *(
        pytest.param(*each, marks=pytest.mark.on_demand)
        for each in ((errno.ENOSPC, False), (errno.EIO, True), (errno.EACCES, True), (errno.EACCES, False))
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "where",
    [telling_places, pytest.param(every_place, marks=pytest.mark.on_demand)],
)
@pytest.mark.parametrize(("number", "lasting"), FAULTS)
def test_a_disk_may_fail_at_an_operation(tmp_path: Path, number: int, lasting: bool, where: Places) -> None:
    data = write_data(tmp_path / "rows.jsonl", ROWS)
    counting = CountingStorage()
    make_job(job_config(data, tmp_path / "unbroken", key_column="id"), storage=counting).run()
    unbroken = files_of(tmp_path / "unbroken")
    for place in where(counting.operations):
        name = counting.operations[place]
        run = tmp_path / f"run{place}"
        config = job_config(data, run, key_column="id")
        storage = FailingStorage(place, number, lasting=lasting)
        try:
            make_job(config, storage=storage).run()
            assert name == "close", f"the failure of {name} at {place} went unnoticed"
        except StorageError as error:
            (line,) = error.lines
            assert line.startswith(f"{run}"), f"{place} ({name}): {line}"
            assert f"cannot be written ({os.strerror(number)})" in line
            assert "\n" not in line
        make_job(config, storage=CountingStorage(), batch_size=7).run()
        assert files_of(run) == unbroken, f"{place} ({name})"
