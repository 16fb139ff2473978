"""The engine over a shadow model: every token sees its own prefix, and its numbers are of what it did."""

from typing import Any

import numpy as np
import pytest
from shadow_model import (
    VOCABULARY,
    ShadowRunner,
    drain,
    fingerprints,
    greedy_tokens,
    logits_of,
    make_engine,
    plain,
    request,
    run_all,
    settings,
    text_of,
)

from mindbatch.engine.engine import Engine
from mindbatch.engine.request import Request, RequestOutput
from mindbatch.engine.statistics import EngineStatistics
from mindbatch.io.errors import PromptError

PROMPT = [3, 1, 4, 1, 5]
SAMPLING: dict[str, Any] = {"do_sample": True, "temperature": 1.5, "seed": 11}
TINY = {"block_size": 2, "num_blocks": 28, "batch_size": 4, "max_batched_tokens": 5}


def one(engine: Engine, prompt: list[int], **params: object) -> RequestOutput:
    return run_all(engine, [request("row", prompt, **params)])["row"]


def log_softmax(tokens: list[int]) -> np.ndarray:
    logits = logits_of(fingerprints(tokens)[-1]).astype(np.float64)
    return logits - np.log(np.exp(logits).sum())


@pytest.mark.parametrize("use_past", [True, False])
def test_samples_equal_separate_runs(use_past: bool) -> None:
    """A sample's random numbers depend on its index alone, so fewer samples are a part of more."""
    limits = settings(use_past=use_past, **TINY)
    four = one(make_engine(limits), PROMPT, num_return_sequences=4, max_new_tokens=9, **SAMPLING)
    assert [output.index for output in four.outputs] == [0, 1, 2, 3]
    assert len({tuple(output.token_ids) for output in four.outputs}) == 4
    for count in (1, 2, 3):
        fewer = one(make_engine(settings()), PROMPT, num_return_sequences=count, max_new_tokens=9, **SAMPLING)
        assert plain(fewer)[-1] == plain(four)[-1][:count]


def test_forks_share_the_prompt() -> None:
    """Five samples of a long prompt fit where five copies of it would not."""
    engine = make_engine(settings(num_blocks=60))
    engine.add(request("row", [1] * 30, num_return_sequences=5, max_new_tokens=10, **SAMPLING))
    engine.step()
    assert engine.settings.num_blocks - engine.scheduler.blocks.num_free == 8
    engine.step()
    assert engine.settings.num_blocks - engine.scheduler.blocks.num_free == 8 + 4
    assert engine.scheduler.num_preemptions == 0


@pytest.mark.parametrize(
    ("use_past", "computed"),
    [(True, [(0, 5), (5, 6), (6, 7), (7, 8)]), (False, [(0, 5), (0, 6), (0, 7), (0, 8)])],
)
def test_everything_is_recomputed_only_without_a_cache(use_past: bool, computed: list[Any]) -> None:
    engine = make_engine(settings(use_past=use_past))
    output = one(engine, PROMPT, max_new_tokens=4)
    assert output.outputs[0].token_ids == greedy_tokens(PROMPT, 4)
    runner = engine._runner
    assert isinstance(runner, ShadowRunner)
    assert [step[0][1:3] for step in runner.steps] == computed


def test_ends_at_any_of_several_eos() -> None:
    free = greedy_tokens(PROMPT, 20)
    for place in (0, 3, 7):
        eos = (free[place], next(token for token in range(VOCABULARY) if token not in free[: place + 1]))
        cut = free[: free.index(free[place]) + 1]
        for engine, params in ((make_engine(settings(), eos), {}), (make_engine(settings()), {"eos": eos})):
            asked = {"eos_token_id": params["eos"]} if params else {}
            output = one(engine, PROMPT, max_new_tokens=20, **asked).outputs[0]
            assert (output.token_ids, output.finish_reason) == (cut, "stop")
    output = one(make_engine(settings(), (free[1],)), PROMPT, max_new_tokens=20, eos_token_id=()).outputs[0]
    assert output.token_ids == free


