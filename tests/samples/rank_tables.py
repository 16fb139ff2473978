"""Rank tables and a stand-in for hccn_tool, for the tests of everything that reads or writes them."""

import json
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Document = dict[str, Any]
ANSWER = "ipaddr:{}\nnetmask:255.255.255.0\n"
"""What hccn_tool -ip -g says of a device, as its users show it."""


def plain_table(num_servers: int = 1, num_devices: int = 8) -> Document:
    """A version 1.0 table as MindFormers writes it, addresses 192.168.SERVER.10DEVICE."""
    servers = [
        {
            "server_id": f"10.0.0.{server + 1}",
            "device": [
                {
                    "device_id": str(device),
                    "device_ip": f"192.168.{server}.{100 + device}",
                    "rank_id": str(server * num_devices + device),
                }
                for device in range(num_devices)
            ],
            "host_nic_ip": "reserve",
        }
        for server in range(num_servers)
    ]
    count = str(num_servers)
    return {"version": "1.0", "server_count": count, "server_list": servers, "status": "completed"}


def modelarts_table(num_instances: int = 1, num_devices: int = 8) -> Document:
    """The same servers and devices as ModelArts writes them."""
    instances = [
        {
            "pod_name": f"job-{number}",
            "server_id": server["server_id"],
            "devices": [{key: each[key] for key in ("device_id", "device_ip")} for each in server["device"]],
        }
        for number, server in enumerate(plain_table(num_instances, num_devices)["server_list"])
    ]
    group = {
        "group_name": "job",
        "device_count": str(num_instances * num_devices),
        "instance_count": str(num_instances),
        "instance_list": instances,
    }
    return {"status": "completed", "group_count": "1", "group_list": [group]}


def mindspore_1_0_table(num_servers: int = 1, num_devices: int = 8) -> Document:
    """The same servers and devices as MindSpore 1.0's tools wrote them: an instance for each device."""
    instances = [
        {
            "devices": [{key: each[key] for key in ("device_id", "device_ip")}],
            "rank_id": each["rank_id"],
            "server_id": server["server_id"],
        }
        for server in plain_table(num_servers, num_devices)["server_list"]
        for each in server["device"]
    ]
    count = str(num_servers * num_devices)
    group = {
        "device_num": count,
        "server_num": str(num_servers),
        "group_name": "",
        "instance_count": count,
        "instance_list": instances,
    }
    return {
        "board_id": "0x0000",
        "chip_info": "910",
        "deploy_mode": "lab",
        "group_count": "1",
        "group_list": [group],
        "para_plane_nic_location": "device",
        "para_plane_nic_name": [f"eth{device}" for device in range(num_devices)],
        "para_plane_nic_num": str(num_devices),
        "status": "completed",
    }


def super_pod_table(num_pods: int = 2, num_servers: int = 2, num_devices: int = 4) -> Document:
    """A version 1.2 table with every key that HCCL documents; `num_servers` in each supernode."""
    servers, pods = [], []
    for pod in range(num_pods):
        names = [f"node_{pod * num_servers + server}" for server in range(num_servers)]
        pods.append({"super_pod_id": str(pod), "server_list": [{"server_id": name} for name in names]})
        for server, name in enumerate(names):
            first = (pod * num_servers + server) * num_devices
            devices = [_die(pod, server, die, first, num_devices) for die in range(num_devices)]
            servers.append({"server_id": name, "host_ip": f"172.16.{pod}.{server + 1}", "device": devices})
    return {
        "status": "completed",
        "version": "1.2",
        "server_count": str(len(servers)),
        "server_list": servers,
        "super_pod_list": pods,
    }


def _die(pod: int, server: int, die: int, first: int, num_devices: int) -> dict[str, str]:
    """A device whose backup is the other die of its NPU."""
    return {
        "device_id": str(die),
        "super_device_id": str(server * num_devices + die),
        "device_ip": f"192.168.{pod * 16 + server}.{die + 1}",
        "device_port": "16666",
        "backup_device_ip": f"192.168.{pod * 16 + server}.{(die ^ 1) + 1}",
        "backup_device_port": "16667",
        "host_port": str(17000 + die),
        "rank_id": str(first + die),
    }


def write_json(path: Path, document: Any) -> Path:
    """`document` in a file."""
    path.write_text(json.dumps(document, indent=4))
    return path


def stand_in(folder: Path, answers: Mapping[int, str], codes: Mapping[int, int] | None = None) -> Path:
    """An executable hccn_tool that notes its arguments in `asked` and gives the recorded answers.

    A device without an answer gets exit code 1 and a line that says so.
    """
    folder.mkdir(exist_ok=True)
    for device, answer in answers.items():
        (folder / f"{device}.txt").write_text(answer)
    cases = "\n".join(f"  {device}) code={code} ;;" for device, code in (codes or {}).items())
    here = shlex.quote(str(folder))
    return executable(
        folder / "hccn_tool",
        f'PATH=/usr/bin:/bin\necho "$@" >> {here}/asked\ncode=0\ncase $2 in\n{cases}\n  *) ;;\nesac\n'
        f'cat {here}/"$2.txt" 2>/dev/null || {{ echo "no such device $2"; exit 1; }}\nexit $code',
    )


def executable(path: Path, script: str) -> Path:
    """A shell script that can be run."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    os.chmod(path, 0o755)
    return path


def answers(num_devices: int, first: int = 0) -> dict[int, str]:
    """Good answers for so many devices, with the addresses of `plain_table`."""
    return {
        device: ANSWER.format(f"192.168.0.{100 + device}") for device in range(first, first + num_devices)
    }
