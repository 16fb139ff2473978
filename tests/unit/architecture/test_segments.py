"""Products over divided inputs are of as many segments on all ranks together as in one process."""

import pytest

from mindbatch.architecture.tensor_spec import Layout, Part, Sharding, TensorSpec, shard_specs
from mindbatch.checkpoint.placement.placements import allowed_model_parallel, sums_alike
from mindbatch.kernels.memory import BFLOAT16, FLOAT32, INT8, NumberType
from mindbatch.kernels.native_weights import MAX_PACKED_SEGMENTS, finer_segments
from mindbatch.layers.rank import declared
from mindbatch.model_spec.registry import describe, tensor_specs
from mindbatch.parallel.topology import TensorSlice

QWEN = {
    "model_type": "qwen2",
    "vocab_size": 32,
    "hidden_size": 56,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def matrix(inputs: int, unit: int = 1, sharding: Sharding = Sharding.INPUTS) -> TensorSpec:
    spec = declared(Part("w", 8, inputs, unit=unit), sharding=sharding, layout=Layout.PACKED)
    assert isinstance(spec, TensorSpec)
    return spec


@pytest.mark.parametrize(
    ("inputs", "unit", "segments"),
    [(64, 1, 8), (768, 64, 4), (896, 64, 2), (12, 1, 4), (7, 1, 1), (256, 8, 8)],
)
def test_segments_are_whole_heads_and_a_power_of_two(inputs: int, unit: int, segments: int) -> None:
    assert matrix(inputs, unit).segments == segments
    assert matrix(inputs, unit, Sharding.OUTPUTS).segments == 1


@pytest.mark.parametrize("size", [1, 2, 4])
def test_ranks_divide_them(size: int) -> None:
    spec = matrix(96, 8)
    found = [spec.local_segments(TensorSlice(rank, size)) for rank in range(size)]
    assert found == [4 // size] * size


def test_where_they_do_not_each_rank_has_one() -> None:
    assert matrix(48).local_segments(TensorSlice(0, 3)) == 1
    assert matrix(16 * 8, 8).local_segments(TensorSlice(0, 16)) == 1


def test_a_ranks_own_file_has_those_of_the_rank() -> None:
    shard = TensorSlice(1, 2)
    [own] = shard_specs([matrix(96, 8)], shard)
    assert own.segments == 2 == matrix(96, 8).local_segments(shard)


def test_what_slices_change_no_bits() -> None:
    specs = tensor_specs(describe(QWEN))
    assert allowed_model_parallel(specs) == [1, 2]
    assert [size for size in (1, 2, 3, 4) if sums_alike(specs, size)] == [1, 2]


@pytest.mark.parametrize("inputs", [64, 640, 768, 896, 4864, 11008, 1 << 17, 1 << 20])
@pytest.mark.parametrize("segments", [1, 8])
@pytest.mark.parametrize("kind", [FLOAT32, BFLOAT16, INT8], ids=lambda kind: kind.name)
def test_they_are_halved_alike_on_any_number_of_ranks(kind: NumberType, segments: int, inputs: int) -> None:
    whole = finer_segments(kind, inputs, segments)
    assert whole % segments == 0
    assert whole <= MAX_PACKED_SEGMENTS
    if segments == 8 and whole < MAX_PACKED_SEGMENTS:
        assert finer_segments(kind, inputs // 2, 4) * 2 == whole
