"""Every model type computes what transformers does: logits but for rounding, the same 64 greedy tokens."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from model_folders import (
    CONTEXTS,
    FIXTURE,
    GPT,
    dense_cases,
    descriptions,
    fixture,
    ragged,
    weights_of,
    write_folder,
)
from numpy.typing import NDArray
from recording import MAX_BATCHED_TOKENS, Logits, Run, load
from rounding import bound_of

from mindbatch import LLM, DecodingParams
from mindbatch.model_spec.registry import describe

STEPS = 64
GREEDY = DecodingParams(max_new_tokens=STEPS)
CASES = (
    dict.fromkeys(descriptions(), FIXTURE) | dense_cases() | dict.fromkeys(descriptions(CONTEXTS), CONTEXTS)
)
"""By case, the fixture that has it."""
IN_EVERY_RUN = {"gpt_neox", "gptj", "bloom", "falcon_second", "falcon_rw", "opt"}


def marks_of(case: str) -> list[pytest.MarkDecorator]:
    """Variants of a model type have a name with a "_"; llama3 has the network of llama and mistral, and
    test_equivalence.py runs qwen2."""
    if CASES[case] == FIXTURE and "_" not in case and case not in ("llama", "mistral", "qwen2"):
        return []
    is_rare = CASES[case] == GPT and case not in IN_EVERY_RUN
    return [pytest.mark.slow, pytest.mark.on_demand] if is_rare else [pytest.mark.slow]


@pytest.fixture(scope="module", params=[pytest.param(case, marks=marks_of(case)) for case in CASES])
def case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(case: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, described = tmp_path_factory.mktemp(case), descriptions(CASES[case])[case]
    assert write_folder(path, described) == described["digest"]
    return path


@pytest.fixture(scope="module")
def llm(case: str, folder: Path) -> LLM:
    return load_case(case, folder)


def load_case(case: str, folder: Path) -> LLM:
    """Prompts are computed in chunks, but those whose tokens see each other."""
    return load(folder, max_batched_tokens=64 if CASES[case] == CONTEXTS else MAX_BATCHED_TOKENS)


@pytest.fixture(scope="module")
def alone(case: str, llm: LLM) -> Run:
    """The longest prompt, in chunks, then one token at a time."""
    return Run(llm, prompts_of(case)[:1], GREEDY)


@pytest.fixture(scope="module")
def bound(case: str, alone: Run, tmp_path_factory: pytest.TempPathFactory) -> float:
    """How far rounding may take these logits."""
    described = descriptions(CASES[case])[case]

    def logits_of(folder: Path) -> Logits:
        return Run(load_case(case, folder), prompts_of(case)[:1], GREEDY).logits

    home = tmp_path_factory.mktemp(f"{case}_moved")
    return bound_of(home, described["config"], weights_of(described), logits_of, alone.logits)


def recorded(case: str, what: str) -> NDArray[np.float32]:
    return fixture(CASES[case])[f"{case}.{what}"]


def prompts_of(case: str) -> list[list[int]]:
    return ragged(case, CASES[case])


def gap(case: str, run: Run, count: int | None = None) -> float:
    """The largest difference from the recorded logits, over a prompt and its greedy tokens."""
    expected = recorded(case, "logits")[:count]
    tokens = prompts_of(case)[0] + recorded(case, "tokens")[0].tolist()
    ours = np.stack([run.logits[tuple(tokens[: end + 1])] for end in range(len(expected))])
    return float(np.abs(ours - expected).max())


def test_logits_and_greedy_tokens_are_those_of_transformers(
    case: str, alone: Run, bound: float, record_property: Callable[[str, float], None]
) -> None:
    largest = gap(case, alone)
    record_property("share of the bound", largest / bound)
    assert largest <= bound
    assert alone.tokens == recorded(case, "tokens")[:1].tolist()
    top = np.sort(recorded(case, "logits")[-STEPS:], axis=1)
    assert (top[:, -1] - top[:, -2]).min() > 1e-3, "greedy choices must not be a matter of rounding"


@pytest.mark.slow
def test_a_ragged_batch_of_16(case: str, llm: LLM, bound: float) -> None:
    assert len({len(prompt) for prompt in prompts_of(case)}) > 10
    batch = Run(llm, prompts_of(case), GREEDY)
    assert batch.tokens == recorded(case, "tokens").tolist()
    assert gap(case, batch) <= bound


@pytest.mark.slow
def test_minimind_is_llama_under_another_name(tmp_path: Path) -> None:
    described = descriptions()["llama"]
    config = described["config"] | {"model_type": "minimind", "use_moe": False, "flash_attn": True}
    config.pop("head_dim", None)  # a key of MiniMind-3 only
    write_folder(tmp_path, described | {"config": config})
    run = Run(load(tmp_path), prompts_of("llama")[:1], GREEDY)
    assert run.tokens == recorded("llama", "tokens")[:1].tolist()


def test_what_the_cases_are_for() -> None:
    """Windows shorter than prompts, half precision, shards, heads rotated in part."""
    for paths in ([FIXTURE], {*dense_cases().values()}):
        found = [described for path in paths for described in descriptions(path).values()]
        assert {described["dtype"] for described in found} == {"float32", "float16", "bfloat16"}
        assert max(described["shards"] for described in found) > 1
    arch = {case: describe(descriptions(path)[case]["config"]) for case, path in CASES.items()}
    hides: dict[str, list[bool]] = {}
    for case in CASES:
        if window := max(arch[case].windows):
            hides.setdefault(arch[case].model_type, []).append(window < len(prompts_of(case)[0]))
    assert hides
    assert all(map(any, hides.values()))
    assert min(arch["qwen2"].windows) == 0
    for case in ("phi3_partial", "glm", "gpt_neox"):
        assert len(arch[case].rotary.inverse_frequencies) * 2 == arch[case].head_dim // 2
