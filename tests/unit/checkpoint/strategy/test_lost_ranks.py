"""What is left of several ranks is told from a whole checkpoint, by the strategy and the shapes alone."""

from collections.abc import Mapping
from typing import Any

import pytest

from mindbatch.checkpoint.placement.placements import placements
from mindbatch.checkpoint.placement.regions import Shape
from mindbatch.checkpoint.strategy.placements import part_fault, stage_strategies
from mindbatch.checkpoint.strategy.strategy import Strategy, TensorLayout
from mindbatch.models.registry import describe, tensor_specs
from reshard_models import LLAMA, MODELS

GROUPED = {
    **LLAMA,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
}
"""Keys of a width that is that of an eighth of the hidden size."""


def cut(config: Mapping[str, Any], ways: int) -> tuple[Strategy, dict[str, Shape], dict[str, Shape]]:
    """The strategy of a model, the shapes of the whole and those of the first rank."""
    placed = placements(tensor_specs(describe(config)), ways, 1)
    [strategy] = stage_strategies(placed, ways, 1)
    whole = {name: each.shape for name, each in placed.items()}
    return strategy, whole, {name: strategy.of_stage(0)[name].local_shape(whole[name]) for name in whole}


@pytest.mark.parametrize("ways", [2, 4, 8])
@pytest.mark.parametrize(
    "config", [{**LLAMA, "vocab_size": 64}, {**MODELS["qwen2"]}, GROUPED], ids=["llama", "qwen2", "grouped"]
)
def test_models(config: dict[str, Any], ways: int) -> None:
    strategy, whole, part = cut({**config, "num_key_value_heads": 8}, ways)
    assert part_fault(strategy, whole) is None
    assert "its strategy" in (part_fault(strategy, part) or "")


def strategy(**maps: tuple[int, ...]) -> Strategy:
    return Strategy(tuple(TensorLayout(name, (4,), axes) for name, axes in maps.items()))


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        ({"w": (8, 8), "n": (8,)}, None),
        ({"w": (2, 8), "n": (8,)}, "tensor 'w' [2, 8]: 2 does not divide by the 4"),
        ({"w": (4, 16), "n": (16,)}, "tensor 'w' [4, 16]: 4 of 16"),
        ({"w": (4, 12), "n": (12,)}, None),  # nothing shows it
        ({"w": (16, 16), "v": (4, 16), "n": (16,)}, None),  # one size is that of the whole
        ({"n": (16,)}, None),
        ({"n": (3, 5)}, None),  # a layout for one dimension
        ({"other": (2, 8)}, None),
    ],
)
def test_by_hand(shapes: dict[str, Shape], said: str | None) -> None:
    found = part_fault(strategy(w=(0, -1), v=(0, -1), n=(-1,)), shapes)
    assert (found is None) if said is None else (said in (found or ""))
