"""Which rank holds which element: together the ranks hold each one, once."""

from collections import Counter
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import pytest

from mindbatch.architecture.architecture import Architecture
from mindbatch.architecture.tensor_spec import (
    Sharding,
    TensorSpec,
    interleaved,
    shard_specs,
    source_shapes,
)
from mindbatch.checkpoint.placement.placements import placements
from mindbatch.layers.linear import ColumnLinear
from mindbatch.model_spec.registry import MODEL_TYPES, describe, tensor_specs
from mindbatch.parallel.topology import WHOLE, TensorSlice
from small_configs import BETWEEN, CHATGLM, EXPERTS, GPT2, LLAMA

FAMILY = LLAMA | {"vocab_size": 101, "num_attention_heads": 8, "head_dim": 4, "num_key_value_heads": 4}


def architecture(model_type: str, **changes: Any) -> Architecture:
    if model_type == "gpt2":
        return describe(GPT2 | {"vocab_size": 101})
    if model_type == "chatglm":
        sizes = {"padded_vocab_size": 101, "num_attention_heads": 8, "multi_query_group_num": 4}
        return describe(CHATGLM | sizes)
    if model_type in BETWEEN:
        return describe(BETWEEN[model_type] | {"model_type": model_type, "vocab_size": 101} | changes)
    return describe(FAMILY | {"model_type": model_type} | EXPERTS.get(model_type, {}) | changes)


def holdings(spec: TensorSpec, piece: TensorSlice) -> Counter[tuple[str, int, int]]:
    """(source, output, input) of every element on a rank, by the source's own coordinates."""
    held: Counter[tuple[str, int, int]] = Counter()
    for part in spec.parts:
        low, high = part.output_bounds(spec.sharding, piece)
        left, right = part.input_bounds(spec.sharding, piece)
        for start, stop in part.source_ranges(low, high):
            held.update(
                (f"{part.source} {part.matrix}", output, column)
                for output in range(start, stop)
                for column in range(left, right)
            )
    return held


def all_elements(spec: TensorSpec) -> set[tuple[str, int, int]]:
    return {
        (f"{part.source} {part.matrix}", output, column)
        for part in spec.parts
        for start, stop in part.source_ranges(0, part.outputs)
        for output in range(start, stop)
        for column in range(part.inputs or 1)
    }


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize("model_parallel", [1, 2, 4])
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_each_element_is_held_once_or_by_all(model_type: str, model_parallel: int) -> None:
    for spec in tensor_specs(architecture(model_type)):
        pieces = [TensorSlice(rank, model_parallel) for rank in range(model_parallel)]
        held = sum((holdings(spec, piece) for piece in pieces), Counter())
        times = model_parallel if spec.sharding is Sharding.REPLICATED else 1
        assert held == Counter(dict.fromkeys(all_elements(spec), times)), spec.name


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_local_sizes_are_what_is_held(model_type: str) -> None:
    for piece in (WHOLE, TensorSlice(0, 2), TensorSlice(1, 2), TensorSlice(3, 4)):
        for spec in tensor_specs(architecture(model_type)):
            held = len(holdings(spec, piece))
            size = spec.local_outputs(piece) * (spec.local_inputs(piece) or 1)
            assert held == size or (spec.sharding is Sharding.VOCABULARY and held < size), spec.name


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_parts_of_one_tensor_lie_together(model_type: str) -> None:
    """So adapters, which have a pair of matrices for each tensor, add to neighbouring outputs."""
    for spec in tensor_specs(architecture(model_type)):
        if spec.is_linear:
            runs = [source for source, _ in groupby(part.source for part in spec.parts)]
            assert len(runs) == len(set(runs)), spec.name


def test_grouped_heads_are_shared_when_ranks_outnumber_them() -> None:
    """8 query heads over 4 ranks, 2 key/value heads: ranks 0 and 1 hold the first, 2 and 3 the second."""
    specs = {spec.name: spec for spec in tensor_specs(architecture("llama", num_key_value_heads=2))}
    query, key, value = specs["layers.0.attention.qkv.weight"].parts
    for rank in range(4):
        piece = TensorSlice(rank, 4)
        assert query.output_bounds(Sharding.OUTPUTS, piece) == (rank * 8, rank * 8 + 8)
        head = rank // 2
        assert key.output_bounds(Sharding.OUTPUTS, piece) == (head * 4, head * 4 + 4)
        assert value.output_bounds(Sharding.OUTPUTS, piece) == (head * 4, head * 4 + 4)


