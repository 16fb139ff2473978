"""Beginnings that requests share are computed once; what is found is right, whatever happened before."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shadow_model import (
    VOCABULARY,
    Letters,
    ShadowOutput,
    ShadowRunner,
    all_plain,
    cached,
    drain,
    greedy_tokens,
    make_engine,
    plain,
    request,
    run_all,
    settings,
)

from mindbatch.engine.adapter_slots import AdapterSlots, KnownAdapters, LiveAdapter, TakenSlot
from mindbatch.engine.engine import Engine
from mindbatch.engine.prefix_cache import block_digest, root_digest
from mindbatch.engine.request import Request
from mindbatch.engine.settings import EngineSettings
from mindbatch.engine.step import Step
from mindbatch.io.errors import CacheBudgetError, PromptError

SAMPLING: dict[str, Any] = {"do_sample": True, "temperature": 1.5, "seed": 11}
HEAD = [(5 * place + place * place // 3) % VOCABULARY for place in range(30)]


def steps_of(engine: Engine) -> list[list[tuple[str, int, int, bool]]]:
    runner = engine._runner
    assert isinstance(runner, ShadowRunner)
    return runner.steps


def test_a_shared_beginning_is_computed_once() -> None:
    engine = make_engine(settings())
    assert cached(engine, "first", [*HEAD[:10], 1]) == 0
    assert cached(engine, "second", [*HEAD[:10], 2, 3]) == 8
    assert [row for step in steps_of(engine) for row in step if row[0] == "second"][0] == (
        "second", 8, 12, True,
    )  # fmt: skip
    assert cached(engine, "third", [*HEAD[:5], 9, 9, 9, 9]) == 4
    assert cached(engine, "other", [9, *HEAD[1:10]]) == 0


@pytest.mark.parametrize(
    ("start", "found"), [(0, 0), (1, 0), (4, 0), (5, 4), (8, 4), (9, 8), (12, 8), (13, 12), (15, 12)]
)
def test_scores_from_a_token_on_take_the_prompt_before_it_from_the_cache(start: int, found: int) -> None:
    """The token before the first that is scored is computed: its logits say how likely that one is."""
    engine = make_engine(settings())
    assert cached(engine, "a", HEAD[:16]) == 0
    asked = request("b", HEAD[:16], max_new_tokens=1, prompt_logprobs=2, prompt_logprobs_start=start)
    output = run_all(engine, [asked])["b"]
    assert output.num_cached_tokens == found
    whole = request("whole", HEAD[:16], max_new_tokens=1, prompt_logprobs=2)
    expected = run_all(make_engine(settings()), [whole])["whole"].prompt_logprobs
    assert expected is not None
    assert output.prompt_logprobs == expected[start:]


def test_choices_after_one_context_compute_it_once() -> None:
    engine = make_engine(settings())
    rows = [
        request(name, [*HEAD[:12], *tail], max_new_tokens=1, prompt_logprobs=0, prompt_logprobs_start=12)
        for name, tail in (("a", [1]), ("b", [2, 3]), ("c", [4]), ("d", [5, 6, 7]))
    ]
    results = run_all(engine, rows)
    assert sum(stop - start for step in steps_of(engine) for _, start, stop, _ in step) == 13 + 6 + 5 + 7
    for row in rows:
        alone = run_all(make_engine(settings(prefix_caching=False)), [row])[row.key]
        assert results[row.key].prompt_logprobs == alone.prompt_logprobs
        assert len(alone.prompt_logprobs or ()) == len(row.prompt_token_ids) - 12


@pytest.mark.parametrize("start", [5, 99])
def test_there_must_be_a_token_to_score(start: int) -> None:
    fault = f"b: decoding.prompt_logprobs_start={start}: the prompt has 5 tokens; allowed: 0 to 4"
    with pytest.raises(PromptError, match=f"^{fault}$"):
        make_engine(settings()).add(request("b", HEAD[:5], prompt_logprobs=0, prompt_logprobs_start=start))


class _NoSlotsNeeded(AdapterSlots):
    """The shadow model computes any adapter in slot 0."""

    def offers(self, name: str | None) -> bool:
        return True

    def take(self, name: str | None) -> TakenSlot:
        return TakenSlot(0, False)

    def release(self, name: str | None) -> None:
        return


def test_adapters_share_what_they_are_not_what_they_are_called() -> None:
    limits = settings()
    live = {name: LiveAdapter(name, digest) for name, digest in (("sft", "1"), ("copy", "1"), ("law", "2"))}
    known, slots = KnownAdapters({**live, "base": None}), _NoSlotsNeeded(0)
    engine = Engine(ShadowRunner(limits), limits, Letters, adapters=known, slots=slots)
    cached(engine, "base", HEAD[:12])
    found = [
        run_all(engine, [replace(request(name + str(n), HEAD[:12], max_new_tokens=1), adapter=name)])
        for n, name in enumerate(["base", "sft", "sft", "law", "copy"])
    ]
    assert [output.num_cached_tokens for each in found for output in each.values()] == [8, 0, 8, 0, 8]


def test_digests_name_the_whole_beginning() -> None:
    roots = [root_digest(None), root_digest("None"), root_digest("")]
    names = [block_digest(root, [1, 2]) for root in roots]
    names += [block_digest(roots[0], tokens) for tokens in ([2, 1], [1, 2, 0], [258], [1 << 40, 2])]
    names += [block_digest(names[0], [1, 2]), block_digest(names[3], [1, 2])]
    assert len(set(names + roots)) == len(names) + 3
    assert {len(name) for name in names} == {16}
    assert block_digest(roots[0], [1, 2]) == names[0]


def test_requests_that_come_together_wait_for_their_common_beginning() -> None:
    """One computes it while decoding goes on; in the next step all others share it."""
    engine = make_engine(settings(batch_size=4))
    engine.add(request("other", [7, 7], max_new_tokens=9))
    engine.step()
    for key in "abc":
        engine.add(request(key, [*HEAD[:12], ord(key) % VOCABULARY], max_new_tokens=2))
    engine.step()
    engine.step()
    assert [[row[:3] for row in step] for step in steps_of(engine)[1:]] == [
        [("other", 2, 3), ("a", 0, 13)],
        [("other", 3, 4), ("a", 13, 14), ("b", 12, 13), ("c", 12, 13)],
    ]


def test_nobody_waits_for_what_cannot_be_shared() -> None:
    engine = make_engine(settings())
    engine.add(request("a", HEAD[:12]))
    engine.add(request("scored", HEAD[:12], prompt_logprobs=0))
    engine.add(request("short", HEAD[:4]))
    engine.step()
    assert [row[0] for row in steps_of(engine)[0]] == ["a", "scored", "short"]


def test_a_long_beginning_in_chunks_is_computed_once() -> None:
    """Thirty-two requests at once over a beginning of more than a step."""
    limits = settings(batch_size=32, seq_length=60, max_batched_tokens=25)
    engine = make_engine(limits)
    prompts = {str(i): [*HEAD, i % VOCABULARY, i // VOCABULARY] for i in range(32)}
    results = run_all(engine, [request(key, prompt, max_new_tokens=2) for key, prompt in prompts.items()])
    assert {key: result.outputs[0].token_ids for key, result in results.items()} == {
        key: greedy_tokens(prompt, 2) for key, prompt in prompts.items()
    }
    assert [results[str(i)].num_cached_tokens for i in range(32)] == [0] + [28] * 31


def test_admission_counts_the_found_blocks_that_must_be_taken() -> None:
    """Four free blocks of which two are found leave two: a request that needs three more has to wait."""
    engine = make_engine(settings(num_blocks=6, batch_size=4))
    cached(engine, "past", HEAD[:8])
    assert len(engine.scheduler.blocks.find(_digests(HEAD[:8]))) == 2
    engine.add(request("long", [1, 2, 3, 4, 5], max_new_tokens=3))
    engine.step()
    assert engine.scheduler.blocks.num_free == 4
    engine.add(request("late", [*HEAD[:8], *range(9)], max_new_tokens=1))
    engine.step()
    assert len(engine.scheduler.running) == 1
    drain(engine)


def test_admission_does_not_count_found_blocks_that_somebody_holds() -> None:
    engine = make_engine(settings(num_blocks=5, batch_size=4))
    engine.add(request("first", HEAD[:13], max_new_tokens=3))
    engine.step()
    assert engine.scheduler.blocks.num_free == 1
    engine.add(request("second", [*HEAD[:12], 5], max_new_tokens=3))
    engine.step()
    assert len(engine.scheduler.running) == 2
    drain(engine)


def _digests(tokens: Sequence[int]) -> list[bytes]:
    digests, parent = [], root_digest(None)
    for start in range(0, len(tokens), 4):
        parent = block_digest(parent, tokens[start : start + 4])
        digests.append(parent)
    return digests


def test_a_preempted_request_finds_its_blocks_again() -> None:
    """Samples come back to the prompt that they shared: it is not computed once for each of them."""
    engine = make_engine(settings(block_size=2, num_blocks=21, batch_size=6))
    rows = [
        request("a", HEAD[:8], max_new_tokens=6),
        request("aa", HEAD[1:9], max_new_tokens=6),
        request("b", HEAD[10:18], max_new_tokens=6, num_return_sequences=3, **SAMPLING),
    ]
    results = run_all(engine, rows)
    assert engine.scheduler.num_preemptions > 0
    again = [row for step in steps_of(engine) for row in step if row[0] == "b" and row[1] < 8]
    assert again == [("b", 0, 8, True)]
    alone = make_engine(settings())
    assert plain(results["b"]) == plain(run_all(alone, rows[2:])["b"])
    assert results["b"].num_cached_tokens == 0, "what is found after a pre-emption was not there at first"


class Broken(Exception):
    """What a runner raises in the middle of a step."""


class BreakingRunner(ShadowRunner):
    """Fails in one step: `after` having written it, or with rubbish in its slots."""

    def __init__(self, limits: EngineSettings, step: int, after: bool) -> None:
        super().__init__(limits)
        self.left, self.after = step, after

    def run(self, step: Step) -> ShadowOutput:
        self.left -= 1
        if self.left != 0:
            return super().run(step)
        if self.after:
            super().run(step)
        else:
            for tokens in step.scheduled:
                self.cache[tokens.sequence.block_table[tokens.start // self.limits.block_size :]] = -2
        raise Broken


def shared_prompts() -> st.SearchStrategy[list[Request]]:
    """Requests whose prompts share beginnings of any length, among them the same prompt several times."""
    token = st.integers(0, VOCABULARY - 1)
    prompt = st.tuples(st.integers(0, 16), st.lists(token, min_size=1, max_size=4)).map(
        lambda parts: [*HEAD[: parts[0]], *parts[1]]
    )
    params = st.fixed_dictionaries(
        {"max_new_tokens": st.integers(1, 9), "num_return_sequences": st.integers(1, 3)},
        optional={"scored_from": st.integers(0, 20)},
    )
    return st.lists(st.tuples(prompt, params), min_size=2, max_size=8).map(
        lambda rows: [_asked(str(i), tokens, **asked) for i, (tokens, asked) in enumerate(rows)]
    )


def _asked(key: str, prompt: list[int], scored_from: int | None = None, **params: int) -> Request:
    """scored_from: the first token of the prompt that is scored, or its last."""
    scores: dict[str, Any] = {}
    if scored_from is not None:
        scores = {"prompt_logprobs": 1, "prompt_logprobs_start": min(scored_from, len(prompt) - 1)}
    return request(key, prompt, **SAMPLING, **params, **scores)


SIZES = st.fixed_dictionaries(
    {
        "batch_size": st.integers(1, 6),
        "block_size": st.integers(1, 5),
        "num_blocks": st.integers(10, 60),
        "max_batched_tokens": st.integers(3, 30),
        "num_states": st.integers(0, 8),
    }
)


@given(
    rows=shared_prompts(),
    sizes=SIZES,
    abort=st.integers(0, 12),
    breaks=st.integers(0, 12),
    after=st.booleans(),
)
def test_results_do_not_depend_on_what_is_cached(
    rows: list[Request], sizes: dict[str, Any], abort: int, breaks: int, after: bool
) -> None:
    """The requests run twice, after a run that was dropped and perhaps broke: the shadow model checks every
    prefix that is found."""
    limits = settings(**sizes)
    engine = Engine(BreakingRunner(limits, breaks, after), limits, Letters)
    fitting = [row for row in rows if fits(engine, row)]
    try:
        for _ in range(abort):
            if engine.has_work:
                engine.step()
    except Broken:
        pass
    engine.abort()
    assert engine.scheduler.blocks.num_free == limits.num_blocks
    runner = engine._runner
    assert isinstance(runner, BreakingRunner)
    runner.left = 0
    expected = {row.key: plain(run_all(make_engine(settings()), [row])[row.key]) for row in fitting}
    for order in (fitting, fitting[::-1]):
        results = run_all(engine, order)
        assert all_plain(results) == expected
        for row in fitting:
            assert 0 <= results[row.key].num_cached_tokens < len(row.prompt_token_ids)


def fits(engine: Engine, row: Request) -> bool:
    """Adds a request unless the cache is too small for it."""
    try:
        engine.add(row)
    except CacheBudgetError:
        return False
    return True
