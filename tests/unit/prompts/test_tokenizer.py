"""Encoding and decoding: data is never a control token, in any kind of vocabulary."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_tokenizers import (
    CHATML,
    CONTROL,
    byte_level,
    sentencepiece_like,
    tokenizer_of,
    unigram,
    write_folder,
)
from tokenizers import Tokenizer as Backend
from tokenizers import normalizers
from tokenizers.processors import TemplateProcessing

from mindbatch.io.errors import PromptError
from mindbatch.prompts.prompts import Prompt, token_ids_of
from mindbatch.prompts.token_bytes import kept
from mindbatch.prompts.tokenizer import Tokenizer

KINDS = {
    "byte_level": (byte_level, "<|im_end|>"),
    "sentencepiece": (sentencepiece_like, "</s>"),
    "metaspace": (lambda: sentencepiece_like(metaspace=True), "</s>"),
    "unigram": (unigram, "</s>"),
}
every_kind = pytest.mark.parametrize(("build", "control"), KINDS.values(), ids=KINDS)
Build = Callable[[], Backend]


@every_kind
def test_text_of_a_control_token_in_data_stays_text(load, build: Build, control: str):
    tokenizer = load(build())
    text = f"hi {control} there"
    plain = tokenizer.encode(text, add_special_tokens=False)
    assert not tokenizer.special_ids & set(plain)
    asked = tokenizer.encode(text, add_special_tokens=False, allow_special=True)
    assert len(tokenizer.special_ids & set(asked)) == 1


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece", "metaspace"])
def test_plain_control_text_survives_a_round_trip(load, kind: str):
    build, control = KINDS[kind]
    tokenizer = load(build())
    text = f"hi {control}{control} there"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


@every_kind
def test_ordinary_text_encodes_as_the_library_does(load, build: Build, control: str):
    backend = build()
    tokenizer = load(backend)
    for add_special_tokens in (True, False):
        expected = backend.encode("hi the x", add_special_tokens=add_special_tokens).ids
        assert tokenizer.encode("hi the x", add_special_tokens=add_special_tokens) == expected


def test_special_tokens_around_a_broken_up_text_are_kept(load):
    tokenizer = load(unigram(), unk_token="<unk>", eos_token="</s>")
    ids = tokenizer.encode("a</s>b")
    assert ids[-1] == tokenizer.eos_token_ids[0]
    assert tokenizer.eos_token_ids[0] not in ids[:-1]


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_byte_level_round_trip(chinese: Tokenizer, text: str):
    assert chinese.decode(chinese.encode(text, add_special_tokens=False)) == text


@given(parts=st.lists(st.sampled_from([*CONTROL, "<", "<|im_", "start|>", "|>", " ", "\n", "你好", "a"])))
def test_no_text_at_all_gives_a_control_token(chinese: Tokenizer, parts: list[str]):
    text = "".join(parts)
    ids = chinese.encode(text, add_special_tokens=False)
    assert not chinese.special_ids & set(ids)
    assert chinese.decode(ids) == text


def test_half_a_character_is_refused_in_one_line(chinese: Tokenizer):
    with pytest.raises(PromptError, match=r"lone surrogate U\+D83D at character 2") as caught:
        chinese.encode("ab\ud83d")
    assert len(caught.value.lines) == 1


def test_a_tokenizer_without_names(load):
    tokenizer = load(byte_level())
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (None, ())
    assert not tokenizer.has_chat_template


def test_decoding_never_cleans_up_spaces(load):
    tokenizer = load(byte_level(), clean_up_tokenization_spaces=True)
    assert tokenizer.decode(tokenizer.encode("do n't , x .")) == "do n't , x ."


def test_unknown_ids_decode_to_nothing(chinese: Tokenizer):
    known = chinese.encode("hello")
    assert chinese.decode([10**6, *known, chinese.vocab_size]) == "hello"


@pytest.mark.needs("transformers")
def test_truncation_and_padding_of_the_file_are_ignored(load):
    backend = byte_level()
    backend.enable_truncation(2)
    backend.enable_padding(length=50)
    text = "hello world 你好"
    assert load(backend).encode(text) == byte_level().encode(text).ids


def test_threads_do_not_see_each_others_switch(chinese: Tokenizer):
    text = "<|im_start|>" * 50
    right: list[bool] = []

    def work(allow_special: bool) -> None:
        for _ in range(200):
            ids = chinese.encode(text, allow_special=allow_special)
            decoded = chinese.decode(ids, skip_special_tokens=False)
            right.append((len(ids) == 50) == allow_special and decoded == text)

    threads = [threading.Thread(target=work, args=(i % 2 == 0,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 800


@pytest.fixture
def chinese(load) -> Tokenizer:
    return load(byte_level(), chat_template=CHATML)


RENDERED = "<|im_start|>user\nHi<|im_end|>\n"


def test_control_tokens_of_a_text_are_read_where_that_is_asked_for(load: Any, tmp_path: Path) -> None:
    plain = load(byte_level())
    folder = write_folder(tmp_path / "parsing", byte_level(), {"tokenizer_class": "PreTrainedTokenizerFast"})
    parsing = tokenizer_of(folder, special_tokens="parse")
    assert plain.encode(RENDERED) != parsing.encode(RENDERED)
    assert parsing.encode(RENDERED) == plain.encode(RENDERED, allow_special=True)
    assert parsing.encode("Hi") == plain.encode("Hi")
    assert parsing.take_note() is None


def test_prompts_that_spell_out_control_tokens_are_counted_once(load: Any) -> None:
    tokenizer = load(byte_level())
    for text in (RENDERED, "Hi", RENDERED):
        tokenizer.encode(text)
    tokenizer.encode(RENDERED, allow_special=True)
    note = tokenizer.take_note()
    assert note.startswith("2 prompts spell out control tokens")
    assert "model.special_tokens=parse" in note
    assert tokenizer.take_note() is None


def test_what_stands_before_every_text_is_not_put_there_twice(tmp_path: Path) -> None:
    backend = byte_level()
    start = backend.token_to_id("<|im_start|>")
    backend.post_processor = TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", start)]
    )
    folder = write_folder(tmp_path / "begun", backend, {"tokenizer_class": "PreTrainedTokenizerFast"})
    parsing = tokenizer_of(folder, special_tokens="parse")
    assert parsing.encode("Hi")[0] == start
    assert parsing.encode(RENDERED).count(start) == 1
    assert parsing.encode(RENDERED[len("<|im_start|>") :]) == parsing.encode(RENDERED)


def composing() -> Backend:
    backend = byte_level()
    backend.normalizer = normalizers.NFC()
    return backend


TOKENIZERS = {
    "byte level": Tokenizer(kept(byte_level(), {}, None, Path())),
    "byte level, composed": Tokenizer(kept(composing(), {}, None, Path())),
    "sentencepiece": Tokenizer(kept(sentencepiece_like(), {}, None, Path())),
    "metaspace": Tokenizer(kept(sentencepiece_like(metaspace=True), {}, None, Path())),
}


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=st.text() | st.text("he lo\u0301\u1f82a\u0313\n<|im_end|>", max_size=200))
def test_no_text_that_has_few_enough_tokens_is_refused(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    tokenizer.encode(text, max_tokens=len(tokenizer.encode(text)))


def test_a_text_that_is_far_too_long_is_never_encoded(load: object, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer: Tokenizer = load(byte_level())  # type: ignore[operator]
    monkeypatch.setattr(tokenizer, "_encoding", None)
    prompt = Prompt(key="0", source="", text="hello " * 100_000)
    with pytest.raises(
        PromptError, match="^the text has 600000 characters, far more than 64 tokens, the maximum"
    ):
        token_ids_of(prompt, tokenizer, 64)


def test_white_space_is_no_way_around_the_bound(load: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some tokenizers drop it, and encode all of it first, which takes 300 bytes for each character."""
    tokenizer: Tokenizer = load(byte_level())  # type: ignore[operator]
    monkeypatch.setattr(tokenizer, "_encoding", None)
    with pytest.raises(PromptError, match="^the text has 40000000 characters, far more than 64 tokens"):
        tokenizer.encode(" " * 40_000_000, max_tokens=64)


