"""Drafts of an assistant equal those from scratch, and with them rows get what they get without."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from shadow_model import (
    VOCABULARY,
    Letters,
    ShadowOutput,
    ShadowRunner,
    all_plain,
    fingerprints,
    logits_of,
    request,
    run_all,
    settings,
)

from mindbatch.decoding import DecodingParams
from mindbatch.decoding.draws import row_hash
from mindbatch.decoding.row import Draft, Row, TokenChoice
from mindbatch.decoding.speculative import guess
from mindbatch.engine.assistant import Assistant
from mindbatch.engine.engine import Engine
from mindbatch.engine.request import Request, RequestOutput
from mindbatch.engine.step import Step

EOS = (7,)
TINY = {"num_blocks": 7, "max_batched_tokens": 5, "seq_length": 26}
SETTINGS: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 1.7, "min_new_tokens": 6},
    {"do_sample": True, "seed": 3},
    {"do_sample": True, "top_k": 3, "repetition_penalty": 1.3},
]


def row(
    key: str, prompt: Sequence[int], output: Sequence[int] = (), eos: tuple[int, ...] = EOS, **params: Any
) -> Row:
    return Row(DecodingParams(**params), tuple(prompt), list(output), eos, row_hash(key), key=key)


def from_scratch(one: Row, count: int, positions: int) -> Draft | None:
    """What the row must be given, without a cache or other rows."""
    ahead, guesses = one.fork(), []
    for _ in range(min(count, positions - len(one.prompt_token_ids) - one.step + 1)):
        logits = logits_of(fingerprints([*ahead.prompt_token_ids, *ahead.output_token_ids])[-1])
        [guessed] = guess([ahead], logits[np.newaxis])
        assert guessed is not None
        guesses.append(guessed)
        ahead.append(TokenChoice(guesses[-1].token_id, 0.0))
        if guesses[-1].token_id in one.eos_token_ids:
            break
    if not guesses:
        return None
    drawn = [found.probabilities for found in guesses if found.probabilities is not None]
    return Draft(tuple(found.token_id for found in guesses), tuple(drawn) or None)


def check(draft: Draft | None, expected: Draft | None) -> None:
    if draft is None or expected is None:
        assert draft is expected
        return
    assert draft.token_ids == expected.token_ids
    assert (draft.probabilities is None) == (expected.probabilities is None)
    for found, hoped in zip(draft.probabilities or (), expected.probabilities or (), strict=True):
        np.testing.assert_array_equal(found, hoped)


def make(**changes: int) -> tuple[Assistant, ShadowRunner]:
    limits = settings(**changes)
    runner = ShadowRunner(limits)
    return Assistant(runner, limits), runner


def grow(one: Row, tokens: Sequence[int]) -> None:
    for token in tokens:
        one.append(TokenChoice(token, 0.0))


def spans(runner: ShadowRunner) -> list[tuple[int, int]]:
    """First position and the one after the last of all that the runner computed; forgets it."""
    found = [(start, stop) for step in runner.steps for _, start, stop, _ in step]
    runner.steps.clear()
    return found


DRAFT = from_scratch(row("a", [3, 1, 4, 1, 5], eos=()), 4, 40)
assert DRAFT is not None
GUESSES = DRAFT.token_ids
OTHER = (GUESSES[1] + 1) % VOCABULARY


@pytest.mark.parametrize(
    ("grown", "count", "computed"),
    [
        ([*GUESSES, 9], 2, [(8, 10), (10, 11)]),  # after a draft that held only the last tokens are new
        ([GUESSES[0], OTHER], 2, [(6, 7), (7, 8)]),  # refused guesses are computed over
        ([GUESSES[0], OTHER, GUESSES[2], 0, 0], 1, [(6, 10)]),  # a row may have gone its own way
        ([], 4, [(4, 5), (5, 6), (6, 7), (7, 8)]),  # one that has not moved is asked again for one token
    ],
)
def test_only_what_is_new_is_computed(grown: list[int], count: int, computed: list[Any]) -> None:
    """Of a row of five tokens that was given four guesses."""
    assistant, runner = make()
    one = row("a", [3, 1, 4, 1, 5], eos=())
    check(*assistant.propose([one], [4]), DRAFT)
    assert spans(runner) == [(0, 5), (5, 6), (6, 7), (7, 8)]
    grow(one, grown)
    check(*assistant.propose([one], [count]), from_scratch(one, count, 40))
    assert spans(runner) == computed


def test_a_forgotten_row_begins_anew() -> None:
    assistant, runner = make()
    one = row("a", [3, 1, 4])
    assistant.propose([one], [1])
    assistant.forget(one)
    assistant.forget(one)
    assert assistant.blocks.num_free == 400
    spans(runner)
    assistant.propose([one], [1])
    assert spans(runner) == [(0, 3)]


class TestSharing:
    def test_samples_compute_their_prompt_once(self) -> None:
        assistant, runner = make()
        rows = [row("a", range(10), [token], do_sample=True) for token in (1, 2, 3)]
        for index, one in enumerate(rows):
            one.sample_index = index
        drafts = assistant.propose(rows, [1, 1, 1])
        assert spans(runner) == [(0, 11), (8, 11), (8, 11)]
        for draft, one in zip(drafts, rows, strict=True):
            check(draft, from_scratch(one, 1, 40))

    def test_a_shared_block_is_copied_before_it_is_written(self) -> None:
        assistant, runner = make()
        one, other = row("a", range(8)), row("b", range(11))
        assistant.propose([one], [1])
        assistant.propose([other], [1])
        spans(runner)
        for again in (one, other):
            check(*assistant.propose([again], [2]), from_scratch(again, 2, 40))
        assert [start for start, _ in spans(runner)] == [7, 8, 10, 11]

    def test_guesses_are_not_shared(self) -> None:
        """Tokens that were refused may have filled a block."""
        assistant, runner = make()
        one = row("a", [3, 1, 4])
        [draft] = assistant.propose([one], [6])
        assert draft is not None
        spans(runner)
        assistant.propose([row("b", [3, 1, 4, *draft.token_ids])], [1])
        assert spans(runner)[0][0] == 0


class TestLimits:
    def test_positions_run_out(self) -> None:
        assistant, _ = make(seq_length=10)
        rows = [row(str(size), [5] * size) for size in (6, 8, 10, 11, 30)]
        drafts = assistant.propose(rows, [4] * 5)
        for draft, one in zip(drafts, rows, strict=True):
            check(draft, from_scratch(one, 4, 10))
        assert [draft is None for draft in drafts] == [False, False, False, True, True]

    def test_a_cache_smaller_than_a_row(self) -> None:
        assistant, _ = make(num_blocks=2)
        drafts = assistant.propose([row("a", [5] * 8), row("b", [5] * 9)], [3, 3])
        check(drafts[0], from_scratch(row("a", [5] * 8), 3, 8))
        assert drafts[1] is None

    def test_no_tokens_wanted(self) -> None:
        assistant, runner = make()
        assert assistant.propose([row("a", [1])], [0]) == [None]
        assert assistant.propose([], []) == []
        assert runner.steps == []

    @pytest.mark.parametrize("count", [0, 2])
    def test_a_dead_end_ends_the_draft_and_nothing_else(self, count: int) -> None:
        """What is guessed may never come, so that a callable that fails on it has not failed yet."""

        def allowed(key: str, tokens: Sequence[int]) -> Sequence[int]:
            if key == "fails":
                raise KeyError(key)
            return range(8, 12) if len(tokens) < 3 + count else []

        dead = row("dead", [3, 1, 4], prefix_allowed_tokens_fn=allowed)
        fails = row("fails", [3, 1, 4], prefix_allowed_tokens_fn=allowed)
        other = row("other", [3, 1, 4])
        drafts = make()[0].propose([dead, fails, other], [4, 4, 4])
        assert [draft and len(draft.token_ids) for draft in drafts[:2]] == [count or None, None]
        check(drafts[2], from_scratch(other, 4, 40))

    def test_the_least_recently_used_is_dropped(self) -> None:
        assistant, runner = make(num_blocks=6)
        a, b, c = (row(key, [number] * 8) for number, key in enumerate("abc"))
        assistant.propose([a, b], [1, 1])
        assistant.propose([a], [1])
        assistant.propose([c], [5])
        spans(runner)
        assistant.propose([a], [1])
        assert spans(runner) == [(7, 8)]
        assistant.propose([b], [1])
        [(start, stop)] = spans(runner)
        assert start < 7
        assert stop == 8


@st.composite
def programs(draw: st.DrawFn) -> list[tuple[str, Any]]:
    """What becomes of six rows: some are asked for, some grow, as guessed or not, some are forgotten."""
    some = st.lists(st.integers(0, 5), min_size=1, max_size=6, unique=True)
    asking = st.tuples(
        st.just("propose"),
        some.flatmap(
            lambda places: st.tuples(
                st.just(places), st.lists(st.integers(0, 5), min_size=len(places), max_size=len(places))
            )
        ),
    )
    growing = st.tuples(
        st.just("grow"),
        st.tuples(
            st.integers(0, 5),
            st.integers(0, 4),
            st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=2),
        ),
    )
    forgetting = st.tuples(st.just("forget"), st.integers(0, 5))
    return draw(st.lists(st.one_of(asking, asking, growing, growing, forgetting), max_size=14))


@given(programs(), st.sampled_from([{}, TINY, {"num_blocks": 13}, {"max_batched_tokens": 3}]))
def test_drafts_equal_those_from_scratch(program: list[tuple[str, Any]], changes: dict[str, int]) -> None:
    """The shadow runner checks besides that every token finds its own prefix in the cache."""
    assistant, _ = make(**changes)
    rows = [
        row(f"row {n}", [1, 2, 3, 4, 5, 6, 7, 8, n][n % 2 : n + 4], [n], **SETTINGS[n % len(SETTINGS)])
        for n in range(6)
    ]
    last: dict[int, Draft | None] = {}
    limits = settings(**changes)
    positions = min(limits.seq_length, limits.num_blocks * limits.block_size)
    for name, what in program:
        if name == "forget":
            assistant.forget(rows[what])
        elif name == "grow":
            place, kept, tokens = what
            draft = last.pop(place, None)
            grow(rows[place], [*(draft.token_ids[:kept] if draft else ()), *tokens])
        else:
            places, counts = what
            drafts = assistant.propose([rows[place] for place in places], counts)
            for place, count, draft in zip(places, counts, drafts, strict=True):
                check(draft, from_scratch(rows[place], count, positions))
                last[place] = draft
    for one in rows:
        assistant.forget(one)
    assert assistant.blocks.num_free == limits.num_blocks


TIGHT = {"block_size": 2, "num_blocks": 28, "batch_size": 4, "max_batched_tokens": 12}
ENDINGS: list[dict[str, Any]] = [
    {},
    {"logprobs": 2, "repetition_penalty": 1.2},
    {"stop": "hh", "min_new_tokens": 3},
    {"eos_token_id": (), "max_new_tokens": 30},
]


class Hesitant(ShadowRunner):
    """A model whose likeliest token is the shadow model's three times out of four."""

    def run(self, step: Step) -> ShadowOutput:
        return _Hesitating(super().run(step).states)


