"""Plans from any cut to any other: proved, minimal, and right element by element."""

import pytest
from drawn_models import gpt2_specs, llama_specs, models
from hypothesis import given, settings
from hypothesis import strategies as st
from placed_arrays import Ranks, moved_by, numbered, same, scattered

from mindbatch.checkpoint.placement.placement import (
    Placement,
    Placements,
    single_segment,
    whole_placements,
)
from mindbatch.checkpoint.placement.placements import allowed_model_parallel, placements
from mindbatch.checkpoint.placement.plan import Copy, ReshardPlan, plan_reshard
from mindbatch.checkpoint.placement.plan_proof import prove
from mindbatch.errors import CheckpointError
from mindbatch.models.tensor_spec import TensorSpec, source_shapes


def resharded(source: Placements, target: Placements, ranks: Ranks) -> Ranks:
    plan = plan_reshard(source, target)
    prove(plan)
    return moved_by(plan, ranks)


def copies(plan: ReshardPlan, name: str) -> list[tuple[Copy, ...]]:
    return [tensor.copies for tensor in plan.tensors if tensor.name == name]


@settings(deadline=None)
@given(
    models(), st.tuples(st.integers(0, 7), st.integers(0, 7)), st.tuples(st.integers(1, 3), st.integers(1, 3))
)
def test_any_cut_becomes_any_other(
    specs: list[TensorSpec], choices: tuple[int, int], stages: tuple[int, int]
) -> None:
    allowed = [ways for ways in allowed_model_parallel(specs) if ways <= 8]
    layers = sum(spec.name.endswith("attention_norm.weight") for spec in specs)
    source, target = (
        placements(specs, allowed[choice % len(allowed)], min(count, layers))
        for choice, count in zip(choices, stages, strict=True)
    )
    arrays = numbered(source_shapes(specs))
    assert same(resharded(source, target, scattered(source, arrays)), scattered(target, arrays))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("ways", [1, 2, 3, 4, 6, 8])
def test_round_trips_are_the_identity(ways: int, tied: bool) -> None:
    for specs in (llama_specs(24, 2, vocabulary=13, tied=tied), gpt2_specs(24, 1, vocabulary=13)):
        if ways == 3 and specs[0].parts[0].source == "model.embed_tokens.weight":
            specs = llama_specs(24, 6, vocabulary=13, tied=tied)
        shapes = source_shapes(specs)
        full, first = whole_placements(shapes), placements(specs, ways)
        second = placements(specs, 2, 2)
        arrays = numbered(shapes)
        ranks = resharded(full, first, [arrays])
        assert len(ranks) == ways
        ranks = resharded(first, second, ranks)
        assert same(resharded(second, full, ranks), [arrays])


def test_full_to_2_4_8_to_4_to_full() -> None:
    specs = llama_specs(heads=8, kv_heads=2, vocabulary=11)
    full = whole_placements(source_shapes(specs))
    arrays = numbered(source_shapes(specs))
    steps = [full, *(placements(specs, ways) for ways in (2, 4, 8, 4)), full]
    ranks: Ranks = [arrays]
    for source, target in zip(steps, steps[1:], strict=False):
        ranks = resharded(source, target, ranks)
        assert same(ranks, scattered(target, arrays))
    assert same(ranks, [arrays])


def test_copies_are_as_few_as_may_be() -> None:
    specs = gpt2_specs(heads=4, head_dim=2)
    fused = "transformer.h.0.attn.c_attn.weight"
    full, two, four = whole_placements(source_shapes(specs)), placements(specs, 2), placements(specs, 4)
    assert [len(made) for made in copies(plan_reshard(full, two), fused)] == [3, 3]
    assert [len(made) for made in copies(plan_reshard(two, two), fused)] == [1, 1]
    assert [len(made) for made in copies(plan_reshard(two, four), fused)] == [3, 3, 3, 3]
    assert [len(made) for made in copies(plan_reshard(two, full), fused)] == [6]
    assert all(len(tensor.copies) == 1 for tensor in plan_reshard(full, full).tensors)


