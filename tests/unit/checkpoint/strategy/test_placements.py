"""Placements from a MindSpore strategy, and full shapes from what the ranks hold."""

import pytest
from placed_arrays import copied, numbered, same, scattered

from mindbatch.checkpoint.placement.plan import plan_copies
from mindbatch.checkpoint.placement.proof import prove
from mindbatch.checkpoint.placement.regions import as_placed, whole_placements
from mindbatch.checkpoint.strategy.placements import full_shapes, strategy_placements
from mindbatch.checkpoint.strategy.strategy import Strategy, TensorLayout
from mindbatch.io.errors import CheckpointError

SHAPES = {"columns": (8, 6), "rows": (6, 8), "norm": (6,), "table": (8, 4), "both": (8, 8), "scale": ()}
TWO_BY_TWO = Strategy(
    (
        TensorLayout("columns", (2, 2), (0, -1)),
        TensorLayout("rows", (2, 2), (-1, 0)),
        TensorLayout("norm", (2, 2), (-1,)),
        TensorLayout("table", (2, 2), ((1, 0), -1)),
        TensorLayout("both", (2, 2), (1, 0)),
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
    found = strategy_placements(TWO_BY_TWO, SHAPES)
    wholes = {name: [rank[0].whole for rank in placement.ranks] for name, placement in found.items()}
    low, high = (0, 4), (4, 8)
    assert wholes["columns"] == [(low, (0, 6)), (high, (0, 6))] * 2
    assert wholes["rows"] == [((0, 6), low), ((0, 6), high)] * 2
    assert wholes["table"] == [((start, start + 2), (0, 4)) for start in (0, 2, 4, 6)]
    assert wholes["both"] == [(low, low), (low, high), (high, low), (high, high)]
    assert wholes["scale"] == [()] * 4  # not in the strategy: whole everywhere
    assert "cache" not in found


def test_stages_follow_one_another() -> None:
    found = strategy_placements(TWO_STAGES, STAGED)
    assert {name: placement.holders for name, placement in found.items()} == {
        "first": (0, 1),
        "tied": (0, 1, 2, 3),
        "last": (2, 3),
    }
    assert found["last"].shards[3].shape == (2, 2)


@pytest.mark.parametrize(("strategy", "shapes"), [(TWO_BY_TWO, SHAPES), (TWO_STAGES, STAGED)])
def test_there_and_back(strategy: Strategy, shapes: dict[str, tuple[int, ...]]) -> None:
    arrays = numbered(shapes)
    full = as_placed(whole_placements(shapes), 1)
    ranks = as_placed(strategy_placements(strategy, shapes), strategy.num_ranks)
    there, back = plan_copies(full, ranks), plan_copies(ranks, full)
    prove(there, full, ranks)
    prove(back, ranks, full)
    made = copied(there, full, [arrays])
    assert same(made, scattered(ranks, arrays))
    assert same(copied(back, ranks, made), [arrays])


@pytest.mark.parametrize(("strategy", "shapes"), [(TWO_BY_TWO, SHAPES), (TWO_STAGES, STAGED)])
def test_full_shapes_from_the_files_of_the_ranks(
    strategy: Strategy, shapes: dict[str, tuple[int, ...]]
) -> None:
    placed = as_placed(strategy_placements(strategy, shapes), strategy.num_ranks)
    ranks = scattered(placed, numbered(shapes))
    found = full_shapes(strategy, [{name: local.shape for name, local in held.items()} for held in ranks])
    assert found == shapes


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
    assert caught.value.faults == (
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
    assert len(caught.value.faults) == 2
    with pytest.raises(CheckpointError, match="names none of the tensors: it has 'both', they .* as 'a.b'"):
        strategy_placements(TWO_BY_TWO, {"a.b": (2,)})
