"""Which rank holds what of a model's tensors, by its specs."""

from collections import Counter

import numpy as np
import pytest
from drawn_models import gpt2_specs, llama_specs, models
from hypothesis import given
from hypothesis import strategies as st
from placed_arrays import numbered, scattered

from mindbatch.architecture.tensor_spec import Part, Sharding, TensorSpec, source_shapes
from mindbatch.checkpoint.placement.placements import (
    allowed_model_parallel,
    described_cut,
    placements,
)
from mindbatch.checkpoint.placement.plan import plan_copies
from mindbatch.checkpoint.placement.proof import prove
from mindbatch.checkpoint.placement.regions import (
    Placement,
    as_rank_files,
    single_segment,
    whole_placements,
)
from mindbatch.io.errors import ConfigError
from mindbatch.model_spec.registry import MODEL_TYPES, describe, tensor_specs
from mindbatch.parallel.topology import TensorSlice
from small_configs import BETWEEN, CHATGLM

LAYER = "model.layers.0"


def test_a_vocabulary_is_padded_to_equal_shapes_and_may_leave_ranks_with_padding_alone() -> None:
    table = placements(llama_specs(heads=4, vocabulary=5), 4)["model.embed_tokens.weight"]
    assert [shard.shape for shard in table.shards] == [(2, 6)] * 4
    rows = [[segment.whole[0] for segment in rank] for rank in table.ranks]
    assert rows == [[(0, 2)], [(2, 4)], [(4, 5)], []]
    padding = [shard.padding for shard in table.shards if shard]
    assert padding == [(), (), (((1, 2), (0, 6)),), (((0, 2), (0, 6)),)]
    assert table.holders == (0, 1, 2, 3)


@given(models(), st.integers(0, 7), st.integers(1, 3))
def test_the_ranks_hold_all_that_their_slices_hold(specs: list[TensorSpec], choice: int, stages: int) -> None:
    """Element by element against the bounds that the layers go by; padding is zero."""
    allowed = allowed_model_parallel(specs)
    ways = allowed[choice % len(allowed)]
    layers = sum(spec.name.endswith("attention_norm.weight") for spec in specs)
    stages = min(stages, layers)
    found = placements(specs, ways, stages)
    arrays = numbered(source_shapes(specs))
    files = as_rank_files(found, ways * stages)
    ranks = scattered(files, arrays)
    prove(plan_copies(files, files), files, files)
    for spec in specs:
        for part in spec.parts:
            for rank in found[part.source].holders:
                local = Counter(ranks[rank][part.source].ravel().tolist())
                assert expected(spec, part, arrays, TensorSlice(rank % ways, ways)) <= local
    stored = sum(np.count_nonzero(local) for rank in ranks for local in rank.values())
    counted = sum(
        len(expected(spec, part, arrays, TensorSlice(rank % ways, ways)))
        for spec in specs
        for part in spec.parts
        for rank in found[part.source].holders
    )
    assert stored == counted


def expected(spec: TensorSpec, part: Part, arrays: dict[str, np.ndarray], piece: TensorSlice) -> Counter[int]:
    low, high = part.output_bounds(spec.sharding, piece)
    left, right = part.input_bounds(spec.sharding, piece)
    array = arrays[part.source].T if part.transposed else arrays[part.source]
    rows = array[part.first + low : part.first + high]
    return Counter((rows if part.inputs is None else rows[:, left:right]).ravel().tolist())


def test_what_cannot_be_cut_is_refused_with_what_can() -> None:
    with pytest.raises(ConfigError) as caught:
        placements(llama_specs(heads=4, kv_heads=2, layers=2), 3, 5, keys="target.")
    assert caught.value.lines == (
        f"target.model_parallel=3: does not divide the 4 heads of {LAYER}.self_attn.q_proj.weight, "
        f"the 2 heads of {LAYER}.self_attn.k_proj.weight; "
        "allowed for this model: 1, 2, 4",
        "target.pipeline_stage=5: the model has 2 layers; allowed: 1 to 2",
    )
    for ways in (0, -1):
        with pytest.raises(ConfigError, match=f"_parallel={ways}: must be at least 1; allowed .* 1, 2, 4"):
            placements(llama_specs(), ways)
    with pytest.raises(ConfigError, match="pipeline_stage=0: the model has 2 layers; allowed: 1 to 2"):
        placements(llama_specs(), 1, 0)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "width", "allowed"),
    [
        # 4 divides the query heads, but neither 6 key heads nor is divided by them
        (12, 6, 24, [1, 2, 3, 6, 12]),
        (12, 4, 24, [1, 2, 4, 12]),
        (12, 1, 24, [1, 2, 3, 4, 6, 12]),
        (8, 8, 24, [1, 2, 4, 8]),
        (8, 2, 12, [1, 2, 4]),  # the MLP has 12 columns
        (8, 2, 2, [1, 2]),  # a column of the MLP is on one rank alone
    ],
)
def test_allowed_numbers_of_slices(heads: int, kv_heads: int, width: int, allowed: list[int]) -> None:
    specs = llama_specs(heads, kv_heads, width=width)
    assert allowed_model_parallel(specs) == allowed
    for ways in set(range(1, 26)) - set(allowed):
        with pytest.raises(ConfigError, match=f"^model_parallel={ways}: does not divide"):
            placements(specs, ways)


def test_query_heads_and_inputs_are_never_on_two_ranks() -> None:
    """Layers add up over the ranks what these put out: twice the same would count double."""
    [spec] = [s for s in llama_specs(heads=2, kv_heads=1) if s.name == "layers.0.attention.qkv.weight"]
    with pytest.raises(ValueError, match="q_proj.weight: 2 units cannot be cut over 4 ranks"):
        spec.local_outputs(TensorSlice(0, 4))
    with pytest.raises(ValueError, match="down: 2 units cannot be cut over 4 ranks"):
        Part("down", 8, 2).input_bounds(Sharding.INPUTS, TensorSlice(0, 4))


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_every_model_has_placements(model_type: str) -> None:
    if model_type in BETWEEN:
        specs = tensor_specs(describe(BETWEEN[model_type] | {"model_type": model_type}))
    elif model_type == "gpt2":
        specs = gpt2_specs()
    elif model_type == "chatglm":
        specs = tensor_specs(describe(CHATGLM))
    else:
        specs = llama_specs(model_type=model_type, head_dim=4)
    found = placements(specs, 2, 2)
    assert {name: placement.shape for name, placement in found.items()} == source_shapes(specs)


def test_a_spec_of_no_known_stage_is_a_mistake_of_the_model() -> None:
    with pytest.raises(ValueError, match="extra.weight: neither a layer nor"):
        placements([*llama_specs(), TensorSpec("extra.weight", (Part("x", 1),))], 1)


def test_cuts_of_fused_whole_and_uneven_tensors() -> None:
    fused = placements(gpt2_specs(), 2)["transformer.h.0.attn.c_attn.weight"]
    assert described_cut(fused) == "dimension 1 in 2, 3 pieces a rank"
    assert described_cut(whole_placements({"w": (3,)})["w"]) == "whole"
    shards = single_segment((1,), ((0, 1),)), single_segment((2,), ((1, 3),))
    assert described_cut(Placement("w", (3,), shards)) == "unevenly"
    assert described_cut(Placement("w", (3,), (None,))) == "nowhere"
    both = [
        single_segment((1, 2), ((row, row + 1), (2 * low, 2 * low + 2))) for row in (0, 1) for low in (0, 1)
    ]
    assert described_cut(Placement("w", (2, 4), (*both, *both, *both))) == (
        "dimension 0 in 2, dimension 1 in 2, each 3 times"
    )
