"""Files and batches of a server: what is old goes, what is needed stays, each ends by its own faults."""

import asyncio
import errno
import io
import json
import queue
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from mindbatch.dataset.rows import RowFailure
from mindbatch.io.errors import CheckpointError, ConfigError, MindBatchError
from mindbatch.io.storage import Storage, StorageError
from mindbatch.ledger.entries import Entry
from mindbatch.ledger.ledger import Ledger
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.ledger.run_record import RunRecord
from mindbatch.run.batch_config import BatchConfig
from mindbatch.server import batches as batch_module
from mindbatch.server import records as record_module
from mindbatch.server.batch_routes import _page, file_content
from mindbatch.server.batch_rows import Interrupted
from mindbatch.server.batches import Batches, BatchWork
from mindbatch.server.records import (
    BatchRecord,
    BatchRecords,
    FileRecord,
    Files,
    Records,
    is_id,
    new_id,
    result_of,
    window_seconds,
)
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


def test_what_batches_have_written_stands_among_the_files(tmp_path: Path) -> None:
    kept = batches(tmp_path)
    old, new = (kept.files.add(io.BytesIO(b"{}\n"), name) for name in ("old", "new"))
    kept.files.keep(FileRecord(old.id, "old", old.bytes, 1))
    done, running = batch_of(kept, old.id, "completed"), batch_of(kept, new.id, "in_progress")
    done.completed_at = 5
    for batch in (done, running):
        (tmp_path / "batches" / batch.id).mkdir()
        (tmp_path / "batches" / batch.id / "results.jsonl").write_bytes(b"{}\n")
    output = done.result_id("output") or ""
    listed = kept.all_files()
    assert [(file.id, file.purpose) for file in listed] == [
        (old.id, "batch"),
        (output, "batch_output"),
        (new.id, "batch"),
    ]
    assert listed[1] == (kept.file(output) or ())[0]
    kept.delete_file(output)
    assert [file.id for file in kept.all_files()] == [old.id, new.id]
    kept.stop()


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
    with pytest.raises(ApiError, match="there are 3 files, the maximum"):
        kept.files.add(io.BytesIO(b"{}\n"), "a")
    batch_of(kept, first.id, "in_progress")
    with pytest.raises(ApiError, match="cancel that batch first"):
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
    with pytest.raises(ApiError, match=f"file .*{file.id}.*: does not exist") as caught:
        asyncio.run(file_content(request_of(kept, file.id)))
    assert caught.value.status == 404
    kept.stop()


BATCH = "batch_" + "0" * 24


def record(**fields: Any) -> BatchRecord:
    values: dict[str, Any] = {"id": BATCH, "endpoint": "/v1/completions", "input_file_id": "file-" + "1" * 24}
    return BatchRecord(**values | {"completion_window": "24h", "created_at": 1, "expires_at": 2, **fields})


def test_a_batch_comes_back_as_it_was(tmp_path: Path) -> None:
    kept = record(metadata={"a": "b"}, errors=[{"line": 1}], removed=["output"], status="failed", failed_at=3)
    BatchRecords(tmp_path, Storage()).keep(kept)
    [again] = (records := BatchRecords(tmp_path, Storage())).all()
    assert again == kept
    assert (again.errors, again.num_errors) == ([], 1)  # which memory does not hold
    assert records.object(again)["errors"] == {"object": "list", "data": [{"line": 1}]}
    (tmp_path / f"{BATCH}.errors").write_text("[{")
    [error] = records.object(again)["errors"]["data"]
    assert error["message"] == "the errors cannot be read"
    records.delete(BATCH)
    assert list(tmp_path.iterdir()) == []


def test_records_of_before_whose_errors_are_within_them_are_found_however_large(tmp_path: Path) -> None:
    errors = [{"code": "x", "message": "\u754c" * 10_000, "param": None, "line": n} for n in range(1000)]
    content = {**record(status="failed").content(), "errors": errors}
    (tmp_path / f"{BATCH}.json").write_text(json.dumps(content))
    assert (tmp_path / f"{BATCH}.json").stat().st_size > 50 << 20
    BatchRecords(tmp_path, Storage())
    assert (tmp_path / f"{BATCH}.json").stat().st_size < 1000
    [again] = (records := BatchRecords(tmp_path, Storage())).all()
    told = records.object(again)["errors"]["data"]
    assert len(told) == 201
    assert told[0]["message"] == "\u754c" * 997 + "..."
    assert told[-1]["message"] == "and 800 more lines with errors"


