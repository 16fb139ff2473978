"""Watching a run: what the engine says after each step goes to the progress display and the metrics."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mindbatch.engine.statistics import EngineStatistics
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.run.batch_config import BatchConfig
from mindbatch.run.generation import Generator, Tally
from mindbatch.run.manifest import RowCounts, Session, now
from mindbatch.run.metrics import MetricsLog, Snapshot
from mindbatch.run.progress import RunProgress


class Monitor:
    """Counts one session of a run.

    rows: what earlier sessions have done.
    """

    def __init__(
        self,
        config: BatchConfig,
        folder: RunFolder,
        rows: RowCounts,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._config = config
        self._folder = folder
        self._before = rows
        self._clock = clock
        self._started = now()
        self._tally = Tally()
        self._seconds = 0.0
        self._statistics: EngineStatistics | None = None

    @contextmanager
    def watching(self, generator: Generator) -> Iterator[Callable[[Tally], None]]:
        """Gives what is to be called after each step; shows and records its counts."""
        tensorboard = self._folder.tensorboard if self._config.output.tensorboard else None
        start = self._clock()
        with (
            RunProgress(self._config.progress) as progress,
            MetricsLog(self._folder.metrics, tensorboard) as metrics,
        ):
            before = generator.statistics  # of other runs, where the model is shared

            def on_step(tally: Tally) -> None:
                self._tally, self._statistics = tally, generator.statistics.since(before)
                self._seconds = self._clock() - start
                snapshot = self._snapshot(self._statistics)
                progress.update(snapshot)
                metrics.sample(snapshot)

            self._statistics = before.since(before)
            progress.update(self._snapshot(self._statistics))
            yield on_step

    def session(self) -> Session:
        statistics = self._statistics
        return Session(
            started=self._started,
            seconds=round(self._seconds, 3),
            rows=self._tally.done + self._tally.failed,
            prompt_tokens=statistics.prompt_tokens if statistics else 0,
            cached_prompt_tokens=statistics.cached_prompt_tokens if statistics else 0,
            generated_tokens=statistics.generated_tokens if statistics else 0,
            cache_waste=round(statistics.cache_waste, 4) if statistics else 0.0,
        )

    def _snapshot(self, statistics: EngineStatistics) -> Snapshot:
        return Snapshot(
            seconds=self._seconds,
            rows_total=self._before.total,
            rows_done=self._before.done + self._tally.done,
            rows_failed=self._before.failed + self._tally.failed,
            prompt_tokens=statistics.prompt_tokens,
            cached_prompt_tokens=statistics.cached_prompt_tokens,
            generated_tokens=statistics.generated_tokens,
            running=statistics.running_sequences,
            waiting=statistics.waiting_requests,
            cache_used=statistics.cache_use,
            preemptions=statistics.num_preemptions,
        )
