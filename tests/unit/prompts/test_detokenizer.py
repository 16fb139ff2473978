"""Text token by token: joined it is the decoded text, and no piece shows part of a character."""

from collections.abc import Iterable
from typing import Any

import pytest
from constrained import wrap as wrapped
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers

from mindbatch.prompts.token_bytes import IncrementalDetokenizer, byte_level_alphabet
from mindbatch.prompts.tokenizer import Tokenizer

TEXTS = st.text(
    st.one_of(
        st.characters(exclude_categories=["Cs"]),
        st.sampled_from("你好世界今天 abc\u0301\u200d👩👨🏽🇨🇳한글\ufffd\n"),
    )
)
CHARACTER = {byte: character for character, byte in byte_level_alphabet().items()}


def spelt(raw: bytes) -> str:
    return "".join(CHARACTER[byte] for byte in raw)


def wrap(backend: Backend, special: list[str]) -> Tokenizer:
    backend.add_special_tokens(special)
    return wrapped(backend)


def byte_level() -> Tokenizer:
    """All bytes, and tokens that begin and end inside characters, as byte-level BPE learns them."""
    merged = [
        b"\xe4\xbd",
        b"\xbd\xa0",
        b"\xa0\xe5",
        b"\xf0\x9f",
        b"\x9f\x91\xa9",
        b"\xff\xfe",
        b"ab",
        b" \xe4",
    ]
    vocabulary = {spelt(raw): i for i, raw in enumerate([*(bytes([b]) for b in range(256)), *merged])}
    backend = Backend(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens(["<think>", "思考 中"])
    return wrap(backend, ["<|end|>"])


def sentencepiece(*, strip: bool = True) -> Tokenizer:
    """Llama 2's decoder (strip) or Gemma's."""
    words = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{b:02X}>" for b in range(256)),
        "▁",
        *"abc你好\n",
        "▁a",
        "▁▁",
        "\ufffd",
    ]
    backend = Backend(
        models.BPE(
            vocab={w: i for i, w in enumerate(words)}, merges=[], unk_token="<unk>", byte_fallback=True
        )
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)
    backend.add_tokens(["<think>"])
    return wrap(backend, ["<unk>", "<s>", "</s>"])


def word_level(decoder: Any, words: Iterable[str]) -> Tokenizer:
    backend = Backend(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    if decoder is not None:
        backend.decoder = decoder
    return wrap(backend, ["<unk>"])


BYTE_LEVEL, SENTENCEPIECE, GEMMA = byte_level(), sentencepiece(), sentencepiece(strip=False)
BOS, UNKNOWN = 1, 99_999
TOKENIZERS = {"byte level": BYTE_LEVEL, "sentencepiece": SENTENCEPIECE, "no strip": GEMMA}
each = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)


def pieces_of(
    tokenizer: Tokenizer, ids: list[int], prompt: list[int] | None = None, **options: Any
) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, prompt or [], **options)
    return [*(detokenizer.push(i) for i in ids), detokenizer.flush()]


def token_of(tokenizer: Tokenizer, text: str) -> int:
    found = tokenizer._backend.token_to_id(text)
    assert found is not None
    return int(found)


@each
@given(text=TEXTS)
def test_any_text(tokenizer: Tokenizer, text: str):
    ids = tokenizer.encode(text, add_special_tokens=False)
    pieces = pieces_of(tokenizer, ids)
    assert "".join(pieces) == tokenizer.decode(ids)
    if "\ufffd" not in text:
        assert "\ufffd" not in "".join(pieces)


@each
@given(text=TEXTS, data=st.data(), skip=st.booleans())
def test_special_and_unknown_ids_among_text(tokenizer: Tokenizer, text: str, data: st.DataObject, skip: bool):
    others = st.sampled_from([*sorted(tokenizer.special_ids), token_of(tokenizer, "<think>"), UNKNOWN])
    ids: list[int] = []
    for character in text:
        ids += data.draw(st.lists(others, max_size=1))
        ids += tokenizer.encode(character, add_special_tokens=False)
    pieces = pieces_of(tokenizer, ids, skip_special_tokens=skip)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=skip)


FREQUENT = [0xE4, 0xBD, 0xA0, 0xF0, 0x9F, token_of(BYTE_LEVEL, "思考 中")]


@given(ids=st.lists(st.one_of(st.integers(0, 270), st.sampled_from(FREQUENT)), max_size=60))
def test_any_ids_of_a_byte_level_vocabulary(ids: list[int]):
    for skip in (True, False):
        pieces = pieces_of(BYTE_LEVEL, ids, skip_special_tokens=skip)
        assert "".join(pieces) == BYTE_LEVEL.decode(ids, skip_special_tokens=skip)


