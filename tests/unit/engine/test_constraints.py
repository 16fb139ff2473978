"""Whatever a model prefers, a constrained output is what was asked for; grammars are kept and refused."""

import json
import re

import numpy as np
import pytest
from constrained import (
    COMPLETE,
    END,
    PADDING,
    TOKENIZERS,
    make,
    prompts,
    text_of,
    walk,
    wrap,
)
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from each_once import each_once
from mindbatch.decoding import DecodingParams, grammar_constraint
from mindbatch.decoding.grammar_constraint import CompiledGrammar, GrammarConstraint
from mindbatch.engine import constraints
from mindbatch.engine.constraints import ConstraintFactory
from mindbatch.io.errors import PromptError

PATTERNS = [
    r"\d{4}-\d{2}-\d{2}",
    r"(?a)\d{4}-\d{2}-\d{2}",
    r"yes|no|perhaps not",
    r" ?hi( user){1,3}[.!]",
    r" {2,5}x",
    r"(?i)world \w{1,9}",
    r"[äöü]{2,8}|你好[，。]?",
    r"(👩‍👩‍👧|🇨🇳|é){1,4}",
    r"[^a-zA-Z]{1,6}",
    r"^(a*b*)*c$",
    r"(?s).{1,20}",
    '\n?\t/\\\\"',
    r"\s{1,4}\S{1,4}",
    r"(.*,){2}x",
]


@pytest.mark.parametrize(("pattern", "name"), each_once(PATTERNS, COMPLETE, fast=6))
def test_the_text_matches_under_pythons_re(name: str, pattern: str) -> None:
    rng = np.random.default_rng(1)
    for prompt in prompts(name):
        for _ in range(3):
            tokens, ended = walk(make(name, prompt, regex=pattern), rng, (END[name],))
            if ended:
                assert re.fullmatch(pattern, text_of(name, tokens, prompt))
            else:
                assert "*" in pattern


@pytest.mark.parametrize("pattern", ["[a-e]{3} (or|oil)", "( ?[his]){1,9}", "(hello|hi)( </s>)?", " *x"])
def test_a_vocabulary_of_few_characters(pattern: str) -> None:
    rng = np.random.default_rng(2)
    texts = set()
    for prompt in prompts("unigram"):
        for _ in range(8):
            tokens, ended = walk(make("unigram", prompt, regex=pattern), rng, (END["unigram"],))
            texts.add(text_of("unigram", tokens, prompt))
            assert ended
    assert all(re.fullmatch(pattern, text) for text in texts)
    assert len(texts) > 1


def test_properties_come_in_the_schemas_order() -> None:
    for first, second in (("b", "a"), ("a", "b")):
        named = {first: {"const": 1}, second: {"const": 2}}
        schema = {
            "type": "object",
            "properties": named,
            "required": ["a", "b"],
            "additionalProperties": False,
        }
        tokens, _ = walk(make("byte_level", json_schema=schema), np.random.default_rng(4), ())
        assert list(json.loads(text_of("byte_level", tokens))) == [first, second]


def test_blanks_between_the_parts_of_json_come_to_an_end() -> None:
    brace, blank = (TOKENIZERS["byte_level"].encode(text, add_special_tokens=False)[0] for text in "{ ")
    constraint = make("byte_level", json_schema={"type": "object"})
    assert not constraint.allowed(())[blank]
    constraint.advance(brace)
    blanks = 0
    while constraint.allowed(())[blank] and blanks < 100:
        constraint.advance(blank)
        blanks += 1
    assert blanks == 16


WORDS = ["hi", " hi", "hi user", "his", "  hi", "é!", "ê", "see"]


@pytest.mark.parametrize("name", COMPLETE)
def test_exactly_the_tokens_that_lead_to_a_match_are_allowed(name: str) -> None:
    tokenizer, end = TOKENIZERS[name], END[name]
    wanted = [word.encode() for word in WORDS]
    rng = np.random.default_rng(5)
    for prompt in prompts(name) * 6:
        constraint = make(name, prompt, regex="|".join(map(re.escape, WORDS)))
        last = prompt[-1] if prompt and prompt[-1] not in tokenizer.special_ids else None
        text = b""
        while not constraint.is_complete:
            added = [
                b"" if token in tokenizer.special_ids else tokenizer.token_bytes(token, last) or b""
                for token in range(tokenizer.vocab_size)
            ]
            expected = [
                any(word.startswith(text + new) for word in wanted)
                # What adds nothing is a control token, or a space that a first word may stand behind.
                and (new != b"" or (token not in tokenizer.special_ids and last is None))
                for token, new in enumerate(added)
            ] + [False] * PADDING
            assert constraint.allowed(()).tolist() == expected
            expected[end] = text in wanted
            assert constraint.allowed((end,)).tolist() == expected
            last = int(rng.choice(np.flatnonzero(constraint.allowed(()))))
            text += added[last]
            constraint.advance(last)
        assert text in wanted


