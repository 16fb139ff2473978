"""How the folder of an embedding model, in the layout of sentence-transformers, has texts embedded."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mindbatch.io.error_lines import shown
from mindbatch.io.regular_file import read_regular
from mindbatch.io.storage import reason_of
from mindbatch.io.strict_json import StrictReader

MODULES = "modules.json"
POOLING_FOLDER = "1_Pooling"
_MODULE_CONFIG = "config.json"
_PROMPTS = "config_sentence_transformers.json"
_TEXTS = "sentence_bert_config.json"
_MAX_BYTES = 1 << 20
_READER = StrictReader(max_depth=8)

_POOLINGS = {
    "lasttoken": "last",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean",  # the same vector once its length is 1
    "cls": "cls",
    "max": "max",
    "weightedmean": "weightedmean",
}
"""By sentence-transformers' name of a pooling, the value of `decoding.pooling`."""
_BEFORE_6 = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""The flags that stood for a pooling each; without any it is the mean."""
_WITHOUT_EFFECT = ("Transformer", "Normalize", "Dropout")
"""Modules that change nothing: vectors have length 1 anyway, and nothing is dropped but in training."""


@dataclass(frozen=True)
class FolderEmbeddings:
    """Settings of a folder for embeddings; those of a folder that says nothing are the defaults.

    pooling: a value of `decoding.pooling`. prompt: what stands before each text. source: the file that says
    so. errors: what the folder asks for and is not computed here.
    """

    pooling: str = "last"
    prompt: str = ""
    source: str = ""
    errors: tuple[str, ...] = ()

    def with_pooling(self, own: str | None) -> "FolderEmbeddings":
        """Returns the settings with `decoding.pooling`, which overrides the folder's; None keeps that."""
        return self if own is None else replace(self, pooling=own, errors=())

    def notes(self, own: str | None) -> list[str]:
        """Returns a line about the folder's settings for embeddings, if it has any. own:
        `decoding.pooling`."""
        if not self.source:
            return []
        if own not in (None, self.pooling):
            return [f"{self.source}: asks for pooling={self.pooling}; decoding.pooling={own} overrides it"]
        prompt = f", each text behind {shown(self.prompt)}" if self.prompt else ""
        return [f"{self.source}: embeddings have pooling={self.pooling}{prompt}"]


def folder_embeddings(model_folder: str | Path | None) -> FolderEmbeddings:
    """Reads modules.json and the files that it names; a folder without it may still have 1_Pooling."""
    if model_folder is None:
        return FolderEmbeddings()
    folder, errors = Path(model_folder), list[str]()
    modules = _modules(folder, errors)
    poolings = [name for name, kind in modules if kind == "Pooling"]
    if not modules and not errors and (folder / POOLING_FOLDER / _MODULE_CONFIG).is_file():
        poolings = [POOLING_FOLDER]
    if not poolings and not errors:
        return FolderEmbeddings()
    errors += [
        f"{folder / MODULES}: the module {shown(name)}, {kind}, is not computed here"
        for name, kind in modules
        if kind not in ("Pooling", *_WITHOUT_EFFECT)
    ]
    if len(poolings) > 1:
        errors.append(f"{folder / MODULES}: poolings in {', '.join(poolings)}; only one is computed here")
    path = folder / (poolings[0] if poolings else "") / _MODULE_CONFIG
    prompt = _default_prompt(folder, errors)
    pooling = _pooling(path, has_prompt=bool(prompt), errors=errors) if poolings else "last"
    texts = _object(folder / _TEXTS, errors)
    if texts.get("do_lower_case"):
        errors.append(f"{folder / _TEXTS}: do_lower_case=true is not computed here")
    if "message" in (texts.get("modality_config") or ()):
        errors.append(f"{folder / _TEXTS}: modality_config: texts as messages of chats are not computed here")
    return FolderEmbeddings(pooling, prompt, str(path if poolings else folder / MODULES), tuple(errors))


def _modules(folder: Path, errors: list[str]) -> list[tuple[str, str]]:
    """Returns the folder of each module and the name of its class; none where there is no modules.json."""
    path = folder / MODULES
    content = _read(path, errors)
    if content is None:
        return []
    try:
        return [*_entries(content)]
    except ValueError as error:
        errors.append(f"{path}: {error}")
        return []


def _entries(content: Any) -> Iterator[tuple[str, str]]:
    if not isinstance(content, list):
        raise ValueError("must be a list of modules")
    for entry in content:
        name, kind = (entry.get(key) if isinstance(entry, Mapping) else None for key in ("path", "type"))
        if not isinstance(name, str) or not isinstance(kind, str):
            raise ValueError(f"{shown(entry)}: a module has a path and a type")
        if name not in ("", Path(name).name):
            raise ValueError(f"{shown(name)}: must be the name of a folder in this one")
        is_known = kind.startswith("sentence_transformers.")
        yield name, kind.rpartition(".")[2] if is_known else f"code of the folder ({kind})"


def _pooling(path: Path, *, has_prompt: bool, errors: list[str]) -> str:
    """Returns the pooling of a module's config.json, in the form of any version; errors go to `errors`."""
    if not path.is_file():
        errors.append(f"{path}: missing, and modules.json names it")
        return "last"
    content = _object(path, errors)
    modes = content.get("pooling_mode")
    if modes is None:
        modes = [mode for flag, mode in _BEFORE_6.items() if content.get(flag)] or ["mean"]
    modes = [modes] if isinstance(modes, str) else modes
    if not isinstance(modes, list) or not modes or not all(mode in _POOLINGS for mode in modes):
        written = shown(content["pooling_mode"])
        errors.append(f"{path}: pooling_mode={written}; must be one of {', '.join(_POOLINGS)}")
        return "last"
    if len(modes) > 1:
        errors.append(f"{path}: several poolings, {', '.join(modes)}; only one is computed here")
    if has_prompt and content.get("include_prompt") is False:
        errors.append(f"{path}: include_prompt=false beside a default prompt is not computed here")
    return _POOLINGS[modes[0]]


def _default_prompt(folder: Path, errors: list[str]) -> str:
    content = _object(folder / _PROMPTS, errors)
    name, prompts = content.get("default_prompt_name"), content.get("prompts")
    if name is None:
        return ""
    prompt = prompts.get(name) if isinstance(prompts, Mapping) and isinstance(name, str) else None
    if not isinstance(prompt, str):
        errors.append(f"{folder / _PROMPTS}: default_prompt_name={shown(name)}: prompts has no such text")
        return ""
    return prompt


def _object(path: Path, errors: list[str]) -> Mapping[str, Any]:
    """Returns the JSON object in a file; {} where there is none."""
    content = _read(path, errors)
    if content is not None and not isinstance(content, Mapping):
        errors.append(f"{path}: must be a JSON object")
    return content if isinstance(content, Mapping) else {}


def _read(path: Path, errors: list[str]) -> Any:
    """Returns the content of a JSON file; None where there is no file, or none that can be read."""
    try:
        return _READER.parse(read_regular(path, _MAX_BYTES))
    except FileNotFoundError:
        return None
    except OSError as error:
        errors.append(f"{path}: cannot be read ({reason_of(error)})")
    except ValueError as error:  # no JSON
        errors.append(f"{path}: {error}")
    return None
