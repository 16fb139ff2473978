"""Small tokenizers as ChatGLM-6B has one, and what its published class does with them."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import sentencepiece

from mindbatch.prompts.tokenizer import Tokenizer

CORPUS = [
    "hello world, the user and the system are here; it isn't far",
    "你好,世界。今天天气很好,我们去公园吧。",
    "Größe, naïve café, Ångström, señor, ça va très bien",
    "12+30=42, 1000000, 3.14159 [Round 0] 问: 答:",
    "Привет, мир! Как дела сегодня?",
    "Tiếng Việt có dấu, 한국어 문장, 日本語の文章です",
]
COMMANDS = ["[MASK]", "[gMASK]", "[sMASK]", "<unused_0>", "<sop>", "<eop>", "<ENC>", "<dBLOCK>"]
BLANKS = {" " * count: f"<|blank_{count}|>" for count in range(80, 1, -1)}


def trained(texts: Iterable[str], **settings: Any) -> bytes:
    """A sentencepiece model of the texts."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=written,
        hard_vocab_limit=False,
        minloglevel=2,
        **settings,
    )
    return written.getvalue()


@cache
def model_file(**changes: Any) -> bytes:
    """A unigram model as ChatGLM-6B's is, but for its size."""
    settings = {
        "vocab_size": 620,
        "model_type": "unigram",
        "byte_fallback": True,
        "normalization_rule_name": "nmt_nfkc",
        "control_symbols": COMMANDS,
        "user_defined_symbols": ["<n>", "<|tab|>", *BLANKS.values()],
        "pad_id": 3,
        "character_coverage": 0.99,
    }
    return trained(CORPUS * 20, **settings | changes)


class Published:
    """What the published class does with a sentencepiece model."""

    def __init__(self, data: bytes, images: int) -> None:
        self.pieces = sentencepiece.SentencePieceProcessor(model_proto=data)
        self.images = images

    def number(self, piece: str) -> int:
        return int(self.pieces.piece_to_id(piece)) + self.images

    def encode(self, text: str) -> list[int]:
        text = text.replace("\n", "<n>").replace("\t", "<|tab|>")
        for blank, piece in BLANKS.items():
            text = text.replace(blank, piece)
        return [number + self.images for number in self.pieces.encode(text)]

    def decode(self, ids: Sequence[int]) -> str:
        text = str(self.pieces.decode([each - self.images for each in ids if each >= self.images]))
        text = text.replace("<n>", "\n").replace("<|tab|>", "\t")
        for blank, piece in BLANKS.items():
            text = text.replace(piece, blank)
        return text


def write(folder: Path, data: bytes, *, name: str = "ice_text.model", **settings: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(data)
    own = {"tokenizer_class": "ChatGLMTokenizer", "auto_map": {"AutoTokenizer": ["x.Y", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(own | settings))
    return folder


def loaded(folder: Path) -> Tokenizer:
    found = Tokenizer.load(folder)
    assert found is not None
    return found
