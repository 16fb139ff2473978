"""Loads a model folder's tokenizer from tokenizer.json alone, or as transformers does, offline."""

import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from tokenizers.processors import TemplateProcessing

from mindbatch.checkpoint.folders.folder_files import CONFIG_NAME, has_file
from mindbatch.io.errors import CheckpointError, is_panic
from mindbatch.io.installation import is_installed, missing
from mindbatch.prompts.token_bytes import LoadedTokenizer, kept
from mindbatch.prompts.tokenizer_folder import (
    SETTINGS,
    TOKENIZER,
    checked_copy,
    checked_files,
    drop_unknown_flags,
    one_line,
    read_json_file,
    read_settings,
    refuse_damaged,
)
from mindbatch.prompts.tokenizer_rules import entry_errors

_TEMPLATE = "chat_template.jinja"
_BYTE_PAIRS = ("vocab.json", "merges.txt", TOKENIZER)
_SENTENCEPIECE = ("tokenizer.model", TOKENIZER)
_END = "<|endoftext|>"
# By class without the suffix Fast: the files that transformers opens, and its default tokens.
_CLASSES: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "PreTrainedTokenizer": ((TOKENIZER,), {}),
    "GPT2Tokenizer": (_BYTE_PAIRS, dict.fromkeys(("unk_token", "bos_token", "eos_token"), _END)),
    "Qwen2Tokenizer": (_BYTE_PAIRS, dict.fromkeys(("unk_token", "eos_token", "pad_token"), _END)),
    "LlamaTokenizer": (_SENTENCEPIECE, {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}),
    "GemmaTokenizer": (
        _SENTENCEPIECE,
        {"unk_token": "<unk>", "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"},
    ),
}
# Those that put their own tokens around a text, whatever tokenizer.json says, and what they read for it.
_SURROUNDING = {"LlamaTokenizer", "GemmaTokenizer"}
_SURROUNDING_DEFAULTS = {"add_bos_token": True, "add_eos_token": False}
_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_SEVERAL = "additional_special_tokens"
_WITHOUT_EFFECT = {
    "add_bos_token",
    "add_eos_token",
    "clean_up_tokenization_spaces",
    "errors",
    "legacy",
    "model_input_names",
    "model_max_length",
    "padding_side",
    "sp_model_kwargs",
    "spaces_between_special_tokens",
    "truncation_side",
    "use_default_system_prompt",
}
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
# Files that extend or replace the settings; the first two are read where the settings list no tokens by id.
_LISTS_OF_TOKENS = ("added_tokens.json", "special_tokens_map.json")
_TEMPLATES = "additional_chat_templates"


def load_plain(folder: Path, settings: Mapping[str, Any]) -> LoadedTokenizer | None:
    """Loads the folder's tokenizer as transformers would; returns None if only transformers can load it.

    settings: the content of tokenizer_config.json.

    Raises:
        CheckpointError: a file is a link out of the folder, a pipe, too large or damaged.
    """
    name = str(settings.get("tokenizer_class")).removesuffix("Fast")
    known = _CLASSES.get(name)
    further = (_TEMPLATES,) if "added_tokens_decoder" in settings else (_TEMPLATES, *_LISTS_OF_TOKENS)
    if known is None or not has_file(folder, TOKENIZER) or any((folder / file).exists() for file in further):
        return None
    names, defaults = known
    files = checked_files(folder, names)
    checked = json.loads(files[SETTINGS])
    template = _by_name(checked.get("chat_template"))
    if _TEMPLATE in files:
        template = StringIO(files[_TEMPLATE].decode(), newline=None).read()
    backend = _read(files[TOKENIZER])
    if backend is None or not checked.keys() <= _ALLOWED or not isinstance(template, str | dict | None):
        return None
    named = _named_tokens(defaults | checked)
    if named is None or not _is_complete(backend, checked, named):
        return None
    if name in _SURROUNDING and not _surround(backend, _SURROUNDING_DEFAULTS | checked, named):
        return None
    return kept(backend, named, template, folder)


def _read(data: bytes) -> Backend | None:
    """Reads tokenizer.json; returns None if it is damaged, for transformers to report the error."""
    try:
        return Backend.from_buffer(data)
    except BaseException as error:  # tokenizers raises nothing more special
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        return None


