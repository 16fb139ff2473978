"""Texts far too long are refused by their length: never one that has few enough tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_tokenizers import byte_level, sentencepiece_like
from tokenizers import Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from mindbatch.io.errors import PromptError
from mindbatch.prompts.fewest_tokens import characters_per_token, fewest_tokens
from mindbatch.prompts.prompts import Prompt, token_ids_of
from mindbatch.prompts.tokenizer import Tokenizer


def composing() -> Backend:
    backend = byte_level()
    backend.normalizer = normalizers.NFC()
    return backend


BOUNDED = {
    "byte level": byte_level(),
    "byte level, composed": composing(),
    "sentencepiece": sentencepiece_like(),
    "metaspace": sentencepiece_like(metaspace=True),
}


@pytest.mark.parametrize("backend", BOUNDED.values(), ids=BOUNDED)
@given(text=st.text() | st.text("he lo\u0301\u1f82a\u0313\n<|im_end|>", max_size=200))
def test_no_text_has_fewer_tokens(backend: Backend, text: str) -> None:
    most_characters = characters_per_token(backend)
    assert most_characters is not None
    assert fewest_tokens(text, most_characters) <= len(backend.encode(text, add_special_tokens=False).ids)


def dropping(change: str) -> Backend:
    backend = byte_level()
    if change == "normalizer":
        backend.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.StripAccents()])
    elif change == "replace":
        backend.normalizer = normalizers.Replace("aa", "")
    elif change == "split":
        split = pre_tokenizers.Split(Regex("[a-z]"), "removed")
        backend.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel()])
    elif change == "truncation":
        backend.enable_truncation(5)
    else:
        return Backend(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>"))
    return backend


@pytest.mark.parametrize("change", ["normalizer", "replace", "split", "truncation", "words"])
def test_what_may_drop_characters_has_no_bound(change: str) -> None:
    assert characters_per_token(dropping(change)) is None


def test_a_text_that_is_far_too_long_is_never_encoded(load: object, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer: Tokenizer = load(byte_level())  # type: ignore[operator]
    monkeypatch.setattr(tokenizer, "_encoding", None)
    prompt = Prompt(key="0", source="", text="hello " * 100_000)
    with pytest.raises(
        PromptError, match=r"^the text has 600000 characters, so at least \d+ tokens; at most 64 can"
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
