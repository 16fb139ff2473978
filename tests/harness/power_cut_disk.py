"""What a disk may hold of a file or a folder after a power cut: what was synced, and any part of the rest.

As weak as POSIX: of the writes to a file that were not synced, any part of each may be there; a file that
has grown may have zeros instead. A name that was made, changed or removed is sure once its folder was synced.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path


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
