"""Which modules an adapter means: the rules of PEFT, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from mindbatch.checkpoint.lora.config import LoraSettings, _patterns
from mindbatch.checkpoint.lora.targets import targets_of

MODULES = (
    "model.embed_tokens",
    "model.layers.0.self_attn.q_proj",
    "model.layers.1.self_attn.q_proj",
    "model.layers.1.mlp.up_proj",
    "model.layers.11.mlp.experts.1.up_proj",
    "model.xlayers.1.up_proj",
    "lm_head",
)
EMBED, Q0, Q1, UP1, EXPERT, OTHER, HEAD = MODULES


@pytest.mark.parametrize(
    ("settings", "meant"),
    [
        ({"target_modules": ["q_proj"]}, {Q0, Q1}),
        ({"target_modules": ["proj", "layers.1.self_attn.q_proj"]}, {Q1}),
        ({"target_modules": ["lm_head", "embed_tokens"]}, {HEAD, EMBED}),
        ({"target_modules": [".*q_proj"]}, {Q0, Q1}),
        ({"target_modules": "q_proj", "peft_type": "LORA"}, set()),
        ({"target_modules": "q_proj|up"}, {Q0, Q1, UP1, EXPERT, OTHER}),
        ({"target_modules": r".*\.1\..*"}, {Q1, UP1, EXPERT, OTHER}),
        (
            {"target_modules": ["q_proj", "up_proj"], "exclude_modules": ["layers.1.self_attn.q_proj"]},
            {Q0, UP1, EXPERT, OTHER},
        ),
        ({"target_modules": ["q_proj"], "exclude_modules": r".*\.0\..*"}, {Q1}),
        ({"target_modules": ["q_proj", "lm_head"], "modules_to_save": ["lm_head"]}, {Q0, Q1}),
        ({"target_modules": ["up_proj"], "layers_to_transform": 1}, {UP1, OTHER}),
        ({"target_modules": ["up_proj"], "layers_to_transform": [1], "layers_pattern": "layers"}, {UP1}),
        (
            {"target_modules": ["up_proj"], "layers_to_transform": [1, 11], "layers_pattern": ["layers"]},
            {UP1, EXPERT},
        ),
        ({"target_modules": ["up_proj"], "layers_to_transform": []}, {UP1, EXPERT, OTHER}),
        ({"target_modules": ["q_proj", "lm_head"], "layers_to_transform": [0]}, {Q0, HEAD}),
        ({"target_modules": "all-linear"}, set()),
        ({}, set()),
    ],
    ids=lambda value: str(sorted(value)) if isinstance(value, set) else str(value),
)
def test_the_modules_that_are_meant(settings: dict[str, Any], meant: set[str]) -> None:
    """A module that is named in full is meant in whatever layer it is."""
    targets = targets_of(settings, [])
    assert {module for module in MODULES if targets.meant_by(module)} == meant


def test_rank_and_scaling_of_a_module() -> None:
    """The first expression that matches the end of the name counts."""
    content = {
        "rank_pattern": {"q_proj": 2, r"layers\.1\..*": 8, "proj": 99},
        "alpha_pattern": {r"^model\.layers\.1\..*": 4, "embed_tokens": 5},
    }
    ranks, alphas = (_patterns(content, key, []) for key in content)
    settings = LoraSettings(16, 32.0, ranks=ranks, alphas=alphas)
    found = {module: (settings.rank_of(module), settings.scaling_of(module)) for module in MODULES}
    assert found == {
        EMBED: (16, 5 / 16),
        Q0: (2, 16.0),
        Q1: (2, 2.0),
        UP1: (8, 0.5),
        EXPERT: (16, 2.0),
        OTHER: (16, 2.0),
        HEAD: (16, 2.0),
    }
    stabilised = LoraSettings(16, 32.0, rank_stabilised=True, ranks=ranks)
    assert stabilised.scaling_of(HEAD) == 8.0
    assert LoraSettings(16, 0.0, uniform_scaling=3.0, ranks=ranks).scaling_of(Q0) == 3.0
