"""Reads command lines and files of settings into layers that override each other.

Values on a command line are JSON, literal texts, or written in Hydra's grammar.
"""

import os
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from mindbatch.config.error_log import ErrorLog, shown
from mindbatch.config.options import Choice
from mindbatch.config.other_names import SAVED_EARLIER
from mindbatch.config.paths import LONGEST_SHOWN
from mindbatch.config.quoting import LONGEST_ECHO, PARSER, beyond_ascii, is_plain, quoting_hint
from mindbatch.config.schema import SchemaKeys, TaskConfig
from mindbatch.config.yaml_file import is_hydra_key, read_mapping, repeated_key
from mindbatch.io.error_lines import literal
from mindbatch.io.errors import ConfigError
from mindbatch.io.strict_json import JsonError, StrictReader, value_errors

PREDICT_YAML = "model.mindformers_yaml"
OUTPUT_FOLDER = "output.dir"
MANDATORY = "???"
"""OmegaConf's mark of a mandatory value."""
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

    @property
    def refers(self) -> bool:
        """True if the value has a reference, or the mark of a mandatory value."""
        text = str(self.value)
        return "${" in text or MANDATORY in text

    @property
    def has_hydra_key(self) -> bool:
        """True if Hydra could act on a key in the value (`_target_`) instead of reading it."""
        return _has_hydra_key(self.value)


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


MODEL_FOLDER = "model.checkpoint_name_or_path"
FOLDER_KEYS = (OUTPUT_FOLDER, "hydra.run.dir", "hydra.sweep.dir")
"""The key of the folder of outputs, and Hydra's own keys for it."""

_DEEPEST = 100
"""Limit of nested lists and mappings in JSON, the same as for JSON schemas."""
_READER = StrictReader()
_QUOTED = re.compile(r"'([^'\\]*)'")
_QUOTED_TEXTS = re.compile(rf"\[\s*{_QUOTED.pattern}(?:\s*,\s*{_QUOTED.pattern})*\s*\]")


def read_command_line(
    arguments: list[str], schema: type[TaskConfig], reader: LayerReader, log: ErrorLog
) -> Layer:
    """Reads a command line in its order, positional words first; errors go to `log`."""
    words, tokens = _positional(arguments, schema, log)
    layer = Layer(words)
    for number, token in enumerate(tokens):
        if not _is_stray(token):
            layer.add(_read_one(token, reader, log))
        elif number == 0 or not _is_stray(tokens[number - 1]):
            log.add(_stray_words(tokens, number, reader))
    return layer


def json_value(token: str) -> Any:
    """Parses a value that is a JSON text, list or object, or a list of texts in single quotes; else None.

    Hydra's grammar reads most of these, but without escapes, so that "\\n" is a backslash and an n. Its time
    grows with the square of the length of a list.
    """
    name, _, written = token.partition("=")
    if name.startswith("~") or "@" in name or written.lstrip()[:1] not in ("[", "{", '"'):
        return None
    if _QUOTED_TEXTS.fullmatch(written.strip()) and "${" not in written:
        return _QUOTED.findall(written)
    try:
        return _READER.parse(written)
    except JsonError:
        return None


def key_of(token: str) -> str:
    """Returns the key of an override. `+key` and `++key` mean `key`: the schema decides what exists."""
    return token.partition("=")[0].lstrip("+~").partition("@")[0]


def _positional(
    arguments: list[str], schema: type[TaskConfig], log: ErrorLog
) -> tuple[list[Assignment], list[str]]:
    """Converts the words among `arguments` to settings of positional keys; returns the rest as well.

    A word has no `=`, or a slash before it, as a path may have and a key has not. It is a literal text.
    """
    if not schema.positional and not schema.positional_rest:
        return [], arguments
    words = [argument for argument in arguments if _is_word(argument)]
    rest = [argument for argument in arguments if not _is_word(argument)]
    names = schema.positional
    settings = [Assignment(name, literal(word)) for name, word in zip(names, words, strict=False)]
    further = words[len(names) :]
    if further and schema.positional_rest:
        settings.append(Assignment(schema.positional_rest, [literal(word) for word in further]))
    elif further:
        for extra in further:
            log.add(f"{shown(extra)}: one too many; only {', '.join(names)} may be given without key=")
    keys = {argument.partition("=")[0].strip() for argument in rest}
    for name, word in zip((*names, schema.positional_rest), words, strict=False):
        if name in keys:
            log.add(f"{name}: given twice, as {shown(word, LONGEST_SHOWN)} and as {name}=", name)
    return settings, rest


