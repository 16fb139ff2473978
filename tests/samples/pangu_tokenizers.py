"""Small tokenizers as PanGu-alpha has one, and what its published class does with them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jieba
import sentencepiece

import ice_tokenizers

jieba.setLogLevel(logging.WARNING)
WRITTEN = str.maketrans(" \n", "\u2582\u2583")
CLASS = "GPTPanguTokenizer"


def prepared(text: str) -> str:
    """Words with a space between them, as the published class gives them to sentencepiece."""
    return " ".join(word.translate(WRITTEN) for word in jieba.cut(text))


@cache
def model_file(model_type: str = "bpe", **changes: Any) -> bytes:
    """A model as PanGu-alpha's is, but for its size."""
    settings = {
        "vocab_size": 420,
        "model_type": model_type,
        "control_symbols": "<pad>,<eot>",
        "user_defined_symbols": "\u2582,\u2583",
        "character_coverage": 0.98,
    }
    return ice_tokenizers.trained(map(prepared, ice_tokenizers.CORPUS * 20), **settings | changes)


class Published:
    """What the published class does with a sentencepiece model."""

    def __init__(self, data: bytes) -> None:
        self.pieces = sentencepiece.SentencePieceProcessor(model_proto=data)

    def encode(self, text: str) -> list[int]:
        return list(self.pieces.encode(prepared(text)))

    def decode(self, ids: Sequence[int]) -> str:
        text = str(self.pieces.decode([*ids])).replace(" ", "")
        return text.replace("\u2582", " ").replace("\u2583", "\n")


def write(folder: Path, data: bytes, **settings: Any) -> Path:
    return ice_tokenizers.write(folder, data, name="vocab.model", **{"tokenizer_class": CLASS} | settings)
