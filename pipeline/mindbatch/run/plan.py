"""Requirements of a run over a dataset: its rows and tokens, the memory for them, and the time."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from mindbatch.dataset.rows import RowFailure
from mindbatch.loading.memory_check import MemoryDemand
from mindbatch.loading.setup import EngineSetup
from mindbatch.parallel.topology import RankCoordinates, Topology
from mindbatch.run.calibration import Calibration
from mindbatch.run.index import RowIndex
from mindbatch.run.survey import RowCheck


class LengthRange(NamedTuple):
    """Lengths from `first` to `last`, and how many rows have one of them."""

    first: int
    last: int
    rows: int


class Lengths:
    """Lengths in tokens; without any, statistics are 0."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, length: int, times: int = 1) -> None:
        self._counts[length] += times

    @property
    def count(self) -> int:
        return self._counts.total()

    @property
    def total(self) -> int:
        return sum(length * count for length, count in self._counts.items())

    @property
    def mean(self) -> float:
        return self.total / max(1, self.count)

    @property
    def longest(self) -> int:
        return max(self._counts, default=0)

    def quantile(self, share: float) -> int:
        """Returns the smallest length that at least this share of them does not exceed."""
        below = 0
        for length in sorted(self._counts):
            below += self._counts[length]
            if below >= share * self.count:
                return length
        return 0

    def histogram(self) -> list[LengthRange]:
        """Ranges between powers of two (1, 2-3, 4-7, ...), from the first that holds any to the last."""
        if not self._counts:
            return []
        sizes: Counter[int] = Counter()
        for length, count in self._counts.items():
            sizes[length.bit_length()] += count
        return [
            LengthRange(1 << size >> 1, (1 << size) - 1, sizes[size])
            for size in range(min(sizes), max(sizes) + 1)
        ]


MAX_FAILURES = 5
"""Rows that cannot be run of which the reasons are given; the others are counted."""


@dataclass
class RowTotals:
    """The rows of a dataset, counted.

    failures: the first rows that cannot be run, in the order in which rows are run where they have one.
    prompts: one length for each row. outputs, sequences: one for each sample, at most.
    """

    total: int = 0
    unusable: int = 0
    failures: list[RowFailure] = field(default_factory=list)
    prompts: Lengths = field(default_factory=Lengths)
    outputs: Lengths = field(default_factory=Lengths)
    sequences: Lengths = field(default_factory=Lengths)

    @property
    def usable(self) -> int:
        return self.total - self.unusable


def count_rows(index: RowIndex, check: RowCheck) -> RowTotals:
    totals = RowTotals(index.num_rows, index.num_unusable, index.failures(MAX_FAILURES))
    for row in index.pending():
        counted_row = check.count(row)
        if isinstance(counted_row, RowFailure):
            totals.unusable += 1
            totals.failures = [*totals.failures, counted_row][:MAX_FAILURES]
        else:
            totals.prompts.add(counted_row.prompt)
            totals.outputs.add(counted_row.output, counted_row.samples)
            totals.sequences.add(counted_row.sequence, counted_row.samples)
    return totals


@dataclass(frozen=True)
class Fit:
    """Number of sequences of one length that the cache holds at the same time."""

    tokens: int
    sequences: int


@dataclass(frozen=True)
class TimeEstimate:
    """Estimated time that the rows take.

    seconds: from the command's start to its end; without starting up where the rate was given.
    startup_seconds, compile_seconds: of those, until the model is loaded, and those of the first step of each
        size: the compiling, where the kernels are compiled.
    rate: generated tokens/s between, prompts included in the time.
    generated_tokens: of all rows; the most that they may have, if `is_most`.
    measured: whether this is a calibration's.
    """

    seconds: float
    rate: float
    generated_tokens: int
    is_most: bool
    measured: bool
    startup_seconds: float = 0.0
    compile_seconds: float = 0.0


