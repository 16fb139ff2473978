"""Tokenizers whose class does something of its own: texts, streams and chats are as transformers has them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_tokenizers import CHATML, byte_level, sentencepiece_like, tokenizer_of, write_folder
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from mindbatch.prompts.token_bytes import IncrementalDetokenizer
from mindbatch.prompts.tokenizer import Tokenizer

pytestmark = pytest.mark.slow
SPECIAL = "<s> </s> <extra_id_0> <|endoftext|> as text"
TEXTS = [
    "hello world",
    "  two  spaces, a\ttab\nand a line  ",
    "你好，世界。今天天气很好。",
    "Größe, façade, naïve; Привет мир; مرحبا; नमस्ते; こんにちは; 안녕",
    "🙂👩‍👩‍👧 e\u0301 ﬁ \u00a0 end",
    SPECIAL,
    "x",
    "",
]


def unigram() -> Backend:
    """T5's: trained, pieces with ▁, </s> behind a text, tokens for gaps at the end."""
    backend = Backend(models.Unigram())
    backend.normalizer = normalizers.NFKC()
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200,
        special_tokens=["<pad>", "</s>", "<unk>"],
        unk_token="<unk>",
        show_progress=False,
    )
    backend.train_from_iterator(TEXTS[:4], trainer)
    backend.add_special_tokens(["<extra_id_1>", "<extra_id_0>"])
    backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return backend


def without_prefix() -> Backend:
    """Gemma's: byte fallback, and no space put in front."""
    backend = sentencepiece_like()
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return backend


END = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
PIECES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<s>"}
T5 = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>", "extra_ids": 2}
KINDS: dict[str, tuple[str, Callable[[], Backend], dict[str, Any]]] = {
    "t5": ("T5Tokenizer", unigram, T5),
    "gemma": ("GemmaTokenizer", without_prefix, PIECES),
    "gemma without bos": ("GemmaTokenizer", without_prefix, {**PIECES, "add_bos_token": False}),
    "gemma with eos": ("GemmaTokenizer", without_prefix, {**PIECES, "add_eos_token": True}),
    "bloom": ("BloomTokenizer", byte_level, END),
    "gpt_neox": ("GPTNeoXTokenizer", byte_level, END),
    "gpt_neox with both": (
        "GPTNeoXTokenizer",
        byte_level,
        {**END, "add_bos_token": True, "add_eos_token": True},
    ),
    "cohere": ("CohereTokenizer", byte_level, END),
    "cohere with eos": ("CohereTokenizer", byte_level, {**END, "add_eos_token": True}),
    "llama of phi3": ("LlamaTokenizer", sentencepiece_like, {**PIECES, "legacy": False}),
}


@pytest.fixture(params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Tokenizer, Any]:
    """Ours and transformers', of one folder."""
    import transformers

    name, backend, settings = KINDS[request.param]
    common = {"tokenizer_class": name, "clean_up_tokenization_spaces": False, "chat_template": CHATML}
    folder = write_folder(tmp_path, backend(), {**common, **settings})
    ours = tokenizer_of(folder)
    return ours, getattr(transformers, f"{name}Fast").from_pretrained(folder)


@pytest.mark.needs("transformers")
@pytest.mark.parametrize("text", TEXTS)
def test_texts_to_ids_and_back(pair: tuple[Tokenizer, Any], text: str) -> None:
    ours, theirs = pair
    ids = theirs(text)["input_ids"]
    assert ours.encode(text, allow_special=True) == ids
    assert (ours.encode(text) == ids) == (text != SPECIAL)
    for skipped in (True, False):
        expected = theirs.decode(ids, skip_special_tokens=skipped)
        assert ours.decode(ids, skip_special_tokens=skipped) == expected
    detokenizer = IncrementalDetokenizer(ours, [])
    streamed = [detokenizer.push(token) for token in ids]
    assert "".join(streamed) + detokenizer.flush() == theirs.decode(ids, skip_special_tokens=True)


@pytest.mark.needs("transformers")
def test_chats(pair: tuple[Tokenizer, Any]) -> None:
    ours, theirs = pair
    messages = [{"role": "user", "content": text} for text in TEXTS[:3]]
    assert ours.chat_text(messages) == theirs.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    ours.close()
