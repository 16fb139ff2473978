"""What a reshard says meanwhile: plain lines where there is no terminal, and what an interrupt leaves."""

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from mindbatch.checkpoint.reshard.progress import PlainProgress
from mindbatch.checkpoint.reshard.replicas import compare
from mindbatch.tasks.reshard import logits_check
from mindbatch.tasks.reshard import task as reshard
from mindbatch.tasks.reshard.plan import plan_reshard
from mindbatch.tasks.reshard.schema import ReshardConfig
from mindbatch.tasks.reshard.source import open_reshard_source
from reshard_models import LLAMA, write_model

MIB = 1 << 20


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_without_a_terminal_there_is_a_line_every_30_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    progress = PlainProgress("mindbatch", clock)
    for seconds, done in ((0, 100), (29, 390), (30, 400), (59, 690), (61, 710)):
        clock.seconds = seconds
        progress("resharding", done * MIB, 4000 * MIB)
    clock.seconds = 91
    progress("reading back", 0, 4000 * MIB)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "mindbatch: resharding: 400 of 4,000 MiB, 0:06:00 left",
        "mindbatch: resharding: 710 of 4,000 MiB, 0:05:29 left",
        "mindbatch: reading back: 0 of 4,000 MiB",
    ]


def test_ranks_that_are_compared_count(tmp_path: Path) -> None:
    source = write_model(tmp_path / "source", LLAMA)
    config = ReshardConfig(source=str(source))
    config.target.dir, config.target.model_parallel = str(tmp_path / "cut"), 4
    assert reshard.run(config) == 0
    back = ReshardConfig(source=config.target.dir, verify=True)
    back.target.dir = str(tmp_path / "whole")
    with (opened := open_reshard_source(back)).source:
        replicas = plan_reshard(back, opened).replicas
    said: list[tuple[str, int, int]] = []
    compare(replicas, lambda *state: said.append(state))
    assert {what for what, _, _ in said} == {"comparing what several ranks hold"}
    norms, heads = 7 * 32 * 3, 3 * 2 * 4 * 32 * 2  # three ranks after the first; two ranks after two others
    assert said[-1][1:] == ((norms + heads) * 4,) * 2


def test_the_models_that_are_run_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = ReshardConfig(source=str(write_model(tmp_path / "source", LLAMA)), verify="logits")
    config.target.dir = str(tmp_path / "cut")
    monkeypatch.setattr(logits_check, "logits_of", lambda *_: np.ones((1, 2), np.float32))
    said: list[str] = []
    monkeypatch.setattr(reshard, "shown_progress", lambda: nullcontext(lambda what, *_: said.append(what)))
    assert reshard.run(config) == 0
    assert said[-2:] == ["running the source's model", "running the target's model"]


def test_an_interrupt_says_that_nothing_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ReshardConfig(source=str(write_model(tmp_path / "source", LLAMA)))
    config.target.dir = str(tmp_path / "cut")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mindbatch.checkpoint.reshard.carry_out._finish", interrupted)
    with pytest.raises(KeyboardInterrupt):
        reshard.run(config)
    assert capsys.readouterr().err == (
        f"mindbatch: {config.target.dir}.part: keeps what was finished; the same command goes on\n"
    )
