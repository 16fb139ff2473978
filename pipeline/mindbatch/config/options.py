"""The options of the groups (`model=auto`), shipped and the user's own: their files, and what these set."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mindbatch.config.faults import FaultLog, shown
from mindbatch.config.paths import near_sibling
from mindbatch.config.schema import SchemaKeys
from mindbatch.config.settings import Assignment, Choice, SettingReader
from mindbatch.config.yaml_file import read_mapping
from mindbatch.errors import ConfigError
from mindbatch.fault_lines import did_you_mean

_NAME = re.compile(r"[A-Za-z][\w.-]*", re.ASCII)
"""Names that need no quoting in an override."""


class OptionFiles:
    """The options of every group: the shipped ones, and those in the folder a user added.

    `groups` are the folders of the shipped tree; a user adds options to them, not groups of their own.
    """

    def __init__(self, shipped: Path, added: Path | None) -> None:
        self.shipped = shipped
        self.added = added
        self.groups = frozenset(entry.name for entry in shipped.iterdir() if entry.is_dir())

    def names(self, group: str) -> list[str]:
        """The options of `group`, sorted."""
        return sorted(_files(self.shipped / group).keys() | self._added(group).keys())

    def check_folder(self, log: FaultLog) -> None:
        """Notes an added folder that is missing or adds nothing, and options that would hide shipped ones."""
        if self.added is None:
            return
        groups = ", ".join(f"{group}/" for group in sorted(self.groups))
        if not self.added.is_dir():
            log.add(f"--config-dir {self.added}: no such folder{near_sibling(self.added)}")
        elif not any((self.added / group).is_dir() for group in self.groups):
            log.add(f"--config-dir {self.added}: holds none of the group folders {groups}")
        for group in sorted(self.groups):
            for name in sorted(_files(self.shipped / group).keys() & self._added(group).keys()):
                log.add(f"{self._added(group)[name]}: an option of this name is shipped; rename the file")

    def exists(self, choice: Choice, log: FaultLog) -> bool:
        """True if the chosen option exists; if not, the options that do go to `log`."""
        group, option = choice.group, choice.option
        names = self.names(group)
        if option in names:
            return True
        near = did_you_mean(option, names, cutoff=0.8 if group == "model" else 0.6)
        hint = f"no such option; there are {', '.join(names)}{near}"
        if group == "model" and not near:  # a folder, or the name of a model on the hub
            there = "" if os.path.isdir(option) or "/" in option else f"{hint}; "
            hint = f"{there}a folder is given as model.checkpoint_name_or_path={option}"
        log.add(f"{choice.source}{group}={option}: {hint}", group)
        return False

    def file(self, group: str, option: str) -> Path | None:
        """The file of an option, if there is one."""
        return _files(self.shipped / group).get(option) or self._added(group).get(option)

    def _added(self, group: str) -> dict[str, Path]:
        return _files(self.added / group) if self.added else {}


def _files(folder: Path) -> dict[str, Path]:
    """Option name -> file, for the option files directly in `folder`."""
    try:
        entries = list(folder.iterdir())
    except OSError:
        return {}
    return {entry.stem: entry for entry in entries if entry.suffix == ".yaml" and _NAME.fullmatch(entry.stem)}


class OptionReader:
    """Reads what options set: every file that Hydra would read for a choice. Faults go to `log`."""

    def __init__(self, options: OptionFiles, keys: SchemaKeys, log: FaultLog) -> None:
        self._options = options
        self._settings = SettingReader(keys, options.groups, log)
        self._log = log

    def read(self, choice: Choice) -> list[Assignment]:
        """Reads an option's settings in the order of application: first the options that it builds on."""
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
