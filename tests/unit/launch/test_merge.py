"""Tables of several servers put together."""

from pathlib import Path

import pytest

from mindbatch.launch.table_files import merge_files
from mindbatch.launch.table_reader import Leave, RankTableError
from rank_tables import Document, plain_table, super_pod_table, write_json


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


def faults(tmp_path: Path, *tables: Document, leave: Leave | None = None) -> list[str]:
    with pytest.raises(RankTableError) as caught:
        merge_files(files(tmp_path, *tables), leave or Leave())
    return [fault.replace(f"{tmp_path}/", "") for fault in caught.value.faults]


@pytest.mark.parametrize("whole", [plain_table(3), super_pod_table()])
def test_the_tables_of_single_servers_make_the_table_of_all(tmp_path: Path, whole: Document) -> None:
    count = len(whole["server_list"])
    merged, notes = merge_files(files(tmp_path, *(one_of(whole, n) for n in range(count))), Leave())
    expected = super_pod_table() if "super_pod_list" in whole else plain_table(3)
    assert merged.to_json() == expected
    assert notes == []


def test_the_order_of_the_files_is_that_of_the_ranks(tmp_path: Path) -> None:
    first, second = files(tmp_path, one_of(plain_table(2), 0), one_of(plain_table(2), 1))
    merged, _ = merge_files([second, first], Leave())
    assert [(each.server_id, each.devices[0].rank_id) for each in merged.servers] == [
        ("10.0.0.2", 0),
        ("10.0.0.1", 8),
    ]


def test_ranks_of_the_files_do_not_matter(tmp_path: Path) -> None:
    second = one_of(plain_table(2), 1)
    for place, device in enumerate(second["server_list"][0]["device"]):
        device["rank_id"] = str(99 - place)
    paths = files(tmp_path, one_of(plain_table(2), 0), second)
    merged, notes = merge_files(paths, Leave())
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


def test_faults_of_all_files_are_told(tmp_path: Path) -> None:
    first, second = one_of(plain_table(2), 0), one_of(plain_table(2), 1)
    first["status"] = "initializing"
    second["server_list"][0]["device"][3]["rank_id"] = "0"
    assert faults(tmp_path, first, second) == [
        '0.json: status: "initializing"; must be "completed"',
        '1.json: server_list[0].device[3].rank_id: "0" is that of server_list[0].device[0].rank_id, too',
    ]


def test_what_cannot_stand_in_one_table_is_refused(tmp_path: Path) -> None:
    pods = super_pod_table()
    assert faults(tmp_path, plain_table(), one_of(pods, 0)) == [
        "1.json: version 1.2; 0.json has 1.0, and all must have the same"
    ]
    parts = [one_of(pods, number) for number in (0, 2, 1)]
    assert faults(tmp_path, *parts) == ['server_list: the servers of supernode "0" must follow one another']


def test_servers_of_different_sizes_only_on_demand(tmp_path: Path) -> None:
    first, second = one_of(plain_table(2), 0), one_of(plain_table(2), 1)
    second["server_list"][0]["device"].pop()
    assert faults(tmp_path, first, second) == ['server_list[1].device: 7 devices, and 8 on server "10.0.0.1"']
    merged, _ = merge_files(files(tmp_path, first, second), Leave(uneven=True))
    assert merged.num_ranks == 15
