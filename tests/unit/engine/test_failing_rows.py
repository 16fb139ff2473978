"""Whatever is raised for one row ends that row alone; what the model raises, or the user, ends the run."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from shadow_model import (
    STRATEGIES,
    VOCABULARY,
    Letters,
    ShadowOutput,
    ShadowRunner,
    all_plain,
    drain,
    request,
    run_all,
    settings,
)

from mindbatch.config.environment import prepare_environment
from mindbatch.decoding import DecodingParams
from mindbatch.decoding.row import row_error
from mindbatch.decoding.strategy import Decision, GroupView
from mindbatch.engine import advance
from mindbatch.engine import engine as engine_module
from mindbatch.engine.assistant import Assistant
from mindbatch.engine.engine import Engine
from mindbatch.engine.output_text import StopMatcher
from mindbatch.engine.request import Request
from mindbatch.engine.sequence import SequenceGroup
from mindbatch.io.errors import MindBatchError, PromptError

ROWS = {name: params for name, params in STRATEGIES.items() if name != "embedding"}
ROWS["assisted"] = {"num_assistant_tokens": 2}
COPIED = ROWS.keys() - {"greedy", "lookup", "sampled_lookup", "assisted"}
"""Those whose sequences fork."""
PROMPT = [3, 1, 4, 3]
FAULT = ValueError("no\ncolour")
Groups = Sequence[SequenceGroup]


class Countdown:
    """Raises at the third call, counted over all copies of a row's part."""

    def __init__(self, calls: int = 0) -> None:
        self.calls = calls

    def __call__(self, *_: object) -> None:
        self.calls += 1
        if self.calls >= 3:
            raise FAULT


class Broken:
    """Any object, one of whose methods fails, in its copies too."""

    def __init__(self, inner: Any, where: str, fail: Callable[..., None]) -> None:
        self.inner, self.where, self.fail = inner, where, fail

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)
        if name == "fork":
            method = self.copied
        if name != self.where:
            return method

        def failing(*arguments: Any) -> Any:
            self.fail()
            return method(*arguments)

        return failing

    def copied(self) -> Broken:
        return Broken(self.inner.fork(), self.where, self.fail)


class Anything:
    """A constraint that allows everything."""

    error, is_complete = None, False

    def allowed(self, eos_token_ids: tuple[int, ...]) -> NDArray[np.bool_]:
        return np.ones(VOCABULARY, dtype=np.bool_)

    def advance(self, token_id: int) -> None: ...

    def fork(self) -> Anything:
        return self


class BrokenStop(StopMatcher):
    def push(self, text: str) -> str:
        raise FAULT


class BrokenStrategy:
    """Fails for every batch that one row is in, before it has decided anything."""

    def __init__(self, strategy: Any) -> None:
        self.strategy = strategy

    def __getattr__(self, name: str) -> Any:
        return getattr(self.strategy, name)

    def advance(self, groups: Sequence[GroupView], logits: NDArray[np.float32]) -> list[Decision]:
        if any(row.key == "bad" and row.step >= 1 for group in groups for row in group.rows):
            raise FAULT
        decided: list[Decision] = self.strategy.advance(groups, logits)
        return decided


def make_engine(*, text: str = "", constraint: str = "", calls: int = 0) -> Engine:
    """`text` and `constraint` are the methods that fail for rows whose prompt is PROMPT; `calls` are done."""
    limits = settings(batch_size=64)
    fail = Countdown(calls)

    def detokenizer(prompt: tuple[int, ...], skip: bool) -> Any:
        letters = Letters(prompt)
        return Broken(letters, text, fail) if text and list(prompt) == PROMPT else letters

    def constrain(params: DecodingParams, prompt: tuple[int, ...]) -> Any:
        return Broken(Anything(), constraint, fail) if constraint and list(prompt) == PROMPT else None

    return Engine(
        ShadowRunner(limits), limits, detokenizer, (), constrain, Assistant(ShadowRunner(limits), limits)
    )


