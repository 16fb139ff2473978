"""What hccl_tools.py refuses: flags, answers of hccn_tool and lines of hccn.conf; nothing is written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import hccl_tools
from rank_tables import answers, executable, stand_in


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    stand_in(tmp_path / "bin", answers(8))
    return folder


def _refused(here: Path, capsys: pytest.CaptureFixture[str], *flags: str, expected: int = 1) -> str:
    """What is told of a refusal: whole lines that can be printed, and no file."""
    where = [f"--hccn_tool={here.parent / 'bin/hccn_tool'}", f"--hccn_conf={here.parent / 'hccn.conf'}"]
    code = hccl_tools.main([*where, "--hccn_timeout=5", "--server_ip=10.0.0.1", *flags])
    out, err = capsys.readouterr()
    assert (code, out, os.listdir(here)) == (expected, "", []), err
    assert err.endswith("\n")
    assert all(line.startswith("hccl_tools.py: ") and line.isprintable() for line in err.split("\n")[:-1])
    return err


RANGE = "must be a range of devices like [0,8)"


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--device_num=", RANGE),
        ("--device_num=8", RANGE),
        ("--device_num=[0,8", RANGE),
        ("--device_num=(0,8)", RANGE),
        ("--device_num=[-1,8)", RANGE),
        ("--device_num=[0,8)\nx", RANGE),
        ("--device_num=[\u0660,\u0668)", RANGE),
        ("--device_num=[0,9999999)", RANGE),
        ("--device_num=[4,4)", "holds no device"),
        ("--device_num=[5,2)", "holds no device"),
        ("--device_num=[0,2000)", "no more than 1024 devices"),
        ("--device_num=[0,9)", "must be within [0,8); give --device_num_per_node 9"),
        ("--device_num_per_node=0", "must be within [0,0)"),
        ("--visible_devices=", "must be a list of devices"),
        ("--visible_devices=0;1", "must be a list of devices"),
        ("--visible_devices=0,1,2,3,4,5,6,6", "device 6 appears twice"),
        ("--visible_devices=0,1", "device 2, 3, 4, 5, 6, 7: not there; 2 visible devices"),
        ("--visible_devices=0,1,2,3,4,5,6,5000", "no more than 1024 devices"),
        ("--server_ip=../x", "must have no spaces, slashes or control characters"),
        ("--server_ip=a\nb", "must have no spaces, slashes or control characters"),
        ("--server_ip=a\x1b[2J", "must have no spaces, slashes or control characters"),
        (f"--server_ip={'a' * 300}", "64"),
        ("--hccn_timeout=-1", "--hccn_timeout"),
        ("--hccn_timeout=nan", "--hccn_timeout"),
        ("--hccn_timeout=inf", "--hccn_timeout"),
    ],
)
def test_flags(here: Path, capsys: pytest.CaptureFixture[str], flag: str, said: str) -> None:
    assert said in _refused(here, capsys, flag, expected=2)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("", "no line ipaddr:ADDRESS in its answer"),
        ("192.168.0.1\n", "no line ipaddr:ADDRESS in its answer"),
        ("ipaddr:\n", "not an IPv4 or IPv6 address"),
        ("ipaddr:192.168.0.999\n", "not an IPv4 or IPv6 address"),
        ("ipaddr:192.168.0.1/24\n", "not an IPv4 or IPv6 address"),
        ("ipaddr:0.0.0.0\n", "stands for no single device"),
        ("ipaddr:224.0.0.1\n", "stands for no single device"),
        ("ipaddr:\x1b[2J\n", "not an IPv4 or IPv6 address"),
        ("\x1b]0;title\x07 no device\n", "no line ipaddr:ADDRESS in its answer"),
        ("ipaddr:192.168.0.100\n", '"192.168.0.100" is that of'),
    ],
)
def test_answers_of_hccn_tool(here: Path, capsys: pytest.CaptureFixture[str], answer: str, said: str) -> None:
    (here.parent / "bin/1.txt").write_text(answer)
    assert said in _refused(here, capsys, "--device_num=[0,2)")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("exit 3", "failed with exit code 3"),
        ("kill -9 $$", "failed with exit code -9"),
        ("printf 'ipaddr:\\377\\376\\n'", "not an IPv4 or IPv6 address"),
        ("while :; do echo ipaddr:192.168.0.1; done", "failed with exit code -9"),
        ("exec sleep 60", "no answer in 0.2 s"),
    ],
)
def test_a_tool_that_fails(here: Path, capsys: pytest.CaptureFixture[str], script: str, said: str) -> None:
    executable(here.parent / "bin/hccn_tool", f"PATH=/usr/bin:/bin\n{script}")
    seconds = "--hccn_timeout=0.2" if "sleep" in script else "--hccn_timeout=5"
    assert said in _refused(here, capsys, "--device_num=[0,1)", seconds)


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        (b"", "no line address_N=ADDRESS for N = 0, 1"),
        (b"address_0=192.168.0.1\n", "no line address_N=ADDRESS for N = 1"),
        (b"address_0=192.168.0.1\naddress_0=192.168.0.2\naddress_1=192.168.0.3\n", "line 2: address_0="),
        (b"address_0=192.168.0.1\naddress_1=192.168.0.1\n", '"192.168.0.1" is that of'),
        (b"address_0=nonsense\naddress_1=0.0.0.0\n", "not an IPv4 or IPv6 address"),
        (b"address_0=nonsense\naddress_1=0.0.0.0\n", "stands for no single device"),
        (b"address_0=\x1b[2Jx\naddress_1=\xff\n", "line 2: address_1="),
        (b"address_0=" + b"1" * 5000 + b"\n", "not an IPv4 or IPv6 address"),
        (b"#" * ((1 << 20) + 1), "more than 1 MiB"),
    ],
)
def test_lines_of_the_file(here: Path, capsys: pytest.CaptureFixture[str], conf: bytes, said: str) -> None:
    executable(here.parent / "bin/hccn_tool", "exit 1")
    (here.parent / "hccn.conf").write_bytes(conf)
    assert said in _refused(here, capsys, "--device_num=[0,2)")


def test_a_pipe_for_the_file(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    executable(here.parent / "bin/hccn_tool", "exit 1")
    os.mkfifo(here.parent / "hccn.conf")
    assert "hccn.conf: cannot be read" in _refused(here, capsys, "--device_num=[0,2)")
