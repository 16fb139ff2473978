"""Sizes of Arrow's cells: never more than the JSON takes, and not much less, whatever type and slice."""

from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest

from mindbatch.dataset.arrow_values import cell_sizes, column_values, portions

LONG = "x" * 100
COLUMNS = [
    pa.array([LONG, None, "y"]),
    pa.array([LONG, None, "y"], pa.large_string()),
    pa.array([LONG, None, "y"], pa.string_view()),
    pa.array([LONG, None, LONG]).dictionary_encode(),
    pa.array([[LONG, "z"], None, []]),
    pa.array([[LONG, "z"], None, []], pa.large_list(pa.string())),
    pa.array([[LONG, "z"], None, []], pa.list_view(pa.string())),
    pa.array([[LONG, "z"], None, ["a", "b"]], pa.list_(pa.string(), 2)),
    pa.array([[LONG], None, [LONG, LONG]], pa.list_(pa.dictionary(pa.int32(), pa.string()))),
    pa.array([[("k", LONG)], None, []], pa.map_(pa.string(), pa.string())),
    pa.array([{"a": LONG, "b": [1, 2]}, None, {"a": "c"}]),
    pa.array([[1] * 50, None, [3]]),
    pa.array([[[]] * 50, None, [[1], []]], pa.list_(pa.list_(pa.int8()))),
    pa.array([1.5, None, 3]),
    pa.array([True, None, False]),
    pa.nulls(3),
]


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: str(column.type))
def test_sizes_are_those_of_the_json_but_for_a_little(column: pa.Array) -> None:
    for cells in (column, column.slice(1), pa.concat_arrays([column, column]).slice(2, 3)):
        as_json = np.array([len(orjson.dumps(value)) for value in column_values(cells)])
        sizes = cell_sizes(cells)
        assert (sizes <= as_json).all()
        assert (sizes >= as_json // 2 - 10).all()


@pytest.mark.parametrize("index", [1, 255, -1])
def test_an_index_beyond_the_dictionary_is_found(index: int) -> None:
    texts = pa.DictionaryArray.from_arrays(pa.array([0, index], pa.int32()), pa.array(["a"]), safe=False)
    lists = pa.ListArray.from_arrays(pa.array([0, 2], pa.int32()), texts)
    for column in (texts, lists, pa.StructArray.from_arrays([texts], ["a"])):
        with pytest.raises(IndexError, match="beyond the texts of its column"):
            cell_sizes(column)


def test_a_dictionary_without_entries_has_nulls_only() -> None:
    nulls = pa.DictionaryArray.from_arrays(pa.nulls(2, pa.int32()), pa.array([], pa.string()))
    assert cell_sizes(nulls).tolist() == [1, 1]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(100)])
def test_binary_cells_count_their_bytes(kind: pa.DataType) -> None:
    assert cell_sizes(pa.array([LONG.encode(), None], kind)).tolist() == [101, 1]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([9, 1], [(0, 1), (1, 2)]),
        ([1, 2, 2, 1, 9, 1], [(0, 3), (3, 4), (4, 5), (5, 6)]),
        ([5, 5], [(0, 1), (1, 2)]),
    ],
)
def test_portions_hold_no_more_than_asked_unless_one_row_does(sizes: list[int], expected: Any) -> None:
    found = portions(np.array(sizes, np.int64), 5)
    assert [(rows.start, rows.stop) for rows in found] == expected
