"""The metrics file: samples by the clock, whole lines over several runs, no end to a run when it fails."""

import errno
import json
import os
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from mindbatch.io.errors import ConfigError
from mindbatch.io.storage import Storage
from mindbatch.run.metrics import MetricsLog, Snapshot


def at(seconds: float) -> Snapshot:
    return Snapshot(
        seconds=seconds,
        rows_total=50,
        rows_done=int(seconds),
        rows_failed=1,
        generated_tokens=int(9 * seconds),
    )


def run(path: Path, *seconds: float, tensorboard: Path | None = None) -> None:
    with MetricsLog(path, tensorboard, clock=lambda: 1700000000.25) as metrics:
        for second in seconds:
            metrics.sample(at(second))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_sample_when_five_seconds_have_passed_and_one_at_the_end(tmp_path: Path) -> None:
    run(tmp_path / "metrics.jsonl", *(tick / 4 for tick in range(48)))
    assert [line["seconds"] for line in lines(tmp_path / "metrics.jsonl")] == [0.0, 5.0, 10.0, 11.75]


def test_the_last_sample_is_not_written_twice(tmp_path: Path) -> None:
    run(tmp_path / "metrics.jsonl", 0.0, 5.0)
    assert [line["seconds"] for line in lines(tmp_path / "metrics.jsonl")] == [0.0, 5.0]


def test_a_line_has_the_counts_the_time_and_the_rates_since_the_line_before(tmp_path: Path) -> None:
    run(tmp_path / "metrics.jsonl", 0.0, 2.0, 10.0)
    assert lines(tmp_path / "metrics.jsonl")[1] == {
        "time": 1700000000.25,
        "seconds": 10.0,
        "rows_total": 50,
        "rows_done": 10,
        "rows_failed": 1,
        "prompt_tokens": 0,
        "cached_prompt_tokens": 0,
        "generated_tokens": 90,
        "running": 0,
        "waiting": 0,
        "cache_used": 0.0,
        "preemptions": 0,
        "prompt_tokens_per_second": 0.0,
        "generated_tokens_per_second": 9.0,
        "rows_per_second": 1.0,
    }


def test_a_resumed_run_goes_on_after_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    run(path, 0.0)
    path.write_bytes(path.read_bytes() + b'{"time":17')
    run(path, 0.0, 5.0)
    run(path, 0.0)
    whole = path.read_text().splitlines()
    assert whole.pop(1) == '{"time":17'
    assert [json.loads(line)["seconds"] for line in whole] == [0.0, 0.0, 5.0, 0.0]


def test_a_run_without_samples_writes_nothing(tmp_path: Path) -> None:
    run(tmp_path / "metrics.jsonl")
    assert (tmp_path / "metrics.jsonl").read_bytes() == b""


def test_a_full_disk_is_said_once_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, tries = tmp_path / "metrics.jsonl", []

    def full(self: Storage, file: int, data: bytes) -> None:
        tries.append(data)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Storage, "write", full)
    run(path, 0.0, 5.0, 10.0)
    assert len(tries) == 1
    assert capsys.readouterr().err == (
        f"mindbatch: {path}: no more metrics are written (No space left on device)\n"
    )


def test_a_folder_that_is_not_there_is_said_and_the_run_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "gone/metrics.jsonl", 0.0, 5.0, tensorboard=tmp_path / "gone/tensorboard")
    assert capsys.readouterr().err.count("\n") == 1


def events(folder: Path) -> list[Any]:
    """What the event files hold: records of length, check, event and check, as TensorFlow writes them."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            found.append(Event.FromString(data[12 : 12 + length]))
            data = data[16 + length :]
    return found


def test_tensorboard_gets_every_sample(tmp_path: Path) -> None:
    run(tmp_path / "metrics.jsonl", 0.0, 5.0, 7.0, tensorboard=tmp_path / "tensorboard")
    first, *samples = events(tmp_path / "tensorboard")
    assert first.file_version == "brain.Event:2"
    assert [sample.step for sample in samples] == [1, 6, 8]
    assert {sample.wall_time for sample in samples} == {1700000000.25}
    values = {value.tag: value.simple_value for value in samples[1].summary.value}
    assert (values["rows_done"], values["generated_tokens_per_second"]) == (5.0, 9.0)


def test_events_can_be_seen_while_the_run_goes_on(tmp_path: Path) -> None:
    with MetricsLog(tmp_path / "metrics.jsonl", tmp_path / "tensorboard") as metrics:
        metrics.sample(at(0.0))
        assert len(events(tmp_path / "tensorboard")) == 2


def test_without_tensorboard_there_is_no_folder(tmp_path: Path) -> None:
    run(tmp_path / "metrics.jsonl", 0.0)
    assert os.listdir(tmp_path) == ["metrics.jsonl"]


def test_tensorboard_needs_tensorboardx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX.event_file_writer", None)
    with pytest.raises(ConfigError, match=r"output.tensorboard=true: tensorboardX is not installed"):
        MetricsLog(tmp_path / "metrics.jsonl", tmp_path / "tensorboard")
    assert os.listdir(tmp_path) == []
