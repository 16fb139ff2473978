"""The command: help, exit codes, one line for each fault, and what is imported."""

import errno
import gc
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mindbatch import cli
from mindbatch.cli import CommandLine, parse_command_line
from mindbatch.config.schema import schema_keys
from mindbatch.io import errors
from mindbatch.io.errors import BackendError, CheckpointError, ConfigError, MindBatchError, RankError
from mindbatch.io.storage import StorageError
from mindbatch.launch.table_reader import RankTableError
from mindbatch.replicas.agent import CoordinatorLost
from mindbatch.run.job import TooManyErrors
from mindbatch.tasks.registry import TASKS

NAMES = ", ".join(TASKS)
HEAVY = ("mindspore", "mindformers", "transformers")


@pytest.fixture(autouse=True)
def _restored_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """`main` sets variables for MindSpore; they must not reach other tests."""
    monkeypatch.setattr(os, "environ", os.environ.copy())


def run_task(monkeypatch: pytest.MonkeyPatch, task: Any, *arguments: str) -> int:
    """`mindbatch doctor` with its `run` replaced by `task`."""
    monkeypatch.setattr("mindbatch.tasks.doctor.run", task)
    return cli.main(["doctor", *arguments])


def raising(error: BaseException) -> Any:
    def task(config: Any) -> int:
        raise error

    return task


@pytest.mark.parametrize("name", TASKS)
def test_help_of_a_task_shows_every_key(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([name, "--help=all"]) == 0
    shown = capsys.readouterr().out
    assert all(example in shown for example in TASKS[name].examples)
    for key in schema_keys(TASKS[name].schema).keys.values():
        assert f"{key.name}=" in shown
        assert key.meaning in shown
        assert f"\n\n  {key.topic}\n  {key.name}=" in shown or not key.topic
    has_groups = "decoding" in schema_keys(TASKS[name].schema).sections
    takes_list = TASKS[name].schema.listed_group == "decoding"
    assert ("decoding=NAME chooses values for the group: beam4, " in shown) == (has_groups and not takes_list)
    assert ("decoding='[NAME,...]' lists some of these: beam4, " in shown) == takes_list
    assert not re.search(r"=\s", shown), "a default of white space is in quotes"


@pytest.mark.parametrize("name", TASKS)
def test_help_begins_with_the_keys_that_are_used_first(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    task, keys = TASKS[name], schema_keys(TASKS[name].schema)
    assert cli.main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("\n") < 65
    first = [key for key in task.first if key in keys.keys] or [*keys.keys]
    assert 2 <= len(first) <= 10
    assert re.findall(r"^  ([a-z_.]+)=\S*  \(", shown, re.MULTILINE) == first
    assert {*task.first} - {*keys.keys} <= {*keys.sections}
    assert (f"All {len(keys.keys)} keys: mindbatch {name} --help=all" in shown) == bool(task.first)


def test_help_of_a_section_has_its_keys_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["batch", "--help=lora"]) == 0
    shown = capsys.readouterr().out
    keys = schema_keys(TASKS["batch"].schema)
    assert re.findall(r"^  ([a-z_.]+)=\S*  \(", shown, re.MULTILINE) == keys.of_section("lora")
    assert cli.main(["batch", "--help=decodin"]) == 2
    assert capsys.readouterr().err.startswith(
        "mindbatch: --help=decodin: must be one of all, model, decoding, "
    )


def test_white_space_in_a_default_is_in_quotes(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["evaluate", "--help=all"]) == 0
    assert r'task.few_shot_separator="\n\n"  (text)' in capsys.readouterr().out


def test_the_many_keys_of_decoding_have_topics() -> None:
    topics = [key.topic for key in schema_keys(TASKS["generate"].schema).keys.values() if key.topic]
    assert topics[0] == "Sampling"
    assert len(topics) == len(set(topics)) > 4


def test_help_shows_the_words_that_a_task_takes(capsys: pytest.CaptureFixture[str]) -> None:
    for name, usage in (
        ("diff", "diff FIRST SECOND [FLAGS]"),
        ("replay", "replay DIR KEY [FLAGS]"),
        ("runs", "runs [FOLDER] [FLAGS]"),
    ):
        assert cli.main([name, "--help"]) == 0
        assert capsys.readouterr().out.startswith(f"usage: mindbatch {usage} [KEY=VALUE ...]\n")


def test_help_of_a_task_shows_added_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "my_own.yaml").write_text("type: gpt2\n")
    assert cli.main(["generate", "--help=all", "--config-dir", str(tmp_path)]) == 0
    assert "auto, my_own, tiny_gpt2" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("mindbatch ")


