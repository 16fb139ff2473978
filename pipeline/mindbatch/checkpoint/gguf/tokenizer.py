"""A file's tokens as tokenizer.json and tokenizer_config.json, so that texts have llama.cpp's token ids.

Sources: llama.cpp's vocabularies; for the expressions that split texts, the tokenizers of models' authors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mindbatch.checkpoint.error_lines import located, raise_if_any, shown
from mindbatch.checkpoint.gguf.metadata import Metadata
from mindbatch.io.errors import CheckpointError

_SPACE = "▁"
_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = range(1, 7)
_MAX_TOKEN = 1024

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_WORDS = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+"
_MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_CASED = (rf"{_BEFORE}{_UPPER}*{_LOWER}+", rf"{_BEFORE}{_UPPER}+{_LOWER}*")
_CASED_MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"


class _Split(NamedTuple):
    """How texts are split before pairs are merged. expressions: one after the other; the rest are parts, too.

    adds_bos: True if a text begins with the first token unless the file says otherwise.
    keeps_words: True if a part that is a token is taken as it is.
    """

    expressions: tuple[str, ...]
    adds_bos: bool = False
    keeps_words: bool = False


_LLAMA3 = rf"{_WORDS}|\p{{N}}{{1,3}}|{_MARKS}|{_SPACES}"
_SPLITS = {
    "default": _Split((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": _Split((_GPT2,)),
    "smollm": _Split((r"\p{N}", _GPT2)),
    "llama-bpe": _Split((_LLAMA3,), adds_bos=True, keeps_words=True),
    "glm4": _Split((_LLAMA3,)),
    "chatglm-bpe": _Split((_LLAMA3,)),
    "qwen2": _Split((rf"{_WORDS}|\p{{N}}|{_MARKS}|{_SPACES}",)),
    "gpt-4o": _Split(
        ("|".join([*(f"{word}{_CONTRACTIONS}?" for word in _CASED), r"\p{N}{1,3}", _CASED_MARKS, _SPACES]),)
    ),
    "tekken": _Split(
        ("|".join([*_CASED, r"\p{N}", _CASED_MARKS, _SPACES]),), adds_bos=True, keeps_words=True
    ),
}
"""By the names that files give them."""


@dataclass(frozen=True)
class TokenizerFiles:
    """Contents of the JSON files, and the ids of the tokens that end a text."""

    tokenizer: Mapping[str, Any]
    settings: Mapping[str, Any]
    eos_ids: Sequence[int]


class _Vocabulary(NamedTuple):
    tokens: list[str]
    types: list[int]

    @property
    def ids(self) -> dict[str, int]:
        return {token: number for number, token in enumerate(self.tokens)}


def tokenizer_of(metadata: Metadata) -> TokenizerFiles:
    """Raises:
    CheckpointError: a key is missing, wrong, or asks for a tokenizer that is not read.
    """
    with located(metadata.path):
        kind = metadata.text("tokenizer.ggml.model")
        vocabulary = _vocabulary(metadata)
        if kind == "llama":
            content, adds_bos = _by_scores(metadata, vocabulary), True
        elif kind == "gpt2":
            split = _split_of(metadata)
            content, adds_bos = _by_merges(metadata, vocabulary, split), split.adds_bos
        else:
            raise CheckpointError(f"tokenizer.ggml.model={shown(kind)}: is not read; read are llama and gpt2")
    return _with_settings(metadata, vocabulary, content, adds_bos)


def _vocabulary(metadata: Metadata) -> _Vocabulary:
    tokens = metadata.texts("tokenizer.ggml.tokens")
    types = [int(kind) for kind in metadata.numbers("tokenizer.ggml.token_type", len(tokens))]
    raise_if_any(metadata.errors)
    if len({*tokens}) < len(tokens):
        raise CheckpointError("tokenizer.ggml.tokens: has tokens twice")
    if max(map(len, tokens), default=0) > _MAX_TOKEN:
        raise CheckpointError(f"tokenizer.ggml.tokens: has a token of more than {_MAX_TOKEN} characters")
    if bad := {*types} - {_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE}:
        raise CheckpointError(f"tokenizer.ggml.token_type: holds {min(bad)}; must be 1 to 6")
    return _Vocabulary(tokens, types)


def _by_scores(metadata: Metadata, vocabulary: _Vocabulary) -> dict[str, Any]:
    """SentencePiece's merging, which joins the two neighbours whose token has the best score."""
    tokens, types = vocabulary
    scores = np.array(metadata.numbers("tokenizer.ggml.scores", len(tokens)))
    raise_if_any(metadata.errors)
    normal = [number for number, kind in enumerate(types) if kind == _NORMAL]
    if not normal or scores[normal].min() == scores[normal].max():
        raise CheckpointError("tokenizer.ggml.scores: are all the same, which merges nothing")
    adds_space = metadata.flag("tokenizer.ggml.add_space_prefix", True)
    prepend = [{"type": "Prepend", "prepend": _SPACE}] if adds_space else []
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if adds_space else []
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    back = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
    merges = _merges_by_score(vocabulary, scores, normal)
    unknown = next((tokens[number] for number, kind in enumerate(types) if kind == _UNKNOWN), None)
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*prepend, replace]},
        "pre_tokenizer": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip],
        },
        "model": _byte_pairs(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True),
    }


