"""Copies of a script: each has rank 0's results, and one that makes other calls is told so."""

from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from mindbatch.engine.request import RequestOutput
from mindbatch.io.errors import MindBatchError, RankError
from mindbatch.llm import LLM
from mindbatch.loading.build import LoadedEngine
from mindbatch.parallel.connection import RankMessage, decoded, encoded
from mindbatch.prompts.tokenizer import Tokenizer
from mindbatch.replicas import shared_engine
from mindbatch.replicas.shared_engine import FollowingEngine, SharingEngine
from shadow_llm import make_llm

PROMPTS = ["one", "two, three", "", "seven"]
WAYS: list[dict[str, Any]] = [
    {},
    {"do_sample": True, "seed": 3, "num_return_sequences": 2, "logprobs": 2},
    {"num_beams": 3, "stop": ["e"], "prompt_logprobs": 1},
]
SAME_CALLS = "under a launcher every process must make the same calls, in the same order"


class Copy:
    """A `RemoteNode` of a copy: what it is told comes as over a connection."""

    ranks = range(1, 2)

    def __init__(self) -> None:
        self.shared: SimpleQueue[RankMessage | None] = SimpleQueue()
        self.has_left = False

    def share(self, **fields: Any) -> None:
        self.shared.put(decoded(encoded("shared", fields)))


class Script:
    """An LLM of rank 0 and one of another copy. The copy's calls come after rank 0's, or they are threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.copy = Copy()
        self.computing = make_llm(tokenizer)._model.engine
        sharing = SharingEngine(self.computing, [self.copy])  # type: ignore[arg-type, list-item]
        self.front = LLM.over(LoadedEngine(sharing, tokenizer, 0))  # type: ignore[arg-type]
        checks = make_llm(tokenizer)._model.engine
        self.following = FollowingEngine(sharing.settings, checks, self.copy.shared, self.leave)
        model = LoadedEngine(self.following, tokenizer, 0, streams=False)  # type: ignore[arg-type]
        self.other = LLM.over(model)

    def leave(self) -> None:
        self.copy.has_left = True


@pytest.fixture
def script(shadow_tokenizer: Tokenizer) -> Iterator[Script]:
    made = Script(shadow_tokenizer)
    yield made
    made.other.close()
    made.front.close()


def test_every_copy_has_the_results_and_the_events(script: Script) -> None:
    for given in WAYS:
        ours, theirs = (
            each.generate(PROMPTS, max_new_tokens=9, on_error="record", **given)
            for each in (script.front, script.other)
        )
        for result in (*ours, *theirs):
            result.seconds = 0
        assert ours == theirs
        assert [result.error is None for result in theirs] == [True, True, False, True]
    ours, theirs = ([*each.stream("one", max_new_tokens=9)] for each in (script.front, script.other))
    assert ours == theirs
    assert script.other.statistics.generated_tokens == script.front.statistics.generated_tokens > 0


def test_results_may_come_before_the_call_is_made_here(script: Script) -> None:
    runs = [script.front.begin(prompt, max_new_tokens=6) for prompt in ("one", "two")]  # computed together
    ours = [[*run] for run in runs]
    script.copy.shared.put(None)  # whoever waits for more than was sent fails
    theirs = [[*script.other.begin(prompt, max_new_tokens=6)] for prompt in ("one", "two")]
    for item in (item for each in (*ours, *theirs) for item in each if isinstance(item, RequestOutput)):
        item.seconds = 0
    assert ours == theirs


def test_a_stream_that_all_leave_early_leaves_nothing_behind(script: Script) -> None:
    for each in (script.front, script.other):
        for _ in each.stream("one", max_new_tokens=50):
            break
    one, other = (each.generate("two", max_new_tokens=5) for each in (script.front, script.other))
    assert one[0].outputs == other[0].outputs


def test_another_call_is_refused(script: Script) -> None:
    script.front.generate("one", max_new_tokens=2)
    with pytest.raises(MindBatchError, match="request 1 of this process is not that of rank 0: ") as raised:
        script.other.generate("one", max_new_tokens=3)
    assert str(raised.value).endswith(SAME_CALLS)


def test_a_call_that_rank_0_never_makes(script: Script) -> None:
    script.copy.shared.put(None)
    with pytest.raises(MindBatchError, match=f"before this call was over: {SAME_CALLS}"):
        script.other.generate("one")


def test_a_call_that_rank_0_does_not_make_for_long(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_engine, "MAX_SECONDS_APART", -1.0)
    monkeypatch.setattr(shared_engine, "WAIT_SECONDS", 0.01)
    with pytest.raises(MindBatchError, match=f"rank 0 has not made this call for -1 s: {SAME_CALLS}"):
        script.other.generate("one")


def test_a_copy_that_has_left_ends_rank_0s_call(script: Script) -> None:
    script.other.close()
    with pytest.raises(
        MindBatchError, match=f"rank 1 has closed its model before rank 0 was done: {SAME_CALLS}"
    ):
        script.front.generate("one")


def test_a_request_that_rank_0_alone_drops(script: Script) -> None:
    next(iter(script.front.stream("one", max_new_tokens=50)))
    script.front.generate("two", max_new_tokens=1)
    with pytest.raises(MindBatchError, match="rank 0 has dropped a request that is waited for here"):
        [*script.other.stream("one", max_new_tokens=50)]


def test_an_error_of_a_step_is_every_copys(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RankError(["rank 1 ended with signal 9", "its last line"])

    monkeypatch.setattr(script.computing, "step", fail)
    for each in (script.front, script.other):
        with pytest.raises(MindBatchError, match="rank 1 ended with signal 9"):
            each.generate("one")


def test_a_copy_is_told_that_the_model_is_loaded_or_why_not(script: Script) -> None:
    notices: list[str] = []
    script.copy.share(model="LLM('path')")
    script.following.wait_until_ready(notices.append, "LLM('path')")
    assert notices == ["waiting for rank 0 to load the model", ""]
    script.copy.share(model="LLM('another')")
    with pytest.raises(MindBatchError, match=f"has other arguments than that of rank 0: {SAME_CALLS}"):
        script.following.wait_until_ready(notices.append, "LLM('path')")
    script.copy.share(failure={"error": "CheckpointError", "lines": ["model.safetensors: too short"]})
    with pytest.raises(MindBatchError, match=r"model.safetensors: too short"):
        script.following.wait_until_ready(notices.append)
    script.copy.shared.put(None)
    with pytest.raises(MindBatchError, match="rank 0 has ended before it had loaded the model"):
        script.following.wait_until_ready(notices.append)