class _Hesitating(ShadowOutput):
    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        return np.stack(
            [np.roll(logits_of(self.states[token]), int(self.states[token] % 4 == 0)) for token in tokens]
        )


def requests(**params: Any) -> list[Request]:
    return [
        request(
            f"row {n}", [*range(n % 5 + 1), 3, n % 4], **{"max_new_tokens": 16, **ENDINGS[n % 4], **params}
        )
        for n in range(12)
    ]


def engine(changes: dict[str, int], assistant_changes: dict[str, int] | None = None) -> Engine:
    limits = settings(**changes)
    assistant = None
    if assistant_changes is not None:
        own = settings(**assistant_changes)
        assistant = Assistant(Hesitant(own), own)
    return Engine(ShadowRunner(limits), limits, Letters, EOS, assistant=assistant)


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize("changes", [{}, TIGHT])
@pytest.mark.parametrize("assistant", [{}, {"num_blocks": 6}, {"seq_length": 12}])
def test_greedy_output_is_that_without_an_assistant(
    changes: dict[str, int], assistant: dict[str, int]
) -> None:
    plain = all_plain(run_all(engine(changes), requests()))
    assisted = engine(changes, assistant)
    results = run_all(assisted, requests(num_assistant_tokens=4))
    assert all_plain(results) == plain
    assert isinstance(assisted._assistant, Assistant)
    assert assisted._assistant.blocks.num_free == settings(**assistant).num_blocks


