"""Running the command within the test's process: MindSpore is imported once, a model loaded once."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from command_line import CommandLine
from mindbatch import cli
from mindbatch.loading.build import LoadedEngine, load_engine
from mindbatch.loading.setup import EngineSetup, prepare

# Another test may have imported MindSpore without quietening it; a process of its own shows that it is quiet.
_MINDSPORE = re.compile(r"\[WARNING\] \w+\(")
_SETUPS: dict[str, EngineSetup] = {}
_LOADED: dict[int, LoadedEngine] = {}


def kept_setup(model: Any, runtime: Any, lora: Any = None, **others: Any) -> EngineSetup:
    """As `prepare`; a model whose folder stays where it is is set up once for each set of options."""
    path = model.checkpoint_name_or_path
    if not (path.startswith("shipped:") or Path(path).is_absolute()):
        return prepare(model, runtime, lora=lora, **others)
    options = f"{model} {runtime} {lora}"
    if options not in _SETUPS:
        _SETUPS[options] = prepare(model, runtime, lora=lora, **others)
    return _SETUPS[options]


def kept_engine(setup: EngineSetup, notice: object = None) -> LoadedEngine:
    """As `load_engine`; once for each setup that is kept."""
    if setup not in _SETUPS.values():
        return load_engine(setup)
    if id(setup) not in _LOADED:
        _LOADED[id(setup)] = load_engine(setup)
    return _LOADED[id(setup)]


class CalledCommandLine(CommandLine):
    """As a CommandLine, by calls of `main`; the current folder is `here` until the test ends."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, captured: pytest.CaptureFixture[str]
    ) -> None:
        super().__init__(folder)
        self._monkeypatch, self._captured = monkeypatch, captured
        monkeypatch.chdir(self.here)
        # What a run sets in its environment ends with the test.
        here = {"HOME": str(self.home), "XDG_CACHE_HOME": str(self.home / "cache")}
        monkeypatch.setattr(os, "environ", os.environ | here)
        monkeypatch.setattr("mindbatch.llm.prepare", kept_setup)
        monkeypatch.setattr("mindbatch.llm.load_engine", kept_engine)

    def run(
        self,
        *arguments: str,
        stdin: bytes = b"",
        leaves: Sequence[str] = (),
        environment: dict[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        os.environ.update(environment or {})
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        self._captured.readouterr()
        code = cli.main([*arguments])
        assert sorted(os.listdir(self.here)) == sorted(leaves)
        out, err = self._captured.readouterr()
        said = "".join(line for line in err.splitlines(True) if not _MINDSPORE.match(line))
        return subprocess.CompletedProcess(arguments, code, out, said)
