"""Assignment of adapters to the slots of a model's memory for adapters: names and counts only."""

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from mindbatch.io.error_lines import unknown_adapter

PATIENCE = 64
"""Requests that may pass one whose adapter has no slot."""


class TakenSlot(NamedTuple):
    """A slot, 0 for the base, and whether its adapter has still to be loaded into it."""

    number: int
    must_load: bool


class AdapterSlots:
    """Slots for adapters, shared by all engines over one model; the base needs none.

    An adapter stays in its slot while a request that runs holds it. Where no slot is empty, the adapter goes
    that nobody has held for longest. An adapter for which there was no slot is remembered: once `patience`
    requests have taken others, those are given to nobody until it has had its turn. A name of None is the
    base's: it is always offered, and its slot is 0.
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
        """The adapter that is next, whoever else could have a slot."""
        first = next(iter(self._refused), None)
        return first if first is not None and self._refused[first] >= self._patience else None

    def offers(self, name: str | None) -> bool:
        """True if a request may take the slot of this adapter now; what is refused is remembered."""
        if name is None:
            return True
        if self.overdue in (None, name) and (name in self._slots or self._empty or self._idle is not None):
            return True
        self._refused.setdefault(name, 0)
        return False

    def take(self, name: str | None) -> TakenSlot:
        """The slot of an adapter that was offered, held until it is released."""
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
        """The step that was to load the adapter failed: who takes its slot next loads it again."""
        self._invalid.add(name)

    def release(self, name: str | None) -> None:
        """A request that holds the adapter has ended or was pre-empted."""
        if name is None:
            return
        self._holders[name] -= 1
        self._slots.move_to_end(name)

    def withdraw(self, name: str | None) -> None:
        """A request that waited for the adapter was dropped; others that wait for it ask again."""
        if name is not None:
            self._refused.pop(name, None)

    @property
    def _idle(self) -> str | None:
        """The adapter to go next."""
        return next((name for name in self._slots if not self._holders[name]), None)

    def _evict(self) -> int:
        idle = self._idle
        assert idle is not None, "a slot was not offered"
        return self._slots.pop(idle)


class LiveAdapter(NamedTuple):
    """An adapter whose product is added to the base's. digest: of all of it that acts."""

    name: str
    digest: str


@dataclass(frozen=True)
class KnownAdapters:
    """Adapters that requests may name.

    live: by name; None stands for the model as it is loaded.
    default: what a request that names none is computed with; None is the model as it is loaded.
    """

    live: Mapping[str, LiveAdapter | None] = field(default_factory=dict)
    default: str | None = None

    def of(self, name: str | None) -> LiveAdapter | None:
        """The adapter of a name without `error`; None is that of no adapter."""
        return None if name is None else self.live[name]

    def error(self, name: str | None) -> str | None:
        """Reason why no request can have this name; None if it can."""
        return None if name is None or name in self.live else unknown_adapter(name, self.live)
