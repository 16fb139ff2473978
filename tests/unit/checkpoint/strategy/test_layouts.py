"""Strategies of placements: what they say, and what MindSpore has no words for."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from drawn_models import gpt2_specs, llama_specs, models
from hypothesis import given
from hypothesis import strategies as st

from mindbatch.checkpoint.placement.placements import allowed_model_parallel, placements, with_replicas
from mindbatch.checkpoint.placement.regions import Placement, single_segment
from mindbatch.checkpoint.strategy.placements import stage_strategies, strategy_placements
from mindbatch.checkpoint.strategy.strategy import TensorLayout
from mindbatch.checkpoint.strategy.strategy_file import read_strategy, strategy_bytes, strategy_name
from mindbatch.io.errors import CheckpointError
from mindbatch.models.stage_cut import number_of_layers
from mindbatch.models.tensor_spec import TensorSpec, source_shapes

PREFIX = "model.layers.0."


def layouts(specs: list[TensorSpec], ways: int, copies: int = 1) -> Mapping[str, TensorLayout]:
    (strategy,) = stage_strategies(with_replicas(placements(specs, ways), ways, copies), ways, 1)
    return strategy.of_stage(0)


def refusal(found: Mapping[str, Placement], ways: int) -> tuple[str, ...]:
    with pytest.raises(CheckpointError) as caught:
        stage_strategies(found, ways, 1)
    return caught.value.faults


@given(models(), st.data())
def test_a_file_says_what_was_placed_or_there_is_none(
    tmp_path_factory: pytest.TempPathFactory, specs: list[TensorSpec], data: st.DataObject
) -> None:
    ways = data.draw(st.sampled_from(allowed_model_parallel(specs)))
    stages = data.draw(st.integers(1, min(2, number_of_layers(specs))))
    copies = data.draw(st.integers(1, 3))
    found = with_replicas(placements(specs, ways, stages), ways, copies)
    shards = [(name, shard) for name, placement in found.items() for shard in placement.shards if shard]
    unfit = [name for name, shard in shards if shard.padding or len(shard.segments) > 1]
    if unfit:
        with pytest.raises(CheckpointError, match="|".join(map(re.escape, unfit))):
            stage_strategies(found, ways, stages)
        return
    folder: Path = tmp_path_factory.mktemp("s")
    for stage, strategy in enumerate(stage_strategies(found, ways, stages)):
        (folder / strategy_name(stage * ways * copies)).write_bytes(strategy_bytes(strategy))
    assert strategy_placements(read_strategy(folder), source_shapes(specs)) == found


def test_copies_come_first_in_the_matrix_and_shared_heads_last() -> None:
    found = layouts(llama_specs(heads=8, kv_heads=2, vocabulary=12), 4, 3)
    assert found[f"{PREFIX}self_attn.q_proj.weight"].device_matrix == (3, 4)
    assert found[f"{PREFIX}self_attn.q_proj.weight"].tensor_map == (0, -1)
    assert found[f"{PREFIX}self_attn.k_proj.weight"].device_matrix == (3, 2, 2)
    assert found[f"{PREFIX}self_attn.k_proj.weight"].tensor_map == (1, -1)
    assert found[f"{PREFIX}mlp.down_proj.weight"].tensor_map == (-1, 0)
    assert found[f"{PREFIX}input_layernorm.weight"].device_matrix == (3, 4)
    assert found[f"{PREFIX}input_layernorm.weight"].tensor_map == (-1,)


def test_each_stage_has_its_own_tensors() -> None:
    specs = llama_specs(vocabulary=12, tied=True)
    first, last = stage_strategies(placements(specs, 2, 2), 2, 2)
    assert (first.stage, last.stage) == (0, 1)
    names = [{layout.name for layout in strategy.layouts} for strategy in (first, last)]
    assert names[0] & names[1] == {"model.embed_tokens.weight"}
    assert "model.norm.weight" in names[1] - names[0]


def test_a_padded_vocabulary_is_refused() -> None:
    faults = refusal(placements(llama_specs(vocabulary=11), 2), 2)
    assert faults == (
        "tensors 'model.embed_tokens.weight', 'lm_head.weight': shape [11, 6] is padded with zeros to be cut "
        "evenly; a strategy knows no padding",
    )


def test_a_fused_matrix_is_refused_but_not_a_whole_one() -> None:
    faults = refusal(placements(gpt2_specs(vocabulary=12), 2), 2)
    assert faults == (
        "tensors 'transformer.h.0.attn.c_attn.weight', 'transformer.h.0.attn.c_attn.bias', "
        "'transformer.h.1.attn.c_attn.weight', ... and 1 more tensors: 3 pieces on each rank; a strategy "
        "gives a rank one piece",
    )
    assert layouts(gpt2_specs(), 1, 2)["transformer.h.0.attn.c_attn.weight"].tensor_map == (-1, -1)


def test_what_no_matrix_of_devices_tells_is_refused() -> None:
    halves = [single_segment((2,), ((low, low + 2),)) for low in (0, 2)]
    cells = [
        single_segment((1, 2), ((row, row + 1), (2 * low, 2 * low + 2))) for row in (0, 1) for low in (0, 1)
    ]
    found = {
        "turned": Placement("turned", (4,), tuple(halves[::-1] * 2)),
        "mixed": Placement("mixed", (4,), (halves[0], halves[1], halves[1], halves[0])),
        "lost": Placement("lost", (4,), (halves[0],) * 4),
        "both": Placement("both", (2, 4), tuple(cells)),
        "uneven": Placement(
            "uneven", (3,), (single_segment((1,), ((0, 1),)), *[single_segment((2,), ((1, 3),))] * 3)
        ),
        "beyond": Placement("beyond", (5,), (single_segment((3,), ((0, 3),)),) * 4),
    }
    for name, word in {
        "turned": "in an order that no device matrix tells",
        "mixed": "in an order",
        "lost": "in an order",
        "both": "cut in several dimensions",
        "uneven": "cut unevenly",
        "beyond": "in an order",
    }.items():
        (fault,) = refusal({name: found[name]}, 2)
        assert fault.startswith(f"tensor '{name}': ")
        assert word in fault
    assert len(refusal(found, 2)) == 3
    fine = replace(found["turned"], shards=tuple(halves * 2))
    assert stage_strategies({"turned": fine}, 2, 1)[0].layouts[0].tensor_map == (0,)
