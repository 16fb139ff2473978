"""A model's name on the hub stands for what the local cache holds of it."""

from pathlib import Path

import pytest

from mindbatch.config.hub_models import settle_model_paths
from mindbatch.config.model_schema import ModelConfig


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "home/hub"


def entry(cache: Path, name: str, commit: str = "abcdef0123") -> Path:
    home = cache / f"models--{name.replace('/', '--')}"
    snapshot = home / "snapshots/abcdef0123"
    for folder in (snapshot, home / "refs", home / "blobs"):
        folder.mkdir(parents=True)
    (home / "refs/main").write_text(commit)
    (home / "blobs/config").write_text("{}")
    (snapshot / "config.json").symlink_to("../../blobs/config")
    return snapshot


def settled(name: str) -> tuple[str | None, str]:
    model = ModelConfig(checkpoint_name_or_path=name)
    faults = settle_model_paths(model)
    return model.checkpoint_name_or_path, "\n".join(faults)


@pytest.mark.parametrize("name", ["Qwen/Qwen2.5-0.5B", "gpt2"])
@pytest.mark.parametrize("variable", ["HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME"])
def test_a_cached_model(name: str, variable: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if variable == "HF_HUB_CACHE":
        cache = cache.parent / "elsewhere"
        monkeypatch.setenv(variable, str(cache))
    elif variable == "XDG_CACHE_HOME":
        monkeypatch.delenv("HF_HOME")
        monkeypatch.setenv(variable, str(cache))
        cache = cache / "huggingface/hub"
    snapshot = entry(cache, name)
    assert settled(name) == (str(snapshot), "")
    Path(name).mkdir(parents=True)  # a folder of that name goes before it
    (Path(name) / "config.json").touch()
    assert settled(name) == (name, "")


def test_what_is_not_cached_is_told_how_to_get(cache: Path) -> None:
    _, fault = settled("Qwen/Qwen2.5-0.5B")
    assert f"no such folder, nor is it in the hub cache {cache};" in fault
    assert "hf download Qwen/Qwen2.5-0.5B --local-dir Qwen2.5-0.5B" in fault
    Path("models").mkdir()
    for other in ("models/Qwen2.5", "modle", "/nowhere/Qwen2.5", "a/b/c"):
        assert "hf download" not in settled(other)[1]


@pytest.mark.parametrize("commit", ["../../../../etc", "", "none0", "x" * 5000])
def test_a_damaged_entry_is_not_used(commit: str, cache: Path) -> None:
    entry(cache, "Org/Name", commit)
    assert "no such folder" in settled("Org/Name")[1]
