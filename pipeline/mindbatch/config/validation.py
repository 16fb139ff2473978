"""Validates a composed configuration in one pass: unknown keys, references, types and allowed values."""

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from omegaconf.resolvers import oc

from mindbatch.config.error_log import ErrorLog, shown
from mindbatch.config.other_names import INSTEAD
from mindbatch.config.paths import LONGEST_SHOWN, input_file_error, resolve_path
from mindbatch.config.schema import Key, SchemaKeys
from mindbatch.config.settings import MANDATORY, Assignment
from mindbatch.config.yaml_file import HYDRA_NAME, is_hydra_key
from mindbatch.io.error_lines import literal, nearest
from mindbatch.io.regular_file import open_regular
from mindbatch.io.screen_text import hide

JSON_SCHEMA = "decoding.json_schema"
FIXED_SETTINGS = "Hydra's own settings are fixed here"
_MAX_KEYS = 4
"""Number of keys of a section that an error line names as examples."""
_ESCAPE = "${ begins a reference; write \\${ for the characters themselves"
_ENVIRONMENT = re.compile(r"\$\{oc\.env:\s*(\w+)\s*\}")


def _environment_value(name: str, *default: Any) -> Any:
    """Resolves oc.env as OmegaConf does, and hides its values in all later output."""
    value = oc.env(name, *default)
    if name in os.environ:
        hide(os.environ[name], f"${{oc.env:{name}}}")
    return value


OmegaConf.register_new_resolver("oc.env", _environment_value, replace=True)

Assignments = dict[str, Assignment]
"""The last assignment for each key, in the order of the layers."""


class Validator:
    """Validates assignments and returns typed values; a wrong value is logged and replaced by its default.

    groups: names of groups, which are suggested for unknown keys, too.
    """

    def __init__(self, keys: SchemaKeys, groups: frozenset[str], log: ErrorLog) -> None:
        self._keys = keys
        self._groups = groups
        self._log = log

    def typed(self, settings: Assignments, *, resolves: bool = True) -> dict[str, Any]:
        """Returns the normalised value of every key, and converts those in `settings` to their types.

        resolves: False leaves the default for values with references.
        """
        self._read_schema_file(settings)
        values = {name: _default(key) for name, key in self._keys.keys.items()}
        references = {}
        for name, setting in settings.items():
            if (key := self._keys.keys.get(name)) is None:
                self._log.add(f"{setting.source}{name}{self._why_unknown(setting)}", name)
            elif setting.has_hydra_key:
                self._log.add(f"{setting.source}{name}: {HYDRA_NAME}", name)
            elif setting.refers:
                references[name] = setting
            else:
                self._read(key, setting, settings, values)
        if references and resolves:
            self._resolve(references, values)
        return values

    def _read_schema_file(self, settings: Assignments) -> None:
        """Replaces the file of a schema by its content, so that a resumed run does not depend on the file."""
        setting = settings.get(JSON_SCHEMA)
        if setting is None or not str(setting.value).strip().endswith(".json"):
            return
        try:
            settings[JSON_SCHEMA] = replace(setting, value=_text_of_schema(setting.value.strip()))
        except ValueError as error:
            written = shown(setting.value, LONGEST_SHOWN)
            self._log.add(f"{setting.source}{JSON_SCHEMA}={written}: {error}", JSON_SCHEMA)
            del settings[JSON_SCHEMA]

    def _read(self, key: Key, setting: Assignment, settings: Assignments, values: dict[str, Any]) -> None:
        try:
            value = key.converted(setting.value)
            settings[key.name] = replace(setting, value=value)
            if key.kind.is_plain:
                values[key.name] = value  # even if not allowed: no errors follow from the default
            values[key.name] = key.read(value)
            self._log.mark_valid(key.name)
        except (ValueError, RecursionError) as error:
            why = f"must be {key.takes}" if isinstance(error, RecursionError) else error
            self._refuse(setting, why)

    def _resolve(self, references: Assignments, values: dict[str, Any]) -> None:
        """Resolves references into `values`. No error shows a resolved value, because it may be a secret."""
        tree = OmegaConf.create(nested(values))
        for name, setting in references.items():
            try:
                OmegaConf.update(tree, name, setting.value, merge=False)
            except OmegaConfBaseException:
                self._refuse(setting, _ESCAPE)
        for name, setting in references.items():
            key = self._keys.keys[name]
            try:
                value = OmegaConf.select(tree, name, throw_on_missing=True)
                if OmegaConf.is_config(value):
                    value = OmegaConf.to_container(value, resolve=True, throw_on_missing=True)
                values[name] = key.read(key.converted(value))
                self._log.mark_valid(name)
            except (OmegaConfBaseException, ValueError) as error:
                self._refuse(setting, _why_unresolved(error, setting.value, key))

    def _refuse(self, setting: Assignment, why: object) -> None:
        self._log.add(f"{setting.source}{setting.key}={shown(setting.value)}: {why}", setting.key)

    def _why_unknown(self, setting: Assignment) -> str:
        if setting.key not in self._keys.sections:
            return f": {self.unknown(setting.key)}"
        section, keys = setting.key, self._keys.of_section(setting.key)
        options = f"the name of an option ({section}=NAME) or " if section in self._groups else ""
        more = len(keys) - _MAX_KEYS
        rest = f" and {more} more, which --help={section} lists" if more > 0 else ""
        listed = ", ".join(keys[:_MAX_KEYS])
        return f"={shown(setting.value)}: must be {options}values for its keys: {listed}{rest}"

    def unknown(self, name: str) -> str:
        """Explains why the key `name` is refused, and suggests the key that was probably meant."""
        if name.partition(".")[0] == "hydra":
            return f"{FIXED_SETTINGS}; --multirun, --cfg and --config-name are flags"
        if any(map(is_hydra_key, name.split("."))):
            return HYDRA_NAME
        for part in (name.partition(".")[0], name.rpartition(".")[2]):
            if part in INSTEAD:
                return f"unknown key; {INSTEAD[part]}"
        if name in self._keys.left_out or name in self._groups:
            return "this task has no such key"
        near = self._keys.nearest(name) or nearest(name, self._groups, cutoff=0.8)
        return f"unknown key; did you mean {near}?" if near else "unknown key"


