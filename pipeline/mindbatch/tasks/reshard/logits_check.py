"""`mindbatch reshard verify=logits`: the first logits of the source and of what was made of it, compared.

A model runs in a process of its own, which gives all memory back when it ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from mindbatch.checkpoint.faults import shown
from mindbatch.checkpoint.folders.model_folder import StoredShape
from mindbatch.checkpoint.formats.floats import FLOAT_DTYPES, FloatArray, widened
from mindbatch.checkpoint.reshard.job import Job, Writing
from mindbatch.checkpoint.reshard.plan import ReshardPlan
from mindbatch.checkpoint.reshard.progress import Progress, silent
from mindbatch.checkpoint.reshard.write import Sources, write_job
from mindbatch.config.environment import prepare_environment
from mindbatch.config.machine import free_memory
from mindbatch.io.amounts import size
from mindbatch.io.children import Child
from mindbatch.io.closing import Closing
from mindbatch.io.errors import CheckpointError, ConfigError, MindBatchError
from mindbatch.loading.first_logits import first_logits
from mindbatch.models.architecture import Architecture
from mindbatch.models.tensor_spec import source_shapes
from mindbatch.parallel.topology import WHOLE
from mindbatch.tasks.reshard.plan import plan_reshard
from mindbatch.tasks.reshard.schema import ReshardConfig, ReshardLoraConfig, ReshardTargetConfig
from mindbatch.tasks.reshard.source import ReshardSource, open_reshard_source

ALLOWED: Mapping[str, float] = {"float16": 1 / 20, "bfloat16": 1 / 4}
"""By the dtype that weights are rounded to: how much a logit may change, as a part of the largest one."""

_OTHERWISE = "verify=true compares every element without running the model"
_MIN_ROOM = 1 << 28  # a step's arrays, and the interpreter
_NOWHERE = "whole-model"


class WholeCheckpoint(Closing):
    """The tensors of a reshard's source, each put together when it is asked for, as StoredWeights.

    Nothing is written: the plan to merge the checkpoint is made and proved anew, and what it would put into
    one file comes into memory, a tensor at a time, checked against the digests on its way.
    """

    shard, stages = WHOLE, 1

    def __init__(self, config: ReshardConfig) -> None:
        """config: what `source...` says of the checkpoint; its target and adapter are left out.

        Raises:
            ConfigError, CheckpointError: as `open_reshard_source` and `plan_reshard`.
        """
        merging = replace(config, target=ReshardTargetConfig(dir=_NOWHERE), lora=ReshardLoraConfig())
        opened = open_reshard_source(merging)
        with opened.source:
            jobs = plan_reshard(merging, opened).jobs
        self.path = opened.source.path
        self._jobs = {writing.name: job for job in jobs for writing in job.writings}
        self._writings = {writing.name: writing for job in jobs for writing in job.writings}
        self._sources = Sources()
        self._buffers: dict[str, bytearray] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._writings)

    def file_name(self, name: str) -> str:
        """The first of the files that the tensor is in, from `path` on."""
        file = Path(next(iter(self._jobs[name].readings.values())).path)
        return str(file.relative_to(self.path)) if file.is_relative_to(self.path) else file.name

    def info(self, name: str) -> StoredShape:
        return self._writings[name]

    def floats(self, name: str, *, rows: slice | None = None, columns: slice | None = None) -> FloatArray:
        """The values, or those of some rows and columns, of a stack as `read_float32` has it.

        Raises:
            CheckpointError: the files are damaged.
        """
        writing = self._writings[name]
        if name not in self._buffers:
            self._buffers = _made(self._jobs[name], self._sources)
        shape = writing.shape if columns is None else (math.prod(writing.shape[:-1]), writing.shape[-1])
        row_bytes = writing.nbytes // max(1, shape[0])
        start, stop, _ = (rows or slice(None)).indices(shape[0])
        data = memoryview(self._buffers[name])[start * row_bytes : stop * row_bytes]
        values = widened(data, writing.dtype, (stop - start, *shape[1:]))
        return values if columns is None else values[:, columns]

    packable = floats

    def release(self, name: str) -> None:
        """Gives the memory of the tensor back, and of what was made in one go with it."""
        self._buffers = {}

    def close(self) -> None:
        self._buffers = {}
        self._sources.close()


def _made(job: Job, sources: Sources) -> dict[str, bytearray]:
    tensors = {writing.name: bytearray(writing.nbytes) for writing in job.writings}

    def write(writing: Writing, start: int, data: memoryview) -> None:
        tensors[writing.name][start : start + len(data)] = data

    write_job(job, sources, write)
    return tensors


@dataclass(frozen=True)
class LogitDifference:
    """Distance of a target's logits from those of its source.

    largest: absolute, over all positions and tokens; nan when there are values that are no numbers.
    scale: the largest magnitude among the source's. agreeing: positions whose likeliest token is the same.
    """

    is_equal: bool
    largest: float
    scale: float
    agreeing: int
    positions: int

    @classmethod
    def of(cls, source: FloatArray, target: FloatArray) -> LogitDifference:
        """Compares logits [positions, vocabulary]."""
        return cls(
            is_equal=source.tobytes() == target.tobytes(),
            largest=float(np.abs(target.astype(np.float64) - source).max()),
            scale=float(np.abs(source).max()),
            agreeing=int((source.argmax(-1) == target.argmax(-1)).sum()),
            positions=len(source),
        )

    def __str__(self) -> str:
        if self.is_equal:
            return f"first logits equal at {self.positions} positions"
        return (
            f"first logits differ by up to {self.largest:.3g} and reach {self.scale:.3g}, the likeliest "
            f"token is the same at {self.agreeing} of {self.positions} positions"
        )


@dataclass
class LogitsCheck:
    """The comparison of one reshard.

    allowed: None where not a bit may differ. difference: once it was made.
    nbytes: of the target's tensors. progress: is told which of the two models is run.
    """

    config: ReshardConfig
    architecture: Architecture
    allowed: float | None
    difference: LogitDifference | None = None
    nbytes: int = 0
    progress: Progress = silent

    def __call__(self, folder: Path) -> None:
        """Runs the source, then what is in the target's folder; one model is in memory at a time.

        Raises:
            CheckpointError: the two do not agree, or cannot be read.
        """
        self.progress("running the source's model", 0, self.nbytes)
        source = logits_of(self.config, self.architecture)
        if not np.isfinite(source).all():
            raise CheckpointError(
                f"{self.config.source}: its first logits are not all finite numbers, so there is nothing to "
                f"compare; {_OTHERWISE}"
            )
        self.progress("running the target's model", 0, self.nbytes)
        ignored = self.config.ignore_config_keys
        target = ReshardConfig(source=str(folder), ignore_config_keys=ignored, verbose=self.config.verbose)
        self.difference = LogitDifference.of(source, logits_of(target, self.architecture))
        fault = difference_fault(self.difference, self.allowed)
        if fault:
            raise CheckpointError(f"{folder}: {fault}; to begin anew, remove the folder")


def logits_check(config: ReshardConfig, opened: ReshardSource, plan: ReshardPlan) -> LogitsCheck:
    """The comparison that is to be made, before anything is written.

    Raises:
        ConfigError: why the logits cannot be compared, all reasons at once.
    """
    faults = [*_faults(opened)]
    if faults:
        raise ConfigError(f"verify=logits: {fault}; {_OTHERWISE}" for fault in faults)
    assert opened.model is not None
    exact = all(
        writing.dtype in (reading.dtype, "F32")
        for job in plan.jobs
        for writing in job.writings
        for reading in job.readings.values()
    )
    allowed = None if exact else ALLOWED[config.target.dtype]
    return LogitsCheck(config, opened.model.architecture, allowed, nbytes=plan.nbytes)


def difference_fault(difference: LogitDifference, allowed: float | None) -> str | None:
    """Explains why a difference is too great; `allowed`: part of the largest logit, None if none may be."""
    if difference.is_equal:
        return None
    if allowed is None:
        return f"{difference}; must be equal to the last bit, for no weight was rounded"
    if not difference.largest <= allowed * difference.scale:  # also where it is nan
        return f"{difference}; at most {allowed * difference.scale:.3g} is allowed"
    return None


def _faults(opened: ReshardSource) -> Iterator[str]:
    if opened.model is None:
        yield f"no config.json says what model {opened.source.path} is; give source_config=FOLDER"
        return
    others = [name for name in opened.files.shapes if opened.dtype(name) not in FLOAT_DTYPES]
    if others:
        yield (
            f"tensor {shown(others[0])} is {opened.dtype(others[0])}, and the model runs with "
            f"{', '.join(FLOAT_DTYPES)} only ({len(others)} such tensors)"
        )
    # Parameters in float32, and the largest tensor twice: as it is stored, and widened.
    sizes = [4 * math.prod(shape) for shape in source_shapes(opened.model.parameters).values()]
    needed = sum(sizes) + 2 * max(sizes) + _MIN_ROOM
    if (free := free_memory()) is not None and needed > free:
        yield f"the model in float32 takes {size(needed)}, and {size(free)} of memory are free"


def logits_of(config: ReshardConfig, architecture: Architecture) -> FloatArray:
    """The first logits of the checkpoint that is the source of `config`, as engine.first_logits.

    Raises:
        CheckpointError: it cannot be read or run, or the process has died.
    """
    process = Child(answer_with_logits)
    try:
        process.connection.send((config, architecture))
        answer = process.connection.recv()
    except (EOFError, OSError):
        raise CheckpointError(
            f"{config.source}: the process that ran the model has died ({process.death()}), perhaps for "
            f"lack of memory; {_OTHERWISE}"
        ) from None
    finally:
        process.end()
    if isinstance(answer, tuple):
        raise CheckpointError(answer)
    return np.asarray(answer, np.float32)


def answer_with_logits(connection: Connection) -> None:
    """Sends the logits, or the lines of an error, which the parent shows: this process has no place to."""
    config, architecture = connection.recv()
    prepare_environment(verbose=config.wants_verbose)
    try:
        with WholeCheckpoint(config) as model:
            connection.send(first_logits(architecture, model))
    except MindBatchError as error:
        connection.send(error.faults)
    except MemoryError:
        connection.send((f"{config.source}: not enough memory to run the model",))
    except Exception as error:
        text = " ".join(str(error).split())
        connection.send((f"{config.source}: {type(error).__name__}: {text}",))
