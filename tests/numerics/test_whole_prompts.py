"""Models that take a prompt whole: ChatGLM-6B's contexts, the inputs of T5's and mT5's encoders.

In batches, with every strategy, and with adapters; test_models.py has what the contexts' twins compute.
"""

from __future__ import annotations

import json
import shutil
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from model_folders import CONTEXTS, ENCODERS, descriptions, fixture, weights_of, write_folder
from recording import LastRun, Logits, Run, load
from rounding import bound_of
from safetensors.numpy import load_file, save_file
from test_every_type_adapters import matrices_of, write_adapter
from type_cases import ALL_CASES, prompts_of

from ice_tokenizers import Published, model_file, write
from mindbatch import LLM, DecodingParams
from mindbatch.architecture.tensor_spec import source_shapes
from mindbatch.io.errors import CacheBudgetError, CheckpointError, ConfigError, PromptError
from mindbatch.model_spec.registry import describe, tensor_specs

pytestmark = pytest.mark.slow
GREEDY = DecodingParams(max_new_tokens=64)
STRATEGIES = {
    "sampling": DecodingParams(max_new_tokens=12, do_sample=True, num_return_sequences=3, seed=5),
    "beams": DecodingParams(max_new_tokens=12, num_beams=3, num_return_sequences=2),
    "contrastive": DecodingParams(max_new_tokens=12, penalty_alpha=0.6, top_k=4),
    "lookup": DecodingParams(max_new_tokens=24, prompt_lookup_num_tokens=3),
    "processors": DecodingParams(
        max_new_tokens=12, repetition_penalty=1.3, encoder_repetition_penalty=1.2, no_repeat_ngram_size=2
    ),
}
STEP = 64  # tokens, more than any prompt has
OF_CONTEXTS, OF_ENCODERS = [*descriptions(CONTEXTS)], [*descriptions(ENCODERS)]
with_contexts = pytest.mark.parametrize("case", OF_CONTEXTS, indirect=True)
with_encoders = pytest.mark.parametrize("case", OF_ENCODERS, indirect=True)


