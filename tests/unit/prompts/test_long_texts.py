"""Texts far too long are refused by their length: never one that has few enough tokens."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_tokenizers import byte_level, sentencepiece_like
from tokenizers import Tokenizer as Backend
from tokenizers import normalizers

from mindbatch.io.errors import PromptError
from mindbatch.prompts.prompts import Prompt, token_ids_of
from mindbatch.prompts.token_bytes import kept
from mindbatch.prompts.tokenizer import Tokenizer


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
    tokenizer.encode(text, most_tokens=len(tokenizer.encode(text)))


def test_a_text_that_is_far_too_long_is_never_encoded(load: object, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer: Tokenizer = load(byte_level())  # type: ignore[operator]
    monkeypatch.setattr(tokenizer, "_encoding", None)
    prompt = Prompt(key="0", source="", text="hello " * 100_000)
    with pytest.raises(
        PromptError, match="^the text has 600000 characters, far more than 64 tokens, the most"
    ):
        token_ids_of(prompt, tokenizer, 64)


class PanicException(BaseException):
    """Named as what code in Rust raises."""


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PanicException("index\nout of range"), "failed on it: index out of range"),
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