def _merges_by_score(vocabulary: _Vocabulary, scores: Any, normal: Sequence[int]) -> list[list[str]]:
    """Every pair of tokens that makes a token, the best score first."""
    tokens, ids = vocabulary.tokens, vocabulary.ids
    order = sorted(normal, key=lambda number: -scores[number])
    return [
        [token[:cut], token[cut:]]
        for token in map(tokens.__getitem__, order)
        for cut in range(1, len(token))
        if token[:cut] in ids and token[cut:] in ids
    ]


def _split_of(metadata: Metadata) -> _Split:
    name = metadata.text("tokenizer.ggml.pre", "default")
    if name not in _SPLITS:
        raise CheckpointError(f"tokenizer.ggml.pre={shown(name)}: is not read; read are {', '.join(_SPLITS)}")
    return _SPLITS[name]


def _by_merges(metadata: Metadata, vocabulary: _Vocabulary, split: _Split) -> dict[str, Any]:
    """Byte pairs, as of GPT-2."""
    ids, merges = vocabulary.ids, []
    for text in metadata.texts("tokenizer.ggml.merges"):
        cut = text.find(" ", 1)
        pair = [text[:cut], text[cut + 1 :]]
        if cut < 0 or not {*pair, "".join(pair)} <= ids.keys():
            raise CheckpointError(
                f"tokenizer.ggml.merges: {shown(text)} is no pair of tokens that make a token"
            )
        merges.append(pair)
    splits = [
        {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}
        for expression in split.expressions
    ]
    of_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, of_bytes]},
        "decoder": of_bytes,
        "model": _byte_pairs(vocabulary, merges, ignore_merges=split.keeps_words),
    }


def _byte_pairs(vocabulary: _Vocabulary, merges: list[list[str]], **settings: Any) -> dict[str, Any]:
    plain = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
    }
    return plain | settings | {"vocab": vocabulary.ids, "merges": merges}


def _with_settings(
    metadata: Metadata, vocabulary: _Vocabulary, content: dict[str, Any], adds_bos: bool
) -> TokenizerFiles:
    tokens, types = vocabulary
    keys = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding", "eot": "eot", "eom": "eom"}
    named = {
        name: metadata.token(f"tokenizer.ggml.{key}_token_id", len(tokens)) for name, key in keys.items()
    }
    added = [
        {
            "id": number,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind == _CONTROL,
        }
        for number, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in (_CONTROL, _USER)
    ]
    starts = metadata.flag("tokenizer.ggml.add_bos_token", adds_bos) and named["bos"] is not None
    ends = metadata.flag("tokenizer.ggml.add_eos_token", False) and named["eos"] is not None
    around = [*(["bos"] if starts else []), None, *(["eos"] if ends else [])]
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        **content,
        "post_processor": _template(around, named, tokens) if starts or ends else None,
    }
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizer",
        "clean_up_tokenization_spaces": False,
    }
    for name in ("bos", "eos", "unk", "pad"):
        if (number := named[name]) is not None:
            settings[f"{name}_token"] = tokens[number]
    if "tokenizer.chat_template" in metadata.values:
        settings["chat_template"] = metadata.text("tokenizer.chat_template")
    eos_ids = dict.fromkeys(named[name] for name in ("eos", "eot", "eom"))
    metadata.raise_errors()
    return TokenizerFiles(tokenizer, settings, [number for number in eos_ids if number is not None])


def _template(around: Sequence[str | None], named: Mapping[str, int | None], tokens: Sequence[str]) -> Any:
    """A text's tokens, None, with others around them."""
    ids = {name: named[name] or 0 for name in around if name is not None}

    def parts(text: str, kind: int) -> list[Any]:
        return [
            {"Sequence": {"id": text, "type_id": kind}}
            if name is None
            else {"SpecialToken": {"id": tokens[ids[name]], "type_id": kind}}
            for name in around
        ]

    special = {
        tokens[number]: {"id": tokens[number], "ids": [number], "tokens": [tokens[number]]}
        for number in ids.values()
    }
    return {
        "type": "TemplateProcessing",
        "single": parts("A", 0),
        "pair": [*parts("A", 0), *parts("B", 1)],
        "special_tokens": special,
    }
