"""Rank processes that start at once: forks of a small process, as of msrun; the shadow model, no MindSpore.

A replica's ranks meet in each step, as in a collective operation: where one is stopped the other waits, and
where one ends the other fails.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from harness.networks import OtherHost
from mindbatch.engine.step import Step
from mindbatch.io.child_main import die_with
from mindbatch.launch.job_ranks import EndedRank
from mindbatch.parallel.connection import connect
from mindbatch.prompts.tokenizer import Tokenizer
from mindbatch.replicas.messages import MODEL, READY, boot_id
from mindbatch.replicas.rank_links import IDLE, STEPPING, CoordinatorLink, serve
from shadow_llm import PrefixLogits, PrefixRunner, make_engine
from shadow_ranks import KEY

STEP_SECONDS = 0.004
_CLONE_NEWNET = 0x40000000

Report = Callable[[str], None]


class MeetingRunner(PrefixRunner):
    """Computes when the other rank of the replica does."""

    def __init__(self, other: socket.socket) -> None:
        self._other = other

    def run(self, step: Step) -> PrefixLogits:
        self._other.send(b"x")
        if not self._other.recv(1):
            sys.exit("the other rank has ended")
        return super().run(step)


def lead(link: CoordinatorLink, other: socket.socket, tokenizer: Tokenizer) -> None:
    """The life of a leader."""
    engine = make_engine(tokenizer)
    engine._runner = MeetingRunner(other)
    serve(link, engine)


def follow(link: CoordinatorLink, other: socket.socket, tokenizer: Tokenizer) -> None:
    """The life of a follower: a step takes as long as it does."""
    while True:
        link.begin(IDLE)
        if not other.recv(1):
            sys.exit("the other rank has ended")
        link.begin(STEPPING)
        time.sleep(STEP_SECONDS)
        other.send(b"x")


class ForkedRanks:
    """`JobRanks` of a job of replicas of two. To be made before the process has threads.

    report: told `rank RANK PROCESS` when one starts; of the pipe behind it each rank has an end.
    hosts: by replica, the other host that its ranks are on, which cannot be told to end them; the others are
        on this one.
    """

    def __init__(
        self,
        num_replicas: int,
        tokenizer: Tokenizer,
        report: Report,
        hosts: dict[int, OtherHost] | None = None,
    ) -> None:
        self.num_replicas = num_replicas
        self._hosts = hosts or {}
        self._ours, theirs = Pipe()
        parent = os.getpid()
        if os.fork() == 0:
            self._ours.close()
            die_with(parent)
            os.setsid()
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            _Starter(theirs, tokenizer, report, self._hosts).run()
            os._exit(0)
        theirs.close()

    def start(self, port: int) -> None:
        """Starts all ranks, which connect to the front at that port."""
        self._port = port
        for replica in range(self.num_replicas):
            self._ask("start", replica, 0, port)

    def ended(self) -> list[EndedRank]:
        return [EndedRank(rank, how) for rank, how in self._ask("ended")]

    def process_id(self, rank: int) -> int | None:
        return None

    def last_lines(self, rank: int) -> tuple[str, ...]:
        return ()

    def restart(self, replica: int, attempt: int) -> None:
        if replica not in self._hosts:
            self._ask("end", replica)
        self._ask("start", replica, attempt, self._port)

    def end(self) -> None:
        with suppress(OSError):
            self._ours.close()

    def _ask(self, *question: Any) -> Any:
        self._ours.send_bytes(json.dumps(question).encode())
        return json.loads(self._ours.recv_bytes())


class _Starter:
    """What the ranks are forked from; they die with it."""

    def __init__(
        self, asked: Connection, tokenizer: Tokenizer, report: Report, hosts: dict[int, OtherHost]
    ) -> None:
        self._asked = asked
        self._tokenizer = tokenizer
        self._report = report
        self._hosts = hosts
        self._ranks: dict[int, tuple[int, int]] = {}  # rank and attempt by process
        self._attempts: dict[int, int] = {}  # the last of each replica

    def run(self) -> None:
        """Answers until nobody asks any more; then it ends all."""
        answers: dict[str, Callable[..., Any]] = {"start": self.start, "ended": self.ended, "end": self.end}
        with suppress(EOFError, OSError):
            while True:
                kind, *arguments = json.loads(self._asked.recv_bytes())
                self._asked.send_bytes(json.dumps(answers[kind](*arguments)).encode())
        for replica in self._attempts:
            self.end(replica)

    def start(self, replica: int, attempt: int, port: int) -> None:
        pairs = socket.socketpair()
        self._attempts[replica] = attempt
        for place, (own, live) in enumerate(zip(pairs, (lead, follow), strict=True)):
            parent, process = os.getpid(), os.fork()
            if process:
                self._ranks[process] = (2 * replica + place, attempt)
                continue
            code = 1
            try:
                die_with(parent)
                os.setsid()
                self._asked.close()
                pairs[1 - place].close()
                self._live(live, 2 * replica + place, attempt, port, own)
            except SystemExit:
                pass
            except OSError as error:
                print(f"rank {2 * replica + place}: {error}", file=sys.stderr, flush=True)
            finally:
                os._exit(code)
        for each in pairs:
            each.close()

    def ended(self) -> list[tuple[int, str]]:
        found = []
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                code = os.waitstatus_to_exitcode(ended[1])
                how = f"signal {-code}" if code < 0 else f"exit code {code}"
                rank, attempt = self._ranks.pop(ended[0])
                if attempt == self._attempts[rank // 2]:  # of one that was given up nobody hears
                    found.append((rank, how))
        return found

    def end(self, replica: int) -> None:
        processes = [process for process, (rank, _) in self._ranks.items() if rank // 2 == replica]
        for process in processes:
            os.kill(process, signal.SIGKILL)
        for process in processes:
            os.waitpid(process, 0)
            del self._ranks[process]

    def _live(
        self,
        live: Callable[[CoordinatorLink, socket.socket, Tokenizer], None],
        rank: int,
        attempt: int,
        port: int,
        other: socket.socket,
    ) -> None:
        address, name, host = "127.0.0.1", socket.gethostname(), self._hosts.get(rank // 2)
        if host is not None:
            enter_network(host.namespace)
            address, name = host.address, "elsewhere"
        self._report(f"rank {rank} {os.getpid()}")
        hello = {"rank": rank, "attempt": attempt, "pid": os.getpid(), "host": name, "boot": boot_id()}
        link = CoordinatorLink(connect((address, port), KEY), hello)
        link.receive()
        link.send(MODEL, digests=[])
        link.send(READY)
        live(link, other, self._tokenizer)


def enter_network(namespace: str) -> None:
    """Makes a network namespace, by its file, this process's own."""
    with open(namespace) as file:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(file.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), namespace)