@pytest.fixture(scope="module", params=[*OF_CONTEXTS, *OF_ENCODERS])
def case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(case: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, described = tmp_path_factory.mktemp(case), descriptions(ALL_CASES[case])[case]
    assert write_folder(path, described) == described["digest"]
    return path


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return load(folder, max_batched_tokens=STEP)


def recorded(case: str, what: str) -> list[list[int]]:
    found: list[list[int]] = fixture(ALL_CASES[case])[f"{case}.{what}"].tolist()
    return found


@pytest.mark.parametrize("limits", [{}, {"use_past": False}, {"num_blocks": 20}], ids=str)
def test_a_ragged_batch_of_16(case: str, llm: LLM, limits: dict[str, int]) -> None:
    batch = LastRun(llm, prompts_of(case), GREEDY, **limits)
    assert batch.tokens == recorded(case, "tokens")
    assert (batch.num_preemptions > 0) == ("num_blocks" in limits)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_companions_and_preemption_change_nothing(case: str, llm: LLM, strategy: str) -> None:
    params, rows = STRATEGIES[strategy], prompts_of(case)[:6]
    together = LastRun(llm, rows, params).outputs
    assert together == LastRun(llm, rows, params, num_blocks=18).outputs
    assert together == [LastRun(llm, [row], params, first=i).outputs[0] for i, row in enumerate(rows)]


def test_by_lookup_the_tokens_are_the_greedy_ones(case: str, llm: LLM) -> None:
    prompts = prompts_of(case)[:3]
    greedy = LastRun(llm, prompts, DecodingParams(max_new_tokens=24))
    assert greedy.tokens == LastRun(llm, prompts, STRATEGIES["lookup"]).tokens


@pytest.mark.parametrize("name", ["greedy", "beams", "lookup"])
def test_the_reference_kernels_give_the_same(folder: Path, case: str, llm: LLM, name: str) -> None:
    """In graphs of MindSpore's operators, of which Ascend has the same."""
    params = GREEDY if name == "greedy" else STRATEGIES[name]
    plain, prompts = load(folder, max_batched_tokens=STEP, kernels="reference"), prompts_of(case)[:3]
    assert LastRun(plain, prompts, params).tokens == LastRun(llm, prompts, params).tokens


def test_an_assistant_is_refused(folder: Path) -> None:
    fault = "(a m?t5|chatglm_6b), and a model whose prompts are not causal neither"
    with pytest.raises(ConfigError, match=fault):
        LLM(folder, assistant=str(folder))


@with_contexts
def test_a_context_is_shared_as_a_whole_or_not_at_all(case: str, llm: LLM) -> None:
    """Of two contexts that begin alike nothing is; of one that comes again all full blocks are."""
    longest = prompts_of(case)[0]
    changed = [*longest[:-3], longest[-3] + 1, *longest[-2:]]
    alone = [Run(llm, [row], GREEDY).tokens for row in (longest, changed)]
    limits = {"batch_size": 1, "block_size": 8}
    both = Run(llm, [longest, changed, longest], DecodingParams(max_new_tokens=12), tolerance=100, **limits)
    assert both.tokens == [each[0][:12] for each in (alone[0], alone[1], alone[0])]
    assert [result.num_cached_tokens for result in both.results] == [0, 0, (len(longest) - 1) // 8 * 8]


@with_contexts
def test_a_context_longer_than_a_step_is_refused(case: str, llm: LLM) -> None:
    with pytest.raises(
        CacheBudgetError,
        match="0: the prompt has 31 tokens that see each other, .*max_batched_tokens=31 or more",
    ):
        Run(llm, prompts_of(case)[:1], GREEDY, max_batched_tokens=29)


@with_contexts
def test_prompts_without_a_context_are_refused(case: str, llm: LLM) -> None:
    for prompt in ([5, 6, 7], [5, 91, 6], [5, 94]):
        with pytest.raises(PromptError, match="0: the prompt must have token 94, .* a mask .91 or 90."):
            Run(llm, [prompt], GREEDY)


@with_contexts
def test_scores_are_of_what_follows_the_context(case: str, llm: LLM) -> None:
    prompt = [5, 6, 91, 94, 7, 8]

    def params(start: int) -> DecodingParams:
        return DecodingParams(max_new_tokens=1, prompt_logprobs=1, prompt_logprobs_start=start)

    with pytest.raises(
        PromptError, match="prompt_logprobs_start=3: the prompt's first 3 tokens .*: from 4 on"
    ):
        Run(llm, [prompt], params(3))
    run = Run(llm, [prompt], params(4))
    [scores] = (result.prompt_logprobs for result in run.results)
    for place, found in zip((4, 5), scores, strict=True):
        logits = run.logits[tuple(prompt[:place])].astype(np.float64)
        expected = logits[prompt[place]] - np.log(np.exp(logits).sum())
        assert found[prompt[place]] == pytest.approx(expected, abs=1e-5)


def test_texts_and_chats_are_prompts_with_a_context(tmp_path: Path) -> None:
    """A folder as it is published, with the numbers of the tokenizer in config.json."""
    described = descriptions(CONTEXTS)["chatglm_6b"]
    pieces = Published(model_file(), 0)
    names = {"bos": "<sop>", "eos": "<eop>", "gmask": "[gMASK]", "mask": "[MASK]"}
    config = described["config"] | {f"{key}_token_id": pieces.number(piece) for key, piece in names.items()}
    config |= {"vocab_size": pieces.pieces.vocab_size()}
    shapes = source_shapes(tensor_specs(describe(config)))
    tensors = {name: [[*shape], 0.3] for name, shape in shapes.items()}
    write_folder(tmp_path, described | {"config": config, "tensors": tensors})
    write(tmp_path, model_file(), num_image_tokens=0)
    params = DecodingParams(max_new_tokens=12)
    with LLM(tmp_path, batch_size=4, cache_memory="8MiB") as llm:
        end = [config["gmask_token_id"], config["bos_token_id"]]
        text, chat = "你好\n  x", [{"role": "user", "content": "你好\n  x"}]
        asked = [text, chat, [*pieces.encode(text), *end]]
        found = [result.outputs[0] for result in llm.generate(asked, params)]
    assert len(found[0].token_ids) == 12
    assert [each.token_ids for each in found] == [found[0].token_ids] * 3
    assert found[0].text == pieces.decode(found[0].token_ids)


@with_encoders
def test_logits_and_greedy_tokens_are_those_of_transformers(
    case: str, llm: LLM, tmp_path: Path, record_property: pytest.RecordProperty
) -> None:
    prompt, described = prompts_of(case)[0], descriptions(ENCODERS)[case]
    alone, tokens = LastRun(llm, [prompt], GREEDY), recorded(case, "tokens")[0]

    def logits_of(folder: Path) -> Logits:
        return LastRun(load(folder, max_batched_tokens=STEP), [prompt], GREEDY).logits

    bound = bound_of(tmp_path, described["config"], weights_of(described), logits_of, alone.logits)
    ours = np.stack([alone.logits[(*prompt, 0, *tokens[:step])] for step in range(len(tokens))])
    gap = float(np.abs(ours - fixture(ENCODERS)[f"{case}.logits"]).max())
    record_property("share of the bound", gap / bound)
    assert gap <= bound
    assert alone.tokens == [tokens]


@with_encoders
def test_beams_are_those_of_transformers(case: str, llm: LLM) -> None:
    beams = DecodingParams(max_new_tokens=24, num_beams=4)
    assert LastRun(llm, prompts_of(case), beams).tokens == recorded(case, "beams")


@pytest.fixture(scope="module")
def adapters(case: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One of the encoder alone, one of every linear layer."""
    path, every = tmp_path_factory.mktemp(f"{case}_adapters"), matrices_of(case).linear
    parts = {"encoder": [name for name in every if name.startswith("encoder.")], "all": every}
    for name, matrices in parts.items():
        write_adapter(path / name, case, matrices)
    return {name: path / name for name in parts}


@with_encoders
def test_rows_of_several_adapters_in_a_batch(
    folder: Path, case: str, llm: LLM, adapters: dict[str, Path]
) -> None:
    """Each row has the bits that it has alone, and the same tokens from MindSpore's operators."""
    adapted, prompts = (
        load(folder, max_batched_tokens=STEP, lora_adapters=adapters),
        [prompts_of(case)[4]] * 3,
    )
    few, names = DecodingParams(max_new_tokens=12), [None, "encoder", "all"]
    together = LastRun(adapted, prompts, few, adapter=names)
    alone = [LastRun(adapted, prompts[:1], few, adapter=name) for name in names]
    assert together.tokens == [each.tokens[0] for each in alone]
    assert together.tokens[0] == LastRun(llm, prompts[:1], few).tokens[0]
    starts = [each.logits[(*prompts[0], 0)] for each in alone]
    assert all(np.abs(one - other).max() > 1e-3 for one, other in combinations(starts, 2))
    reference = load(folder, max_batched_tokens=STEP, lora_adapters=adapters, kernels="reference")
    assert LastRun(reference, prompts, few, adapter=names).tokens == together.tokens


@with_encoders
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


@with_encoders
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


@with_encoders
def test_an_adapter_of_the_embedding_is_merged_only(folder: Path, case: str, tmp_path: Path) -> None:
    """PEFT adapts one of its users, and no stack computes with that one."""
    write_adapter(tmp_path / "adapter", case, ["shared.weight"])
    with pytest.raises(CheckpointError, match=r"module 'shared': an adapter of it .*; merge it"):
        load(folder, lora_adapters={"tuned": tmp_path / "adapter"})


@with_encoders
def test_what_cannot_be_is_refused(llm: LLM) -> None:
    reason = "the input has 65 tokens that see each other, .*; set runtime.max_batched_tokens=65 or more"
    with pytest.raises(CacheBudgetError, match=reason):
        LastRun(llm, [[5] * 65], GREEDY)
    with pytest.raises(PromptError, match="the input of an encoder"):
        LastRun(llm, [[5]], DecodingParams(prompt_logprobs=1))
    with pytest.raises(PromptError, match=r"decoding\.pooling: not of a model with an encoder"):
        LastRun(llm, [[5]], DecodingParams(pooling="mean"))


@with_encoders
def test_what_is_of_decoders_alone_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="pipeline_stage=2: a m?t5 has an encoder besides; allowed: 1"):
        LLM(folder, pipeline_stage=2)


@with_encoders
def test_outputs_begin_with_the_token_of_generation_config(folder: Path, llm: LLM, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "decoder_start_token_id": 5}))
    expected = LastRun(load(tmp_path, max_batched_tokens=STEP), [[7, 8, 9]], GREEDY).logits[7, 8, 9, 5]
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "generation_config.json").write_text('{"decoder_start_token_id": 5}')
    found = LastRun(load(tmp_path, max_batched_tokens=STEP), [[7, 8, 9]], GREEDY).logits[7, 8, 9, 5]
    assert np.array_equal(found, expected)
    assert not np.array_equal(found, LastRun(llm, [[7, 8, 9]], GREEDY).logits[7, 8, 9, 0])
    (tmp_path / "generation_config.json").write_text('{"decoder_start_token_id": 100000}')
    with pytest.raises(CheckpointError, match="decoder_start_token_id=100000: must be the id of a token"):
        load(tmp_path, max_batched_tokens=STEP)