@dataclass(frozen=True)
class RankMemory:
    """Memory demand of a job's ranks. demand_at: returns the demand of ranks on one machine."""

    topology: Topology
    demand_at: Callable[[Sequence[RankCoordinates]], MemoryDemand]

    def demand(self, ranks: Iterable[int]) -> MemoryDemand:
        return self.demand_at([self.topology.coordinates(rank) for rank in ranks])

    def stages(self) -> Iterator[tuple[range, MemoryDemand]]:
        """Yields the ranks of each stage of a replica, with the demand of one of them."""
        size = self.topology.model_parallel
        for stage in range(self.topology.pipeline_stage):
            yield range(stage * size, (stage + 1) * size), self.demand([stage * size])

    def as_json(self) -> dict[str, Any]:
        """Returns the bytes of each rank; ranks are numbered in their replica."""
        return {
            "replicas": self.topology.data_parallel,
            "stages": [
                {
                    "stage": stage,
                    "ranks_of_replica": [*ranks],
                    "rank_weights_bytes": stage_memory.weights,
                    "rank_adapter_bytes": stage_memory.adapter_slots,
                    "rank_cache_bytes": stage_memory.caches,
                    "rank_bytes": stage_memory.total,
                }
                for stage, (ranks, stage_memory) in enumerate(self.stages())
            ],
            "bytes": self.demand(range(self.topology.world_size)).total,
        }


@dataclass(frozen=True)
class Plan:
    """Report of `mindbatch plan`."""

    rows: RowTotals
    setup: EngineSetup
    ranks: RankMemory
    time: TimeEstimate | None
    notes: tuple[str, ...] = ()

    @property
    def num_batches(self) -> int:
        """Batches that generate side by side: one for each stage of each replica."""
        return self.setup.num_engines * self.ranks.topology.data_parallel

    @property
    def of_each_batch(self) -> str:
        """In words, empty where there is one."""
        return "" if self.num_batches == 1 else f" of each of {self.num_batches} batches"

    def fit(self, tokens: int) -> Fit:
        """Counts the sequences of that many tokens that the cache of one batch holds at once."""
        return Fit(tokens, self.setup.settings.fitting_sequences(tokens))

    @property
    def typical(self) -> Fit:
        """Fit of the median sequence."""
        return self.fit(self.rows.sequences.quantile(0.5))

    @property
    def longest(self) -> Fit:
        return self.fit(self.rows.sequences.longest)

    def as_json(self) -> dict[str, Any]:
        rows, setup, time = self.rows, self.setup, self.time
        is_divided, state_bytes = self.ranks.topology.world_size > 1, setup.spec.state_bytes
        return {
            "rows": {
                "total": rows.total,
                "usable": rows.usable,
                "unusable": rows.unusable,
                "first_failures": [asdict(failure) for failure in rows.failures],
            },
            "prompt_tokens": _lengths(rows.prompts)
            | {"histogram": [part._asdict() for part in rows.prompts.histogram()]},
            "output_tokens_at_most": _lengths(rows.outputs),
            "sequence_tokens_at_most": _lengths(rows.sequences),
            "memory": {
                "parameters": setup.num_parameters,
                "weights_bytes": setup.weight_bytes,
                "weights_stored_bytes": setup.stored_bytes,
                "cache_bytes": setup.cache_bytes,
                "cache_bytes_per_token": setup.cache_bytes_per_token,
                **({"expert_bytes": setup.expert_bytes} if setup.expert_bytes else {}),
                "cache_tokens": setup.cache_tokens,
                **({"states": setup.num_states, "state_bytes": state_bytes} if state_bytes else {}),
                **({"ranks": self.ranks.as_json()} if is_divided else {}),
            },
            "sequences_that_fit": {
                "typical": asdict(self.typical),
                "longest": asdict(self.longest),
                "batch_size": setup.settings.batch_size,
                **({"batches": self.num_batches} if is_divided else {}),
            },
            "time": None if time is None else asdict(time),
            "notes": list(self.notes),
        }


def _lengths(lengths: Lengths) -> dict[str, int | float]:
    return {
        "total": lengths.total,
        "mean": round(lengths.mean, 2),
        "median": lengths.quantile(0.5),
        "p95": lengths.quantile(0.95),
        "longest": lengths.longest,
    }


def time_at(rate: float, rows: RowTotals) -> TimeEstimate:
    """Returns the time if every row generates all that it may."""
    tokens = rows.outputs.total
    return TimeEstimate(tokens / rate, rate, tokens, is_most=True, measured=False)


def time_after(calibration: Calibration, rows: RowTotals, startup_seconds: float) -> TimeEstimate:
    """Returns the time if all rows are like those that were run."""
    generated = round(rows.outputs.total * calibration.share)
    return TimeEstimate(
        seconds=startup_seconds + calibration.first_seconds + generated / calibration.rate,
        rate=calibration.rate,
        generated_tokens=generated,
        is_most=not calibration.max_tokens,
        measured=True,
        startup_seconds=startup_seconds,
        compile_seconds=calibration.first_seconds,
    )
