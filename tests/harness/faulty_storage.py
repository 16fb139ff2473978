"""Storage that counts its operations, dies at one of them, fails at one of them, or is interrupted there."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Literal

from mindbatch.io.storage import Storage

Moment = Literal["before", "amid", "after"]
MOMENTS: tuple[Moment, ...] = ("before", "amid", "after")
WRITES = ("write", "write_at")
OPERATIONS = [name for name, value in vars(Storage).items() if callable(value) and not name.startswith("_")]


Places = Callable[[Sequence[str]], Iterable[int]]


def every_place(operations: Sequence[str]) -> Iterable[int]:
    """All of them."""
    return range(len(operations))


def telling_places(operations: Sequence[str]) -> list[int]:
    """The first and the last place of each operation after each other one, in order."""
    after = [*zip(("", *operations), operations, strict=False)]
    ends = {pair: place for place, pair in enumerate(after)}
    return sorted({*ends.values(), *(after.index(pair) for pair in ends)})


def different_kills(operations: Sequence[str], places: Sequence[int]) -> list[tuple[int, Moment]]:
    """Of these places, the moments that leave different disks: before each, amid each write, after the last.

    After an operation the disk is as before the next one; only a write has a middle.
    """
    kills: list[tuple[int, Moment]] = []
    for place in places:
        kills.append((place, "before"))
        if operations[place] in WRITES:
            kills.append((place, "amid"))
    return [*kills, (len(operations) - 1, "after")]


class CountingStorage(Storage):
    """Keeps the names of the operations in order.

    Syncs are counted, not done: no process sees a difference, and a disk takes long for them.
    """

    def __init__(self) -> None:
        self.operations: list[str] = []

    def perform(self, name: str, operation: Callable[[], Any], arguments: tuple[Any, ...]) -> Any:
        """Called instead of each operation."""
        self.operations.append(name)
        return operation()

    def write_half(self, arguments: tuple[Any, ...]) -> None:
        """What a write has done when it is stopped amid."""
        file, data, *place = arguments
        half = memoryview(data).cast("B")[: len(memoryview(data).cast("B")) // 2]
        if place:
            Storage.write_at(self, file, half, *place)
        else:
            Storage.write(self, file, bytes(half))


def _counted(name: str) -> Callable[..., Any]:
    def perform(self: CountingStorage, *arguments: Any) -> Any:
        operation = partial(getattr(Storage, name), self, *arguments)
        if name in ("sync", "sync_folder"):
            operation = partial(_not_done, *arguments)
        return self.perform(name, operation, arguments)

    return perform


def _not_done(*arguments: Any) -> None:
    pass


for _name in OPERATIONS:
    setattr(CountingStorage, _name, _counted(_name))


class StoppingStorage(CountingStorage):
    """Calls `stop` before, amid or after the operation number `place`, counted from 0.

    Only a write has a middle: half of its bytes. Amid another operation is before it.
    """

    def __init__(self, place: int, moment: Moment) -> None:
        super().__init__()
        self._place = place
        self._moment = moment

    def stop(self) -> None:
        """What happens there."""
        raise NotImplementedError

    def perform(self, name: str, operation: Callable[[], Any], arguments: tuple[Any, ...]) -> Any:
        self.operations.append(name)
        if len(self.operations) - 1 != self._place:
            return operation()
        if self._moment == "after":
            result = operation()
            self.stop()
            return result
        if self._moment == "amid" and name in WRITES:
            self.write_half(arguments)
        self.stop()
        return operation()


class KillingStorage(StoppingStorage):
    """The process is killed there, as by the system when memory is short."""

    def stop(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class InterruptingStorage(StoppingStorage):
    """Ctrl-C comes there."""

    def stop(self) -> None:
        raise KeyboardInterrupt


class FailingStorage(CountingStorage):
    """The operation number `place` fails with an error number; with `lasting`, so do all that come after it.

    A write that finds no room has written half. Closing a file never fails for good: it is closed anyway.
    """

    def __init__(self, place: int, number: int, *, lasting: bool = False) -> None:
        super().__init__()
        self._place = place
        self._number = number
        self._lasting = lasting

    def perform(self, name: str, operation: Callable[[], Any], arguments: tuple[Any, ...]) -> Any:
        self.operations.append(name)
        place = len(self.operations) - 1
        if place != self._place and not (self._lasting and place > self._place):
            return operation()
        if name == "close":
            operation()
        if name in WRITES and self._number == errno.ENOSPC:
            self.write_half(arguments)
        raise OSError(self._number, os.strerror(self._number))
