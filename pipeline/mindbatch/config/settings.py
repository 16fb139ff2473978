"""Settings as given on the command line or in a file: values for keys, and choices of group options."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mindbatch.config.error_log import ErrorLog, shown
from mindbatch.config.paths import (
    LONGEST_SHOWN,
    SAVED_CONFIG,
    input_file_error,
    near_sibling,
    resolve_path,
    settled,
)
from mindbatch.config.schema import INSTEAD, SAVED_EARLIER, SchemaKeys
from mindbatch.config.yaml_file import HYDRA_NAME, is_hydra_key, read_mapping
from mindbatch.io.error_lines import literal, nearest
from mindbatch.io.errors import ConfigError
from mindbatch.io.regular_file import open_regular

JSON_SCHEMA = "decoding.json_schema"
PREDICT_YAML = "model.mindformers_yaml"
FIXED_SETTINGS = "Hydra's own settings are fixed here"
OPTION = "option"
"""In an entry of a list of options that is a mapping, the key of the option that its values go before."""
Source = Callable[[str], str]
"""Locates the file that sets a key, as the prefix of an error line: `run.yaml: `; nothing for none."""
_MOST_KEYS = 4
"""Most keys of a section that an error line names: enough to show what its keys look like."""


@dataclass(frozen=True)
class Assignment:
    key: str
    value: Any
    source: str = ""
    """Prefix of an error line: `run.yaml: `, or nothing for the command line."""


@dataclass(frozen=True)
class Choice:
    """The choice of an option file for a group: `model=tiny_gpt2`."""

    group: str
    option: str
    """Empty where the group is left out: `~model`."""

    override: str
    """In Hydra's grammar, where it may have more than group and option: `+experiment=quick`."""

    source: str = ""


@dataclass(frozen=True)
class Listed:
    """One entry of a list of options, which makes a variant of the configuration: `decoding=[greedy,beam4]`.

    It is an option, values, or an option with values that go before its own.
    """

    option: str = ""
    values: tuple[Assignment, ...] = ()
    source: str = ""

    @property
    def name(self) -> str:
        """Its name among the others: `top_p`, `seed=1`, `top_p,seed=1`."""
        values = (f"{item.key.rpartition('.')[2]}={shown(item.value)}" for item in self.values)
        return ",".join((*filter(None, [self.option]), *values))

    @property
    def written(self) -> Any:
        values = {item.key.rpartition(".")[2]: item.value for item in self.values}
        return ({OPTION: self.option} if self.option else {}) | values if values else self.option


@dataclass
class Layer:
    """The settings of one source: a file, a command line.

    Its options go before the layers below, its values before those; the last list of options counts.
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
    """By key, the last value that a layer assigns."""
    return {setting.key: setting.value for layer in layers for setting in layer.assignments}


class SettingReader:
    """Turns keys and raw values into layers, noting the keys that the schema does not have.

    listed_group: the group for which a list of options is taken.
    """

    def __init__(
        self, schema: SchemaKeys, groups: frozenset[str], log: ErrorLog, listed_group: str = ""
    ) -> None:
        self.schema = schema
        self.groups = groups
        self._listed_group = listed_group
        self._log = log

    def read_file(self, path: Path) -> Layer:
        """The settings of a --config file; its errors go to the log."""
        try:
            content = read_mapping(path)
        except ConfigError as error:
            for line in error.lines:
                self._log.add_unread(line, self.schema.keys)
            return Layer()
        layer = self.read_all(content, lambda key: f"{path}: ")
        for key, count in Counter(setting.key for setting in layer.assignments).items():
            if count > 1:
                self._log.add(f"{path}: {key}: given twice", key)
        return layer

    def read_all(self, content: Mapping[str, Any], source: Source) -> Layer:
        layer = Layer()
        for key, value in content.items():
            layer.add(self.read(key, value, source))
        return layer

    def read(self, key: str, value: Any, source: Source = lambda key: "", override: str = "") -> Layer:
        """The setting that `key` with `value` stands for, or one for each key below a section.

        override: in Hydra's grammar, where it is more than `key=value`.
        """
        where = source(key)
        if self.takes_list(key) and isinstance(value, str | list):
            return Layer(listing=self._listing(key, value, where))
        if key in self.groups and isinstance(value, str):
            return Layer(choices=[Choice(key, value, override or f"{key}={value}", where)])
        if key in self.schema.sections and isinstance(value, Mapping):
            return self.read_all({f"{key}.{name}": item for name, item in value.items()}, source)
        if key in self.schema.sections:
            self._log.add(f"{where}{key}={shown(value)}: {self._section_hint(key)}", key)
        elif where and value in SAVED_EARLIER.get(key, ()):
            return Layer()
        elif key not in self.schema.keys:
            self._log.add(f"{where}{key}: {self.unknown(key)}")
        elif _holds_hydra_key(value):
            self._log.add(f"{where}{key}: {HYDRA_NAME}", key)
        elif key == JSON_SCHEMA and isinstance(value, str) and value.strip().endswith(".json"):
            return Layer([*self._schema_of_file(value, where)])
        else:
            return Layer([Assignment(key, _with_text_keys(value), where)])
        return Layer()

    def _schema_of_file(self, written: str, source: str) -> Iterator[Assignment]:
        """Reads a schema's file into a setting: a run that is resumed does not depend on the file."""
        from mindbatch.decoding.grammar import MOST_CHARACTERS  # few give a schema

        errors: list[str] = []
        path = settled(JSON_SCHEMA, written.strip(), input_file_error("a JSON schema"), errors)
        if path is not None and not errors:
            try:
                with open(open_regular(Path(path)), encoding="utf-8") as file:
                    yield Assignment(JSON_SCHEMA, literal(file.read(MOST_CHARACTERS + 1)), source)
            except (OSError, ValueError) as error:
                errors.append(f"{JSON_SCHEMA}={shown(written)}: cannot be read ({error})")
        for problem in errors:
            self._log.add(f"{source}{problem}", JSON_SCHEMA)

    def defaults_of(self, key: str) -> Layer:
        """The default of a key, or of each in a section; an unknown one goes to the log."""
        names = [name for name in self.schema.keys if name == key or name.startswith(f"{key}.")]
        if not names:
            self._log.add(f"~{key}: {self.unknown(key)}")
        return Layer([Assignment(name, self.schema.keys[name].default) for name in names])

    def takes_list(self, key: str) -> bool:
        return key == self._listed_group != ""

    def takes_text(self, key: str, written: str = "") -> bool:
        """True if what is written for the key is a text to the letter."""
        declared = self.schema.keys.get(key)
        is_list = written[:1] == "[" and written[-1:] == "]"
        return declared is not None and (
            declared.type is str or (declared.kind.is_text_or_list and not is_list)
        )

    def knows(self, key: str) -> bool:
        return key in self.schema.keys or key in self.schema.sections

    def unknown(self, key: str) -> str:
        """Explains why `key` is refused, with the key that was probably meant."""
        if key.partition(".")[0] == "hydra":
            return f"{FIXED_SETTINGS}; --multirun, --cfg and --config-name are flags"
        if any(map(is_hydra_key, key.split("."))):
            return HYDRA_NAME
        if instead := INSTEAD.get(key.rpartition(".")[2]) or INSTEAD.get(key.partition(".")[0]):
            return f"unknown key; {instead}"
        near = self.schema.nearest(key) or nearest(key, self.groups, cutoff=0.8)
        return f"unknown key; did you mean {near}?" if near else "unknown key"

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

    def _section_hint(self, section: str) -> str:
        keys = [*self.schema.of_section(section)]
        options = f"the name of an option ({section}=NAME) or " if section in self.groups else ""
        rest = (
            f" and {len(keys) - _MOST_KEYS} more, which --help={section} lists"
            if len(keys) > _MOST_KEYS
            else ""
        )
        return f"must be {options}values for its keys: {', '.join(keys[:_MOST_KEYS])}{rest}"


