"""The folder of files and batches: one server's alone, what is old goes, what is needed stays."""

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mindbatch.io.errors import ConfigError
from mindbatch.server.batches import Batches
from mindbatch.server.records import BatchRecord, FileRecord
from mindbatch.server.requests import ApiError


def batches(folder: Path, **server: Any) -> Batches:
    settings = {"batches_dir": str(folder), "max_files": 3, "max_batches": 1, "keep_days": 1} | server
    config: Any = SimpleNamespace(server=SimpleNamespace(**settings))
    nothing: Any = None
    return Batches(config, nothing, nothing, nothing)


def batch_of(kept: Batches, file_id: str, status: str) -> BatchRecord:
    record = BatchRecord(f"batch_{file_id[-24:]}", "/v1/completions", file_id, "24h", 1, 1 << 40)
    record.status, record.completed = status, 1
    kept.records.keep(record)
    return record


def test_what_is_old_goes_and_what_a_batch_needs_stays(tmp_path: Path) -> None:
    kept = batches(tmp_path)
    files = [kept.files.add(io.BytesIO(b"{}\n"), name) for name in ("done", "needed", "new")]
    for file in files[:2]:
        kept.files.keep(FileRecord(file.id, file.filename, file.bytes, 1))
    done, running = (
        batch_of(kept, file.id, status)
        for file, status in zip(files, ("completed", "in_progress"), strict=False)
    )
    run = tmp_path / "batches" / done.id
    run.mkdir()
    (run / "results.jsonl").write_bytes(b"{}\n")
    assert kept.file(done.result_id("output") or "") is not None
    kept.remove_old()
    assert [file.filename for file in kept.files.all()] == ["needed", "new"]
    assert [record.id for record in kept.records.all()] == [running.id]
    assert not run.exists()
    kept.stop()
    again = batches(tmp_path)
    assert [record.id for record in again.records.all()] == [running.id]
    again.stop()


def test_a_link_is_no_file_of_a_batch(tmp_path: Path) -> None:
    kept = batches(tmp_path)
    file = kept.files.add(io.BytesIO(b"{}\n"), "a")
    done = batch_of(kept, file.id, "completed")
    (tmp_path / "batches" / done.id).mkdir()
    (tmp_path / "batches" / done.id / "results.jsonl").symlink_to("/etc/passwd")
    kept.files.content(file.id).unlink()
    kept.files.content(file.id).symlink_to("/etc/passwd")
    assert kept.file(done.result_id("output") or "") is None
    assert kept.file(file.id) is None
    kept.stop()


def test_bounds(tmp_path: Path) -> None:
    kept = batches(tmp_path)
    first, *_ = (kept.files.add(io.BytesIO(b"{}\n"), "a") for _ in range(3))
    with pytest.raises(ApiError, match="there are 3 files, the most that are kept"):
        kept.files.add(io.BytesIO(b"{}\n"), "a")
    batch_of(kept, first.id, "in_progress")
    with pytest.raises(ApiError, match="runs its lines; cancel that first"):
        kept.delete_file(first.id)
    with pytest.raises(ConfigError, match="another run is writing here"):
        batches(tmp_path)
    kept.stop()
