"""`mindbatch` on a node other than the first: it serves the front, and has no rows of its own."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue

from mindbatch.io.errors import EXIT_DONE
from mindbatch.launch.preflight import JobSetup
from mindbatch.replicas.agent import patient_connection, serve
from mindbatch.replicas.connection import Message, MessageConnection
from mindbatch.replicas.process_commands import process_commands
from mindbatch.replicas.start import NodeLogs, StartedProgram, local_processes


def serve_node(setup: JobSetup, logs: NodeLogs) -> int:
    """Starts and watches this node's processes until the job is over; returns the exit code.

    Raises:
        MindBatchError: node 0 was not found or has gone, or a launcher failed. None of the processes is left.
    """
    place = setup.place
    program = StartedProgram(setup, logs, process_commands())
    if program.is_needed:
        try:
            program.start(place.meeting)
            program.wait()
        finally:
            program.end()
        return EXIT_DONE
    return serve_front(setup, logs, *connection_to_front(setup))


def connection_to_front(
    setup: JobSetup, notice: Callable[[str], None] = lambda text: None
) -> tuple[MessageConnection, bytes]:
    """A connection to the front, which may not have been started yet, and the key of the job.

    Raises:
        MindBatchError: it was not found.
    """
    meeting, key = (setup.place.meeting, setup.key) if setup.copies is None else setup.copies.wait(notice)
    return patient_connection(meeting, key), key


def serve_front(
    setup: JobSetup,
    logs: NodeLogs,
    connection: MessageConnection,
    key: bytes,
    shared: SimpleQueue[Message | None] | None = None,
) -> int:
    """Starts and watches this node's processes until the job is over; see `agent.serve`."""
    place = setup.place
    return serve(
        connection,
        local_processes(setup, logs, process_commands()),
        key,
        place.ranks,
        place.layout.topology.world_size,
        setup.table_digest,
        setup.device_offset,
        shared,
    )