def _with_text_keys(value: Any) -> Any:
    """As YAML and JSON have it: {50256: -1} on the command line is {"50256": -1} when it is saved."""
    if isinstance(value, Mapping):
        return {str(name): _with_text_keys(item) for name, item in value.items()}
    return [_with_text_keys(item) for item in value] if isinstance(value, list) else value


def _holds_hydra_key(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(is_hydra_key(name) or _holds_hydra_key(item) for name, item in value.items())
    return isinstance(value, list) and any(_holds_hydra_key(item) for item in value)


OUTPUT_FOLDER = "output.dir"
NOT_CONTINUED = {"output.on_mismatch"}
"""Keys not taken from the saved configuration: what a first command says about a folder that already exists
is not meant for the run made there since."""


def read_saved(values_above: Mapping[str, Any], reader: SettingReader, log: ErrorLog) -> Layer:
    """The settings saved in the folder that `values_above` name, wherever that was moved to.

    Raises ConfigError when there are none: without them everything else would look like an error, too.
    """
    num_errors = len(log.lines)
    file = _saved_file(values_above, log)
    layer = reader.read_file(file) if file else Layer()
    if len(log.lines) > num_errors:
        log.raise_if_any()
    layer.assignments = [item for item in layer.assignments if item.key not in NOT_CONTINUED]
    return layer


def _saved_file(values: Mapping[str, Any], log: ErrorLog) -> Path | None:
    if OUTPUT_FOLDER not in values:
        log.add(f"{OUTPUT_FOLDER}: must be given: the folder of the run", OUTPUT_FOLDER)
        return None
    written = values[OUTPUT_FOLDER]
    try:
        folder = resolve_path(resolved_text(written, "the folder of a run"))
        if (folder / SAVED_CONFIG).is_file():
            return folder / SAVED_CONFIG
        reason = _why_no_run(folder)
    except OSError as error:
        reason = f"cannot be used ({error.strerror})"
    except ValueError as error:
        reason = str(error)
    log.add(f"{OUTPUT_FOLDER}={shown(written, LONGEST_SHOWN)}: {reason}", OUTPUT_FOLDER)
    return None


def _why_no_run(folder: Path) -> str:
    if folder.is_dir():
        return f"holds no run (there is no {SAVED_CONFIG})"
    return (
        "is a file; give the folder of a run" if folder.exists() else f"no such folder{near_sibling(folder)}"
    )


def resolved_text(written: object, meaning: str) -> str:
    """The text that `written` stands for, with variables of the environment. Raises ValueError for none."""
    from omegaconf import OmegaConf  # not for help
    from omegaconf.errors import OmegaConfBaseException

    try:
        text = OmegaConf.create({"text": written}).text
    except OmegaConfBaseException as error:
        raise ValueError("has no value") from error
    if not isinstance(text, str) or not text:
        raise ValueError(f"must be {meaning}")
    return text
