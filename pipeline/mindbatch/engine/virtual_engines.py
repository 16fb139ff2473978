"""Runs an engine for each pipeline stage over one runner, so that each stage computes another's step."""

from collections import deque
from collections.abc import Sequence, Set
from dataclasses import replace

from mindbatch.engine.engine import Engine, StepResult
from mindbatch.engine.request import Request
from mindbatch.engine.settings import EngineSettings
from mindbatch.engine.statistics import EngineStatistics, total_of
from mindbatch.engine.step import StageRunner, Step
from mindbatch.kernels.step import StepInputs


class VirtualEngines:
    """Runs requests over several engines, whose steps pass through the pipeline stages one after another.

    Each engine has its own requests, scheduler and part of the runner's cache. The results of a row do not
    depend on them.
    """

    def __init__(self, engines: Sequence[Engine], runner: StageRunner) -> None:
        sizes = engines[0].settings
        # The sum of all, by which callers choose how many requests to add.
        self.settings: EngineSettings = replace(sizes, batch_size=sizes.batch_size * len(engines))
        self._runner = runner
        self._idle = [*engines]
        self._begun: deque[tuple[Engine, Step, StepInputs]] = deque()
        self._results: list[StepResult] = []  # of steps that had to end before their turn

    @property
    def has_work(self) -> bool:
        return bool(self._results) or any(engine.has_work for engine in self._engines)

    @property
    def statistics(self) -> EngineStatistics:
        return total_of([engine.statistics for engine in self._engines])

    def add(self, request: Request) -> None:
        """Queues a request with the engine that has the fewest sequences; raises what `Engine.add` does."""
        min(self._engines, key=lambda engine: engine.scheduler.num_sequences).add(request)

    def step(self) -> StepResult:
        """Lets every engine begin a step and ends the one that was begun first."""
        if self._results:
            return self._results.pop(0)
        for engine in [idle_engine for idle_engine in self._idle if idle_engine.has_work]:
            step = engine.begin()
            if not step.scheduled:  # the others hold all slots for adapters
                continue
            self._idle.remove(engine)
            self._begun.append((engine, step, self._runner.announce(step)))
        return self._finish_first()

    def abort(self, keys: Set[str] | None = None) -> None:
        """Aborts requests, after the steps that the stages have begun."""
        while self._begun:
            self._results.append(self._finish_first())
        for engine in self._idle:
            engine.abort(keys)
        self._results = [_without(result, keys) for result in self._results if keys is not None]

    def close(self) -> None:
        """Does nothing, as there are no processes to end."""

    @property
    def _engines(self) -> list[Engine]:
        return [*self._idle, *(engine for engine, _, _ in self._begun)]

    def _finish_first(self) -> StepResult:
        engine, step, inputs = self._begun.popleft()
        result = engine.finish(step, self._runner.complete(inputs))
        self._idle.append(engine)
        return result


def _without(result: StepResult, keys: Set[str] | None) -> StepResult:
    dropped = keys or set()
    return StepResult(
        [event for event in result.events if event.key not in dropped],
        [output for output in result.finished if output.key not in dropped],
    )
