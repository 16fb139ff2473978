"""The section `lora`: LoRA adapters, each a folder by name, and checks of its keys."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from mindbatch.config.error_log import shown
from mindbatch.config.paths import adapter_error, checkpoint_error, resolved
from mindbatch.config.schema import excludes, needs, option
from mindbatch.fields import kinds as kind
from mindbatch.fields.field import Need
from mindbatch.io.error_lines import did_you_mean, unknown_adapter
from mindbatch.io.regular_file import read_regular
from mindbatch.io.strict_json import JsonError, StrictReader

LARGEST_SCALING = 1e9
LONGEST_NAME = 100
MAX_ADAPTERS = 10_000
MERGE = "merge"
_A_FOLDER = Need(lambda config: bool(config.lora.folders), "lora.adapters", "name a folder there")
_MAX_NAMED = 8
_ALLOWED = "a folder or file, {path: PATH, scaling: NUMBER}, or null for the base"


class AdapterFolder(NamedTuple):
    """Location of an adapter: a folder or a file of tensors. scaling: None if its own files have it."""

    path: Path
    scaling: float | None = None


@dataclass
class LoraConfig:
    """LoRA adapters that rows may use."""

    adapters: Any = option(
        None,
        "adapters by name, like {law: FOLDER, med: {path: FOLDER, scaling: 2}, base: null}",
        kind.described("mapping of names to folders, the path of MindFormers' lora_adapter.json, or null"),
        is_path=True,
    )
    default: str | None = option(None, "adapter of rows that name none; null: the model without an adapter")
    max_loaded: int | None = option(
        None,
        "largest number of adapters in memory; the least recently used is unloaded; null: all",
        kind.count(1),
        needs=(excludes("lora.mode", MERGE), _A_FOLDER),
    )

    mode: str = option(
        "live",
        "merge adds one adapter to the weights while they are read, for all rows; live computes adapters "
        "beside the model, so that each row can have another",
        kind.choice("live", MERGE),
        needs=(needs("lora.adapters"),),
    )

    @property
    def is_merged(self) -> bool:
        return self.mode == MERGE

    @property
    def row_default(self) -> str | None:
        """Name of the adapter of rows that name none; None is the model without an adapter."""
        return self.names[0] if self.is_merged and self.names else self.default

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.adapters) if isinstance(self.adapters, Mapping) else ()

    @property
    def folders(self) -> dict[str, AdapterFolder]:
        """The adapters with a folder, by name; `adapters` must be valid."""
        by_name = {}
        for name in self.names:
            value = self.adapters[name]
            if isinstance(value, Mapping):
                by_name[name] = AdapterFolder(Path(value["path"]), value.get("scaling"))
            elif value is not None:
                by_name[name] = AdapterFolder(Path(value))
        return by_name


def resolve_lora_paths(lora: LoraConfig, errors: list[str]) -> None:
    """Reads a file that lists adapters, and resolves `shipped:` and ~ in paths; appends to `errors`."""
    if isinstance(lora.adapters, str | Path):
        lora.adapters = _listed(str(lora.adapters), errors)
    if not isinstance(lora.adapters, Mapping):
        return
    folders: dict[Any, Any] = {}
    for name, value in lora.adapters.items():
        key = f"lora.adapters.{name if _name_error(name) is None else shown(name)}"
        if isinstance(value, str | Path):
            folders[name] = resolved(key, str(value), adapter_error, errors)
        elif isinstance(value, Mapping) and isinstance(value.get("path"), str | Path):
            path = resolved(f"{key}.path", str(value["path"]), adapter_error, errors)
            folders[name] = {**value, "path": path}
        else:
            folders[name] = value
    lora.adapters = folders


def _listed(text: str, errors: list[str]) -> Any:
    """Reads MindFormers' list of adapters at a path; returns the path itself if that has an error."""
    before = len(errors)
    path = resolved("lora.adapters", text, checkpoint_error, errors)
    if path is None or len(errors) > before:
        return text
    try:
        return read_adapter_list(Path(path))
    except ValueError as error:
        errors.append(f"lora.adapters={shown(text)}: {error}")
        return text


def lora_errors(lora: LoraConfig) -> Iterator[str]:
    """Yields the errors of the values, except those of paths."""
    if isinstance(lora.adapters, str | Path):
        return
    if lora.adapters is not None and not isinstance(lora.adapters, Mapping):
        yield (
            f"lora.adapters={shown(lora.adapters)}: must be a mapping of names to folders, the path of "
            "MindFormers' lora_adapter.json, or null"
        )
        return
    errors = [*_adapter_errors(lora.adapters or {})]
    yield from errors
    if lora.default is not None and lora.default not in lora.names:
        yield f"lora.default={shown(lora.default)}: {unknown_adapter(lora.default, lora.names)}"
    if errors:
        return
    if lora.is_merged and lora.names:
        yield from _merge_errors(lora)


