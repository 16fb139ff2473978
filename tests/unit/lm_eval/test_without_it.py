"""lm-evaluation-harness is an extra: without it one line says so."""

import sys
from unittest import mock

import pytest

from mindbatch.io.errors import ConfigError
from mindbatch.lm_eval import MISSING
from mindbatch.lm_eval.__main__ import main
from mindbatch.tasks.evaluate.harness import run_harness
from mindbatch.tasks.evaluate.schema import EvaluateConfig


@pytest.fixture(autouse=True)
def _is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.delitem(sys.modules, "mindbatch.lm_eval.model", raising=False)


def test_its_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 2
    assert capsys.readouterr().err == f"mindbatch: {MISSING}\n"


def test_evaluate() -> None:
    config = EvaluateConfig()
    config.harness.tasks = ["mine"]
    with mock.patch("mindbatch.tasks.evaluate.runs.LLM") as llm, pytest.raises(ConfigError) as error:
        run_harness(config)
    assert error.value.faults == (f"harness.tasks: {MISSING}",)
    assert not llm.mock_calls
