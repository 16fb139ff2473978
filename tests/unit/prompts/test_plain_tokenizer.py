"""Tokenizers that are read without transformers are what it makes of the same folder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from small_tokenizers import CHATML, byte_level, write_folder
from tokenizers import AddedToken

from mindbatch.prompts import tokenizer_files
from mindbatch.prompts.token_bytes import LoadedTokenizer
from mindbatch.prompts.tokenizer_files import load_plain

ROOT = Path(__file__).parents[3]
END = "<|endoftext|>"
SPECIAL = [END, "<|im_start|>", "<|im_end|>"]
END_FLAGS = {"content": END, "lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
GPT2 = {"tokenizer_class": "GPT2TokenizerFast"}
QWEN2 = {"tokenizer_class": "Qwen2Tokenizer"}
ANY = {"tokenizer_class": "PreTrainedTokenizerFast"}

PLAIN: dict[str, dict[str, Any]] = {
    "gpt2": {**GPT2, "bos_token": "<|im_start|>", "model_max_length": 2048, "errors": "replace"},
    "gpt2 without its defaults": {**GPT2, "bos_token": None, "unk_token": None},
    "qwen2": {**QWEN2, "eos_token": "<|im_end|>", "chat_template": CHATML, "add_bos_token": False},
    "qwen2 with tokens": {
        **QWEN2,
        "additional_special_tokens": ["<|im_start|>", {"__type": "AddedToken", "content": "<|im_end|>"}],
        "added_tokens_decoder": {"0": {**END_FLAGS, "special": True}},
        "pad_token": {"__type": "AddedToken", **END_FLAGS},
        "split_special_tokens": False,
    },
    "any": {**ANY, "unk_token": END, "clean_up_tokenization_spaces": True},
    "abstract": {"tokenizer_class": "PreTrainedTokenizer"},
}
OTHERS: dict[str, dict[str, Any]] = {
    "no class": {"eos_token": END},
    "another class": {"tokenizer_class": "LlamaTokenizer"},
    "a space in front": {**GPT2, "add_prefix_space": True},
    "a token that is not in the file": {**ANY, "pad_token": "<pad>"},
    "one of several": {**ANY, "additional_special_tokens": ["<|im_end|>", "<pad>"]},
    "a token with other flags": {
        **QWEN2,
        "added_tokens_decoder": {"0": {**END_FLAGS, "special": True, "lstrip": True}},
    },
    "a further token": {**QWEN2, "added_tokens_decoder": {"400": {"content": "<new>"}}},
    "named besides": {**ANY, "extra_special_tokens": {"image_token": END}},
    "several templates": {**ANY, "chat_template": [{"name": "default", "template": CHATML}]},
    "padding": {**ANY, "padding_side": "left"},
}


def content(found: LoadedTokenizer | None) -> tuple[Any, ...]:
    assert found is not None
    ids = found.bos_token_id, found.eos_token_id, found.unk_token_id
    return json.loads(found.backend.to_str()), ids, found.named_tokens, found.templates


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path, byte_level(SPECIAL), None)


@pytest.mark.parametrize("settings", PLAIN.values(), ids=PLAIN)
def test_it_is_what_transformers_loads(
    folder: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder(folder, None, settings)
    plain = content(load_plain(folder, settings))
    monkeypatch.setattr(tokenizer_files, "load_plain", lambda *given: None)
    assert plain == content(tokenizer_files.load_tokenizer_files(folder))


@pytest.mark.parametrize("settings", OTHERS.values(), ids=OTHERS)
def test_what_transformers_would_change_is_left_to_it(folder: Path, settings: dict[str, Any]) -> None:
    write_folder(folder, None, settings)
    assert load_plain(folder, settings) is None


@pytest.mark.parametrize("name", ["added_tokens.json", "special_tokens_map.json"])
def test_further_files_are_left_to_it(folder: Path, name: str) -> None:
    write_folder(folder, None, GPT2)
    assert load_plain(folder, GPT2) is not None
    (folder / name).write_text("{}")
    assert load_plain(folder, GPT2) is None


def test_a_tokenizer_that_pads_and_a_damaged_one_are_left_to_it(tmp_path: Path) -> None:
    backend = byte_level(SPECIAL)
    backend.enable_padding(pad_token=END)
    write_folder(tmp_path, backend, ANY)
    assert load_plain(tmp_path, ANY) is None
    (tmp_path / "tokenizer.json").write_text("{}")
    assert load_plain(tmp_path, ANY) is None


def test_an_ordinary_token_of_that_text_is_not_enough(tmp_path: Path) -> None:
    backend = byte_level(SPECIAL)
    backend.add_tokens([AddedToken("<pad>", special=False)])
    write_folder(tmp_path, backend, {**ANY, "pad_token": "<pad>"})
    assert load_plain(tmp_path, {**ANY, "pad_token": "<pad>"}) is None


def test_the_template_of_a_file_comes_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {**GPT2, "chat_template": "other"}
    write_folder(folder, None, settings)
    (folder / "chat_template.jinja").write_bytes(CHATML.encode() + b"\r\n\xc3\xa9")
    plain = content(load_plain(folder, settings))
    monkeypatch.setattr(tokenizer_files, "load_plain", lambda *given: None)
    assert plain == content(tokenizer_files.load_tokenizer_files(folder))


def test_the_shipped_model_needs_neither_transformers_nor_mindspore() -> None:
    """Importing them takes longer than all else that a small model waits for."""
    program = (
        "import sys; from mindbatch import LLM; "
        f"text = LLM({str(ROOT / 'examples/tiny_gpt2')!r}).generate(['one, two,'], max_new_tokens=2); "
        "print({'transformers', 'mindspore', 'torch', 'scipy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout == "set()\n", done.stderr
