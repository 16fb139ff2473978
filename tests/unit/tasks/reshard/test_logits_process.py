"""The process that runs a model: its faults are told here, and so is its death."""

from pathlib import Path

import pytest

from child_functions import leave
from mindbatch.io.errors import CheckpointError
from mindbatch.models.registry import describe
from mindbatch.tasks.reshard.logits_check import logits_of
from mindbatch.tasks.reshard.schema import ReshardConfig
from reshard_models import LLAMA


def test_what_cannot_be_opened_is_said_in_its_own_words(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"^{tmp_path}/nowhere: no such folder"):
        logits_of(ReshardConfig(source=str(tmp_path / "nowhere")), describe(LLAMA))


def test_a_process_that_dies_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mindbatch.tasks.reshard.logits_check.answer_with_logits", leave)
    with pytest.raises(CheckpointError, match=r"^source: the process .* has died \(exit code 3\)"):
        logits_of(ReshardConfig(source="source"), describe(LLAMA))
