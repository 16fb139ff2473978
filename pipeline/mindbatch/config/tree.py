"""The configuration tree: typed assignment, resolution of ${...}, and how it is kept beside outputs."""

import dataclasses
import os
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationValidationError, MissingMandatoryValue, OmegaConfBaseException
from omegaconf.resolvers import oc

from mindbatch.config.faults import FaultLog, shown
from mindbatch.config.paths import SHIPPED, STANDARD_INPUT
from mindbatch.config.schema import Key, SchemaKeys, TaskConfig, value_at
from mindbatch.config.settings import Assignment, Listing
from mindbatch.hidden_values import hide
from mindbatch.storage import Storage, write_whole

_ESCAPE = "${ begins a reference; write \\${ for the characters themselves"
_ENVIRONMENT = re.compile(r"\$\{oc\.env:\s*(\w+)\s*\}")


def _environment_value(name: str, *default: Any) -> Any:
    """OmegaConf's oc.env, whose values are hidden from then on."""
    value = oc.env(name, *default)
    if name in os.environ:
        hide(os.environ[name], f"${{oc.env:{name}}}")
    return value


OmegaConf.register_new_resolver("oc.env", _environment_value, replace=True)


def assign(tree: DictConfig, assignments: Iterable[Assignment], schema: SchemaKeys, log: FaultLog) -> None:
    """Puts each value into `tree`; one of the wrong type leaves it as it was and goes to `log`."""
    for given in assignments:
        key = schema.keys[given.key]
        try:
            if not _has_kind(given.value, key):
                raise TypeError
            OmegaConf.update(tree, key.name, given.value, merge=False)  # a mapping replaces another
            log.trust(key.name)
        except (OmegaConfBaseException, TypeError, ValueError, RecursionError):
            hint = _escape_hint(given.value) or f"must be {key.expected}"
            log.add(f"{given.source}{key.name}={shown(given.value)}: {hint}", key.name)


def _has_kind(value: Any, key: Key) -> bool:
    """Refuses what OmegaConf would convert to something else: 3 to true, true to the text `True`."""
    if isinstance(value, str) or value is None:
        return True
    if key.type is bool:
        return isinstance(value, bool)
    return key.type is Any or not isinstance(value, bool)


def resolved(tree: DictConfig, schema: SchemaKeys, log: FaultLog) -> dict[str, Any]:
    """The plain value of every key, with each ${...} replaced; one that has no value goes to `log`."""
    values = {}
    for key in schema.keys.values():
        try:
            values[key.name] = _plain(OmegaConf.select(tree, key.name, throw_on_missing=True))
        except OmegaConfBaseException as error:
            text = shown(written_values(tree, schema)[key.name])
            log.add(f"{key.name}={text}: {_why_unresolved(error, text, key)}", key.name)
    return values


def build(schema: type[TaskConfig], values: dict[str, Any]) -> TaskConfig:
    """The dataclass `schema` with `values` by full key; the keys that are not there keep their defaults."""
    config: TaskConfig = _build(schema, values, "")
    return config


def _build(schema: type, values: dict[str, Any], prefix: str) -> Any:
    hints = get_type_hints(schema)
    given = {}
    for entry in dataclasses.fields(schema):
        name = prefix + entry.name
        if dataclasses.is_dataclass(hints[entry.name]):
            given[entry.name] = _build(hints[entry.name], values, f"{name}.")
        elif name in values:
            given[entry.name] = values[name]
    return schema(**given)


def _plain(value: Any) -> Any:
    if OmegaConf.is_config(value):
        return OmegaConf.to_container(value, resolve=True, throw_on_missing=True)
    return value


def written_values(tree: DictConfig, schema: SchemaKeys) -> dict[str, Any]:
    """The value of every key as the user wrote it, with its ${...}."""
    content: Any = OmegaConf.to_container(tree, resolve=False)
    values = {}
    for name in schema.keys:
        section, _, leaf = name.rpartition(".")
        values[name] = (content[section] if section else content)[leaf]
    return values


def _why_unresolved(error: OmegaConfBaseException, text: str, key: Key) -> str:
    """The reason in words of our own: OmegaConf's quote the resolved value, which may be a secret."""
    if isinstance(error, MissingMandatoryValue):
        return "??? stands for a value that must be given; set one"
    if isinstance(error, InterpolationValidationError):
        return f"what it stands for must be {key.expected}"
    unset = [name for name in _ENVIRONMENT.findall(text) if name not in os.environ]
    if unset:
        return f"the environment variable {', '.join(unset)} is not set"
    return f"has no value; {_ESCAPE}"


def _escape_hint(value: Any) -> str:
    return _ESCAPE if "${" in str(value) else ""


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
