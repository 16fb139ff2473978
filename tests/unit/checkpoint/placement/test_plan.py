"""Plans from any cut to any other: proved, minimal, and right element by element."""

from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from drawn_models import gpt2_specs, llama_specs, models
from hypothesis import given
from hypothesis import strategies as st
from placed_arrays import copied, numbered, same, scattered

from mindbatch.checkpoint.placement import plan as planning
from mindbatch.checkpoint.placement import proof
from mindbatch.checkpoint.placement.placements import allowed_model_parallel, placements
from mindbatch.checkpoint.placement.plan import Copy, TensorPlan, plan_copies
from mindbatch.checkpoint.placement.proof import proved_copies
from mindbatch.checkpoint.placement.regions import (
    Placement,
    RankFiles,
    Shape,
    Shard,
    as_placed,
    single_segment,
    whole_placements,
)
from mindbatch.io.errors import CheckpointError
from mindbatch.models.tensor_spec import TensorSpec, source_shapes


def whole_files(shapes: Mapping[str, Shape]) -> RankFiles:
    return as_placed(whole_placements(shapes), 1)


def cut_files(specs: list[TensorSpec], model_parallel: int, pipeline_stage: int = 1) -> RankFiles:
    return as_placed(placements(specs, model_parallel, pipeline_stage), model_parallel * pipeline_stage)


def one_tensor(shape: Shape, shards: Sequence[Shard]) -> RankFiles:
    return as_placed({"w": Placement("w", shape, tuple(shards))}, len(shards))


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


def test_of_replicas_the_lowest_rank_is_read() -> None:
    specs = llama_specs(heads=8, kv_heads=2)
    plans = plan_copies(cut_files(specs, 8), cut_files(specs, 4))
    read = {
        name: [copy.source_rank for made in copies(plans, name) for copy in made]
        for name in source_shapes(specs)
    }
    assert read["model.norm.weight"] == [0, 0, 0, 0]
    assert read["model.layers.0.self_attn.k_proj.weight"] == [0, 0, 4, 4]
    assert read["model.layers.0.self_attn.q_proj.weight"] == [*range(8)]


def test_replicas_that_overlap_in_part_are_read_once() -> None:
    halves = single_segment((4,), ((0, 4),)), single_segment((4,), ((2, 6),))
    plans = proved_copies(one_tensor((6,), halves), whole_files({"w": (6,)}))
    assert plans[0].copies == (Copy(0, "w", ((0, 4),), ((0, 4),)), Copy(1, "w", ((2, 4),), ((4, 6),)))


def test_tensors_without_dimensions_or_elements() -> None:
    shapes = {"scalar": (), "empty": (0, 3)}
    plans = proved_copies(whole_files(shapes), whole_files(shapes))
    assert [len(tensor.copies) for tensor in plans] == [1, 0]


def test_other_names_and_shapes_are_refused_all_at_once() -> None:
    source = whole_files({"a.weight": (2,), "norm.weight": (3,), "b": (1,)})
    target = whole_files({"a.weigth": (2,), "norm.weight": (4,), "b": (1,)})
    with pytest.raises(CheckpointError) as caught:
        plan_copies(source, target)
    assert caught.value.faults == (
        "tensor 'a.weigth': not in the source; did you mean 'a.weight'?",
        "tensor 'a.weight': has no place in the target; did you mean 'a.weigth'?",
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
    for module, name in ((planning, "_joined"), (proof, "_plan_faults"), (proof, "_stored_faults")):
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
