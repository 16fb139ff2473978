"""Strategy files as bytes: what is written is read, whatever it says; what is cut off is found."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindbatch.checkpoint.strategy.strategy import OperatorStrategy, Strategy, TensorLayout
from mindbatch.checkpoint.strategy.strategy_file import parse_strategy, strategy_bytes
from mindbatch.io.errors import CheckpointError

words = st.text(max_size=20)
numbers = st.integers(-(2**63), 2**63 - 1)
rows = st.lists(numbers, max_size=6).map(tuple)
axes = st.integers(-1, 40)
# One tuple alone cannot be told from as many dimensions, and a tuple of one from the axis itself.
nested = st.lists(
    axes | st.lists(axes, min_size=2, max_size=4).map(tuple), min_size=2, max_size=6
).map(tuple)  # fmt: skip
layouts = st.builds(
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
    Strategy, st.lists(layouts, max_size=4).map(tuple), st.lists(operators, max_size=3).map(tuple), numbers
)


@given(strategies)
def test_what_is_written_is_read(strategy: Strategy) -> None:
    assert parse_strategy(strategy_bytes(strategy), "s") == strategy


@given(layouts, st.integers(0, 999))
def test_a_stage_is_written_with_the_name(layout: TensorLayout, stage: int) -> None:
    data = strategy_bytes(Strategy((replace(layout, stage=stage),)))
    assert parse_strategy(data, "s").layouts == (replace(layout, name=f"{stage}-{layout.name}"),)


@given(strategies.filter(lambda each: bool(each.layouts)), st.data())
def test_a_file_that_is_cut_off_is_refused_or_has_fewer_entries(
    strategy: Strategy, data: st.DataObject
) -> None:
    """Cut between two entries it is a whole message: nothing in it tells."""
    content = strategy_bytes(strategy)
    length = data.draw(st.integers(1, len(content) - 1))
    try:
        found = parse_strategy(content[:length], "s")
    except CheckpointError:
        return
    assert found.layouts == strategy.layouts[: len(found.layouts)]
    assert found.operators == strategy.operators[: len(found.operators)]
    assert len(found.layouts) < len(strategy.layouts)


def test_a_field_that_no_strategy_has_is_refused() -> None:
    with pytest.raises(CheckpointError, match="field 4 is not one of a strategy file"):
        parse_strategy(strategy_bytes(Strategy(())) + b"\x20\x01", "s")