def others() -> list[Request]:
    return [request(name, [2, 7, 1, 2, 7], max_new_tokens=5, **more) for name, more in ROWS.items()]


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    """What the other rows come to without a bad one, each alone."""
    found = {}
    for each in others():
        engine = make_engine()
        engine.add(each)
        found |= all_plain(drain(engine)[0])
    return found


def bad(name: str, **more: Any) -> Request:
    return request("bad", PROMPT, **ROWS[name] | {"max_new_tokens": 5} | more)


def check(
    engine: Engine,
    row: Request,
    expected: dict[str, Any],
    breaks: Callable[..., None],
    error: str = "bad: unforeseen ValueError: no colour",
) -> None:
    """Runs the row among others; `breaks` gets its group and all that wait."""
    rows = others()
    for each in [*rows[:4], row, *rows[4:]]:
        engine.add(each)
    groups = list(engine.scheduler.waiting)
    breaks(groups[4], groups)
    results, _ = drain(engine)
    failed = results.pop("bad")
    assert re.fullmatch(error, failed.error or "")
    assert failed.outputs == []
    assert all_plain(results) == expected
    assert isinstance(engine._assistant, Assistant)
    assert engine._assistant.blocks.num_free == engine.settings.num_blocks


def nothing(group: SequenceGroup, groups: Groups) -> None:
    """The engine's own parts fail."""


def processor(group: SequenceGroup, groups: Groups = ()) -> None:
    group.sequences[0].row.processors = (Countdown(),)


def stop_matcher(group: SequenceGroup, groups: Groups) -> None:
    text = group.sequences[0].text
    assert text is not None
    text.stop = BrokenStop(["x"])


def strategy(group: SequenceGroup, groups: Groups) -> None:
    """All rows of the strategy advance through a broken one."""
    ours = group.strategy
    broken = BrokenStrategy(ours)
    for each in groups:
        if each.strategy is ours:
            each.strategy = broken


@pytest.mark.parametrize("breaks", [processor, strategy], ids=lambda breaks: breaks.__name__)
@pytest.mark.parametrize("name", ROWS)
def test_a_strategy_or_processor(name: str, breaks: Callable[..., None], expected: dict[str, Any]) -> None:
    check(make_engine(), bad(name), expected, breaks)


@pytest.mark.parametrize("name", ROWS)
def test_a_stop_matcher(name: str, expected: dict[str, Any]) -> None:
    check(make_engine(), bad(name, stop=("x",)), expected, stop_matcher)


PARTS = [
    {"text": "push"},
    {"constraint": "allowed"},
    {"constraint": "advance"},
    {"text": "fork"},
    {"constraint": "fork"},
]


@pytest.mark.fast_cases(12)
@pytest.mark.parametrize(
    ("name", "part"),
    [(name, part) for part in PARTS for name in ROWS if "fork" not in part.values() or name in COPIED],
    ids=str,
)
def test_a_detokenizer_or_constraint(name: str, part: dict[str, str], expected: dict[str, Any]) -> None:
    more = {"num_return_sequences": 5} if name == "sampling" else {}
    check(make_engine(**part), bad(name, stop=("x",), **more), expected, nothing)


def test_an_assistant_whose_copy_of_the_row_fails_drafts_nothing() -> None:
    outputs = []
    for name, constraint in (("assisted", "fork"), ("greedy", "")):
        engine = make_engine(constraint=constraint, calls=2)
        engine.add(bad(name))
        outputs.append(all_plain(drain(engine)[0]))
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize(
    ("module", "function", "more"),
    [
        (engine_module, "look_up", ROWS["lookup"]),
        (advance, "token_logprobs", {"prompt_logprobs": 2}),
    ],
)
def test_what_the_engine_does_for_a_row(
    module: Any,
    function: str,
    more: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    expected: dict[str, Any],
) -> None:
    def fail(*_: object) -> None:
        raise FAULT

    monkeypatch.setattr(module, function, fail)
    engine = make_engine()
    rows = [row for row in others() if "lookup" not in row.key]
    for row in [*rows, bad("greedy", **more)]:
        engine.add(row)
    results, _ = drain(engine)
    assert results.pop("bad").error == "bad: unforeseen ValueError: no colour"
    assert all_plain(results) == {key: found for key, found in expected.items() if "lookup" not in key}


