"""Running a checkpoint's model in a process of its own, which gives all memory back when it ends."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import numpy as np

from mindbatch.checkpoint.reshard.pool import interrupts_blocked
from mindbatch.checkpoint.reshard.worker import Failed
from mindbatch.config.environment import prepare_environment
from mindbatch.config.schema import ReshardConfig
from mindbatch.engine.first_logits import FloatArray, first_logits
from mindbatch.errors import CheckpointError, MindBatchError
from mindbatch.layers.architecture import Architecture
from mindbatch.tasks.whole_model import WholeModel

_START = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
    "from mindbatch.tasks.logits_process import main; main(*sys.argv[2:])"
)
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def logits_of(config: ReshardConfig, architecture: Architecture) -> FloatArray:
    """The first logits of the checkpoint that is the source of `config`, as engine.first_logits.

    Raises:
        CheckpointError: it cannot be read or run, or the process has died.
    """
    ours, theirs = Pipe()
    with interrupts_blocked(), theirs:  # the child begins with what is blocked here
        process = subprocess.Popen(
            [sys.executable, "-c", _START, json.dumps(sys.path), str(theirs.fileno()), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    try:
        ours.send((config, architecture))
        answer = ours.recv()
    except (EOFError, OSError):
        raise CheckpointError(
            f"{config.source}: the process that ran the model has died (exit code {process.wait()}), perhaps "
            "for lack of memory; verify=true compares every element without running the model"
        ) from None
    finally:
        process.kill()
        process.wait()
        ours.close()
    if isinstance(answer, Failed):
        raise answer.error()
    return np.asarray(answer, np.float32)


def main(connection: str, parent: str) -> None:
    """The process: a file descriptor to talk through, and the process that asks."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != int(parent):
        return
    with Connection(int(connection)) as opened:
        config, architecture = opened.recv()
        prepare_environment(verbose=config.wants_verbose)
        opened.send(_answer(config, architecture))


def _answer(config: ReshardConfig, architecture: Architecture) -> FloatArray | Failed:
    try:
        with WholeModel(config) as model:
            return first_logits(architecture, model)
    except MindBatchError as error:
        return Failed(error.faults, is_storage=False)
    except MemoryError:
        return Failed((f"{config.source}: not enough memory to run the model",), is_storage=False)
    except Exception as error:  # the parent shows it: this process has no place to
        text = " ".join(str(error).split())
        return Failed((f"{config.source}: {type(error).__name__}: {text}",), is_storage=False)
