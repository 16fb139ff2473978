"""Layers and parameters of pipeline stages."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, pairwise

import pytest
from drawn_models import gpt2_specs, llama_specs, models
from hypothesis import given
from hypothesis import strategies as st

from mindbatch.architecture.stage_cut import (
    AUTO,
    cut,
    even_in_time,
    is_tied,
    number_of_layers,
    stage_errors,
    stage_specs,
)
from mindbatch.architecture.tensor_spec import TensorSpec, shard_specs
from mindbatch.ascend_simulation.no_weights import NoWeights, sources_of_layers
from mindbatch.model_spec.described_folder import check_tensors
from mindbatch.model_spec.registry import describe, tensor_specs
from mindbatch.parallel.topology import WHOLE, Stage, TensorSlice
from mindbatch.tasks.compile.task import sampled_layers


def numbers(specs: list[TensorSpec]) -> int:
    return sum(spec.local_outputs(WHOLE) * (spec.local_inputs(WHOLE) or 1) for spec in specs)


def largest(specs: list[TensorSpec], sizes: list[int]) -> int:
    """Numbers of the stage that holds most."""
    return max(numbers(stage_specs(specs, stage)) for stage in cut(specs, len(sizes), tuple(sizes)))


def divisions(layers: int, stages: int) -> Iterator[list[int]]:
    """All numbers of layers that stages can have."""
    for ends in combinations(range(1, layers), stages - 1):
        yield [stop - start for start, stop in pairwise((0, *ends, layers))]


@given(models(), st.data())
def test_stages_hold_every_parameter_and_only_a_tied_embedding_twice(
    specs: list[TensorSpec], data: st.DataObject
) -> None:
    layers = number_of_layers(specs)
    stages = data.draw(st.integers(1, layers))
    device_map = data.draw(st.sampled_from([None, AUTO]))
    held = [spec.name for stage in cut(specs, stages, device_map) for spec in stage_specs(specs, stage)]
    twice = ["embedding.weight"] if is_tied(specs) and stages > 1 else []
    assert sorted(held) == sorted([spec.name for spec in specs] + twice)


@given(models(), st.data())
def test_no_other_stages_would_take_less_time(specs: list[TensorSpec], data: st.DataObject) -> None:
    layers = number_of_layers(specs)
    found = even_in_time(specs, data.draw(st.integers(1, layers)))
    head = "embedding." if is_tied(specs) else "head."

    def slowest(sizes: Sequence[int]) -> int:
        held = [stage_specs(specs, stage) for stage in cut(specs, len(sizes), tuple(sizes))]
        took = [numbers([spec for spec in each if spec.name.startswith("layers.")]) for each in held]
        took[-1] += round(0.5 * numbers([spec for spec in held[-1] if spec.name.startswith(head)]))
        return max(took)

    assert sum(found) == layers
    assert slowest(found) == min(map(slowest, divisions(layers, len(found))))


@given(models(), st.data())
def test_auto_makes_the_largest_stage_as_small_as_it_can_be(
    specs: list[TensorSpec], data: st.DataObject
) -> None:
    layers = number_of_layers(specs)
    stages = data.draw(st.integers(1, layers))
    found = [len(stage.layers) for stage in cut(specs, stages, AUTO)]
    assert sum(found) == layers
    assert min(found) > 0
    assert largest(specs, found) == min(largest(specs, sizes) for sizes in divisions(layers, stages))


def test_a_large_vocabulary_leaves_its_stages_fewer_layers() -> None:
    specs = llama_specs(vocabulary=600, layers=9)
    assert [len(stage.layers) for stage in cut(specs, 3)] == [3, 3, 3]
    assert [len(stage.layers) for stage in cut(specs, 3, AUTO)] == [1, 7, 1]
    assert [stage.layers for stage in cut(specs, 3, (2, 3, 4))] == [range(2), range(2, 5), range(5, 9)]


def test_a_head_takes_time_and_an_embedding_does_not() -> None:
    small = llama_specs(vocabulary=600, layers=9)
    assert even_in_time(small, 1) == (9,)
    assert even_in_time(small, 3) == (4, 4, 1)
    assert even_in_time(llama_specs(vocabulary=6000, layers=9), 3) == (7, 1, 1)


def test_the_ends_of_a_model_are_on_the_ends_of_the_pipeline() -> None:
    first, second = (stage_specs(gpt2_specs(layers=2), stage) for stage in cut(gpt2_specs(layers=2), 2))
    assert {spec.name for spec in first if "layers" not in spec.name} == {
        "embedding.weight",
        "positions.weight",
    }
    assert {spec.name for spec in second if "layers" not in spec.name} == {
        "embedding.weight",
        "norm.weight",
        "norm.bias",
    }
    assert {spec.name.split(".")[1] for spec in second if "layers" in spec.name} == {"1"}


@pytest.mark.parametrize(
    ("stages", "device_map", "fault"),
    [
        (3, None, "pipeline_stage=3: the model has 2 layers; allowed: 1 to 2"),
        (0, None, "pipeline_stage=0: the model has 2 layers; allowed: 1 to 2"),
        (2, (2, 1), "device_map=[2, 1]: 3 layers in all, and the model has 2; even stages are [1, 1]"),
    ],
)
def test_what_a_model_cannot_be_cut_into(stages: int, device_map: tuple[int, ...] | None, fault: str) -> None:
    assert [*stage_errors(2, stages, device_map)] == [fault]
    assert not [*stage_errors(2, 2, device_map and (1, 1))]


def test_a_stage_says_which_layers_it_has() -> None:
    assert str(Stage(range(4, 8), 1, 2)) == "stage 1 of 2, layers 4 to 7"


CONFIG = {
    "model_type": "qwen2",
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "use_sliding_window": True,
    "sliding_window": 8,
    "max_window_layers": 4,
}
ARCH = describe(CONFIG)


def test_there_is_just_what_a_rank_wants() -> None:
    for shard in (WHOLE, TensorSlice(3, 4)):
        held = NoWeights.of(ARCH, shard)
        check_tensors(ARCH, shard_specs(tensor_specs(ARCH), shard), held)
    assert held.info("model.embed_tokens.weight").shape == (25, 32)
    assert held.floats("model.embed_tokens.weight", rows=slice(20, 30)).shape == (5, 32)
    assert not held.floats("model.norm.weight").any()


def test_a_sample_has_every_kind_of_layer() -> None:
    assert ARCH.windows == (0, 0, 0, 0, 8, 8)
    assert sampled_layers(ARCH, range(6)) == (0, 1, 4, 5)
    assert sampled_layers(ARCH, range(1, 4)) == (1, 2, 3)
    assert sampled_layers(ARCH, range(2, 6)) == (2, 3, 4, 5)
    assert ARCH.with_layers((0, 4)).windows == (0, 8)
    assert ARCH.with_layers((0, 4)).num_layers == 2
    assert sampled_layers(ARCH.with_layers((0,)), range(1)) == (0,)


def test_rotary_positions_are_of_the_sampled_layers() -> None:
    """A layer that has none is of another kind."""
    rotaries = (*[ARCH.rotary] * 2, None, *[ARCH.rotary] * 3)
    arch = replace(ARCH, layer_rotaries=rotaries, windows=(0,) * 6)
    assert sampled_layers(arch, range(6)) == (0, 1, 2, 5)
    assert arch.with_layers((0, 2)).layer_rotaries == (ARCH.rotary, None)


def test_tensors_of_some_layers_have_the_names_of_the_first() -> None:
    sample = tensor_specs(ARCH.with_layers((1, 4)))
    names = sources_of_layers(tensor_specs(ARCH), sample, (1, 4))
    assert names["model.layers.4.mlp.up_proj.weight"] == "model.layers.1.mlp.up_proj.weight"
    assert names["model.layers.1.self_attn.q_proj.bias"] == "model.layers.0.self_attn.q_proj.bias"
    assert names["lm_head.weight"] == "lm_head.weight"
    assert not any(".layers.0." in name for name in names)
