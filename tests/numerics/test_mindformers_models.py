"""MindFormers' models behind the engine compute what transformers computes, and what our own models do."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from model_folders import MINDFORMERS_FIXTURE, descriptions, fixture, ragged, write_folder
from recording import MAX_BATCHED_TOKENS, Run, difference, load, pad_steps

from mindbatch import LLM, DecodingParams
from mindbatch.backends.mindformers.families import FAMILIES, describe
from mindbatch.backends.mindformers.weights import translation
from mindbatch.io.errors import CheckpointError

STEPS = 64
GREEDY = DecodingParams(max_new_tokens=STEPS)
CASES = descriptions(MINDFORMERS_FIXTURE)
EXPECTED = fixture(MINDFORMERS_FIXTURE)


def prompts_of(case: str) -> list[list[int]]:
    return ragged(case, MINDFORMERS_FIXTURE)


def load_mindformers(folder: Path, **options: Any) -> LLM:
    """All steps are padded to one size: three graphs a model."""
    return load(folder, provider="mindformers", first_buckets=(), **options)


ON_DEMAND = ("qwen3_yarn", "deepseek_v3")  # YaRN or its absence; groups are in test_mindformers_routing.py


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.on_demand) if name in ON_DEMAND else name for name in CASES],
)
def case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(case: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(case)
    assert write_folder(path, CASES[case]) == CASES[case]["digest"]
    return path


@pytest.fixture(scope="module")
def alone(folder: Path, case: str) -> Run:
    """The longest prompt, in chunks, then one token at a time; and the model that did it."""
    return Run(load_mindformers(folder), prompts_of(case)[:1], GREEDY)


@pytest.mark.slow
def test_logits_equal_those_of_transformers(case: str, alone: Run) -> None:
    expected = EXPECTED[f"{case}.logits"]
    tokens = prompts_of(case)[0] + EXPECTED[f"{case}.tokens"][0].tolist()
    ours = np.stack([alone.logits[tuple(tokens[: end + 1])] for end in range(len(expected))])
    assert np.abs(ours - expected).max() <= 1e-4
    top = np.sort(expected[-STEPS:], axis=1)
    assert (top[:, -1] - top[:, -2]).min() > 1e-3, "greedy choices must not be a matter of rounding"


@pytest.mark.slow
def test_greedy_tokens_alone_and_in_a_ragged_batch(case: str, alone: Run) -> None:
    assert alone.tokens == EXPECTED[f"{case}.tokens"][:1].tolist()
    prompts = prompts_of(case)
    assert len({len(prompt) for prompt in prompts}) > 10
    batch = Run(alone.llm, prompts, GREEDY)
    assert batch.tokens == EXPECTED[f"{case}.tokens"].tolist()
    assert difference(batch.logits, alone.logits) <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("case", ["qwen3"], indirect=True)
def test_a_token_is_computed_alike_in_steps_of_any_size(case: str, alone: Run) -> None:
    """To the last digit: a resumed run has other batches than an unbroken one, and equals it."""
    runner = alone.llm._model.engine._runner
    pad_steps(runner, [4])
    try:
        small = Run(alone.llm, prompts_of(case)[:1], DecodingParams(max_new_tokens=4), max_batched_tokens=4)
    finally:
        pad_steps(runner, [MAX_BATCHED_TOKENS])
    assert difference(small.logits, alone.logits) == 0


@pytest.mark.slow
@pytest.mark.parametrize("case", ["qwen2", "qwen3", "telechat"], indirect=True)
def test_our_own_models_give_the_same(case: str, folder: Path, alone: Run) -> None:
    native = Run(load(folder), prompts_of(case)[:1], GREEDY)
    assert native.tokens == alone.tokens
    assert difference(native.logits, alone.logits) <= 1e-5


@pytest.mark.slow
def test_what_was_not_loaded_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MindFormers' own list of names lacks the norms of GLM-4-MoE's heads."""
    write_folder(tmp_path, CASES["glm4_moe"])
    monkeypatch.setitem(FAMILIES, "glm4_moe", replace(FAMILIES["glm4_moe"], names=()))
    with pytest.raises(CheckpointError) as caught:
        load_mindformers(tmp_path)
    lines = [line.removeprefix(f"{tmp_path}: ") for line in caught.value.lines]
    taken = "tensor 'model.layers.{}.self_attn.{}_norm.weight' was not read by MindFormers' glm4_moe"
    assert lines[:4] == [taken.format(layer, which) for layer in (0, 1) for which in "qk"]
    left = "parameter 'decoder.layers.0.self_attention.k_layernorm.weight'"
    assert lines[4] == f"{left} of MindFormers' glm4_moe was not loaded"


