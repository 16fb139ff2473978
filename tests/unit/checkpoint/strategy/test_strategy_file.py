"""Strategy files: what is read and written, who holds what, and what is refused. numerics asks MindSpore."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ckpt_bytes import ckpt_bytes, field, number
from hypothesis import given
from hypothesis import strategies as st

from mindbatch.checkpoint.strategy.strategy import OperatorStrategy, Strategy, TensorLayout
from mindbatch.checkpoint.strategy.strategy_file import (
    is_strategy_file,
    parse_strategy,
    read_strategy,
    strategy_bytes,
)
from mindbatch.io.errors import CheckpointError, ConfigError

LAYOUT = TensorLayout("w", (2, 2), (0, -1), opt_shard_step=2, opt_shard_size=2)
STRATEGY = Strategy((LAYOUT,), (OperatorStrategy("op", 0, ((2, 1), (1,))),), 3)
NUMBERS = number(5, 0) + number(6, 0) + number(7, 0)


def write(path: Path, *layouts: TensorLayout, stage: int = 0) -> Path:
    path.write_bytes(strategy_bytes(Strategy(layouts, (OperatorStrategy("op", stage),))))
    return path


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_strategy(path)
    return str(caught.value)


def layout_item(name: str, *fields: bytes) -> bytes:
    return number(1, 0) + field(3, field(1, name.encode()) + field(2, b"".join(fields)))


def dims(*values: int) -> bytes:
    return b"".join(number(1, value) for value in values)


names = st.text("abc._", min_size=1, max_size=5).filter(lambda name: ".." not in name)


@st.composite
def layouts(draw: st.DrawFn) -> TensorLayout:
    """Over eight devices."""
    matrix = draw(st.sampled_from([(8,), (2, 4), (2, 2, 2), (1, 8)]))
    axes = draw(st.permutations(range(len(matrix))))[: draw(st.integers(0, len(matrix)))]
    entries: list[int | tuple[int, ...]] = [*axes, *([-1] * draw(st.integers(1, 2)))]
    if len(axes) > 1 and draw(st.booleans()):
        entries = [(axes[0], axes[1]), *axes[2:], -1]
    return TensorLayout(draw(names), matrix, tuple(draw(st.permutations(entries))))


@given(st.lists(layouts(), min_size=1, max_size=4, unique_by=lambda layout: layout.name))
def test_every_element_is_held_by_as_many_ranks(
    tmp_path_factory: pytest.TempPathFactory, found: list[TensorLayout]
) -> None:
    path = tmp_path_factory.mktemp("s") / "s.ckpt"
    strategy = Strategy(tuple(found), (OperatorStrategy("op", 0),))
    path.write_bytes(strategy_bytes(strategy))
    assert read_strategy(path) == strategy
    for layout in found:
        shape = (16,) * len(layout.tensor_map)
        held = np.zeros(shape, int)
        for rank in range(8):
            held[layout.slice_of(rank, shape)] += 1
            assert held[layout.slice_of(rank, shape)].shape == layout.local_shape(shape)
        assert (held == 8 // np.prod(layout.parts)).all()


@pytest.mark.parametrize(
    ("layout", "shape", "fault"),
    [
        (TensorLayout("w", (2,), (0, -1)), (3, 2), r"shape \[3, 2\] is cut into 2 parts, .* not divide 3"),
        (TensorLayout("w", (2,), (0, -1)), (4, 2, 2), "has a tensor map of 2 dimensions"),
        (TensorLayout("w", (2,), (0,)), (), "has a tensor map of 1 dimensions"),
        (TensorLayout("w", (2,), (0,), param_split_shape=(1, 2)), (4,), "is cut unevenly"),
        (TensorLayout("w", (2,), (0,), opt_shard_step=1, opt_shard_size=2), (4,), "do not fit"),
        (TensorLayout("w", (6,), (-1,), opt_shard_step=1, opt_shard_size=4), (24,), "do not fit"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(layout: TensorLayout, shape: tuple[int, ...], fault: str) -> None:
    with pytest.raises(CheckpointError, match=f"layout of 'w': .*{fault}"):
        layout.slice_of(0, shape)


def test_it_is_told_from_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "w.ckpt").write_bytes(ckpt_bytes({"x": np.zeros(2)}))
    strategy = read_strategy(write(tmp_path / "s.ckpt", LAYOUT))
    assert (strategy.layouts, strategy.num_ranks) == ((LAYOUT,), 4)
    assert is_strategy_file(tmp_path / "s.ckpt")
    assert not is_strategy_file(tmp_path / "w.ckpt")
    assert "not a MindSpore strategy file" in refusal(tmp_path / "w.ckpt")


def test_names_of_merged_files_have_their_stage(tmp_path: Path) -> None:
    path = write(tmp_path / "s.ckpt", TensorLayout("0-w", (2,), (0,)), TensorLayout("1-w", (2,), (-1,)))
    strategy = read_strategy(path)
    assert strategy.stages == (0, 1)
    assert strategy.of_rank(1)["w"].tensor_map == (0,)
    assert strategy.of_rank(2)["w"].tensor_map == (-1,)
    assert strategy_bytes(strategy) == path.read_bytes()


def test_folders_of_stages_must_agree(tmp_path: Path) -> None:
    write(tmp_path / "0.ckpt", LAYOUT)
    write(tmp_path / "1.ckpt", TensorLayout("w", (2, 2), (1, -1)))
    assert "1.ckpt: stage 0 is cut otherwise than in 0.ckpt" in refusal(tmp_path)
    write(tmp_path / "1.ckpt", LAYOUT, stage=2)
    assert "no strategy file of stage 1" in refusal(tmp_path)
    write(tmp_path / "1.ckpt", TensorLayout("v", (2,), (0,)), stage=1)
    assert "1.ckpt: 2 devices a stage; 0.ckpt has 4" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("layout", "fault"),
    [
        (TensorLayout("w", (0,), (-1,)), "device matrix"),
        (TensorLayout("w", (), ()), "device matrix"),
        (TensorLayout("w", (1 << 21,), (-1,)), "device matrix"),
        (TensorLayout("w", (2,), (1,)), "must hold axes below 1, each once, or -1"),
        (TensorLayout("w", (2,), (-2,)), "must hold axes below 1"),
        (TensorLayout("w", (2, 2), (0, 0)), "each once"),
        (TensorLayout("w", (2, 2), ((0, 1), 0)), "each once"),
        (TensorLayout("w", (2,), (0,), opt_shard_size=-2), "optimizer shard"),
        (TensorLayout("../w", (2,), (0,)), "a name must be printable"),
    ],
)
def test_numbers_that_cannot_be_true_are_refused(tmp_path: Path, layout: TensorLayout, fault: str) -> None:
    message = refusal(write(tmp_path / "s.ckpt", layout))
    assert fault in message
    assert f"s.ckpt: parameter {layout.name!r}: " in message


def test_parameters_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    assert "is there twice" in refusal(write(tmp_path / "s.ckpt", LAYOUT, LAYOUT))
    message = refusal(write(tmp_path / "s.ckpt", LAYOUT, TensorLayout("v", (2,), (0,))))
    assert "'v': 2 devices; the first parameter has 4" in message


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "empty"),
        (b"\x0a", "not a MindSpore strategy file: it does not begin with a stage"),
        (b"\x80\x02}", "not a MindSpore strategy file: a Python pickle, which is never executed"),
        (b"version https://git-lfs.github.com/spec/v1", "not a MindSpore strategy file: a Git LFS pointer"),
        (b"\x08", "truncated"),
        (number(1, 0) + number(9, 1), "field 9 is not one of a strategy file"),
        (number(1, 0) + number(3, 1), "field 3 is not one of a strategy file"),
        (number(1, 0) + field(3, b""), "must have a name"),
        (number(1, 0) + field(3, number(1, 1) + number(2, 1)), "must have a name"),
        (layout_item("w", field(1, dims(2)), field(2, dims(0))), "'w': byte"),
        (layout_item("w", field(2, dims(0)), NUMBERS), "must have a device matrix"),
        (layout_item("w", field(1, dims(2)), NUMBERS), "must have a device matrix"),
        (
            layout_item("w", field(1, dims(2)), field(1, dims(2)), field(2, dims(0)), NUMBERS),
            "must have a device",
        ),
        (layout_item("w", field(1, dims(2)), field(2, dims(0)), NUMBERS, number(5, 0)), "once too often"),
        (layout_item("w", field(1, dims(*[1] * 33)), field(2, dims(0)), NUMBERS), "at most 32 numbers"),
        (layout_item("w", field(1, field(1, b"2")), field(2, dims(0)), NUMBERS), "at most 32 numbers"),
        (number(1, 0) + field(2, field(1, b"op") + field(2, number(1, -1))), "'op': field 1"),
    ],
)
def test_what_is_wrong_is_refused(tmp_path: Path, content: bytes, fault: str) -> None:
    (tmp_path / "s.ckpt").write_bytes(content)
    message = refusal(tmp_path / "s.ckpt")
    assert fault in message
    assert "s.ckpt: " in message


ITEM: dict[str, Any] = {
    "dev_matrix": [2, 2], "tensor_map": [[1, 0], -1], "field": 0,
    "opt_weight_shard_step": 0, "opt_weight_shard_size": 0,
}  # fmt: skip


def write_json(path: Path, **changes: object) -> Path:
    content: dict[str, object] = {
        "current_stage": 1,
        "parallel_layout_item": {"w": ITEM},
        "parallel_strategy_item": {"op": {"stage": 2}},
    }
    path.write_text(json.dumps({**content, **changes}))
    return path


def test_json_is_read(tmp_path: Path) -> None:
    strategy = read_strategy(write_json(tmp_path / "s.json"))
    assert strategy.layouts == (TensorLayout("w", (2, 2), ((1, 0), -1)),)
    assert (strategy.stage, strategy.current_stage) == (2, 1)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"parallel_layout_item": []}, "not a MindSpore strategy file"),
        ({"parallel_layout_item": {"w": 1}}, "'w': must be an object"),
        ({"parallel_layout_item": {"w": {}}}, "'w': dev_matrix is missing"),
        ({"parallel_layout_item": {"w": {**ITEM, "dev_matrix": 4}}}, "dev_matrix must be a list of numbers"),
        ({"parallel_layout_item": {"w": {**ITEM, "tensor_map": ["0"]}}}, "tensor_map must be a list"),
        ({"parallel_layout_item": {"w": {**ITEM, "field": None}}}, "field must be a number"),
        ({"parallel_strategy_item": {"op": {"stage": "0"}}}, "'op': stage '0' must be a number"),
    ],
)
def test_wrong_json_is_refused(tmp_path: Path, changes: dict[str, object], fault: str) -> None:
    assert fault in refusal(write_json(tmp_path / "s.json", **changes))


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        read_strategy(tmp_path / "none")
    assert "no strategy file; needed are .ckpt or .json files" in refusal(tmp_path)


words = st.text(max_size=20)
numbers = st.integers(-(2**63), 2**63 - 1)
rows = st.lists(numbers, max_size=6).map(tuple)
axes = st.integers(-1, 40)
# One tuple alone cannot be told from as many dimensions, and a tuple of one from the axis itself.
nested = st.lists(
    axes | st.lists(axes, min_size=2, max_size=4).map(tuple), min_size=2, max_size=6
).map(tuple)  # fmt: skip
any_layout = st.builds(
    TensorLayout,
    name=words,
    device_matrix=rows,
    tensor_map=st.lists(axes, max_size=6).map(tuple) | nested,
    param_split_shape=rows,
    indices_offset=rows,
    field=numbers,
    opt_shard_step=numbers,
    opt_shard_size=numbers,
)
operators = st.builds(
    OperatorStrategy, words, st.integers(0, 2**20 - 1), st.lists(rows, max_size=4).map(tuple)
)  # fmt: skip
strategies = st.builds(
    Strategy, st.lists(any_layout, max_size=4).map(tuple), st.lists(operators, max_size=3).map(tuple), numbers
)


@given(strategies)
def test_what_is_written_is_read(strategy: Strategy) -> None:
    assert parse_strategy(strategy_bytes(strategy), "s") == strategy


@given(strategies.filter(lambda strategy: bool(strategy.layouts)), st.data())
def test_a_file_that_is_cut_off_is_refused_or_has_fewer_entries(
    strategy: Strategy, data: st.DataObject
) -> None:
    """Cut between two entries it is a whole message: nothing in it tells."""
    content = strategy_bytes(strategy)
    length = data.draw(st.integers(1, len(content) - 1))
    try:
        parsed = parse_strategy(content[:length], "s")
    except CheckpointError:
        return
    assert parsed.layouts == strategy.layouts[: len(parsed.layouts)]
    assert parsed.operators == strategy.operators[: len(parsed.operators)]
    assert len(parsed.layouts) < len(strategy.layouts)
