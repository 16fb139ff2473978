"""The proof refuses every plan and placement that is not right, with the tensor and the box."""

from dataclasses import replace

import pytest
from drawn_models import gpt2_specs, llama_specs
from hypothesis import given, settings
from hypothesis import strategies as st
from placed_arrays import moved_by, numbered, same, scattered

from mindbatch.checkpoint.placement.placement import (
    Placement,
    Segment,
    Shard,
    single_segment,
    whole_placements,
)
from mindbatch.checkpoint.placement.placements import placements
from mindbatch.checkpoint.placement.plan import Copy, ReshardPlan, plan_reshard
from mindbatch.checkpoint.placement.plan_proof import prove
from mindbatch.errors import CheckpointError
from mindbatch.models.tensor_spec import source_shapes

FULL = whole_placements({"w": (4, 6)})
LEFT, RIGHT = single_segment((4, 3), ((0, 4), (0, 3))), single_segment((4, 3), ((0, 4), (3, 6)))


def halves(*shards: Shard | None) -> dict[str, Placement]:
    return {"w": Placement("w", (4, 6), shards)}


def faults(plan: ReshardPlan) -> tuple[str, ...]:
    with pytest.raises(CheckpointError) as caught:
        prove(plan)
    return caught.value.faults


def with_copies(*copies: Copy) -> ReshardPlan:
    """A plan for rank 0 of two halves, with these copies; rank 1 is right."""
    plan = plan_reshard(FULL, halves(LEFT, RIGHT))
    return replace(plan, tensors=(replace(plan.tensors[0], copies=copies), plan.tensors[1]))


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
         "padding [4:5, 0:3] is outside its shape [4, 3]"),
        (Shard((4, 3), RIGHT.segments * 2), "[0:4, 0:3] of its shape [4, 3] is filled twice"),
    ],
)  # fmt: skip
def test_broken_placements(shard: Shard, fault: str) -> None:
    broken = halves(LEFT, shard)
    assert faults(ReshardPlan((), FULL, broken))[0] == f"tensor 'w': target: rank 1: {fault}"
    assert faults(ReshardPlan((), broken, FULL))[0] == f"tensor 'w': source: rank 1: {fault}"


@pytest.mark.parametrize(
    ("shard", "lost"), [(single_segment((4, 2), ((0, 4), (4, 6))), "[0:4, 3:4]"), (None, "[0:4, 3:6]")]
)
def test_placements_that_lose_elements(shard: Shard | None, lost: str) -> None:
    plan = ReshardPlan((), FULL, halves(LEFT, shard))
    assert faults(plan)[0] == f"tensor 'w': target: {lost} of shape [4, 6] is on no rank"


def test_a_source_that_lacks_elements_is_refused_with_them() -> None:
    plan = plan_reshard(FULL, halves(LEFT, RIGHT))
    short = plan_reshard(halves(LEFT, None), halves(LEFT, RIGHT))
    mixed = replace(plan, tensors=short.tensors)
    assert faults(mixed) == (
        "tensor 'w': target rank 1: [0:4, 3:6] of the full tensor is copied from no rank",
    )


@pytest.mark.parametrize(
    ("copies", "fault"),
    [
        ([], "[0:4, 0:3] of the full tensor is copied from no rank"),
        ([(0, 4, 0, 2, 0)], "[0:4, 2:3] of the full tensor is copied from no rank"),
        ([(0, 4, 0, 3, 0), (0, 2, 1, 2, 1)], "[0:2, 1:2] of its shape [4, 3] is written twice"),
        ([(0, 4, 1, 4, 0)], "[0:4, 1:4] of the full tensor is put where another element belongs"),
        ([(0, 4, 0, 3, 1)], "reaches outside the shapes [4, 6] and [4, 3]"),
        ([(0, 4, 4, 7, 0)], "reaches outside the shapes [4, 6] and [4, 3]"),
        ([(0, 5, 0, 3, 0)], "reaches outside the shapes [4, 6] and [4, 3]"),
    ],
)
def test_broken_copies(copies: list[tuple[int, int, int, int, int]], fault: str) -> None:
    """Copies as (first row, last row, first column, last column, column where it goes)."""
    made = [
        Copy(0, ((top, bottom), (left, right)), ((top, bottom), (to, to + right - left)))
        for top, bottom, left, right, to in copies
    ]
    [line] = faults(with_copies(*made))
    assert line.startswith("tensor 'w': target rank 0: ")
    assert line.endswith(fault)