def idle_errors(lora: LoraConfig, naming: str = "") -> Iterator[str]:
    """Yields an error of adapters that no row uses. naming: text on another key that lets rows name them."""
    if lora.folders and lora.row_default is None:
        names = [*lora.folders]
        yield (
            f"lora.adapters: {', '.join(names[:_MAX_NAMED])}: no prompt would have one; give "
            f"{naming}lora.default={names[0]}, or remove them"
        )


def _adapter_errors(adapters: Mapping[Any, Any]) -> Iterator[str]:
    if len(adapters) > MAX_ADAPTERS:
        yield f"lora.adapters: {len(adapters):,} adapters; at most {MAX_ADAPTERS:,} are taken"
        return
    for name, value in adapters.items():
        if error := _name_error(name):
            yield f"lora.adapters: {shown(name, notation=repr)}: {error}"
        elif isinstance(value, Mapping):
            yield from _mapping_errors(f"lora.adapters.{name}", value)
        elif not isinstance(value, str | Path | None):
            yield f"lora.adapters.{name}={shown(value)}: must be {_ALLOWED}"


def _name_error(name: Any) -> str | None:
    if not isinstance(name, str) or not name:
        return "a name must be a text"
    if len(name) > LONGEST_NAME:
        return f"a name has at most {LONGEST_NAME} characters"
    if not name.isprintable() or name != name.strip():
        return "a name has printable characters only, and none that is blank at either end"
    return None


def _mapping_errors(key: str, value: Mapping[Any, Any]) -> Iterator[str]:
    for unknown in (key for key in value if key not in ("path", "scaling")):
        near = did_you_mean(unknown, ("path", "scaling")) if isinstance(unknown, str) else ""
        yield f"{key}.{shown(unknown)}: unknown; there are path and scaling{near}"
    if not isinstance(value.get("path"), str | Path):
        yield f"{key}.path={shown(value.get('path'))}: must be the adapter's folder"
    scaling = value.get("scaling")
    if scaling is None:
        return
    is_number = isinstance(scaling, int | float) and not isinstance(scaling, bool)
    if not is_number or not 0 < abs(scaling) < LARGEST_SCALING:
        yield f"{key}.scaling={shown(scaling)}: must be a number other than 0, below {LARGEST_SCALING:g}"


def _merge_errors(lora: LoraConfig) -> Iterator[str]:
    if len(lora.names) > 1 or not lora.folders:
        listed = f"{len(lora.names)} ({', '.join(lora.names[:_MAX_NAMED])})" if lora.folders else "none"
        yield (
            f"lora.mode={MERGE}: makes one adapter part of the weights, and lora.adapters has {listed}; give "
            "one folder and nothing else, or lora.mode=live"
        )


LIST_NAME = "lora_adapter.json"
_MAX_BYTES = 1 << 20
_READER = StrictReader(max_depth=1)


def read_adapter_list(path: Path) -> dict[str, str]:
    """Reads the folders of adapters by name, from LIST_NAME or a folder with that file.

    Relative folders start at the working directory, as in MindFormers, or else at the folder of the list.

    Raises:
        ValueError: the file cannot be read, or is no mapping of names to folders.
    """
    file = path / LIST_NAME if path.is_dir() else path
    if not file.exists():
        raise ValueError(f"holds no {LIST_NAME}; must be {{NAME: FOLDER, ...}}, or MindFormers' list of them")
    try:
        content = _READER.parse(read_regular(file, _MAX_BYTES))
    except OSError as error:
        raise ValueError(f"{LIST_NAME} cannot be read ({error.strerror})") from error
    except JsonError as error:
        raise ValueError(f"{file.name}: {error}") from error
    if not isinstance(content, dict) or not content:
        raise ValueError(f"{file.name} has {shown(content)}; must be an object of folders by name")
    return {name: _resolved_folder(folder, file.parent, name) for name, folder in content.items()}


def _resolved_folder(folder: Any, home: Path, name: str) -> str:
    if not isinstance(folder, str) or not folder:
        raise ValueError(f"{shown(name)} has {shown(folder)}; must be a name with the folder of an adapter")
    nested = str(home / folder)  # os.path takes any text for a path, also one that is too long
    return nested if os.path.isdir(nested) and not os.path.isdir(folder) else folder
