"""`model.mindformers_yaml`: the lowest layer of a configuration, which keeps what came of it, no file."""

import json
from pathlib import Path

import pytest

from mindbatch.cli import main
from mindbatch.config.saved import save_config
from mindbatch.io.errors import EXIT_DONE
from mindbatch.run.batch_config import BatchConfig
from predict_yamls import LLAMA, MCORE, OLDER
from task_configs import config_of, faults_of_task


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with both YAMLs, a model and rows."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "older.yaml").write_text(OLDER.replace("FOLDER", "model"))
    (tmp_path / "mcore.yaml").write_text(MCORE.replace("FOLDER", "model"))
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


BATCH = ("data.path=rows.jsonl", "output.dir=run")


def composed(*overrides: str, config_file: Path | None = None, config_dir: Path | None = None) -> BatchConfig:
    return config_of("batch", *BATCH, *overrides, file=config_file, folder=config_dir)


def test_its_values_are_the_configurations(here: Path) -> None:
    config = composed("model.mindformers_yaml=older.yaml")
    assert (config.model.seq_length, config.model.batch_size, config.decoding.max_length) == (48, 4, 40)
    assert config.model.mindformers_yaml is None
    assert config.model.checkpoint_name_or_path == "model"
    (note,) = [note for note in config.notes if "no effect" in note]
    assert note.endswith(" keys of training, logs or MindSpore's own settings (listed by --print-config)")


def test_the_command_line_files_and_options_override_it(here: Path) -> None:
    (here / "mine.yaml").write_text("model: {seq_length: 9, mindformers_yaml: older.yaml}\n")
    (here / "own/model").mkdir(parents=True)
    (here / "own/model/eight.yaml").write_text("batch_size: 8\n")
    config = composed(
        "model=eight",
        "decoding.max_length=7",
        config_file=here / "mine.yaml",
        config_dir=here / "own",
    )
    assert (config.model.seq_length, config.decoding.max_length, config.model.batch_size) == (9, 7, 8)
    assert (config.runtime.block_size, config.decoding.eos_token_id) == (16, 2)


def test_an_option_of_the_users_may_name_it_and_a_variable_stand_in_its_name(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHICH_YAML", "older")
    (here / "own/model").mkdir(parents=True)
    (here / "own/model/mine.yaml").write_text("mindformers_yaml: ${oc.env:WHICH_YAML}.yaml\n")
    config = composed("model=mine", config_dir=here / "own")
    assert (config.model.seq_length, config.model.mindformers_yaml) == (48, None)


def test_a_strategy_that_is_chosen_is_not_mixed_with_the_yamls(here: Path) -> None:
    config = composed("model.mindformers_yaml=mcore.yaml", "model.provider=native", "decoding=beam4")
    assert (config.decoding.num_beams, config.decoding.do_sample, config.decoding.top_k) == (4, False, 0)
    assert config.decoding.repetition_penalty == 1.05


def test_listed_strategies_keep_the_rest_of_it(here: Path) -> None:
    words = ["model.mindformers_yaml=mcore.yaml", "model.provider=native", "prompts=Hi", "output.dir=out"]
    config = config_of("compare", *words, "decoding=[greedy,top_p]")
    greedy, top_p = config.variants.values()
    assert (greedy.do_sample, greedy.max_new_tokens, greedy.seed) == (False, 512, 7)
    assert (top_p.do_sample, top_p.top_k, top_p.max_new_tokens) == (True, 0, 512)


def test_the_saved_configuration_needs_no_yaml(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = composed("model.mindformers_yaml=older.yaml")
    (here / "run").mkdir()
    save_config(config, here / "run/config.yaml")
    (here / "older.yaml").unlink()
    assert "mindformers" not in (here / "run/config.yaml").read_text()
    assert "mindformers_yaml" not in config.resolved_settings["model"]
    monkeypatch.chdir(here / "model")
    again = config_of("retry", f"output.dir={here}/run")
    assert (again.model.seq_length, again.model.batch_size) == (48, 4)
    assert again.model.checkpoint_name_or_path == str(here / "model")


def test_a_run_that_is_continued_takes_none(here: Path) -> None:
    (here / "run").mkdir()
    save_config(composed("model.mindformers_yaml=older.yaml"), here / "run/config.yaml")
    assert faults_of_task("retry", "output.dir=run", "model.mindformers_yaml=older.yaml") == [
        "model.mindformers_yaml: the run that is continued holds what came of its predict YAML; remove it"
    ]


def test_values_that_are_refused_are_named_with_both_keys(here: Path) -> None:
    text = MCORE.replace("block_size: 128", "block_size: 100").replace("top_p: 0.5", "top_p: 2.0")
    text = text.replace("max_new_tokens: 512", "max_new_tokens: many").replace("FOLDER", "nowhere")
    (here / "bad.yaml").write_text(text)
    words = ["model.provider=native", "prompts=Hi", "model.mindformers_yaml=bad.yaml", "model.my_key=1"]
    found = "\n".join(faults_of_task("generate", *words))
    for line in (
        "model.my_key: unknown key",
        "bad.yaml, line 31: generation_config.max_new_tokens -> decoding.max_new_tokens=many: must be ",
        "bad.yaml, line 14: pretrained_model_dir -> model.checkpoint_name_or_path=nowhere: no such folder",
        "bad.yaml, line 26: model.model_config.block_size -> runtime.block_size=100: must be one of 8, 16",
        "bad.yaml, line 36: generation_config.top_p -> decoding.top_p=2.0: ",
    ):
        assert line in found


def test_a_yaml_that_cannot_be_read_is_the_only_fault(here: Path) -> None:
    assert faults_of_task("generate", "model.mindformers_yaml=oldest.yaml", "prompts=Hi") == [
        "oldest.yaml: no such file; did you mean older.yaml?"
    ]
    for written in ("''", "${oc.env:NO_SUCH_VARIABLE}"):
        assert any(
            line.startswith("model.mindformers_yaml=")
            for line in faults_of_task("generate", f"model.mindformers_yaml={written}", "prompts=Hi")
        )


def test_the_configuration_is_shown_with_what_has_no_effect(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["generate", "model.mindformers_yaml=mcore.yaml", "prompts=[Hi]", "--print-config"]) == EXIT_DONE
    )
    shown = capsys.readouterr()
    assert "  provider: mindformers\n" in shown.out
    assert "  max_new_tokens: 512\n" in shown.out
    assert "mcore.yaml: no effect (use_parallel is not True): parallel_config.model_parallel" in shown.err


def test_a_task_says_which_keys_it_does_not_have(here: Path) -> None:
    words = ["model.mindformers_yaml=older.yaml", "parallel.model_parallel=2", "layout.dir=cut"]
    of_yaml, *idle = config_of("layout", *words).notes
    assert "model.model_config.max_decode_length" in of_yaml
    assert "(the task has no such key)" in of_yaml
    assert any(line.startswith("layout.vocab_emb_dp=true: has no effect with") for line in idle)
