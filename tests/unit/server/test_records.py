"""Records of files and batches: only whole ones of ours are read, and their names lead nowhere else."""

import json
from pathlib import Path
from typing import Any

import pytest

from mindbatch.io.storage import Storage
from mindbatch.server.records import (
    BatchRecord,
    FileRecord,
    Files,
    Records,
    is_id,
    new_id,
    result_of,
    window_seconds,
)

BATCH = "batch_" + "0" * 24


def record(**fields: Any) -> BatchRecord:
    values: dict[str, Any] = {"id": BATCH, "endpoint": "/v1/completions", "input_file_id": "file-" + "1" * 24}
    return BatchRecord(**values | {"completion_window": "24h", "created_at": 1, "expires_at": 2, **fields})


def test_a_batch_comes_back_as_it_was(tmp_path: Path) -> None:
    kept = record(metadata={"a": "b"}, errors=[{"line": 1}], removed=["output"], status="failed", failed_at=3)
    Records(tmp_path, BatchRecord, Storage()).keep(kept)
    assert Records(tmp_path, BatchRecord, Storage()).all() == [kept]


@pytest.mark.parametrize("fields", [{"created_at": "x"}, {"id": "batch_other"}], ids=str)
def test_a_damaged_one_is_named_and_left_out(
    tmp_path: Path, fields: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    Records(tmp_path, BatchRecord, Storage()).keep(record())
    path = tmp_path / f"{BATCH}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    assert Records(tmp_path, BatchRecord, Storage()).all() == []
    assert f"{path}: damaged; left out" in capsys.readouterr().err


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