def _is_word(argument: str) -> bool:
    key, equals, _ = argument.partition("=")
    return not argument.startswith("~") and (not equals or "/" in key)


def _is_stray(token: str) -> bool:
    return "=" not in token and not token.startswith("~")


def _stray_words(tokens: list[str], first: int, reader: LayerReader) -> str:
    """Words the error of successive words without a key, most often a text that needs quotes in the shell."""
    words = [*takewhile(_is_stray, tokens[first:])]
    error = f"{shown(' '.join(words))}: must be KEY=VALUE"
    before = tokens[first - 1] if first else ""
    whole, key = " ".join([before, *words]), key_of(before)
    if (key == "prompts" or reader.takes_text(key)) and is_plain(before) and len(whole) <= LONGEST_ECHO:
        return f"{error}; a text with spaces is quoted: {shlex.quote(whole)}"
    is_model = len(words) == 1 and reader.knows(MODEL_FOLDER) and _is_model(words[0])
    return f"{error}; a model is given as {MODEL_FOLDER}={words[0]}" if is_model else error


def _read_one(token: str, reader: LayerReader, log: ErrorLog) -> Layer:
    key = key_of(token)
    if not key:
        log.add(f"{shown(token)}: has no key; write key=value")
        return Layer()
    if key in FOLDER_KEYS[1:] and reader.knows(OUTPUT_FOLDER):
        return _read_one(OUTPUT_FOLDER + token.partition(key)[2], reader, log)
    as_text = reader.takes_text(key, token.partition("=")[2].strip()) and not token.startswith("~")
    if not as_text and (value := json_value(token)) is not None:
        errors = value_errors(value, key, _DEEPEST)
        for line in errors:
            log.add(line, key)
        return Layer() if errors else reader.read(key, value)
    keeps_letters = as_text and is_plain(token)
    try:
        override = PARSER.parse_override(token)
        if keeps_letters and override.is_sweep_override():  # a comma
            return reader.read(key, token.partition("=")[2])
        if override.is_sweep_override() and reader.takes_list(key):  # a comma, too
            return reader.read(key, [name.strip() for name in token.partition("=")[2].split(",")])
        if override.is_sweep_override():
            error: str | None = f"several values need --multirun; for one value, {quoting_hint(token)}"
        elif override.is_delete() or override.package is not None:
            return _structural(override, token, reader, log)
        elif not as_text and (name := repeated_key(token.partition("=")[2])) is not None:
            error = f"{shown(name)} is given twice"
        else:
            written = token if token.startswith("+") else ""
            return reader.read(key, _value(override, token, as_text), override=written)
    except (HydraException, ValueError, RecursionError):  # the last two: absurdly long numbers, deep nesting
        if keeps_letters:
            return reader.read(key, token.partition("=")[2])
        if not reader.knows(key):
            return reader.read(key, None)
        if (text := beyond_ascii(token)) is not None:
            return reader.read(key, text)
        error = f"cannot be read; {quoting_hint(token, as_text)}"
    log.add(f"{shown(token)}: {error}", key)
    return Layer()


def _structural(override: Override, token: str, reader: LayerReader, log: ErrorLog) -> Layer:
    """Reads `~group`, `~key` and `group@package=option`."""
    key = override.key_or_group
    if key in reader.groups and (override.is_delete() or isinstance(override.value(), str)):
        return Layer(choices=[Choice(key, "" if override.is_delete() else str(override.value()), token)])
    if override.package is not None:
        log.add(
            f"{shown(token)}: {shown(key)} is no group; only the option of a group has a package (@)", key
        )
    elif override.value() is not None:
        log.add(f"{shown(token)}: write ~{key}, without a value, for its default", key)
    else:
        return reader.defaults_of(key)
    return Layer()


def _value(override: Override, token: str, as_text: bool) -> Any:
    """Returns the value of an override, or its literal text if Hydra reads another type where a text is due.

    As texts, 2024_11 and 1e3 are names, and [abc] and \\(a\\) are regular expressions.
    """
    value, written = override.value(), token.partition("=")[2].strip()
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_escaped = isinstance(value, str) and "\\" in written and is_plain(token)
    to_the_letter = is_number or is_escaped or (isinstance(value, list | dict) and "${" not in written)
    return written if as_text and to_the_letter else value


def _has_hydra_key(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(is_hydra_key(name) or _has_hydra_key(item) for name, item in value.items())
    return isinstance(value, list) and any(map(_has_hydra_key, value))


def _is_model(word: str) -> bool:
    return os.path.isfile(f"{word}/config.json") or (word.endswith(".gguf") and os.path.isfile(word))
