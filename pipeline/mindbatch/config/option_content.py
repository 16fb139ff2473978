"""Strict reading of option files, the shipped and the user's own, before Hydra reads any of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mindbatch.config.faults import FaultLog
from mindbatch.config.options import OptionFiles
from mindbatch.config.schema import SchemaKeys
from mindbatch.config.settings import Assignment, Choice, SettingReader, shown
from mindbatch.config.yaml_file import read_mapping
from mindbatch.errors import ConfigError
from mindbatch.fault_lines import did_you_mean


class OptionReader:
    """Reads what options set: every file that Hydra would read for a choice. Faults go to `log`."""

    def __init__(self, options: OptionFiles, keys: SchemaKeys, log: FaultLog) -> None:
        self._options = options
        self._settings = SettingReader(keys, options.groups, log)
        self._log = log

    def read(self, choice: Choice) -> list[Assignment]:
        """What the chosen option sets, in the order of application: first the options that it builds on."""
        return list(self._walk(choice.group, choice.option, ()))

    def _walk(self, group: str, option: str, ancestors: tuple[str, ...]) -> Iterator[Assignment]:
        file = self._options.file(group, option)
        if file is None:
            return
        if option in ancestors:
            self._log.add(f"{file}: its defaults lead back to itself")
            return
        content = self._content(file)
        for name in self._base_options(content.pop("defaults", []), file, group):
            yield from self._walk(group, name, (*ancestors, option))
        for key, value in content.items():
            for setting in self._settings.read(f"{group}.{key}", value, f"{file}: "):
                if isinstance(setting, Assignment):
                    yield setting

    def _content(self, file: Path) -> dict[str, Any]:
        try:
            return read_mapping(file)
        except ConfigError as error:
            for line in error.faults:
                self._log.add(line)
            return {}

    def _base_options(self, defaults: Any, file: Path, group: str) -> Iterator[str]:
        """The options that `file` builds on: names of the same group; no paths, packages or other groups."""
        if not isinstance(defaults, list):
            self._log.add(f"{file}: defaults: must be a list of options of {group}")
            return
        names = self._options.names(group)
        for entry in defaults:
            if entry in names:
                yield entry
            elif entry != "_self_":
                near = did_you_mean(str(entry), names)
                self._log.add(f"{file}: defaults: {shown(entry)}: must be an option of {group}{near}")
