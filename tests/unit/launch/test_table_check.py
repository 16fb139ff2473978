"""Several files that hold, or should hold, the same rank table."""

from pathlib import Path

import pytest

from mindbatch.launch.table_files import MOST_LINES, check_files
from rank_tables import Document, plain_table, super_pod_table, write_json


@pytest.fixture
def first(tmp_path: Path) -> Path:
    return write_json(tmp_path / "a.json", plain_table(2))


def beside(first: Path, document: Document) -> list[str]:
    """The faults of a second file beside the first."""
    checked = check_files([first, write_json(first.with_name("b.json"), document)])
    assert checked[0].is_correct
    return [fault.replace(f"{first.parent}/", "") for fault in checked[1].faults]


def test_copies_are_the_same_whatever_their_layout(first: Path) -> None:
    copy = plain_table(2)
    copy = {key: copy[key] for key in reversed(copy)}
    assert beside(first, copy) == []


def test_every_difference_is_named(first: Path) -> None:
    other = plain_table(2)
    other["server_list"][1]["device"][3]["device_ip"] = "10.9.9.9"
    other["server_list"][0]["container_ip"] = "10.9.9.8"
    other["server_list"][1].pop("host_nic_ip")
    assert beside(first, other) == [
        'server_list[0].container_ip: "10.9.9.8"; missing in a.json',
        'server_list[1].device[3].device_ip: "10.9.9.9"; "192.168.1.103" in a.json',
        'server_list[1].host_nic_ip: missing; "reserve" in a.json',
    ]


def test_a_part_that_is_missing_is_one_line(first: Path) -> None:
    assert beside(first, plain_table(1)) == [
        'server_count: "1"; "2" in a.json',
        "server_list: a list of 1; a list of 2 in a.json",
    ]


def test_tables_of_other_servers_are_one_line(first: Path) -> None:
    assert beside(first, super_pod_table()) == [
        "has none of the servers of a.json; all ranks must read the same table "
        "(mindbatch rank-table merge puts tables together)"
    ]


def test_a_file_that_cannot_be_read_does_not_keep_the_others_from_being_compared(tmp_path: Path) -> None:
    broken = tmp_path / "0.json"
    broken.write_text("{")
    same, other = plain_table(), plain_table()
    other["server_list"][0]["device"][0]["device_ip"] = "10.9.9.9"
    paths = [broken, write_json(tmp_path / "1.json", same), write_json(tmp_path / "2.json", other)]
    checked = check_files([*paths, tmp_path / "3.json"])
    assert [len(each.faults) for each in checked] == [1, 0, 1, 1]
    assert checked[3].faults == ["cannot be read (No such file or directory)"]


def test_the_number_of_ranks_can_be_asked_for(first: Path) -> None:
    assert check_files([first], 16)[0].is_correct
    assert check_files([first], 8)[0].faults == ["has 16 ranks; num_ranks=8 is asked for"]


def test_many_faults_are_counted(tmp_path: Path) -> None:
    table = plain_table(1, 1000)
    for device in table["server_list"][0]["device"]:
        device["device_ip"] = "x"
    (checked,) = check_files([write_json(tmp_path / "a.json", table)])
    assert len(checked.faults) == MOST_LINES + 1
    assert checked.faults[-1] == "... and 900 more faults"
