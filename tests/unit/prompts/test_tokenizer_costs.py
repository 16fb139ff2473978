"""What a tokenizer.json may cost is bounded before it is loaded; nothing in it is random."""

import base64
import json
import resource
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_tokenizers import byte_level, sentencepiece_like, tokenizer_of, write_folder
from tokenizers import Tokenizer as Backend

from mindbatch.io.errors import CheckpointError, PromptError
from mindbatch.prompts import tokenizer_probe
from mindbatch.prompts.tokenizer import Tokenizer
from mindbatch.prompts.tokenizer_folder import library_errors_as
from mindbatch.prompts.tokenizer_rules import MAX_GROWTH, growth_of

Content = dict[str, Any]
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BLOOM = " ?[^(\\s|[.,!?…。，、।۔،])]+"


def replaced(pattern: str, content: str, kind: str = "String") -> Content:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def split(pattern: str) -> Content:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def sequence(name: str, *parts: Content) -> Content:
    return {"type": "Sequence", name: [*parts]}


def template(*pieces: Content, **tokens: Content) -> Content:
    return {"type": "TemplateProcessing", "single": [*pieces], "pair": [], "special_tokens": tokens}


TEXT: Content = {"Sequence": {"id": "A", "type_id": 0}}
CHAIN = [replaced(a, b * 1000) for a, b in ("ab", "bc", "cd", "de")]
TABLE = base64.b64encode(bytes(4) + b"\0" + b"x" * 10_000 + b"\0").decode()


def token(length: int) -> Content:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": 400, "content": "x" * length, "special": True, **flags}


COSTLY: dict[str, tuple[Content, str]] = {
    "normalizers": (
        {"normalizer": sequence("normalizers", *CHAIN)},
        "normalizer: turns one character into up to 1,000,000,000,000; at most 64 are allowed",
    ),
    "normalizers within": (
        {"normalizer": sequence("normalizers", sequence("normalizers", *CHAIN[:1]), CHAIN[1])},
        "normalizer: turns one character into up to 1,000,000",
    ),
    "an empty pattern": (
        {"normalizer": replaced("", "x" * 64)},
        "normalizer: turns one character into up to 65",
    ),
    "a set within a set": (
        {"normalizer": replaced("[[a]" + "b" * 99 + "]", "x" * 99, "Regex")},
        "turns one character into up to 100",
    ),
    "an empty match": (
        {"normalizer": replaced("y*", "x" * 99, "Regex")},
        "turns one character into up to 100",
    ),
    "a prefix": (
        {"normalizer": {"type": "Prepend", "prepend": "x" * 99}},
        "turns one character into up to 100",
    ),
    "a table": (
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": TABLE}},
        "precompiled_charsmap: turns one character into up to 10,000",
    ),
    "bytes of bytes": (
        {"pre_tokenizer": sequence("pretokenizers", *[{"type": "ByteLevel", "add_prefix_space": False}] * 9)},
        "pre_tokenizer: turns one character into up to 262,144",
    ),
    "decoders": (
        {"decoder": sequence("decoders", *CHAIN[:3])},
        "decoder: turns one character into up to 1,000,000,000",
    ),
    "spaces": (
        {"decoder": sequence("decoders", *[{"type": "BPEDecoder", "suffix": ""}] * 20)},
        "decoder: turns one character into up to 1,048,576",
    ),
    "many parts": (
        {"normalizer": sequence("normalizers", *[{"type": "NFC"}] * 200)},
        "normalizer: 200 parts; at most 100 are allowed",
    ),
    "a long template": (
        {"post_processor": template(TEXT, *[{"SpecialToken": {"id": "s", "type_id": 0}}] * 100_000)},
        "post_processor: single: 100,001 parts; at most 100 are allowed",
    ),
    "the text twice": (
        {"post_processor": template(TEXT, TEXT)},
        "post_processor: single: 2 texts; at most 1 are allowed",
    ),
    "many ids": (
        {"post_processor": template(TEXT, s={"id": "s", "ids": [0] * 9999, "tokens": ["s"] * 9999})},
        "post_processor: special_tokens: 9,999 ids; at most 100 are allowed",
    ),
    "a long token": (
        {"added_tokens": [token(100_000)]},
        "added_tokens: a token of 100000 characters; at most 1000 are allowed",
    ),
    "many long tokens": (
        {"added_tokens": [token(1000)] * 140},
        "added_tokens: 140 tokens with 140,000 characters, too many to search for",
    ),
    "a long entry": (
        {"model": {"type": "BPE", "vocab": {"x" * 5000: 0}, "merges": []}},
        "model: vocab: an entry of 5000 characters; at most 4096 are allowed",
    ),
    "long words": (
        {
            "model": {
                "type": "WordPiece",
                "vocab": {"x": 0},
                "unk_token": "x",
                "max_input_chars_per_word": 9999,
            }
        },
        "model: max_input_chars_per_word=9999; at most 500 are allowed",
    ),
    "a subword prefix": (
        {"model": {"type": "BPE", "vocab": {"x": 0}, "merges": [], "continuing_subword_prefix": "#" * 999}},
        "model: continuing_subword_prefix: 999 characters; at most 100 are allowed",
    ),
    "no type": (
        {"normalizer": {"normalizers": [{"pattern": {"String": "a"}, "content": "b" * 1000}]}},
        "normalizer: turns one character into up to 1,000",
    ),
    "cubic": ({"pre_tokenizer": split(r"\s*\s*x")}, "its expressions take"),
    "exponential": ({"pre_tokenizer": split(r"(a+)+$")}, "retry-limit-in-match over"),
    "no pair": (
        {
            "model": {
                "type": "BPE",
                "vocab": {"a": 0, "b": 1, "ab": 2},
                "merges": ["a b"],
                "continuing_subword_prefix": "##",
            }
        },
        "the tokenizer cannot be loaded as PreTrainedTokenizerFast: byte index 2 is out of bounds",
    ),
}


