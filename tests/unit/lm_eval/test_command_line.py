"""The command line of lm-evaluation-harness with our model class: as documented, and where it is missing."""

import shlex
import sys
from importlib.util import find_spec
from types import ModuleType

import pytest

from doc_pages import blocks
from mindbatch.io.installation import missing
from mindbatch.lm_eval.__main__ import main

MODULE = "python -m mindbatch.lm_eval"


def test_where_it_is_missing_a_line_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    assert main() == 2
    assert capsys.readouterr().err == f"mindbatch: {missing('lm_eval')}\n"


def test_the_documented_command_reaches_the_harness_which_knows_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Over stand-ins of the harness's modules: it is an extra."""
    [line] = {line for block in blocks("bash") for line in block.code.splitlines() if line.startswith(MODULE)}
    words = shlex.split(line.removeprefix(MODULE), comments=True)
    arguments = dict(zip(words[::2], words[1::2], strict=True))
    assert {"--model", "--model_args", "--tasks"} <= arguments.keys()
    assert arguments["--model"] == "mindbatch"

    registered: dict[str, str] = {}
    command_lines: list[list[str]] = []
    command_line, registry = ModuleType("lm_eval.__main__"), ModuleType("lm_eval.api.registry")
    command_line.cli_evaluate = lambda: command_lines.append(sys.argv[1:])  # type: ignore[attr-defined]

    class Registry:
        def register(self, name: str, target: str) -> None:
            registered[name] = target

    registry.model_registry = Registry()  # type: ignore[attr-defined]
    for name, module in (("lm_eval", ModuleType("lm_eval")), ("lm_eval.api", ModuleType("lm_eval.api"))):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "lm_eval.__main__", command_line)
    monkeypatch.setitem(sys.modules, "lm_eval.api.registry", registry)
    monkeypatch.setattr(sys, "argv", ["lm_eval", *words])
    assert main() == 0
    assert command_lines == [words]
    module, _, _ = registered[arguments["--model"]].partition(":")
    assert find_spec(module) is not None
