"""Layers of settings: the assignments and chosen options of one file or command line."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mindbatch.config.error_log import ErrorLog, shown
from mindbatch.config.schema import SAVED_EARLIER, SchemaKeys
from mindbatch.config.yaml_file import read_mapping
from mindbatch.io.errors import ConfigError

PREDICT_YAML = "model.mindformers_yaml"
OUTPUT_FOLDER = "output.dir"
OPTION = "option"
"""Key of the option in an entry of a list of options that is a mapping with further values."""

LinePrefix = Callable[[str], str]
"""Returns the prefix of error lines on a key, the file that sets it: `run.yaml: `, or ""."""


@dataclass(frozen=True)
class Assignment:
    """A value for a key, which may be unknown.

    source: prefix of error lines: `run.yaml: `, or "" for the command line.
    """

    key: str
    value: Any
    source: str = ""


@dataclass(frozen=True)
class Choice:
    """The choice of an option file for a group: `model=tiny_gpt2`.

    option: empty if the group is left out: `~model`.
    override: the choice in Hydra's grammar, which may have more: `+experiment=quick`.
    """

    group: str
    option: str
    override: str
    source: str = ""


@dataclass(frozen=True)
class Listed:
    """One entry of a list of options, which makes a variant of the configuration: `decoding=[greedy,beam4]`.

    It is an option, values, or an option with values that override its own.
    """

    option: str = ""
    values: tuple[Assignment, ...] = ()
    source: str = ""

    @property
    def name(self) -> str:
        """The variant's name among the others: `top_p`, `seed=1`, `top_p,seed=1`."""
        values = (f"{item.key.rpartition('.')[2]}={shown(item.value)}" for item in self.values)
        return ",".join((*filter(None, [self.option]), *values))

    @property
    def written(self) -> Any:
        values = {item.key.rpartition(".")[2]: item.value for item in self.values}
        return ({OPTION: self.option} if self.option else {}) | values if values else self.option


@dataclass
class Layer:
    """The settings of one source, a file or the command line.

    Its options override the layers below, and its assignments override its options.
    """

    assignments: list[Assignment] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    listing: tuple[Listed, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.assignments or self.choices or self.listing)

    def add(self, other: "Layer") -> None:
        self.assignments += other.assignments
        self.choices += other.choices
        self.listing = other.listing or self.listing


def values_of(layers: Iterable[Layer]) -> dict[str, Any]:
    """Returns the last value that the layers assign to each key."""
    return {item.key: item.value for layer in layers for item in layer.assignments}


class LayerReader:
    """Converts keys and raw values to layers; the values are validated later.

    groups: names of the groups. listed_group: the group that takes a list of options.
    """

    def __init__(
        self, keys: SchemaKeys, groups: frozenset[str], log: ErrorLog, listed_group: str = ""
    ) -> None:
        self.keys = keys
        self.groups = groups
        self._log = log
        self._listed_group = listed_group

    def read_file(self, path: Path) -> Layer:
        """Reads a --config file; its errors go to the log."""
        try:
            content = read_mapping(path)
        except ConfigError as error:
            for line in error.lines:
                self._log.add_unread(line, self.keys.keys)
            return Layer()
        layer = self.read_all(content, lambda key: f"{path}: ")
        for key, count in Counter(item.key for item in layer.assignments).items():
            if count > 1:
                self._log.add(f"{path}: {key}: given twice", key)
        return layer

    def read_all(self, content: Mapping[str, Any], source: LinePrefix) -> Layer:
        layer = Layer()
        for key, value in content.items():
            layer.add(self.read(key, value, source))
        return layer

    def read(self, key: str, value: Any, source: LinePrefix = lambda key: "", override: str = "") -> Layer:
        """Converts a key with its value to an assignment, a choice, a list of options or many assignments.

        override: the choice in Hydra's grammar, if that has more than `key=value`.
        """
        if self.takes_list(key) and isinstance(value, str | list):
            return Layer(listing=self._listing(key, value, source(key)))
        if source(key) and value in SAVED_EARLIER.get(key, ()):
            return Layer()
        if key in self.groups and isinstance(value, str):
            return Layer(choices=[Choice(key, value, override or f"{key}={value}", source(key))])
        if key in self.keys.sections and isinstance(value, Mapping):
            return self.read_all({f"{key}.{name}": item for name, item in value.items()}, source)
        return Layer([Assignment(key, _with_text_keys(value), source(key))])

    def defaults_of(self, key: str) -> Layer:
        """Assigns its default to a key, or to each key of a section: `~key`."""
        names = [name for name in self.keys.keys if name == key or name.startswith(f"{key}.")]
        defaults = [Assignment(name, self.keys.keys[name].default) for name in names]
        return Layer(defaults or [Assignment(key, None, "~")])

    def takes_list(self, key: str) -> bool:
        return key == self._listed_group != ""

    def takes_text(self, key: str, written: str = "") -> bool:
        """True if the written value of the key is a literal text."""
        declared = self.keys.keys.get(key)
        is_list = written[:1] == "[" and written[-1:] == "]"
        return declared is not None and (
            declared.type is str or (declared.kind.is_text_or_list and not is_list)
        )

    def knows(self, key: str) -> bool:
        return key in self.keys.keys or key in self.keys.sections

    def _listing(self, group: str, value: str | list[Any], source: str) -> tuple[Listed, ...]:
        items = [value] if isinstance(value, str) else value
        known = [entry for item in items if (entry := self._listed(group, item, source)) is not None]
        if items and len({entry.name for entry in known}) == len(items):
            return tuple(known)
        self._log.add(f"{source}{group}={shown(value)}: must be a list of options, each once", group)
        return ()

    def _listed(self, group: str, item: Any, source: str) -> Listed | None:
        if isinstance(item, str):
            return Listed(item, source=source)
        if not isinstance(item, Mapping) or not item or not isinstance(item.get(OPTION, ""), str):
            return None
        values = {f"{group}.{key}": value for key, value in item.items() if key != OPTION}
        layer = self.read_all(values, lambda key: source)
        return Listed(item.get(OPTION, ""), tuple(layer.assignments), source)


def _with_text_keys(value: Any) -> Any:
    """Converts the keys of mappings to texts, as in saved files: {50256: -1} becomes {"50256": -1}."""
    if isinstance(value, Mapping):
        return {str(name): _with_text_keys(item) for name, item in value.items()}
    return [_with_text_keys(item) for item in value] if isinstance(value, list) else value
