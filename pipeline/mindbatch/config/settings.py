"""Settings as given on the command line or in a file: values for keys, and choices of group options."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindbatch.config.faults import FaultLog, shown
from mindbatch.config.other_names import INSTEAD
from mindbatch.config.path_faults import input_file_fault, settled
from mindbatch.config.schema import SchemaKeys
from mindbatch.config.yaml_file import HYDRA_NAME, is_hydra_key, read_mapping
from mindbatch.errors import ConfigError
from mindbatch.override_text import literal
from mindbatch.regular_file import open_regular

JSON_SCHEMA = "decoding.json_schema"
_MOST_KEYS = 4
"""Most keys of a section that an error line names: enough to show what its keys look like."""


@dataclass(frozen=True)
class Assignment:
    """A value for one key of the schema."""

    key: str
    value: Any
    source: str
    """Prefix of an error line: `run.yaml: `, or nothing for the command line."""


@dataclass(frozen=True)
class Choice:
    """The choice of an option file for a group: `model=tiny_gpt2`."""

    group: str
    option: str
    source: str


@dataclass(frozen=True)
class Listing:
    """Options for a group, each of which makes a variant of the configuration: `decoding=[greedy,beam4]`."""

    group: str
    options: tuple[str, ...]
    source: str

    @property
    def choices(self) -> list[Choice]:
        """The choice of each option alone."""
        return [Choice(self.group, option, self.source) for option in self.options]


Setting = Assignment | Choice | Listing


class SettingReader:
    """Turns keys and raw values into settings, noting the keys that the schema does not have.

    listed_group: the group for which a list of options is taken.
    """

    def __init__(
        self, schema: SchemaKeys, groups: frozenset[str], log: FaultLog, listed_group: str = ""
    ) -> None:
        self._schema = schema
        self._groups = groups
        self._listed_group = listed_group
        self._log = log

    def read_file(self, path: Path) -> list[Setting]:
        """The settings of a --config file; its faults go to the log."""
        try:
            content = read_mapping(path)
        except ConfigError as error:
            for line in error.faults:
                self._log.add_unread(line, self._schema.keys)
            return []
        settings = [
            setting for key, value in content.items() for setting in self.read(key, value, f"{path}: ")
        ]
        self._refuse_repeated(settings)
        return settings

    def read(self, key: str, value: Any, source: str = "") -> Iterator[Setting]:
        """The settings that `key` with `value` stands for: one, or one for each key below a section."""
        is_section = key in self._schema.sections
        if self.takes_list(key) and isinstance(value, str | list):
            yield from self._listing(key, value, source)
        elif is_section and key in self._groups and isinstance(value, str):
            yield Choice(key, value, source)
        elif is_section and isinstance(value, Mapping):
            for name, item in value.items():
                yield from self.read(f"{key}.{name}", item, source)
        elif is_section:
            self._log.add(f"{source}{key}={shown(value)}: {self._section_hint(key)}", key)
        elif key not in self._schema.keys:
            self._log.add(f"{source}{key}: {self.unknown(key)}")
        elif _holds_hydra_key(value):
            self._log.add(f"{source}{key}: {HYDRA_NAME}", key)
        elif key == JSON_SCHEMA and isinstance(value, str) and value.strip().endswith(".json"):
            yield from self._schema_of_file(value, source)
        else:
            yield Assignment(key, _with_text_keys(value), source)

    def _schema_of_file(self, written: str, source: str) -> Iterator[Setting]:
        """Reads a schema's file into a setting: a run that is resumed does not depend on the file."""
        from mindbatch.decoding.json_text import MOST_CHARACTERS  # few give a schema

        faults: list[str] = []
        path = settled(JSON_SCHEMA, written.strip(), input_file_fault("a JSON schema"), faults)
        if path is not None and not faults:
            try:
                with open(open_regular(Path(path)), encoding="utf-8") as file:
                    yield Assignment(JSON_SCHEMA, literal(file.read(MOST_CHARACTERS + 1)), source)
            except (OSError, ValueError) as error:
                faults.append(f"{JSON_SCHEMA}={shown(written)}: cannot be read ({error})")
        for fault in faults:
            self._log.add(f"{source}{fault}", JSON_SCHEMA)

    def takes_list(self, key: str) -> bool:
        """True if `key` is the group for which a list of options is taken."""
        return key == self._listed_group != ""

    def takes_text(self, key: str) -> bool:
        """True if the schema has `key` and its value is a text."""
        return key in self._schema.keys and self._schema.keys[key].type is str

    def knows(self, key: str) -> bool:
        """True if the schema has `key`, as a value, a section or what holds either."""
        return key in self._schema.keys or key in self._schema.sections

    def unknown(self, key: str) -> str:
        """Explains why `key` is refused, with the key that was probably meant."""
        if key.partition(".")[0] == "hydra":
            return "Hydra's own settings are fixed here"
        if any(map(is_hydra_key, key.split("."))):
            return HYDRA_NAME
        if instead := INSTEAD.get(key.rpartition(".")[2]):
            return f"unknown key; {instead}"
        near = self._schema.nearest(key)
        return f"unknown key; did you mean {near}?" if near else "unknown key"

    def _listing(self, group: str, value: str | list[Any], source: str) -> Iterator[Listing]:
        names = [value] if isinstance(value, str) else value
        if names and all(isinstance(name, str) for name in names) and len({*names}) == len(names):
            yield Listing(group, tuple(names), source)
        else:
            self._log.add(f"{source}{group}={shown(value)}: must be a list of options, each once", group)

    def _section_hint(self, section: str) -> str:
        keys = [*self._schema.of_section(section)]
        options = f"the name of an option ({section}=NAME) or " if section in self._groups else ""
        rest = f" and {len(keys) - _MOST_KEYS} more, which --help lists" if len(keys) > _MOST_KEYS else ""
        return f"must be {options}values for its keys: {', '.join(keys[:_MOST_KEYS])}{rest}"

    def _refuse_repeated(self, settings: list[Setting]) -> None:
        seen: set[str] = set()
        for setting in settings:
            name = setting.key if isinstance(setting, Assignment) else setting.group
            if name in seen:
                self._log.add(f"{setting.source}{name}: given twice", name)
            seen.add(name)


def _with_text_keys(value: Any) -> Any:
    """As YAML and JSON have it: {50256: -1} on the command line is {"50256": -1} when it is saved."""
    if isinstance(value, Mapping):
        return {str(name): _with_text_keys(item) for name, item in value.items()}
    return [_with_text_keys(item) for item in value] if isinstance(value, list) else value


def _holds_hydra_key(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(is_hydra_key(name) or _holds_hydra_key(item) for name, item in value.items())
    return isinstance(value, list) and any(_holds_hydra_key(item) for item in value)
