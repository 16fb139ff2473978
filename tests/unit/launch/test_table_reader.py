"""Rank tables read: correct ones as they are, and of others every fault."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mindbatch.launch.table_reader import AllowedDeviations, RankTableError, examine, read_rank_table
from rank_tables import (
    Document,
    mindspore_1_0_table,
    modelarts_table,
    plain_table,
    super_pod_table,
    write_json,
)

Change = Callable[[Document], Any]


FIRST, SECOND, OTHER = "server_list[0].device[0]", "server_list[0].device[1]", "server_list[1].device[0]"


def faults(document: Any, allowed: AllowedDeviations | None = None) -> list[str]:
    return examine(document, allowed or AllowedDeviations())[1].errors


def device(document: Document, server: int, place: int) -> dict[str, Any]:
    found: dict[str, Any] = document["server_list"][server]["device"][place]
    return found


@pytest.mark.parametrize("size", [(1, 8), (2, 4)])
def test_a_table_of_modelarts_is_one_of_version_1_0(size: tuple[int, int]) -> None:
    table, found = examine(modelarts_table(*size))
    assert found.errors == []
    assert [note.partition(",")[0] for note in found.notes] == ["group_list: ModelArts' form"]
    assert table.to_json() == plain_table(*size)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda d: d.update(status="initializing"), ['status: "initializing"; must be "completed"']),
        (lambda d: d.update(group_list=[]), ["group_list: empty; must be a list with one object or more"]),
        (
            lambda d: d["group_list"][0].update(device_count="5"),
            ["group_list[0].device_count: 5; there are 4"],
        ),
        (
            lambda d: d["group_list"][0]["instance_list"][1].update(server_id="10.0.0.1"),
            [
                'group_list[0].instance_list[1].server_id: "10.0.0.1" is that of '
                "group_list[0].instance_list[0].server_id, too"
            ],
        ),
        (
            lambda d: d["group_list"][0]["instance_list"][1]["devices"][1].pop("device_id"),
            ["group_list[0].instance_list[1].devices[1].device_id: is missing"],
        ),
        (
            lambda d: d["group_list"][0]["instance_list"][1]["devices"][1].update(device_id="0"),
            [
                'group_list[0].instance_list[1].devices[1].device_id: "0" is that of '
                "group_list[0].instance_list[1].devices[0].device_id, too"
            ],
        ),
    ],
)
def test_a_fault_of_a_table_of_modelarts_is_told_where_it_is(change: Change, expected: list[str]) -> None:
    document = modelarts_table(2, 2)
    change(document)
    assert faults(document) == expected


@pytest.mark.parametrize("size", [(1, 8), (2, 4), (1, 1)])
def test_a_table_of_mindspore_1_0_is_one_of_version_1_0(size: tuple[int, int]) -> None:
    document = mindspore_1_0_table(*size)
    random.Random(0).shuffle(document["group_list"][0]["instance_list"])  # an instance says its rank itself
    table, found = examine(document)
    assert found.errors == []
    assert found.notes == ["group_list: MindSpore 1.0's form; HCCL reads version 1.0"]
    assert table.to_json() == plain_table(*size)


def instance(document: Document, number: int) -> Document:
    found: Document = document["group_list"][0]["instance_list"][number]
    return found


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda d: d["group_list"][0].update(device_num="3"), ["group_list[0].device_num: 3; there are 4"]),
        (lambda d: d["group_list"][0].update(server_num="3"), ["group_list[0].server_num: 3; there are 2"]),
        (
            lambda d: instance(d, 3).update(rank_id="2"),
            [
                'group_list[0].instance_list[3].rank_id: "2" is that of '
                "group_list[0].instance_list[2].rank_id, too",
                "rank_id: 3 missing; the 4 devices must have the ranks 0 to 3",
            ],
        ),
        (
            lambda d: instance(d, 3).pop("rank_id"),
            ["rank_id: 3 missing; the 4 devices must have the ranks 0 to 3"],
        ),
        (
            lambda d: instance(d, 1)["devices"][0].update(device_id="0"),
            [
                'group_list[0].instance_list[1].devices[0].device_id: "0" is that of '
                "group_list[0].instance_list[0].devices[0].device_id, too"
            ],
        ),
        (
            lambda d: (instance(d, 1).update(rank_id="2"), instance(d, 2).update(rank_id="1")),
            [
                'rank_id: servers "10.0.0.1" (0 to 2) and "10.0.0.2" (1 to 3) cross; '
                "the ranks of a server must follow one another"
            ],
        ),
    ],
)
def test_an_error_of_a_table_of_mindspore_1_0_is_told_where_it_is(
    change: Change, expected: list[str]
) -> None:
    document = mindspore_1_0_table(2, 2)
    change(document)
    assert [
        line for line in faults(document) if "instance_list[2].devices[0].device_id" not in line
    ] == expected


def test_an_instance_with_a_rank_has_one_device() -> None:
    document = mindspore_1_0_table(1, 2)
    instance(document, 0)["devices"].append({"device_id": "5", "device_ip": "192.168.0.9"})
    line = (
        "group_list[0].instance_list[0].rank_id: 0; there are 2 devices, and an instance with a rank has one"
    )
    assert line in faults(document)


def test_the_bytes_are_those_of_mindformers_tools() -> None:
    table, _ = examine(plain_table())
    assert table.to_bytes() == json.dumps(plain_table(), indent=4).encode()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda d: d.pop("version"), ["version: is missing"]),
        (lambda d: d.update(version="2.0"), ['version: "2.0"; must be one of "1.0", "1.2"']),
        (lambda d: d.update(version=1.0), ['version: a number; must be text, like "1.0"']),
        (lambda d: d.update(status="initializing"), ['status: "initializing"; must be "completed"']),
        (lambda d: d.pop("status"), ["status: is missing"]),
        (lambda d: d.pop("server_count"), ["server_count: is missing"]),
        (lambda d: d.update(server_count="3"), ["server_count: 3; server_list has 2"]),
        (lambda d: d.update(server_count=2), ['server_count: a number; must be text, like "2"']),
        (lambda d: d.pop("server_list"), ["server_list: is missing"]),
        (
            lambda d: d.update(server_list=[]),
            ["server_list: empty; must be a list with one object or more"],
        ),
        (
            lambda d: d.update(server_list={}),
            ["server_list: an object; must be a list with one object or more"],
        ),
        (
            lambda d: device(d, 1, 3).update(rank_id="2"),
            [
                'server_list[1].device[3].rank_id: "2" is that of server_list[0].device[2].rank_id, too',
                "rank_id: 11 missing; the 16 devices must have the ranks 0 to 15",
                'rank_id: servers "10.0.0.1" (0 to 7) and "10.0.0.2" (2 to 15) cross; '
                "the ranks of a server must follow one another",
            ],
        ),
        (
            lambda d: device(d, 1, 7).update(rank_id="20"),
            [
                "rank_id: 15 missing; the 16 devices must have the ranks 0 to 15",
                "rank_id: 20 too large; the 16 devices must have the ranks 0 to 15",
            ],
        ),
        (
            lambda d: (device(d, 0, 7).update(rank_id="8"), device(d, 1, 0).update(rank_id="7")),
            [
                'rank_id: servers "10.0.0.1" (0 to 8) and "10.0.0.2" (7 to 15) cross; '
                "the ranks of a server must follow one another"
            ],
        ),
        (
            lambda d: d["server_list"][0]["device"].pop(3),
            [
                "rank_id: 3 missing; the 15 devices must have the ranks 0 to 14",
                "rank_id: 15 too large; the 15 devices must have the ranks 0 to 14",
                'server_list[0].device: 7 devices, and 8 on server "10.0.0.2"',
            ],
        ),
        (
            lambda d: device(d, 0, 3).update(device_id="2"),
            ['server_list[0].device[3].device_id: "2" is that of server_list[0].device[2].device_id, too'],
        ),
        (
            lambda d: device(d, 1, 0).update(device_ip="192.168.0.100"),
            [f'{OTHER}.device_ip: "192.168.0.100" is that of {FIRST}.device_ip, too'],
        ),
        (
            lambda d: d["server_list"][1].update(server_id="10.0.0.1"),
            ['server_list[1].server_id: "10.0.0.1" is that of server_list[0].server_id, too'],
        ),
        (
            lambda d: device(d, 0, 0).update(device_id=0, rank_id=0),
            [
                'server_list[0].device[0].device_id: a number; must be text, like "0"',
                'server_list[0].device[0].rank_id: a number; must be text, like "0"',
                "rank_id: 0 missing; the 16 devices must have the ranks 0 to 15",
            ],
        ),
        (lambda d: device(d, 0, 0).pop("device_id"), ["server_list[0].device[0].device_id: is missing"]),
        (
            lambda d: device(d, 0, 0).update(device_id="00"),
            [f'{FIRST}.device_id: "00"; must be a whole number from 0 to 4095 as text, like "0"'],
        ),
        (
            lambda d: device(d, 0, 0).update(device_ip="192.168.0.300"),
            [
                'server_list[0].device[0].device_ip: "192.168.0.300": not an IPv4 or IPv6 address',
                "server_list[0].device[0].device_ip: is missing; devices of several servers need one",
            ],
        ),
        (
            lambda d: device(d, 0, 0).pop("device_ip"),
            ["server_list[0].device[0].device_ip: is missing; devices of several servers need one"],
        ),
        (
            lambda d: device(d, 0, 0).update(device_port="65536"),
            [f'{FIRST}.device_port: "65536"; must be a whole number from 1 to 65535 as text, like "1"'],
        ),
        (
            lambda d: [device(d, 0, place).update(host_port="17000") for place in (0, 1)],
            [f'{SECOND}.host_port: "17000" is that of {FIRST}.host_port, too'],
        ),
        (
            lambda d: d["server_list"][0].update(server_id="a b"),
            ['server_list[0].server_id: "a b": must have no spaces, slashes or control characters'],
        ),
        (
            lambda d: d["server_list"][0].update(server_id="x" * 65),
            [f'server_list[0].server_id: "{"x" * 56}...: must have 1 to 64 characters'],
        ),
        (
            lambda d: device(d, 0, 0).update(super_device_id="0"),
            ["super_device_id: not in version 1.0; supernodes need version 1.2"],
        ),
        (
            lambda d: d.update(super_pod_list=[]),
            ["super_pod_list: not in version 1.0; supernodes need version 1.2"],
        ),
        (
            lambda d: d["server_list"].append("x"),
            ['server_list[2]: "x"; must be an object', "server_count: 2; server_list has 3"],
        ),
    ],
)
def test_each_fault_of_a_plain_table(change: Change, expected: list[str]) -> None:
    document = plain_table(2)
    change(document)
    assert sorted(faults(document)) == sorted(expected)


def test_an_address_is_the_same_however_it_is_written() -> None:
    document = plain_table()
    device(document, 0, 0)["device_ip"] = "fd00::1"
    device(document, 0, 1)["device_ip"] = "10.0.0.7,FD00:0:0:0:0:0:0:1"
    assert faults(document) == [
        'server_list[0].device[1].device_ip: "fd00::1" is that of server_list[0].device[0].device_ip, too'
    ]


def test_notes_are_no_faults() -> None:
    document = super_pod_table()
    document.pop("super_pod_list")
    document["server_list"][0]["container_ip"] = "10.0.0.1"
    device(document, 0, 0)["device_port"] = "80"
    document["x\n"] = 1
    table, found = examine(document)
    assert found.errors == []
    assert found.notes == [
        "server_list[0].device[0].device_port: 80 is one of the system's own ports",
        "server_list[0].container_ip: a key that HCCL does not document",
        '"x\\n": a key that HCCL does not document',
        "super_pod_list: is missing; HCCL will take the servers for single ones, not a supernode",
    ]
    assert table.servers[0].to_json()["container_ip"] == "10.0.0.1"


def test_what_may_be_left() -> None:
    document = plain_table(2)
    document["server_list"][0]["device"].pop(3)
    assert [fault.partition(":")[0] for fault in faults(document, AllowedDeviations(uneven=True))] == [
        "rank_id",
        "rank_id",
    ]
    assert faults(document, AllowedDeviations(uneven=True, any_ranks=True)) == []
    assert len(faults(document, AllowedDeviations(any_ranks=True))) == 1


def test_all_faults_of_a_file_are_raised_with_its_name(tmp_path: Path) -> None:
    document = plain_table()
    document["status"] = "x"
    device(document, 0, 0)["device_ip"] = "y"
    path = write_json(tmp_path / "t.json", document)
    with pytest.raises(RankTableError) as caught:
        read_rank_table(path)
    assert caught.value.lines == (
        f'{path}: server_list[0].device[0].device_ip: "y": not an IPv4 or IPv6 address',
        f'{path}: status: "x"; must be "completed"',
    )
    path.write_text("[1]")
    with pytest.raises(RankTableError, match="holds a list; must be an object with server_list"):
        read_rank_table(path)
    path.write_text("[")
    with pytest.raises(RankTableError, match=f"^{path}: not valid JSON"):
        read_rank_table(path)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            lambda d: device(d, 1, 0).update(super_device_id="0"),
            [f'{OTHER}.super_device_id: "0" is that of {FIRST}.super_device_id, too'],
        ),
        (
            lambda d: device(d, 0, 0).pop("super_device_id"),
            [f"{FIRST}.super_device_id: is missing; the devices of a supernode need one"],
        ),
        (
            lambda d: device(d, 0, 0).update(super_device_id="4294967295"),
            [
                'server_list[0].device[0].super_device_id: "4294967295"; must be a whole number from 0 to '
                '4294967294 as text, like "0"',
                "server_list[0].device[0].super_device_id: is missing; the devices of a supernode need one",
            ],
        ),
        (
            lambda d: device(d, 0, 0).update(backup_device_ip=device(d, 0, 0)["device_ip"]),
            [
                'server_list[0].device[1].backup_device_ip: "192.168.0.1" is that of '
                "server_list[0].device[0].backup_device_ip, too",
                "server_list[0].device[0].backup_device_ip: is its own device_ip; "
                "a backup is the other die's",
            ],
        ),
        (
            lambda d: d["super_pod_list"][1].update(super_pod_id="0"),
            ['super_pod_list[1].super_pod_id: "0": is that of super_pod_list[0], too'],
        ),
        (
            lambda d: d["super_pod_list"][1]["server_list"].append({"server_id": "node_0"}),
            ['super_pod_list[1].server_list[2]: "node_0" is in super_pod_list[0], too'],
        ),
        (
            lambda d: d["super_pod_list"][1]["server_list"].append({"server_id": "node_9"}),
            ['super_pod_list: "node_9": no server of server_list'],
        ),
        (
            lambda d: d["super_pod_list"][1]["server_list"].pop(),
            ['super_pod_list: server_list[3] ("node_3") is in none'],
        ),
        (
            lambda d: d["super_pod_list"][0].pop("super_pod_id"),
            ["super_pod_list[0].super_pod_id: is missing"],
        ),
        (
            lambda d: d["server_list"].insert(0, d["server_list"].pop()),
            ['server_list: the servers of supernode "1" must follow one another'],
        ),
        (
            lambda d: device(d, 0, 0).pop("device_ip"),
            ["server_list[0].device[0].device_ip: is missing; devices of several servers need one"],
        ),
    ],
)
def test_each_fault_of_a_supernode_table(change: Change, expected: list[str]) -> None:
    document = super_pod_table()
    change(document)
    found = faults(document)
    if "super_pod_id" in expected[0]:  # the list of one supernode follows from the other
        found = found[: len(expected)]
    assert sorted(found) == sorted(expected)


def test_one_supernode_needs_no_addresses_and_plain_servers_one_each() -> None:
    document = super_pod_table(num_pods=1)
    for server in document["server_list"]:
        for entry in server["device"]:
            del entry["device_ip"]
    assert faults(document) == []
    document.pop("super_pod_list")
    assert len(faults(document)) == 8
    alone = plain_table()
    for entry in alone["server_list"][0]["device"]:
        entry["device_ip"] = ""
    assert faults(alone) == []