@pytest.mark.parametrize("name", ["sentencepiece", "metaspace"])
def test_a_leading_space_counts_only_where_it_is_shown(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    (spaced,) = tokenizer.encode("hi", add_special_tokens=False)  # "▁hi"
    _, after_text, _, after_control = prompts(name)
    assert make(name, after_control, regex="hi").allowed(())[spaced]
    assert not make(name, after_text, regex="hi").allowed(())[spaced]
    assert make(name, after_text, regex=" hi").allowed(())[spaced]
    constraint = make(name, after_control, regex=" hi")
    assert not constraint.allowed(())[spaced]
    # A lone space that is not shown may come before one that is.
    (space,) = np.flatnonzero(constraint.allowed(())).tolist()[-1:]
    constraint.advance(space)
    assert text_of(name, [space], after_control) == ""
    assert constraint.allowed(())[spaced]
    constraint.advance(spaced)
    assert constraint.is_complete
    assert text_of(name, [space, spaced], after_control) == " hi"


@pytest.mark.parametrize("name", TOKENIZERS)
def test_control_tokens_and_padding_are_never_allowed(name: str) -> None:
    constraint = make(name, regex="(?s).*")
    for _ in range(3):
        allowed = constraint.allowed((END[name],))
        size = TOKENIZERS[name].vocab_size
        assert allowed.shape == (size + PADDING,)
        assert not allowed[size:].any()
        assert TOKENIZERS[name].special_ids & set(np.flatnonzero(allowed)) == {END[name]}
        constraint.advance(int(np.flatnonzero(allowed)[-1]))


def test_an_end_token_that_shows_text_is_part_of_the_text() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    (stop,) = tokenizer.encode(".", add_special_tokens=False)
    (letter,) = tokenizer.encode("a", add_special_tokens=False)
    (digit,) = tokenizer.encode("1", add_special_tokens=False)
    constraint = make("byte_level", regex=r"a\.?1?\.|a")
    constraint.advance(letter)
    assert constraint.allowed((stop,))[stop]
    assert not make("byte_level", regex="a").allowed((stop,))[stop]
    within = make("byte_level", regex=r"a\.1")
    within.advance(letter)
    assert within.allowed(())[stop]  # as text it may come, but it would end the output too early
    assert not within.allowed((stop,))[stop]
    constraint.advance(digit)
    assert np.flatnonzero(constraint.allowed((stop,))).tolist() == [stop]


def test_end_tokens_beyond_the_vocabulary_are_passed_over() -> None:
    constraint = make("byte_level", regex="a*")
    padding = TOKENIZERS["byte_level"].vocab_size + 1
    allowed = constraint.allowed((padding, 10**9, END["byte_level"]))
    assert allowed[padding]
    assert allowed[END["byte_level"]]
    assert constraint.allowed(()).sum() == allowed.sum() - 2


def test_it_is_complete_when_nothing_can_be_added() -> None:
    digits = TOKENIZERS["byte_level"].encode("07", add_special_tokens=False)
    constraint = make("byte_level", regex="[0-9]{2}")
    for token in digits:
        assert not constraint.is_complete
        assert not constraint.allowed((0,))[0]
        constraint.advance(token)
    assert constraint.is_complete
    assert not constraint.allowed(()).any()
    assert np.flatnonzero(constraint.allowed((0,))).tolist() == [0]
    constraint.advance(0)
    assert constraint.is_complete
    assert constraint.error is None
    longer = make("byte_level", regex="[0-9]{2}|[0-9]{4}")
    for token in digits:
        longer.advance(token)
    assert not longer.is_complete
    assert longer.allowed((0,))[0]


def test_a_fork_goes_its_own_way() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    a, b, c = (tokenizer.encode(letter, add_special_tokens=False)[0] for letter in "abc")
    constraint = make("byte_level", regex="ab|cb?")
    twin = constraint.fork()
    constraint.advance(a)
    assert twin.allowed(())[c]
    twin.advance(c)
    third = twin.fork()
    assert not constraint.allowed((0,))[0]
    third.advance(b)
    assert third.is_complete
    assert twin.allowed((0,))[[0, b]].all()
    assert np.flatnonzero(constraint.allowed(())).tolist() == [b]


def test_rows_side_by_side_get_what_they_get_alone() -> None:
    def first_masks(constraint: GrammarConstraint, text: str) -> list[list[int]]:
        masks = []
        for token in TOKENIZERS["byte_level"].encode(text, add_special_tokens=False):
            masks.append(np.flatnonzero(constraint.allowed((0,))).tolist())
            constraint.advance(token)
        return masks

    pattern = r"(\w+ ?){1,20}"
    alone = first_masks(make("byte_level", regex=pattern), "hello worlds and systems")
    rows = [make("byte_level", regex=pattern) for _ in range(2)]
    first_masks(rows[0], "你好 12 user")
    assert first_masks(rows[1], "hello worlds and systems") == alone


def test_a_token_that_is_not_allowed_is_a_fault_and_not_a_crash() -> None:
    constraint = make("byte_level", regex="[0-9]{2}")
    (letter,) = TOKENIZERS["byte_level"].encode("a", add_special_tokens=False)
    constraint.advance(letter)
    assert constraint.error is not None
    assert constraint.error.startswith("decoding.regex='[0-9]{2}': the output cannot go on after 1 tokens: ")
    assert constraint.error.endswith(f"token {letter} is not allowed there")
    assert not constraint.allowed((0,)).any()
    assert not constraint.is_complete
    assert constraint.fork().error == constraint.error
    constraint.advance(letter)


def test_a_text_that_the_vocabulary_cannot_write() -> None:
    with pytest.raises(PromptError, match="decoding.regex='é'.*no token of the model can follow"):
        make("unigram", regex="é")
    constraint = make("unigram", regex="aé|b")
    (_, a, _) = np.flatnonzero(
        constraint.allowed(())
    ).tolist()  # the space, which would not be shown, a and b
    constraint.advance(a)
    assert constraint.error is not None
    assert constraint.error.endswith("cannot go on after 1 tokens: no token of the model can follow")


def test_without_a_tokenizer_no_text_can_be_asked_for() -> None:
    factory = ConstraintFactory(None, 100)
    assert factory.make(DecodingParams()) is None
    with pytest.raises(PromptError, match="decoding.regex needs the model's tokenizer"):
        factory.make(DecodingParams(regex="a"))
    with pytest.raises(PromptError, match="decoding.json_schema needs the model's tokenizer"):
        factory.make(DecodingParams(json_schema={}))


def test_a_tokenizer_whose_tokens_depend_on_their_neighbours_is_refused() -> None:
    words = ["a", "b", "a</w>", "b</w>"]
    backend = Backend(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    backend.decoder = decoders.BPEDecoder(suffix="</w>")
    with pytest.raises(PromptError, match="depends on the token before it"):
        ConstraintFactory(wrap(backend), 4).make(DecodingParams(regex="a"))


def test_a_grammar_is_compiled_once_and_only_so_many_bytes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    compiled = CompiledGrammar.compiled
    monkeypatch.setattr(
        CompiledGrammar, "compiled", lambda self: made.append(self.grammar.source) or compiled(self)
    )
    monkeypatch.setattr(constraints, "_kept_bytes", lambda grammar: constraints._MAX_KEPT_BYTES // 2)
    factory = ConstraintFactory(TOKENIZERS["byte_level"], 400)
    for pattern in ("a", "a", "b", "a", "c", "a", "b"):
        factory.make(DecodingParams(regex=pattern))
    assert made == ["a", "b", "c", "b"]


def test_many_rows_of_a_grammar_start_it_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_constraint, "_ROWS_TOGETHER", 3)
    renewals: list[None] = []
    renew = CompiledGrammar.renew
    monkeypatch.setattr(CompiledGrammar, "renew", lambda self: renewals.append(None) or renew(self))
    factory = ConstraintFactory(TOKENIZERS["byte_level"], 400)
    for _ in range(7):
        factory.make(DecodingParams(regex="a"))
    assert len(renewals) == 2


def test_rows_that_share_a_grammar_do_not_use_up_each_others_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_constraint, "_MAX_LEXER_STATES", 80)
    factory = ConstraintFactory(TOKENIZERS["byte_level"], TOKENIZERS["byte_level"].vocab_size)
    params = DecodingParams(regex="[ab]*a[ab]{7}c")
    rng = np.random.default_rng(6)
    renewals: list[None] = []
    renew = CompiledGrammar.renew
    monkeypatch.setattr(CompiledGrammar, "renew", lambda self: renewals.append(None) or renew(self))
    for _ in range(12):
        constraint = factory.make(params)
        assert constraint is not None
        for _ in range(12):
            assert constraint.error is None
            allowed = np.flatnonzero(constraint.allowed(()))
            assert allowed.size
            constraint.advance(int(rng.choice(allowed)))
            if constraint.is_complete:
                break
    assert renewals
    assert len(renewals) < 40


def test_a_row_that_uses_up_its_room_alone_is_at_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_constraint, "_MAX_LEXER_STATES", 8)
    factory = ConstraintFactory(TOKENIZERS["byte_level"], TOKENIZERS["byte_level"].vocab_size)
    with pytest.raises(PromptError, match="cannot go on after 0 tokens: lexer error"):
        factory.make(DecodingParams(regex="[ab]*a[ab]{7}c"))