def test_copies_are_in_order_of_the_target_whatever_the_order_of_the_ranks() -> None:
    shards = tuple(single_segment((2,), ((low, low + 2),)) for low in (4, 0, 2))
    plan = plan_reshard({"w": Placement("w", (6,), shards)}, whole_placements({"w": (6,)}))
    assert [copy.source_rank for copy in plan.tensors[0].copies] == [1, 2, 0]


def test_of_replicas_the_lowest_rank_is_read() -> None:
    specs = llama_specs(heads=8, kv_heads=2)
    plan = plan_reshard(placements(specs, 8), placements(specs, 4))
    read = {name: [copy.source_rank for made in copies(plan, name) for copy in made] for name in plan.target}
    assert read["model.norm.weight"] == [0, 0, 0, 0]
    assert read["model.layers.0.self_attn.k_proj.weight"] == [0, 0, 4, 4]
    assert read["model.layers.0.self_attn.q_proj.weight"] == [*range(8)]


def test_replicas_that_overlap_in_part_are_read_once() -> None:
    halves = Placement("w", (6,), (single_segment((4,), ((0, 4),)), single_segment((4,), ((2, 6),))))
    plan = plan_reshard({"w": halves}, whole_placements({"w": (6,)}))
    assert plan.tensors[0].copies == (Copy(0, ((0, 4),), ((0, 4),)), Copy(1, ((2, 4),), ((4, 6),)))
    assert prove(plan) == ()


def test_tensors_without_dimensions_or_elements() -> None:
    shapes = {"scalar": (), "empty": (0, 3)}
    plan = plan_reshard(whole_placements(shapes), whole_placements(shapes))
    assert [len(tensor.copies) for tensor in plan.tensors] == [1, 0]
    assert prove(plan) == ()


def test_padding_is_listed_and_comes_from_nowhere() -> None:
    specs = llama_specs(vocabulary=5)
    plan = plan_reshard(placements(specs, 2), placements(specs, 4))
    padded = {(tensor.name, tensor.rank): tensor.padding for tensor in prove(plan)}
    tables = ("model.embed_tokens.weight", "lm_head.weight")
    assert padded == {
        **{(name, 2): (((1, 2), (0, 6)),) for name in tables},
        **{(name, 3): (((0, 2), (0, 6)),) for name in tables},
    }


def test_other_names_and_shapes_are_refused_all_at_once() -> None:
    source = whole_placements({"a.weight": (2,), "norm.weight": (3,), "b": (1,)})
    target = whole_placements({"a.weigth": (2,), "norm.weight": (4,), "b": (1,)})
    with pytest.raises(CheckpointError) as caught:
        plan_reshard(source, target)
    assert caught.value.faults == (
        "tensor 'a.weigth': not in the source; did you mean 'a.weight'?",
        "tensor 'a.weight': has no place in the target; did you mean 'a.weigth'?",
        "tensor 'norm.weight': has shape [3] in the source, [4] in the target",
    )


def test_the_tensors_of_a_rank() -> None:
    specs = llama_specs(layers=2)
    plan = plan_reshard(placements(specs, 1), placements(specs, 2, 2))
    names = {tensor.name for tensor in plan.of_rank(2)}
    assert names == {name for name, placement in plan.target.items() if 2 in placement.holders}
    assert "model.embed_tokens.weight" not in names


def test_large_tensors_cost_no_more_than_small_ones() -> None:
    """A tensor of 2**60 elements: an element-wise proof would never end."""
    size = 1 << 30
    quarter = size >> 2
    shards = tuple(
        single_segment((size, quarter), ((0, size), (low, low + quarter))) for low in range(0, size, quarter)
    )
    plan = plan_reshard({"w": Placement("w", (size, size), shards)}, whole_placements({"w": (size, size)}))
    assert prove(plan) == ()
    assert len(plan.tensors[0].copies) == 4
