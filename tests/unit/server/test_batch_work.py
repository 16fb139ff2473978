"""Batches end by their own faults alone: a full disk is waited for, a server that ends leaves them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mindbatch.dataset.rows import RowFailure
from mindbatch.io.errors import ConfigError, MindBatchError
from mindbatch.io.storage import StorageError
from mindbatch.server import batch_work
from mindbatch.server.batch_work import BatchSetup, BatchWork, Interrupted
from mindbatch.server.records import BatchRecord, new_id

FULL = StorageError("disk: cannot be written (No space left on device)")


@pytest.fixture
def written() -> list[str]:
    return []


def work(
    outcomes: list[Exception | None], written: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> BatchWork:
    """A batch whose run comes to these outcomes, one after the other."""
    record = BatchRecord(new_id("batch_"), "/v1/completions", new_id("file-"), "24h", 1, 1 << 40)
    record.status, record.total = "in_progress", 3
    data = tmp_path / "rows.jsonl"
    data.write_bytes(b"{}\n")

    def run() -> None:
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome

    monkeypatch.setattr(batch_work, "run_config", lambda *arguments: None)
    monkeypatch.setattr(batch_work, "fingerprint_fields", lambda *arguments: {})
    monkeypatch.setattr(batch_work, "BatchJob", lambda *arguments, **options: SimpleNamespace(run=run))
    monkeypatch.setattr(batch_work, "rows_of", lambda folder: SimpleNamespace(total=3, done=2, failed=1))
    monkeypatch.setattr(batch_work, "_SECONDS_UNTIL_ROOM", 0.01)
    engine: Any = SimpleNamespace(is_closed=False)
    setup = BatchSetup(
        None,
        None,
        SimpleNamespace(tokenizer=None),
        engine,
        lambda: 2,
        lambda record: written.append(record.status),  # type: ignore[arg-type]
    )
    return BatchWork(record, setup, data, tmp_path / "run")


def test_a_full_disk_is_waited_for(
    written: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    batch = work([FULL] * 5 + [None], written, tmp_path, monkeypatch)
    batch.run()
    assert (batch.record.status, batch.record.completed, batch.record.failed) == ("completed", 2, 1)
    assert capsys.readouterr().err.count("No space left on device") == 5


def test_what_is_wrong_with_the_batch_ends_it(
    written: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = work([ConfigError(["one", "two"])], written, tmp_path, monkeypatch)
    batch.run()
    assert batch.record.status == "failed"
    assert [error["message"] for error in batch.record.errors] == ["one", "two"]


def test_what_is_not_its_fault_is_tried_three_times(
    written: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    batch = work([ValueError("a"), MindBatchError("b"), None], written, tmp_path, monkeypatch)
    batch.run()
    assert batch.record.status == "completed"
    batch = work([ValueError("a")] * 3, written, tmp_path, monkeypatch)
    batch.run()
    assert (batch.record.status, batch.record.errors[0]["code"]) == ("failed", "server_error")
    assert "ended (3 of 3 times): Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("outcome", [Interrupted("the server ends"), MindBatchError("this LLM was closed")])
def test_a_server_that_ends_leaves_its_batches(
    outcome: Exception, written: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = work([outcome], written, tmp_path, monkeypatch)
    batch._setup.engine.is_closed = True  # type: ignore[misc]
    batch.run()
    assert batch.record.status == "in_progress"
    assert written == []


def test_a_thousand_wrong_lines_are_told_and_the_others_counted(
    written: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for count, told in ((1202, "and 202 more lines with errors"), (0, "the file holds no request")):
        batch = work([], written, tmp_path, monkeypatch)
        batch.record.status, batch.record.total = "validating", 0
        lines = (RowFailure(None, "rows.jsonl", number, "row", "no") for number in range(count))
        with pytest.raises(Interrupted):
            list(batch._checked(lines))
        assert (batch.record.status, batch.record.total) == ("failed", count)
        assert len(batch.record.errors) == min(count, 1000) + 1
        assert batch.record.errors[-1]["message"] == told


def test_a_file_whose_content_is_gone_ends_its_batch(
    written: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = work([None], written, tmp_path, monkeypatch)
    (tmp_path / "rows.jsonl").unlink()
    batch.run()
    assert batch.record.status == "failed"
    assert batch.record.errors[0]["message"].endswith(": its content is gone")
