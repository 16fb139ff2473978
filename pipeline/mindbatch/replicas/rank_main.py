"""What a rank process does: it says who it is, loads its part of the model, and computes."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mindbatch.errors import EXIT_FAILED, MindBatchError
from mindbatch.launch.rank_environment import RankEnvironment, take_rank_environment
from mindbatch.replicas.connection import connect
from mindbatch.replicas.front_link import FrontLink
from mindbatch.replicas.messages import FAILED, MODEL, READY, failure_fields
from mindbatch.replicas.versions import versions
from mindbatch.screen_text import say


def main() -> None:
    """Takes part in the job that the environment names; ends with the process."""
    code = EXIT_FAILED
    try:
        environment = take_rank_environment()
        _take_part(environment)
    except MindBatchError as error:
        say(*error.faults)
    except OSError as error:
        say(f"the process that coordinates the job cannot be reached ({error})")
    # MindSpore's threads, and the other ranks of a collective operation, are not waited for.
    os._exit(code)


def _take_part(environment: RankEnvironment) -> None:
    hello = {
        "rank": environment.rank,
        "attempt": environment.attempt,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "versions": versions(),
    }
    link = FrontLink(connect(environment.front, environment.key), hello)
    job = link.receive()
    assert job is not None
    try:
        _compute(link, environment, job.fields)
    except Exception as error:
        if not isinstance(error, MindBatchError):
            import traceback

            traceback.print_exc()  # to the log
        link.send(FAILED, **failure_fields(error))
        raise MindBatchError(f"rank {environment.rank}: {error}") from error


def _compute(link: FrontLink, environment: RankEnvironment, job: Mapping[str, Any]) -> None:
    """Loads the model that the job names and serves it."""
    from mindbatch.checkpoint.folders.folder_digest import folder_digest
    from mindbatch.config.environment import prepare_environment
    from mindbatch.config.model_schema import ModelConfig, RuntimeConfig
    from mindbatch.engine.build import engine_of, load_runners, prepare_model
    from mindbatch.replicas.announcing_runner import AnnouncingRunner
    from mindbatch.replicas.serving import serve

    model, runtime = ModelConfig(**job["model"]), RuntimeConfig(**job["runtime"])
    prepare_environment(runtime.verbose, runtime.num_threads)
    folders = [Path(path) for path in (model.checkpoint_name_or_path, model.assistant) if path]
    link.send(MODEL, digests=[folder_digest(folder) for folder in folders])
    prepared = prepare_model(model, runtime)
    runners = load_runners(prepared, model, runtime, link.notice)
    link.send(READY)
    serve(link, engine_of(prepared, AnnouncingRunner(runners.model, link), runners.assistant))


if __name__ == "__main__":
    main()
