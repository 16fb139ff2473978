"""The bytes of a layout, by tensor and by rank."""

import pytest
from drawn_models import gpt2_specs, llama_specs

from mindbatch.checkpoint.placement.placements import described_cut, layout_rows, placements, rank_totals
from mindbatch.checkpoint.placement.regions import Placement, single_segment, whole_placements
from mindbatch.models.tensor_spec import source_shapes


def test_bytes_of_each_rank_count_padding_and_copies() -> None:
    specs = llama_specs(heads=8, kv_heads=2, vocabulary=11, layers=2)
    names = source_shapes(specs)
    rows = {row.name: row for row in layout_rows(placements(specs, 4, 2), dict.fromkeys(names, 2))}
    table, key = rows["model.embed_tokens.weight"], rows["model.layers.1.self_attn.k_proj.weight"]
    assert table.nbytes == 11 * 6 * 2
    assert table.rank_bytes == (3 * 6 * 2,) * 4 + (0,) * 4
    assert key.nbytes == 4 * 6 * 2
    assert key.rank_bytes == (0,) * 4 + (2 * 6 * 2,) * 4
    totals = rank_totals(rows.values())
    assert sum(nbytes for _, nbytes in totals) == sum(sum(row.rank_bytes) for row in rows.values())
    assert [tensors for tensors, _ in totals] == [10] * 4 + [11] * 4


def test_a_full_checkpoint_has_its_own_bytes() -> None:
    shapes = {"a": (3, 5), "scalar": (), "empty": (0, 4)}
    rows = layout_rows(whole_placements(shapes), {"a": 4, "scalar": 8, "empty": 2})
    assert [row.nbytes for row in rows] == [60, 8, 0]
    assert rank_totals(rows) == [(3, 68)]
    assert rank_totals([]) == []


@pytest.mark.parametrize(
    ("name", "cut"),
    [
        ("model.embed_tokens.weight", "dimension 0 in 4, padded to 12"),
        ("model.layers.0.self_attn.q_proj.weight", "dimension 0 in 4"),
        ("model.layers.0.self_attn.k_proj.weight", "dimension 0 in 2, each twice"),
        ("model.layers.0.mlp.down_proj.weight", "dimension 1 in 4"),
        ("model.layers.0.input_layernorm.weight", "whole, 4 times"),
    ],
)
def test_cuts_in_words(name: str, cut: str) -> None:
    assert described_cut(placements(llama_specs(heads=8, kv_heads=2, vocabulary=11), 4)[name]) == cut


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
