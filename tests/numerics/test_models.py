"""Every model type computes what transformers computes: logits to 1e-4, the same 64 greedy tokens."""

from pathlib import Path

import numpy as np
import pytest
from model_folders import descriptions, fixture, ragged, write_folder
from recording import Run, load

from mindbatch import LLM, DecodingParams
from mindbatch.checkpoint.folders.model_folder import ModelFolder
from mindbatch.models.registry import describe

STEPS = 64
GREEDY = DecodingParams(max_new_tokens=STEPS)


# Variants of a model type have a name with a "_"; llama3 has the network of llama and mistral, and
# test_equivalence.py runs qwen2.
CASES = [
    pytest.param(each, marks=[pytest.mark.slow] * ("_" in each or each in ("llama", "mistral", "qwen2")))
    for each in descriptions()
]


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(case: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(case)
    assert write_folder(path, descriptions()[case]) == descriptions()[case]["digest"]
    return path


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return load(folder)


@pytest.fixture(scope="module")
def alone(llm: LLM, case: str) -> Run:
    """The longest prompt, in chunks, then one token at a time."""
    return Run(llm, ragged(case)[:1], GREEDY)


def test_logits_equal_those_of_transformers(case: str, alone: Run) -> None:
    expected = fixture()[f"{case}.logits"]
    tokens = ragged(case)[0] + fixture()[f"{case}.tokens"][0].tolist()
    ours = np.stack([alone.logits[tuple(tokens[: end + 1])] for end in range(len(expected))])
    assert np.abs(ours - expected).max() <= 1e-4
    top = np.sort(expected[-STEPS:], axis=1)
    assert (top[:, -1] - top[:, -2]).min() > 1e-3, "greedy choices must not be a matter of rounding"


def test_greedy_tokens_alone(case: str, alone: Run) -> None:
    assert alone.tokens == fixture()[f"{case}.tokens"][:1].tolist()


@pytest.mark.slow
def test_greedy_tokens_in_a_ragged_batch(case: str, llm: LLM, alone: Run) -> None:
    prompts = ragged(case)
    assert len({len(prompt) for prompt in prompts}) > 10
    batch = Run(llm, prompts, GREEDY)
    assert batch.tokens == fixture()[f"{case}.tokens"].tolist()
    longest_together = [row for row in batch.logits if row in alone.logits]
    assert len(longest_together) == len(alone.logits)


def test_windows_are_shorter_than_the_prompts() -> None:
    """Otherwise the sliding windows would not be tested."""
    for case in ("mistral", "qwen2"):
        arch = describe(descriptions()[case]["config"])
        assert 0 < max(arch.windows) < len(ragged(case)[0])
    assert min(describe(descriptions()["qwen2"]["config"]).windows) == 0


@pytest.mark.slow
def test_minimind_is_llama_under_another_name(tmp_path: Path) -> None:
    described = descriptions()["llama"]
    config = described["config"] | {"model_type": "minimind", "use_moe": False, "flash_attn": True}
    config.pop("head_dim", None)  # a key of MiniMind-3 only
    write_folder(tmp_path, described | {"config": config})
    run = Run(load(tmp_path), ragged("llama")[:1], GREEDY)
    assert run.tokens == fixture()["llama.tokens"][:1].tolist()


def test_live_transformers(folder: Path, alone: Run, case: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    tokens = ragged(case)[0] + alone.tokens[0]
    with torch.no_grad():
        expected = model(torch.tensor([tokens[:-1]])).logits[0].numpy()
    ours = np.stack([alone.logits[tuple(tokens[: end + 1])] for end in range(len(expected))])
    assert np.abs(ours - expected).max() <= 1e-4


def test_sharded_and_half_precision_folders_are_among_the_cases() -> None:
    assert {description["dtype"] for description in descriptions().values()} == {
        "float32",
        "float16",
        "bfloat16",
    }
    assert max(description["shards"] for description in descriptions().values()) > 1


def test_fixture_folders_are_whole(folder: Path, case: str) -> None:
    assert set(ModelFolder(folder).names) == set(descriptions()[case]["tensors"])