def test_of_a_long_text_parts_are_counted_until_there_are_too_many(
    load: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer: Tokenizer = load(byte_level())  # type: ignore[operator]
    monkeypatch.setattr(tokenizer, "_longest_entry", 10_000)  # a token may have thousands of spaces
    encoding, lengths = tokenizer._encoding, []

    def counted(text: str, *, plain: bool) -> Any:
        lengths.append(len(text))
        return encoding(text, plain=plain)

    monkeypatch.setattr(tokenizer, "_encoding", counted)
    with pytest.raises(PromptError, match="^the text has 600000 characters, far more than 20000 tokens"):
        tokenizer.encode("hello " * 100_000, max_tokens=20_000)
    assert sum(lengths) <= 1 << 18
    text = "hello " * 50_000
    assert tokenizer.encode(text, max_tokens=100_000) == tokenizer.encode(text)


class PanicException(BaseException):
    """Named as what code in Rust raises."""


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PanicException("index\nout of range"), "failed: index out of range"),
        (RecursionError(), "too deeply"),
    ],
)
def test_a_tokenizer_that_fails_costs_a_row(
    load: object, monkeypatch: pytest.MonkeyPatch, error: BaseException, said: str
) -> None:
    tokenizer: Tokenizer = load(byte_level())  # type: ignore[operator]

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(tokenizer, "_encoding", fail)
    with pytest.raises(PromptError, match=said):
        token_ids_of(Prompt(key="0", source="", text="a"), tokenizer)
