"""Finds the files that a pattern matches, as Python's `glob` does, and gives up where it covers too much."""

import os
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

MAX_LOOKED_AT = 100_000
"""Maximum number of files and folders that a search looks at: a whole machine has millions."""
_MAGIC = {*"*?["}
_ANY_DEPTH = "**"


class TooMany(ValueError):
    """A pattern covers more than MAX_LOOKED_AT files and folders."""

    def __init__(self) -> None:
        super().__init__(
            f"it covers more than {MAX_LOOKED_AT:,} files and folders; name the folder more closely"
        )


def is_pattern(path: Path | str) -> bool:
    return bool(_MAGIC & {*str(path)})


def matches(name: str, pattern: str) -> bool:
    """True if a name with folders matches a pattern, as for files here; both are relative, with slashes."""
    return _parts_match(name.split("/"), pattern.split("/"))


def _parts_match(names: Sequence[str], parts: Sequence[str]) -> bool:
    if not parts or not names:
        return not parts and not names
    if parts[0] == _ANY_DEPTH:
        return _parts_match(names, parts[1:] or ("*",)) or (
            not names[0].startswith(".") and _parts_match(names[1:], parts)
        )
    is_shown = not names[0].startswith(".") or parts[0].startswith(".")
    return is_shown and fnmatchcase(names[0], parts[0]) and _parts_match(names[1:], parts[1:])


def matching_files(pattern: Path) -> list[Path]:
    """Returns the files that match, sorted; `**` stands for folders of any depth, and hidden names are left
    out.

    Raises:
        TooMany: it covers too many files and folders.
    """
    return sorted({path for path in _matches(pattern) if path.is_file()})


def has_match(pattern: Path) -> bool:
    """True if there is a file or folder that matches. Raises TooMany."""
    return next(_matches(pattern), None) is not None


def _matches(pattern: Path) -> Iterator[Path]:
    if pattern.anchor:
        return _Search().matches(Path(pattern.anchor), pattern.parts[1:])
    return _Search().matches(Path(), pattern.parts)


class _Search:
    """Counts what it looks at, over all folders."""

    def __init__(self) -> None:
        self._num_left = MAX_LOOKED_AT

    def matches(self, folder: Path, parts: Sequence[str]) -> Iterator[Path]:
        """Yields all that matches the parts of a pattern, from a folder on."""
        if not parts:
            yield folder
            return
        first, rest = parts[0], parts[1:]
        if first == _ANY_DEPTH:
            # A file counts for the folders between, too, where nothing follows them.
            yield from self.matches(folder, rest or ("*",))
            for entry in self._entries(folder):
                if not entry.name.startswith(".") and _is_folder(entry):
                    yield from self.matches(folder / entry.name, parts)
        elif _MAGIC & {*first}:
            for entry in self._entries(folder):
                is_shown = not entry.name.startswith(".") or first.startswith(".")
                if is_shown and fnmatchcase(entry.name, first) and (not rest or _is_folder(entry)):
                    yield from self.matches(folder / entry.name, rest)
        elif os.path.lexists(folder / first):
            yield from self.matches(folder / first, rest)

    def _entries(self, folder: Path) -> Iterator[os.DirEntry[str]]:
        """Lists a folder; nothing where it cannot be listed."""
        try:
            with os.scandir(folder) as entries:
                listed = []
                for entry in entries:
                    self._num_left -= 1
                    if self._num_left < 0:
                        raise TooMany
                    listed.append(entry)
        except OSError:
            return
        yield from listed


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False