def test_a_rank_holds_the_queries_of_its_keys() -> None:
    """Cuts keep groups together: rank r's query heads use just rank r's key/value heads."""
    for ranks, kv_heads in ((2, 4), (4, 4), (4, 2), (8, 2), (8, 1)):
        specs = {s.name: s for s in tensor_specs(architecture("llama", num_key_value_heads=kv_heads))}
        query, key, _ = specs["layers.1.attention.qkv.weight"].parts
        for rank in range(ranks):
            first, last = query.output_bounds(Sharding.OUTPUTS, TensorSlice(rank, ranks))
            used = {head // 4 * kv_heads // 8 for head in range(first, last)}
            low, high = key.output_bounds(Sharding.OUTPUTS, TensorSlice(rank, ranks))
            assert used == set(range(low // 4, high // 4))


def test_the_input_cut_follows_the_output_cut() -> None:
    """What a rank's attention and MLP put out is what its next matrix takes in."""
    specs = {spec.name: spec for spec in tensor_specs(architecture("llama"))}
    for rank in range(4):
        piece = TensorSlice(rank, 4)
        query = specs["layers.0.attention.qkv.weight"].parts[0].output_bounds(Sharding.OUTPUTS, piece)
        assert (
            specs["layers.0.attention.output.weight"].parts[0].input_bounds(Sharding.INPUTS, piece) == query
        )
        gate, up = (
            part.output_bounds(Sharding.OUTPUTS, piece) for part in specs["layers.0.mlp.up.weight"].parts
        )
        assert gate == up == specs["layers.0.mlp.down.weight"].parts[0].input_bounds(Sharding.INPUTS, piece)


def test_a_padded_vocabulary() -> None:
    [embedding] = [s for s in tensor_specs(architecture("llama")) if s.name == "embedding.weight"]
    shares = [
        embedding.parts[0].output_bounds(Sharding.VOCABULARY, TensorSlice(rank, 4)) for rank in range(4)
    ]
    assert shares == [(0, 26), (26, 52), (52, 78), (78, 101)]
    assert {embedding.local_outputs(TensorSlice(rank, 4)) for rank in range(4)} == {26}


def test_source_shapes_of_fused_and_transposed_tensors() -> None:
    shapes = source_shapes(tensor_specs(architecture("gpt2")))
    assert shapes["transformer.h.0.attn.c_attn.weight"] == (32, 96)
    assert shapes["transformer.h.0.attn.c_attn.bias"] == (96,)
    assert shapes["transformer.h.1.mlp.c_proj.weight"] == (128, 32)
    assert shapes["transformer.wte.weight"] == (101, 32)
    assert "lm_head.weight" not in shapes
    assert np.prod(source_shapes(tensor_specs(architecture("llama")))["lm_head.weight"]) == 101 * 32


def test_each_of_two_ranks_holds_about_half_of_a_model() -> None:
    """GPT-2 124M: norms, half of the biases and the positions are on both."""
    sizes = {"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12}
    specs = tensor_specs(describe(GPT2 | sizes))
    ranks = [TensorSlice(rank, 2) for rank in range(2)]
    whole, *halves = (sum(spec.numbers(shard) for spec in specs) for shard in (WHOLE, *ranks))
    assert whole == 124_439_808
    assert max(halves) <= 0.51 * whole


@pytest.mark.parametrize(("queries", "ranks"), [(1, 2), (1, 4), (3, 2), (4, 4), (4, 8), (6, 8)])
def test_parts_take_turns_in_rank_files_as_in_whole_ones(queries: int, ranks: int) -> None:
    """4 groups of query heads with a key and a value head each, of 2 numbers, over ranks, and beyond 4."""
    runs = (2 * queries, 2, 2)
    query, *shared = interleaved("qkv.weight", runs, 4, 1, unit=2)
    parts = (query, *(replace(part, is_shared=True) for part in shared))
    [spec] = ColumnLinear(*parts).parameters("layers.0.qkv")
    full = np.arange(4 * sum(runs))
    assert source_shapes([spec]) == {"qkv.weight": (len(full), 1)}
    [placement] = placements([spec], ranks).values()
    for rank in range(ranks):
        shard = placement.shards[rank]
        assert shard is not None
        stored = np.full(shard.shape[0], -1)
        for segment in shard.segments:
            (low, high), (first, last) = segment.local[0], segment.whole[0]
            stored[low:high] = full[first:last]
        piece = TensorSlice(rank, ranks)
        [own] = shard_specs([spec], piece)
        expected = [
            full[low:high]
            for part in spec.parts
            for low, high in part.source_ranges(*part.output_bounds(spec.sharding, piece))
        ]
        found = [stored[low:high] for part in own.parts for low, high in part.source_ranges(0, part.outputs)]
        np.testing.assert_array_equal(np.concatenate(found), np.concatenate(expected))
        assert (np.diff(stored) > 0).all()
