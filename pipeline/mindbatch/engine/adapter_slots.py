"""Assigns adapters to the slots of a model's memory for adapters: names and counts only."""

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from mindbatch.io.error_lines import unknown_adapter

PATIENCE = 64
"""Number of requests that may overtake one whose adapter has no slot."""


class TakenSlot(NamedTuple):
    """A slot, 0 for the base, and whether its adapter must be loaded into it."""

    number: int
    must_load: bool


class AdapterSlots:
    """Slots for adapters, shared by all engines over one model; the base needs none.

    An adapter stays in its slot while a running request holds it. Where no slot is empty, the least recently
    used adapter without requests is evicted. An adapter that got no slot is remembered: once `patience`
    requests have overtaken it, no other adapter gets a slot before it. The name None means the base, which is
    always available, in slot 0.
    """

    def __init__(self, num_slots: int, patience: int = PATIENCE) -> None:
        self._empty = [*range(num_slots, 0, -1)]
        self._slots: OrderedDict[str, int] = OrderedDict()  # least recently used first
        self._invalid: set[str] = set()
        self._holders: Counter[str] = Counter()
        self._refused: dict[str, int] = {}  # the longest refused first: requests that have passed it
        self._patience = patience

    @property
    def overdue(self) -> str | None:
        """The adapter that must get the next slot."""
        first = next(iter(self._refused), None)
        return first if first is not None and self._refused[first] >= self._patience else None

    def offers(self, name: str | None) -> bool:
        """True if a request may take the slot of this adapter now; a refusal is remembered."""
        if name is None:
            return True
        if self.overdue in (None, name) and (name in self._slots or self._empty or self._idle is not None):
            return True
        self._refused.setdefault(name, 0)
        return False

    def take(self, name: str | None) -> TakenSlot:
        """Takes the slot of an adapter that was offered, until it is released."""
        if name is None:
            return TakenSlot(0, False)
        self._refused.pop(name, None)
        # One more request has passed each of those that wait for a slot.
        for other in self._refused:
            self._refused[other] += 1
        must_load = name not in self._slots or name in self._invalid
        if name not in self._slots:
            self._slots[name] = self._empty.pop() if self._empty else self._evict()
        self._invalid.discard(name)
        self._slots.move_to_end(name)
        self._holders[name] += 1
        return TakenSlot(self._slots[name], must_load)

    def invalidate(self, name: str) -> None:
        """Marks an adapter as not loaded, after a failed step, so that it is loaded again."""
        self._invalid.add(name)

    def release(self, name: str | None) -> None:
        """Releases the slot of a request that has ended or was pre-empted."""
        if name is None:
            return
        self._holders[name] -= 1
        self._slots.move_to_end(name)

    def withdraw(self, name: str | None) -> None:
        """Forgets that a dropped request waited for the adapter."""
        if name is not None:
            self._refused.pop(name, None)

    @property
    def _idle(self) -> str | None:
        """The adapter to evict next; None if requests hold all."""
        return next((name for name in self._slots if not self._holders[name]), None)

    def _evict(self) -> int:
        idle = self._idle
        assert idle is not None, "a slot was not offered"
        return self._slots.pop(idle)


class LiveAdapter(NamedTuple):
    """An adapter that is not merged. digest: the digest of its configuration and tensors."""

    name: str
    digest: str


@dataclass(frozen=True)
class KnownAdapters:
    """Adapters that requests may name.

    live: the adapters by name; the value None is the model as it is loaded.
    default: the adapter of requests that name none; None is the model as it is loaded.
    """

    live: Mapping[str, LiveAdapter | None] = field(default_factory=dict)
    default: str | None = None

    def of(self, name: str | None) -> LiveAdapter | None:
        """Returns the adapter of a name that has no error; None for the base."""
        return None if name is None else self.live[name]

    def error(self, name: str | None) -> str | None:
        """Returns the reason why no request can name this adapter; None if it can."""
        return None if name is None or name in self.live else unknown_adapter(name, self.live)
