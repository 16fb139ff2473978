"""Addresses of devices, from a stand-in for hccn_tool and from files like /etc/hccn.conf."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ended_processes import is_gone
from mindbatch.launch.hccn import LARGEST_CONF, ask_hccn_tool, read_hccn_conf
from mindbatch.launch.table_reader import RankTableError
from rank_tables import ANSWER, answers, executable, stand_in

SHORT = 0.3  # seconds that a hanging stand-in is waited for


def errors_of(ask: Callable[..., object], *arguments: object) -> list[str]:
    with pytest.raises(RankTableError) as caught:
        ask(*arguments)
    return [*caught.value.lines]


def test_an_ipv6_address_keeps_its_colons(tmp_path: Path) -> None:
    tool = stand_in(tmp_path / "bin", {0: ANSWER.format(" fd00::1:2 ")})
    assert ask_hccn_tool([0], str(tool)) == {0: "fd00::1:2"}


@pytest.mark.parametrize(
    ("answer", "code", "fault"),
    [
        ("", 0, "no line ipaddr:ADDRESS in its answer"),
        ("netmask:255.255.255.0\n", 0, 'no line ipaddr:ADDRESS in its answer: "netmask:255.255.255.0"'),
        ("10.0.0.3\n", 0, 'no line ipaddr:ADDRESS in its answer: "10.0.0.3"'),
        ("ipaddr:\n", 0, '"": not an IPv4 or IPv6 address'),
        ("ipaddr:0.0.0.0\n", 0, '"0.0.0.0": stands for no single device'),
        ("ipaddr:224.0.0.1\n", 0, '"224.0.0.1": stands for no single device'),
        ("ipaddr:10.0.0.300\n", 0, '"10.0.0.300": not an IPv4 or IPv6 address'),
        ("ipaddr:10.0.0.1/24\n", 0, '"10.0.0.1/24": not an IPv4 or IPv6 address'),
        ("ipaddr:\x1b[2J\n", 0, '"\\u001b[2J": not an IPv4 or IPv6 address'),
        ("\x00\x1b[2J\xff garbage", 0, 'no line ipaddr:ADDRESS in its answer: "\\u0000\\u001b[2J'),
        (ANSWER.format("10.0.0.1"), 3, 'failed with exit code 3: "ipaddr:10.0.0.1"'),
    ],
)
def test_an_answer_without_an_address_is_told(tmp_path: Path, answer: str, code: int, fault: str) -> None:
    tool = stand_in(tmp_path / "bin", {0: answer, 1: ANSWER.format("10.0.0.1")}, {0: code})
    first, *others = errors_of(ask_hccn_tool, [0, 1, 2], str(tool))
    assert first.startswith(f"{tool} -i 0 -ip -g: {fault}")
    assert others == [f'{tool} -i 2 -ip -g: failed with exit code 1: "no such device 2"']


def test_a_tool_that_hangs_is_killed_with_its_children_and_not_asked_again(tmp_path: Path) -> None:
    tool = executable(
        tmp_path / "hccn_tool", f"echo $2 >> {tmp_path}/asked\nsleep 1000 &\necho $! > {tmp_path}/pid\nwait"
    )
    assert errors_of(ask_hccn_tool, [0, 1, 2], str(tool), SHORT) == [
        f"{tool} -i 0 -ip -g: no answer in 0.3 s"
    ]
    assert (tmp_path / "asked").read_text() == "0\n"
    assert is_gone(int((tmp_path / "pid").read_text()))


def test_endless_output_is_cut(tmp_path: Path) -> None:
    tool = executable(tmp_path / "hccn_tool", "exec yes ipaddr")
    assert "failed with exit code" in errors_of(ask_hccn_tool, [0], str(tool), 60)[0]


def test_a_tool_that_is_not_there_or_cannot_be_run(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/nonexistent/interpreter\n")
    broken.chmod(0o755)
    plain = tmp_path / "plain"
    plain.write_text("")
    assert errors_of(ask_hccn_tool, [0], "no_such_tool") == ["no_such_tool: not found on the PATH"]
    assert errors_of(ask_hccn_tool, [0], str(plain)) == [f"{plain}: cannot be run"]
    assert errors_of(ask_hccn_tool, [0, 1], str(broken)) == [
        f"{broken} -i 0 -ip -g: cannot be run (No such file or directory)"
    ]


def test_no_shell_sees_the_name(tmp_path: Path) -> None:
    name = f"{tmp_path}/hccn_tool; touch {tmp_path}/broken_out; $(touch {tmp_path}/too)"
    assert errors_of(ask_hccn_tool, [0], name) == [f"{name}: cannot be run"]
    odd = stand_in(tmp_path / "a b;$(c)'d", answers(1))
    assert ask_hccn_tool([0], str(odd)) == {0: "192.168.0.100"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a b;$(c)'d"]


CONF = """\
# written by hccn_tool
address_0=192.168.100.101
netmask_0=255.255.255.0
 address_1 = fd00::1
address_15=192.168.100.115
gateway_0=192.168.100.1
address_x=nonsense
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "hccn.conf"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    return path


def conf_faults(tmp_path: Path, text: str, *devices: int) -> list[str]:
    path = written(tmp_path, text)
    return [fault.removeprefix(f"{path}") for fault in errors_of(read_hccn_conf, devices, path)]


def test_the_file_has_a_line_for_each_device(tmp_path: Path) -> None:
    found = read_hccn_conf([15, 0, 1], written(tmp_path, CONF))
    assert found == {15: "192.168.100.115", 0: "192.168.100.101", 1: "fd00::1"}


def test_what_is_wrong_in_the_file_is_told_with_its_line(tmp_path: Path) -> None:
    assert conf_faults(tmp_path, CONF, 0, 2, 3) == [": no line address_N=ADDRESS for N = 2, 3"]
    text = "address_0=x\naddress_1=10.0.0.1\naddress_1=10.0.0.1\naddress_1=10.0.0.2\naddress_9=x\n\udcff"
    assert conf_faults(tmp_path, text, 0, 1) == [
        " line 1: address_0=x: not an IPv4 or IPv6 address",
        " line 4: address_1=10.0.0.2: was 10.0.0.1 above",
    ]
    assert conf_faults(tmp_path, "#" * (LARGEST_CONF + 1), 0) == [": more than 1 MiB"]
    [long] = conf_faults(tmp_path, f"address_0={'1' * 5000}", 0)
    assert long.endswith(": not an IPv4 or IPv6 address")
    assert len(long) < 200
    assert errors_of(read_hccn_conf, [0], tmp_path) == [f"{tmp_path}: cannot be read (Is a directory)"]
    os.mkfifo(tmp_path / "pipe")
    assert "pipe: cannot be read" in errors_of(read_hccn_conf, [0], tmp_path / "pipe")[0]
