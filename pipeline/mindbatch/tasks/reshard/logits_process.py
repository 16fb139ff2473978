"""Running a checkpoint's model in a process of its own, which gives all memory back when it ends."""

from __future__ import annotations

from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np

from mindbatch.config.environment import prepare_environment
from mindbatch.io.children import Child
from mindbatch.io.errors import CheckpointError, MindBatchError
from mindbatch.loading.first_logits import FloatArray, first_logits
from mindbatch.models.architecture import Architecture
from mindbatch.tasks.reshard.schema import ReshardConfig
from mindbatch.tasks.reshard.whole_checkpoint import WholeCheckpoint


@dataclass(frozen=True, slots=True)
class Failed:
    """The lines of the error: the parent shows them, for the process has no place to."""

    faults: tuple[str, ...]


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
            "lack of memory; verify=true compares every element without running the model"
        ) from None
    finally:
        process.end()
    if isinstance(answer, Failed):
        raise CheckpointError(answer.faults)
    return np.asarray(answer, np.float32)


def answer_with_logits(connection: Connection) -> None:
    """The process."""
    config, architecture = connection.recv()
    prepare_environment(verbose=config.wants_verbose)
    try:
        connection.send(_logits(config, architecture))
    except MindBatchError as error:
        connection.send(Failed(error.faults))
    except MemoryError:
        connection.send(Failed((f"{config.source}: not enough memory to run the model",)))
    except Exception as error:
        text = " ".join(str(error).split())
        connection.send(Failed((f"{config.source}: {type(error).__name__}: {text}",)))


def _logits(config: ReshardConfig, architecture: Architecture) -> FloatArray:
    with WholeCheckpoint(config) as model:
        return first_logits(architecture, model)