def write(folder: Path, change: Content, backend: Callable[[], Backend] = byte_level) -> Path:
    write_folder(folder, None, {"tokenizer_class": "PreTrainedTokenizerFast"})
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(backend().to_str()) | change))
    return path


@pytest.mark.needs("transformers")
@pytest.mark.parametrize("kind", COSTLY)
def test_what_costs_too_much_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    change, said = COSTLY[kind]
    path = write(tmp_path, change)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CheckpointError) as refused:
        Tokenizer.load(tmp_path)
    [line] = refused.value.lines
    assert line.startswith(f"{path}: ")
    assert said in line
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10


@pytest.mark.needs("transformers")
def test_a_long_token_is_refused_wherever_it_stands(tmp_path: Path) -> None:
    write(tmp_path, {})
    (tmp_path / "added_tokens.json").write_text(json.dumps({"x" * 100_000: 401}))
    with pytest.raises(CheckpointError, match=r"added_tokens.json: a token of 100000 characters"):
        Tokenizer.load(tmp_path)


def test_all_errors_are_told_at_once(tmp_path: Path) -> None:
    write(tmp_path, {**COSTLY["normalizers"][0], **COSTLY["decoders"][0], **COSTLY["a long token"][0]})
    with pytest.raises(CheckpointError) as refused:
        Tokenizer.load(tmp_path)
    assert len(refused.value.lines) == 3


COMMON: dict[str, Content] = {
    "gpt2": {"pre_tokenizer": split(GPT2)},
    "llama3": {"pre_tokenizer": split(LLAMA3)},
    "deepseek": {
        "pre_tokenizer": sequence(
            "pretokenizers", split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK)
        )
    },
    "spaces": {"normalizer": replaced(" {2,}", "▁", "Regex")},
    "many replacements": {
        "normalizer": sequence("normalizers", *[replaced(r"[\p{Pi}“”]", '"', "Regex")] * 30)
    },
}


@pytest.mark.parametrize("change", COMMON.values(), ids=COMMON)
def test_common_forms_need_no_other_process(
    tmp_path: Path, change: Content, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_probe, "AnsweringProcess", None)
    write(tmp_path, change)
    assert tokenizer_of(tmp_path).encode("hello")


UNCOMMON: dict[str, Content] = {
    "expressions": {
        "pre_tokenizer": sequence("pretokenizers", split(O200K), split(BLOOM)),
        "normalizer": replaced(r"\A +| +\z", "", "Regex"),  # quadratic, and honest
    },
    "no types": {"normalizer": {"normalizers": [{"type": "NFC"}, ["Lowercase"]]}},
}


