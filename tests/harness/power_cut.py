"""What a disk may hold after a power cut: what was synced, and any part of what was not.

The model is as weak as POSIX: an unsynced file has any part of its new bytes, or zeros in their place. A name
that was made, changed or removed is sure only once its folder was synced; those of one folder come in order.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.faulty_storage import CountingStorage


class PowerCut(BaseException):
    """There is no power: not even tidying up can be done."""


@dataclass(eq=False)
class File:
    """A file's bytes: `synced` are on the disk, `now` is what a reader sees; the first `same` are both."""

    synced: bytes = b""
    now: bytes = b""
    same: int = 0

    def after_cut(self, chance: random.Random) -> bytes:
        """Some content that the disk may hold."""
        if self.now == self.synced:
            return self.synced
        kind = chance.choice(["synced", "now", "prefix", "zeros", "hole"])
        if kind in ("synced", "now"):
            return self.synced if kind == "synced" else self.now
        kept = chance.randint(self.same, len(self.now))
        if kind == "prefix":
            return self.now[:kept]
        if kind == "zeros":
            return self.now[:kept] + bytes(len(self.now) - kept)
        return self.now[: self.same] + bytes(kept - self.same) + self.now[kept:]


Node = File | None  # None: a folder
Change = tuple[Path, Node, bool]  # a name, what it names, whether it does from then on


@dataclass
class Names:
    """A folder's names: on the disk, and the changes that are not, each a group that comes whole."""

    synced: dict[Path, Node] = field(default_factory=dict)
    pending: list[list[Change]] = field(default_factory=list)

    def now(self) -> dict[Path, Node]:
        """The names that a reader sees."""
        return self.after(len(self.pending))

    def after(self, num_changes: int) -> dict[Path, Node]:
        """The names once so many changes have reached the disk."""
        names = dict(self.synced)
        for change in self.pending[:num_changes]:
            for path, node, is_there in change:
                names.pop(path, None)
                if is_there:
                    names[path] = node
        return names


class PowerCutStorage(CountingStorage):
    """Works on real files for `place` operations; `restore` then lays out what the disk may hold."""

    def __init__(self, root: Path, place: int) -> None:
        super().__init__()
        self._root = root
        self._place = place
        self._folders: dict[Path, Names] = {}
        self._open: dict[int, File] = {}
        self._take_in(root)

    def revive(self, num_operations: int) -> None:
        """The process had died, not the machine: nothing is lost yet, and the next one works for a while."""
        self._open.clear()
        self._place = len(self.operations) + num_operations

    def _take_in(self, folder: Path) -> None:
        """What is there at first counts as synced."""
        names = self._folders[folder] = Names()
        for path in folder.iterdir():
            if path.is_dir():
                names.synced[path] = None
                self._take_in(path)
            else:
                content = path.read_bytes()
                names.synced[path] = File(content, content, len(content))

    def perform(self, name: str, operation: Callable[[], Any], arguments: tuple[Any, ...]) -> Any:
        if len(self.operations) >= self._place:
            if name == "close":
                operation()  # of this process's own, it has only so many
            raise PowerCut
        result = super().perform(name, operation, arguments)
        if name in ("create", "append"):
            self._opened(result, *arguments)
        else:
            getattr(self, f"_on_{name}")(*arguments)
        return result

    def _node(self, path: Path) -> Node:
        return self._folders[path.parent].now().get(path)

    def _opened(self, number: int, path: Path) -> None:
        existing = self._node(path)
        self._open[number] = existing or File()
        if existing is None:
            self._folders[path.parent].pending.append([(path, self._open[number], True)])

    def _on_write(self, number: int, data: bytes) -> None:
        self._open[number].now += data

    def _on_sync(self, number: int) -> None:
        file = self._open[number]
        file.synced, file.same = file.now, len(file.now)

    def _on_truncate(self, number: int, size: int) -> None:
        file = self._open[number]
        file.now, file.same = file.now[:size], min(file.same, size)

    def _on_close(self, number: int) -> None:
        del self._open[number]

    def _on_replace(self, source: Path, target: Path) -> None:
        assert source.parent == target.parent, "a rename across folders is not one change"
        change = [(source, None, False), (target, self._node(source), True)]
        self._folders[source.parent].pending.append(change)

    def _on_remove(self, path: Path) -> None:
        self._folders[path.parent].pending.append([(path, None, False)])

    def _on_make_folder(self, path: Path) -> None:
        self._folders[path] = Names()
        self._folders[path.parent].pending.append([(path, None, True)])

    def _on_sync_folder(self, folder: Path) -> None:
        self._folders[folder] = Names(self._folders[folder].now())

    def restore(self, target: Path, chance: random.Random) -> None:
        """Makes `target` a disk after the cut, one of those that may be."""
        target.mkdir()
        self._restore(self._root, target, chance)

    def _restore(self, folder: Path, target: Path, chance: random.Random) -> None:
        names = self._folders[folder]
        for path, node in names.after(chance.randrange(len(names.pending) + 1)).items():
            if node is None:
                (target / path.name).mkdir()
                self._restore(path, target / path.name, chance)
            else:
                (target / path.name).write_bytes(node.after_cut(chance))
