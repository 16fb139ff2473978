"""Placements from a MindSpore strategy, and full shapes from what the ranks hold."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from drawn_models import models
from hypothesis import given
from hypothesis import strategies as st

from mindbatch.architecture.stage_cut import number_of_layers
from mindbatch.architecture.tensor_spec import TensorSpec, source_shapes
from mindbatch.checkpoint.placement.placements import allowed_model_parallel, placements, with_replicas
from mindbatch.checkpoint.placement.regions import Placement, as_rank_files, single_segment
from mindbatch.checkpoint.strategy.placements import full_shapes, stage_strategies, strategy_placements
from mindbatch.checkpoint.strategy.strategy import Strategy, TensorLayout
from mindbatch.checkpoint.strategy.strategy_file import read_strategy, strategy_bytes, strategy_name
from mindbatch.io.errors import CheckpointError

SHAPES = {
    "columns": (8, 6), "rows": (6, 8), "norm": (6,), "table": (8, 4), "turned": (8, 4), "both": (8, 8),
    "scalar": (), "scale": (),
}  # fmt: skip
TWO_BY_TWO = Strategy(
    (
        TensorLayout("columns", (2, 2), (0, -1)),
        TensorLayout("rows", (2, 2), (-1, 0)),
        TensorLayout("norm", (2, 2), (-1,)),
        TensorLayout("table", (2, 2), ((1, 0), -1)),
        TensorLayout("turned", (2, 2), ((0, 1), -1)),
        TensorLayout("both", (2, 2), (1, 0)),
        TensorLayout("scalar", (2, 2), (-1,)),
        TensorLayout("cache", (2, 2), (0, -1)),
    )
)
TWO_STAGES = Strategy(
    (
        TensorLayout("first", (1, 2), (0, -1), stage=0),
        TensorLayout("tied", (1, 2), (0, -1), stage=0),
        TensorLayout("tied", (1, 2), (0, -1), stage=1),
        TensorLayout("last", (1, 2), (-1, 0), stage=1),
    )
)
STAGED = {"first": (4, 3), "tied": (6, 2), "last": (2, 4)}


def test_each_rank_holds_what_its_place_in_the_device_matrix_says() -> None:
    placed = strategy_placements(TWO_BY_TWO, SHAPES)
    wholes = {name: [rank[0].whole for rank in placement.ranks] for name, placement in placed.items()}
    low, high = (0, 4), (4, 8)
    assert wholes["columns"] == [(low, (0, 6)), (high, (0, 6))] * 2
    assert wholes["rows"] == [((0, 6), low), ((0, 6), high)] * 2
    assert wholes["table"] == [((start, start + 2), (0, 4)) for start in (0, 2, 4, 6)]
    assert wholes["turned"] == [((start, start + 2), (0, 4)) for start in (0, 4, 2, 6)]
    assert wholes["both"] == [(low, low), (low, high), (high, low), (high, high)]
    assert wholes["scalar"] == [()] * 4
    assert wholes["scale"] == [()] * 4  # not in the strategy: whole everywhere
    assert "cache" not in placed


@pytest.mark.parametrize(("strategy", "shapes"), [(TWO_BY_TWO, SHAPES), (TWO_STAGES, STAGED)])
def test_full_shapes_from_the_files_of_the_ranks(
    strategy: Strategy, shapes: dict[str, tuple[int, ...]]
) -> None:
    placed = as_rank_files(strategy_placements(strategy, shapes), strategy.num_ranks)
    assert full_shapes(strategy, [placed.stored_shapes(rank) for rank in range(4)]) == shapes


def test_optimizer_shards_count_too() -> None:
    strategy = Strategy((TensorLayout("w", (2, 2), (0, -1), opt_shard_step=1, opt_shard_size=2),))
    assert full_shapes(strategy, [{"w": (2, 3)}] * 4) == {"w": (8, 3)}
    [placement] = strategy_placements(strategy, {"w": (8, 3)}).values()
    assert [rank[0].whole[0] for rank in placement.ranks] == [(0, 2), (4, 6), (2, 4), (6, 8)]


def test_files_that_do_not_fit_the_strategy() -> None:
    right = [{"first": (2, 3), "tied": (3, 2)}] * 2 + [{"tied": (3, 2), "last": (2, 2)}] * 2
    assert full_shapes(TWO_STAGES, right) == STAGED
    with pytest.raises(CheckpointError, match="^3 ranks; the strategy is for 4$"):
        full_shapes(TWO_STAGES, right[:3])
    with pytest.raises(
        CheckpointError, match="^1 rank; the strategy is for 4; if this one is the whole, give no"
    ):
        full_shapes(TWO_STAGES, right[:1])
    wrong = [right[0], {"first": (3, 3)}, {**right[2], "first": (2, 3)}, {**right[3], "scale": ()}]
    with pytest.raises(CheckpointError) as caught:
        full_shapes(TWO_STAGES, wrong)
    assert caught.value.lines == (
        "tensor 'first': on rank 1 [3, 3], part of [6, 3]; on the ranks before part of [4, 3]",
        "tensor 'first': the strategy has it in another stage, not in that of rank 2",
        "tensor 'scale': rank 0 lacks it",
        "tensor 'tied': rank 1 lacks it",
        "tensor 'scale': rank 1 lacks it",
        "tensor 'scale': rank 2 lacks it",
    )


def test_layouts_that_do_not_fit_the_tensors() -> None:
    with pytest.raises(CheckpointError) as caught:
        strategy_placements(TWO_BY_TWO, SHAPES | {"columns": (7, 6), "norm": (6, 1)})
    assert len(caught.value.lines) == 2
    with pytest.raises(CheckpointError, match="names none of the tensors: it has 'both', they .* as 'a.b'"):
        strategy_placements(TWO_BY_TWO, {"a.b": (2,)})


def layouts(specs: list[TensorSpec], ways: int, copies: int = 1) -> Mapping[str, TensorLayout]:
    (strategy,) = stage_strategies(with_replicas(placements(specs, ways), ways, copies), ways, 1)
    return strategy.of_stage(0)


def refusal(found: Mapping[str, Placement], ways: int) -> tuple[str, ...]:
    with pytest.raises(CheckpointError) as caught:
        stage_strategies(found, ways, 1)
    return caught.value.lines


@given(models(), st.data())
def test_a_file_says_what_was_placed_or_there_is_none(
    tmp_path_factory: pytest.TempPathFactory, specs: list[TensorSpec], data: st.DataObject
) -> None:
    ways = data.draw(st.sampled_from(allowed_model_parallel(specs)))
    stages = data.draw(st.integers(1, min(2, number_of_layers(specs))))
    copies = data.draw(st.integers(1, 3))
    found = with_replicas(placements(specs, ways, stages), ways, copies)
    shards = [(name, shard) for name, placement in found.items() for shard in placement.shards if shard]
    unfit = [name for name, shard in shards if shard.padding or len(shard.segments) > 1]
    if unfit:
        with pytest.raises(CheckpointError, match="|".join(map(re.escape, unfit))):
            stage_strategies(found, ways, stages)
        return
    folder: Path = tmp_path_factory.mktemp("s")
    for stage, strategy in enumerate(stage_strategies(found, ways, stages)):
        (folder / strategy_name(stage * ways * copies)).write_bytes(strategy_bytes(strategy))
    assert strategy_placements(read_strategy(folder), source_shapes(specs)) == found


HALVES = [single_segment((2,), ((low, low + 2),)) for low in (0, 2)]
UNEVEN = [single_segment((1,), ((0, 1),)), *[single_segment((2,), ((1, 3),))] * 3]
CELLS = [single_segment((1, 2), ((row, row + 1), (2 * low, 2 * low + 2))) for row in (0, 1) for low in (0, 1)]
NO_MATRIX = {
    Placement("turned", (4,), tuple(HALVES[::-1] * 2)): "in an order that no device matrix tells",
    Placement("mixed", (4,), (HALVES[0], HALVES[1], HALVES[1], HALVES[0])): "in an order",
    Placement("lost", (4,), (HALVES[0],) * 4): "in an order",
    Placement("both", (2, 4), tuple(CELLS)): "cut in several dimensions",
    Placement("uneven", (3,), tuple(UNEVEN)): "cut unevenly",
    Placement("beyond", (5,), (single_segment((3,), ((0, 3),)),) * 4): "in an order",
}


def test_what_no_matrix_of_devices_tells_is_refused() -> None:
    for placement, reason in NO_MATRIX.items():
        (fault,) = refusal({placement.name: placement}, 2)
        assert fault.startswith(f"tensor '{placement.name}': ")
        assert reason in fault
    assert len(refusal({placement.name: placement for placement in NO_MATRIX}, 2)) == 3
    fine = Placement("fine", (4,), tuple(HALVES * 2))
    assert stage_strategies({"fine": fine}, 2, 1)[0].layouts[0].tensor_map == (0,)
