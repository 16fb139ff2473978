"""Servers written down in a configuration; ranges and lists of devices."""

from typing import Any

import pytest

from mindbatch.launch.rank_table import Device, Server
from mindbatch.launch.server_list import (
    parse_devices,
    server_list,
)

SMALL = {"server_id": "10.0.0.1", "device_ips": ["10.1.0.1", "10.1.0.2"]}


def read(value: object) -> tuple[list[Server], list[str], list[str]]:
    """The servers, what is wrong with them, and notes."""
    faults: list[str] = []
    notes: list[str] = []
    return server_list(value, "reserve", faults, notes), faults, notes


def test_devices_count_up_from_0_or_are_given() -> None:
    servers = [SMALL, {**SMALL, "server_id": 7, "devices": "[4,6]", "host_ip": "10.0.0.9"}]
    (first, second), faults, [note] = read(servers)
    assert first.devices == (Device(0, device_ip="10.1.0.1"), Device(1, device_ip="10.1.0.2"))
    assert [device.device_id for device in second.devices] == [4, 5]
    assert (second.server_id, second.host_ip) == ("7", "10.0.0.9")
    assert faults == []
    assert note.startswith("servers[1].devices=[4,6]: the end is exclusive")


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        ("x", "servers[0]: must have the keys server_id and device_ips, and may have others"),
        ({**SMALL, "device_ip": "x"}, "servers[0].device_ip: unknown key; there are server_id, devices, "),
        ({"device_ips": ["10.1.0.1"]}, "servers[0].server_id=: must have 1 to 64 characters"),
        ({**SMALL, "server_id": "a/b"}, "servers[0].server_id=a/b: must have no spaces, slashes"),
        ({"server_id": "a"}, "servers[0]: device_ips or devices must be given"),
        ({**SMALL, "device_ips": "10.1.0.1"}, "servers[0].device_ips: must be a list of addresses"),
        (
            {**SMALL, "super_device_ids": [True, 1]},
            "servers[0].super_device_ids: must be a list of whole numbers",
        ),
        ({**SMALL, "devices": "[0,3)"}, "servers[0].device_ips: 2 for 3 devices; give one for each"),
        ({**SMALL, "devices": [0, 8]}, "servers[0].devices: must be a text, like '[0,8)' or '0,2,4'"),
        ({**SMALL, "devices": "0-7"}, "servers[0].devices=0-7: must be a range of devices"),
        ({**SMALL, "host_ports": [0, 70000]}, "servers[0].host_ports: must be from 1 to 65535"),
    ],
)
def test_each_fault(server: Any, expected: str) -> None:
    _, [fault], _ = read([server])
    assert fault.startswith(expected)


def test_all_faults_at_once() -> None:
    assert len(read([{**SMALL, "x": 1, "devices": "z"}, SMALL, 3])[1]) == 3
    for nothing in ([], {}, "x", None):
        servers, faults, _ = read(nothing)
        assert (servers, len(faults)) == ([], 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[3,6)", [3, 4, 5]),
        ("[10,12)", [10, 11]),
        ("[0, 16)", [*range(16)]),
        (" [0,1) ", [0]),
        ("3", [3]),
        ("6, 2,4", [6, 2, 4]),
    ],
)
def test_devices_are_a_range_or_a_list_in_its_order(text: str, expected: list[int]) -> None:
    assert parse_devices(text) == (expected, None)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[0,0)", "holds no device"),
        ("[4,2)", "holds no device"),
        ("[0,1025)", "no more than 1024 devices"),
        ("[0,99999999999999999999)", "must be a range"),
        ("(0,8)", "must be a range of devices like [0,8) or a list like 0,2,4"),
        ("[-1,8)", "must be a range"),
        ("[0,8", "must be a range"),
        ("[٠,٨)", "must be a range"),
        ("", "must be a range"),
        ("0..7", "must be a range"),
        ("1,2,1", "device 1 appears twice"),
        ("1024", "no more than 1024 devices"),
    ],
)
def test_anything_else_is_refused(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match="^[a-z]") as caught:
        parse_devices(text)
    assert fault in str(caught.value)
