"""Finds the option files of the groups (`model=auto`): shipped ones, and those of --config-dir."""

import os
from dataclasses import dataclass
from pathlib import Path

from mindbatch.config.error_log import ErrorLog
from mindbatch.config.other_names import INSTEAD
from mindbatch.config.paths import near_sibling
from mindbatch.io.error_lines import did_you_mean

GLOBAL_PACKAGE = "_global_"

DEEPEST_GROUP = 3
"""Depth to which folders are searched, so that a wrong folder does not mean a search of the whole disk."""


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


class OptionFiles:
    """The groups and their options; a user may add options to shipped groups, and groups.

    groups: names of the folders of both trees, nested ones as `db/mysql`.
    """

    def __init__(self, shipped: Path, added: Path | None) -> None:
        self.shipped = shipped
        self.added = added
        own = {} if added is None else _groups(added)
        self._adds_any = any(own.values())
        self._files = _groups(shipped)
        self.hidden = sorted(
            file
            for group in filter(None, own)
            for name, file in own[group].items()
            if name in self._files.get(group, {})
        )
        """Files of the user with the name of a shipped option, which would hide them."""
        for group, files in own.items():
            self._files[group] = files | self._files.get(group, {})
        self.groups = frozenset(group for group in self._files if group)

    def names(self, group: str) -> list[str]:
        return sorted(self._files.get(group, ()))

    def file(self, group: str, option: str) -> Path | None:
        return self._files.get(group, {}).get(option)

    def check_folder(self, log: ErrorLog) -> None:
        """Adds errors of an added folder that is missing or empty, and of `hidden` files."""
        if self.added is not None and not self.added.is_dir():
            log.add(f"--config-dir {self.added}: no such folder{near_sibling(self.added)}")
        elif self.added is not None and not self._adds_any:
            groups = ", ".join(f"{group}/" for group in sorted(self.groups))
            log.add(
                f"--config-dir {self.added}: holds no .yaml files, itself or in group folders as {groups}"
            )
        for file in self.hidden:
            log.add(f"{file}: an option of this name is shipped; rename the file")

    def exists(self, choice: Choice, log: ErrorLog) -> bool:
        """True if the chosen option exists; else adds an error with the options that do."""
        group, option = choice.group, choice.option
        names = self.names(group)
        if option in names:
            return True
        if instead := INSTEAD.get(f"{group}={option}"):
            log.add(f"{choice.source}{group}={option}: {instead}", group)
            return False
        near = did_you_mean(option, names, cutoff=0.8 if group == "model" else 0.6)
        hint = f"no such option; there are {', '.join(names)}{near}"
        if group == "model" and not near:  # a folder, or the name of a model on the hub
            there = "" if os.path.isdir(option) or "/" in option else f"{hint}; "
            hint = f"{there}a folder is given as model.checkpoint_name_or_path={option}"
        log.add(f"{choice.source}{group}={option}: {hint}", group)
        return False


def _groups(top: Path) -> dict[str, dict[str, Path]]:
    """Lists the option files by group, which is '' for the folder itself, and by name."""
    groups = {}
    for path, folders, files in os.walk(top):
        folder = Path(path)
        parts = folder.relative_to(top).parts
        folders[:] = [name for name in folders if not name.startswith(".") and len(parts) < DEEPEST_GROUP]
        options = {Path(file).stem: folder / file for file in files if file.endswith(".yaml")}
        groups["/".join(parts)] = options
    return groups
