"""Results on a hub, in S3 and in Google Cloud Storage: uploaded once, whole and compared."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from dataset_hub import DatasetHub
from mindbatch.hub.listings import Refused
from mindbatch.io.errors import EXIT_DONE, EXIT_FAILED, EXIT_UNFINISHED, EXIT_USAGE, MindBatchError
from mindbatch.remote import object_store
from mindbatch.run.batch_config import BatchConfig
from object_stores import GoogleStore, S3Store
from shadow_llm import make_llm
from stub_job import Interrupting, job_config, make_job, never, shared_tokenizer, write_rows

pytest.importorskip("s3fs")
pytest.importorskip("gcsfs")

pytestmark = pytest.mark.slow  # a process for each request, which imports the clients of AWS and Google

NAMES = ("results.jsonl", "errors.jsonl")


FOLDER = "runs/a/"


def below(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files of the folder that is uploaded to."""
    return {name.removeprefix(FOLDER): files[name] for name in files if name.startswith(FOLDER)}


class HubDestination:
    """A dataset on a hub, as somewhere to upload to."""

    address = "hf://datasets/org/data/runs/a"

    def __init__(self) -> None:
        self.server = DatasetHub({"README.md": b"# Mine\n"}, token="hf_very_secret_token")

    def stored(self) -> dict[str, bytes]:
        return below(self.server.commits[self.server.main])

    def put(self, name: str, content: bytes) -> None:
        self.server.commit({**self.server.commits[self.server.main], f"runs/a/{name}": content})

    def refuse(self) -> None:
        self.server.may_write = False

    @property
    def num_uploads(self) -> int:
        return len([line for line in self.server.requests if "/commit/" in line])


class StoreDestination:
    """A bucket, as somewhere to upload to."""

    def __init__(self, server: Any) -> None:
        self.server = server
        self.address = f"{server.scheme}://bucket/runs/a"

    def stored(self) -> dict[str, bytes]:
        return below(self.server.objects)

    def put(self, name: str, content: bytes) -> None:
        self.server.objects[f"runs/a/{name}"] = content

    def refuse(self) -> None:
        self.server.status = 403

    @property
    def num_uploads(self) -> int:
        uploads = [line for line in self.server.uploads if "results" in line or "=multipart" in line]
        return len(uploads)


MAKE: dict[str, Callable[[], Any]] = {
    "hf": HubDestination,
    "s3": lambda: StoreDestination(S3Store()),
    "gs": lambda: StoreDestination(GoogleStore()),
}


@pytest.fixture(params=MAKE)
def destination(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_TOKEN", "hf_very_secret_token")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hf_very_secret_token too")
    made = MAKE[request.param]()
    with made.server as server:
        for name in ("HF_ENDPOINT", "AWS_ENDPOINT_URL", "STORAGE_EMULATOR_HOST"):
            monkeypatch.setenv(name, server.address)
        yield made


def run_config(tmp_path: Path, destination: Any, **output: Any) -> BatchConfig:
    data = tmp_path / "rows.jsonl"
    if not data.exists():
        write_rows(data, 5)
    output["upload"] = destination.address
    return job_config(data, tmp_path / "run", key_column="id", output=output)


def local(tmp_path: Path, *names: str) -> dict[str, bytes]:
    return {name: (tmp_path / "run" / name).read_bytes() for name in names or NAMES}


