"""Processes of a node that are only listed, for the tests of who starts and ends them."""

from collections.abc import Collection, Sequence

from mindbatch.io.errors import MindBatchError
from mindbatch.launch.process_plan import ProcessSpec
from mindbatch.launch.supervisor import EndedProcess


class ListedProcesses:
    """See `NodeProcesses`. A test ends one by `fail`; names in `refused` cannot be started."""

    def __init__(self, refused: Collection[str] = ()) -> None:
        self.living: dict[str, ProcessSpec] = {}
        self.ranks = range(0)
        self.refused = refused
        self.closed = 0
        self._ended: list[EndedProcess] = []

    def start_specs(self, specs: Sequence[ProcessSpec]) -> None:
        for spec in specs:
            if spec.name in self.refused:
                raise MindBatchError(f"{spec.name} cannot be started")
            assert spec.name not in self.living
            self.living[spec.name] = spec

    def fail(self, name: str, how: str = "signal 9", *last_lines: str) -> None:
        del self.living[name]
        self._ended.append(EndedProcess(name, how, last_lines))

    def ended(self) -> list[EndedProcess]:
        told, self._ended = self._ended, []
        return told

    def process_id(self, name: str) -> int | None:
        return None

    def last_lines(self, name: str) -> tuple[str, ...]:
        return (f"last of {name}",) if name in self.living else ()

    def end(self, names: Collection[str] | None = None) -> None:
        for name in [*self.living] if names is None else names:
            self.living.pop(name, None)
            self._ended = [process for process in self._ended if process.name != name]

    def begin_close(self) -> None:
        assert not self.closed

    def close(self) -> None:
        self.closed += 1
        self.living.clear()
