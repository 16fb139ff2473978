"""Tokenizers that are all in their tokenizer.json: read without transformers, which takes a second to import.

What transformers 4.57 would add to the file or change in it is known for a few of its classes and settings;
where there is anything else, it is asked itself.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from mindbatch.checkpoint.folders.folder_files import has_file
from mindbatch.prompts.token_bytes import LoadedTokenizer, kept
from mindbatch.prompts.tokenizer_folder import SETTINGS, TOKENIZER, checked_copy

_TEMPLATE = "chat_template.jinja"
_BYTE_PAIRS = ("vocab.json", "merges.txt", TOKENIZER)
_END = "<|endoftext|>"
# By class, without the suffix Fast: the files that transformers opens, and its tokens where none are given.
_CLASSES: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "PreTrainedTokenizer": ((TOKENIZER,), {}),
    "GPT2Tokenizer": (_BYTE_PAIRS, dict.fromkeys(("unk_token", "bos_token", "eos_token"), _END)),
    "Qwen2Tokenizer": (_BYTE_PAIRS, dict.fromkeys(("unk_token", "eos_token", "pad_token"), _END)),
}
_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_SEVERAL = "additional_special_tokens"
_WITHOUT_EFFECT = {"add_bos_token", "clean_up_tokenization_spaces", "errors", "model_max_length"}
_ALLOWED = {
    *_TOKENS,
    *_WITHOUT_EFFECT,
    _SEVERAL,
    "add_prefix_space",
    "added_tokens_decoder",
    "chat_template",
    "split_special_tokens",
    "tokenizer_class",
}
# Files that add to the settings, or replace them.
_FURTHER = ("added_tokens.json", "special_tokens_map.json", "additional_chat_templates")


def load_plain(folder: Path, settings: Mapping[str, Any]) -> LoadedTokenizer | None:
    """The folder's tokenizer as transformers would load it; None: only transformers knows how.

    settings: of tokenizer_config.json.

    Raises:
        CheckpointError: files that are links out of the folder, pipes, too large or damaged.
    """
    name = settings.get("tokenizer_class")
    known = _CLASSES.get(name.removesuffix("Fast")) if isinstance(name, str) else None
    if known is None or not has_file(folder, TOKENIZER) or any((folder / name).exists() for name in _FURTHER):
        return None
    files, defaults = known
    with checked_copy(folder, files) as copy:
        checked = json.loads((copy / SETTINGS).read_bytes())
        template = checked.get("chat_template")
        if (copy / _TEMPLATE).exists():
            template = (copy / _TEMPLATE).read_text(encoding="utf-8")
        backend = _read(copy / TOKENIZER)
    if backend is None or not checked.keys() <= _ALLOWED or not isinstance(template, str | None):
        return None
    named = _named_tokens(defaults | checked)
    if named is None or not _is_complete(backend, checked, named):
        return None
    return kept(backend, named, template, folder)


def _read(path: Path) -> Backend | None:
    """None for a damaged file: transformers says what is wrong with it."""
    try:
        return Backend.from_file(str(path))
    except Exception:  # tokenizers raises nothing more special
        return None


def _named_tokens(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """The texts of the tokens that have a name; None where one is no token."""
    named: dict[str, Any] = {}
    for name in _TOKENS:
        if settings.get(name) is not None:
            named[name] = _text(settings[name])
    several = settings.get(_SEVERAL) or []
    if not isinstance(several, list):
        return None
    if several:
        named[_SEVERAL] = [_text(token) for token in several]
    return named if all([*map(named.get, named.keys() - {_SEVERAL}), *named.get(_SEVERAL, [])]) else None


def _text(token: Any) -> str | None:
    """The text of a token that is a string, or one with its flags."""
    if isinstance(token, dict) and token.get("__type") == "AddedToken":
        token = token.get("content")
    return token if isinstance(token, str) else None


def _is_complete(backend: Backend, settings: Mapping[str, Any], named: Mapping[str, Any]) -> bool:
    """True if the file has everything that the settings say, so that nothing is added to it."""
    added = backend.get_added_tokens_decoder()
    special = {token.content for token in added.values() if token.special}
    single = {text for name, text in named.items() if name != _SEVERAL}
    if backend.padding is not None or not special.issuperset(single | {*named.get(_SEVERAL, ())}):
        return False
    prefix = settings.get("add_prefix_space", False)
    written = _pre_tokenizer(backend).get("add_prefix_space", prefix)
    return written == prefix and _has_added(settings.get("added_tokens_decoder", {}), added)


def _pre_tokenizer(backend: Backend) -> dict[str, Any]:
    if backend.pre_tokenizer is None:
        return {}
    try:
        state: dict[str, Any] = json.loads(backend.pre_tokenizer.__getstate__())
    except Exception:  # as transformers: one that cannot be written down has nothing to change
        return {}
    return state


def _has_added(listed: Any, added: Mapping[int, AddedToken]) -> bool:
    """True if all tokens that are listed by number are in the file, with the same flags."""
    try:
        tokens = {int(number): AddedToken(**token) for number, token in listed.items()}
    except (AttributeError, TypeError, ValueError):
        return False
    return all(number in added and repr(added[number]) == repr(token) for number, token in tokens.items())
