"""Ranks of one replica in real processes, without a front: the ranks, the leader's answers.

As a program (`python rank_group.py JOB OUT`) it is one of these processes.
"""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mindbatch.parallel.topology import DeviceMap

KEY = bytes(range(32))
SECONDS = 240


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def variables(rank: int | None, size: int, port: int | None) -> dict[str, str]:
    """Of a process; None is the scheduler. port: of MindSpore's dynamic cluster; None is without one."""
    own = {"RANK_ID": str(rank), "RANK_SIZE": str(size)} if rank is not None else {}
    if port is not None:
        role, node = ("MS_SCHED", "sched") if rank is None else ("MS_WORKER", str(rank))
        own |= {"MS_ROLE": role, "MS_NODE_ID": node, "MS_WORKER_NUM": str(size)}
        own |= {"MS_SCHED_HOST": "127.0.0.1", "MS_SCHED_PORT": str(port)}
    return own | {"GLOG_v": "3", "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}


@contextmanager
def processes(job: Path, out: Path, size: int, *, has_world: bool) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The ranks, and before them the scheduler of a MindSpore world; none outlives the block."""
    port, started = free_port() if has_world else None, []
    try:
        for rank in (*([None] if has_world else []), *range(size)):
            with open(out / f"rank_{rank}.log", "wb") as log:
                started.append(
                    subprocess.Popen(
                        [sys.executable, __file__, str(job), str(out)],
                        env=os.environ | variables(rank, size, port),
                        stdout=log,
                        stderr=log,
                        cwd=out,
                        start_new_session=True,
                    )
                )
        yield started
    finally:
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def answers(
    out: Path,
    size: int,
    model: dict[str, Any],
    requests: Sequence[dict[str, Any]],
    runtime: dict[str, Any],
    *,
    stages: int = 1,
    device_map: DeviceMap = None,
) -> dict[str, Any]:
    """What the leader answers: outputs by request, and the engine's statistics.

    size: processes, of `stages` pipeline stages. device_map: see `Topology`.
    model, runtime: sections of a configuration. requests: {"key", "prompt" (token ids), "params"}.
    """
    out.mkdir(exist_ok=True)
    job = out / "job.json"
    meeting = secrets.token_hex(32)
    topology = [1, size // stages, stages, device_map]
    has_world = model.get("provider") == "mindformers"
    asked = {"model": model, "runtime": runtime, "requests": requests}
    met = {"topology": topology, "meeting": meeting, "has_world": has_world}
    job.write_text(json.dumps(met | asked))
    answer = out / "answers.json"
    with processes(job, out, size, has_world=has_world) as started:
        deadline = time.monotonic() + SECONDS
        while not answer.exists():
            ended = [process for process in started[-size:] if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                logs = [log.read_text(errors="replace")[-2500:] for log in sorted(out.glob("rank_*.log"))]
                raise AssertionError("\n----\n".join(logs))
            time.sleep(0.05)
    found: dict[str, Any] = json.loads(answer.read_text())
    return found


def outputs_of(engine: Any, requests: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Runs all requests; token ids and texts of every output, or the error."""
    from mindbatch.decoding import DecodingParams
    from mindbatch.engine.request import Request

    for each in requests:
        params = DecodingParams(**each["params"])
        engine.add(Request(each["key"], tuple(each["prompt"]), params))
    done: dict[str, Any] = {}
    while engine.has_work:
        for output in engine.step().finished:
            texts = [(one.token_ids, one.text) for one in output.outputs]
            done[output.key] = {"outputs": texts, "error": output.error}
    return done


def main(job_path: str, out: str) -> None:
    """One of the processes."""
    if os.environ.get("MS_ROLE") == "MS_SCHED":
        from mindspore.communication import init

        init()
        return
    from mindbatch.config.environment import prepare_environment
    from mindbatch.config.model_schema import ModelConfig, RuntimeConfig
    from mindbatch.parallel.topology import Topology
    from mindbatch.replicas.rank_main import load_rank
    from mindbatch.replicas.replica_steps import accept_followers, connect_to_leader

    job = json.loads(Path(job_path).read_text())
    model, runtime = ModelConfig(**job["model"]), RuntimeConfig(**{"num_threads": 1, **job["runtime"]})
    prepare_environment(runtime.verbose, runtime.num_threads)
    *sizes, device_map = job["topology"]
    topology = Topology(*sizes, tuple(device_map) if isinstance(device_map, list) else device_map)
    rank, door = int(os.environ["RANK_ID"]), Path(out) / "door.json"
    meeting, has_world = job["meeting"] and bytes.fromhex(job["meeting"]), job["has_world"]
    loaded = load_rank(model, runtime, topology, rank, lambda text: None, meeting, has_world=has_world)
    if loaded.is_leader:

        def announce(address: tuple[str, int]) -> None:
            written = door.with_suffix(".new")
            written.write_text(json.dumps(address))
            written.rename(door)

        engine = loaded.engine(accept_followers("127.0.0.1", KEY, loaded.followers, announce))
        content = {"outputs": outputs_of(engine, job["requests"]), "statistics": asdict(engine.statistics)}
        written = Path(out) / "answers.new"
        written.write_text(json.dumps(content))
        written.rename(Path(out) / "answers.json")
        time.sleep(SECONDS)
    while not door.exists():
        time.sleep(0.05)
    host, port = json.loads(door.read_text())
    loaded.follow(connect_to_leader((host, port), KEY, rank), lambda computes: None)


if __name__ == "__main__":
    main(*sys.argv[1:])
