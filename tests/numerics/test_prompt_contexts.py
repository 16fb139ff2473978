"""ChatGLM-6B in batches, and with every strategy; test_models.py has what its twin computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from model_folders import CONTEXTS, descriptions, fixture, ragged, write_folder
from recording import Run, load

from ice_tokenizers import Published, model_file, write
from mindbatch import LLM, DecodingParams
from mindbatch.io.errors import CacheBudgetError, ConfigError, PromptError
from mindbatch.models.registry import describe, tensor_specs
from mindbatch.models.tensor_spec import source_shapes

pytestmark = pytest.mark.slow
GREEDY = DecodingParams(max_new_tokens=64)
STRATEGIES = {
    "sampling": DecodingParams(max_new_tokens=12, do_sample=True, num_return_sequences=3, seed=5),
    "beams": DecodingParams(max_new_tokens=12, num_beams=3, num_return_sequences=2),
    "contrastive": DecodingParams(max_new_tokens=12, penalty_alpha=0.6, top_k=4),
    "lookup": DecodingParams(max_new_tokens=24, prompt_lookup_num_tokens=3),
    "processors": DecodingParams(max_new_tokens=12, repetition_penalty=1.3, no_repeat_ngram_size=2),
}
STEP = 64  # tokens, more than any context has


@pytest.fixture(scope="module", params=[*descriptions(CONTEXTS)])
def case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(case: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, described = tmp_path_factory.mktemp(case), descriptions(CONTEXTS)[case]
    assert write_folder(path, described) == described["digest"]
    return path


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return load(folder, max_batched_tokens=STEP)


@pytest.mark.parametrize("limits", [{"use_past": False}, {"num_blocks": 20}], ids=str)
def test_a_ragged_batch_of_16(case: str, llm: LLM, limits: dict[str, int]) -> None:
    batch = Run(llm, ragged(case, CONTEXTS), GREEDY, **limits)
    assert batch.tokens == fixture(CONTEXTS)[f"{case}.tokens"].tolist()
    assert (batch.num_preemptions > 0) == ("num_blocks" in limits)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_gives_rows_alone_what_it_gives_them_together(
    case: str, llm: LLM, strategy: str
) -> None:
    params, rows = STRATEGIES[strategy], ragged(case, CONTEXTS)[:6]
    together = Run(llm, rows, params).tokens
    alone = [Run(llm, [row], params, first=i).tokens for i, row in enumerate(rows)]
    assert together == [tokens for each in alone for tokens in each]


def test_a_context_is_shared_as_a_whole_or_not_at_all(case: str, llm: LLM) -> None:
    """Of two contexts that begin alike nothing is; of one that comes again all full blocks are."""
    longest = ragged(case, CONTEXTS)[0]
    changed = [*longest[:-3], longest[-3] + 1, *longest[-2:]]
    alone = [Run(llm, [row], GREEDY).tokens for row in (longest, changed)]
    limits = {"batch_size": 1, "block_size": 8}
    both = Run(llm, [longest, changed, longest], DecodingParams(max_new_tokens=12), tolerance=100, **limits)
    assert both.tokens == [each[0][:12] for each in (alone[0], alone[1], alone[0])]
    assert [result.num_cached_tokens for result in both.results] == [0, 0, (len(longest) - 1) // 8 * 8]


def test_a_context_longer_than_a_step_is_refused(case: str, llm: LLM) -> None:
    with pytest.raises(
        CacheBudgetError,
        match="0: the prompt has 31 tokens that see each other, .*max_batched_tokens=31 or more",
    ):
        Run(llm, ragged(case, CONTEXTS)[:1], GREEDY, max_batched_tokens=29)


def test_prompts_without_a_context_are_refused(case: str, llm: LLM) -> None:
    for prompt in ([5, 6, 7], [5, 91, 6], [5, 94]):
        with pytest.raises(PromptError, match="0: the prompt must have token 94, .* a mask .91 or 90."):
            Run(llm, [prompt], GREEDY)


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


def test_the_reference_kernels_give_the_same(case: str, folder: Path, llm: LLM) -> None:
    plain, prompts = LLM(folder, kernels="reference"), ragged(case, CONTEXTS)[:3]
    found, expected = Run(plain, prompts, GREEDY), Run(llm, prompts, GREEDY)
    assert found.tokens == expected.tokens


def test_an_assistant_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="chatglm_6b, and a model whose prompts are not causal neither"):
        LLM(folder, assistant=str(folder))


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