def test_a_minimum_that_no_request_can_have_is_refused() -> None:
    engine = make_engine(settings())
    most = engine.settings.seq_length
    for name, allowed in (("min_length", most), ("min_new_tokens", most - 1)):
        with pytest.raises(
            PromptError, match=f"decoding.{name}={allowed + 1}: .* {most} tokens; .* {allowed}$"
        ):
            one(engine, PROMPT, max_new_tokens=most, **{name: allowed + 1})
        assert one(engine, PROMPT, max_new_tokens=most, **{name: allowed}).error is None


def test_stop_strings_cut_across_tokens() -> None:
    free = greedy_tokens(PROMPT, 20)
    text = text_of(free)
    stop = text[6:9]
    begins = text.index(stop)
    output = one(make_engine(settings()), PROMPT, max_new_tokens=20, stop=(stop, "zzz")).outputs[0]
    assert output.text == text[:begins]
    assert output.token_ids == free[: begins + 3]
    assert output.finish_reason == "stop"


@pytest.mark.parametrize("start", [0, 1, 5])
@pytest.mark.parametrize("use_past", [True, False])
def test_prompt_logprobs_in_chunks_under_preemption(use_past: bool, start: int) -> None:
    scored = {"prompt_logprobs": 2, "prompt_logprobs_start": start}
    prompts = {str(i): [(7 * i + j * j) % VOCABULARY for j in range(9)] for i in range(6)}
    requests = [
        request(key, prompt, max_new_tokens=9, num_return_sequences=2, **scored, **SAMPLING)
        for key, prompt in prompts.items()
    ]
    engine = make_engine(settings(use_past=use_past, **(TINY | {"num_blocks": 20, "batch_size": 8})))
    results = run_all(engine, requests)
    assert engine.scheduler.num_preemptions > 0
    for key, prompt in prompts.items():
        scores = results[key].prompt_logprobs
        assert scores is not None
        assert len(scores) == len(prompt) - start
        assert start or scores[0] is None
        for place in range(max(1, start), len(prompt)):
            exact, reported = log_softmax(prompt[:place]), scores[place - start]
            assert reported is not None
            assert set(reported) == {*np.argsort(-exact)[:2].tolist(), prompt[place]}
            assert reported[prompt[place]] == pytest.approx(exact[prompt[place]], abs=1e-5)


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([], {}, "the prompt has no tokens"),
        ([1] * 40, {}, "the prompt has 40 tokens and prompt and output together may have 40"),
        (PROMPT, {"max_length": 5}, "the prompt has 5 tokens and prompt and output together may have 5"),
        ([1, VOCABULARY], {}, "token id 12 is outside the vocabulary; allowed: 0 to 11"),
        ([1, -1], {}, "token id -1 is outside the vocabulary"),
        (PROMPT, {"eos_token_id": 99}, "token id 99 is outside the vocabulary"),
    ],
)
def test_bad_prompts_are_refused(prompt: list[int], params: dict[str, Any], message: str) -> None:
    engine = make_engine(settings())
    with pytest.raises(PromptError, match=message):
        engine.add(request("row", prompt, **params))
    assert not engine.has_work


def test_a_prompt_with_the_token_of_an_image_is_refused() -> None:
    engine = make_engine(settings(placeholders=((7, "image_token_id"), (3, "boi_token_index"))))
    with pytest.raises(PromptError, match="token id 3 at position 1 is the boi_token_index of the model"):
        engine.add(request("row", [1, 3, 3]))
    engine.add(request("text", [1, 2]))


@pytest.mark.parametrize(
    ("changes", "params", "help_"),
    [
        ({"seq_length": 5}, {}, "shorten it or raise model.seq_length=5$"),
        (
            {"seq_length": 5, "max_positions": 9},
            {},
            r"raise model.seq_length=5 \(the model has 9 positions\)",
        ),
        (
            {"seq_length": 5, "max_positions": 5},
            {},
            "may have 5; shorten it: the model has no more positions",
        ),
        ({"max_positions": 40}, {"max_length": 3}, "shorten it or raise decoding.max_length=3$"),
    ],
)
def test_what_helps_a_prompt_that_is_too_long(
    changes: dict[str, Any], params: dict[str, Any], help_: str
) -> None:
    with pytest.raises(PromptError, match=help_):
        make_engine(settings(**changes)).add(request("row", [1] * 5, **params))


