"""Checks the files of a model folder's tokenizer, and copies them for transformers.

transformers reads file names and addresses from tokenizer_config.json and special_tokens_map.json. So it gets
a temporary folder with the checked files only, and with known settings only.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mindbatch.checkpoint.error_lines import collecting, raise_if_any
from mindbatch.checkpoint.folders.folder_files import file_in, file_names, has_file
from mindbatch.checkpoint.json_object import read_bounded
from mindbatch.io.errors import CheckpointError, MindBatchError, is_panic
from mindbatch.io.storage import TemporaryFolder
from mindbatch.io.strict_json import parts_error
from mindbatch.prompts.prompt_lines import utf8_error
from mindbatch.prompts.sentencepiece_file import refuse_false_charsmaps
from mindbatch.prompts.tokenizer_probe import refuse_costly
from mindbatch.prompts.tokenizer_rules import token_errors

SETTINGS = "tokenizer_config.json"
TOKENIZER = "tokenizer.json"
_SPECIAL = "special_tokens_map.json"
_ADDED = "added_tokens.json"
_TEMPLATE = "chat_template.jinja"
_TEMPLATES = "additional_chat_templates"
_MAX_SETTINGS_BYTES = 32 << 20  # tens of thousands of added tokens, each with its flags
_MAX_TEMPLATE_BYTES = 1 << 20
_MAX_TEMPLATES = 100
_MAX_VOCABULARY_BYTES = 256 << 20  # a million tokens with their merges

# Arguments of transformers 4.57's fast classes, except file names and arguments built from other objects.
# fmt: off
_TOKENS = frozenset({
    "additional_special_tokens", "bos_token", "cls_token", "eos_token", "eot_token", "extra_special_tokens",
    "fill_token", "mask_token", "mask_token_sent", "middle_token", "pad_token", "prefix_token",
    "question_token", "sep_token", "suffix_token", "unk_token",
})
_KNOWN = _TOKENS | {
    "add_bos_token", "add_eos_token", "add_prefix_space", "added_tokens_decoder", "chat_template",
    "clean_text", "clean_up_tokenization_spaces", "do_lower_case", "errors", "extra_ids", "keep_accents",
    "language", "legacy", "legacy_behaviour", "max_len", "model_input_names", "model_max_length",
    "never_split", "offset", "padding_side", "predict_timestamps", "remove_space", "return_token_type_ids",
    "spaces_between_special_tokens", "split_by_punct", "split_special_tokens", "src_lang", "strip_accents",
    "task", "tgt_lang", "tokenize_chinese_chars", "tokenizer_class", "trim_offsets", "truncation_side",
    "use_default_system_prompt", "wordpieces_prefix",
}
# fmt: on
_BY_NAME = frozenset({"added_tokens_decoder", "extra_special_tokens"})
_FLAGS = frozenset({"__type", "content", "lstrip", "normalized", "rstrip", "single_word", "special"})


def read_json_file(folder: Path, name: str) -> dict[str, Any]:
    """Reads a JSON object from a file of the folder, {} if it does not exist. Raises CheckpointError."""
    if not has_file(folder, name):
        return {}
    path, data = folder / name, read_bounded(file_in(folder, name), _MAX_SETTINGS_BYTES)
    if error := parts_error(data):
        raise CheckpointError(f"{path}: {error}")
    return _object_in(data, path)


def read_settings(folder: Path) -> dict[str, Any]:
    """Reads tokenizer_config.json in the form of transformers 4; raises as `read_json_file`.

    Since transformers 5.0, additional special tokens have another key, and tokenizer.json has all behaviour
    of a class.
    """
    settings = read_json_file(folder, SETTINGS)
    if isinstance(further := settings.get("extra_special_tokens"), list):
        del settings["extra_special_tokens"]
        plain = _plain_tokens(folder) if further else set()
        further = [token for token in further if text_of(token) not in plain]
        settings["additional_special_tokens"] = [*(settings.get("additional_special_tokens") or ()), *further]
    if settings.get("backend") == "tokenizers" and has_file(folder, TOKENIZER):
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    return settings


def _plain_tokens(folder: Path) -> set[str]:
    """Returns the texts of added tokens that tokenizer.json, which overrides the settings, has as plain."""
    if not has_file(folder, TOKENIZER):
        return set()
    content = _object_in(read_bounded(file_in(folder, TOKENIZER), _MAX_VOCABULARY_BYTES), folder / TOKENIZER)
    added = content.get("added_tokens")
    entries = [entry for entry in added if isinstance(entry, dict)] if isinstance(added, list) else []
    return {str(entry.get("content")) for entry in entries if entry.get("special") is False}


def text_of(token: Any) -> Any:
    return token.get("content") if isinstance(token, dict) else token


def refuse_damaged(folder: Path, name: str) -> None:
    """Raises CheckpointError if a vocabulary in JSON is malformed or not a complete tokenizer."""
    if not has_file(folder, name):
        return
    data = read_bounded(file_in(folder, name), _MAX_VOCABULARY_BYTES)
    if parts_error(data) is None and not isinstance(_object_in(data, folder / name).get("model"), dict):
        raise CheckpointError(f"{folder / name}: has no object 'model'; must be a complete tokenizer")


def _object_in(data: bytes, path: Path) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not readable as JSON: {one_line(error)}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: found {type(value).__name__}; must be a JSON object")
    return value


def checked_files(folder: Path, vocabulary: Iterable[str]) -> dict[str, bytes]:
    """Returns the content of the tokenizer's files by name; settings have known keys only.

    vocabulary: the file names of the tokenizer's class, some of which may not exist.

    Raises:
        CheckpointError: lists the files that are links out of the folder, pipes, too large or damaged.
    """
    errors: list[str] = []
    contents: dict[str, bytes] = {}
    for name in vocabulary:
        if has_file(folder, name):
            with collecting(errors):
                contents[name] = read_bounded(file_in(folder, name), _MAX_VOCABULARY_BYTES)
                refuse_false_charsmaps(contents[name], folder / name)
                if name == TOKENIZER:
                    refuse_costly(contents[name], folder / name)
    for name, known in ((SETTINGS, _KNOWN), (_SPECIAL, _TOKENS), (_ADDED, None)):
        with collecting(errors):
            if has_file(folder, name):
                content = read_settings(folder) if name == SETTINGS else read_json_file(folder, name)
                contents[name] = _encoded(content, known, folder / name)
    for name in _template_names(folder):
        with collecting(errors):
            contents[name] = read_bounded(file_in(folder, name), _MAX_TEMPLATE_BYTES)
            _refuse_other_text(contents[name], folder / name)
    raise_if_any(errors)
    return contents


@contextmanager
def checked_copy(folder: Path, vocabulary: Iterable[str]) -> Iterator[Path]:
    """Writes `checked_files` to a temporary folder for transformers, until the block ends."""
    with TemporaryFolder() as copy:
        for name, data in checked_files(folder, vocabulary).items():
            path = copy / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
        yield copy


def _refuse_other_text(template: bytes, path: Path) -> None:
    try:
        template.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: {utf8_error(error)}") from error


def _encoded(content: Mapping[str, Any], known: frozenset[str] | None, path: Path) -> bytes:
    kept = {key: value for key, value in content.items() if known is None or key in known}
    for key in kept.keys() & (_TOKENS | _BY_NAME):
        match kept[key]:
            case list(tokens):
                kept[key] = [_with_known_flags(token) for token in tokens]
            case dict(tokens) if key in _BY_NAME:
                kept[key] = {name: _with_known_flags(token) for name, token in tokens.items()}
            case token:
                kept[key] = _with_known_flags(token)
    texts = [text for key in kept.keys() & (_TOKENS | _BY_NAME) for text in _texts(kept[key])]
    texts += kept if known is None else ()  # the keys of added_tokens.json are tokens
    if errors := token_errors(texts):
        raise CheckpointError(f"{path}: {error}" for error in errors)
    return json.dumps(kept).encode()


def drop_unknown_flags(path: Path) -> None:
    """Removes unknown flags of the added tokens in a tokenizer.json, whose names `tokenizers` would print."""
    try:
        content = json.loads(path.read_bytes())
        tokens = content["added_tokens"]
        known = [{key: token[key] for key in token if key in _FLAGS or key == "id"} for token in tokens]
    except (OSError, ValueError, RecursionError, LookupError, TypeError):  # transformers reports the error
        return
    if known != tokens:
        path.write_text(json.dumps(content | {"added_tokens": known}), encoding="utf-8")


def _texts(tokens: Any) -> Iterator[str]:
    several = (
        tokens.values() if isinstance(tokens, dict) else tokens if isinstance(tokens, list) else [tokens]
    )
    for token in several:
        if isinstance(text := text_of(token), str):
            yield text


def _with_known_flags(token: Any) -> Any:
    """Returns a token without unknown flags, whose names `tokenizers` would print."""
    if not isinstance(token, dict):
        return token
    return {name: flag for name, flag in token.items() if name in _FLAGS}


def _template_names(folder: Path) -> list[str]:
    """Returns the paths of the chat templates, relative to the folder."""
    names = [_TEMPLATE] if has_file(folder, _TEMPLATE) else []
    if (folder / _TEMPLATES).is_dir():
        templates = [name for name in file_names(folder / _TEMPLATES) if name.endswith(".jinja")]
        if len(templates) > _MAX_TEMPLATES:
            raise CheckpointError(
                f"{folder / _TEMPLATES}: {len(templates)} templates; at most {_MAX_TEMPLATES} are allowed"
            )
        names += [f"{_TEMPLATES}/{name}" for name in templates]
    return names


@contextmanager
def library_errors_as(kind: type[MindBatchError], where: object) -> Iterator[None]:
    """Turns exceptions and panics of `tokenizers` into an error of one line that starts with `where`."""
    try:
        yield
    except BaseException as error:  # the library raises nothing more special
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise kind(f"{where}: {one_line(error)}") from error


def one_line(error: BaseException, limit: int = 200) -> str:
    return " ".join(str(error).split())[:limit] or type(error).__name__
