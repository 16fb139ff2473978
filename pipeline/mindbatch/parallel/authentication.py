"""Streams between the processes of a job: both ends prove the job's key before either is told anything."""

import os
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

HANDSHAKE_SECONDS = 30
"""A peer may be on a machine that has much else to do."""
_PAUSE_SECONDS = 0.1
MOST_HANDSHAKES = 128
"""At the same time: a foreign program that opens connections must not make threads without end."""


def is_authenticated(stream: socket.socket, key: bytes, *, listens: bool) -> bool:
    """True if both ends of a stream have proved the key; a peer that cannot gets nothing but a challenge.

    listens: the peer has connected to this process. The stream blocks, without time limits, afterwards.
    """
    stream.settimeout(None)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        set_timeout(stream, option, HANDSHAKE_SECONDS)
    steps: list[Callable[[Connection, bytes], None]] = [deliver_challenge, answer_challenge]
    try:
        with Connection(os.dup(stream.fileno())) as connection:
            for step in steps if listens else reversed(steps):
                step(connection, key)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            set_timeout(stream, option, 0)
    except (AuthenticationError, EOFError, OSError, ValueError, AssertionError):
        return False
    return True


def set_timeout(stream: socket.socket, option: int, seconds: int) -> None:
    """Sets SO_RCVTIMEO or SO_SNDTIMEO; 0 is none."""
    stream.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", seconds, 0))  # a struct timeval


class AuthenticatingListener:
    """Takes connections whose peers prove a key.

    Handshakes are done side by side. Of too many the oldest is ended: one that was begun long ago is of
    somebody who says nothing, and whoever holds connections keeps nobody else out.
    """

    def __init__(
        self, listening: socket.socket, key: bytes, on_stream: Callable[[socket.socket], None]
    ) -> None:
        """on_stream: called, in a thread of its own, with each stream whose peer has proved the key."""
        self._listening, self._key, self._on_stream = listening, key, on_stream
        self._closed = threading.Event()
        self._handshakes: list[socket.socket] = []  # the oldest first
        self._changing = threading.Lock()
        threading.Thread(target=self._accept, name="job listener", daemon=True).start()

    def close(self) -> None:
        """Takes no more connections; those whose peers have proved the key stay."""
        self._closed.set()
        _shut(self._listening)
        self._listening.close()
        with self._changing:
            while self._handshakes:
                _shut(self._handshakes.pop())

    def _accept(self) -> None:
        while True:
            try:
                stream, _ = self._listening.accept()
            except OSError:  # the peer has gone again, this process has no descriptor left, or it is closed
                if self._closed.wait(_PAUSE_SECONDS):
                    return
                continue
            with self._changing:
                if len(self._handshakes) == MOST_HANDSHAKES:
                    _shut(self._handshakes.pop(0))
                self._handshakes.append(stream)
            threading.Thread(target=self._take, args=(stream,), name="job peer", daemon=True).start()

    def _take(self, stream: socket.socket) -> None:
        is_peer = is_authenticated(stream, self._key, listens=True)
        with self._changing:
            if stream in self._handshakes:
                self._handshakes.remove(stream)
            else:  # ended meanwhile
                is_peer = False
        if is_peer:
            self._on_stream(stream)
        else:
            stream.close()


def _shut(stream: socket.socket) -> None:
    """Ends a stream that another thread waits at."""
    with suppress(OSError):
        stream.shutdown(socket.SHUT_RDWR)