def _default(key: Key) -> Any:
    """Returns the default as a file would give it: YAML has lists, not tuples."""
    return key.read([*key.default]) if isinstance(key.default, tuple) else key.default


def written_values(settings: Assignments, keys: SchemaKeys) -> dict[str, Any]:
    """Returns the value of every key as written, with each ${...}, or else its default."""
    return {
        name: settings[name].value if name in settings else key.default for name, key in keys.keys.items()
    }


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Converts values by dotted key to nested mappings."""
    tree: dict[str, Any] = {}
    for name, value in values.items():
        *sections, leaf = name.split(".")
        branch = tree
        for section in sections:
            branch = branch.setdefault(section, {})
        branch[leaf] = value
    return tree


def _why_unresolved(error: Exception, written: Any, key: Key) -> str:
    if isinstance(error, MissingMandatoryValue):
        return f"{MANDATORY} stands for a value that must be given; set one"
    if not isinstance(error, OmegaConfBaseException):
        return f"what it stands for must be {key.takes}"
    unset = [name for name in _ENVIRONMENT.findall(str(written)) if name not in os.environ]
    if unset:
        return f"the environment variable {', '.join(unset)} is not set"
    return f"has no value; {_ESCAPE}"


def _text_of_schema(written: str) -> str:
    """Reads the file of a JSON schema. Raises ValueError."""
    from mindbatch.decoding.grammar import MAX_CHARACTERS  # few give a schema

    path = resolve_path(written)
    if problem := input_file_error("a JSON schema")(path):
        raise ValueError(problem)
    try:
        with open(open_regular(path), encoding="utf-8") as file:
            return literal(file.read(MAX_CHARACTERS + 1))
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot be read ({error})") from error
