"""Plans from any cut to any other are minimal and right; the proof refuses others, with tensor and box."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from drawn_models import gpt2_specs, llama_specs, models
from hypothesis import given
from hypothesis import strategies as st
from placed_arrays import copied, numbered, same, scattered

from mindbatch.architecture.tensor_spec import TensorSpec, source_shapes
from mindbatch.checkpoint.placement import plan as planning
from mindbatch.checkpoint.placement import proof
from mindbatch.checkpoint.placement.placements import allowed_model_parallel, placements
from mindbatch.checkpoint.placement.plan import Copy, TensorPlan, plan_copies
from mindbatch.checkpoint.placement.proof import prove, proved_copies
from mindbatch.checkpoint.placement.regions import (
    Placement,
    RankFiles,
    Segment,
    Shape,
    Shard,
    StoredShard,
    as_rank_files,
    single_segment,
    whole_placements,
)
from mindbatch.io.errors import CheckpointError


def whole_files(shapes: Mapping[str, Shape]) -> RankFiles:
    return as_rank_files(whole_placements(shapes), 1)


def cut_files(specs: list[TensorSpec], model_parallel: int, pipeline_stage: int = 1) -> RankFiles:
    return as_rank_files(placements(specs, model_parallel, pipeline_stage), model_parallel * pipeline_stage)


def one_tensor(shape: Shape, shards: Sequence[Shard]) -> RankFiles:
    return as_rank_files({"w": Placement("w", shape, tuple(shards))}, len(shards))


def copies(plans: list[TensorPlan], name: str) -> list[tuple[Copy, ...]]:
    return [tensor.copies for tensor in plans if tensor.name == name]


@given(
    models(), st.tuples(st.integers(0, 7), st.integers(0, 7)), st.tuples(st.integers(1, 3), st.integers(1, 3))
)
def test_any_cut_becomes_any_other(
    specs: list[TensorSpec], choices: tuple[int, int], stages: tuple[int, int]
) -> None:
    allowed = [ways for ways in allowed_model_parallel(specs) if ways <= 8]
    layers = sum(spec.name.endswith("attention_norm.weight") for spec in specs)
    source, target = (
        cut_files(specs, allowed[choice % len(allowed)], min(count, layers))
        for choice, count in zip(choices, stages, strict=True)
    )
    arrays = numbered(source_shapes(specs))
    plans = proved_copies(source, target)
    assert same(copied(plans, source, scattered(source, arrays)), scattered(target, arrays))


def test_copies_are_as_few_as_may_be() -> None:
    specs = gpt2_specs(heads=4, head_dim=2)
    fused = "transformer.h.0.attn.c_attn.weight"
    full, two, four = whole_files(source_shapes(specs)), cut_files(specs, 2), cut_files(specs, 4)
    assert [len(made) for made in copies(plan_copies(full, two), fused)] == [3, 3]
    assert [len(made) for made in copies(plan_copies(two, two), fused)] == [1, 1]
    assert [len(made) for made in copies(plan_copies(two, four), fused)] == [3, 3, 3, 3]
    assert [len(made) for made in copies(plan_copies(two, full), fused)] == [6]
    assert all(len(tensor.copies) == 1 for tensor in plan_copies(full, full))


def test_copies_are_in_order_of_the_target_whatever_the_order_of_the_ranks() -> None:
    shards = tuple(single_segment((2,), ((low, low + 2),)) for low in (4, 0, 2))
    plans = plan_copies(one_tensor((6,), shards), whole_files({"w": (6,)}))
    assert [copy.source_rank for copy in plans[0].copies] == [1, 2, 0]


def test_tensors_without_dimensions_or_elements() -> None:
    shapes = {"scalar": (), "empty": (0, 3)}
    plans = proved_copies(whole_files(shapes), whole_files(shapes))
    assert [len(tensor.copies) for tensor in plans] == [1, 0]


def test_other_names_and_shapes_are_refused_all_at_once() -> None:
    source = whole_files({"a.weight": (2,), "norm.weight": (3,), "b": (1,)})
    target = whole_files({"a.weigth": (2,), "norm.weight": (4,), "b": (1,)})
    with pytest.raises(CheckpointError) as caught:
        plan_copies(source, target)
    assert caught.value.lines == (
        "tensor 'a.weigth': not in the source; did you mean 'a.weight'?",
        "tensor 'a.weight': is not part of the target; did you mean 'a.weigth'?",
        "tensor 'norm.weight': has shape [3] in the source, [4] in the target",
    )


def test_large_tensors_cost_no_more_than_small_ones() -> None:
    """A tensor of 2**60 elements: an element-wise proof would never end."""
    size = 1 << 30
    quarter = size >> 2
    shards = tuple(
        single_segment((size, quarter), ((0, size), (low, low + quarter))) for low in range(0, size, quarter)
    )
    plans = proved_copies(one_tensor((size, size), shards), whole_files({"w": (size, size)}))
    assert len(plans[0].copies) == 4


def test_layers_that_are_cut_alike_are_planned_and_proved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a model of a hundred layers over a hundred ranks takes a second."""
    done: list[str] = []
    for module, name in ((planning, "_joined"), (proof, "_plan_errors"), (proof, "_stored_errors")):
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *all, name=name, real=real: done.append(name) or real(*all))
    counts = []
    for layers in (2, 6):
        specs = llama_specs(heads=8, kv_heads=8, layers=layers)
        done.clear()
        proved_copies(cut_files(specs, 2, 2), cut_files(specs, 4))
        counts.append(Counter(done))
    assert counts[0] == counts[1]
    assert len(counts[0]) == 3


LEFT, RIGHT = single_segment((4, 3), ((0, 4), (0, 3))), single_segment((4, 3), ((0, 4), (3, 6)))


def ranks(*shards: Shard | None, name: str = "w") -> RankFiles:
    return as_rank_files({name: Placement(name, (4, 6), shards)}, len(shards))


FULL = ranks(single_segment((4, 6), ((0, 4), (0, 6))))
HALVES = ranks(LEFT, RIGHT)


def faults(
    plans: Sequence[TensorPlan], source: RankFiles = FULL, target: RankFiles = HALVES
) -> tuple[str, ...]:
    with pytest.raises(CheckpointError) as caught:
        prove(plans, source, target)
    return caught.value.lines


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
        return as_rank_files(placed, len(w))

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
    source = target = as_rank_files(square, 1)
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
