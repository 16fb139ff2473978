"""The rank processes of a job, whoever started them."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class EndedRank(NamedTuple):
    """A rank process that has ended.

    how, is_lost: see `EndedProcess`. last_lines: of its log.
    """

    rank: int
    how: str
    last_lines: tuple[str, ...] = ()
    is_lost: bool = False

    @property
    def told(self) -> str:
        """Description of its end, to stand after its name."""
        is_status = self.how.startswith(("signal ", "exit code "))
        return f"ended with {self.how}" if is_status else self.how


class Ranks(Protocol):
    """Started rank processes."""

    def ended(self) -> list[EndedRank]:
        """Lists the ranks that have ended since the last call."""
        ...

    def process_id(self, rank: int) -> int | None:
        """Looks up a rank's process id; None if it has ended, or is not known to be on this machine."""
        ...

    def last_lines(self, rank: int) -> tuple[str, ...]:
        """Returns the last lines that a rank printed; none where they are not known here."""
        ...

    def restart(self, replica: int, attempt: int) -> None:
        """Ends what is left of a replica's processes and starts them anew.

        attempt: what the new processes are told (see `RankEnvironment`).
        """
        ...

    def end(self) -> None:
        """Ends all of them; they are gone when it returns. It may be called again."""
        ...
