"""Reads YAML configuration files strictly: bounded, without aliases, tags, duplicate or Hydra keys."""

import re
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import yaml

from mindbatch.config.paths import near_sibling
from mindbatch.io.errors import ConfigError
from mindbatch.io.regular_file import first_bytes
from mindbatch.io.storage import reason_of

LARGEST_FILE = 1 << 20
"""Bytes. Configurations are a page long; a larger file is a mistake or an attack."""

DEEPEST_NESTING = 32

HYDRA_NAME = "names that begin with _ are special to Hydra and not allowed"

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # PyYAML may be built without libyaml


_PACKAGE_HEADER = re.compile(r"^\s*#\s*@package", re.MULTILINE)


class _StrictLoader(_Loader):  # type: ignore[misc]
    """Safe YAML without dates: `2024-01-01` stays text, as it does on the command line."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in _Loader.yaml_implicit_resolvers.items()
    }


def read_mapping(path: Path, *, may_name_package: bool = False) -> dict[str, Any]:
    """Reads the mapping of a YAML file; an empty file is an empty mapping.

    may_name_package: allows Hydra's @package, for files of options.
    Raises ConfigError for a file that is missing, too large, not UTF-8 or not YAML, and for anything but
    plain nested mappings with distinct text keys, lists and scalars.
    """
    return read_with_lines(path, may_name_package=may_name_package)[0]


def read_with_lines(
    path: Path, unread: Collection[str] = (), *, may_name_package: bool = False
) -> tuple[dict[str, Any], dict[str, int]]:
    """Reads a mapping as `read_mapping` does, and returns it with the line of each dotted key.

    unread: keys at the top that are not read: their values are None, and may have anchors and aliases.
    """
    text = _read_text(path)
    if not may_name_package and _PACKAGE_HEADER.search(text):
        raise ConfigError(f"{path}: Hydra's @package header has no meaning in this file; remove it")
    try:
        _refuse_unsafe_events(text, path, unread)
        return _construct(text, path, unread)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {_one_line(error)}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: a number is too long to be read") from error


def _construct(text: str, path: Path, unread: Collection[str]) -> tuple[dict[str, Any], dict[str, int]]:
    loader = _StrictLoader(text)
    root = loader.get_single_node()
    if root is None:
        return {}, {}
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(f"{path}: must hold a mapping of keys to values")
    nothing = yaml.ScalarNode("tag:yaml.org,2002:null", "")
    root.value = [(key, nothing if _is_one_of(key, unread) else value) for key, value in root.value]
    if errors := [*_unsafe_keys(root, path)]:
        raise ConfigError(errors)
    lines = dict(_key_lines(root, ""))
    content: dict[str, Any] = loader.construct_document(root)
    return content, lines


def _is_one_of(key: yaml.Node, names: Collection[str]) -> bool:
    return isinstance(key, yaml.ScalarNode) and key.value in names


def _key_lines(node: yaml.MappingNode, prefix: str) -> Iterator[tuple[str, int]]:
    for key, value in node.value:
        yield prefix + key.value, key.start_mark.line + 1
        if isinstance(value, yaml.MappingNode):
            yield from _key_lines(value, f"{prefix}{key.value}.")


def _read_text(path: Path) -> str:
    try:
        data = first_bytes(path, LARGEST_FILE + 1)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file{near_sibling(path)}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({reason_of(error)})") from error
    except ValueError as error:  # a null byte in the name
        raise ConfigError(f"{path}: cannot be read ({_one_line(error)})") from error
    if len(data) > LARGEST_FILE:
        raise ConfigError(f"{path}: larger than 1 MiB, the largest configuration file read")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text (byte {error.start})") from error


def _refuse_unsafe_events(text: str, path: Path, unread: Collection[str]) -> None:
    """Refuses aliases, tags, several documents and deep nesting, before anything is built from the text."""
    depth = documents = at_top = 0
    may_alias = False
    events: Iterator[Any] = yaml.parse(text, Loader=_StrictLoader)
    for event in events:
        line = event.start_mark.line + 1
        if depth == 1 and not isinstance(event, yaml.CollectionEndEvent):  # keys and values take turns
            is_key, at_top = at_top % 2 == 0, at_top + 1
            may_alias = getattr(event, "value", None) in unread if is_key else may_alias
        if not may_alias and (isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None)):
            raise ConfigError(f"{path}, line {line}: YAML anchors (&) and aliases (*) are not allowed")
        if getattr(event, "tag", None):
            raise ConfigError(f"{path}, line {line}: YAML tags ({event.tag}) are not allowed")
        documents += isinstance(event, yaml.DocumentStartEvent)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST_NESTING or documents > 1:
            construct = (
                "more than one document" if documents > 1 else f"nested deeper than {DEEPEST_NESTING} levels"
            )
            raise ConfigError(f"{path}, line {line}: {construct}")


def _unsafe_keys(node: yaml.Node, path: Path) -> Iterator[str]:
    """Yields an error for every key that is not text, given twice, or special to Hydra."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _unsafe_keys(item, path)
    elif isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if error := _key_error(key, seen):
                yield f"{path}, line {key.start_mark.line + 1}: {error}"
            yield from _unsafe_keys(value, path)


def _key_error(key: yaml.Node, seen: set[str]) -> str | None:
    if key.tag != "tag:yaml.org,2002:str":
        return "a key must be text (quote it)"
    name: str = key.value
    if name in seen:
        return f"{name}: given twice"
    seen.add(name)
    if is_hydra_key(name):
        return f"{name}: {HYDRA_NAME}"
    return None


def is_hydra_key(name: object) -> bool:
    """True if Hydra could act on the key (`_target_`, `_partial_`, ...) instead of reading it."""
    return isinstance(name, str) and name.startswith("_")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def repeated_key(text: str) -> str | None:
    """Finds the first key that a mapping in `text` has twice; None if there is none, or the text is no YAML.

    A mapping in Hydra's grammar is one in the flow style of YAML.
    """
    if "{" not in text:
        return None
    try:
        return next(_repeated(_StrictLoader(text).get_single_node()), None)
    except (yaml.YAMLError, RecursionError):
        return None


def _repeated(node: Any) -> Iterator[str]:
    if isinstance(node, yaml.MappingNode):
        names = [str(key.value) for key, _ in node.value]
        yield from (name for name, count in Counter(names).items() if count > 1)
        for _, value in node.value:
            yield from _repeated(value)
    for item in node.value if isinstance(node, yaml.SequenceNode) else ():
        yield from _repeated(item)