def test_a_row_that_fails_before_it_starts_is_refused() -> None:
    def detokenizer(prompt: tuple[int, ...], skip: bool) -> Letters:
        raise FAULT

    limits = settings()
    engine = Engine(ShadowRunner(limits), limits, detokenizer)
    with pytest.raises(PromptError, match="^unforeseen ValueError: no colour$"):
        engine.add(bad("greedy"))
    assert not engine.has_work
    assert row_error(MemoryError("7 GiB"), "a").lines == ("out of memory: 7 GiB",)


def test_an_interrupt_is_no_rows_error() -> None:
    def interrupt(step: object) -> None:
        raise KeyboardInterrupt

    engine = make_engine()
    engine.add(bad("beam"))
    engine.scheduler.waiting[0].sequences[0].row.processors = (interrupt,)
    with pytest.raises(KeyboardInterrupt):
        drain(engine)


@pytest.mark.parametrize("where", ["run", "logits"])
def test_what_the_model_raises_ends_the_run(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Any:
        raise RuntimeError("device lost")

    monkeypatch.setattr(ShadowRunner if where == "run" else ShadowOutput, where, fail)
    engine = make_engine()
    engine.add(bad("greedy", prompt_logprobs=1))
    with pytest.raises(RuntimeError, match="device lost"):
        drain(engine)


def test_the_traceback_is_shown_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("mindbatch")
    before = logger.level, list(logger.handlers)
    logger.handlers.clear()  # an earlier test of this process may have asked for them
    try:
        for verbose in (False, True):
            if verbose:
                prepare_environment(verbose=True)
            engine = make_engine()
            engine.add(bad("greedy"))
            processor(engine.scheduler.waiting[0])
            drain(engine)
            shown = capsys.readouterr().err
            assert ("Traceback" in shown) == ("no\n  colour" in shown) == ("row bad" in shown) == verbose
    finally:
        logger.setLevel(before[0])
        logger.handlers[:] = before[1]


def rows(*prompts: list[int], **params: Any) -> list[Request]:
    return [
        request(f"row{number}", prompt, max_new_tokens=4, **params) for number, prompt in enumerate(prompts)
    ]


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The places, among the tokens of every step, whose logits are no numbers."""
    places: set[int] = set()
    plain = ShadowOutput.logits

    def logits(self: ShadowOutput, tokens: Sequence[int]) -> NDArray[np.float32]:
        found = plain(self, tokens)
        found[[token in places for token in tokens]] = np.nan
        return found

    monkeypatch.setattr(ShadowOutput, "logits", logits)
    return places


@pytest.mark.parametrize("params", ROWS.values(), ids=ROWS)
def test_one_row_ends_alone(params: dict[str, Any], poisoned: set[int]) -> None:
    asked = rows([3, 1, 4], [1, 5], **params)
    expected = run_all(make_engine(), asked[1:])["row1"]
    poisoned.add(2)  # the last token of the first prompt, in the first step
    engine = make_engine()
    for each in asked:
        engine.add(each)
    [failed] = engine.step().finished
    poisoned.clear()
    assert failed.error == (
        "row0: the logits after 0 tokens of output are NaN or infinite; the model's weights or its number "
        "format do not fit"
    )
    assert [each.token_ids for each in run_all(engine, [])["row1"].outputs] == [
        each.token_ids for each in expected.outputs
    ]


def test_of_a_model_that_gives_no_numbers_the_run_ends_at_once(poisoned: set[int]) -> None:
    poisoned.update(range(64))
    with pytest.raises(MindBatchError, match=r"^the logits of all 2 rows of the first step are NaN"):
        run_all(make_engine(), rows([3, 1, 4], [1, 5]))
