"""What is wrong with any kind of checkpoint is refused by every command that reads it; nothing is written."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from bad_checkpoints import (
    ASTRAY,
    FAULTS,
    NAME,
    PLACES,
    TENSORS,
    Fault,
    Place,
    write_astray,
    write_code,
    write_strategy,
)
from ckpt_bytes import with_crc

import transform_ckpt
import transform_ckpt_lora
from mindbatch import cli
from mindbatch.checkpoint.error_lines import MAX_LINES
from mindbatch.checkpoint.folders import model_folder

FOLDER, SHARDS, ONE, RANKS, _ = PLACES


def _strategy(place: Place, home: Path) -> str | None:
    if place.num_ranks == 1:
        return None
    return str(write_strategy(home.parent / "strategy.ckpt", place.num_ranks))


def _lines(code: int, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    return code, capsys.readouterr().err.splitlines()


def _inspect(place: Place, home: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    return _lines(cli.main(["inspect", str(home), "digests=true"]), capsys)


def _reshard(place: Place, home: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    words = [f"source={home}", f"target.dir={home.parent / 'made'}", "workers=1"]
    if place.num_ranks == 1:
        words.append("target.model_parallel=2")
    else:
        words.append(f"source_strategy={_strategy(place, home)}")
    return _lines(cli.main(["reshard", *words]), capsys)


def _transform(place: Place, home: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    target = write_strategy(home.parent / "four.ckpt", 4)
    flags = [f"--src_ckpt_dir={home}", f"--dst_ckpt_dir={home.parent / 'made'}"]
    flags += [f"--src_ckpt_strategy={_strategy(place, home)}", f"--dst_ckpt_strategy={target}"]
    return _lines(transform_ckpt.main(flags), capsys)


def _merge(place: Place, home: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    target = write_strategy(home.parent / "four.ckpt", 4)
    flags = [f"--src_ckpt_path_or_dir={home}", f"--dst_ckpt_dir={home.parent / 'made'}", "--lora_scaling=1"]
    flags += [f"--src_ckpt_strategy={_strategy(place, home)}", f"--dst_ckpt_strategy={target}"]
    return _lines(transform_ckpt_lora.main(flags), capsys)


Command = Callable[[Place, Path, pytest.CaptureFixture[str]], tuple[int, list[str]]]
COMMANDS: tuple[Command, ...] = (_inspect, _reshard, _transform, _merge)


def _who_can_tell(fault: Fault, place: Place) -> Iterable[Command]:
    """Without a model, a strategy for all ranks or an index a checkpoint has the tensors that it has."""
    if not fault.knows_model or (place.has_index and fault.name != "shape"):
        return COMMANDS
    return (_reshard, _transform, _merge) if place.num_ranks > 1 else (_reshard,)


def _refused(command: Command, place: Place, home: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The lines of a refusal, after which there is nothing that was not there before."""
    before = {*home.rglob("*")}
    code, lines = command(place, home, capsys)
    assert code in (1, 2), lines
    assert lines
    assert not any("\n" in line or "Traceback" in line for line in lines)
    assert {*home.rglob("*")} == before
    assert not (home.parent / "made").exists()
    return "\n".join(lines)


def test_they_are_right_before_they_are_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, place in enumerate(PLACES):
        home = tmp_path / str(number) / "home"
        place.write(home)
        assert [_inspect(place, home, capsys), _reshard(place, home, capsys)] == [(0, []), (0, [])]
        shutil.rmtree(home.parent / "made")
        assert _transform(place, home, capsys)[0] == 0
        shutil.rmtree(home.parent / "made")
        assert "holds no lora_a and lora_b" in _refused(_merge, place, home, capsys)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
def test_the_file_and_the_fault_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: Place, fault: Fault
) -> None:
    file = place.write(tmp_path / "home")
    file.write_bytes(fault.content(place))
    for command in _who_can_tell(fault, place):
        message = _refused(command, place, tmp_path / "home", capsys)
        assert str(tmp_path / "home") in message
        assert file.name in message or fault.knows_model
        assert [said for said in fault.said if not re.search(said, message)] == [], message
        assert not (tmp_path / "made.part").exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_flipped_bit_is_found_with_the_checksum_of_mindspore(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: Command
) -> None:
    file = RANKS.write(tmp_path / "home")
    damaged = bytearray(with_crc(file.read_bytes()))
    damaged[-20] ^= 1
    file.write_bytes(damaged)
    assert f"{file}: damaged: its CRC-32" in _refused(command, RANKS, tmp_path / "home", capsys)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("target", "said"), ASTRAY)
def test_an_index_that_leads_astray(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: Command, target: str, said: str
) -> None:
    home = tmp_path / "home"
    write_astray(home, target)
    assert re.search(said, _refused(command, SHARDS, home, capsys))


@pytest.mark.parametrize("command", COMMANDS)
def test_ranks_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: Command) -> None:
    home = tmp_path / "home"
    file = RANKS.write(home)

    def said() -> str:
        return _refused(command, RANKS, home, capsys)

    file.parent.rename(tmp_path / "rank_1")
    file.parent.symlink_to(tmp_path / "rank_1")
    assert f"rank_1 is a symbolic link to {tmp_path / 'rank_1'}; must stay inside {home}" in said()
    file.parent.unlink()
    file.parent.write_bytes(b"")
    assert f"{home}: rank_1 is not a folder" in said()
    file.parent.unlink()
    shutil.copytree(tmp_path / "rank_1", home / "rank_2")
    assert f"{home}: ranks are missing: 1; there must be rank_0 to rank_2" in said()
    (home / "rank_2").rename(file.parent)
    (file.parent / "other.ckpt").write_bytes(b"")
    assert "several checkpoint files, 'm.ckpt', 'other.ckpt'" in said()
    (file.parent / "other.ckpt").unlink()
    os.mkfifo(file.parent / "pipe")
    (file.parent / "pipe").rename(file)
    assert f"{file}: not a regular file" in said()


def test_more_ranks_than_the_strategy_has_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    file = RANKS.write(home)
    shutil.copytree(file.parent, home / "rank_2")
    for command in (_reshard, _transform, _merge):
        assert f"{home}: 3 ranks; the strategy is for 2" in _refused(command, RANKS, home, capsys)


def test_a_model_with_names_of_another_kind_is_refused_without_delay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking for the nearest name of every tensor took half a minute where a model has 60 layers."""
    asked: list[str] = []
    monkeypatch.setattr(model_folder, "did_you_mean", lambda name, _: asked.append(name) or "")
    home = tmp_path / "home"
    file = FOLDER.write(home)
    file.write_bytes(FOLDER.content({f"other.{number}.weight": TENSORS[NAME] for number in range(300)}))
    message = _refused(_reshard, FOLDER, home, capsys)
    assert "'other.0.weight' of shape [32, 48] is not part of this model" in message
    assert "more errors" in message
    assert 0 < len(asked) <= MAX_LINES


def test_code_of_a_folder_is_never_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = tmp_path / "home"
    FOLDER.write(home)
    write_code(home, tmp_path / "was_run")
    for command in (_inspect, _reshard):
        assert command(FOLDER, home, capsys) == (0, [])
    assert not (tmp_path / "was_run").exists()
    assert not list((tmp_path / "made").rglob("*.py"))
