"""Where a prompt leaves reasoning open, a constraint holds from the closing tag on, in every strategy."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from small_tokenizers import byte_level, write_folder
from tokenizers import AddedToken

from mindbatch import DecodingParams
from mindbatch.decoding.deferred_constraint import ClosingTag, DeferredConstraint
from mindbatch.engine.constraints import ConstraintFactory
from mindbatch.engine.engine import Engine
from mindbatch.engine.request import Request, RequestOutput
from mindbatch.engine.settings import EngineSettings
from mindbatch.engine.step import Step, StepOutput
from mindbatch.io.errors import PromptError
from mindbatch.prompts.token_bytes import IncrementalDetokenizer
from mindbatch.prompts.tokenizer import Tokenizer
from shadow_llm import logits_after

TAGS = ["<think>", "</think>"]
OPENED = "user: hi\n<think>\n"
THOUGHT = 'so {"a": 1} it is </thin'
REGEX = r"(yes|no)[0-9]{3}"


class Wishful(StepOutput):
    """Logits of which the likeliest token is the one that goes on with a text, while there is some left."""

    def __init__(self, prefixes: list[list[int]], wanted: Sequence[int], start: int, size: int) -> None:
        self.prefixes, self.wanted, self.start, self.size = prefixes, wanted, start, size

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        return np.stack([self._after(self.prefixes[token]) for token in tokens])

    def _after(self, prefix: list[int]) -> NDArray[np.float32]:
        logits = np.resize(logits_after(prefix), self.size)
        written = prefix[self.start :]
        if len(written) < len(self.wanted) and written == [*self.wanted[: len(written)]]:
            logits[self.wanted[len(written)]] += 100
        return logits


class Script:
    """A model that writes a text behind a prompt, and then whatever comes."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], text: str) -> None:
        self.wanted = tokenizer.encode(text, add_special_tokens=False, allow_special=True)
        self.start, self.vocab_size = len(prompt), tokenizer.vocab_size

    def run(self, step: Step) -> Wishful:
        prefixes = [
            tokens.sequence.tokens(0, place + 1)
            for tokens in step.scheduled
            for place in range(tokens.start, tokens.stop)
        ]
        return Wishful(prefixes, self.wanted, self.start, self.vocab_size)


TAG_TOKENS: dict[str, list[Any]] = {
    "several tokens": [],
    "one token": [AddedToken("</think>", special=False)],
    "one control token": [AddedToken("</think>", special=True)],
}


@pytest.fixture(params=TAG_TOKENS)
def tokenizer(request: pytest.FixtureRequest, tmp_path: Path) -> Tokenizer:
    return tokenizer_with(TAG_TOKENS[request.param], tmp_path)


def tokenizer_with(added: list[Any], folder: Path) -> Tokenizer:
    backend = byte_level()
    backend.add_special_tokens([token for token in added if token.special])
    backend.add_tokens([token for token in added if not token.special])
    loaded = Tokenizer.load(write_folder(folder, backend, {"tokenizer_class": "PreTrainedTokenizerFast"}))
    assert loaded is not None
    return loaded


def result_of(tokenizer: Tokenizer, prompt: str, text: str, **decoding: Any) -> RequestOutput:
    ids = tuple(tokenizer.encode(prompt, add_special_tokens=False))
    settings = EngineSettings(batch_size=4, seq_length=120, block_size=16, num_blocks=100)
    script = Script(tokenizer, ids, text)
    factory = ConstraintFactory(tokenizer, tokenizer.vocab_size)

    def make(begun: tuple[int, ...], skip: bool) -> IncrementalDetokenizer:
        return IncrementalDetokenizer(tokenizer, begun, skip)

    engine = Engine(script, settings, make, (2,), factory.make)
    params = DecodingParams(max_new_tokens=80, skip_special_tokens=False, **decoding)
    engine.add(Request("row", ids, params))
    while engine.has_work:
        if finished := engine.step().finished:
            return finished[0]
    raise AssertionError("nothing finished")


WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "samples": {"do_sample": True, "num_return_sequences": 3},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "ranked samples": {"do_sample": True, "best_of": 3},
    "drafted": {"prompt_lookup_num_tokens": 4},
}


@pytest.mark.parametrize("decoding", WAYS.values(), ids=WAYS)
def test_the_text_behind_the_tag_follows_the_constraint(
    tokenizer: Tokenizer, decoding: dict[str, Any]
) -> None:
    result = result_of(tokenizer, OPENED, THOUGHT + "</think>", regex=REGEX, reasoning_tags=TAGS, **decoding)
    assert result.error is None
    for output in result.outputs:
        reasoning, _, answer = output.text.partition("</think>")
        assert reasoning == THOUGHT
        assert re.fullmatch(REGEX, answer)
        assert output.finish_reason == "stop"


