"""The child process that lets MindSpore work out the layout of a MindFormers model; one argument: the job.

It forks a cluster on the CPU: a scheduler, and a process for each rank. The first rank of each pipeline
stage builds the model and compiles it as for GPUs, up to where code would be made for a device; the other
ranks only exist, for the compiler counts them. Files go to the current folder: `strategy/` and
`layout_rank_N.json`. Standard output is a JSON object a line: what happened, see `Reports`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from mindbatch.child_main import die_with
from mindbatch.config.environment import SCHEDULER, WORKER, enter_cluster

_WORLD = "nccl_world_group"  # the name by which the compiler for GPUs knows all ranks
_SCHEDULER_SECONDS, _PROBE_SECONDS = 30.0, 0.05
_FULL_SHAPE = 6  # place in MindSpore's layout of a parameter


class Reports:
    """What the parent is told: started, joined, done, failed (a rank's error), ended (untold why)."""

    def __init__(self) -> None:
        self._file = os.dup(1)
        os.dup2(2, 1)  # what MindSpore and MindFormers print goes to the log

    def send(self, event: str, rank: int = 0, error: str = "") -> None:
        """Lines of several processes do not mix: they are shorter than a pipe writes at once."""
        line = json.dumps({"event": event, "rank": rank, "error": error[:2000]})
        os.write(self._file, line.encode() + b"\n")


def main(job_file: str) -> int:
    """Runs the job; returns the exit code."""
    job = json.loads(Path(job_file).read_text())
    reports = Reports()
    import mindspore

    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    mindspore.set_device("CPU")
    reports.send("started")
    cluster = Cluster(job, reports)
    try:
        cluster.start()
        return cluster.wait()
    finally:
        cluster.kill()


class Cluster:
    """The processes: `processes` maps their ids to ranks; the scheduler is rank -1."""

    def __init__(self, job: dict[str, Any], reports: Reports) -> None:
        self._job = job
        self._reports = reports
        self._num_ranks: int = job["num_ranks"]
        self._leaders: set[int] = {*job["leaders"]}
        self._port = _free_port()
        self.processes: dict[int, int] = {}

    def start(self) -> None:
        """The scheduler goes first: a rank that finds no scheduler may wait most of a minute to ask again."""
        self._fork(-1, self._schedule)
        _await_listener(self._port)
        for rank in range(self._num_ranks):
            self._fork(rank, self._lead if rank in self._leaders else self._take_part)

    def wait(self) -> int:
        """Until all leaders are done, which is success, or any process has ended otherwise."""
        left = {*self._leaders}
        while left:
            process, status = os.wait()
            rank = self.processes.pop(process, -1)
            code = os.waitstatus_to_exitcode(status)
            if code or rank not in left:
                # A rank that failed has reported itself; this is for those that could not.
                self._reports.send(
                    "ended", rank, f"ended by signal {-code}" if code < 0 else f"ended with {code}"
                )
                return 1
            left.discard(rank)
        self._reports.send("done")
        return 0

    def kill(self) -> None:
        """Ends what is left, and waits until it is gone."""
        for process in self.processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        for process in self.processes:
            with suppress(ChildProcessError):
                os.waitpid(process, 0)
        self.processes.clear()

    def _fork(self, rank: int, work: Callable[[int], None]) -> None:
        parent = os.getpid()
        process = os.fork()
        if process:
            self.processes[process] = rank
            return
        code = 1
        try:
            die_with(parent)
            enter_cluster(SCHEDULER if rank < 0 else WORKER, rank, self._num_ranks, self._port)
            work(rank)
            code = 0
        except BaseException as error:
            self._reports.send("failed", rank, _line_of(error))
            raise
        finally:
            sys.stdout.flush()
            os._exit(code)

    def _schedule(self, rank: int) -> None:
        from mindspore.communication import init

        init()  # returns when the cluster is dissolved
        _wait_for_ever()

    def _join(self, rank: int) -> None:
        from mindspore.communication import create_group, init

        init()
        create_group(_WORLD, list(range(self._num_ranks)))
        self._reports.send("joined", rank)

    def _take_part(self, rank: int) -> None:
        self._join(rank)
        _wait_for_ever()

    def _lead(self, rank: int) -> None:
        self._join(rank)
        infer_layout(self._job, rank, self._num_ranks)


def infer_layout(job: dict[str, Any], rank: int, num_ranks: int) -> None:
    """Compiles the model of the job as this rank has it, and writes its layout and its strategy file."""
    import mindspore
    import numpy as np
    from mindspore._c_expression import MSContext, ms_ctx_param

    mindspore.set_auto_parallel_context(
        parallel_mode="semi_auto_parallel",
        full_batch=True,
        device_num=num_ranks,
        global_rank=rank,
        pipeline_stages=job["pipeline_stage"],
        strategy_ckpt_config={"save_file": f"strategy/ckpt_strategy_rank_{rank}.ckpt"},
    )
    network = _network(job)
    # Devices are chosen once: from here on the compiler takes this process for one with a GPU.
    MSContext.get_instance().set_param(ms_ctx_param.device_target, "GPU")
    options = job["model"]
    tokens = mindspore.Tensor(np.zeros((options["batch_size"], options["seq_length"])), mindspore.int32)
    layouts = mindspore.Model(network).infer_predict_layout(tokens, skip_backend_compile=True)
    shapes = {name: layout[_FULL_SHAPE] for name, layout in layouts.items() if name}
    Path(f"layout_rank_{rank}.json").write_text(json.dumps(shapes))


def _network(job: dict[str, Any]) -> Any:
    """MindFormers' Llama without memory for its parameters. float32: half types fail on the CPU."""
    from mindformers import LlamaConfig, LlamaForCausalLM
    from mindformers.modules.transformer import TransformerOpParallelConfig
    from mindspore.nn.utils import no_init_parameters

    parallel = TransformerOpParallelConfig(
        data_parallel=job["data_parallel"],
        model_parallel=job["model_parallel"],
        pipeline_stage=job["pipeline_stage"],
        vocab_emb_dp=job["vocab_emb_dp"],
    )
    dtypes = (
        "compute_dtype",
        "param_init_type",
        "softmax_compute_type",
        "rotary_dtype",
        "layernorm_compute_type",
    )
    with no_init_parameters():
        network = LlamaForCausalLM(
            LlamaConfig(
                use_past=False,
                use_rope_slice=True,
                parallel_config=parallel,
                **dict.fromkeys(dtypes, "float32"),
                **job["model"],
            )
        )
    network.set_train(False)
    return network


def _line_of(error: BaseException) -> str:
    """The first line of MindSpore's many."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].strip()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _await_listener(port: int) -> None:
    deadline = time.monotonic() + _SCHEDULER_SECONDS
    while time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), _SCHEDULER_SECONDS):
            return
        time.sleep(_PROBE_SECONDS)
    raise TimeoutError(f"the scheduler does not listen after {_SCHEDULER_SECONDS:g} s")


def _wait_for_ever() -> NoReturn:
    while True:
        signal.pause()