def record(tmp_path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((tmp_path / "run/manifest.json").read_bytes())
    assert content["status"] == "complete"
    return dict(content["upload"])


def refused(config: BatchConfig, code: int, load: Any = None) -> list[str]:
    with pytest.raises(MindBatchError) as error:
        make_job(config, load=load).run()
    assert error.value.exit_code == code
    assert "very_secret" not in str(error.value)
    return [*error.value.lines]


def test_results_are_uploaded_once(tmp_path: Path, destination: Any) -> None:
    assert make_job(run_config(tmp_path, destination)).run() == EXIT_DONE
    assert destination.stored() == local(tmp_path)
    done = record(tmp_path)
    assert (done["address"], done["status"]) == (destination.address, "complete")
    assert {name: about["bytes"] for name, about in done["files"].items()} == {
        name: len(content) for name, content in local(tmp_path).items()
    }
    before = (destination.num_uploads, len(destination.server.requests))
    assert make_job(run_config(tmp_path, destination), load=never).run() == EXIT_DONE
    assert (destination.num_uploads, len(destination.server.requests)) == before, "nothing is asked"
    assert record(tmp_path) == done
    secret = b"very_secret"
    assert not [path for path in (tmp_path / "run").iterdir() if secret in path.read_bytes()]


def test_results_that_change_replace_those_of_the_run(tmp_path: Path, destination: Any) -> None:
    assert make_job(run_config(tmp_path, destination)).run() == EXIT_DONE
    changed = run_config(tmp_path, destination, format="csv")
    assert make_job(changed, load=never).run() == EXIT_DONE
    assert destination.stored() == local(tmp_path, "results.csv", "errors.jsonl"), "those before are removed"
    write_rows(tmp_path / "rows.jsonl", 7)
    assert make_job(changed).run() == EXIT_DONE
    assert destination.stored() == local(tmp_path, "results.csv", "errors.jsonl")


def test_files_of_others_are_not_touched(tmp_path: Path, destination: Any) -> None:
    destination.put("results.jsonl", b"of somebody else")
    destination.put("notes.md", b"too")
    [line] = refused(run_config(tmp_path, destination), EXIT_USAGE, never)
    assert line == f"output.upload={destination.address}: already has results.jsonl; give another folder"
    assert destination.stored() == {"results.jsonl": b"of somebody else", "notes.md": b"too"}
    assert not (tmp_path / "run").exists(), "nothing was begun"


def test_without_permission_nothing_begins(tmp_path: Path, destination: Any) -> None:
    destination.refuse()
    [line] = refused(run_config(tmp_path, destination), EXIT_USAGE, never)
    assert "HF_TOKEN may not read or write this dataset" in line or "is denied for these credentials" in line
    assert not (tmp_path / "run").exists()


def test_permission_that_is_withdrawn_is_noticed_before_rows_run(tmp_path: Path, destination: Any) -> None:
    assert make_job(run_config(tmp_path, destination)).run() == EXIT_DONE
    write_rows(tmp_path / "rows.jsonl", 7)
    destination.refuse()
    refused(run_config(tmp_path, destination), EXIT_USAGE, never)
    assert len(destination.stored()) == 2
    assert record(tmp_path)["status"] == "complete"


def test_what_does_not_arrive_whole_is_an_error_and_sent_again(tmp_path: Path, destination: Any) -> None:
    destination.server.spoils = True
    *_, line = refused(run_config(tmp_path, destination), EXIT_UNFINISHED)
    state = "the results are complete, and not uploaded; the same command uploads them"
    assert line == f"{tmp_path / 'run'}: {state}"
    assert record(tmp_path) == {"address": destination.address, "status": "pending"}
    assert destination.stored() != local(tmp_path)
    destination.server.spoils = False
    assert make_job(run_config(tmp_path, destination), load=never).run() == EXIT_DONE
    assert destination.stored() == local(tmp_path)
    assert record(tmp_path)["status"] == "complete"


def test_an_upload_that_is_cut_once_is_sent_again_at_once(tmp_path: Path, destination: Any) -> None:
    job = make_job(run_config(tmp_path, destination))

    def cut(tally: object) -> None:
        destination.server.cut_uploads = 1

    job.on_step = cut
    assert job.run() == EXIT_DONE
    assert destination.server.cut_uploads == 0, "one was cut"
    assert destination.stored() == local(tmp_path)


def test_a_hub_that_fails_at_the_commit_gets_it_later(tmp_path: Path, destination: Any) -> None:
    if not isinstance(destination, HubDestination):
        pytest.skip("a store has no commits")
    destination.server.statuses["/commit/"] = 503
    first, *_ = refused(run_config(tmp_path, destination), EXIT_UNFINISHED)
    assert "cannot be reached, or ended the connection" in first
    assert destination.stored() == {}, "all or nothing"
    destination.server.statuses.clear()
    assert make_job(run_config(tmp_path, destination), load=never).run() == EXIT_DONE
    assert destination.stored() == local(tmp_path)


def test_failed_rows_that_are_tried_again_are_uploaded(tmp_path: Path, destination: Any) -> None:
    (tmp_path / "rows.jsonl").write_text('{"id": "a", "prompt": "A"}\n{"id": "b", "prompt": ""}\n')
    config = run_config(tmp_path, destination)
    assert make_job(config).run() == EXIT_FAILED
    first = destination.stored()
    assert b'"b"' in first["errors.jsonl"]
    (tmp_path / "rows.jsonl").write_text('{"id": "a", "prompt": "A"}\n{"id": "b", "prompt": "B"}\n')
    assert make_job(config, retry=True).run() == EXIT_DONE
    assert destination.stored() == local(tmp_path) != first


def test_a_killed_job_uploads_nothing_and_its_successor_all(tmp_path: Path, destination: Any) -> None:
    def load() -> Interrupting:
        return Interrupting(make_llm(shared_tokenizer(), batch_size=1), 6)

    with pytest.raises(KeyboardInterrupt):
        make_job(run_config(tmp_path, destination), load=load).run()
    assert destination.stored() == {}
    manifest = json.loads((tmp_path / "run/manifest.json").read_bytes())
    assert manifest["upload"] == {"address": destination.address, "status": "pending"}
    destination.put("errors.jsonl", b"half an upload, of the killed run")
    assert make_job(run_config(tmp_path, destination)).run() == EXIT_DONE
    assert destination.stored() == local(tmp_path)


def test_where_there_is_nothing_to_upload_to(
    tmp_path: Path, destination: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheme = destination.address.partition("://")[0]
    config = run_config(tmp_path, destination)
    config.output.upload = {
        "hf": "hf://datasets/org/other/runs",
        "s3": "s3://other/runs",
        "gs": "gs://other/runs",
    }[scheme]
    [line] = refused(config, EXIT_USAGE, never)
    assert ("has no dataset of that name" in line) or ("no such bucket" in line)
    if scheme == "hf":
        monkeypatch.delenv("HF_TOKEN")
        [line] = refused(run_config(tmp_path, destination), EXIT_USAGE, never)
        assert line.endswith("no token: set HF_TOKEN to one that may write")
    if scheme == "s3":
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        [line] = refused(run_config(tmp_path, destination), EXIT_USAGE, never)
        assert "no credentials for s3://bucket: set AWS_ACCESS_KEY_ID" in line


@pytest.mark.parametrize("is_opaque", [False, True])
@pytest.mark.parametrize("server", [S3Store, GoogleStore])
def test_a_large_file_goes_in_parts(
    server: Any, is_opaque: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "PART_BYTES", 5 << 20)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    large = tmp_path / "large"
    large.write_bytes(bytes(range(256)) * (11 << 12))
    with server(is_opaque=is_opaque) as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.address)
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", store.address)
        bucket = object_store.STORES[store.scheme]("bucket")
        stored = bucket.upload(large, "x/large")
        assert store.objects["x/large"] == large.read_bytes()
        assert stored.size == 11 << 20
        assert len([line for line in store.uploads if "partNumber" in line or "session" in line]) == 3
        assert any("GET" in line and "large" in line for line in store.requests) is (
            is_opaque or store.scheme == "gs"
        )
        bucket.fetch("x/large", stored, tmp_path / "fetched")
        assert (tmp_path / "fetched").read_bytes() == large.read_bytes()
        store.spoils = True
        with pytest.raises(Refused, match="x/large: the store does not have what was sent"):
            bucket.upload(large, "x/large")