def test_a_batch_that_fails_while_it_is_shown_is_not_shown_as_failed_without_its_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records, batch = BatchRecords(tmp_path, Storage()), record(status="in_progress")
    shown_object = BatchRecord.object

    def fail_meanwhile(self: BatchRecord, errors: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
        batch.errors = [{"code": "x", "message": "y", "param": None, "line": 1}]
        batch.enter("failed")
        records.keep(batch)
        return shown_object(self, errors)

    monkeypatch.setattr(BatchRecord, "object", fail_meanwhile)
    shown = records.object(batch)
    assert (shown["status"], shown["errors"]) == ("in_progress", None)
    monkeypatch.undo()
    shown = records.object(batch)
    assert (shown["status"], len(shown["errors"]["data"])) == ("failed", 1)


def test_records_that_cannot_be_read_now_are_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends in order, and another start finds them."""
    BatchRecords(tmp_path, Storage()).keep(record())

    def fail(path: Path, most: int) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(record_module, "read_regular", fail)
    with pytest.raises(StorageError, match="cannot be read .Too many open files"):
        BatchRecords(tmp_path, Storage())
    monkeypatch.undo()
    assert len(BatchRecords(tmp_path, Storage()).all()) == 1


def test_pages_are_bounded(tmp_path: Path) -> None:
    records = BatchRecords(tmp_path, Storage())
    errors = [{"code": "x", "message": "m" * 1000, "param": None, "line": n} for n in range(200)]
    for number in range(40):
        records.keep(record(id=f"batch_{number:024}", errors=[*errors], status="failed", num_errors=0))
    found: list[str] = []
    while True:
        query = {"limit": "100"} | ({"after": found[-1]} if found else {})
        response = _page(records, records.all(), query, 100)
        assert len(response.body) < 5 << 20
        page = json.loads(response.body)
        found += [batch["id"] for batch in page["data"]]
        assert page["last_id"] == found[-1]
        if not page["has_more"]:
            break
    assert found == [f"batch_{number:024}" for number in range(40)]


def test_removing_what_is_old_ends_with_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = batches(tmp_path, max_files=1000)
    for number in range(250):
        name = f"file-{number:024}"
        (kept.files.content(name)).touch()
        (kept.files.path(name, ".json")).touch()
        kept.files._records[name] = FileRecord(name, "a", 0, 1)
    delete = kept.files.delete

    def ended_amid(*names: str) -> None:
        delete(*names)
        kept._is_ending = True

    monkeypatch.setattr(kept.files, "delete", ended_amid)
    kept.remove_old()
    assert len(kept.files.all()) == 230
    assert len([*(tmp_path / "files").glob("*.json")]) == len([*(tmp_path / "files").glob("*.jsonl")]) == 230
    kept.stop()


@pytest.mark.parametrize("fields", [{"created_at": "x"}, {"id": "batch_other"}], ids=str)
def test_a_damaged_one_is_named_and_left_out(
    tmp_path: Path, fields: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    Records(tmp_path, BatchRecord, Storage()).keep(record())
    path = tmp_path / f"{BATCH}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    assert Records(tmp_path, BatchRecord, Storage()).all() == []
    assert f"{path}: damaged; ignored" in capsys.readouterr().err


def test_names_are_ours_or_none() -> None:
    assert is_id(new_id("file-"))
    assert is_id(new_id("batch_"))
    for name in ("file-../../x", "file-" + "A" * 24, "batch_", BATCH + "\n", "../" + BATCH):
        assert not is_id(name)
        assert result_of(name) == ("", "")
    assert result_of("file-" + "0" * 24 + "-output") == (BATCH, "output")


def test_windows() -> None:
    assert [window_seconds(text) for text in ("90s", "30m", "24h", "7d")] == [90, 1800, 86400, 604800]
    for text in ("0h", "1w", "h", "-1h", "1.5h", " 1h", "9999999s", None, 24):
        assert window_seconds(text) is None


def test_result_files_are_those_of_batches_that_have_ended() -> None:
    assert record(completed=3).result_id("output") is None
    done = record(completed=3, status="completed")
    assert done.result_id("output") == "file-" + "0" * 24 + "-output"
    assert done.result_id("errors") is None
    done.removed.append("output")
    assert done.result_id("output") is None


def test_what_a_killed_upload_left_goes_and_damaged_records_keep_their_content(tmp_path: Path) -> None:
    files = Files(tmp_path, Storage(), 10)
    whole, damaged, cut_off = (new_id("file-") for _ in range(3))
    for name in (whole, damaged, cut_off):
        (tmp_path / f"{name}.jsonl").write_bytes(b"{}\n")
    Records(tmp_path, FileRecord, Storage()).keep(FileRecord(whole, "a", 3, 1))
    (tmp_path / f"{damaged}.json").write_text("{")
    (tmp_path / f"{new_id('file-')}.jsonl").symlink_to("/etc/passwd")
    (tmp_path / f"{new_id('file-')}.jsonl").mkdir()
    files = Files(tmp_path, Storage(), 10)
    assert [file.id for file in files.all()] == [whole]
    assert (tmp_path / f"{damaged}.jsonl").exists()
    assert not (tmp_path / f"{cut_off}.jsonl").exists()


def refused(number: int, kind: type[MindBatchError]) -> Exception:
    """An error in words of ours, which the system's stands behind."""
    error = kind("rows.jsonl: cannot be read")
    error.__cause__ = OSError(number, "no")
    return error


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EIO, errno.ENOMEM])
@pytest.mark.parametrize("kind", [ConfigError, CheckpointError, MindBatchError, None], ids=str)
def test_what_may_pass_is_waited_out(
    kind: type[MindBatchError] | None,
    number: int,
    written: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outcome = OSError(number, "no") if kind is None else refused(number, kind)
    batch = work([outcome] * 5 + [None], written, tmp_path, monkeypatch)
    batch.run()
    assert batch.record.status == "completed"


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

    monkeypatch.setattr(batch_module, "run_config", lambda *arguments: None)
    monkeypatch.setattr(batch_module, "fingerprint_fields", lambda *arguments: {})
    monkeypatch.setattr(batch_module, "BatchJob", lambda *arguments, **options: SimpleNamespace(run=run))
    monkeypatch.setattr(batch_module, "rows_of", lambda folder: SimpleNamespace(total=3, done=2, failed=1))
    monkeypatch.setattr(batch_module, "_RETRY_SECONDS", 0.01)
    batches: Any = SimpleNamespace(
        config=None,
        opened=None,
        llm=SimpleNamespace(tokenizer=None),
        engine=SimpleNamespace(is_closed=False),
        changing=threading.RLock(),
        files=SimpleNamespace(content=lambda name: data),
        records=SimpleNamespace(
            path=lambda name: tmp_path / "run", keep=lambda record: written.append(record.status)
        ),
    )
    return BatchWork(record, batches)


def test_a_full_disk_is_waited_for(
    written: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    batch = work([FULL] * 5 + [None], written, tmp_path, monkeypatch)
    batch.run()
    assert (batch.record.status, batch.record.completed, batch.record.failed) == ("completed", 2, 1)
    assert capsys.readouterr().err.count("No space left on device") == 5


def test_a_server_that_ends_does_not_wait_for_room(
    written: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = work([FULL, None], written, tmp_path, monkeypatch)
    monkeypatch.setattr(batch_module, "_RETRY_SECONDS", 600.0)
    batch.end("interrupted")
    batch.run()
    assert written == []


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
    batch._batches.engine.is_closed = True  # type: ignore[misc]
    batch.run()
    assert batch.record.status == "in_progress"
    assert written == []


def test_a_thousand_wrong_lines_are_told_and_the_others_counted(
    written: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for count, told in ((1202, "and 202 more lines with errors"), (0, "the file has no request")):
        batch = work([], written, tmp_path, monkeypatch)
        batch.record.status, batch.record.total = "validating", 0
        lines = (RowFailure(None, "rows.jsonl", number, "row", "no") for number in range(count))
        with pytest.raises(Interrupted):
            list(batch._checked(lines))
        assert (batch.record.status, batch.record.total) == ("failed", count)
        assert len(batch.record.errors) == min(count, 1000) + 1
        assert batch.record.errors[-1]["message"] == told


@pytest.mark.parametrize("are_lines_there", [True, False])
def test_rows_that_were_finished_can_be_fetched_when_the_batch_has_failed(
    are_lines_there: bool, written: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = work(
        [ConfigError("other settings"), None if are_lines_there else ConfigError("other rows")],
        written,
        tmp_path,
        monkeypatch,
    )
    folder, storage = RunFolder(tmp_path / "run"), Storage()
    folder.path.mkdir()
    run = RunRecord(
        created="2026-11-29T00:00:00+00:00", command=[], fields={"a": 1}, dataset={}, date="2026-11-29"
    )
    run.write(folder, storage)
    generation = {"index": 0, "text": "three", "token_ids": [3], "finish_reason": "stop"}
    with Ledger(folder, run.fingerprint, storage) as ledger:
        ledger.recover()
        ledger.append(Entry("r2", "x", "result", {"generations": [generation], "prompt_tokens": 1}))
        ledger.append(Entry("r1", "x", "error", {"stage": "prompt", "reason": "too long"}))
    monkeypatch.setattr(batch_module, "run_config", lambda *arguments: BatchConfig())
    batch.run()
    record = batch.record
    assert record.status == "failed"
    assert record.errors[0]["message"] == "other settings"
    assert (record.total, record.completed, record.failed) == (3, 2 if are_lines_there else 1, 1)
    assert record.result_id("output") is not None
    if not are_lines_there:
        [line] = folder.results("openai").read_bytes().splitlines()
        assert json.loads(line)["custom_id"] == "r2"
        assert json.loads(line)["response"]["body"]["choices"][0]["text"] == "three"
        assert json.loads(folder.errors.read_bytes())["custom_id"] == "r1"


def test_a_file_whose_content_is_gone_ends_its_batch(
    written: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = work([None], written, tmp_path, monkeypatch)
    (tmp_path / "rows.jsonl").unlink()
    batch.run()
    assert batch.record.status == "failed"
    assert batch.record.errors[0]["message"].endswith(": its content does not exist")