def test_copies_of_other_sizes_or_of_ranks_without_the_tensor() -> None:
    box = ((0, 4), (0, 3))
    assert "the two have different sizes" in faults(with_copies(Copy(0, ((0, 3), (0, 3)), box)))[0]
    for rank in (1, -1):
        assert f"of source rank {rank} to" in faults(with_copies(Copy(rank, box, box)))[0]
        assert "that rank has no such tensor" in faults(with_copies(Copy(rank, box, box)))[0]


def test_tensors_with_the_same_copies_are_judged_by_their_own_sources() -> None:
    swapped = Placement("v", (4, 6), (single_segment((4, 3), ((0, 4), (3, 6))), LEFT))
    source, target = {**halves(LEFT, RIGHT), "v": swapped}, whole_placements({"w": (4, 6), "v": (4, 6)})
    plan = plan_reshard(source, target)
    assert prove(plan) == ()
    first, second = plan.tensors
    broken = replace(plan, tensors=(first, replace(second, copies=first.copies)))
    assert len(faults(broken)) == 2
    assert all(line.startswith("tensor 'v': ") for line in faults(broken))


def test_padding_is_never_read_nor_written() -> None:
    padded = Shard((3, 6), (Segment(((0, 2), (0, 6)), ((2, 4), (0, 6))),), (((2, 3), (0, 6)),))
    top = single_segment((3, 6), ((0, 3), (0, 6)))
    plan = plan_reshard(halves(top, padded), halves(top, padded))
    assert len(prove(plan)) == 1
    [first, second] = plan.tensors
    whole = ((0, 3), (0, 6))
    broken = replace(plan, tensors=(first, replace(second, copies=(Copy(1, whole, whole),))))
    assert faults(broken)[0].endswith("takes in padding")


def test_plans_that_miss_or_repeat_a_tensor() -> None:
    plan = plan_reshard(FULL, halves(LEFT, RIGHT))
    first, second = plan.tensors
    assert faults(replace(plan, tensors=(first,))) == ("tensor 'w': not made for target rank 1",)
    for other in (first, replace(second, shape=(3, 4)), replace(second, rank=2), replace(second, name="v")):
        found = faults(replace(plan, tensors=(first, other)))
        assert found[0] == f"tensor '{other.name}': not wanted, or not so, on target rank {other.rank}"
    assert faults(replace(plan, source={})) == ("tensor 'w': not in the source",)


@settings(deadline=None)
@given(st.data())
def test_any_single_change_of_a_plan_is_found_unless_it_changes_nothing(data: st.DataObject) -> None:
    """One number of one copy is changed: the proof fails just when the elements come out different."""
    specs = data.draw(st.sampled_from([gpt2_specs(4, 1, 5, 1), llama_specs(4, 2, 2, 4, 5, 1)]))
    source, target = (placements(specs, data.draw(st.sampled_from([1, 2, 4]))) for _ in range(2))
    plan = plan_reshard(source, target)
    arrays = numbered(source_shapes(specs))
    number = data.draw(st.integers(0, len(plan.tensors) - 1))
    tensor = plan.tensors[number]
    if not tensor.copies:
        return
    index = data.draw(st.integers(0, len(tensor.copies) - 1))
    copies = [*tensor.copies]
    copies[index] = changed(copies[index], data)
    tensors = [*plan.tensors]
    tensors[number] = replace(tensor, copies=tuple(copies))
    broken = replace(plan, tensors=tuple(tensors))
    try:
        prove(broken)
    except CheckpointError:
        return
    assert same(moved_by(broken, scattered(source, arrays)), scattered(target, arrays))


def changed(copy: Copy, data: st.DataObject) -> Copy:
    by = data.draw(st.sampled_from([-1, 1]))
    what = data.draw(st.sampled_from(["rank", "source", "target", "both ends"]))
    if what == "rank":
        return copy._replace(source_rank=copy.source_rank + by)
    dimension = data.draw(st.integers(0, len(copy.source) - 1))
    ends = data.draw(st.sampled_from([(by, by), (by, 0), (0, by)]))

    def shifted(box: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        start, stop = box[dimension]
        return (*box[:dimension], (start + ends[0], stop + ends[1]), *box[dimension + 1 :])

    if what == "both ends":
        return copy._replace(source=shifted(copy.source), target=shifted(copy.target))
    return copy._replace(**{what: shifted(copy._asdict()[what])})
