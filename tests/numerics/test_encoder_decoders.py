"""T5 and mT5 compute what transformers computes, alone and in batches, and with every strategy."""

from __future__ import annotations

import json
import shutil
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from model_folders import ENCODERS, descriptions, fixture, ragged, write_folder
from recording import LastRun, load
from safetensors.numpy import load_file, save_file
from test_every_type_adapters import matrices_of, write_adapter

from mindbatch import LLM, DecodingParams
from mindbatch.io.errors import CacheBudgetError, CheckpointError, ConfigError, PromptError

pytestmark = pytest.mark.slow
GREEDY = DecodingParams(max_new_tokens=64)
STRATEGIES = {
    "sampling": DecodingParams(max_new_tokens=12, do_sample=True, num_return_sequences=3, seed=5),
    "beams": DecodingParams(max_new_tokens=12, num_beams=3, num_return_sequences=2),
    "contrastive": DecodingParams(max_new_tokens=12, penalty_alpha=0.6, top_k=4),
    "lookup": DecodingParams(max_new_tokens=24, prompt_lookup_num_tokens=3),
    "processors": DecodingParams(max_new_tokens=12, encoder_repetition_penalty=1.3, no_repeat_ngram_size=2),
}


@pytest.fixture(scope="module", params=["t5", "t5_gated", "mt5"])
def case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(case: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, described = tmp_path_factory.mktemp(case), descriptions(ENCODERS)[case]
    assert write_folder(path, described) == described["digest"]
    return path


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return load(folder, max_batched_tokens=64)


def _expected(case: str, what: str) -> list[list[int]]:
    found: list[list[int]] = fixture(ENCODERS)[f"{case}.{what}"].tolist()
    return found


def test_logits_and_greedy_tokens_are_those_of_transformers(
    case: str, llm: LLM, record_property: pytest.RecordProperty
) -> None:
    prompt = ragged(case, ENCODERS)[0]
    alone, tokens = LastRun(llm, [prompt], GREEDY), _expected(case, "tokens")[0]
    ours = np.stack([alone.logits[(*prompt, 0, *tokens[:step])] for step in range(len(tokens))])
    gap = float(np.abs(ours - fixture(ENCODERS)[f"{case}.logits"]).max())
    record_property("largest difference", gap)
    assert gap <= 1e-4
    assert alone.tokens == [tokens]


def test_a_ragged_batch_of_16_and_its_beams(case: str, llm: LLM) -> None:
    prompts = ragged(case, ENCODERS)
    assert LastRun(llm, prompts, GREEDY).tokens == _expected(case, "tokens")
    beams = DecodingParams(max_new_tokens=24, num_beams=4)
    assert LastRun(llm, prompts, beams).tokens == _expected(case, "beams")


@pytest.mark.parametrize("name", STRATEGIES)
def test_companions_and_preemption_change_nothing(case: str, llm: LLM, name: str) -> None:
    prompts, params = ragged(case, ENCODERS)[:6], STRATEGIES[name]
    together = LastRun(llm, prompts, params)
    scarce = LastRun(llm, prompts, params, num_blocks=18)
    assert together.tokens == scarce.tokens
    assert together.outputs[:1] == LastRun(llm, prompts[:1], params).outputs


def test_without_the_cache_and_by_lookup_the_tokens_are_the_greedy_ones(case: str, llm: LLM) -> None:
    prompts = ragged(case, ENCODERS)[:3]
    few = DecodingParams(max_new_tokens=24)
    greedy = LastRun(llm, prompts, few)
    assert greedy.tokens == LastRun(llm, prompts, few, use_past=False).tokens
    assert greedy.tokens == LastRun(llm, prompts, STRATEGIES["lookup"]).tokens


@pytest.mark.parametrize("name", ["greedy", "beams", "lookup"])
def test_the_reference_kernels_give_the_same(folder: Path, case: str, llm: LLM, name: str) -> None:
    """In graphs of MindSpore's operators, of which Ascend has the same."""
    params = GREEDY if name == "greedy" else STRATEGIES[name]
    plain, prompts = load(folder, max_batched_tokens=64, kernels="reference"), ragged(case, ENCODERS)[:3]
    assert LastRun(plain, prompts, params).tokens == LastRun(llm, prompts, params).tokens


@pytest.fixture(scope="module")
def adapters(case: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One of the encoder alone, one of every linear layer."""
    path, every = tmp_path_factory.mktemp(f"{case}_adapters"), matrices_of(case).linear
    parts = {"encoder": [name for name in every if name.startswith("encoder.")], "all": every}
    for name, matrices in parts.items():
        write_adapter(path / name, case, matrices)
    return {name: path / name for name in parts}


def test_rows_of_several_adapters_in_a_batch(
    folder: Path, case: str, llm: LLM, adapters: dict[str, Path]
) -> None:
    """Each row has the bits that it has alone, and the same tokens from MindSpore's operators."""
    adapted, prompts = (
        load(folder, max_batched_tokens=64, lora_adapters=adapters),
        [ragged(case, ENCODERS)[4]] * 3,
    )
    few, names = DecodingParams(max_new_tokens=12), [None, "encoder", "all"]
    together = LastRun(adapted, prompts, few, adapter=names)
    alone = [LastRun(adapted, prompts[:1], few, adapter=name) for name in names]
    assert together.tokens == [each.tokens[0] for each in alone]
    assert together.tokens[0] == LastRun(llm, prompts[:1], few).tokens[0]
    starts = [each.logits[(*prompts[0], 0)] for each in alone]
    assert all(np.abs(one - other).max() > 1e-3 for one, other in combinations(starts, 2))
    reference = load(folder, max_batched_tokens=64, lora_adapters=adapters, kernels="reference")
    assert LastRun(reference, prompts, few, adapter=names).tokens == together.tokens


def test_an_adapter_of_the_head_is_that_of_each_row(folder: Path, case: str, tmp_path: Path) -> None:
    """Where the head is the embedding, it acts on the head alone."""
    prompts, few, names = [[7, 8, 9]] * 3, DecodingParams(max_new_tokens=6), ["tuned", None, "tuned"]
    write_adapter(tmp_path / "adapter", case, ["lm_head.weight"])
    runs = [
        LastRun(
            load(folder, lora_adapters={"tuned": tmp_path / "adapter"}, kernels=kernels),
            prompts,
            few,
            adapter=names,
        )
        for kernels in ("native", "reference")
    ]
    assert runs[0].tokens == runs[1].tokens
    assert runs[0].tokens[0] == runs[0].tokens[2] != runs[0].tokens[1]


def test_a_bias_of_the_tied_heads_adapter_is_refused(folder: Path, case: str, tmp_path: Path) -> None:
    """T5 scales what that head takes in; the bias of an own head is right."""
    added = write_adapter(tmp_path / "adapter", case, ["lm_head.weight"])["lm_head.weight"]
    with (tmp_path / "adapter/adapter_config.json").open("r+") as file:
        settings = {**json.load(file), "lora_bias": True}
        file.seek(0)
        json.dump(settings, file)
    path = tmp_path / "adapter/adapter_model.safetensors"
    bias = {"base_model.model.lm_head.lora_B.bias": np.ones(len(added), np.float32)}
    save_file(load_file(path) | bias, path)
    adapters = {"tuned": tmp_path / "adapter"}
    if json.loads((folder / "config.json").read_text())["tie_word_embeddings"]:
        with pytest.raises(CheckpointError, match=r"lora\.adapters\.tuned: a bias of the head's adapter"):
            load(folder, lora_adapters=adapters)
    else:
        assert load(folder, lora_adapters=adapters) is not None


def test_an_adapter_of_the_embedding_is_merged_only(folder: Path, case: str, tmp_path: Path) -> None:
    """PEFT adapts one of its users, and no stack computes with that one."""
    write_adapter(tmp_path / "adapter", case, ["shared.weight"])
    with pytest.raises(CheckpointError, match=r"module 'shared': an adapter of it .*; merge it"):
        load(folder, lora_adapters={"tuned": tmp_path / "adapter"})


def test_what_cannot_be_is_refused(llm: LLM) -> None:
    reason = "the input has 65 tokens that see each other, .*; set runtime.max_batched_tokens=65 or more"
    with pytest.raises(CacheBudgetError, match=reason):
        LastRun(llm, [[5] * 65], GREEDY)
    with pytest.raises(PromptError, match="the input of an encoder"):
        LastRun(llm, [[5]], DecodingParams(prompt_logprobs=1))
    with pytest.raises(PromptError, match=r"decoding\.pooling: not of a model with an encoder"):
        LastRun(llm, [[5]], DecodingParams(pooling="mean"))


def test_what_is_of_decoders_alone_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="pipeline_stage=2: a m?t5 has an encoder besides; allowed: 1"):
        LLM(folder, pipeline_stage=2)
    with pytest.raises(ConfigError, match="is a m?t5, and a model whose prompts are not causal neither"):
        LLM(folder, assistant=str(folder))


def test_outputs_begin_with_the_token_of_generation_config(folder: Path, llm: LLM, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "decoder_start_token_id": 5}))
    expected = LastRun(load(tmp_path, max_batched_tokens=64), [[7, 8, 9]], GREEDY).logits[7, 8, 9, 5]
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "generation_config.json").write_text('{"decoder_start_token_id": 5}')
    found = LastRun(load(tmp_path, max_batched_tokens=64), [[7, 8, 9]], GREEDY).logits[7, 8, 9, 5]
    assert np.array_equal(found, expected)
    assert not np.array_equal(found, LastRun(llm, [[7, 8, 9]], GREEDY).logits[7, 8, 9, 0])
    (tmp_path / "generation_config.json").write_text('{"decoder_start_token_id": 100000}')
    with pytest.raises(CheckpointError, match="decoder_start_token_id=100000: must be the id of a token"):
        load(tmp_path, max_batched_tokens=64)
