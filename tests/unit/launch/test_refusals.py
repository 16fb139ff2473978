"""What is wrong with a rank table is told by every command that takes tables; nothing is written."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import merge_hccl
from mindbatch.io.errors import MindBatchError
from mindbatch.tasks.rank_table import RankTableConfig, run
from rank_tables import Document, plain_table, write_json

Command = Callable[[Path, Path, pytest.CaptureFixture[str]], tuple[int, list[str]]]


def _task(action: str, *files: Path) -> int:
    config = RankTableConfig(action=action, files=[*map(str, files)])
    return run(config)


def _check(_: Path, bad: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    return _task("check", bad), capsys.readouterr().out.splitlines()


def _merge(other: Path, bad: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    try:
        return _task("merge", other, bad), []
    except MindBatchError as error:
        return error.exit_code, [*error.faults]


def _merge_hccl(other: Path, bad: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    return merge_hccl.main([str(other), str(bad)]), capsys.readouterr().err.splitlines()


COMMANDS: tuple[Command, ...] = (_check, _merge, _merge_hccl)


def _device(server: int, device: int, **changes: str) -> Callable[[Document], object]:
    def change(document: Document) -> object:
        return document["server_list"][server]["device"][device].update(changes)

    return change


FAULTS: list[tuple[str, list[Callable[[Document], object]], list[str]]] = [
    ("rank", [_device(1, 0, rank_id="3")], [r"rank_id: \"3\" is that of server_list\[0\].device\[3\]"]),
    ("device", [_device(0, 1, device_id="0")], [r"device_id: \"0\" is that of server_list\[0\].device\[0\]"]),
    ("address", [_device(1, 0, device_ip="192.168.0.100")], [r"device_ip: \"192.168.0.100\" is that of"]),
    ("version", [lambda d: d.update(version="2.0")], ['version: "2.0"; must be one of "1.0", "1.2"']),
    ("number", [_device(1, 3, rank_id="-1")], ['rank_id: "-1"; must be a whole number from 0']),
    ("count", [lambda d: d.update(server_count="3")], ["server_count: 3; server_list has 2"]),
    (
        "all at once",
        [
            _device(1, 0, rank_id="3"),
            _device(0, 1, device_id="0"),
            _device(1, 1, device_ip="192.168.0.100"),
            lambda d: d.update(version="2.0", status="initializing"),
        ],
        ['rank_id: "3"', 'device_id: "0"', 'device_ip: "192.168.0.100"', "version", "status"],
    ),
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    other: dict[str, Any] = plain_table(1, 4)
    other["server_list"][0]["server_id"] = "10.1.1.1"
    for device in other["server_list"][0]["device"]:
        device["device_ip"] = device["device_ip"].replace("192.168", "172.16")
    write_json(tmp_path / "other.json", other)
    return tmp_path


def _refused(command: Command, here: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    before = {path: path.read_bytes() for path in here.iterdir()}
    code, lines = command(here / "other.json", here / "bad.json", capsys)
    assert code in (1, 2)
    assert lines
    assert all("bad.json: " in line and line.isprintable() for line in lines)
    assert {path: path.read_bytes() for path in here.iterdir()} == before
    return lines


def test_they_are_right_before(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_json(here / "bad.json", plain_table(2, 4))
    assert _check(here, here / "bad.json", capsys)[0] == 0
    for command in (_merge, _merge_hccl):
        assert command(here / "bad.json", here / "other.json", capsys)[0] == 0


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("name", "changes", "said"), FAULTS, ids=[name for name, _, _ in FAULTS])
def test_every_fault_is_told(
    here: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    changes: list[Callable[[Document], object]],
    said: list[str],
    command: Command,
) -> None:
    document = copy.deepcopy(plain_table(2, 4))
    for change in changes:
        change(document)
    write_json(here / "bad.json", document)
    message = "\n".join(_refused(command, here, capsys))
    assert [each for each in said if not re.search(each, message)] == []


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not valid JSON"),
        (b'{"version": "1.0", "server_li', "not valid JSON"),
        (b'{"version": "1.0", "version": "1.2"}', 'the key "version" appears twice'),
        (b"[" * 50_000, "nested too deeply"),
        (b"\xff{}", "not UTF-8"),
        (b"[1]", "must be an object"),
        (b'{"server_count": 1' + b"0" * 5000 + b"}", "5001 digits"),
        (b" " * ((8 << 20) + 1), "more than 8 MiB"),
    ],
)
def test_what_is_no_table(
    here: Path, capsys: pytest.CaptureFixture[str], command: Command, content: bytes, said: str
) -> None:
    (here / "bad.json").write_bytes(content)
    assert said in "\n".join(_refused(command, here, capsys))


def test_gaps_missing_devices_and_tables_of_other_ranks(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a merge mends by its new numbers, or must allow, is a fault of a table that is used."""
    document = plain_table(2, 4)
    document["server_list"][1]["device"].pop(1)
    write_json(here / "bad.json", document)
    message = "\n".join(_refused(_check, here, capsys))
    assert re.search(r"server_list\[1\].* 3 devices", message)
    assert "rank_id: 5 missing" in message
    assert "rank_id: 7 too large" in message
    write_json(here / "good.json", plain_table(2, 4))
    different = plain_table(2, 4)
    _device(1, 2, device_ip="192.168.1.99")(different)
    write_json(here / "bad.json", different)
    assert _task("check", here / "good.json", here / "bad.json") == 1
    *_, last = capsys.readouterr().out.splitlines()
    assert re.search(
        r'bad.json: .*device\[2\].device_ip: "192.168.1.99"; "192.168.1.102" in .*good.json', last
    )
