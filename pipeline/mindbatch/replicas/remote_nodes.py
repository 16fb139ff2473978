"""The coordinator's side of the agents, and of the processes that each has on its node."""

import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

from mindbatch.io.errors import MindBatchError
from mindbatch.io.screen_text import say
from mindbatch.launch.job_ranks import NodeProcesses
from mindbatch.launch.process_plan import JOB_KEY, ProcessSpec
from mindbatch.launch.supervisor import EndedProcess
from mindbatch.parallel.connection import MessageConnection, MessageError, RankMessage
from mindbatch.replicas.agent import CLOSE, END, ENDED, GONE, LEFT, SHARED, START
from mindbatch.replicas.rank_links import RankLinks

WAIT_SECONDS = 600.0
"""For agents to come."""

_QUIET_SECONDS = 10.0
"""Seconds before missing agents are reported to the user."""

ON_EACH_NODE = (
    "start the same command on each node with its own launch.node_rank and the same key; a firewall may be "
    "between, too"
)
_TICK_SECONDS = 0.1
_SECONDS_TO_END = 10.0


class RemoteNode(NodeProcesses):
    """The processes of an agent (see `NodeProcesses`).

    ranks: the ranks that it serves. follows: True if it is a copy of the script, which makes the same calls.
    """

    def __init__(
        self, connection: MessageConnection, host: str, ranks: range = range(0), *, follows: bool = False
    ) -> None:
        self.host, self.ranks, self.follows = host, ranks, follows
        self.has_left = False
        """True if its copy of the script has closed the model."""
        self.loss: Callable[[], list[str]] = lambda: [
            f"was lost with its node {host}, to which the connection has ended"
        ]
        """Explains, once the agent has gone, how its processes were lost: a line, and what was printed."""
        self._connection = connection
        self._living: set[str] = set()
        self._ended: list[EndedProcess] = []
        self._changed = threading.Condition()
        self._requested = self._answered = 0
        self._is_lost = False

    def listen(self) -> None:
        """Takes what the agent sends until it has gone; for a thread of its own."""
        with suppress(EOFError, OSError, MessageError, KeyError, TypeError, ValueError):
            while True:
                message = self._connection.receive()
                with self._changed:
                    self._take(message)
                    self._changed.notify_all()
        self._connection.close()
        with self._changed:
            self._is_lost = True
            self._changed.notify_all()

    def start_specs(self, specs: Sequence[ProcessSpec]) -> None:
        self._living |= {spec.name for spec in specs}
        self._send(START, processes=[_fields(spec) for spec in specs])

    def ended(self) -> list[EndedProcess]:
        with self._changed:
            is_lost, processes, self._ended = self._is_lost, self._ended, []
        if is_lost:
            lost = sorted(self._living - {process.name for process in processes})
            reason, *lines = self.loss() if lost else [""]
            processes += [EndedProcess(name, reason, tuple(lines), is_lost=True) for name in lost]
        processes = [process for process in processes if process.name in self._living]
        self._living -= {process.name for process in processes}
        return processes

    def end(self, names: Collection[str] | None = None) -> None:
        ending = {f"rank_{rank}" for rank in self.ranks} if names is None else {*names}
        self._requested += 1
        self._send(END, names=[*ending], number=self._requested)
        self._wait_for(lambda: self._answered >= self._requested)
        with self._changed:
            self._ended = [process for process in self._ended if process.name not in ending]
        self._living -= ending

    def share(self, **fields: Any) -> None:
        self._send(SHARED, **fields)

    def begin_close(self) -> None:
        self._send(CLOSE)

    def close(self) -> None:
        self._send(CLOSE)
        self._wait_for(lambda: False)  # it ends its processes before its connection
        self._living.clear()
        self._connection.close()

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        """Waits until the condition holds or the agent has gone, at most `_SECONDS_TO_END`."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_lost or condition(), _SECONDS_TO_END)

    def _send(self, kind: str, **fields: Any) -> None:
        """Sends a message, unless the agent has gone, which `ended` reports."""
        with suppress(OSError):
            self._connection.send(kind, **fields)

    def _take(self, message: RankMessage) -> None:
        fields = message.fields
        if message.kind == ENDED:
            self._ended.append(EndedProcess(**{**fields, "last_lines": tuple(fields["last_lines"])}))
        elif message.kind == LEFT:
            self.has_left = True
        elif message.kind == GONE:
            self._answered = max(self._answered, int(fields["number"]))


def _fields(spec: ProcessSpec) -> dict[str, Any]:
    variables = {name: text for name, text in spec.variables.items() if name != JOB_KEY}
    return {"name": spec.name, "replica": spec.replica, "rank": spec.rank, "variables": variables}


def wait_for_agents(
    links: RankLinks,
    expected: Sequence[range],
    table: str = "",
    check: Callable[[], None] = lambda: None,
    notice: Callable[[str], None] = lambda text: None,
    seconds: float = WAIT_SECONDS,
    *,
    tells: bool = True,
    remedy: str = ON_EACH_NODE,
) -> list[RemoteNode]:
    """Returns the agents of a job in the order of their ranks, once all have connected; refuses others then.

    expected: the ranks of each agent. table: digest of the rank table, empty without one.
    check: called all the while; raises where it is in vain to wait.
    tells: the user, when it takes long, for it is the user who starts them.
    remedy: what to do where one does not come.

    Raises:
        MindBatchError: some have not come, or one has other ranks or another rank table. None is kept.
    """
    nodes: dict[range, RemoteNode] = {}
    began, is_reported = time.monotonic(), not tells
    address = "{}:{}".format(*links.address)
    try:
        while missing := [ranks for ranks in expected if ranks not in nodes]:
            check()
            notice(f"waiting for {len(missing)} of {len(expected)} nodes")
            waited, spans = time.monotonic() - began, ", ".join(map(_span, missing))
            if waited >= seconds:
                raise MindBatchError(
                    f"launch: nobody has come to {address} in {seconds:.0f} s for the ranks {spans}; {remedy}"
                )
            if waited >= _QUIET_SECONDS and not is_reported:
                say(f"launch: waiting at {address} for the ranks {spans}")
                is_reported = True
            if (agent := links.next_agent(_TICK_SECONDS)) is not None:
                with suppress(KeyError, TypeError, ValueError):  # no agent of this version
                    node = _welcomed(*agent, missing, links.world_size, table)
                    nodes[node.ranks] = node
        check()
    except BaseException:
        for node in nodes.values():
            node.close()
        raise
    finally:
        links.refuse_agents()
    return [nodes[ranks] for ranks in expected]


def _span(ranks: range) -> str:
    return f"{ranks.start} to {ranks.stop - 1}"


def _welcomed(
    connection: MessageConnection, hello: RankMessage, missing: Sequence[range], world: int, table: str
) -> RemoteNode:
    """Returns the node of an agent. Raises MindBatchError if the agent does not belong to this job."""
    ranks = range(*map(int, hello.fields["ranks"]))
    host, follows = str(hello.fields["host"]), bool(hello.fields.get("follows"))
    error = None
    if ranks not in missing or hello.fields["world"] != world:
        error = (
            f"launch: {host} came for the ranks {_span(ranks)} of {hello.fields['world']}, which nobody "
            f"wants of the {world} here; give the same keys on every node, and each its own launch.node_rank"
        )
    elif hello.fields["table"] != table:
        error = (
            f"launch.rank_table: that of {host} is not the one of this node; HCCL wants the same on all: "
            "copy it there (`mindbatch rank-table check A B` lists what differs)"
        )
    if error is not None:
        connection.close()
        raise MindBatchError(error)
    node = RemoteNode(connection, host, ranks, follows=follows)
    threading.Thread(target=node.listen, name="agent", daemon=True).start()
    return node
