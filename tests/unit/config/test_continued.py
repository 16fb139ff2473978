"""`retry` and `replay` begin with the configuration that was saved in the run's folder, wherever that is."""

import re
from pathlib import Path

import pytest

from mindbatch.config.saved import save_config
from mindbatch.io.errors import ConfigError
from task_configs import config_of, faults_of_task


@pytest.fixture
def run(model_folder: Path, tmp_path: Path) -> Path:
    """The folder of a run with its saved configuration."""
    (tmp_path / "rows.jsonl").write_text("{}\n")
    folder = tmp_path / "runs" / "a"
    folder.mkdir(parents=True)
    config = config_of(
        "batch",
        f"model.checkpoint_name_or_path={model_folder}",
        f"data.path={tmp_path}/rows.jsonl",
        f"output.dir={folder}",
        "output.on_mismatch=overwrite",
        "decoding=top_p",
        "decoding.seed=5",
        "data.system=${oc.env:MY_SYSTEM,none}",
        "data.chat=true",
    )
    save_config(config, folder / "config.yaml")
    return folder


def test_the_saved_configuration_is_the_beginning(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SYSTEM", "Be brief.")
    config = config_of("retry", f"output.dir={run}")
    assert (config.decoding.top_p, config.decoding.seed, config.data.system) == (0.9, 5, "Be brief.")
    assert config.output.dir == str(run)


@pytest.mark.needs("mindspore")
def test_the_command_line_goes_before_it_and_so_does_a_file(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "more.yaml"
    file.write_text("runtime: ascend\ndecoding.seed: 7\nmodel.batch_size: 3\n")
    config = config_of("retry", f"output.dir={run}", "model.batch_size=4", file=file)
    assert (config.decoding.seed, config.model.batch_size) == (7, 4)
    assert (config.runtime.block_size, config.decoding.top_p) == (128, 0.9)
    assert config_of("retry", f"output.dir={run}", "decoding=temperature").decoding.temperature == 0.3


def test_a_folder_that_was_moved(run: Path, tmp_path: Path) -> None:
    moved = run.rename(tmp_path / "2024_11")
    assert config_of("retry", f"output.dir={moved}").output.dir == str(moved)


def test_the_folder_may_be_named_by_the_environment(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNS", str(run.parent))
    assert config_of("retry", "output.dir=${oc.env:RUNS}/a").output.dir == str(run)
    (line,) = faults_of_task("retry", "output.dir=${oc.env:NO_SUCH_NAME}")
    assert line == "output.dir=${oc.env:NO_SUCH_NAME}: has no value"


def test_what_was_said_of_a_taken_folder_is_over(run: Path) -> None:
    assert config_of("retry", f"output.dir={run}").output.on_mismatch == "refuse"
    (line,) = faults_of_task("retry", f"output.dir={run}", "output.on_mismatch=new_dir")
    assert line == "output.on_mismatch=new_dir: a run can only be continued as it was begun; remove it"


def test_a_folder_without_a_run_has_one_line(run: Path, tmp_path: Path) -> None:
    for given, reason in (
        (tmp_path, "holds no run (there is no config.yaml)"),
        (tmp_path / "runs/aa", f"no such folder; did you mean {tmp_path}/runs/a?"),
        (tmp_path / "rows.jsonl", "is a file; give the folder of a run"),
    ):
        assert faults_of_task("retry", f"output.dir={given}") == [f"output.dir={given}: {reason}"]
    assert faults_of_task("replay") == ["output.dir: must be given: the folder of the run"]
    assert faults_of_task("retry", "output.dir=null") == ["output.dir=null: must be the folder of a run"]
    (line,) = faults_of_task("retry", f"output.dir={'x' * 5000}")
    assert line.endswith("cannot be used (File name too long)")


def test_a_saved_configuration_that_is_damaged(run: Path) -> None:
    (run / "config.yaml").write_text("decoding: {top_pp: 1}\n")
    assert faults_of_task("retry", f"output.dir={run}", "x=1") == [
        f"{run}/config.yaml: decoding.top_pp: unknown key; did you mean decoding.top_p?",
        "x: unknown key",
    ]


@pytest.mark.parametrize("value", ["true", "false"])
def test_keys_and_values_that_are_gone_since_a_run_was_saved(run: Path, value: str) -> None:
    file = run / "config.yaml"
    saved = file.read_text().replace("output:\n", f"output:\n  tensorboard: {value}\n")
    file.write_text(saved.replace("launcher: dynamic\n", "launcher: msrun\n"))
    config = config_of("retry", f"output.dir={run}")
    assert (config.output.dir, config.launch.launcher) == (str(run), "dynamic")
    assert config_of("batch", f"output.dir={run}", file=file).decoding.seed == 5
    (line,) = faults_of_task("retry", f"output.dir={run}", f"output.tensorboard={value}")
    assert line.startswith("output.tensorboard: unknown key; metrics.jsonl in output.dir has ")


def test_tasks_of_the_harness_are_gone_and_saved_evaluations_without_any_go_on(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("{}\n")
    keys = ("model=tiny_gpt2", f"data.path={tmp_path}/rows.jsonl", f"output.dir={tmp_path}/a")
    file = tmp_path / "evaluation.config.yaml"
    section = "{tasks: %s, include_path: null, num_fewshot: null, limit: null, apply_chat_template: false}"
    file.write_text(f"harness: {section % 'null'}\n")
    assert config_of("evaluate", *keys, file=file).output.dir == f"{tmp_path}/a"
    file.write_text(f"harness: {section % '[mine]'}\n")
    hint = "unknown key; try: python -m mindbatch.lm_eval --model mindbatch "
    with pytest.raises(ConfigError, match=re.escape(f"{file}: harness: {hint}")):
        config_of("evaluate", *keys, file=file)
    (line,) = faults_of_task("evaluate", *keys, "harness.tasks=[mine]")
    assert line.startswith(f"harness.tasks: {hint}")


def test_replay_needs_a_key_and_takes_it_to_the_letter(run: Path) -> None:
    assert faults_of_task("replay", f"output.dir={run}") == [
        "key: must be given: the key of the row to run again"
    ]
    for key in ("17", "007", "1e3", "q-1"):
        config = config_of("replay", f"output.dir={run}", f"key={key}")
        assert config.key == key
