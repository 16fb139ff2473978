"""`mindbatch reshard verify=logits`: compares the first logits of the source and of the target.

Each model runs in its own process, so that all of its memory is free before the next one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from mindbatch.architecture.architecture import Architecture
from mindbatch.architecture.tensor_spec import source_shapes
from mindbatch.checkpoint.error_lines import shown
from mindbatch.checkpoint.folders.renamed_folder import RenamedFolder
from mindbatch.checkpoint.formats.floats import FLOAT_DTYPES, FloatArray
from mindbatch.checkpoint.reshard.plan import ReshardPlan
from mindbatch.checkpoint.reshard.progress import Progress, silent
from mindbatch.config.environment import prepare_environment
from mindbatch.config.machine import free_memory
from mindbatch.io.amounts import size
from mindbatch.io.children import Child
from mindbatch.io.errors import CheckpointError, ConfigError, MindBatchError
from mindbatch.loading.first_logits import first_logits
from mindbatch.tasks.reshard.schema import ReshardConfig, ReshardTargetConfig
from mindbatch.tasks.reshard.source import ReshardSource, open_reshard_source

ALLOWED: Mapping[str, float] = {"float16": 1 / 20, "bfloat16": 1 / 4}
"""Allowed change of a logit, as a fraction of the largest logit, by the dtype that weights are rounded to."""

_OTHERWISE = "verify=true compares every element without running the model"
_MIN_SPARE_BYTES = 1 << 28  # a step's arrays, and the interpreter


class WholeCheckpoint(RenamedFolder):
    """The tensors of a reshard's source, as those of one whole model, checked against their digests.

    A tensor is assembled when it is read, from all files that have parts of it; nothing is written.
    """

    def __init__(self, config: ReshardConfig) -> None:
        """Opens the source of a configuration; the target and the adapter are ignored.

        Raises:
            ConfigError, CheckpointError: as `open_reshard_source`.
        """
        opened = open_reshard_source(replace(config, target=ReshardTargetConfig(dtype=config.target.dtype)))
        self._hold(opened.source.path, opened.source.ranks)
        self._locate(opened.files)


@dataclass(frozen=True)
class LogitDifference:
    """The difference of a target's logits from those of its source.

    largest: largest absolute difference of all positions and tokens; nan if a logit is nan.
    scale: largest absolute logit of the source. agreeing: number of positions with the same likeliest token.
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

    allowed: the largest difference that passes; None if the logits must be equal.
    difference: the largest difference, after the comparison. nbytes: bytes of the target's tensors.
    progress: shows which of the two models runs.
    """

    config: ReshardConfig
    architecture: Architecture
    allowed: float | None
    difference: LogitDifference | None = None
    nbytes: int = 0
    progress: Progress = silent

    def __call__(self, folder: Path) -> None:
        """Runs the source, then the target in the folder; one model is in memory at a time.

        Raises:
            CheckpointError: the logits differ too much, or a model cannot be read.
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
        error = difference_error(self.difference, self.allowed)
        if error:
            raise CheckpointError(f"{folder}: {error}; to begin anew, remove the folder")


def logits_check(config: ReshardConfig, opened: ReshardSource, plan: ReshardPlan) -> LogitsCheck:
    """Prepares the comparison, before anything is written.

    Raises:
        ConfigError: lists all reasons why the logits cannot be compared.
    """
    errors = [*_errors(opened)]
    if errors:
        raise ConfigError(f"verify=logits: {error}; {_OTHERWISE}" for error in errors)
    assert opened.model is not None
    exact = all(
        writing.dtype in (reading.dtype, "F32")
        for job in plan.jobs
        for writing in job.writings
        for reading in job.readings.values()
    )
    allowed = None if exact else ALLOWED[config.target.dtype]
    return LogitsCheck(config, opened.model.architecture, allowed, nbytes=plan.nbytes)


def difference_error(difference: LogitDifference, allowed: float | None) -> str | None:
    """Explains why a difference is too large. allowed: a fraction of the largest logit; None for none."""
    if difference.is_equal:
        return None
    if allowed is None:
        return f"{difference}; must be equal to the last bit, for no weight was rounded"
    if not difference.largest <= allowed * difference.scale:  # also where it is nan
        return f"{difference}; at most {allowed * difference.scale:.3g} is allowed"
    return None


def _errors(opened: ReshardSource) -> Iterator[str]:
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
    needed = sum(sizes) + 2 * max(sizes) + _MIN_SPARE_BYTES
    if (free := free_memory()) is not None and needed > free:
        yield f"the model in float32 takes {size(needed)}, and {size(free)} of memory are free"


def logits_of(config: ReshardConfig, architecture: Architecture) -> FloatArray:
    """Computes the first logits of the source of `config` in another process, by `loading.first_logits`.

    Raises:
        CheckpointError: the source cannot be read or run, or the process was killed.
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
    """Sends the logits, or the lines of an error, to the parent process, which prints them."""
    config, architecture = connection.recv()
    prepare_environment(verbose=config.wants_verbose)
    try:
        with WholeCheckpoint(config) as model:
            connection.send(first_logits(architecture, model))
    except MindBatchError as error:
        connection.send(error.lines)
    except MemoryError:
        connection.send((f"{config.source}: not enough memory to run the model",))
    except Exception as error:
        text = " ".join(str(error).split())
        connection.send((f"{config.source}: {type(error).__name__}: {text}",))
