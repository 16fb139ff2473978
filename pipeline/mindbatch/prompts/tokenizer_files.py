"""Owns finding a model folder's tokenizer and loading it as transformers does, offline, without its code."""

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mindbatch.checkpoint.folders.folder_files import CONFIG_NAME, has_file
from mindbatch.io.errors import CheckpointError
from mindbatch.prompts.glm_tokenizer import load_glm
from mindbatch.prompts.ice_tokenizer import load_ice
from mindbatch.prompts.pangu_tokenizer import load_pangu
from mindbatch.prompts.plain_tokenizer import load_plain
from mindbatch.prompts.token_bytes import LoadedTokenizer, kept
from mindbatch.prompts.tokenizer_folder import (
    SETTINGS,
    TOKENIZER,
    checked_copy,
    drop_unknown_flags,
    one_line,
    read_json_file,
    read_settings,
    refuse_damaged,
)

# What a vocabulary file alone says about its tokenizer, for a folder that names neither class nor model type.
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
    """The folder's tokenizer, or None when it holds no tokenizer file.

    Code in the folder (`auto_map`, *.py) is never executed and nothing is fetched from a network.

    Raises:
        CheckpointError: one line: a damaged file, or a tokenizer that needs the folder's own code.
    """
    present = [name for name in (*_CLASS_OF_FILE, *_OTHER_VOCABULARIES) if has_file(folder, name)]
    if not present and not has_file(folder, SETTINGS):
        return None
    settings, model = read_settings(folder), read_json_file(folder, CONFIG_NAME)
    for load in (load_plain, load_glm, load_ice, load_pangu):
        if (loaded := load(folder, settings)) is not None:
            return loaded
    refuse_damaged(folder, TOKENIZER)  # before transformers is imported, which takes a second
    with _quiet():
        tokenizer = _load(folder, settings, model, present)
        named = tokenizer.special_tokens_map
        return kept(tokenizer.backend_tokenizer, named, tokenizer.chat_template, folder)


def _load(folder: Path, settings: dict[str, Any], model: dict[str, Any], present: list[str]) -> Any:
    named = settings.get("tokenizer_class") or model.get("tokenizer_class")
    remote = _remote_class(settings) or _remote_class(model)
    if not present and remote is None:
        raise CheckpointError(
            f"{folder / SETTINGS}: no vocabulary beside it; one of {', '.join(_CLASS_OF_FILE)} is needed"
        )
    cls = _named_class(named)
    if cls is not None:
        return _instance(cls, folder)
    guess = _class_of_model_type(model.get("model_type"))
    if remote is not None and (guess is None or not present):
        raise CheckpointError(
            f"{folder}: the tokenizer class {remote} exists only as code (auto_map), which is never run; "
            f"a tokenizer that transformers knows is needed"
        )
    known = next((_named_class(_CLASS_OF_FILE[name]) for name in present if name in _CLASS_OF_FILE), None)
    if named is not None and TOKENIZER not in present:
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
    if guess is None or TOKENIZER not in present:
        return tokenizer
    as_it_stands = _instance(known, folder)
    return as_it_stands if len(tokenizer) > len(as_it_stands) else tokenizer


def _instance(cls: Any, folder: Path) -> Any:
    with checked_copy(folder, {*cls.vocab_files_names.values(), TOKENIZER}) as copy:
        drop_unknown_flags(copy / TOKENIZER)
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
    tokenizer_class = tokenizer_class_from_name(f"{name.removesuffix('Fast')}Fast")
    is_tokenizer = isinstance(tokenizer_class, type) and issubclass(tokenizer_class, PreTrainedTokenizerFast)
    return tokenizer_class if is_tokenizer else None


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