@given(ids=st.lists(st.integers(0, 280), max_size=60))
def test_any_ids_with_byte_fallback(ids: list[int]):
    """The library turns a whole run of byte tokens into U+FFFD if one is invalid; a stream has shown the good
    characters by then. So: what the library shows as text is shown, in order."""
    shown = iter("".join(pieces_of(SENTENCEPIECE, ids)))
    assert all(character in shown for character in SENTENCEPIECE.decode(ids).replace("\ufffd", ""))


@each
def test_a_character_comes_whole_with_its_last_byte(tokenizer: Tokenizer):
    first = 0 if tokenizer is BYTE_LEVEL else 3
    ids = [first + byte for byte in "é你👩".encode()]
    assert pieces_of(tokenizer, ids) == ["", "é", "", "", "你", "", "", "", "👩", ""]


def test_tokens_that_end_inside_characters_release_what_is_certain():
    ids = [token_of(BYTE_LEVEL, spelt(raw)) for raw in (b"\xe4", b"\xbd\xa0", b" \xe4", b"\xbd", b"\xa0\xe5")]
    assert pieces_of(BYTE_LEVEL, ids) == ["", "你", " ", "", "你", "\ufffd"]


@each
def test_invalid_bytes_are_released_once_certain(tokenizer: Tokenizer):
    first = 0 if tokenizer is BYTE_LEVEL else 3
    a = token_of(tokenizer, "a")
    assert pieces_of(tokenizer, [first + 0xFF, a]) == ["\ufffd", "a", ""]
    assert pieces_of(tokenizer, [first + 0xE4, first + 0xBD, a]) == ["", "", "\ufffda", ""]
    assert pieces_of(tokenizer, [first + 0xE4, first + 0xBD]) == ["", "", "\ufffd"]
    assert pieces_of(tokenizer, [first + 0xF0] * 5) == ["", *["\ufffd"] * 5]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ([], "a a"),
        ([BOS], "a a"),
        ([BOS, token_of(SENTENCEPIECE, "▁a")], " a a"),
        ([token_of(SENTENCEPIECE, "▁a"), 2], "a a"),
        ([UNKNOWN], "a a"),
        ([3 + byte for byte in "é".encode()], " a a"),
    ],
    ids=["empty", "BOS", "text", "ends in a control token", "unknown id", "byte tokens"],
)
@pytest.mark.parametrize("skip", [True, False])
def test_the_first_space_reads_on_from_the_prompt(prompt: list[int], expected: str, skip: bool):
    word = token_of(SENTENCEPIECE, "▁a")
    assert "".join(pieces_of(SENTENCEPIECE, [word, word], prompt, skip_special_tokens=skip)) == expected


@given(prompt=TEXTS.filter(bool), text=TEXTS)
def test_prompt_and_output_join_as_decoded_together(prompt: str, text: str):
    ids = SENTENCEPIECE.encode(prompt + text, add_special_tokens=False)
    for cut in range(1, len(ids)):
        before, after = (
            SENTENCEPIECE.decode(ids[:cut]),
            "".join(pieces_of(SENTENCEPIECE, ids[cut:], ids[:cut])),
        )
        if "\ufffd" not in before + after:
            assert before + after == SENTENCEPIECE.decode(ids)


WORDS = ["<unk>", "play", "##ing", "the", ",", "well</w>", "a</w>", "▁x", "▁"]
DECODERS = {
    "none": None,
    "WordPiece": decoders.WordPiece(cleanup=False),
    "BPE suffix": decoders.BPEDecoder(suffix="</w>"),
    "Metaspace": decoders.Metaspace(),
}


@pytest.mark.parametrize("decoder", DECODERS.values(), ids=DECODERS)
@given(ids=st.lists(st.integers(0, len(WORDS) + 1), max_size=12))
def test_other_decoders(decoder: Any, ids: list[int]):
    tokenizer = word_level(decoder, WORDS)
    assert "".join(pieces_of(tokenizer, ids)) == tokenizer.decode(ids)


class Counting:
    """A backend that notes how many tokens it is asked to decode at once."""

    def __init__(self, backend: Backend) -> None:
        self._backend, self.largest = backend, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def decode(self, ids: list[int], **options: Any) -> str:
        self.largest = max(self.largest, len(ids))
        return str(self._backend.decode(ids, **options))


@pytest.mark.parametrize("ids", [[3 + 0xFF], [3 + 0xE4], [262, 263], [UNKNOWN], [2]])
def test_work_per_token_does_not_grow(ids: list[int]):
    tokenizer = sentencepiece()
    counting = Counting(tokenizer._backend)
    tokenizer._backend = counting
    pieces_of(tokenizer, ids * 500, list(range(3, 259)) * 4)
    assert counting.largest <= 2


def test_a_fork_goes_its_own_way():
    first = IncrementalDetokenizer(BYTE_LEVEL, [])
    assert first.push(0xE4) + first.push(0xBD) == ""
    second = first.fork()
    assert first.push(0xA0) == "你"
    assert second.push(0xA1) == "佡"
    assert (first.flush(), second.flush()) == ("", "")