def test_samples_do_not_depend_on_how_the_engine_ran() -> None:
    params = {"num_assistant_tokens": 3, "do_sample": True, "num_return_sequences": 3}
    alike = all_plain(run_all(engine({}, {}), requests(**params)))
    tight = {"block_size": 2, "num_blocks": 58, "max_batched_tokens": 20}
    assert all_plain(run_all(engine(tight, {"num_blocks": 10}), requests(**params))) == alike
    assert all_plain(run_all(engine({}, {"max_batched_tokens": 3}), requests(**params))) == alike
    assert len({tuple(output[2]) for output in alike["row 3"][-1]}) == 3


def test_steps_are_saved_and_counted() -> None:
    def run(**params: Any) -> tuple[int, RequestOutput]:
        one = engine({}, {})
        results = run_all(one, [request("row", [3, 1, 4], max_new_tokens=30, eos_token_id=(), **params)])
        return one.statistics.steps, results["row"]

    steps, plain = run()
    fewer, assisted = run(num_assistant_tokens=4)
    [output] = assisted.outputs
    assert plain.outputs[0].num_drafted_tokens == 0
    assert 0 < output.num_accepted_tokens < output.num_drafted_tokens
    assert steps == 30
    # Every step adds the accepted tokens and one of its own.
    assert fewer + output.num_accepted_tokens == 30
    assert fewer < 20
