"""What `mindbatch` does on a node other than the first: it serves the front, and has no rows of its own."""

from __future__ import annotations

from mindbatch.errors import EXIT_DONE
from mindbatch.launch.preflight import JobSetup
from mindbatch.replicas.agent import patient_connection, serve
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
    connection = patient_connection(place.meeting, setup.key)
    processes, world_size = local_processes(setup, logs, process_commands()), place.layout.topology.world_size
    return serve(
        connection,
        processes,
        setup.key,
        place.ranks,
        world_size,
        setup.table_digest,
        setup.device_offset,
    )
