"""Storage that loses power after some operations, and what the disk may hold then.

As weak as POSIX: of the writes to a file that were not synced, any part of each may be there; a file that
has grown may have zeros instead. A name that was made, changed or removed is sure once its folder was synced.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock
from typing import Any

from harness.faulty_storage import CountingStorage


class PowerCut(BaseException):
    """There is no power: not even tidying up can be done."""


class PowerCutStorage(CountingStorage):
    """Works on real files for `place` operations; `restore` then lays out what the disk may hold.

    in_order: what was changed in one folder reaches the disk in that order, as it does with a journal; POSIX
    does not promise it. Several threads may use it.
    """

    def __init__(self, root: Path, place: int, *, in_order: bool = True) -> None:
        super().__init__()
        self._root = root
        self._place = place
        self._in_order = in_order
        self._disk = Folder.on_disk(root)  # what is there at first counts as synced
        self._open: dict[int, File] = {}
        self._identities: dict[int, tuple[int, int]] = {}
        self._lock = RLock()

    def revive(self, num_operations: int) -> None:
        """The process had died, not the machine: nothing is lost yet, and the next one works for a while."""
        self._die()
        self._place = len(self.operations) + num_operations

    def restore(self, target: Path, chance: random.Random) -> None:
        """Makes `target` a disk after the cut, one of those that may be."""
        self._die()
        target.mkdir()
        self._disk.restore(target, chance, in_order=self._in_order)

    def _die(self) -> None:
        """The process has ended, and with it what it had open and has not closed by itself."""
        for number, identity in self._identities.items():
            with contextlib.suppress(OSError):
                if _identity(number) == identity:
                    os.close(number)
        self._identities.clear()
        self._open.clear()

    def perform(self, name: str, operation: Callable[[], Any], arguments: tuple[Any, ...]) -> Any:
        with self._lock:
            if len(self.operations) >= self._place:
                raise PowerCut
            result = super().perform(name, operation, arguments)
            if name in ("create", "append", "reopen"):
                self._opened(result, *arguments)
            else:
                getattr(self, f"_on_{name}")(*arguments)
            return result

    def _folder(self, path: Path) -> Folder:
        folder = self._disk
        for name in path.relative_to(self._root).parts:
            below = folder.now()[name]
            assert isinstance(below, Folder)
            folder = below
        return folder

    def _node(self, path: Path) -> Node | None:
        return self._folder(path.parent).now().get(path.name)

    def _opened(self, number: int, path: Path) -> None:
        self._identities[number] = _identity(number)
        node = self._node(path)
        assert not isinstance(node, Folder)
        self._open[number] = node or File()
        if node is None:
            self._folder(path.parent).change((path.name, self._open[number]))

    def _on_write(self, number: int, data: bytes) -> None:
        self._open[number].write(bytes(data), len(self._open[number].now))

    def _on_write_at(self, number: int, data: Any, offset: int) -> None:
        self._open[number].write(bytes(memoryview(data).cast("B")), offset)

    def _on_sync(self, number: int) -> None:
        self._open[number].sync()

    def _on_truncate(self, number: int, size: int) -> None:
        self._open[number].truncate(size)

    def _on_close(self, number: int) -> None:
        del self._open[number], self._identities[number]

    def _on_replace(self, source: Path, target: Path) -> None:
        self._rename((source, None), (target, self._node(source)))

    def _on_exchange(self, first: Path, second: Path) -> None:
        self._rename((first, self._node(second)), (second, self._node(first)))

    def _rename(self, *changes: tuple[Path, Node | None]) -> None:
        (folder,) = {path.parent for path, _ in changes}  # across folders it is not one change
        self._folder(folder).change(*((path.name, node) for path, node in changes))

    def _on_remove(self, path: Path) -> None:
        self._rename((path, None))

    def _on_remove_folder(self, path: Path) -> None:
        self._rename((path, None))

    def _on_make_folder(self, path: Path) -> None:
        self._rename((path, Folder()))

    def _on_sync_folder(self, folder: Path) -> None:
        self._folder(folder).sync()


def _identity(number: int) -> tuple[int, int]:
    """Of the file that a descriptor is of."""
    status = os.fstat(number)
    return status.st_dev, status.st_ino


@dataclass(eq=False)
class File:
    """A file's bytes: `synced` are on the disk, `now` is what a reader sees.

    writes: (offset, data) since the last sync; shortest: bytes that it had at least since then.
    """

    synced: bytes = b""
    now: bytearray = field(default_factory=bytearray)
    writes: list[tuple[int, bytes]] = field(default_factory=list)
    shortest: int = 0

    @classmethod
    def on_disk(cls, content: bytes) -> File:
        """A file that was there before."""
        return cls(content, bytearray(content), [], len(content))

    def write(self, data: bytes, offset: int) -> None:
        """Nothing of it is on the disk for sure."""
        self.now.extend(bytes(max(0, offset + len(data) - len(self.now))))
        self.now[offset : offset + len(data)] = data
        self.writes.append((offset, data))

    def truncate(self, size: int) -> None:
        """Cuts the end off, or adds zeros."""
        self.now[size:] = bytes(max(0, size - len(self.now)))
        self.shortest = min(self.shortest, size)

    def sync(self) -> None:
        """All is on the disk."""
        self.synced, self.writes, self.shortest = bytes(self.now), [], len(self.now)

    def after_cut(self, chance: random.Random) -> bytes:
        """Some content that the disk may hold."""
        if self.now == self.synced and not self.writes:
            return self.synced
        kind = chance.choice(["synced", "now", "prefix", "torn", "torn"])
        if kind in ("synced", "now"):
            return self.synced if kind == "synced" else bytes(self.now)
        longest = max(len(self.synced), len(self.now))
        size = chance.choice([len(self.synced), len(self.now), chance.randint(self.shortest, longest)])
        if kind == "prefix":
            return bytes(self.now[:size]) + bytes(max(0, size - len(self.now)))
        return self._torn(chance, longest)[:size]

    def _torn(self, chance: random.Random, longest: int) -> bytes:
        kept = self.synced if chance.random() < 0.5 else self.synced[: self.shortest]
        found = bytearray(kept + bytes(longest - len(kept)))
        likely = chance.random()
        for offset, data in self.writes:
            if chance.random() < likely:
                start, stop = _part(len(data), chance)
                found[offset + start : offset + stop] = data[start:stop]
        return bytes(found)


def _part(count: int, chance: random.Random) -> tuple[int, int]:
    """Which of so many bytes have arrived: all, the first, the last, or some amid."""
    if chance.random() < 0.5:
        return 0, count
    start, stop = sorted((chance.randint(0, count), chance.randint(0, count)))
    return chance.choice([(0, stop), (start, count), (start, stop)])


Change = list[tuple[str, "Node | None"]]
"""Names that change at once, with what each names from then on, if anything."""


@dataclass(eq=False)
class Folder:
    """A folder's names: `synced` are on the disk, `pending` are changes that are not, in their order."""

    synced: dict[str, Node] = field(default_factory=dict)
    pending: list[Change] = field(default_factory=list)

    @classmethod
    def on_disk(cls, folder: Path) -> Folder:
        """A folder that was there before, with all below it."""
        found = cls()
        for path in folder.iterdir():
            is_folder = path.is_dir()
            found.synced[path.name] = cls.on_disk(path) if is_folder else File.on_disk(path.read_bytes())
        return found

    def change(self, *names: tuple[str, Node | None]) -> None:
        """One change, which reaches the disk whole."""
        self.pending.append([*names])

    def now(self) -> dict[str, Node]:
        """The names that a reader sees."""
        return _changed(self.synced, self.pending)

    def sync(self) -> None:
        """All names are on the disk."""
        self.synced, self.pending = self.now(), []

    def after_cut(self, chance: random.Random, *, in_order: bool) -> dict[str, Node]:
        """Some names that the disk may hold. in_order: a change is there only if those before it are."""
        count = chance.randint(0, len(self.pending))
        if in_order:
            return _changed(self.synced, self.pending[:count])
        return _changed(self.synced, _any_of(self.pending, count, chance))

    def restore(self, target: Path, chance: random.Random, *, in_order: bool) -> None:
        """Makes what the disk may hold of this folder and all below it, in a folder that is there."""
        for name, node in self.after_cut(chance, in_order=in_order).items():
            if isinstance(node, Folder):
                (target / name).mkdir()
                node.restore(target / name, chance, in_order=in_order)
            else:
                (target / name).write_bytes(node.after_cut(chance))


Node = File | Folder


def _changed(names: dict[str, Node], changes: list[Change]) -> dict[str, Node]:
    found = dict(names)
    for change in changes:
        for name, node in change:
            found.pop(name, None)
            if node is not None:
                found[name] = node
    return found


def _any_of(changes: list[Change], count: int, chance: random.Random) -> list[Change]:
    """So many of them, and those before them that are about the same names."""
    kept = {*chance.sample(range(len(changes)), count)}
    for place in range(len(changes) - 1, -1, -1):
        if place in kept:
            names = {name for name, _ in changes[place]}
            kept |= {each for each in range(place) if names & {name for name, _ in changes[each]}}
    return [change for place, change in enumerate(changes) if place in kept]
