"""A composed configuration as it is kept beside outputs: paths absolute, each ${...} as written."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from mindbatch.config.paths import SHIPPED, STANDARD_INPUT
from mindbatch.config.schema import Key, SchemaKeys, TaskConfig, value_at
from mindbatch.config.settings import Listing
from mindbatch.config.tree import written_values
from mindbatch.storage import Storage, write_whole


def yaml_of(tree: DictConfig, listing: Listing | None, given: Collection[str]) -> str:
    """The tree as YAML, each ${...} as written.

    In place of a section for which options were listed stand the list, and the keys of it that were given.
    """
    if listing is None:
        return OmegaConf.to_yaml(tree, resolve=False)
    content: Any = OmegaConf.to_container(tree, resolve=False)
    section, content[listing.group] = content[listing.group], list(listing.options)
    names = ((f"{listing.group}.{leaf}", value) for leaf, value in section.items())
    return OmegaConf.to_yaml(OmegaConf.create(content | {n: v for n, v in names if n in given}))


def portable_yaml(
    tree: DictConfig,
    config: TaskConfig,
    keys: SchemaKeys,
    listing: Listing | None = None,
    given: Collection[str] = (),
) -> str:
    """The tree as YAML that means the same from every working directory. `config` is what it was built to.

    A path written with ${...} or `shipped:` stays as it is, and so does standard input. Nothing is resolved:
    what ${...} stands for could be a secret.
    """
    kept = tree.copy()
    for name, text in written_values(tree, keys).items():
        if _is_own_path(keys.keys[name], text):
            path = _absolute(value_at(config, name))
            OmegaConf.update(kept, name, path.replace("${", "\\${"))
    return yaml_of(kept, listing, given)


def settings_of(tree: DictConfig, config: TaskConfig, keys: SchemaKeys) -> dict[str, Any]:
    """The value of every key of `config`, nested by section, for the record of a run: plain JSON types.

    Paths are absolute. A value written with ${...}, in `tree`, is given as written: it may be a secret.
    """
    settings: dict[str, Any] = {}
    for name, text in written_values(tree, keys).items():
        section, _, leaf = name.rpartition(".")
        place = settings.setdefault(section, {}) if section else settings
        place[leaf] = _kept_value(keys.keys[name], text, value_at(config, name))
    return settings


def _kept_value(key: Key, text: Any, value: Any) -> Any:
    if "${" in str(text):
        return text
    if key.is_path and isinstance(value, str) and value != STANDARD_INPUT:
        return _absolute(value)
    return list(value) if isinstance(value, tuple) else value


def _is_own_path(key: Key, text: Any) -> bool:
    """Whether `text` is a path that depends on where the command was given."""
    if not key.is_path or not isinstance(text, str):
        return False
    return text != STANDARD_INPUT and "${" not in text and not text.startswith(SHIPPED)


def _absolute(path: str) -> str:
    """`path` from the root; links stay, for they may be meant to be moved."""
    return str(Path.cwd() / path)


def save_config(config: TaskConfig, path: Path, storage: Storage | None = None) -> None:
    """Writes `config` to `path` as YAML, whole or not at all; ${...} stay as written, so no secret is kept.

    Raises StorageError when it cannot be written.
    """
    write_whole(path, config.unresolved_yaml.encode(), storage)
