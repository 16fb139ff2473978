"""Builds the tokenizer of PanGu-alpha, which encodes jieba's words by a SentencePiece model.

Sources: the behaviour of tokenization_gptpangu.py in the published folders, and of MindFormers 1.0's
pangualpha_tokenizer.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import NormalizedString, PreTokenizedString, decoders, normalizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE, Unigram
from tokenizers.processors import TemplateProcessing

from mindbatch.checkpoint.folders.folder_files import CONFIG_NAME, has_file
from mindbatch.io.errors import CheckpointError, is_panic
from mindbatch.prompts.chinese_words import words_of
from mindbatch.prompts.sentencepiece_file import (
    BYTE_PAIRS,
    CONTROL,
    NORMAL,
    SPACE,
    UNIGRAM,
    UNKNOWN,
    UNUSED,
    errors_of,
    merges_of,
    normalization_errors,
    normalized,
    parsed_model,
    unigram_scores,
)
from mindbatch.prompts.token_bytes import LoadedTokenizer, kept
from mindbatch.prompts.tokenizer_folder import (
    SETTINGS,
    checked_files,
    library_errors_as,
    one_line,
    read_json_file,
    text_of,
)

VOCABULARY = "vocab.model"
CLASSES = ("GPTPanguTokenizer", "PanguAlphaTokenizer")
WRITTEN = {" ": "\u2582", "\n": "\u2583"}
"""Characters by which the model writes a space and a line end; its own space divides words."""
_NAMED = {"bos_token": "<s>", "eos_token": "<eot>", "unk_token": "<unk>", "pad_token": "<pad>"}
_KINDS = (UNIGRAM, BYTE_PAIRS)
_IN_WORDS = re.compile(rf"{SPACE}?[\w+#&.%-]+")


def load_pangu(folder: Path, settings: Mapping[str, Any]) -> LoadedTokenizer | None:
    """Loads the folder's tokenizer; None if neither the settings name the class nor config.json the type.

    Raises:
        CheckpointError: a file is damaged, or has settings that are not supported.
    """
    if not has_file(folder, VOCABULARY) or not _is_of_pangu(folder, settings):
        return None
    files = checked_files(folder, [VOCABULARY])
    checked = json.loads(files.get(SETTINGS, b"{}"))
    backend, words = pangu_backend(files[VOCABULARY], folder / VOCABULARY)
    named = _named_tokens(backend, checked)
    backend.add_special_tokens([*named.values()])
    _put_around_texts(backend, named, checked)
    return kept(backend, named, checked.get("chat_template"), folder, words)


def _is_of_pangu(folder: Path, settings: Mapping[str, Any]) -> bool:
    if name := settings.get("tokenizer_class"):
        return name in CLASSES
    return read_json_file(folder, CONFIG_NAME).get("model_type") == "gpt_pangu"


def pangu_backend(data: bytes, path: Path) -> tuple[Backend, WordSplitter]:
    """Builds the tokenizer of a model file and its pre-tokenizer, which divides texts into words.

    Raises:
        CheckpointError: lists all settings that are invalid or not supported.
    """
    model = parsed_model(data, path)
    spec, kind = model.normalizer_spec, model.trainer_spec.model_type
    texts = [
        piece for piece in model.pieces if isinstance(piece.piece, str)
    ]  # others are reported by errors_of
    checks = [
        ("trainer_spec.byte_fallback", model.trainer_spec.byte_fallback, False),
        ("normalizer_spec.remove_extra_whitespaces", spec.remove_extra_whitespaces, True),
        ("unused pieces", sum(piece.type == UNUSED for piece in model.pieces), 0),
        ("pieces of several words", sum(SPACE in piece.piece[1:] for piece in texts), 0),
        (f"pieces {SPACE}", sum(piece.piece == SPACE for piece in model.pieces), 1),
        ("other pieces that a word may contain", sum(_is_in_words(piece) for piece in texts), 0),
    ]
    errors = [*errors_of(model, checks), *normalization_errors(spec)]
    if kind not in _KINDS:
        errors.append(f"trainer_spec.model_type={kind}; allowed: {', '.join(map(str, _KINDS))}")
    if errors:
        raise CheckpointError(f"{path}: {error}" for error in errors)
    with library_errors_as(CheckpointError, path):
        return _built(model), WordSplitter(normalized(spec))


def _built(model: Any) -> Backend:
    backend = Backend(_model(model))
    backend.add_special_tokens([piece.piece for piece in model.pieces if piece.type in (UNKNOWN, CONTROL)])
    written = (decoders.Replace(mark, white) for white, mark in WRITTEN.items())
    backend.decoder = decoders.Sequence([decoders.Replace(SPACE, ""), *written, decoders.Fuse()])
    return backend


def _is_in_words(piece: Any) -> bool:
    """True if a piece that is not NORMAL may occur inside a word, for which SentencePiece has its own rules.

    jieba makes each other character a word.
    """
    return piece.type != NORMAL and len(piece.piece) > 1 and _IN_WORDS.fullmatch(piece.piece) is not None


def _model(model: Any) -> BPE | Unigram:
    ids = {piece.piece: number for number, piece in enumerate(model.pieces)}
    unknown = next(piece.piece for piece in model.pieces if piece.type == UNKNOWN)
    if model.trainer_spec.model_type == UNIGRAM:
        return Unigram(unigram_scores(model), unk_id=ids[unknown], byte_fallback=False)
    scores = {piece.piece: piece.score for piece in model.pieces if piece.type == NORMAL}
    return BPE(ids, merges_of(ids, scores), unk_token=unknown, fuse_unk=True)


class WordSplitter:
    """A pre-tokenizer that divides a text into words and normalises each on its own."""

    def __init__(self, normalization: Iterable[normalizers.Normalizer]) -> None:
        written = (normalizers.Replace(white, mark) for white, mark in WRITTEN.items())
        self._normalizer = normalizers.Sequence([*written, *normalization])

    def pre_tokenize(self, text: PreTokenizedString) -> None:
        """Splits a text into words; `PreTokenizer.custom` of tokenizers calls it."""
        text.split(self._divided)

    def _divided(self, _: int, text: NormalizedString) -> list[NormalizedString]:
        """Divides and normalises; turns a panic of a damaged table into a ValueError."""
        words = _slices(text, [len(word) for word in words_of(str(text))])
        try:
            for word in words:
                self._normalizer.normalize(word)
        except BaseException as error:
            if not is_panic(error):
                raise
            raise ValueError(f"its table of normalization is damaged: {one_line(error)}") from None
        return words


def _slices(text: NormalizedString, lengths: Sequence[int]) -> list[NormalizedString]:
    """Slices a text into parts of these lengths, by halves, because a slice costs time linear in its text."""
    if len(lengths) < 2:
        return [text] if lengths else []
    middle = len(lengths) // 2
    end = sum(lengths[:middle])
    return _slices(text[:end], lengths[:middle]) + _slices(text[end:], lengths[middle:])


def _named_tokens(backend: Backend, settings: Mapping[str, Any]) -> dict[str, str]:
    """Returns bos_token, eos_token... of the settings or the defaults, if the vocabulary has them."""
    named = {name: settings.get(name, default) for name, default in _NAMED.items()}
    texts = ((name, text_of(token)) for name, token in named.items())
    return {
        name: text for name, text in texts if isinstance(text, str) and backend.token_to_id(text) is not None
    }


def _put_around_texts(backend: Backend, named: Mapping[str, str], settings: Mapping[str, Any]) -> None:
    ends = [
        named[f"{end}_token"]
        if settings.get(f"add_{end}_token") is True and f"{end}_token" in named
        else None
        for end in ("bos", "eos")
    ]
    if any(ends):
        single = [token for token in (ends[0], "$A", ends[1]) if token]
        ids = [(token, backend.token_to_id(token)) for token in ends if token]
        backend.post_processor = TemplateProcessing(single=single, special_tokens=ids)
