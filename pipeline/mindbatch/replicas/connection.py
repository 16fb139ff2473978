"""Connections between the processes of a job: both ends prove its key; messages are never pickled."""

from __future__ import annotations

import json
import math
import os
import socket
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mindbatch.errors import MindBatchError

Array = npt.NDArray[Any]
Address = tuple[str, int]

MOST_MESSAGE_BYTES = 1 << 30
_HANDSHAKE_SECONDS = 30
"""A peer may be on a machine that has much else to do."""
_SEND_SECONDS = 60
"""A peer that takes nothing for so long is stopped or cut off."""
_PAUSE_SECONDS = 0.1
_MOST_HANDSHAKES = 64
"""At the same time: a foreign program that opens connections must not make threads without end."""
_DTYPES = ("bool", "int32", "int64", "float16", "float32", "float64", "uint8", "uint16")
_HEAD = struct.Struct("<I")


class Message(NamedTuple):
    """A kind, fields of JSON's types, and arrays."""

    kind: str
    fields: dict[str, Any]
    arrays: list[Array]


class MessageError(MindBatchError):
    """Bytes that are no message of this version."""


def encoded(kind: str, fields: Mapping[str, Any], arrays: Sequence[Array] = ()) -> bytes:
    """A message as bytes: the length of a JSON header, the header, the arrays' bytes.

    Python's own JSON: it keeps infinite numbers, whole numbers of any size and texts that are no Unicode.
    """
    described = [{"dtype": array.dtype.name, "shape": array.shape} for array in arrays]
    header = json.dumps({"kind": kind, "fields": fields, "arrays": described}, separators=(",", ":")).encode()
    return b"".join([_HEAD.pack(len(header)), header, *(array.tobytes() for array in arrays)])


def decoded(content: bytes) -> Message:
    """The message in some bytes.

    Raises:
        MessageError: they hold none.
    """
    try:
        [length] = _HEAD.unpack_from(content)
        start = _HEAD.size + length
        header = json.loads(content[_HEAD.size : start])
        arrays = []
        for described in header["arrays"]:
            array, start = _array(content, start, described["dtype"], described["shape"])
            arrays.append(array)
        kind, fields = header["kind"], header["fields"]
    except (struct.error, ValueError, KeyError, TypeError, RecursionError) as error:
        raise MessageError(f"not a message of a MindBatch job ({error!r})") from error
    if start != len(content) or not isinstance(kind, str) or not isinstance(fields, dict):
        raise MessageError("not a message of a MindBatch job")
    return Message(kind, fields, arrays)


def _array(content: bytes, start: int, dtype: str, shape: Sequence[int]) -> tuple[Array, int]:
    """The array that begins at `start`, which shares the memory of `content`, and where it ends."""
    if dtype not in _DTYPES or any(not isinstance(size, int) or size < 0 for size in shape):
        raise ValueError(f"an array of {dtype} {shape}")
    count = math.prod(shape)
    array = np.frombuffer(content, dtype, count, start).reshape(shape)
    return array, start + array.nbytes


class MessageConnection:
    """One end of a connection; any thread may send, one receives."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()

    def send(self, kind: str, arrays: Sequence[Array] = (), **fields: Any) -> None:
        """Sends a message.

        Raises:
            OSError: the peer has gone, or has taken nothing for a minute.
        """
        self.send_encoded(encoded(kind, fields, arrays))

    def send_encoded(self, content: bytes) -> None:
        """Sends a message that was encoded before; raises what `send` raises."""
        with self._sending:
            self._connection.send_bytes(content)

    def receive(self) -> Message:
        """Waits for the next message.

        Raises:
            EOFError, OSError: the peer has gone.
            MessageError: what came is no message.
        """
        return decoded(self._connection.recv_bytes(MOST_MESSAGE_BYTES))

    def close(self) -> None:
        """Ends the connection; a thread that receives notices it, and so does the peer.

        The descriptor is closed with this object: a thread that still reads would else read from whatever
        gets its number next.
        """
        with suppress(OSError), socket.socket(fileno=os.dup(self._connection.fileno())) as stream:
            stream.shutdown(socket.SHUT_RDWR)


def connect(address: Address, key: bytes) -> MessageConnection:
    """A connection to a process of the same job.

    Raises:
        OSError: nobody listens there, or is not of this job.
    """
    stream = socket.create_connection(address, _HANDSHAKE_SECONDS)
    made = _authenticated(stream, key, listens=False)
    if made is None:
        raise ConnectionError(f"{address[0]}:{address[1]}: who listens there is not of this job")
    return made


def _authenticated(stream: socket.socket, key: bytes, *, listens: bool) -> MessageConnection | None:
    """The connection over a stream, once both ends have proved the key; None if the peer cannot."""
    stream.settimeout(None)
    _set_timeout(stream, socket.SO_RCVTIMEO, _HANDSHAKE_SECONDS)
    _set_timeout(stream, socket.SO_SNDTIMEO, _SEND_SECONDS)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # What was sent and is not acknowledged for so long ends the connection: a host that was cut off.
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _SEND_SECONDS)
    connection = Connection(stream.detach())
    steps: list[Callable[[Connection, bytes], None]] = [deliver_challenge, answer_challenge]
    try:
        for step in steps if listens else reversed(steps):
            step(connection, key)
    except (AuthenticationError, EOFError, OSError, ValueError, AssertionError):
        connection.close()
        return None
    with socket.socket(fileno=os.dup(connection.fileno())) as authenticated:
        _set_timeout(authenticated, socket.SO_RCVTIMEO, 0)
    return MessageConnection(connection)


def _set_timeout(stream: socket.socket, option: int, seconds: int) -> None:
    stream.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", seconds, 0))  # a struct timeval


class JobListener:
    """Takes the connections of a job's processes; whoever does not know the job's key gets nothing.

    on_connection: called, in a thread of its own, with each connection whose peer has proved the key.
    """

    def __init__(
        self,
        host: str,
        key: bytes,
        on_connection: Callable[[MessageConnection], None],
        port: int = 0,
    ) -> None:
        """`port`: 0 is a free one. Raises OSError where the address cannot be listened on."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._stream = socket.create_server((host, port), family=family)
        self.address: Address = self._stream.getsockname()[:2]
        self._key = key
        self._on_connection = on_connection
        self._closed = threading.Event()
        self._free = threading.BoundedSemaphore(_MOST_HANDSHAKES)
        threading.Thread(target=self._accept, name="job listener", daemon=True).start()

    def close(self) -> None:
        """Takes no more connections; those that there are stay."""
        self._closed.set()
        with suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)
        self._stream.close()

    def _accept(self) -> None:
        while True:
            self._free.acquire()
            try:
                stream, _ = self._stream.accept()
            except OSError:  # the peer has gone again, this process has no descriptor left, or it is closed
                self._free.release()
                if self._closed.wait(_PAUSE_SECONDS):
                    return
                continue
            threading.Thread(target=self._take, args=(stream,), name="job peer", daemon=True).start()

    def _take(self, stream: socket.socket) -> None:
        try:
            made = _authenticated(stream, self._key, listens=True)
        finally:
            self._free.release()
        if made is not None:
            self._on_connection(made)
