"""The task rank-table through the command line: writing, checking and merging."""

import json
from pathlib import Path
from typing import Any

import pytest

from mindbatch import cli
from mindbatch.config.compose import compose_task
from mindbatch.io.errors import ConfigError
from mindbatch.launch import hccn
from mindbatch.tasks.rank_table import RankTableConfig
from mindbatch.tasks.registry import TASKS
from rank_tables import answers, plain_table, stand_in, super_pod_table, write_json

SERVERS = """servers=[{server_id: 10.0.0.1, device_ips: [10.1.0.1, 10.1.0.2]}, \
{server_id: 10.0.0.2, device_ips: [10.1.0.3, 10.1.0.4]}]"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, on a server without hccn_tool that is called 10.0.0.1."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(hccn.socket, "gethostbyname", lambda name: "10.0.0.1")
    return folder


@pytest.fixture
def tool(tmp_path: Path) -> str:
    """The option that names a stand-in for hccn_tool with 16 devices."""
    return f"hccn_tool={stand_in(tmp_path / 'bin', answers(16))}"


def run(*arguments: str) -> int:
    return cli.main(["rank-table", *arguments])


def faults(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> list[str]:
    assert run(*arguments) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


def written(here: Path) -> dict[str, Any]:
    return {path.name: json.loads(path.read_text()) for path in here.iterdir()}


def test_the_table_of_this_server(here: Path, tool: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tool) == 0
    assert written(here) == {"hccl_8p_01234567_10.0.0.1.json": plain_table()}
    captured = capsys.readouterr()
    assert captured.err == ""
    lines = captured.out.splitlines()
    assert lines[0].split() == ["rank", "server", "device", "address"]
    assert lines[-1] == "hccl_8p_01234567_10.0.0.1.json: written: version 1.0, 8 ranks on 1 server"


def test_a_square_bracket_is_exclusive_and_said(
    here: Path, tool: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tool, "devices=[0,8]") == 0
    assert written(here) == {"hccl_8p_01234567_10.0.0.1.json": plain_table()}
    assert capsys.readouterr().err.startswith("mindbatch: devices=[0,8]: the end is exclusive whatever the ")
    assert run(tool, "devices=[0,8]", "num_ranks=9", "output.file=x") == 1
    assert "x" not in written(here)


def test_devices_visible_devices_and_the_name(here: Path, tool: str) -> None:
    assert run(tool, "devices=0,3", "visible_devices=9,8,7,6", "server_id=node-1", "output.file=t.json") == 0
    (server,) = written(here)["t.json"]["server_list"]
    assert server["server_id"] == "node-1"
    assert [(each["device_id"], each["device_ip"]) for each in server["device"]] == [
        ("9", "192.168.0.109"),
        ("6", "192.168.0.106"),
    ]


def test_a_supernode(here: Path, tool: str) -> None:
    options = ("version=1.2", "devices=[0,2)", "super_device_ids=40,41", "super_pod_id=7", "host_ip=10.0.0.9")
    assert run(tool, *options) == 0
    assert written(here)["hccl_2p_01_10.0.0.1.json"] == {
        "version": "1.2",
        "server_count": "1",
        "server_list": [
            {
                "server_id": "10.0.0.1",
                "host_ip": "10.0.0.9",
                "device": [
                    {
                        "device_id": str(place),
                        "super_device_id": str(40 + place),
                        "device_ip": f"192.168.0.{100 + place}",
                        "rank_id": str(place),
                    }
                    for place in range(2)
                ],
            }
        ],
        "super_pod_list": [{"super_pod_id": "7", "server_list": [{"server_id": "10.0.0.1"}]}],
        "status": "completed",
    }


def test_the_addresses_of_the_file(here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conf = tmp_path / "hccn.conf"
    conf.write_text("address_0=10.9.0.1\n")
    assert run("devices=[0,1)", f"hccn_conf={conf}") == 0
    assert f"hccn_tool: not found on the PATH; the addresses are those of {conf}" in capsys.readouterr().err
    assert run("devices=[0,1)", f"hccn_conf={conf}", "source=hccn_conf") == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "was there already, with the same content" in captured.out
    assert faults(capsys, "devices=[0,2)", f"hccn_conf={conf}", "source=hccn_conf", code=1)[0].endswith(
        "no line address_N=ADDRESS for N = 1"
    )
    assert faults(capsys, "source=hccn_tool", code=1)[0] == "mindbatch: hccn_tool: not found on the PATH"


def test_given_servers(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(SERVERS, "output.format=json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["file"] == "hccl_2s_4p.json"
    assert found["table"] == written(here)["hccl_2s_4p.json"]
    assert run("check", "hccl_2s_4p.json", "num_ranks=4") == 0


def test_given_servers_pass_what_a_check_looks_for(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert faults(capsys, SERVERS.replace("10.1.0.3", "10.1.0.1"), code=1) == [
        'mindbatch: server_list[1].device[0].device_ip: "10.1.0.1" is that of '
        "server_list[0].device[0].device_ip, too"
    ]
    uneven = SERVERS.replace("10.1.0.3, ", "")
    assert "1 devices, and 2 on server" in faults(capsys, uneven, code=1)[0]
    assert written(here) == {}
    assert run(uneven, "uneven=true") == 0


def test_given_servers_may_stand_in_a_file(here: Path, tmp_path: Path) -> None:
    whole = super_pod_table()
    pods = {
        each["server_id"]: pod["super_pod_id"]
        for pod in whole["super_pod_list"]
        for each in pod["server_list"]
    }
    numbers = {
        "super_device_ids": "super_device_id",
        "device_ports": "device_port",
        "host_ports": "host_port",
    }
    texts = {"device_ips": "device_ip", "backup_device_ips": "backup_device_ip"}
    numbers["backup_device_ports"] = "backup_device_port"
    servers = [
        {
            "server_id": server["server_id"],
            "host_ip": server["host_ip"],
            "super_pod_id": pods[server["server_id"]],
        }
        | {key: [int(each[name]) for each in server["device"]] for key, name in numbers.items()}
        | {key: [each[name] for each in server["device"]] for key, name in texts.items()}
        for server in whole["server_list"]
    ]
    config = write_json(tmp_path / "cluster.yaml", {"version": "1.2", "servers": servers})
    assert run("--config", str(config), "output.file=t.json") == 0
    assert written(here)["t.json"] == whole


def test_a_file_with_something_else_is_written_over_on_demand(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("t.json").write_text("{}")
    assert faults(capsys, SERVERS, "output.file=t.json") == [
        "mindbatch: output.file=t.json: holds something else; output.replace=true writes over it"
    ]
    assert written(here) == {"t.json": {}}
    assert run(SERVERS, "output.file=t.json", "output.replace=true") == 0
    assert written(here)["t.json"]["server_count"] == "2"


def test_tables_are_merged(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, name in enumerate("ab"):
        table = plain_table(2)
        table |= {"server_count": "1", "server_list": [table["server_list"][number]]}
        write_json(here / f"{name}.json", table)
    assert run("merge", "a.json", "b.json") == 0
    assert written(here)["hccl_2s_16p.json"] == plain_table(2)
    capsys.readouterr()
    assert faults(capsys, "merge", "a.json", "a.json", code=1)[-1] == (
        'mindbatch: a.json: server "10.0.0.1": is in a.json, too'
    )


def test_a_check_names_every_file_and_fault(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_json(here / "a.json", plain_table())
    other = plain_table()
    other["server_list"][0]["device"][1]["device_ip"] = "192.168.0.100"
    other["server_list"][0]["container_ip"] = "x"
    write_json(here / "b.json", other)
    assert run("check", "a.json") == 0
    assert capsys.readouterr().out == "a.json: correct: version 1.0, 8 ranks on 1 server\n"
    assert run("check", "a.json", "b.json") == 1
    assert capsys.readouterr().out.splitlines() == [
        "a.json: correct: version 1.0, 8 ranks on 1 server",
        'b.json: server_list[0].device[1].device_ip: "192.168.0.100" is that of '
        "server_list[0].device[0].device_ip, too",
        'b.json: server_list[0].device[1].device_ip: "192.168.0.100"; "192.168.0.101" in a.json',
        'b.json: server_list[0].container_ip: "x"; missing in a.json',
        "b.json: note: server_list[0].container_ip: a key that HCCL does not document",
    ]
    assert run("check", "a.json", "b.json", "output.format=json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["is_correct"] is False
    assert found["files"][0] == {
        "file": "a.json",
        "is_correct": True,
        "version": "1.0",
        "servers": 1,
        "ranks": 8,
        "errors": [],
        "notes": [],
    }
    assert [len(found["files"][1][key]) for key in ("errors", "notes")] == [3, 1]


def test_words_are_the_action_and_then_the_files(here: Path) -> None:
    for name in ("check", "x=1", "${y}"):
        write_json(here / name, plain_table())
    config = compose_task(
        TASKS["rank-table"], ["check", "check", f"{here}/x=1", "num_ranks=8", "${y}"]
    ).finish()
    assert isinstance(config, RankTableConfig)
    assert (config.action, config.num_ranks) == ("check", 8)
    assert config.files == ("check", f"{here}/x=1", "${y}")
    with pytest.raises(ConfigError) as caught:
        compose_task(TASKS["rank-table"], ["check", "check", "files=[a]", "action=check"]).finish()
    assert caught.value.lines == (
        "action: given twice, as check and as action=",
        "files: given twice, as check and as files=",
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["chek", "a.json"], "action=chek: must be one of write, check, merge; did you mean check?"),
        (["check"], "files: must be given: mindbatch rank-table check FILE ..."),
        (["check", "a.jso"], "files=a.jso: no such file; did you mean a.json?"),
        (["check", "a.json", "devices=0"], "devices=0: has no effect with action=check; remove it"),
        (["merge", "a.json", "version=1.2"], "version=1.2: has no effect with action=merge; remove it"),
        (
            ["check", "a.json", "output.file=x"],
            "output.file=x: has no effect with action=check; remove it",
        ),
        (
            ["write", "a.json"],
            "files: not read to write a table; mindbatch rank-table check FILE ... or merge ",
        ),
        (
            [SERVERS, "devices=0"],
            "devices=0: has no effect with servers=[",
        ),
        (["super_pod_id=3"], "super_pod_id=3: has no effect with version=1.0; set version=1.2 or remove it"),
        (["version=1.2"], "super_device_ids: must be given in version 1.2: a number for each device, like "),
        (["version=1.2", "super_device_ids=1_0"], "super_device_ids: must be given in version 1.2"),
        (["version=1.2", "super_device_ids=1,2"], "super_device_ids: 2 for 8 devices; give one for each"),
        (["version=1.1"], "version=1.1: must be one of 1.0, 1.2"),
        (["devices=[4,4)"], "devices=[4,4): holds no device"),
        (["visible_devices=1"], "visible_devices=1: device 1, 2, 3, 4, 5, 6, 7: not there"),
        (["server_id=a/b"], "server_id=a/b: must have no spaces, slashes or control characters"),
        (["servers=[]"], "servers: must be a list like [{server_id: 10.0.0.1, device_ips: [10.1.0.1]}]"),
        (["output.file=no/t.json"], "output.file=no/t.json: the folder no does not exist"),
        (["device=0"], "device: unknown key; did you mean devices?"),
        (["num_ranks=0"], "num_ranks=0: must be a whole number, at least 1"),
    ],
)
def test_each_mistake_is_one_line(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    write_json(here / "a.json", plain_table())
    (fault,) = faults(capsys, *arguments)
    assert fault.startswith(f"mindbatch: {expected}")
    assert [*written(here)] == ["a.json"]


def test_a_server_that_has_no_address(
    monkeypatch: pytest.MonkeyPatch, tool: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(name: str) -> str:
        raise OSError

    monkeypatch.setattr(hccn.socket, "gethostname", lambda: "box")
    monkeypatch.setattr(hccn.socket, "gethostbyname", fail)
    assert faults(capsys, tool) == ["mindbatch: server_id: must be given; the host name box has no address"]
    monkeypatch.setattr(hccn.socket, "gethostbyname", lambda name: "127.0.1.1")
    assert run(tool) == 0
    assert "127.0.1.1 is what every server calls itself" in capsys.readouterr().err


def test_a_bad_host_ip_is_refused_before_anything_is_written(
    here: Path, tool: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert faults(capsys, tool, "host_ip=nonsense") == [
        "mindbatch: host_ip=nonsense: not an IPv4 or IPv6 address"
    ]
    assert written(here) == {}
