"""Checks that the weights, adapters and caches of a machine's processes fit into its memory."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mindbatch.config.machine import MachineMemory, memory_here, parse_bytes
from mindbatch.io.amounts import size
from mindbatch.io.errors import ConfigError, MindBatchError
from mindbatch.kernels.memory import BFLOAT16, FLOAT32, INT8, NumberType
from mindbatch.loading.setup import EngineSetup

if TYPE_CHECKING:
    from mindbatch.parallel.topology import RankCoordinates

_MIB = 1 << 20
_SMALLER = {BFLOAT16: "model.dtype=bfloat16", INT8: "model.quantization=int8"}
"""Types smaller than float32 that matrices may have on a CPU, with the setting for each."""


@dataclass(frozen=True)
class MemoryDemand:
    """Memory that the processes of a model take on one machine.

    setup: the setup of one process. stages: the pipeline stage of each process. replicas: their number.
    """

    setup: EngineSetup
    stages: Sequence[int] = (0,)
    replicas: int = 1

    @classmethod
    def of(cls, setup: EngineSetup, ranks: Sequence[RankCoordinates]) -> MemoryDemand:
        """Sums the demand of these ranks, which share one machine; `setup` has the memory of one rank."""
        return cls(setup, [rank.stage for rank in ranks], len({rank.replica for rank in ranks}))

    @property
    def processes(self) -> int:
        return len(self.stages)

    @property
    def numbers(self) -> int:
        """The number of weights, with those of an assistant, which is on the last stage."""
        of_stage, assistant = self.setup.spec.rank_parameters, self.setup.assistant
        numbers = sum(of_stage[stage] for stage in self.stages)
        if assistant is not None:
            last = len(of_stage) - 1
            numbers += list(self.stages).count(last) * assistant.spec.rank_parameters[0]
        return numbers

    @property
    def weights(self) -> int:
        return int(self.numbers * self.setup.number_bytes)

    @property
    def slot(self) -> int:
        live = self.setup.adapters.live
        if live is None or not live.slot_numbers:
            return 0
        return sum(live.slot_numbers[stage] for stage in self.stages) * self.setup.adapter_type.itemsize

    @property
    def _num_loaded(self) -> int:
        live = self.setup.adapters.live
        return 0 if live is None else live.max_loaded

    @property
    def adapter_slots(self) -> int:
        return self._num_loaded * self.slot

    @property
    def experts(self) -> int:
        return self.processes * self.setup.expert_bytes

    @property
    def caches(self) -> int:
        tokens = self.setup.cache_tokens * self.setup.cache_bytes_per_token
        return self.processes * (tokens + self.setup.num_states * self.setup.spec.state_bytes)

    @property
    def total(self) -> int:
        return self.weights + self.adapter_slots + self.experts + self.caches

    def parts(self) -> str:
        """Lists the parts with their sizes, in words."""
        sizes = [f"{size(self.weights)} of weights in {self.setup.weight_types}"]
        if self._num_loaded:
            sizes.append(f"{size(self.adapter_slots)} of adapters")
        if self.experts:
            sizes.append(f"{size(self.experts)} of experts' rows in a step")
        return f"{', '.join(sizes)} and {size(self.caches)} of runtime.cache_memory"

    def error(self, machine: MachineMemory) -> str | None:
        """Explains why the memory of a machine is too small, whether in use or free; None if it suffices."""
        there, free, runtime = machine.whole, machine.free, self.setup.runtime
        if self.caches > there:
            on = "" if machine.name is None else f" on {machine.name}"
            per_process = f" for each of {self.processes} processes" if self.processes > 1 else ""
            return (
                f"runtime.cache_memory={runtime.cache_memory}{per_process}: more than the {size(there)} "
                f"there are{on}, {size(free)} of them free; a token takes "
                f"{self.setup.cache_bytes_per_token:,} bytes"
            )
        if runtime.device_target != "CPU" or self.total <= there:
            return None
        name = machine.name or "this machine"
        subject = f"{self.processes} processes need" if self.processes > 1 else "the model needs"
        return (
            f"memory: {subject} {size(self.total)}, {self.parts()}, and {name} has {size(there)}, "
            f"{size(free)} of them free; try: {', or '.join(self.remedies(there))}"
        )

    def remedies(self, there: int) -> Iterator[str]:
        """Yields settings that alone make the model fit in `there` bytes, the least costly first."""
        left = there - self.weights - self.experts
        max_mib = self._max_cache_mib(left - self.adapter_slots)
        smaller = [*self._smaller_types(there, as_is=max_mib > 0)]
        yield from smaller
        if self.slot and 1 <= (fitting := (left - self.caches) // self.slot) < self._num_loaded:
            yield f"lora.max_loaded of at most {fitting}"
        if max_mib:
            yield f"runtime.cache_memory of at most {max_mib}MiB"
        if self.replicas > 1:
            yield f"fewer than {self.replicas} replicas on one machine (parallel.data_parallel)"
        fewest = [] if smaller or max_mib else [*self.smaller_types()][-1:]
        with_fewest = "".join(f", fewest with {smallest}" for smallest in fewest)
        yield f"more of parallel.model_parallel or parallel.pipeline_stage over more machines{with_fewest}"
        if self.experts:
            yield f"fewer than {self.setup.runtime.max_batched_tokens} of runtime.max_batched_tokens"

    def exhausted(self, activity: str) -> str:
        """Words the error line for memory that has run out. activity: for example `reading the weights`."""
        smaller = [*self.smaller_types(), f"runtime.cache_memory below {self.setup.runtime.cache_memory}"]
        if self._num_loaded > 1:
            smaller.append(f"lora.max_loaded below {self._num_loaded}")
        smaller.append(f"runtime.max_batched_tokens below {self.setup.runtime.max_batched_tokens}")
        return (
            f"out of memory while {activity}: the model takes {size(self.total)}, {self.parts()}; what takes "
            f"less: {', '.join(smaller)}"
        )

    def smaller_types(self) -> Iterator[str]:
        """Yields the settings that keep matrices in smaller types, with the size of the weights."""
        for kind in self._smaller_kinds():
            yield f"{_SMALLER[kind]} ({size(self.numbers * kind.itemsize)} of weights)"

    def _smaller_types(self, there: int, *, as_is: bool) -> Iterator[str]:
        """Yields the smaller types that fit, unless `as_is` also with a smaller cache."""
        for kind, text in zip(self._smaller_kinds(), self.smaller_types(), strict=True):
            left = there - self.numbers * kind.itemsize - self.experts - self.adapter_slots
            if self.caches <= left:
                yield text
            elif (max_mib := self._max_cache_mib(left)) and not as_is:
                yield f"{text} with runtime.cache_memory of at most {max_mib}MiB"

    def _smaller_kinds(self) -> list[NumberType]:
        """Lists the smaller types. On a CPU only the native kernels have any beside float32."""
        may_be_kept = self.setup.model.provider == "native" and self.setup.runtime.kernels != "reference"
        is_known = self.setup.runtime.device_target == "CPU" and self.numbers > 0
        return [
            number_type
            for number_type in _SMALLER
            if may_be_kept and is_known and self.setup.weight_type == FLOAT32
            if number_type.itemsize < self.setup.number_bytes
        ]

    def _max_cache_mib(self, left: int) -> int:
        """Returns the MiB of runtime.cache_memory that fit in `left` bytes; 0 if that is no less than now."""
        max_mib = max(0, left) // max(1, self.processes) // _MIB
        return max_mib if max_mib and max_mib * _MIB < parse_bytes(self.setup.runtime.cache_memory) else 0


@contextmanager
def naming_exhaustion(demand: MemoryDemand | None, activity: str) -> Iterator[None]:
    """Converts out-of-memory errors of Python to MindBatchError; without a demand they pass unchanged."""
    try:
        yield
    except (MemoryError, OSError) as error:
        if demand is None or (isinstance(error, OSError) and error.errno != errno.ENOMEM):
            raise
        raise MindBatchError(demand.exhausted(activity)) from error


def refuse_beyond_memory(demand: MemoryDemand, machine: MachineMemory | None = None) -> None:
    """Raises ConfigError if the demand exceeds the memory of a machine; None is this machine."""
    machine = machine or memory_here()
    if machine is not None and (error := demand.error(machine)):
        raise ConfigError(error)
