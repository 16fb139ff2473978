"""A checkpoint read as one whole model under Hugging Face names, however its files are cut and named."""

import dataclasses
import math
from pathlib import Path

from mindbatch.checkpoint.formats.floats import FloatArray, widened
from mindbatch.checkpoint.formats.stored import StoredTensor
from mindbatch.checkpoint.reshard.job import Job, Writing
from mindbatch.checkpoint.reshard.read import Sources
from mindbatch.checkpoint.reshard.write import write_job
from mindbatch.io.closing import Closing
from mindbatch.parallel.topology import WHOLE
from mindbatch.tasks.reshard.plan import plan_reshard
from mindbatch.tasks.reshard.schema import ReshardConfig, ReshardLoraConfig, ReshardTargetConfig
from mindbatch.tasks.reshard.source import open_reshard_source

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
        merging = dataclasses.replace(
            config, target=ReshardTargetConfig(dir=_NOWHERE), lora=ReshardLoraConfig()
        )
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

    def info(self, name: str) -> StoredTensor:
        """The tensor's dtype and full shape."""
        return StoredTensor(name, self._writings[name].dtype, self._writings[name].shape)

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


class _Memory:
    """Takes what a job writes."""

    def __init__(self) -> None:
        self.tensors: dict[str, bytearray] = {}

    def write(self, writing: Writing, start: int, data: memoryview) -> None:
        """As files.TargetFiles."""
        tensor = self.tensors.setdefault(writing.name, bytearray(writing.nbytes))
        tensor[start : start + len(data)] = data


def _made(job: Job, sources: Sources) -> dict[str, bytearray]:
    """The bytes of all tensors of a job."""
    memory = _Memory()
    for writing in job.writings:
        memory.write(writing, 0, memoryview(b""))
    write_job(job, sources, memory)
    return memory.tensors
