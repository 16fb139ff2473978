"""A damaged model is refused by every command that runs or plans one, before MindSpore is loaded."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from bad_checkpoints import (
    CONFIG,
    FAULTS,
    LFS,
    PLACES,
    Fault,
    Place,
    write_code,
)

from each_once import each_once
from mindbatch import cli
from mindbatch.io.errors import EXIT_UNFINISHED

FOLDER, SHARDS, ONE, RANKS, _ = PLACES
MODEL = "model.checkpoint_name_or_path"
HALTED = "model_runner halted"
"""What is told when a command goes on to load MindSpore."""

Line = Callable[[Path], list[str]]
"""The command line for a model in `home`; what it makes would be home.parent/made."""


def _data(home: Path) -> str:
    path = home.parent / "rows.jsonl"
    path.write_text('{"prompt": [1, 2]}\n')
    return f"data.path={path}"


def _made(home: Path) -> str:
    return f"output.dir={home.parent / 'made'}"


def _generate(home: Path) -> list[str]:
    return ["generate", f"{MODEL}={home}", "prompts=[[1,2]]", f"output.file={home.parent / 'made'}"]


def _batch(home: Path) -> list[str]:
    return ["batch", f"{MODEL}={home}", _data(home), _made(home)]


def _compare(home: Path) -> list[str]:
    return ["compare", f"{MODEL}={home}", "prompts=[[1,2]]", "decoding=[greedy,sampling]", _made(home)]


def _plan(home: Path) -> list[str]:
    return ["plan", f"{MODEL}={home}", _data(home)]


def _layout(home: Path) -> list[str]:
    return ["layout", f"{MODEL}={home}", "parallel.model_parallel=2", f"layout.dir={home.parent / 'made'}"]


def _assisted(line: Line) -> Line:
    """The same with a good model, to which the one in `home` is the assistant."""

    def assisted(home: Path) -> list[str]:
        good = home.parent / "good"
        if not good.exists():
            FOLDER.write(good)
        options = [f"model.assistant={home}", "decoding.num_assistant_tokens=2"]
        return [*(f"{MODEL}={good}" if part.startswith(MODEL) else part for part in line(home)), *options]

    return assisted


RUNNING: dict[str, Line] = {
    "generate": _generate,
    "batch": _batch,
    "compare": _compare,
    "generate with an assistant": _assisted(_generate),
}
PLANNING: dict[str, Line] = {
    "plan": _plan,
    "plan of ranks": _layout,
    "plan with an assistant": _assisted(_plan),
}
LINES = RUNNING | PLANNING
# The layout needs no weights, so that those it cannot read are none to it.
LINES_OF_WEIGHTS = RUNNING | {"plan": _plan}


def shown(value: object) -> str | None:
    """The name of a parameter; None is pytest's own."""
    return value.name if isinstance(value, Fault | Place) else None


@pytest.fixture(autouse=True)
def _without_mindspore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mindbatch.engine.model_runner", None)
    monkeypatch.chdir(tmp_path)


def _refused(line: Line, home: Path, capsys: pytest.CaptureFixture[str], expected: int = 1) -> str:
    """What is told of a refusal, after which there is nothing that was not there before."""
    arguments = line(home)
    before = {*home.parent.rglob("*")}
    code = cli.main(arguments)
    out, err = capsys.readouterr()
    assert (code, out) == (expected, ""), err
    assert err.endswith("\n")
    assert all(told.startswith("mindbatch: ") and told.isprintable() for told in err.splitlines())
    assert HALTED not in err
    assert {*home.parent.rglob("*")} == before
    return err


def _goes_on(line: Line, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The model is found in order, and MindSpore is asked for."""
    assert cli.main(line(home)) == EXIT_UNFINISHED
    assert HALTED in capsys.readouterr().err
    shutil.rmtree(home.parent / "made", ignore_errors=True)


@pytest.mark.slow
def test_they_are_right_before_they_are_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place in (FOLDER, SHARDS):
        home = tmp_path / place.name / "home"
        place.write(home)
        for line in RUNNING.values():
            _goes_on(line, home, capsys)
        for line in PLANNING.values():
            assert cli.main(line(home)) == 0
            assert capsys.readouterr().err == ""


@pytest.mark.parametrize("place", [FOLDER, SHARDS], ids=lambda place: place.name)
@pytest.mark.parametrize(("fault", "name"), each_once(FAULTS, LINES), ids=shown)
def test_the_file_and_the_fault_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: Place, fault: Fault, name: str
) -> None:
    home = tmp_path / "home"
    file = place.write(home)
    file.write_bytes(fault.content(place))
    message = _refused(LINES[name], home, capsys)
    assert str(home) in message
    assert file.name in message or fault.knows_model
    assert [said for said in fault.said if not re.search(said, message)] == [], message


BAD_CONFIGS = (
    (b'{"model_type": "llama", ', "not valid JSON"),
    (b"{}", "model_type is missing"),
    (LFS, "Git LFS"),
    (json.dumps({**CONFIG, "hidden_size": "32"}).encode(), "hidden_size"),
    (json.dumps({**CONFIG, "num_hidden_layers": 2}).encode(), "'model.layers.1.[a-z_.]*' is missing"),
)


@pytest.mark.parametrize(("bad", "name"), each_once(BAD_CONFIGS, LINES), ids=shown)
def test_a_bad_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, bad: tuple[bytes, str]
) -> None:
    content, said = bad
    FOLDER.write(tmp_path / "home")
    (tmp_path / "home/config.json").write_bytes(content)
    assert re.search(said, _refused(LINES[name], tmp_path / "home", capsys))


@pytest.mark.parametrize(("place", "name"), each_once([ONE, RANKS], LINES_OF_WEIGHTS), ids=shown)
def test_what_is_only_mindspores_is_refused_with_the_way_to_convert(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, place: Place
) -> None:
    place.write(tmp_path / "home")
    is_cut = place == RANKS
    message = _refused(LINES_OF_WEIGHTS[name], tmp_path / "home", capsys, 2 if is_cut else 1)
    said = "has 2 rank folders" if is_cut else "no model weights, only .*; .*needed is model.safetensors"
    assert re.search(f"{tmp_path}/home: {said}", message)
    assert "`mindbatch reshard source=" in message
    assert "pickle" not in message


@pytest.mark.slow
def test_code_of_a_folder_is_never_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = tmp_path / "home"
    FOLDER.write(home)
    write_code(home, tmp_path / "was_run")
    for line in RUNNING.values():
        _goes_on(line, home, capsys)
    for line in PLANNING.values():
        assert cli.main(line(home)) == 0
    shutil.rmtree(tmp_path / "made")
    own = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["tokenization_own.Own", None]}}
    (home / "tokenizer_config.json").write_text(json.dumps(own))
    for name in ("generate", "compare", "plan"):
        assert cli.main({**RUNNING, **PLANNING}[name](home)) == 1
        assert str(home) in capsys.readouterr().err
    assert not (tmp_path / "was_run").exists()
