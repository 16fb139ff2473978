"""The dp x pp x mp grid, and cuts of a dimension with a pretended world size."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindbatch.parallel.topology import WHOLE, TensorSlice, Topology, stage_layers


@given(size=st.integers(1, 16), share=st.integers(1, 9), unit=st.integers(1, 5))
def test_slices_join_to_the_whole(size: int, share: int, unit: int) -> None:
    total = size * share * unit
    bounds = [TensorSlice(rank, size).bounds(total, unit) for rank in range(size)]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == total
    assert all(left[1] == right[0] for left, right in zip(bounds, bounds[1:], strict=False))
    assert {high - low for low, high in bounds} == {share * unit}


@given(units=st.integers(1, 6), ranks_per_unit=st.integers(2, 5), unit=st.integers(1, 7))
def test_neighbours_share_a_unit_when_ranks_outnumber_units(
    units: int, ranks_per_unit: int, unit: int
) -> None:
    size = units * ranks_per_unit
    for rank in range(size):
        index = rank // ranks_per_unit
        assert TensorSlice(rank, size).bounds(units * unit, unit) == (index * unit, (index + 1) * unit)


@pytest.mark.parametrize(
    ("total", "unit", "size"), [(32, 1, 3), (30, 4, 2), (24, 8, 2), (12, 4, 4), (10, 3, 1)]
)
def test_what_does_not_divide_is_refused(total: int, unit: int, size: int) -> None:
    with pytest.raises(ValueError, match=f"{total} elements in units of {unit} cannot be cut over {size}"):
        TensorSlice(0, size).bounds(total, unit)


@given(dp=st.integers(1, 4), mp=st.integers(1, 4), pp=st.integers(1, 4))
def test_every_rank_has_a_place_of_its_own(dp: int, mp: int, pp: int) -> None:
    topology = Topology(dp, mp, pp)
    places = [topology.coordinates(rank) for rank in range(topology.world_size)]
    assert places == [*product(range(dp), range(pp), range(mp))]
    for replica in range(dp):
        assert [places[rank].replica for rank in topology.ranks_of(replica)] == [replica] * mp * pp
        assert places[topology.leader_of(replica)] == (replica, pp - 1, 0)


def test_a_rank_has_its_slice() -> None:
    assert Topology(data_parallel=2, model_parallel=4).slice_of(6) == TensorSlice(2, 4)
    assert Topology().slice_of(0) == WHOLE


@given(layers=st.integers(1, 40), stages=st.integers(1, 12))
def test_stages_share_the_layers_evenly_and_in_order(layers: int, stages: int) -> None:
    parts = [stage_layers(layers, stage, stages) for stage in range(stages)]
    assert [layer for part in parts for layer in part] == [*range(layers)]
    sizes = [len(part) for part in parts]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


def test_both_ends_of_a_stage_link_name_the_same_group() -> None:
    topology = Topology(model_parallel=2, pipeline_stage=3)
    groups = [dict(topology.stage_links(rank)) for rank in range(6)]
    assert groups[0] == {"stage_link_0_0": [0, 2]}
    assert groups[3] == {"stage_link_0_1": [1, 3], "stage_link_1_1": [3, 5]}
    assert [*groups[3]] == ["stage_link_0_1", "stage_link_1_1"]  # the stage before first
    for rank, found in enumerate(groups):
        assert all(rank in ranks and groups[ranks[0]][name] == ranks for name, ranks in found.items())
    assert not Topology(model_parallel=4).stage_links(2)