def test_layers_are_not_taken_for_those_that_predict_further_tokens() -> None:
    """Of DeepSeek-V3's 61 layers number 61 is one; a deeper model has an ordinary one there."""
    network = SimpleNamespace(
        weight_mapping=[("model.layers.61.", "decoder.transformer."), ("model.layers.", "decoder.layers.")]
    )
    arch = describe(CASES["deepseek_v3"]["config"]).architecture
    assert translation(network, arch)("model.layers.61.mlp.x") == "decoder.layers.61.mlp.x"


@pytest.mark.slow
def test_telechat3_without_biases_is_llama(tmp_path: Path) -> None:
    """transformers has no TeleChat3: its weights are Llama's, under the same names."""
    described = descriptions()["llama"]
    config = described["config"] | {"model_type": "telechat3", "head_dim": 8}
    write_folder(tmp_path, described | {"config": config})
    for llm in (load_mindformers(tmp_path), load(tmp_path)):
        assert Run(llm, ragged("llama")[:1], GREEDY).tokens == fixture()["llama.tokens"][:1].tolist()


def test_every_family_has_a_case() -> None:
    tested = {description["config"]["model_type"] for description in CASES.values()}
    assert tested | {"telechat3"} == FAMILIES.keys()
    assert {description["dtype"] for description in CASES.values()} == {"float32", "float16", "bfloat16"}
    assert max(description["shards"] for description in CASES.values()) > 1


TOKENIZER = Path(__file__).parents[2] / "examples/tiny_gpt2"
SCHEMA = {"type": "array", "items": {"enum": ["one", "two"]}, "minItems": 2, "maxItems": 2}
STRATEGIES = {
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "schema": {"json_schema": json.dumps(SCHEMA), "max_new_tokens": 90},
    "samples": {"do_sample": True, "top_p": 0.9, "num_return_sequences": 3, "seed": 3},
    "contrast": {"penalty_alpha": 0.6, "top_k": 4},
}


@pytest.mark.slow
def test_strategies_and_constraints_give_what_they_give_with_our_own_model(tmp_path: Path) -> None:
    """Forks copy blocks of the cache, a schema chooses from the logits, contrast needs hidden states."""
    described = CASES["qwen3"]
    vocabulary = json.loads((TOKENIZER / "config.json").read_text())["vocab_size"]
    tensors = dict(described["tensors"])
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        if name in tensors:
            (_, width), spread = tensors[name]
            tensors[name] = [[vocabulary, width], spread]
    config = described["config"] | {"vocab_size": vocabulary}
    write_folder(tmp_path, described | {"config": config, "tensors": tensors})
    params = [DecodingParams(**({"max_new_tokens": 12} | given)) for given in STRATEGIES.values()]
    texts = {}
    for provider, loader in (("native", load), ("mindformers", load_mindformers)):
        llm = loader(tmp_path, tokenizer=TOKENIZER)
        results = llm.generate(["An increasing sequence: one,"] * len(params), params)
        texts[provider] = [[output.text for output in result.outputs] for result in results]
    assert texts["mindformers"] == texts["native"]
    (answer,) = texts["mindformers"][1]
    assert {*json.loads(answer)} <= {"one", "two"}
