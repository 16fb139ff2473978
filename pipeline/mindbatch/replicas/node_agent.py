"""`mindbatch` on a node other than the first: it serves the front, and has no rows of its own."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue

from mindbatch.io.errors import EXIT_DONE
from mindbatch.launch.process_plan import Job
from mindbatch.replicas.agent import patient_connection, serve
from mindbatch.replicas.connection import Message, MessageConnection
from mindbatch.replicas.process_commands import process_commands
from mindbatch.replicas.start import NodeLogs, StartedProgram, local_processes


def serve_node(job: Job, logs: NodeLogs) -> int:
    """Starts and watches this node's processes until the job is over; returns the exit code.

    Raises:
        MindBatchError: node 0 was not found or has gone, or a launcher failed. None of the processes is left.
    """
    program = StartedProgram(job, logs, process_commands())
    if program.is_needed:
        try:
            program.start(job.meeting)
            program.wait()
        finally:
            program.end()
        return EXIT_DONE
    return serve_front(job, logs, *connection_to_front(job))


def connection_to_front(
    job: Job, notice: Callable[[str], None] = lambda text: None
) -> tuple[MessageConnection, bytes]:
    """A connection to the front, which may not have been started yet, and the key of the job.

    Raises:
        MindBatchError: it was not found.
    """
    meeting, key = (job.meeting, job.key) if job.copies is None else job.copies.wait(notice)
    return patient_connection(meeting, key), key


def serve_front(
    job: Job,
    logs: NodeLogs,
    connection: MessageConnection,
    key: bytes,
    shared: SimpleQueue[Message | None] | None = None,
) -> int:
    """Starts and watches this node's processes until the job is over; see `agent.serve`."""
    return serve(
        connection,
        local_processes(job, logs, process_commands()),
        key,
        job.ranks,
        job.topology.world_size,
        job.table_digest,
        job.device_offset,
        shared,
    )
