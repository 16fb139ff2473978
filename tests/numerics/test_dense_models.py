"""More types of dense models compute what transformers computes; see test_models.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from model_folders import GLM, GPT, NORMED, dense_cases, descriptions, fixture, ragged, write_folder
from recording import Run, load

from mindbatch import LLM, DecodingParams
from mindbatch.models.registry import describe

GREEDY = DecodingParams(max_new_tokens=64)
LARGEST_GAP = 1e-4
CASES = dense_cases()


pytestmark = pytest.mark.slow


IN_EVERY_RUN = {"gpt_neox", "gptj", "bloom", "falcon_second", "falcon_rw", "opt"}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(each, marks=[pytest.mark.on_demand] * (path == GPT and each not in IN_EVERY_RUN))
        for each, path in CASES.items()
    ],
)
def case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(case: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(case)
    described = descriptions(CASES[case])[case]
    assert write_folder(path, described) == described["digest"]
    return path


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return load(folder)


def _gap(case: str, run: Run) -> float:
    """The largest difference from the recorded logits, over a prompt and its greedy tokens."""
    expected = fixture(CASES[case])[f"{case}.logits"]
    tokens = ragged(case, CASES[case])[0] + fixture(CASES[case])[f"{case}.tokens"][0].tolist()
    ours = np.stack([run.logits[tuple(tokens[: end + 1])] for end in range(len(expected))])
    return float(np.abs(ours - expected).max())


def test_logits_and_greedy_tokens_are_those_of_transformers(
    case: str, llm: LLM, record_property: pytest.RecordProperty
) -> None:
    alone = Run(llm, ragged(case, CASES[case])[:1], GREEDY)
    gap = _gap(case, alone)
    record_property("largest difference", gap)
    assert gap <= LARGEST_GAP
    assert alone.tokens == fixture(CASES[case])[f"{case}.tokens"][:1].tolist()


def test_a_ragged_batch_of_16(case: str, llm: LLM) -> None:
    batch = Run(llm, ragged(case, CASES[case]), GREEDY)
    assert batch.tokens == fixture(CASES[case])[f"{case}.tokens"].tolist()
    assert _gap(case, batch) <= LARGEST_GAP


@pytest.mark.on_demand
def test_the_reference_kernels(case: str, folder: Path) -> None:
    run = Run(
        load(folder, kernels="reference"), ragged(case, CASES[case])[:1], DecodingParams(max_new_tokens=8)
    )
    expected = fixture(CASES[case])[f"{case}.logits"]
    prompt = ragged(case, CASES[case])[0]
    ours = np.stack([run.logits[tuple(prompt[: end + 1])] for end in range(len(prompt))])
    assert np.abs(ours - expected[: len(prompt)]).max() <= LARGEST_GAP


def test_what_the_cases_are_for() -> None:
    """Windows shorter than prompts, half precision, shards, heads rotated in part."""
    found = {case: descriptions(path)[case] for case, path in CASES.items()}
    assert {each["dtype"] for each in found.values()} == {"float32", "float16", "bfloat16"}
    assert max(each["shards"] for each in found.values()) > 1
    arch = {name: describe(each["config"]) for name, each in found.items()}
    for name in (
        "phi3",
        "starcoder2_window",
        "gemma2",
        "gemma3",
        "cohere2",
        "smollm3_window",
        "olmo3",
        "exaone4",
        "gpt_oss",
    ):
        assert 0 < max(arch[name].windows) < len(ragged(name, CASES[name])[0])
    rotary = {name: each.rotary for name, each in arch.items()}
    for name in ("phi3_partial", "glm", "gpt_neox"):
        assert len(rotary[name].inverse_frequencies) * 2 == arch[name].head_dim // 2
    assert all(rotary[name].is_interleaved for name in descriptions(GLM))
    assert rotary["minimind_yarn"].inverse_frequencies != rotary["minimind"].inverse_frequencies
    assert rotary["phi3_long"].scale > 1
    normed = {name: arch[name] for name in descriptions(NORMED)}
    assert len({*normed["gemma3"].layer_rotaries}) == 2
    assert [each.scale > 1 for each in normed["olmo3_yarn"].layer_rotaries] == [False] * 3 + [True]
    assert None in normed["cohere2"].layer_rotaries
    assert normed["exaone4"].qk_norm
    assert None in normed["exaone4"].layer_rotaries
    assert normed["ernie4_5"].rotary.is_interleaved
    mixed = normed["smollm3_mixed"]
    layers = {
        (rotary is None, window) for rotary, window in zip(mixed.layer_rotaries, mixed.windows, strict=True)
    }
    assert layers == {(True, 0), (True, 9), (False, 0), (False, 9)}
    assert normed["gemma2"].attention_cap == 1.5
    assert normed["gemma2"].logits_cap == 4.0
