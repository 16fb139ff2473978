"""Rank tables of supernodes: every fault in what belongs together."""

from collections.abc import Callable
from typing import Any

import pytest

from mindbatch.launch.table_reader import examine
from rank_tables import Document, plain_table, super_pod_table

Change = Callable[[Document], Any]


def faults(document: Document) -> list[str]:
    return examine(document)[1].faults


def device(document: Document, server: int, place: int) -> dict[str, Any]:
    found: dict[str, Any] = document["server_list"][server]["device"][place]
    return found


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            lambda d: device(d, 1, 0).update(super_device_id="0"),
            [
                'server_list[1].device[0].super_device_id: "0" is that of '
                "server_list[0].device[0].super_device_id, too"
            ],
        ),
        (
            lambda d: device(d, 0, 0).pop("super_device_id"),
            [
                "server_list[0].device[0].super_device_id: is missing; the devices of a supernode need one",
            ],
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
