"""The front's side of the agents: which have come, and the processes that each has on its node."""

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
from mindbatch.parallel.connection import Address, JobListener, Message, MessageConnection, MessageError
from mindbatch.replicas.agent import AGENT, CLOSE, END, ENDED, GONE, LEFT, SHARED, START

WAIT_SECONDS = 600.0
"""For agents to come."""

_QUIET_SECONDS = 10.0
"""So long nobody is told that the others have not come."""

_ON_EACH_NODE = (
    "start the same command on each node with its own launch.node_rank and the same key; a firewall may be "
    "between, too"
)
_TICK_SECONDS = 0.1
_SECONDS_TO_END = 10.0


class RemoteNode(NodeProcesses):
    """The processes of an agent (see `NodeProcesses`).

    ranks: that it serves. follows: it is a copy of a script, which makes the calls that are made here, too.
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
        self._started: set[str] = set()  # those whose end was told, too, until they are ended from here
        self._told: list[EndedProcess] = []
        self._changed = threading.Condition()
        self._asked = self._answered = 0
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
        names = {spec.name for spec in specs}
        self._living |= names
        self._started |= names
        self._send(START, processes=[_fields(spec) for spec in specs])

    def ended(self) -> list[EndedProcess]:
        with self._changed:
            is_lost, processes, self._told = self._is_lost, self._told, []
        if is_lost:
            lost = sorted(self._living - {process.name for process in processes})
            how, *lines = self.loss() if lost else [""]
            processes += [EndedProcess(name, how, tuple(lines), is_lost=True) for name in lost]
        processes = [process for process in processes if process.name in self._living]
        self._living -= {process.name for process in processes}
        return processes

    def end(self, names: Collection[str] | None = None) -> None:
        ending = [name for name in (self._started if names is None else names) if name in self._started]
        if not ending:
            return
        self._asked += 1
        self._send(END, names=ending, number=self._asked)
        self._wait_for(lambda: self._answered >= self._asked)
        self._living -= {*ending}
        self._started -= {*ending}

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
        """Until it holds, the agent has gone, or for a while."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_lost or condition(), _SECONDS_TO_END)

    def _send(self, kind: str, **fields: Any) -> None:
        """To one that has gone nothing is sent: `ended` tells."""
        with suppress(OSError):
            self._connection.send(kind, **fields)

    def _take(self, message: Message) -> None:
        fields = message.fields
        if message.kind == ENDED:
            self._told.append(EndedProcess(**{**fields, "last_lines": tuple(fields["last_lines"])}))
        elif message.kind == LEFT:
            self.has_left = True
        elif message.kind == GONE:
            self._answered = max(self._answered, int(fields["number"]))


def _fields(spec: ProcessSpec) -> dict[str, Any]:
    variables = {name: text for name, text in spec.variables.items() if name != JOB_KEY}
    return {"name": spec.name, "replica": spec.replica, "rank": spec.rank, "variables": variables}


def _spans(missing: Sequence[range]) -> str:
    return ", ".join(f"{ranks.start} to {ranks.stop - 1}" for ranks in missing)


class RemoteNodes:
    """Waits for the agents of a job, each of which serves the ranks that nobody else serves.

    ranks: of each agent. world: all of the job. table: digest of the rank table, empty without one.
    remedy: what to do where one does not come.
    """

    def __init__(
        self,
        meeting: Address,
        key: bytes,
        ranks: Sequence[range],
        world: int,
        table: str = "",
        remedy: str = _ON_EACH_NODE,
    ) -> None:
        """Listens at `meeting`. Raises MindBatchError where that is not possible."""
        self._remedy = remedy
        self._expected, self._world, self._table = ranks, world, table
        self._nodes: dict[range, RemoteNode] = {}
        self._changed = threading.Condition()
        self._refused = ""
        try:
            self._listener = JobListener(meeting[0], key, self._serve, meeting[1])
        except OSError as error:
            raise MindBatchError(
                f"launch: {meeting[0]}:{meeting[1]} cannot be listened on ({error.strerror or error}); "
                "node 0 must have the address, and the port must be free"
            ) from error

    @property
    def address(self) -> Address:
        return self._listener.address

    def wait(
        self,
        check: Callable[[], None] = lambda: None,
        notice: Callable[[str], None] = lambda text: None,
        seconds: float = WAIT_SECONDS,
        *,
        tells: bool = True,
    ) -> list[RemoteNode]:
        """The agents in the order of their ranks, when all have come.

        check: called all the while; raises where it is in vain to wait.
        tells: the user, when it takes long, for it is the user who starts them.

        Raises:
            MindBatchError: some have not come, or one has other ranks or another rank table.
        """
        began, is_told = time.monotonic(), not tells
        while missing := [ranks for ranks in self._expected if ranks not in self._nodes]:
            check()
            if self._refused:
                raise MindBatchError(self._refused)
            notice(f"waiting for {len(missing)} of {len(self._expected)} nodes")
            waited = time.monotonic() - began
            if waited >= seconds:
                raise MindBatchError(self._absence(missing, seconds))
            if waited >= _QUIET_SECONDS and not is_told:
                host, port = self.address
                say(f"launch: waiting at {host}:{port} for the ranks {_spans(missing)}")
                is_told = True
            with self._changed:
                self._changed.wait(_TICK_SECONDS)
        return [self._nodes[ranks] for ranks in self._expected]

    def close(self) -> None:
        """Takes no more agents, and lets those go that have come."""
        self._listener.close()
        with self._changed:
            nodes = [*self._nodes.values()]
        for node in nodes:
            node.close()

    def _absence(self, missing: Sequence[range], seconds: float) -> str:
        host, port = self.address
        return (
            f"launch: nobody has come to {host}:{port} in {seconds:.0f} s for the ranks {_spans(missing)}; "
            f"{self._remedy}"
        )

    def _serve(self, connection: MessageConnection) -> None:
        """The life of an agent's connection, in a thread of its own."""
        with suppress(EOFError, OSError, MessageError, KeyError, TypeError, ValueError):
            node = self._welcome(connection, connection.receive())
            if node is not None:
                node.listen()

    def _welcome(self, connection: MessageConnection, hello: Message) -> RemoteNode | None:
        """The node of an agent; None for one that does not belong to this job as it is here."""
        ranks = range(*map(int, hello.fields["ranks"]))
        host, follows = str(hello.fields["host"]), bool(hello.fields.get("follows"))
        with self._changed:
            self._changed.notify_all()
            if fault := self._fault(hello, ranks, host):
                self._refused = fault
                connection.close()
                return None
            self._nodes[ranks] = RemoteNode(connection, host, ranks, follows=follows)
            return self._nodes[ranks]

    def _fault(self, hello: Message, ranks: range, host: str) -> str | None:
        is_expected = ranks in self._expected and ranks not in self._nodes
        if hello.kind != AGENT or not is_expected or hello.fields["world"] != self._world:
            return (
                f"launch: {host} came for the ranks {ranks.start} to {ranks.stop - 1} of "
                f"{hello.fields['world']}, which nobody wants of the {self._world} here; give the "
                "same keys on every node, and each its own launch.node_rank"
            )
        if hello.fields["table"] != self._table:
            return (
                f"launch.rank_table: that of {host} is not the one of this node; HCCL wants the same on all: "
                "copy it there (`mindbatch rank-table check A B` lists what differs)"
            )
        return None
