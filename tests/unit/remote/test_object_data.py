"""Rows in S3 and Google Cloud Storage: fetched once, checked, and those that the run began with."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from mindbatch.dataset.data_files import ROW_SUFFIXES
from mindbatch.io.errors import EXIT_DONE, ConfigError, MindBatchError
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.ledger.run_record import RunRecord
from mindbatch.remote.sources import local_files
from mindbatch.run.batch_config import BatchConfig
from object_stores import GoogleStore, S3Store, md5
from shadow_llm import make_llm
from stub_job import Interrupting, job_config, lines_of, make_job, never, shared_tokenizer

pytest.importorskip("s3fs")
pytest.importorskip("gcsfs")

pytestmark = pytest.mark.slow  # a process for each request, which imports the clients of AWS and Google


def rows(*ids: str) -> bytes:
    return b"".join(orjson.dumps({"id": name, "prompt": f"Say {name}"}) + b"\n" for name in ids)


OBJECTS = {
    "in/part-1.jsonl": rows("a", "b"),
    "in/part-2.jsonl": rows("c"),
    "in/deep/part-3.jsonl": rows("d"),
    "in/notes.txt": b"notes",
}


@pytest.fixture(params=[S3Store, GoogleStore], ids=["s3", "gs"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret-key")
    monkeypatch.chdir(tmp_path)
    with request.param(objects=dict(OBJECTS)) as served:
        monkeypatch.setenv("AWS_ENDPOINT_URL", served.address)
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", served.address)
        yield served


def address(store: Any, path: str) -> str:
    return f"{store.scheme}://bucket/{path}"


def fetched(store: Any, path: str, recorded: Any = None) -> tuple[dict[str, bytes], Any]:
    where = address(store, path)
    records = {} if recorded is None else {where: recorded}
    paths, found = local_files([where], ROW_SUFFIXES, records, Path("objects"))
    return {Path(path).name: Path(path).read_bytes() for path in paths}, found[where]


def refused(store: Any, path: str, kind: type = ConfigError) -> str:
    with pytest.raises(MindBatchError) as error:
        fetched(store, path)
    assert type(error.value) is kind, error.value
    [line] = error.value.lines
    assert line.startswith(f"data.path={address(store, path)}: ")
    assert "very-secret-key" not in line
    return line


def run_config(tmp_path: Path, store: Any, path: str = "in/*.jsonl", **output: Any) -> BatchConfig:
    return job_config(address(store, path), tmp_path / "run", key_column="id", output=output)


def keys(folder: Path) -> list[str]:
    return [line["key"] for line in lines_of(folder / "results.jsonl")]


def interrupted_after(after: int) -> Any:
    return lambda: Interrupting(make_llm(shared_tokenizer(), batch_size=1), after)


def test_objects_are_fetched_once_and_recorded(store: Any, capsys: pytest.CaptureFixture[str]) -> None:
    files, record = fetched(store, "in/*.jsonl")
    assert files == {"part-1.jsonl": rows("a", "b"), "part-2.jsonl": rows("c")}
    assert record["endpoint"] == store.address
    assert {key: about["size"] for key, about in record["objects"].items()} == {
        "in/part-1.jsonl": len(rows("a", "b")),
        "in/part-2.jsonl": len(rows("c")),
    }
    assert md5(rows("c")) in record["objects"]["in/part-2.jsonl"]["etag"]
    count = sum(line.startswith("GET") and "part-1" in line for line in store.requests)
    assert "in/*.jsonl: 2 files, 84 bytes, from http://127.0.0.1:" in capsys.readouterr().err
    assert fetched(store, "in/*.jsonl")[0] == files
    assert "fetching" not in capsys.readouterr().err
    again = sum(line.startswith("GET") and "part-1" in line for line in store.requests) - count
    assert again == (1 if store.scheme == "gs" else 0), "only what it is, not what it has"
    assert fetched(store, "in/deep/part-3.jsonl")[0] == {"part-3.jsonl": rows("d")}
    assert set(fetched(store, "in/**/*.jsonl")[0]) == {"part-1.jsonl", "part-2.jsonl", "part-3.jsonl"}


def test_a_run_resumes_with_the_objects_that_it_began_with(tmp_path: Path, store: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        make_job(run_config(tmp_path, store), load=interrupted_after(2)).run()
    store.objects["in/part-9.jsonl"] = rows("new")
    assert make_job(run_config(tmp_path, store)).run() == EXIT_DONE
    assert keys(tmp_path / "run") == ["a", "b", "c"]
    manifest = json.loads((tmp_path / "run/manifest.json").read_bytes())
    objects = manifest["sources"][address(store, "in/*.jsonl")]["objects"]
    assert set(objects) == {"in/part-1.jsonl", "in/part-2.jsonl"}
    assert not [path for path in (tmp_path / "run").iterdir() if b"very-secret-key" in path.read_bytes()]


@pytest.mark.parametrize(
    "record",
    [3, {}, {"objects": {}}, {"objects": {"a": 1}}, {"objects": {"../a": {"etag": "x", "size": 1}}}]
    + [{"commit": "a" * 40, "files": {"a": "sha1:" + "b" * 40}}],
)
def test_a_record_that_is_none_is_refused(record: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="run.json: damaged: what it has of s3://bucket/a is no record"):
        local_files(["s3://bucket/a"], ROW_SUFFIXES, {"s3://bucket/a": record}, tmp_path)


def test_a_changed_object_is_an_error_that_names_it(tmp_path: Path, store: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        make_job(run_config(tmp_path, store), load=interrupted_after(6)).run()
    before = (tmp_path / "run/ledger.jsonl").read_bytes()
    store.objects["in/part-2.jsonl"] = rows("other")
    del store.objects["in/part-1.jsonl"]
    with pytest.raises(ConfigError) as error:
        make_job(run_config(tmp_path, store), load=never).run()
    one, two = error.value.lines
    assert f"{address(store, 'in/part-1.jsonl')} is gone since the run began" in one
    assert f"{address(store, 'in/part-2.jsonl')} has changed since the run began (etag " in two
    assert two.endswith("give another output.dir, or output.on_mismatch=new_dir or overwrite")
    assert (tmp_path / "run/ledger.jsonl").read_bytes() == before
    assert make_job(run_config(tmp_path, store, on_mismatch="new_dir")).run() == EXIT_DONE
    assert keys(tmp_path / "run-2") == ["other"]
    assert make_job(run_config(tmp_path, store, on_mismatch="overwrite")).run() == EXIT_DONE
    assert keys(tmp_path / "run") == ["other"]
    sources = RunRecord.read(RunFolder(tmp_path / "run")).sources or {}
    assert set(sources[address(store, "in/*.jsonl")]["objects"]) == {"in/part-2.jsonl"}


def test_what_is_not_there_or_not_allowed_is_named(store: Any) -> None:
    assert "no such object, or no such bucket" in refused(store, "in/none.jsonl")
    assert "no object fits this pattern" in refused(store, "in/*.csv")
    store.objects["in/a\\b.csv"] = b""
    assert "cannot be the name of a file here" in refused(store, "in/*.csv")
    store.status = 403
    line = refused(store, "in/part-1.jsonl")
    assert f"access to {store.scheme}://bucket is denied" in line


def test_an_object_that_does_not_arrive_as_it_is_is_not_kept(tmp_path: Path, store: Any) -> None:
    store.etags["in/part-1.jsonl"] = md5(b"other")
    line = refused(store, "in/part-1.jsonl", MindBatchError)
    assert "other bytes came than the store has; they were removed" in line
    assert not list((tmp_path / "objects").rglob("*part*"))


def test_a_connection_that_is_cut_is_gone_on_from(store: Any) -> None:
    store.cut_downloads = 1
    assert fetched(store, "in/part-1.jsonl")[0] == {"part-1.jsonl": rows("a", "b")}
    assert store.cut_downloads == 0


def test_without_credentials_it_says_which(
    tmp_path: Path, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if store.scheme == "gs":
        pytest.skip("an emulator takes none")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert "no credentials for s3://bucket: set AWS_ACCESS_KEY_ID" in refused(store, "in/part-1.jsonl")


def test_a_store_that_has_gone(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if store.scheme == "gs":
        pytest.skip("its client tries for a minute")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    line = refused(store, "in/part-1.jsonl", MindBatchError)
    assert "cannot be reached, or ended the connection" in line
