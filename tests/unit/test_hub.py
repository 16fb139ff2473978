"""Fetching a model by its name, from a hub on loopback that cuts connections, lies and leads out."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from harness.scripts import run_script
from hub_server import COMMIT, Hub, use_empty_cache
from mindbatch.hub import models
from mindbatch.hub.models import MODEL_SCOPE, cached_model, fetch_model, fetched
from mindbatch.io.errors import EXIT_UNFINISHED, EXIT_USAGE, MindBatchError

WEIGHTS = bytes(range(256)) * 8192
FILES: Mapping[str, bytes] = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": b"pickle" * 10,
    "consolidated.safetensors": b"not asked for",
    "modeling.py": b"import os",
    "README.md": b"# A model",
    "onnx/config.json": b"{}",
    "../config.json": b"{}",
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return use_empty_cache(tmp_path / "home", monkeypatch)


def fetch(hub: Hub, monkeypatch: pytest.MonkeyPatch, *patterns: str, revision: str | None = None) -> Path:
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    return fetch_model("org/model", revision, patterns, asks=False)


def refused(hub: Hub, monkeypatch: pytest.MonkeyPatch, *patterns: str, revision: str | None = None) -> str:
    with pytest.raises(MindBatchError) as error:
        fetch(hub, monkeypatch, *patterns, revision=revision)
    assert cached_model("org/model") is None
    [line] = error.value.lines
    lasts = "no such revision" in line or "no model of that name" in line
    assert error.value.exit_code == (EXIT_USAGE if lasts else EXIT_UNFINISHED)
    return line


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


def test_what_is_read_of_a_model_is_fetched_once_and_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    with Hub(FILES) as hub:
        folder = fetch(hub, monkeypatch)
        assert contents(folder) == {
            name: FILES[name] for name in ("config.json", "tokenizer.json", "model.safetensors")
        }
        record = fetched(folder)
        assert record is not None
        assert (record["name"], record["commit"], record["hub"]) == ("org/model", COMMIT, hub.address)
        assert {digest.partition(":")[0] for digest in record["files"].values()} == {"sha1", "sha256"}
        hub.requests.clear()
        assert fetch(hub, monkeypatch) == folder == cached_model("org/model")
        assert fetch(hub, monkeypatch, revision=COMMIT) == folder
        assert hub.requests == [], "all is there"


def test_an_index_says_which_files_have_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    parts = {"model-1.safetensors": b"one", "model-2.safetensors": b"two"}
    files = {**FILES, **parts, "model.safetensors.index.json": json.dumps(index).encode()}
    with Hub(files) as hub:
        names = set(contents(fetch(hub, monkeypatch)))
    assert names == {"config.json", "tokenizer.json", "model.safetensors.index.json", *parts}
    index["weight_map"]["c"] = "../elsewhere.safetensors"
    with Hub({**files, "model.safetensors.index.json": json.dumps(index).encode()}, commit="f" * 40) as hub:
        monkeypatch.setenv("HF_HOME", os.devnull + "-not-used")
        monkeypatch.setenv("HF_HUB_CACHE", str(Path.cwd() / "other"))
        assert "names '../elsewhere.safetensors', which does not exist" in refused(hub, monkeypatch)


def test_a_connection_that_is_cut_again_and_again_is_gone_on_from(monkeypatch: pytest.MonkeyPatch) -> None:
    with Hub(FILES, cut_after=len(WEIGHTS) // 7) as hub:
        folder = fetch(hub, monkeypatch)
        asked = [line for line in hub.requests if line.startswith("GET") and "safetensors" in line]
    assert contents(folder)["model.safetensors"] == WEIGHTS
    assert len(asked) >= 7


def test_one_that_brings_nothing_is_given_up_and_gone_on_from_later(monkeypatch: pytest.MonkeyPatch) -> None:
    with Hub(FILES, cut_after=0) as hub:
        assert "cannot be reached, or ended the connection" in refused(hub, monkeypatch)
    with Hub(FILES) as hub:
        assert contents(fetch(hub, monkeypatch))["model.safetensors"] == WEIGHTS


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sent": WEIGHTS[:-1] + b"x"}, "its digest is not the one that the hub lists; it was removed"),
        ({"sent": WEIGHTS[:-5]}, "sent another number of bytes than it announced"),
        ({"sent": WEIGHTS + WEIGHTS}, "sent another number of bytes than it announced"),
        ({"sizes": 10}, "sent another number of bytes than it announced"),
    ],
    ids=["other bytes", "fewer", "more", "a size that is a lie"],
)
def test_other_bytes_than_announced_are_not_kept(
    options: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = {key: {"model.safetensors": value} for key, value in options.items()}
    with Hub(FILES, **wrong) as hub:
        assert said in refused(hub, monkeypatch)
        hub.sent.clear()
        hub.sizes.clear()
        assert contents(fetch(hub, monkeypatch))["model.safetensors"] == WEIGHTS


def test_links_lead_to_other_servers_and_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(WEIGHTS)
    with Hub(FILES, links={"model.safetensors": secret.as_uri()}) as hub:
        refused(hub, monkeypatch)
        hub.links["model.safetensors"] = "ftp://127.0.0.1/model.safetensors"
        assert "No connection adapters were found for" in refused(hub, monkeypatch)
    with Hub(FILES) as store, Hub(FILES) as hub:
        address = f"{store.address}/org/model/resolve/{COMMIT}/model.safetensors"
        hub.links["model.safetensors"] = address
        assert contents(fetch(hub, monkeypatch))["model.safetensors"] == WEIGHTS
        assert any("safetensors" in line for line in store.requests)


def test_pickles_are_fetched_by_name_and_code_never(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {name: content for name, content in FILES.items() if not name.endswith(".safetensors")}
    with Hub(files) as hub:
        line = refused(hub, monkeypatch)
        assert line.endswith(
            "has no safetensors; pytorch_model.bin is a pickle: name it in model.download_files"
        )
        assert "modeling.py is code" in refused(hub, monkeypatch, "*")
        assert "pytorch_model.bin" in contents(fetch(hub, monkeypatch, "pytorch_model*.bin"))


def test_whom_the_hub_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with Hub(FILES, token="hf_secret") as hub:
        assert "no model of that name, or it is private and HF_TOKEN is not set" in refused(hub, monkeypatch)
        assert "secret" not in refused(hub, monkeypatch)
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        assert fetch(hub, monkeypatch).is_dir()
    for other, part in (
        ({"name": "org/other"}, "no model of that name"),
        ({"status": 500}, "cannot be reached"),
    ):
        monkeypatch.setenv("HF_HUB_CACHE", str(Path.cwd() / part))
        with Hub(FILES, **other) as hub:
            assert part in refused(hub, monkeypatch)
    assert "cannot be reached" in refused(hub, monkeypatch), "it has gone"


def from_modelscope(hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", hub.address)
    monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path / "modelscope"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return fetch_model("org/model", None, (), asks=False, hub=MODEL_SCOPE)


@pytest.mark.needs("modelscope_hub")
def test_modelscope(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Hub(FILES, cut_after=len(WEIGHTS) // 3) as hub:
        folder = from_modelscope(hub, monkeypatch, tmp_path)
        assert contents(folder) == {
            name: FILES[name] for name in ("config.json", "tokenizer.json", "model.safetensors")
        }
        record = fetched(folder)
        assert record is not None
        assert (record["name"], record["revision"], record["hub"]) == ("org/model", "master", hub.address)
        hub.requests.clear()
        assert from_modelscope(hub, monkeypatch, tmp_path) == folder
        assert hub.requests == []
    assert cached_model("org/model", hub=MODEL_SCOPE) == folder
    assert cached_model("org/model") is None, "the hubs have caches of their own"


@pytest.mark.needs("modelscope_hub")
def test_what_modelscope_does_not_give_or_gives_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Hub(FILES, token="ms-secret") as hub:
        with pytest.raises(MindBatchError, match="no model of that name, .*MODELSCOPE_API_TOKEN is not set"):
            from_modelscope(hub, monkeypatch, tmp_path)
        hub.token = None
        hub.sent["model.safetensors"] = WEIGHTS[:-1] + b"x"
        with pytest.raises(MindBatchError, match=r"model.safetensors: its digest is not the one|other bytes"):
            from_modelscope(hub, monkeypatch, tmp_path)
        assert cached_model("org/model", hub=MODEL_SCOPE) is None
        hub.sent.clear()
        assert contents(from_modelscope(hub, monkeypatch, tmp_path))["model.safetensors"] == WEIGHTS


def test_a_revision_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with Hub(FILES) as hub:
        assert "no such revision" in refused(hub, monkeypatch, revision="v9")


def outside(tmp_path: Path) -> dict[str, bytes | None]:
    """What lies beside the cache: bytes of files, None for folders and links."""
    cache = tmp_path / "home"
    return {
        str(path): path.read_bytes() if path.is_file() and not path.is_symlink() else None
        for path in tmp_path.rglob("*")
        if not path.is_relative_to(cache)
    }


@pytest.mark.parametrize("headers", [("ETag", "X-Linked-Etag"), ("X-Linked-Etag",), ("X-Repo-Commit",)])
def test_no_header_names_a_path(
    headers: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").write_bytes(b"of the user")
    before = outside(tmp_path)
    for path in (str(tmp_path / "there"), "../../../../new"):
        with Hub(FILES, lies=dict.fromkeys(headers, f'"{path}"')) as hub:
            if headers != ("X-Repo-Commit",):
                assert "the hub answers with another digest than it lists" in refused(hub, monkeypatch)
                assert not [path for path in (tmp_path / "home").rglob("*") if path.stat().st_size > 8192]
            else:
                fetch(hub, monkeypatch)
        assert outside(tmp_path) == before


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        ({"sha": "../../../../there"}, "the hub names no commit of it, '../../../../there'"),
        ({"sha": None}, "the hub names no commit of it, 'None'"),
        ({"blobId": "../../../../there"}, "the hub lists no digest of it, 'sha1:../../../../there'"),
        ({"size": 1 << 60}, "the hub lists a size of 1152921504606846976 bytes"),
        ({"rfilename": "chat_template.py"}, "has no config.json"),
        ({"rfilename": "../config.json"}, "has no config.json"),
    ],
    ids=["a commit", "no commit", "a digest", "a size", "code", "a name"],
)
def test_a_list_that_lies_is_refused(
    lie: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").write_bytes(b"of the user")
    before = outside(tmp_path)
    with Hub(FILES) as hub:
        content = json.loads(hub.listing())
        entry = content if "sha" in lie else content["siblings"][0]
        entry.update(lie)
        hub.lists = json.dumps(content).encode()
        assert said in refused(hub, monkeypatch)
    assert outside(tmp_path) == before


def test_an_index_names_nothing_but_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    index = json.dumps({"weight_map": {"a": "modeling.py"}}).encode()
    with Hub({**FILES, "model.safetensors.index.json": index}) as hub:
        assert "names 'modeling.py'; must be a file in safetensors" in refused(hub, monkeypatch)


@pytest.mark.slow
def test_an_answer_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with Hub(FILES, endless="blobs=True") as hub:
        assert "takes more than 512 MiB, and was given up" in refused(hub, monkeypatch)
    with Hub(FILES, gate=Event()) as hub:
        hub.lists = b" " * (3 << 20)
        monkeypatch.setattr(models, "_LISTING_SECONDS", 1.0)
        assert "the list of its files was not there after 1 seconds" in refused(hub, monkeypatch)
        assert hub.gate is not None
        hub.gate.set()


def test_a_file_that_is_sent_without_end_is_cut_at_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    with Hub(FILES) as hub:
        hub.endless = "/config.json"
        assert "sent another number of bytes than it announced" in refused(hub, monkeypatch)


@pytest.mark.slow
def test_random_lies_of_a_hub_touch_nothing_outside_the_cache() -> None:
    assert run_script("hub_lies", 0, 15) == "15 lies\n"


@pytest.mark.on_demand
def test_many_random_lies_of_a_hub() -> None:
    assert run_script("hub_lies", 1000, 3000) == "2000 lies\n"
