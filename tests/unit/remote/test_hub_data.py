"""Rows of a dataset on a hub: the split's files, in the commit that a run records, whole."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest

from dataset_hub import DatasetHub, entry_of
from hub_server import git_digest, use_empty_cache
from mindbatch.dataset.data_files import ROW_SUFFIXES
from mindbatch.io.errors import EXIT_DONE, ConfigError, MindBatchError
from mindbatch.io.storage import Storage
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.ledger.run_record import RunRecord
from mindbatch.remote.sources import local_files
from mindbatch.run.batch_config import BatchConfig
from mindbatch.run.survey import DataInput
from shadow_llm import make_llm
from stub_job import Interrupting, job_config, lines_of, make_job, never, shared_tokenizer

TRAIN = "hf://datasets/org/data/train"


def rows(*ids: str) -> bytes:
    return b"".join(orjson.dumps({"id": name, "prompt": f"Say {name}"}) + b"\n" for name in ids)


FILES: Mapping[str, bytes] = {
    "README.md": b"# Data\n",
    "data/train-00000-of-00002.jsonl": rows("a", "b"),
    "data/train-00001-of-00002.jsonl": rows("c"),
    "data/test-00000-of-00001.jsonl": rows("x"),
    "load.py": b"import os",
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return use_empty_cache(tmp_path / "home", monkeypatch)


def fetched(hub: DatasetHub, monkeypatch: pytest.MonkeyPatch, address: str = TRAIN) -> dict[str, bytes]:
    """The fetched files by their path in the snapshot."""
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    paths, records = local_files([address], ROW_SUFFIXES, {}, Path("objects"))
    assert set(records) == {address}
    return {path.partition(f"/snapshots/{hub.main}/")[2]: Path(path).read_bytes() for path in paths}


def refused(
    hub: DatasetHub, monkeypatch: pytest.MonkeyPatch, address: str = TRAIN, kind: type = ConfigError
) -> str:
    with pytest.raises(MindBatchError) as error:
        fetched(hub, monkeypatch, address)
    assert type(error.value) is kind
    [line] = error.value.lines
    assert line.startswith(f"data.path={address}: ")
    return line


def run_config(tmp_path: Path, path: str = TRAIN, **output: Any) -> BatchConfig:
    return job_config(path, tmp_path / "run", key_column="id", output=output)


def keys(tmp_path: Path) -> list[str]:
    return [line["key"] for line in lines_of(tmp_path / "run/results.jsonl")]


def stopping(after: int) -> Any:
    return lambda: Interrupting(make_llm(shared_tokenizer(), batch_size=1), after)


def test_the_files_of_a_split_are_fetched_once_in_their_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with DatasetHub(dict(FILES)) as hub:
        assert fetched(hub, monkeypatch) == {
            name: content for name, content in FILES.items() if "train" in name
        }
        assert not list(tmp_path.rglob("*.py")), "code is no data"
        gets = len([line for line in hub.requests if "/resolve/" in line])
        fetched(hub, monkeypatch)
        assert len([line for line in hub.requests if "/resolve/" in line]) == gets, "the cache has them"
        one = "hf://datasets/org/data@main/data/test-00000-of-00001.jsonl"
        hub.requests.clear()
        assert fetched(hub, monkeypatch, one) == {"data/test-00000-of-00001.jsonl": rows("x")}
        assert not [line for line in hub.requests if "/tree/" in line], "a file needs no listing"


def test_a_run_resumes_with_the_commit_that_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with DatasetHub(dict(FILES)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        first = hub.main
        with pytest.raises(KeyboardInterrupt):
            make_job(run_config(tmp_path), load=stopping(6)).run()
        record = RunRecord.read(RunFolder(tmp_path / "run")).sources
        assert record is not None
        assert (record[TRAIN]["commit"], record[TRAIN]["hub"]) == (first, hub.address)
        hub.commit({**FILES, "data/train-00001-of-00002.jsonl": rows("other", "rows")})
        assert hub.main != first
        assert make_job(run_config(tmp_path)).run() == EXIT_DONE
    assert keys(tmp_path) == ["a", "b", "c"]
    manifest = json.loads((tmp_path / "run/manifest.json").read_bytes())
    assert manifest["sources"][TRAIN]["commit"] == first
    # Without the hub: the files are in the cache, each with the digest that was recorded.
    assert make_job(run_config(tmp_path), load=never).run() == EXIT_DONE
    [kept] = [path for path in (tmp_path / "home").rglob("blobs/*") if path.read_bytes() == rows("c")]
    kept.write_bytes(rows("d"))
    with pytest.raises(MindBatchError, match="cannot be reached"):
        make_job(run_config(tmp_path), load=never).run()


def test_a_resumed_run_fetches_the_old_commit_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with DatasetHub(dict(FILES)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        with pytest.raises(KeyboardInterrupt):
            make_job(run_config(tmp_path), load=stopping(2)).run()
        hub.commit({"data/train-00000-of-00001.jsonl": rows("other")})
        monkeypatch.setenv("HF_HOME", str(tmp_path / "another machine"))
        assert make_job(run_config(tmp_path)).run() == EXIT_DONE
        assert keys(tmp_path) == ["a", "b", "c"]
        record = RunRecord.read(RunFolder(tmp_path / "run"))
        replayed = DataInput(run_config(tmp_path).data, Storage(), recorded=record.sources or {})
        assert len([*replayed.dataset(RunFolder(tmp_path / "run")).records()]) == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"commit": "../../x"},
        {"files": {}},
        {"files": {"../../a.jsonl": "sha1:" + "b" * 40}},
        {"files": {"a.jsonl": "md5:x"}},
        {"files": {"a.jsonl": 3}},
    ],
)
def test_a_record_that_leads_elsewhere_is_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    record = {"commit": "a" * 40, "files": {"a.jsonl": "sha1:" + "b" * 40}, **wrong}
    with pytest.raises(ConfigError, match="run.json: damaged: what it has of hf://datasets/org/data/train"):
        local_files([TRAIN], ROW_SUFFIXES, {TRAIN: record}, tmp_path)


def test_another_revision_is_another_address_and_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with DatasetHub(dict(FILES)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        assert make_job(run_config(tmp_path)).run() == EXIT_DONE
        more = {**FILES, "data/train-00001-of-00002.jsonl": rows("c", "d")}
        newer = f"hf://datasets/org/data@{hub.commit(more)}/train"
        assert make_job(run_config(tmp_path, newer)).run() == EXIT_DONE
        assert keys(tmp_path) == ["a", "b", "c", "d"]
        assert set(RunRecord.read(RunFolder(tmp_path / "run")).sources or {}) == {newer}
        other = rows("a") + b'{"id": "b", "prompt": "Other"}\n'
        changed = {**FILES, "data/train-00000-of-00002.jsonl": other}
        with pytest.raises(ConfigError, match="the data has changed since: other prompts .* for the rows b"):
            make_job(run_config(tmp_path, f"hf://datasets/org/data@{hub.commit(changed)}/train")).run()


def test_files_here_and_there_are_one_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.jsonl").write_bytes(rows("own"))
    equal = {**FILES, "data/train-00001-of-00002.jsonl": FILES["data/train-00000-of-00002.jsonl"]}
    with DatasetHub(equal) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        config = run_config(tmp_path)
        config.data.path, config.data.key_column = (str(tmp_path / "own.jsonl"), TRAIN), None
        assert make_job(config).run() == EXIT_DONE
    prompts = [line["prompt"] for line in lines_of(tmp_path / "run/results.jsonl")]
    assert prompts == ["Say own", *["Say a", "Say b"] * 2], "files of the same content are two files"


def test_what_a_hub_has_not_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with DatasetHub(dict(FILES)) as hub:
        for address, said in (
            ("hf://datasets/org/data/dev", "has no split 'dev'; it has test, train"),
            ("hf://datasets/org/data", "a split must be given; it has test, train"),
            ("hf://datasets/org/data/a.jsonl", "has no file a.jsonl"),
            ("hf://datasets/org/data@v9/train", "has no such revision of it"),
        ):
            assert refused(hub, monkeypatch, address).endswith(said)
        assert "has no dataset of that name, or it is private and HF_TOKEN is not set" in refused(
            hub, monkeypatch, "hf://datasets/org/other/train"
        )
        hub.statuses["/revision/"] = hub.statuses["/api/datasets/org/data"] = 503
        assert "cannot be reached" in refused(hub, monkeypatch, kind=MindBatchError)


def test_the_token_goes_to_the_hub_and_to_no_other_host(monkeypatch: pytest.MonkeyPatch) -> None:
    files = dict(FILES)
    with DatasetHub(files) as store, DatasetHub(files, token="hf_secret", store=store.address) as hub:
        assert "HF_TOKEN is not set" in refused(hub, monkeypatch)
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        assert len(fetched(hub, monkeypatch)) == 2
        assert set(hub.tokens) == {None, "Bearer hf_secret"}
        assert len(store.requests) == 2
        assert set(store.tokens) == {None}


@pytest.mark.parametrize(
    "name",
    ["../train.jsonl", "data/../../train.jsonl", "/train.jsonl", "data//train.jsonl", ".ssh/train.jsonl"]
    + ["a\\train.jsonl", "a\ntrain.jsonl", "train/" * 300 + "x.jsonl"],
)
def test_names_in_a_tree_lead_nowhere(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(tmp_path.rglob("*"))
    with DatasetHub({"x.bin": b""}, lists=[entry_of(name, rows("a"))]) as hub:
        hub.commits[hub.main][name] = rows("a")
        assert "has no split 'train'; it has no file of rows" in refused(hub, monkeypatch)
    new = {*tmp_path.rglob("*")} - {*before}
    assert [path for path in new if "home" not in path.parts] == []


def test_a_file_that_is_not_what_is_listed_is_not_kept(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    name = "train.jsonl"
    listed = {**entry_of(name, rows("a")), "lfs": None}
    listed |= {"oid": git_digest(rows("b"))}
    with DatasetHub({name: rows("a")}, lists=[listed]) as hub:
        assert "another digest than it lists" in refused(hub, monkeypatch, kind=MindBatchError)
    assert not [path for path in cache.rglob("*") if path.is_file() and rows("a") in path.read_bytes()]


def test_a_huge_listing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [entry_of(f"data/{number}.csv", b"") for number in range(100_001)]
    with DatasetHub({}, lists=many, page=50_000) as hub:
        assert "has more than 100,000 files and folders; name the file" in refused(hub, monkeypatch)
