"""Storage that loses power after some operations; the disk is then as `power_cut_disk` says."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable
from pathlib import Path
from threading import RLock
from typing import Any

from harness.faulty_storage import CountingStorage
from harness.power_cut_disk import File, Folder, Node


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
