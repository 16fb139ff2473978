"""A model by its name on the hub, and what its generation_config.json recommends: only if asked for."""

import json
from pathlib import Path

import pytest

from mindbatch.config.hub_models import resolve_model_paths
from mindbatch.config.model_schema import ModelConfig
from mindbatch.config.model_task import ModelTaskConfig
from mindbatch.io.errors import ConfigError
from task_configs import config_of

SAMPLING = {"do_sample": True, "temperature": 0.6, "max_new_tokens": 9, "guidance_scale": 2}


@pytest.fixture
def recommending(model_folder: Path) -> Path:
    (model_folder / "generation_config.json").write_text(json.dumps(SAMPLING))
    return model_folder


def composed(task: str, folder: Path, *given: str) -> ModelTaskConfig:
    more = ["data.path=-", f"output.dir={folder}-run"] if task == "batch" else ["prompts=Hi"]
    return config_of(task, f"model.checkpoint_name_or_path={folder}", *more, *given)


@pytest.mark.parametrize("task", ["generate", "batch"])
def test_taken_below_what_is_given(task: str, recommending: Path) -> None:
    config = composed(task, recommending, "decoding=model_defaults", "decoding.max_new_tokens=4")
    decoding = config.decoding
    assert (decoding.do_sample, decoding.temperature, decoding.max_new_tokens) == (True, 0.6, 4)
    assert [line for line in config.notes if "guidance_scale has no effect" in line] == list(config.notes)
    assert "temperature: 0.6" in config.unresolved_yaml
    assert config.resolved_settings["decoding"]["temperature"] == 0.6


def test_one_of_several_strategies(recommending: Path) -> None:
    config = composed("compare", recommending, "decoding=[greedy,model_defaults]", "decoding.seed=5")
    greedy, model = config.variants["greedy"], config.variants["model_defaults"]
    assert (greedy.do_sample, greedy.temperature, greedy.seed) == (False, 1.0, 5)
    assert (model.do_sample, model.temperature, model.seed) == (True, 0.6, 5)


def test_one_of_several_with_values_of_its_own(recommending: Path) -> None:
    strategies = "[{option: model_defaults, seed: 1}, {option: model_defaults, temperature: 0.2}]"
    config = composed("compare", recommending, f"decoding={strategies}", "decoding.max_new_tokens=4")
    seeded, cooler = config.variants.values()
    assert (seeded.do_sample, seeded.temperature, seeded.seed) == (True, 0.6, 1)
    assert (cooler.do_sample, cooler.temperature, cooler.max_new_tokens) == (True, 0.2, 4)
    assert len([line for line in config.notes if "guidance_scale has no effect" in line]) == 1


@pytest.mark.parametrize("task", ["generate", "batch"])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((), True),
        (("decoding.max_new_tokens=3",), True),
        (("decoding.do_sample=false",), False),
        (("decoding=greedy",), False),
        (("decoding.num_beams=2",), False),
    ],
)
def test_a_note_where_nobody_asked_for_greedy(
    task: str, given: tuple[str, ...], said: bool, recommending: Path
) -> None:
    notes = composed(task, recommending, *given).notes
    assert [("do_sample=true, temperature=0.6" in line) for line in notes] == [True] * said


def test_no_note_where_the_model_recommends_nothing(model_folder: Path) -> None:
    assert composed("generate", model_folder).notes == ()


def test_a_folder_without_recommendations(model_folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"decoding=model_defaults: .*generation_config\.json: not there"):
        composed("generate", model_folder, "decoding=model_defaults")


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


def resolved(name: str) -> tuple[str | None, str]:
    model = ModelConfig(checkpoint_name_or_path=name)
    faults = resolve_model_paths(model)
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
    assert resolved(name) == (str(snapshot), "")
    Path(name).mkdir(parents=True)  # a folder of that name goes before it
    (Path(name) / "config.json").touch()
    assert resolved(name) == (name, "")


def test_what_is_not_cached_is_told_how_to_get(cache: Path) -> None:
    _, fault = resolved("Qwen/Qwen2.5-0.5B")
    assert f"no such folder, nor is it in the hub cache {cache};" in fault
    assert "hf download Qwen/Qwen2.5-0.5B --local-dir Qwen2.5-0.5B" in fault
    Path("models").mkdir()
    for other in ("models/Qwen2.5", "modle", "/nowhere/Qwen2.5", "a/b/c"):
        assert "hf download" not in resolved(other)[1]


@pytest.mark.parametrize("commit", ["../../../../etc", "", "none0", "x" * 5000])
def test_a_damaged_entry_is_not_used(commit: str, cache: Path) -> None:
    entry(cache, "Org/Name", commit)
    assert "no such folder" in resolved("Org/Name")[1]
