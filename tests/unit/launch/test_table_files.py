"""Files of rank tables: strict JSON, names, copies that must be the same, and tables put together."""

from pathlib import Path

import pytest

from mindbatch.launch.rank_table import counted, table_rows
from mindbatch.launch.table_files import (
    MAX_LINES,
    check_files,
    merge_files,
    name_for_server,
    write_table,
)
from mindbatch.launch.table_json import LARGEST_FILE, at, parse_json, read_json, shown
from mindbatch.launch.table_reader import AllowedDeviations, RankTableError, examine
from rank_tables import Document, plain_table, super_pod_table, write_json


def test_a_name_fits_into_a_folder(tmp_path: Path) -> None:
    name = name_for_server([*range(1024)], "x" * 64)
    assert name == f"hccl_1024p_0-1023_{'x' * 64}.json"
    longest = max((name_for_server([*range(n)], "x" * 64) for n in range(1, 100)), key=len)
    assert write_table(examine(plain_table())[0], tmp_path / longest)


def test_a_table_is_shown_in_columns() -> None:
    assert table_rows(examine(plain_table(1, 2))[0]) == [
        "rank  server    device  address",
        "0     10.0.0.1  0       192.168.0.100",
        "1     10.0.0.1  1       192.168.0.101",
    ]
    rows = table_rows(examine(super_pod_table())[0])
    assert rows[0].split() == ["rank", "server", "device", "address", "SDID"]
    assert rows[5].split() == ["4", "node_1", "0", "192.168.1.1", "4"]
    assert counted(examine(plain_table(1, 1))[0]) == "1 rank on 1 server"
    assert counted(examine(plain_table(2))[0]) == "16 ranks on 2 servers"


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"{", "not valid JSON: Expecting property name"),
        (b'{"a": 1 // no\n}', "; JSON has no comments"),
        (b'{"a": NaN}', "NaN is no number of JSON"),
        (b"\xff{}", "not UTF-8 text (byte 0)"),
        (b"[" * 200_000, "JSON is nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "a number of the JSON has 5000 digits"),
    ],
)
def test_other_content_is_refused_in_one_line(data: bytes, fault: str) -> None:
    with pytest.raises(ValueError, match="JSON|UTF-8") as caught:
        parse_json(data)
    assert fault in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_is_read_no_further_than_it_may_be_long(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_bytes(b" " * (LARGEST_FILE - 2) + b"{}")
    assert read_json(path) == {}
    with path.open("ab") as file:
        file.write(b" ")
    with pytest.raises(ValueError, match=r"^more than 8 MiB; no rank table is so large$"):
        read_json(path)
    with pytest.raises(ValueError, match="not a regular file"):
        read_json(Path("/dev/zero"))
    with pytest.raises(ValueError, match=r"^cannot be read \(No such file"):
        read_json(tmp_path / "other")
    with pytest.raises(ValueError, match=r"^cannot be read \(Is a directory"):
        read_json(tmp_path)


def test_places_and_values_are_shown_in_plain_characters() -> None:
    assert at("", "a") == "a"
    assert at("a[0]", "\x1b[2J") == 'a[0]."\\u001b[2J"'
    assert len(at("", "A" * 5000)) < 200
    assert shown("é") == '"\\u00e9"'
    assert shown("x" * 100) == '"' + "x" * 56 + "..."
    assert (shown({}), shown([]), shown(None), shown(3)) == ("an object", "a list", "null", "3")


@pytest.fixture
def first(tmp_path: Path) -> Path:
    return write_json(tmp_path / "a.json", plain_table(2))


def beside(first: Path, document: Document) -> list[str]:
    """The faults of a second file beside the first."""
    checked = check_files([first, write_json(first.with_name("b.json"), document)])
    assert checked[0].is_correct
    return [fault.replace(f"{first.parent}/", "") for fault in checked[1].errors]


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
    assert [len(each.errors) for each in checked] == [1, 0, 1, 1]
    assert checked[3].errors == ["cannot be read (No such file or directory)"]


def test_the_number_of_ranks_can_be_asked_for(first: Path) -> None:
    assert check_files([first], 16)[0].is_correct
    assert check_files([first], 8)[0].errors == ["has 16 ranks; num_ranks=8 is requested"]


def test_many_faults_are_counted(tmp_path: Path) -> None:
    table = plain_table(1, 1000)
    for device in table["server_list"][0]["device"]:
        device["device_ip"] = "x"
    (checked,) = check_files([write_json(tmp_path / "a.json", table)])
    assert len(checked.errors) == MAX_LINES + 1
    assert checked.errors[-1] == "... and 900 more errors"


def one_of(table: Document, number: int) -> Document:
    """The table of one server of `table`, as that server would have written it."""
    server = table["server_list"][number]
    for place, device in enumerate(server["device"]):
        device["rank_id"] = str(place)
    alone = {**table, "server_count": "1", "server_list": [server]}
    for pod in table.get("super_pod_list", []):
        if {"server_id": server["server_id"]} in pod["server_list"]:
            alone["super_pod_list"] = [{**pod, "server_list": [{"server_id": server["server_id"]}]}]
    return alone


def files(tmp_path: Path, *tables: Document) -> list[Path]:
    return [write_json(tmp_path / f"{number}.json", table) for number, table in enumerate(tables)]


def faults(tmp_path: Path, *tables: Document, allowed: AllowedDeviations | None = None) -> list[str]:
    with pytest.raises(RankTableError) as caught:
        merge_files(files(tmp_path, *tables), allowed or AllowedDeviations())
    return [fault.replace(f"{tmp_path}/", "") for fault in caught.value.lines]


@pytest.mark.parametrize("whole", [plain_table(3), super_pod_table()])
def test_the_tables_of_single_servers_make_the_table_of_all(tmp_path: Path, whole: Document) -> None:
    count = len(whole["server_list"])
    merged, notes = merge_files(
        files(tmp_path, *(one_of(whole, n) for n in range(count))), AllowedDeviations()
    )
    expected = super_pod_table() if "super_pod_list" in whole else plain_table(3)
    assert merged.to_json() == expected
    assert notes == []


def test_ranks_of_the_files_do_not_matter(tmp_path: Path) -> None:
    second = one_of(plain_table(2), 1)
    for place, device in enumerate(second["server_list"][0]["device"]):
        device["rank_id"] = str(99 - place)
    paths = files(tmp_path, one_of(plain_table(2), 0), second)
    merged, notes = merge_files(paths, AllowedDeviations())
    assert merged.to_json() == plain_table(2)
    assert notes == [
        f"{paths[1]}: its ranks are not in the order of its entries; "
        "the merged table has the order of entries"
    ]


def test_a_server_or_an_address_in_two_files_is_refused(tmp_path: Path) -> None:
    first = one_of(plain_table(2), 0)
    second = one_of(plain_table(2), 1)
    second["server_list"][0]["device"][3]["device_ip"] = "192.168.0.103"
    assert faults(tmp_path, first, second, first) == [
        '1.json: device_ip "192.168.0.103": is in 0.json, too',
        '2.json: server "10.0.0.1": is in 0.json, too',
    ]


def test_what_cannot_stand_in_one_table_is_refused(tmp_path: Path) -> None:
    pods = super_pod_table()
    assert faults(tmp_path, plain_table(), one_of(pods, 0)) == [
        "1.json: version 1.2; 0.json has 1.0, and all must have the same"
    ]
    parts = [one_of(pods, number) for number in (0, 2, 1)]
    assert faults(tmp_path, *parts) == ['server_list: the servers of supernode "0" must follow one another']