@pytest.mark.parametrize("change", UNCOMMON.values(), ids=UNCOMMON)
def test_uncommon_forms_are_tried_and_taken(tmp_path: Path, change: Content) -> None:
    path = write(tmp_path, change)
    plain = Backend.from_file(str(path))
    assert tokenizer_of(tmp_path).encode(" Hello  World") == plain.encode(" Hello  World").ids


CHARACTERS = st.sampled_from(["a", "b", " ", "é", "漢", "ﷺ", "x"])
WORDS = st.text(CHARACTERS, max_size=6)
REPLACED = st.one_of(
    st.builds(replaced, WORDS, WORDS),
    st.builds(
        replaced,
        st.sampled_from(
            [
                "a+",
                "a*",
                "[ab]",
                "b{2,3}",
                "a?b",
                r"\s+",
                "^",
                "a|",
                "(?=b)",
                "[[a]bbbbbb]",
                "[a[b]xxxxxx]",
                "[ab&&b]",
                "(?x)a  a",
            ]
        ),
        WORDS,
        st.just("Regex"),
    ),
)
NORMALIZERS = st.one_of(
    REPLACED,
    st.builds(lambda text: {"type": "Prepend", "prepend": text}, WORDS.filter(bool)),
    st.sampled_from([{"type": name} for name in ("NFC", "Lowercase", "StripAccents", "ByteLevel")]),
)
DECODERS = st.one_of(
    REPLACED,
    st.builds(lambda text: {"type": "BPEDecoder", "suffix": text}, WORDS),
    st.builds(
        lambda text: {"type": "CTC", "pad_token": "", "word_delimiter_token": text, "cleanup": True}, WORDS
    ),
    st.sampled_from(
        [{"type": "Fuse"}, {"type": "ByteFallback"}, {"type": "WordPiece", "prefix": "", "cleanup": True}]
    ),
)


@given(st.lists(NORMALIZERS, max_size=6), st.lists(DECODERS, max_size=6), st.text(CHARACTERS, min_size=40))
def test_no_text_grows_further_than_the_rules_say(
    tmp_path: Path, normalizers: list[Content], decoders: list[Content], text: str
) -> None:
    """Beside that a part may add to a text, once, what it makes of a character."""
    change = {"normalizer": sequence("normalizers", *normalizers), "decoder": sequence("decoders", *decoders)}
    of_normalizer, of_decoder = (growth_of(change, name) for name in ("normalizer", "decoder"))
    if max(of_normalizer, of_decoder) > 10 * MAX_GROWTH:
        return
    backend = Backend.from_file(str(write(tmp_path, change, sentencepiece_like)))
    parts = 1 + len(normalizers)
    assert length(backend.normalizer.normalize_str, text) <= of_normalizer * (len(text) + parts)
    assert length(backend.decoder.decode, [text, text]) <= of_decoder * 2 * (len(text) + 1)


def length(function: Callable[[Any], str], value: object) -> int:
    """Characters of a result; 0 for a panic of the library, which costs nothing."""
    with suppress(PromptError), library_errors_as(PromptError, "a panic"):
        return len(function(value))
    return 0


def test_dropout_is_off_and_told(tmp_path: Path) -> None:
    """It leaves pairs unmerged at random: two runs of a job would differ."""
    model = json.loads(byte_level().to_str())["model"]
    write(tmp_path, {"model": {**model, "dropout": 0.5}})
    tokenizer = tokenizer_of(tmp_path)
    text = "hello world, user and system <|im_end|>" * 4
    assert {tuple(tokenizer.encode(text)) for _ in range(20)} == {
        tuple(byte_level_ids(tmp_path / "plain", text))
    }
    assert tokenizer.warnings == (f"{tmp_path}: the tokenizer's dropout=0.5 is for training; it is disabled",)
    write(tmp_path, {"model": {**model, "dropout": 0.0}})
    assert tokenizer_of(tmp_path).warnings == ()


def byte_level_ids(folder: Path, text: str) -> list[int]:
    write(folder, {})
    return tokenizer_of(folder).encode(text)
