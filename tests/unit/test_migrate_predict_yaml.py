"""tools/migrate_predict_yaml.py: a predict YAML written as a configuration file."""

from pathlib import Path

import pytest

from migrate_predict_yaml import main
from mindbatch.config.compose import compose_task
from mindbatch.io.errors import EXIT_DONE, EXIT_USAGE
from mindbatch.tasks.registry import TASKS
from predict_yamls import MCORE, OLDER


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The folder that holds both YAMLs is the current one."""
    (tmp_path / "mcore.yaml").write_text(MCORE.replace("FOLDER", 'a "folder": #1'))
    (tmp_path / "older.yaml").write_text(OLDER.replace("FOLDER", "model"))
    monkeypatch.chdir(tmp_path)


def test_the_file_means_what_the_yaml_means(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("mcore.yaml", "older.yaml"):
        assert main([name, "-o", f"new_{name}"]) == EXIT_DONE
        captured = capsys.readouterr()
        assert captured.out == f"new_{name}: for mindbatch TASK --config new_{name}\n"
        assert f"migrate_predict_yaml.py: {name}: no effect (nothing is padded): " in captured.err
        task = TASKS["generate"]
        converted = compose_task(task, ["prompts=Hi"], Path(f"new_{name}"))
        direct = compose_task(task, ["prompts=Hi", f"model.mindformers_yaml={name}"])
        assert converted.log.lines == direct.log.lines == []
        assert converted.unresolved_yaml == direct.unresolved_yaml


def test_the_file_names_origins_and_keys_without_effect(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mcore.yaml"]) == EXIT_DONE
    text = capsys.readouterr().out
    assert text.startswith("# From mcore.yaml, a predict YAML of MindFormers.\nmodel:\n")
    assert '  checkpoint_name_or_path: "a \\"folder\\": #1"  # pretrained_model_dir\n' in text
    assert "  eos_token_id: [2]  # generation_config.eos_token_id\n" in text
    assert "# - parallel_config.model_parallel: use_parallel is not True\n" in text


def test_all_errors_are_reported_and_nothing_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    text = MCORE.replace("block_size: 128", "block_size: 100").replace("seed: 7", "seeed: 7")
    text = text.replace("top_p: 0.5", "top_p: 2.0")
    Path("bad.yaml").write_text(text.replace("top_k: 5", "top_k: few"))
    assert main(["bad.yaml", "-o", "new.yaml"]) == EXIT_USAGE
    assert [line.partition(", line ")[2] for line in capsys.readouterr().err.splitlines()] == [
        "1: seeed=7: unknown key; did you mean seed?",
        "35: generation_config.top_k -> decoding.top_k=few: must be a whole number",
        "26: model.model_config.block_size -> runtime.block_size=100: must be one of 8, 16, 32, 64, 128",
        "36: generation_config.top_p -> decoding.top_p=2.0: must be above 0 and at most 1",
    ]
    assert not Path("new.yaml").exists()


def test_an_existing_file_is_not_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mcore.yaml", "-o", "older.yaml"]) == EXIT_USAGE
    assert main(["mcore.yaml", "-o", "no/folder.yaml"]) == EXIT_USAGE
    assert main(["no.yaml"]) == EXIT_USAGE
    assert capsys.readouterr().err.splitlines() == [
        "migrate_predict_yaml.py: --output older.yaml: already exists; use another name",
        "migrate_predict_yaml.py: --output no/folder.yaml: the folder no does not exist",
        "migrate_predict_yaml.py: no.yaml: no such file; did you mean older.yaml?",
    ]
