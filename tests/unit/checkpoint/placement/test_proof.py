"""The proof refuses every plan and placement that is not right, with the tensor and the box."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from mindbatch.checkpoint.placement.plan import Copy, TensorPlan, plan_copies
from mindbatch.checkpoint.placement.proof import prove
from mindbatch.checkpoint.placement.regions import (
    Placement,
    RankFiles,
    Segment,
    Shard,
    StoredShard,
    as_placed,
    single_segment,
)
from mindbatch.io.errors import CheckpointError

LEFT, RIGHT = single_segment((4, 3), ((0, 4), (0, 3))), single_segment((4, 3), ((0, 4), (3, 6)))


def ranks(*shards: Shard | None, name: str = "w") -> RankFiles:
    return as_placed({name: Placement(name, (4, 6), shards)}, len(shards))


FULL = ranks(single_segment((4, 6), ((0, 4), (0, 6))))
HALVES = ranks(LEFT, RIGHT)


def faults(
    plans: Sequence[TensorPlan], source: RankFiles = FULL, target: RankFiles = HALVES
) -> tuple[str, ...]:
    with pytest.raises(CheckpointError) as caught:
        prove(plans, source, target)
    return caught.value.faults


def with_copies(*copies: Copy) -> list[TensorPlan]:
    """A plan for rank 0 of two halves, with these copies; rank 1 is right."""
    first, second = plan_copies(FULL, HALVES)
    return [replace(first, copies=copies), second]


@pytest.mark.parametrize(
    ("shard", "fault"),
    [
        (single_segment((4, 3), ((0, 4), (4, 7))), "[0:4, 4:7] is outside the full shape [4, 6]"),
        (single_segment((3, 3), ((0, 4), (3, 6))),
         "[0:3, 0:3] cannot hold [0:4, 3:6], which has other sizes"),
        (Shard((4, 4), RIGHT.segments), "[0:4, 3:4] of its shape [4, 4] is filled by nothing"),
        (Shard((4, 2), RIGHT.segments), "[0:4, 0:3] is outside its shape [4, 2]"),
        (Shard((4, 3), RIGHT.segments, (((3, 4), (0, 3)),)),
         "[3:4, 0:3] of its shape [4, 3] is filled twice"),
        (Shard((4, 3), RIGHT.segments, (((4, 5), (0, 3)),)),
         "[4:5, 0:3] is outside its shape [4, 3]"),
        (Shard((4, 3), RIGHT.segments * 2), "[0:4, 0:3] of its shape [4, 3] is filled twice"),
    ],
)  # fmt: skip
def test_broken_placements(shard: Shard, fault: str) -> None:
    broken = ranks(LEFT, shard)
    assert faults([], FULL, broken)[0] == f"tensor 'w': target: rank 1: {fault}"
    assert faults([], broken, FULL)[0] == f"tensor 'w': source: rank 1: {fault}"


@pytest.mark.parametrize(
    ("shard", "lost"), [(single_segment((4, 2), ((0, 4), (4, 6))), "[0:4, 3:4]"), (None, "[0:4, 3:6]")]
)
def test_placements_that_lose_elements(shard: Shard | None, lost: str) -> None:
    assert (
        faults([], FULL, ranks(LEFT, shard))[0] == f"tensor 'w': target: {lost} of shape [4, 6] is on no rank"
    )


def test_a_source_that_lacks_elements_is_refused_with_them() -> None:
    short = plan_copies(ranks(LEFT, None), HALVES)
    assert faults(short) == (
        "tensor 'w': target rank 1: [0:4, 0:3] of its shape [4, 3] is written by nothing",
    )
    assert faults(short, ranks(LEFT, None)) == (
        "tensor 'w': source: [0:4, 3:6] of shape [4, 6] is on no rank",
    )


def test_segments_of_tensors_that_there_are_not() -> None:
    stored = StoredShard(("v",), single_segment((4, 6), ((0, 4), (0, 6))))
    [line, *_] = faults([], RankFiles({"w": (4, 6)}, ({"w": stored},)))
    assert line == "tensor 'w': source: rank 0: holds a part of 'v', which there is not"


@pytest.mark.parametrize(
    ("copies", "fault"),
    [
        ([], "[0:4, 0:3] of its shape [4, 3] is written by nothing"),
        ([(0, 4, 0, 2, 0)], "[0:4, 2:3] of its shape [4, 3] is written by nothing"),
        ([(0, 4, 0, 3, 0), (0, 2, 1, 2, 1)], "[0:2, 1:2] of its shape [4, 3] is written twice"),
        ([(0, 4, 1, 4, 0)], "[0:4, 1:4] is put where another element belongs"),
        ([(0, 4, 0, 3, 1)], "reaches outside the shapes [4, 6] and [4, 3]"),
        ([(0, 4, 4, 7, 0)], "reaches outside the shapes [4, 6] and [4, 3]"),
        ([(0, 5, 0, 3, 0)], "reaches outside the shapes [4, 6] and [4, 3]"),
    ],
)
def test_broken_copies(copies: list[tuple[int, int, int, int, int]], fault: str) -> None:
    """Copies as (first row, last row, first column, last column, column where it goes)."""
    made = [
        Copy(0, "w", ((top, bottom), (left, right)), ((top, bottom), (to, to + right - left)))
        for top, bottom, left, right, to in copies
    ]
    [line] = faults(with_copies(*made))
    assert line.startswith("tensor 'w': target rank 0: ")
    assert line.endswith(fault)


def test_copies_of_other_sizes_or_of_ranks_without_the_tensor() -> None:
    box = ((0, 4), (0, 3))
    assert "the two have different sizes" in faults(with_copies(Copy(0, "w", ((0, 3), (0, 3)), box)))[0]
    for rank in (1, -1):
        assert f"of source rank {rank} to" in faults(with_copies(Copy(rank, "w", box, box)))[0]
        assert "that rank has no such tensor" in faults(with_copies(Copy(rank, "w", box, box)))[0]


def test_tensors_with_the_same_copies_are_judged_by_their_own_sources() -> None:
    def both(w: Sequence[Shard], v: Sequence[Shard]) -> RankFiles:
        placed = {name: Placement(name, (4, 6), tuple(shards)) for name, shards in (("w", w), ("v", v))}
        return as_placed(placed, len(w))

    whole = [single_segment((4, 6), ((0, 4), (0, 6)))]
    source, target = both([LEFT, RIGHT], [RIGHT, LEFT]), both(whole, whole)
    first, second = plan_copies(source, target)
    prove([first, second], source, target)
    copies = tuple(copy._replace(source_name="v") for copy in first.copies)
    found = faults([first, replace(second, copies=copies)], source, target)
    assert len(found) == 2
    assert all(line.startswith("tensor 'v': ") for line in found)


def test_copies_of_another_tensor_or_the_other_way_round() -> None:
    square = {name: Placement(name, (4, 4), (single_segment((4, 4), ((0, 4), (0, 4))),)) for name in "wv"}
    source = target = as_placed(square, 1)
    first, second = plan_copies(source, target)
    for wrong in (first.copies[0]._replace(source_name="v"), first.copies[0]._replace(transposed=True)):
        [line] = faults([replace(first, copies=(wrong,)), second], source, target)
        assert line.endswith("is put where another element belongs")


def test_padding_is_never_read_nor_written() -> None:
    padded = Shard((3, 6), (Segment(((0, 2), (0, 6)), ((2, 4), (0, 6))),), (((2, 3), (0, 6)),))
    side = ranks(single_segment((3, 6), ((0, 3), (0, 6))), padded)
    first, second = plan_copies(side, side)
    prove([first, second], side, side)
    whole = ((0, 3), (0, 6))
    broken = replace(second, copies=(Copy(1, "w", whole, whole),))
    assert faults([first, broken], side, side)[0].endswith("takes in padding")


def test_plans_that_miss_or_repeat_a_tensor() -> None:
    first, second = plan_copies(FULL, HALVES)
    assert faults([first]) == ("tensor 'w': not made for target rank 1",)
    for other in (first, replace(second, rank=2), replace(second, name="v")):
        found = faults([first, other])
        assert found[0] == f"tensor '{other.name}': target rank {other.rank}: not wanted, or planned twice"
    assert "needed is [4, 3]" in faults([first, replace(second, shape=(3, 4))])[0]
    assert "or other padding" in faults([first, replace(second, padding=(((0, 1), (0, 1)),))])[0]
