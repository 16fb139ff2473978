"""Connections between the processes of a job: both ends prove its key; messages are never pickled."""

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

from mindbatch.io.errors import MindBatchError

HANDSHAKE_SECONDS = 30
"""A peer may be on a busy machine."""
_PAUSE_SECONDS = 0.1
MAX_HANDSHAKES = 128
"""Handshakes at a time: a foreign program that opens connections must not make threads without end."""


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

    Handshakes run in parallel. If there are too many, the oldest is ended: a program that opens connections
    and proves nothing cannot keep the ranks out.
    """

    def __init__(
        self, listening: socket.socket, key: bytes, on_stream: Callable[[socket.socket], None]
    ) -> None:
        """on_stream: called in a new thread for each stream whose peer has proved the key."""
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
                if len(self._handshakes) == MAX_HANDSHAKES:
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


Array = npt.NDArray[Any]
Address = tuple[str, int]

MAX_MESSAGE_BYTES = 1 << 30
_TRIES = 3
"""A loaded machine may be slow to prove the key, and a flood of connections may have ours ended once."""
_SEND_SECONDS = 60
"""A peer that receives nothing for so long is stopped or cut off."""
_DTYPES = ("bool", "int32", "int64", "float16", "float32", "float64", "uint8", "uint16")
_HEAD = struct.Struct("<I")


class RankMessage(NamedTuple):
    """A kind, fields of JSON's types, and arrays."""

    kind: str
    fields: dict[str, Any]
    arrays: list[Array]


class MessageError(MindBatchError):
    """Bytes that are no message of this version."""


def encoded(kind: str, fields: Mapping[str, Any], arrays: Sequence[Array] = ()) -> bytes:
    """Encodes a message: the length of a JSON header, the header, the arrays' bytes.

    Python's own JSON: it keeps infinite numbers, whole numbers of any size and texts that are no Unicode.
    """
    described = [{"dtype": array.dtype.name, "shape": array.shape} for array in arrays]
    header = json.dumps({"kind": kind, "fields": fields, "arrays": described}, separators=(",", ":")).encode()
    return b"".join([_HEAD.pack(len(header)), header, *(array.tobytes() for array in arrays)])


def decoded(content: bytes) -> RankMessage:
    """Decodes a message.

    Raises:
        MessageError: the bytes are not a message.
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
    return RankMessage(kind, fields, arrays)


def _array(content: bytes, start: int, dtype: str, shape: Sequence[int]) -> tuple[Array, int]:
    """Returns the array that begins at `start`, over the memory of `content`, and the offset of its end."""
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
            OSError: the peer has ended, or has received nothing for a minute.
        """
        self.send_encoded(encoded(kind, fields, arrays))

    def send_encoded(self, content: bytes) -> None:
        """Sends a message that was encoded before; raises what `send` raises."""
        with self._sending:
            self._connection.send_bytes(content)

    def receive(self) -> RankMessage:
        """Waits for the next message.

        Raises:
            EOFError, OSError: the peer has ended.
            MessageError: the bytes are not a message.
        """
        return decoded(self._connection.recv_bytes(MAX_MESSAGE_BYTES))

    def close(self) -> None:
        """Ends the connection; a thread that receives notices it, and so does the peer.

        The descriptor is closed with this object: a thread that still reads would else read from whatever
        gets its number next.
        """
        with suppress(OSError), socket.socket(fileno=os.dup(self._connection.fileno())) as stream:
            stream.shutdown(socket.SHUT_RDWR)


def connect(address: Address, key: bytes) -> MessageConnection:
    """Connects to a process of the same job.

    Raises:
        OSError: no process listens there, or one that is not of this job.
    """
    for _ in range(_TRIES):
        stream = socket.create_connection(address, HANDSHAKE_SECONDS)
        if is_authenticated(stream, key, listens=False):
            return _message_connection(stream)
        stream.close()
    raise ConnectionError(f"the process at {address[0]}:{address[1]} is not of this job")


def _message_connection(stream: socket.socket) -> MessageConnection:
    """Makes a connection of a stream both of whose ends have proved the key."""
    set_timeout(stream, socket.SO_SNDTIMEO, _SEND_SECONDS)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # What was sent and is not acknowledged for so long ends the connection: a host that was cut off.
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _SEND_SECONDS)
    return MessageConnection(Connection(stream.detach()))


class JobListener(AuthenticatingListener):
    """Takes connections of a job's processes, which must prove the job's key.

    on_connection: called in a new thread for each connection whose peer has proved the key.
    """

    def __init__(
        self,
        host: str,
        key: bytes,
        on_connection: Callable[[MessageConnection], None],
        port: int = 0,
    ) -> None:
        """Begins to listen; port 0 is a free one. Raises OSError where the address cannot be listened on."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family)
        self.address: Address = listening.getsockname()[:2]
        super().__init__(listening, key, lambda stream: on_connection(_message_connection(stream)))
