"""tools/hccl_tools.py and merge_hccl.py as MindFormers' users run them, with nothing installed."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import hccl_tools
from rank_tables import Document, answers, plain_table, stand_in, write_json

TOOLS = Path(__file__).resolve().parents[3] / "tools"


@dataclass
class Tool:
    """Runs the tool in a folder of its own; `found` are the devices that its hccn_tool knows."""

    here: Path

    def run(
        self, *flags: str, found: dict[int, str] | None = None, conf: str = ""
    ) -> "subprocess.CompletedProcess[str]":
        stand_in(self.here.parent / "bin", answers(8) if found is None else found)
        (self.here.parent / "hccn.conf").write_text(conf)
        path = f"{self.here.parent / 'bin'}:{os.environ['PATH']}"
        command = [sys.executable, "-S", str(TOOLS / "hccl_tools.py"), *flags]
        return subprocess.run(
            [*command, "--hccn_conf", "../hccn.conf"],
            cwd=self.here,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )

    def tables(self) -> dict[str, str]:
        """What it has written, by file name."""
        return {path.name: path.read_text() for path in self.here.iterdir()}


@pytest.fixture
def tool(tmp_path: Path) -> Tool:
    (tmp_path / "here").mkdir()
    return Tool(tmp_path / "here")


def entries(text: str) -> list[tuple[str, str, str]]:
    (server,) = json.loads(text)["server_list"]
    return [(each["rank_id"], each["device_id"], each["device_ip"]) for each in server["device"]]


def test_the_table_of_eight_devices_byte_for_byte(tool: Tool) -> None:
    done = tool.run("--server_ip", "10.0.0.1")
    assert (done.returncode, done.stderr) == (0, "")
    assert tool.tables() == {"hccl_8p_01234567_10.0.0.1.json": json.dumps(plain_table(), indent=4)}
    assert done.stdout.splitlines()[1] == "0     10.0.0.1  0       192.168.0.100"
    assert done.stdout.splitlines()[-1] == (
        f"Completed: the rank table is in: {tool.here}/hccl_8p_01234567_10.0.0.1.json"
    )


def test_a_square_bracket_gives_what_it_always_gave_and_says_so(tool: Tool) -> None:
    (tool.here / "hccl_4p_0123_a.json").write_text("an older table")
    done = tool.run("--server_ip=a", "--device_num", "[0,4]")
    assert len(entries(tool.tables()["hccl_4p_0123_a.json"])) == 4
    assert [*tool.tables()] == ["hccl_4p_0123_a.json"]
    assert done.stderr == (
        "hccl_tools.py: --device_num [0,4]: the end is exclusive whatever the bracket, as in "
        "run_dist_gen.sh: devices 0 to 3; write [0,4) for these, [0,5) with device 4\n"
    )


def test_a_range_may_cross_four(tool: Tool) -> None:
    done = tool.run("--server_ip=a", "--device_num", "[3,6)")
    assert [device for _, device, _ in entries(tool.tables()["hccl_3p_345_a.json"])] == ["3", "4", "5"]
    assert done.returncode == 0
    assert "servers in which these are groups need complete groups" in done.stderr


def test_visible_devices_are_asked_for_by_their_physical_ids(tool: Tool) -> None:
    flags = ("--server_ip=a", "--device_num", "[0,4)", "--visible_devices", "4,5,6,7")
    done = tool.run(*flags, found=answers(4, first=4))
    assert (done.returncode, done.stderr) == (0, "")
    expected = [(str(rank), str(4 + rank), f"192.168.0.{104 + rank}") for rank in range(4)]
    assert entries(tool.tables()["hccl_4p_0123_a.json"]) == expected


def test_the_file_is_read_where_hccn_tool_fails(tool: Tool) -> None:
    conf = "address_0=10.9.0.1\naddress_1=10.9.0.2\n"
    done = tool.run("--server_ip=a", "--device_num=[0,2)", found={0: "ipaddr:10.8.0.1\n"}, conf=conf)
    assert entries(tool.tables()["hccl_2p_01_a.json"]) == [("0", "0", "10.9.0.1"), ("1", "1", "10.9.0.2")]
    assert done.stderr == (
        'hccl_tools.py: hccn_tool -i 1 -ip -g: failed with exit code 1: "no such device 1"; '
        "the addresses are those of ../hccn.conf\n"
    )


def test_without_addresses_nothing_is_written(tool: Tool) -> None:
    done = tool.run("--server_ip=a", "--device_num=[0,2)", found={0: "nonsense"})
    assert (done.returncode, done.stdout, tool.tables()) == (1, "", {})
    assert done.stderr.splitlines() == [
        'hccl_tools.py: hccn_tool -i 0 -ip -g: no line ipaddr:ADDRESS in its answer: "nonsense"',
        'hccl_tools.py: hccn_tool -i 1 -ip -g: failed with exit code 1: "no such device 1"',
        "hccl_tools.py: ../hccn.conf: no line address_N=ADDRESS for N = 0, 1",
    ]


def test_every_fault_in_the_flags_is_a_line(tool: Tool) -> None:
    done = tool.run("--device_num", "[0,16)", "--server_ip", "../x", "--visible_devices", "1,1")
    assert (done.returncode, done.stdout, tool.tables()) == (2, "", {})
    assert done.stderr.splitlines() == [
        "hccl_tools.py: --device_num [0,16): must be within [0,8); "
        "set --device_num_per_node 16 for a larger server",
        "hccl_tools.py: --visible_devices 1,1: device 1 appears twice",
        "hccl_tools.py: --server_ip ../x: must have no spaces, slashes or control characters",
    ]


RANGE = "must be a range of devices like [0,8)"


@pytest.mark.parametrize(
    ("flag", "fault"),
    [
        ("--device_num=", RANGE),
        ("--device_num=8", RANGE),
        ("--device_num=[0,8)\nx", RANGE),
        ("--device_num=[4,4)", "holds no device"),
        ("--device_num_per_node=0", "must be within [0,0)"),
        ("--visible_devices=", "must be a list of devices"),
        (
            "--visible_devices=0,1",
            "device 2, 3, 4, 5, 6, 7: not there; 2 visible devices are numbered 0 to 1",
        ),
        ("--visible_devices=0,1,2,3,4,5,6,5000", "no more than 1024 devices"),
        ("--server_ip=a\nb", "must have no spaces, slashes or control characters"),
        ("--server_ip=a\x1b[2J", "must have no spaces, slashes or control characters"),
        (f"--server_ip={'a' * 300}", "64"),
        ("--hccn_timeout=-1", "--hccn_timeout"),
        ("--hccn_timeout=nan", "--hccn_timeout"),
        ("--hccn_timeout=inf", "--hccn_timeout"),
    ],
)
def test_a_flag_is_refused_in_lines_that_can_be_printed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flag: str,
    fault: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    code = hccl_tools.main(["--hccn_tool=/nowhere", "--hccn_conf=/nowhere", "--server_ip=10.0.0.1", flag])
    out, err = capsys.readouterr()
    assert (code, out, os.listdir(tmp_path)) == (2, "", [])
    assert fault in err
    assert err.endswith("\n")
    assert all(line.startswith("hccl_tools.py: ") and line.isprintable() for line in err.split("\n")[:-1])


def test_two_devices_with_one_address_are_refused(tool: Tool) -> None:
    same = "ipaddr:10.0.0.1\n"
    done = tool.run("--server_ip=a", "--device_num=[0,2)", found={0: same, 1: same})
    assert (done.returncode, tool.tables()) == (1, {})
    assert 'device_ip: "10.0.0.1" is that of server_list[0].device[0].device_ip, too' in done.stderr


def merge(here: Path, *files: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-S", str(TOOLS / "merge_hccl.py"), *files]
    return subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)


def single(number: int, num_devices: int = 8) -> Document:
    """The table that server `number` writes of itself."""
    table = plain_table(number + 1, num_devices)
    server = table["server_list"][number]
    for place, device in enumerate(server["device"]):
        device["rank_id"] = str(place)
    return {**table, "server_count": "1", "server_list": [server]}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    for number in range(3):
        write_json(tmp_path / f"{number}.json", single(number))
    return tmp_path


def test_the_merged_table_byte_for_byte(here: Path) -> None:
    done = merge(here, "0.json", "1.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert (here / "hccl_2s_16p.json").read_text() == json.dumps(plain_table(2), indent=4)
    assert done.stdout.splitlines()[-1] == f"Completed: the rank table is in: {here}/hccl_2s_16p.json"


def test_the_order_of_the_arguments_is_that_of_the_ranks(here: Path) -> None:
    assert merge(here, "2.json", "0.json", "1.json").returncode == 0
    servers = json.loads((here / "hccl_3s_24p.json").read_text())["server_list"]
    first_ranks = [(server["server_id"], server["device"][0]["rank_id"]) for server in servers]
    assert first_ranks == [("10.0.0.3", "0"), ("10.0.0.1", "8"), ("10.0.0.2", "16")]


def test_merged_tables_can_be_merged_and_keep_unknown_keys(here: Path) -> None:
    third = single(2)
    third["server_list"][0]["container_ip"] = "172.17.0.2"
    write_json(here / "2.json", third)
    merge(here, "0.json", "1.json")
    done = merge(here, "hccl_2s_16p.json", "2.json")
    expected = plain_table(3)
    expected["server_list"][2]["container_ip"] = "172.17.0.2"
    assert json.loads((here / "hccl_3s_24p.json").read_text()) == expected
    assert (
        done.stderr
        == "merge_hccl.py: 2.json: server_list[0].container_ip: a key that HCCL does not document\n"
    )


def test_servers_of_different_sizes_merge_as_ever_and_it_is_said(here: Path) -> None:
    write_json(here / "1.json", single(1, 4))
    done = merge(here, "0.json", "1.json")
    assert done.returncode == 0
    assert done.stderr == 'merge_hccl.py: server_list[1].device: 4 devices, and 8 on server "10.0.0.1"\n'
    assert (here / "hccl_2s_12p.json").is_file()


def test_faulty_files_are_named_with_all_their_faults(here: Path) -> None:
    broken = single(1)
    broken["server_list"][0]["device"][0]["rank_id"] = 0
    write_json(here / "1.json", broken)
    (here / "2.json").write_text("{")
    done = merge(here, "0.json", "1.json", "2.json", "3.json")
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert [line.split(": ")[1] for line in lines] == ["1.json", "2.json", "3.json"]
    assert all(line.isprintable() for line in lines)
    assert "Traceback" not in done.stderr
    assert merge(here).returncode == 2