def _by_name(templates: Any) -> Any:
    """Returns a list of named templates as a dictionary; anything else as it is."""
    if not isinstance(templates, list) or not all(isinstance(entry, dict) for entry in templates):
        return templates
    named = {entry.get("name"): entry.get("template") for entry in templates}
    return named if all(isinstance(text, str) for pair in named.items() for text in pair) else templates


def _named_tokens(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the texts of the named tokens; None if one of them is not a token."""
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
    if isinstance(token, dict) and token.get("__type") == "AddedToken":
        token = token.get("content")
    return token if isinstance(token, str) else None


def _is_complete(backend: Backend, settings: Mapping[str, Any], named: Mapping[str, Any]) -> bool:
    """True if tokenizer.json has all tokens and flags of the settings."""
    added = backend.get_added_tokens_decoder()
    special = {token.content for token in added.values() if token.special}
    single = {text for name, text in named.items() if name != _SEVERAL}
    if backend.padding is not None or not special.issuperset(single | {*named.get(_SEVERAL, ())}):
        return False
    prefix = settings.get("add_prefix_space", False)
    written = _pre_tokenizer(backend).get("add_prefix_space", prefix)
    return written == prefix and _has_added(settings.get("added_tokens_decoder", {}), added)


def _surround(backend: Backend, settings: Mapping[str, Any], named: Mapping[str, Any]) -> bool:
    """Sets what is put around a text as the settings say; returns False if they cannot be followed."""
    chosen = (settings["add_bos_token"], "bos_token"), (settings["add_eos_token"], "eos_token")
    if settings.get("add_prefix_space") is not None or any(
        not isinstance(is_added, bool) or (is_added and name not in named) for is_added, name in chosen
    ):
        return False
    before, after = ([named[name]] if is_added else [] for is_added, name in chosen)
    first, second = ([f"{token}:{number}" for token in before] for number in (0, 1))
    single = [*first, "$A:0", *(f"{token}:0" for token in after)]
    backend.post_processor = TemplateProcessing(
        single=single,
        pair=[*single, *second, "$B:1", *(f"{token}:1" for token in after)],
        special_tokens=[(token, backend.token_to_id(token)) for token in (*before, *after)],
    )
    return True


def _pre_tokenizer(backend: Backend) -> dict[str, Any]:
    if backend.pre_tokenizer is None:
        return {}
    try:
        state: dict[str, Any] = json.loads(backend.pre_tokenizer.__getstate__())
    except Exception:  # as in transformers: one that cannot be serialised is left unchanged
        return {}
    return state


def _has_added(listed: Any, added: Mapping[int, AddedToken]) -> bool:
    """True if all tokens that the settings list by id are in the file with the same flags."""
    try:
        tokens = {int(number): AddedToken(**token) for number, token in listed.items()}
    except (AttributeError, TypeError, ValueError):
        return False
    return all(number in added and repr(added[number]) == repr(token) for number, token in tokens.items())


# The class by vocabulary file, for a folder that names neither class nor model type.
_CLASS_OF_FILE = {
    TOKENIZER: "PreTrainedTokenizerFast",
    "merges.txt": "GPT2TokenizerFast",
    "tokenizer.model": "LlamaTokenizerFast",
}
_OTHER_VOCABULARIES = (
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "ice_text.model",
    "vocab.model",
)


def load_tokenizer_files(folder: Path) -> LoadedTokenizer | None:
    """Loads the folder's tokenizer; returns None if it has no tokenizer file.

    Code in the folder (`auto_map`, *.py) is never executed, and nothing is fetched from a network.

    Raises:
        CheckpointError: a file is damaged, or the tokenizer needs the folder's own code.
    """
    present = [name for name in (*_CLASS_OF_FILE, *_OTHER_VOCABULARIES) if has_file(folder, name)]
    if not present and not has_file(folder, SETTINGS):
        return None
    settings, model = read_settings(folder), read_json_file(folder, CONFIG_NAME)
    if (loaded := load_plain(folder, settings)) is not None:
        return loaded
    from mindbatch.prompts.glm_tokenizer import (
        load_glm,  # not imported for the usual complete tokenizer.json
        load_ice,
    )
    from mindbatch.prompts.pangu_tokenizer import load_pangu

    for load in (load_glm, load_ice, load_pangu):
        if (loaded := load(folder, settings)) is not None:
            return loaded
    refuse_damaged(folder, TOKENIZER)  # before transformers is imported, which takes a second
    with _quiet():
        tokenizer = _load(folder, settings, model, present)
        if errors := entry_errors(tokenizer.get_vocab()):
            raise CheckpointError(f"{folder}: {error}" for error in errors)
        named = tokenizer.special_tokens_map
        return kept(tokenizer.backend_tokenizer, named, tokenizer.chat_template, folder)


def _load(folder: Path, settings: dict[str, Any], model: dict[str, Any], present: list[str]) -> Any:
    named = settings.get("tokenizer_class") or model.get("tokenizer_class")
    remote = _remote_class(settings) or _remote_class(model)
    if not present and remote is None:
        raise CheckpointError(
            f"{folder / SETTINGS}: no vocabulary in the folder; must have one of {', '.join(_CLASS_OF_FILE)}"
        )
    if not is_installed("transformers"):
        of_class = "" if named is None else f" (tokenizer_class={named})"
        raise CheckpointError(
            f"{folder}: the tokenizer{of_class} needs transformers; {missing('transformers')}"
        )
    cls = _named_class(named)
    if cls is not None:
        return _instance(cls, folder)
    guess = _class_of_model_type(model.get("model_type"))
    if remote is not None and (guess is None or not present):
        raise CheckpointError(
            f"{folder}: the tokenizer class {remote} exists only as code (auto_map), which is never run; "
            f"must be a class of transformers"
        )
    known = next((_named_class(_CLASS_OF_FILE[name]) for name in present if name in _CLASS_OF_FILE), None)
    if named is not None and TOKENIZER not in present:
        raise CheckpointError(
            f"{folder}: the tokenizer class {named} is not known to transformers or has no fast form"
        )
    if guess is None and known is None:
        raise CheckpointError(
            f"{folder}: {', '.join(present)} alone does not determine the tokenizer's class"
        )
    return _guessed(guess, known, folder, present)


def _guessed(guess: Any, known: Any, folder: Path, present: list[str]) -> Any:
    """Loads the class guessed from the model type, unless it adds tokens to a complete tokenizer.json, whose
    ids would be outside the model's vocabulary."""
    tokenizer = _instance(guess or known, folder)
    if guess is None or TOKENIZER not in present:
        return tokenizer
    unchanged = _instance(known, folder)
    return unchanged if len(tokenizer) > len(unchanged) else tokenizer


def _instance(cls: Any, folder: Path) -> Any:
    with checked_copy(folder, {*cls.vocab_files_names.values(), TOKENIZER}) as copy:
        drop_unknown_flags(copy / TOKENIZER)
        try:
            return cls.from_pretrained(str(copy), local_files_only=True, trust_remote_code=False)
        except (
            BaseException
        ) as error:  # transformers, tokenizers and SentencePiece raise many types for a damaged file
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            reason = one_line(error).replace(str(copy), str(folder))
            path = folder / TOKENIZER if is_panic(error) and has_file(folder, TOKENIZER) else folder
            raise CheckpointError(
                f"{path}: the tokenizer cannot be loaded as {cls.__name__}: {reason}"
            ) from error


def _named_class(name: object) -> Any:
    """Returns transformers' fast class of this name, with or without the suffix, or None."""
    from transformers import PreTrainedTokenizerFast
    from transformers.models.auto.tokenization_auto import tokenizer_class_from_name

    if not isinstance(name, str):
        return None
    tokenizer_class = tokenizer_class_from_name(f"{name.removesuffix('Fast')}Fast")
    is_tokenizer = isinstance(tokenizer_class, type) and issubclass(tokenizer_class, PreTrainedTokenizerFast)
    return tokenizer_class if is_tokenizer else None


def _class_of_model_type(model_type: object) -> Any:
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

    names = TOKENIZER_MAPPING_NAMES.get(model_type) if isinstance(model_type, str) else None
    return _named_class(names[1]) if names else None


def _remote_class(config: Mapping[str, Any]) -> str | None:
    """Returns the tokenizer that `auto_map` names, or None; in older files `auto_map` is a list."""
    entry = config.get("auto_map")
    if isinstance(entry, Mapping):
        entry = entry.get("AutoTokenizer")
    if isinstance(entry, list):
        entry = next((name for name in entry if name), None)
    return str(entry) if entry else None


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppresses transformers' warnings (no torch found, legacy behaviour...) during a load."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
