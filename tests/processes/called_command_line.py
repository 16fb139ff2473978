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
from mindbatch.loading.build import LoadedModel, load_model

# Another test may have imported MindSpore without quietening it; a process of its own shows that it is quiet.
_MINDSPORE = re.compile(r"\[WARNING\] \w+\(")
_LOADED: dict[str, LoadedModel] = {}


def kept_model(model: Any, runtime: Any, notice: object = None, lora: Any = None) -> LoadedModel:
    """As `load_model`; a model whose folder stays where it is is loaded once for each set of options."""
    path = model.checkpoint_name_or_path
    if not (path.startswith("shipped:") or Path(path).is_absolute()):
        return load_model(model, runtime, lora=lora)
    options = f"{model} {runtime} {lora}"
    if options not in _LOADED:
        _LOADED[options] = load_model(model, runtime, lora=lora)
    return _LOADED[options]


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
        monkeypatch.setattr("mindbatch.llm.load_model", kept_model)

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