def test_help_shows_every_task_with_an_example_and_so_does_an_empty_command_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("usage: mindbatch TASK")
    for task in TASKS.values():
        assert task.summary in shown
        assert task.examples[0] in shown
    assert cli.main([]) == 2
    assert capsys.readouterr().err.startswith("usage: mindbatch TASK")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["genrate"], f"mindbatch: genrate: no such task; there are {NAMES}; did you mean generate?\n"),
        (["model=auto"], f"mindbatch: model=auto: give a task before its keys: {NAMES}\n"),
        (["doctor", "--x"], "mindbatch: --x: unknown flag; keys are given without dashes: x=VALUE\n"),
        (
            ["doctor", "formt=json", "verbose=x"],
            "mindbatch: formt: unknown key; did you mean format?\n"
            "mindbatch: verbose=x: must be true or false\n",
        ),
    ],
)
def test_usage_errors(arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == expected


class PanicException(BaseException):
    """Named as what code in Rust raises: it is no Exception."""


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (CheckpointError(["a is bad", "b is bad"]), 1, "mindbatch: a is bad\nmindbatch: b is bad\n"),
        (TooManyErrors("many"), 1, "mindbatch: many\n"),
        (RankTableError("a table"), 1, "mindbatch: a table\n"),
        (BackendError("no MindSpore"), 1, "mindbatch: no MindSpore\n"),
        (ConfigError("x=1"), 2, "mindbatch: x=1\n"),
        (StorageError("no room"), 75, "mindbatch: no room\n"),
        (RankError("rank 1 has ended"), 75, "mindbatch: rank 1 has ended\n"),
        (CoordinatorLost("node 0"), 75, "mindbatch: node 0\n"),
        (MindBatchError("nobody listens"), 75, "mindbatch: nobody listens\n"),
        (BrokenPipeError(), 75, ""),
        (MemoryError("7 GiB"), 75, "mindbatch: out of memory: "),
        (OSError(errno.ENOMEM, "7 GiB"), 75, "mindbatch: out of memory: "),
        (KeyboardInterrupt(), 130, "mindbatch: interrupted\n"),
        (PanicException("no entry for key"), 75, "mindbatch: PanicException: no entry for key (run again"),
    ],
    ids=repr,
)
def test_what_a_task_raises_is_a_line_for_each_fault(
    error: BaseException,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_task(monkeypatch, raising(error), "format=json") == code
    shown = capsys.readouterr().err
    assert shown.startswith(said)
    assert shown.count("\n") == (max(1, said.count("\n")) if said else 0)


def test_every_exit_code_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs/generate.md").read_text()
    table = page.partition("| exit code | meaning |\n|---|---|\n")[2].partition("\n\n")[0]
    codes = [int(code) for row in table.splitlines() for code in re.findall(r"\d+", row.split("|")[1])]
    assert codes == [value for name, value in vars(errors).items() if name.startswith("EXIT_")]


def test_an_unexpected_error_is_one_line_and_a_traceback_with_verbose(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = ValueError("first\nsecond")
    assert run_task(monkeypatch, raising(error)) == 75
    assert capsys.readouterr().err == (
        "mindbatch: ValueError: first second (run again with --verbose for the traceback)\n"
    )
    for asked in ("--verbose", "verbose=true"):
        assert run_task(monkeypatch, raising(error), asked) == 75
        shown = capsys.readouterr().err
        assert shown.startswith("Traceback ")
        assert shown.endswith("mindbatch: ValueError: first second\n")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_leaves_ends_the_command_quietly(unbuffered: str) -> None:
    """Only a short, buffered output makes the interpreter complain once more at its end."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        command = [sys.executable, "-m", "mindbatch", "--help"]
        environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
        result = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, env=environment, check=False)
    assert (result.returncode, result.stderr) == (75, b"")


def imported_by(code: str) -> set[str]:
    """The top-level modules that are loaded after `code` has run in a process of its own."""
    return {name.partition(".")[0] for name in modules_after(code)}


def modules_after(code: str) -> list[str]:
    """All modules that are loaded then."""
    program = f"{code}\nimport sys, json; print('\\n' + json.dumps(sorted(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    found: list[str] = json.loads(result.stdout.splitlines()[-1])
    return found


def test_help_imports_nothing_large() -> None:
    words = [["--help"], ["generate", "--help"], ["generate", "--help=all"], ["nonsense"]]
    code = f"import mindbatch; from mindbatch.cli import main; print(*map(main, {words}))"
    assert imported_by(code).isdisjoint({*HEAVY, "hydra", "omegaconf", "numpy"})


def test_a_mistake_is_answered_without_the_large_packages() -> None:
    words = [[task, "decoding.top_pp=1"] for task in ("generate", "batch", "plan")]
    loaded = imported_by(f"from mindbatch.cli import main; print(*map(main, {words}))")
    assert "hydra" in loaded
    assert loaded.isdisjoint({*HEAVY, "pyarrow", "jinja2", "sqlite3"})


PLANNED = """
from mindbatch.cli import main
words = ["source=shipped:examples/tiny_gpt2", "target.dir=cut", "target.model_parallel=2", "dry_run=true"]
print(main(["reshard", *words]))
"""


def test_a_reshard_is_planned_without_adapters_and_decoding() -> None:
    loaded = modules_after(PLANNED)
    assert "mindbatch.checkpoint.reshard.execution" in loaded
    assert [
        name
        for name in loaded
        if name.startswith(("mindbatch.checkpoint.lora.", "mindbatch.decoding", "mindbatch.kernels.native"))
    ] == []


MISTAKES = {
    "reshard": (["source=/nowhere", "target.dir=cut"], 40),
    "generate": (["model=tiny_gpt2", "modle=3"], 75),
    "plan": (["model=tiny_gpt2", "modle=3"], 85),
}
"""Words with a mistake, and how many modules of the package may be imported to answer it."""


@pytest.mark.parametrize("task", MISTAKES)
def test_a_mistake_costs_no_more_modules_than_needed(task: str) -> None:
    words, most = MISTAKES[task]
    loaded = modules_after(f"from mindbatch.cli import main; print(main({[task, *words]}))")
    assert "numpy" not in loaded
    assert len([name for name in loaded if name.startswith("mindbatch")]) <= most
    assert len(loaded) <= most + 370  # of the interpreter, Hydra and OmegaConf: 333 to 336


def test_a_task_runs_with_the_collector_on(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.disable()  # as the command does while it imports
    try:
        assert run_task(monkeypatch, lambda config: 0 if gc.isenabled() else 1) == 0
    finally:
        gc.enable()
        gc.unfreeze()


def test_flags_may_stand_anywhere() -> None:
    assert parse_command_line([]) == CommandLine()
    expected = CommandLine("generate", ["a=1", "~b"], {"--verbose"}, {"--config": Path("x.yaml")})
    assert parse_command_line(["generate", "a=1", "~b", "--verbose", "--config", "x.yaml"]) == expected
    assert parse_command_line(["-v", "--config=x.yaml", "generate", "a=1", "~b"]) == expected


def test_all_bad_flags_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_command_line(
            ["--confg", "--model", "--model.type=x", "-v=1", "--config", "--verbose", "-", "--config-dir"]
        )
    assert caught.value.lines == (
        "--confg: unknown flag; did you mean --config?",
        "--model: unknown flag; keys are given without dashes: model=VALUE",
        "--model.type: unknown flag; keys are given without dashes: model.type=x",
        "-v=1: --verbose takes no value",
        "--config: needs a FILE",
        "-: unknown flag; keys are given without dashes: KEY=VALUE",
        "--config-dir: needs a DIR",
    )


def test_a_home_folder_in_the_path_of_a_flag(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    paths = parse_command_line(["doctor", "--config=~/a.yaml", "--config-dir", "~/more"]).values
    assert paths == {"--config": tmp_path / "a.yaml", "--config-dir": tmp_path / "more"}
    with pytest.raises(ConfigError, match="~nobody-has-this-name/a: the home folder cannot be"):
        parse_command_line(["doctor", "--config=~nobody-has-this-name/a"])


GENERATE = """
import sys
from mindbatch.cli import main
code = main(["generate", "model=tiny_gpt2", "prompts=Hi", "decoding.max_new_tokens=1", "output.format=json"])
names = [name for name, module in sys.modules.items() if name.startswith("mindbatch") and module.__file__]
print(code, len(names), *sorted(names), file=sys.stderr)
"""
MOST = 200
UNUSED = (
    "checkpoint.lora",
    "checkpoint.quantised",
    "checkpoint.names",
    "decoding.beam_search",
    "launch",
    "replicas",
)


def test_a_plain_generation_reads_no_more_files_than_it_uses() -> None:
    done = subprocess.run([sys.executable, "-I", "-c", GENERATE], capture_output=True, text=True, check=True)
    code, count, *names = done.stderr.split()
    assert code == "0", done.stderr
    assert int(count) <= MOST
    assert [
        name for name in names if name.startswith(tuple(f"mindbatch.{unused}" for unused in UNUSED))
    ] == []
