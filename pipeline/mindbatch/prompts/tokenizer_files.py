"""Owns finding a model folder's tokenizer and loading it with transformers, offline and without its code."""

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from mindbatch.checkpoint.folders.folder_files import CONFIG_NAME, has_file
from mindbatch.errors import CheckpointError
from mindbatch.prompts.tokenizer_folder import SETTINGS, checked_copy, one_line, read_json_file

_FAST = "tokenizer.json"
# What a vocabulary file alone says about its tokenizer, for a folder that names neither class nor model type.
_CLASS_OF_FILE = {
    _FAST: "PreTrainedTokenizerFast",
    "merges.txt": "GPT2TokenizerFast",
    "tokenizer.model": "LlamaTokenizerFast",
}
_OTHER_VOCABULARIES = ("vocab.json", "vocab.txt", "spiece.model", "sentencepiece.bpe.model")


@dataclass(frozen=True, kw_only=True)
class LoadedTokenizer:
    """What is kept of a transformers tokenizer."""

    backend: Backend
    bos_token_id: int | None
    eos_token_id: int | None
    unk_token_id: int | None
    named_tokens: dict[str, Any]
    """bos_token, eos_token... as text: the variables of a chat template."""
    templates: dict[str, str]
    """Chat templates by name; the usual one is "default"."""


def load_tokenizer_files(folder: Path) -> LoadedTokenizer | None:
    """The folder's tokenizer, or None when it holds no tokenizer file.

    Code in the folder (`auto_map`, *.py) is never executed and nothing is fetched from a network.

    Raises:
        CheckpointError: one line: a damaged file, or a tokenizer that needs the folder's own code.
    """
    present = [name for name in (*_CLASS_OF_FILE, *_OTHER_VOCABULARIES) if has_file(folder, name)]
    if not present and not has_file(folder, SETTINGS):
        return None
    settings, model = read_json_file(folder, SETTINGS), read_json_file(folder, CONFIG_NAME)
    with _quiet():
        return _kept(_load(folder, settings, model, present), folder)


def _load(folder: Path, settings: dict[str, Any], model: dict[str, Any], present: list[str]) -> Any:
    named = settings.get("tokenizer_class") or model.get("tokenizer_class")
    cls = _named_class(named)
    if cls is not None:
        return _instance(cls, folder)
    guess = _class_of_model_type(model.get("model_type"))
    if guess is None and (remote := _remote_class(settings) or _remote_class(model)):
        raise CheckpointError(
            f"{folder}: the tokenizer class {remote} exists only as code (auto_map), which is never run; "
            f"a tokenizer that transformers knows is needed"
        )
    if not present:
        raise CheckpointError(
            f"{folder / SETTINGS}: no vocabulary beside it; one of {', '.join(_CLASS_OF_FILE)} is needed"
        )
    known = next((_named_class(_CLASS_OF_FILE[name]) for name in present if name in _CLASS_OF_FILE), None)
    if named is not None and _FAST not in present:
        raise CheckpointError(
            f"{folder}: the tokenizer class {named} is not known to transformers or has no fast form"
        )
    if guess is None and known is None:
        raise CheckpointError(
            f"{folder}: {', '.join(present)} alone does not say what tokenizer it belongs to"
        )
    return _guessed(guess, known, folder, present)


def _guessed(guess: Any, known: Any, folder: Path, present: list[str]) -> Any:
    """A class guessed from the model type may not add tokens that a complete tokenizer.json lacks: their ids
    would lie outside the model's vocabulary."""
    tokenizer = _instance(guess or known, folder)
    if guess is None or _FAST not in present:
        return tokenizer
    as_it_stands = _instance(known, folder)
    return as_it_stands if len(tokenizer) > len(as_it_stands) else tokenizer


def _instance(cls: Any, folder: Path) -> Any:
    with checked_copy(folder, {*cls.vocab_files_names.values(), _FAST}) as copy:
        try:
            return cls.from_pretrained(str(copy), local_files_only=True, trust_remote_code=False)
        except Exception as error:  # of transformers, tokenizers or sentencepiece, about a damaged file
            reason = one_line(error).replace(str(copy), str(folder))
            raise CheckpointError(
                f"{folder}: the tokenizer cannot be loaded as {cls.__name__}: {reason}"
            ) from error


def _named_class(name: object) -> Any:
    """transformers' fast class of this name, with or without the suffix, or None."""
    from transformers import PreTrainedTokenizerFast
    from transformers.models.auto.tokenization_auto import tokenizer_class_from_name

    if not isinstance(name, str):
        return None
    found = tokenizer_class_from_name(f"{name.removesuffix('Fast')}Fast")
    is_tokenizer = isinstance(found, type) and issubclass(found, PreTrainedTokenizerFast)
    return found if is_tokenizer else None


def _class_of_model_type(model_type: object) -> Any:
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

    names = TOKENIZER_MAPPING_NAMES.get(model_type) if isinstance(model_type, str) else None
    return _named_class(names[1]) if names else None


def _remote_class(config: Mapping[str, Any]) -> str | None:
    """The tokenizer that an `auto_map` names; its older form is a bare list."""
    entry = config.get("auto_map")
    if isinstance(entry, Mapping):
        entry = entry.get("AutoTokenizer")
    if isinstance(entry, list):
        entry = next((name for name in entry if name), None)
    return str(entry) if entry else None


def _kept(tokenizer: Any, folder: Path) -> LoadedTokenizer:
    backend: Backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    # transformers looks for the id of an unknown token, too, among the unknown, without end.
    unknown = _id_of(tokenizer.unk_token, backend, None)
    return LoadedTokenizer(
        backend=backend,
        bos_token_id=_id_of(tokenizer.bos_token, backend, unknown),
        eos_token_id=_id_of(tokenizer.eos_token, backend, unknown),
        unk_token_id=unknown,
        named_tokens=dict(tokenizer.special_tokens_map),
        templates=_templates(tokenizer.chat_template, folder),
    )


def _id_of(token: str | None, backend: Backend, unknown: int | None) -> int | None:
    found: int | None = None if token is None else backend.token_to_id(token)
    return unknown if found is None and token is not None else found


def _templates(given: object, folder: Path) -> dict[str, str]:
    templates = {"default": given} if isinstance(given, str) else given or {}
    if isinstance(templates, dict) and all(
        isinstance(item, str) for pair in templates.items() for item in pair
    ):
        return templates
    raise CheckpointError(
        f"{folder / SETTINGS}: chat_template must be a string or a list of mappings with name and template"
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps transformers' advice (no torch found, legacy behaviour...) away from the user during a load."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