def test_drafts_and_beams_of_one_give_what_plain_decoding_gives(tokenizer: Tokenizer) -> None:
    asked = {"regex": REGEX, "reasoning_tags": TAGS, "logprobs": 2}
    plain, drafted = (
        result_of(tokenizer, OPENED, THOUGHT + "</think>\n\n", **asked, **WAYS[way])
        for way in ("greedy", "drafted")
    )
    assert plain.outputs[0].token_ids == drafted.outputs[0].token_ids
    assert plain.outputs[0].logprobs == drafted.outputs[0].logprobs


def test_until_the_tag_the_output_is_that_without_a_constraint(tokenizer: Tokenizer) -> None:
    """It may end there, too: by an end token, a stop text or the limit."""
    for ends in ({}, {"stop": ["it"]}):
        free, held = (
            result_of(tokenizer, OPENED, THOUGHT, **ends, **asked)
            for asked in ({}, {"regex": REGEX, "reasoning_tags": TAGS})
        )
        assert held.outputs[0].token_ids == free.outputs[0].token_ids
        assert held.outputs[0].finish_reason == free.outputs[0].finish_reason


@pytest.mark.parametrize(
    "prompt", ["user: hi\n", "user: hi <think>\n\n</think>\n\n", "<think> says the user"]
)
def test_a_prompt_without_open_reasoning_is_constrained_at_once(tokenizer: Tokenizer, prompt: str) -> None:
    result = result_of(tokenizer, prompt, THOUGHT, regex=REGEX, reasoning_tags=TAGS)
    assert re.fullmatch(REGEX, result.outputs[0].text)


@pytest.mark.parametrize("is_control", [False, True], ids=["token", "control token"])
@pytest.mark.parametrize("decoding", WAYS.values(), ids=WAYS)
def test_a_model_may_open_the_reasoning_itself_where_the_tag_is_a_token(
    tmp_path: Path, is_control: bool, decoding: dict[str, Any]
) -> None:
    tokenizer = tokenizer_with([AddedToken(tag, special=is_control) for tag in TAGS], tmp_path)
    asked = {"regex": REGEX, "reasoning_tags": TAGS, **decoding}
    result = result_of(tokenizer, "user: hi\n", f"<think>{THOUGHT}</think>", **asked)
    assert result.error is None
    for output in result.outputs:
        reasoning, _, answer = output.text.partition("</think>")
        assert reasoning == f"<think>{THOUGHT}"
        assert re.fullmatch(REGEX, answer)
    for prompt, text in (
        ("user: hi\n", "no<think>a</think>"),
        ("<think>\n\n</think>\n\n", f"<think>{THOUGHT}</think>"),
    ):
        for output in result_of(tokenizer, prompt, text, **asked).outputs:
            assert re.fullmatch(REGEX, output.text)


def test_a_constraint_that_nothing_fulfils_is_refused_before_a_token(tokenizer: Tokenizer) -> None:
    with pytest.raises(PromptError, match="regex"):
        result_of(tokenizer, OPENED, THOUGHT, regex="[^\\s\\S]", reasoning_tags=TAGS)


class Numbered:
    """A constraint that counts its tokens."""

    error = None
    is_complete = False

    def __init__(self, tokens: tuple[int, ...] = ()) -> None:
        self.tokens = tokens

    def allowed(self, eos_token_ids: tuple[int, ...]) -> NDArray[np.bool_]:
        return np.zeros(4, dtype=np.bool_)

    def advance(self, token_id: int) -> None:
        self.tokens += (token_id,)

    def fork(self) -> "Numbered":
        return Numbered(self.tokens)


PIECES = st.lists(st.text("<a>. ", max_size=5).map(str.encode), min_size=2, max_size=8)


@given(PIECES, st.sampled_from(["<a>", ">", "<<a", "aa"]), st.lists(st.integers(0, 9), max_size=30))
def test_it_holds_from_the_token_that_ends_the_tag(texts: list[bytes], tag: str, walk: list[int]) -> None:
    """Against the text itself: a token may end the tag only where white space is all that it adds."""
    inner = Numbered()
    constraint = DeferredConstraint(inner, ClosingTag(tag, texts))  # type: ignore[arg-type]
    text, behind = b"", []
    for token in (number % len(texts) for number in walk):
        forked = constraint.fork()
        if tag.encode() in text:
            behind.append(token)
        else:
            mask = constraint.allowed(())
            rest = (text + texts[token]).partition(tag.encode())[2]
            assert (mask is None or bool(mask[token])) == (not rest.strip())
            if rest.strip():
                continue
            text += texts[token]
        constraint.advance(token)
        forked.advance(token)
        assert forked._constraint.tokens == constraint._constraint.tokens == (*behind,)
    assert inner.tokens == ()
