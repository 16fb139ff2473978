"""The folder of files and batches: one server's alone, what is old goes, what is needed stays."""

import asyncio
import io
import queue
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from mindbatch.io.errors import ConfigError
from mindbatch.server.batch_routes import file_content
from mindbatch.server.batch_work import BatchWork
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


def test_a_batch_that_comes_while_the_server_ends_begins_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: queue.SimpleQueue[str] = queue.SimpleQueue()
    monkeypatch.setattr(BatchWork, "run", lambda work: begun.put(work.record.id))
    kept = batches(tmp_path)
    file = kept.files.add(io.BytesIO(b"{}\n"), "a")
    kept.interrupt()
    record = kept.create(file.id, "/v1/completions", "24h", 86400, None)
    kept.stop()
    assert begun.empty()
    again = batches(tmp_path)
    again.start()
    assert begun.get(timeout=60) == record.id
    again.stop()


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


def request_of(kept: Batches, name: str) -> Request:
    app = SimpleNamespace(state=SimpleNamespace(service=SimpleNamespace(batches=kept)))
    return Request({"type": "http", "app": app, "path_params": {"name": name}, "headers": []})


def test_a_file_that_is_removed_while_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is either not there or comes whole."""
    kept = batches(tmp_path)
    file = kept.files.add(io.BytesIO(b"{}\n" * 50_000), "a")
    path, sent = kept.files.content(file.id), []

    async def send(message: Any) -> None:
        path.unlink(missing_ok=True)
        sent.append(message)

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def scene() -> None:
        response = await file_content(request_of(kept, file.id))
        await response({"type": "http", "method": "GET"}, receive, send)

    asyncio.run(scene())
    assert sent[0]["status"] == 200
    assert (b"content-length", b"150000") in sent[0]["headers"]
    assert b"".join(message["body"] for message in sent[1:]) == b"{}\n" * 50_000
    monkeypatch.setattr(kept, "file", lambda name: (file, path))  # it was there a moment ago
    with pytest.raises(ApiError, match=f"file .*{file.id}.*: there is none") as caught:
        asyncio.run(file_content(request_of(kept, file.id)))
    assert caught.value.status == 404
    kept.stop()
