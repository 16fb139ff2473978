"""Rotary frequencies equal transformers' (rope.json is made by tests/makers/make_model_fixtures.py)."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mindbatch.config_json.reader import ConfigReader
from mindbatch.config_json.rope import read_rotary
from mindbatch.model_spec.registry import defaults

CASES: dict[str, Any] = json.loads((Path(__file__).parent / "rope.json").read_text())


@pytest.mark.parametrize("case", list(CASES))
def test_frequencies(case: str) -> None:
    expected = CASES[case]
    reader = ConfigReader(expected["settings"], defaults=defaults("llama"))
    rotary = read_rotary(reader, 64, 16384)
    reader.finish()
    frequencies = np.array(expected["frequencies"])
    assert len(rotary.inverse_frequencies) == len(frequencies)
    # A few float32 roundings apart: the last bits depend on the order of the operations.
    np.testing.assert_allclose(rotary.inverse_frequencies, frequencies, rtol=5e-7)
    assert rotary.scale == pytest.approx(expected["factor"], rel=1e-12)


def test_every_scaling_is_among_the_cases() -> None:
    kinds = {
        (case["settings"].get("rope_scaling") or {}).get("rope_type", "default") for case in CASES.values()
    }
    assert kinds == {"default", "linear", "llama3", "yarn"}


def test_rope_parameters_is_the_same_under_its_later_name() -> None:
    """transformers 5 writes rope_theta and the scaling into one dictionary."""
    old = ConfigReader({"rope_theta": 5e5, "rope_scaling": CASES["llama3"]["settings"]["rope_scaling"]})
    later = {"rope_theta": 5e5, **CASES["llama3"]["settings"]["rope_scaling"]}
    expected = read_rotary(old, 64, 16384)
    reader = ConfigReader(
        {"rope_parameters": later | {"partial_rotary_factor": 1.0}}, defaults=defaults("llama")
    )
    assert read_rotary(reader, 64, 16384) == expected
    assert not reader.errors


def test_how_a_yarn_model_was_made_is_left_aside() -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
    rotary = [
        read_rotary(ConfigReader({"rope_theta": 1e4, "rope_scaling": scaling | more}), 64, 16384)
        for more in ({}, {"finetuned": True})
    ]
    assert rotary[0] == rotary[1]
