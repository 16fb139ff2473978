"""What holds for every task: no file or message shows a secret; keys of config.json can be ignored."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from mindbatch import cli
from mindbatch.config.paths import data_root
from mindbatch.config.schema import schema_keys
from mindbatch.io import screen_text
from mindbatch.io.screen_text import concealed, hide, without_hidden
from mindbatch.llm import LLM
from mindbatch.tasks.registry import TASKS
from shadow_llm import make_llm
from stub_job import shared_tokenizer, write_rows

SECRET = "hunter2-correct-horse"
WRITTEN = "${oc.env:A_SECRET}"
# Of what was asked and answered; a prompt may hold anything.
MAY_HOLD_PROMPTS = {"results.jsonl", "out.jsonl"}


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "environ", {**os.environ, "A_SECRET": SECRET})
    monkeypatch.setattr(LLM, "from_config", lambda *settings, **beside: make_llm(shared_tokenizer()))
    monkeypatch.setattr(sys, "argv", ["mindbatch"])
    monkeypatch.chdir(tmp_path)


def files_that_hold_it(folder: Path) -> set[str]:
    return {
        path.name for path in folder.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()
    }


def test_a_run_keeps_no_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = f"{SECRET}-changed"
    for name in (SECRET, changed):
        (tmp_path / name).mkdir()
        write_rows(tmp_path / f"{name}/{name}.jsonl", 4)
    words = [
        "batch",
        "model=tiny_gpt2",
        f"data.path={WRITTEN}/{WRITTEN}.jsonl",
        f"data.template='{WRITTEN} {{{{prompt}}}}'",
        f"decoding.stop=['{WRITTEN}',b]",
        "decoding.max_new_tokens=4",
        "output.dir=run",
    ]
    assert cli.main(words) == 0
    monkeypatch.setenv("A_SECRET", changed)
    assert cli.main(words) == 2
    message = capsys.readouterr().err
    assert "decoding.stop " in message
    assert SECRET not in message
    assert f'"stop": [\n        "{WRITTEN}",' in (tmp_path / "run/manifest.json").read_text()
    assert files_that_hold_it(tmp_path / "run") <= MAY_HOLD_PROMPTS


@pytest.mark.parametrize("task", ["generate", "compare"])
def test_neither_do_generate_and_compare(
    task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        task,
        "model=tiny_gpt2",
        "prompts=hello",
        f"decoding.stop=['{WRITTEN}']",
        "decoding.max_new_tokens=2",
    ]
    words += ["output.file=out/out.jsonl"] if task == "generate" else ["output.dir=out", "decoding=[greedy]"]
    (tmp_path / "out").mkdir()
    assert cli.main(words) == 0
    assert files_that_hold_it(tmp_path) == set()
    assert SECRET not in "".join(capsys.readouterr())


@pytest.mark.parametrize("task", ["batch", "generate", "compare", "plan", "reshard", "rank-table", "inspect"])
def test_no_fault_shows_what_a_key_stands_for(
    task: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screen_text, "MAX_LINES", 10_000)
    keys = [
        key for key in schema_keys(TASKS[task].schema).keys.values() if key.type not in (bool, int, float)
    ]
    assert cli.main([task, *(f"{key.name}={WRITTEN}" for key in keys)]) == 2
    shown = capsys.readouterr()
    assert SECRET[:8] not in shown.err + shown.out
    assert WRITTEN in shown.err


def test_every_form_of_a_hidden_value_is_found() -> None:
    hide('two\nlines "quoted" \u00e9 and much more of it', "${oc.env:X}")
    for text in (
        'two\nlines "quoted" \u00e9 and much more of it',
        repr('two\nlines "quoted" \u00e9 and much more of it'),
    ):
        assert "lines" not in without_hidden(f"before {text} after")
    for cut in ('x=two lines "quoted"...', 'x=two lines "quo ... (900 characters', 'x=two lines "q'):
        assert without_hidden(cut).startswith("x=${oc.env:X}")
    assert without_hidden("two lines of a text") == "two lines of a text"
    content = {"a": ("x", [1, None, 'two lines "quoted" \u00e9 and much more of it']), 5: 1.5}
    assert concealed(content) == {"a": ("x", [1, None, "${oc.env:X}"]), 5: 1.5}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    home = Path(shutil.copytree(data_root() / "examples/tiny_gpt2", tmp_path / "model"))
    config = json.loads((home / "config.json").read_text())
    (home / "config.json").write_text(json.dumps(config | {"mystery": 1}))
    return home


@pytest.mark.parametrize(
    ("given", "setting"),
    [
        (
            ["layout", "model.checkpoint_name_or_path={}", "parallel.model_parallel=2"],
            "model.ignore_config_keys",
        ),
        (["reshard", "source={}", "target.dir={}2", "target.model_parallel=2"], "ignore_config_keys"),
    ],
)
def test_tasks_that_read_it(
    given: list[str], setting: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [word.format(folder) for word in given]
    assert cli.main(command) != 0
    assert f"the results: '{setting}=[mystery]" in capsys.readouterr().err
    assert cli.main([*command, f"{setting}=[mystery]"]) == 0
    assert cli.main([*command, f"{setting}=7"]) == 2
    assert f"{setting}=7: must be a list of keys of config.json" in capsys.readouterr().err