def test_an_adapter_that_is_not_there_is_refused() -> None:
    base = request("row", PROMPT)
    with pytest.raises(PromptError, match="row: there is no adapter 'sft': lora.adapters names none"):
        make_engine(settings()).add(Request("row", base.prompt_token_ids, base.params, adapter="sft"))


LONG = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]


def used(engine: Engine) -> tuple[int, int, int]:
    now = engine.statistics
    return now.running_sequences, now.waiting_requests, now.blocks_used


def test_a_new_engine_has_done_nothing() -> None:
    fresh = make_engine(settings()).statistics
    assert fresh == EngineStatistics(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 400, 0.0)
    assert (fresh.prefix_hit_rate, fresh.cache_use) == (0.0, 0.0)


def test_totals_and_load() -> None:
    engine = make_engine(settings(batch_size=2, num_blocks=20))
    for key in "abc":
        engine.add(request(key, LONG, max_new_tokens=3))
    assert used(engine) == (0, 3, 0)
    engine.step()
    assert used(engine) == (1, 2, 3), "the second waits for what the first computes"
    engine.step()
    assert used(engine) == (2, 1, 4), "and shares two of its blocks"
    assert engine.statistics.cache_use == 4 / 20
    drain(engine)
    end = engine.statistics
    assert (end.prompt_tokens, end.cached_prompt_tokens, end.prefix_hit_rate) == (30, 16, 16 / 30)
    assert (end.generated_tokens, end.num_preemptions) == (9, 0)
    assert end.computed_tokens == 30 - 16 + 3 * 2, "the last token of an output is never computed"
    assert used(engine) == (0, 0, 0)


@pytest.mark.parametrize(("prefix_caching", "cached"), [(False, 0), (True, 2)])
def test_tokens_computed_again_count_as_computed_only(prefix_caching: bool, cached: int) -> None:
    engine = make_engine(settings(block_size=2, num_blocks=10, prefix_caching=prefix_caching))
    for last in (1, 2):
        engine.add(request(str(last), [*LONG[:3], last], max_new_tokens=12))
    drain(engine)
    end = engine.statistics
    assert end.num_preemptions > 0
    assert (end.prompt_tokens, end.cached_prompt_tokens, end.generated_tokens) == (8, cached, 24)
    assert end.computed_tokens > 8 - cached + 24 - 2


def test_waste_is_the_share_of_empty_slots_over_all_steps() -> None:
    """Blocks of four; after the steps, 2 of 12, 1 of 12 and 0 of 12 slots hold no token."""
    engine = make_engine(settings())
    engine.add(request("a", LONG, max_new_tokens=3))
    drain(engine)
    assert engine.statistics.cache_waste == pytest.approx(3 / 36)


def test_a_shared_block_wastes_once() -> None:
    """Five samples: all share three blocks after the prompt; then four copies of the last are made."""
    engine = make_engine(settings())
    engine.add(request("a", LONG, max_new_tokens=3, num_return_sequences=5, **SAMPLING))
    engine.step()
    assert engine.statistics.cache_waste == pytest.approx(2 / 12)
    engine.step()
    assert engine.statistics.cache_waste == pytest.approx((2 + 5) / (12 + 28))
    drain(engine)
    assert (engine.statistics.generated_tokens, engine.statistics.prompt_tokens) == (15, 10)


def test_forks_that_have_not_parted_yet_waste_once() -> None:
    """The step of three tokens has no room for three samples beside the other sequence."""
    engine = make_engine(settings(max_batched_tokens=3))
    engine.add(request("other", [1], max_new_tokens=3))
    engine.add(request("forks", [2, 3], max_new_tokens=3, num_return_sequences=3, **SAMPLING))
    engine.step()
    assert engine.statistics.cache_waste == pytest.approx((3 + 2) / 8)
    engine.step()
    assert engine.statistics.running_sequences == 4
    assert engine.statistics.cache_waste == pytest.approx((3 + 2 + 2 + 2) / 16)
