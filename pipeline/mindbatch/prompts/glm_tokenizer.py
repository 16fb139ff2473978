"""The tokenizers of ChatGLM2, ChatGLM3 and the first GLM-4, whose folders have code for them: it is not run.

Source: the behaviour of tokenization_chatglm.py in the published folders.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from tokenizers.processors import TemplateProcessing

from mindbatch.checkpoint.folders.folder_files import CONFIG_NAME, has_file
from mindbatch.io.errors import CheckpointError
from mindbatch.prompts.glm_chats import CHATGLM2
from mindbatch.prompts.loaded_tokenizer import LoadedTokenizer, kept
from mindbatch.prompts.sentencepiece_file import sentencepiece_backend
from mindbatch.prompts.tiktoken_file import tiktoken_backend
from mindbatch.prompts.tokenizer_folder import SETTINGS, checked_copy, read_json_file

VOCABULARY = "tokenizer.model"
SENTENCEPIECE, TIKTOKEN = "ChatGLMTokenizer", "ChatGLM4Tokenizer"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")  # of ChatGLM3, unused in ChatGLM2
COMMANDS = ("[MASK]", "[gMASK]", "[sMASK]", "sop", "eop", *ROLES)
"""Behind the pieces of a sentencepiece model."""
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How GLM-4 parts a text."""


def load_glm(folder: Path, settings: Mapping[str, Any]) -> LoadedTokenizer | None:
    """The folder's tokenizer; None where its settings name neither class, or it has no tokenizer.model.

    Raises:
        CheckpointError: a damaged file, or one of another kind of tokenizer.
    """
    name = settings.get("tokenizer_class")
    if name not in (SENTENCEPIECE, TIKTOKEN) or not has_file(folder, VOCABULARY):
        return None
    with checked_copy(folder, [VOCABULARY]) as copy:
        data = (copy / VOCABULARY).read_bytes()
        checked = json.loads((copy / SETTINGS).read_bytes())
    path = folder / VOCABULARY
    if name == SENTENCEPIECE:
        backend = sentencepiece_backend(data, path)
        backend.add_special_tokens(list(COMMANDS))
        start, named = ("[gMASK]", "sop"), {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    else:
        backend = tiktoken_backend(data, path, PATTERN)
        _add_listed(backend, checked.get("added_tokens_decoder"), folder)
        start, named = ("[gMASK]", "<sop>"), {"eos_token": "<|endoftext|>"}
    _put_before_texts(backend, start, path)
    return kept(backend, named, checked.get("chat_template") or _own_form(folder), folder)


def _own_form(folder: Path) -> str | None:
    """ChatGLM2's form of chats, where config.json says that it is one: ChatGLM3 has the same class."""
    name = read_json_file(folder, CONFIG_NAME).get("_name_or_path")
    return CHATGLM2 if isinstance(name, str) and "chatglm2" in name.lower() else None


def _add_listed(backend: Backend, listed: Any, folder: Path) -> None:
    """Adds the tokens that the settings list by number; they must follow the file's own."""
    try:
        numbers = sorted(map(int, listed))
        tokens = [AddedToken(**listed[str(number)]) for number in numbers]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{folder / SETTINGS}: added_tokens_decoder must have a token with its flags for each number"
        ) from error
    first = backend.get_vocab_size()
    if numbers != [*range(first, first + len(numbers))]:
        raise CheckpointError(
            f"{folder / SETTINGS}: added_tokens_decoder has {len(numbers)} tokens from {numbers[:1]} on; "
            f"must be the numbers behind those of {VOCABULARY}, from {first} on, without a gap"
        )
    backend.add_tokens(tokens)


def _put_before_texts(backend: Backend, start: tuple[str, str], path: Path) -> None:
    ids = [(token, backend.token_to_id(token)) for token in start]
    if missing := [token for token, number in ids if number is None]:
        raise CheckpointError(f"{path}: no token {' and '.join(missing)}, with which every text begins")
    backend.post_processor = TemplateProcessing(single=[*start, "$A"], special_tokens=ids)
