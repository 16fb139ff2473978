"""Connections between the processes of a job: both ends prove its key; messages are never pickled."""

import json
import math
import os
import socket
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mindbatch.io.errors import MindBatchError
from mindbatch.parallel.authentication import (
    HANDSHAKE_SECONDS,
    AuthenticatingListener,
    is_authenticated,
    set_timeout,
)

Array = npt.NDArray[Any]
Address = tuple[str, int]

MOST_MESSAGE_BYTES = 1 << 30
_TRIES = 3
"""A loaded machine may be slow to prove the key, and who holds many connections may have ours ended once."""
_SEND_SECONDS = 60
"""A peer that takes nothing for so long is stopped or cut off."""
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
    for _ in range(_TRIES):
        stream = socket.create_connection(address, HANDSHAKE_SECONDS)
        if is_authenticated(stream, key, listens=False):
            return _message_connection(stream)
        stream.close()
    raise ConnectionError(f"{address[0]}:{address[1]}: who listens there is not of this job")


def _message_connection(stream: socket.socket) -> MessageConnection:
    """The connection over a stream both of whose ends have proved the key."""
    set_timeout(stream, socket.SO_SNDTIMEO, _SEND_SECONDS)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # What was sent and is not acknowledged for so long ends the connection: a host that was cut off.
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _SEND_SECONDS)
    return MessageConnection(Connection(stream.detach()))


class JobListener(AuthenticatingListener):
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
        listening = socket.create_server((host, port), family=family)
        self.address: Address = listening.getsockname()[:2]
        super().__init__(listening, key, lambda stream: on_connection(_message_connection(stream)))
