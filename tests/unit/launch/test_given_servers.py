"""Servers written down in a configuration."""

from typing import Any

import pytest

from mindbatch.launch.given_servers import given_servers
from mindbatch.launch.rank_table import Device, Server

SMALL = {"server_id": "10.0.0.1", "device_ips": ["10.1.0.1", "10.1.0.2"]}


class Given:
    """What was read, and what is wrong with it."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.notes: list[str] = []

    def read(self, value: object) -> list[Server]:
        return given_servers(value, "reserve", self.faults, self.notes)


def faults(*servers: Any) -> list[str]:
    given = Given()
    given.read([*servers])
    return given.faults


def test_devices_count_up_from_0_or_are_given() -> None:
    given = Given()
    first, second = given.read([SMALL, {**SMALL, "server_id": 7, "devices": "[4,6]", "host_ip": "10.0.0.9"}])
    assert first.devices == (Device(0, device_ip="10.1.0.1"), Device(1, device_ip="10.1.0.2"))
    assert [device.device_id for device in second.devices] == [4, 5]
    assert (second.server_id, second.host_ip) == ("7", "10.0.0.9")
    assert given.faults == []
    assert len(given.notes) == 1
    assert given.notes[0].startswith("servers[1].devices=[4,6]: the end is exclusive")


def test_every_key_reaches_its_device() -> None:
    lists = {
        "super_device_ids": [8, 9],
        "device_ports": [16666, 16666],
        "host_ports": [17000, 17001],
        "backup_device_ips": ["10.1.0.2", "10.1.0.1"],
        "backup_device_ports": [16667, 16667],
    }
    given = Given()
    (server,) = given.read([{**SMALL, **lists, "super_pod_id": "p"}])
    assert server.super_pod_id == "p"
    assert server.devices[1] == Device(
        1,
        device_ip="10.1.0.2",
        super_device_id=9,
        device_port=16666,
        host_port=17001,
        backup_device_ip="10.1.0.1",
        backup_device_port=16667,
    )


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
    (fault,) = faults(server)
    assert fault.startswith(expected)


def test_all_faults_at_once() -> None:
    assert len(faults({**SMALL, "x": 1, "devices": "z"}, SMALL, 3)) == 3
    given = Given()
    for nothing in ([], {}, "x", None):
        assert given.read(nothing) == []
    assert len(given.faults) == 4
