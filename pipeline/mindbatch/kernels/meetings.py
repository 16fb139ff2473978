"""The meetings of a rank with others: in memory of one host (csrc/meeting.cpp), or on several through MPI."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from mindbatch.io.child_main import outlive_parent
from mindbatch.io.errors import BackendError
from mindbatch.io.screen_text import say
from mindbatch.kernels.arrays import FloatArray
from mindbatch.kernels.native_library import NativeLibrary
from mindbatch.parallel.shared_file import shared_file
from mindbatch.parallel.topology import Stage, TensorSlice, Topology

if TYPE_CHECKING:
    from mpi4py import MPI


class ProcessGroups:
    """Groups of ranks that this process has joined, by their number in it.

    slices: with the ranks of a slice, by that; none of ranks that meet through MindSpore.
    hand_overs: with the fellow of a neighbouring stage, by the stage that hands over.
    functions: those that take part in them in place of the library's, by the names of these.
    """

    def __init__(self, library: NativeLibrary) -> None:
        self._library = library
        self.slices: dict[TensorSlice, int] = {}
        self.hand_overs: dict[int, int] = {}
        self.functions: Mapping[str, Any] = {}

    def enter(self, topology: Topology, rank: int, secret: bytes | None) -> None:
        """Joins the rank's slice and its neighbours in the pipeline; secret: see `Kernels.meet`."""
        if secret is not None:
            join: Callable[[str, Sequence[int]], int] = partial(self._join, secret, rank)
        else:
            through_mpi = MpiProcessGroups(rank)
            self.functions, join = through_mpi.functions, through_mpi.join
        shard, place = topology.slice_of(rank), topology.coordinates(rank)
        if shard.size > 1:
            first = rank - shard.rank
            self.slices[shard] = join(f"{place.stage}", range(first, first + shard.size))
        # With the stage before first, so that none waits for another in a circle.
        for name, ranks in topology.hand_over_groups(rank):
            self.hand_overs[topology.coordinates(ranks[0]).stage] = join(name, ranks)

    def suffice(self, shard: TensorSlice, stage: Stage) -> bool:
        """True if a rank meets all that it has to do with here, or has to do with none."""
        neighbours = [sender for sender in (stage.index - 1, stage.index) if 0 <= sender < stage.count - 1]
        within = shard.size == 1 or shard in self.slices
        return within and all(sender in self.hand_overs for sender in neighbours)

    def _join(self, secret: bytes, rank: int, name: str, ranks: Sequence[int]) -> int:
        shard = TensorSlice(ranks.index(rank), len(ranks))
        file = shared_file(secret, name, shard, self._library.meeting_bytes(shard.size))
        try:
            return self._library.join_meeting(file, shard.rank, shard.size)
        finally:
            os.close(file)


_Shapes = ctypes.POINTER(ctypes.POINTER(ctypes.c_int64))
_Function = ctypes.CFUNCTYPE(
    ctypes.c_int,
    *(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, _Shapes),
    *[ctypes.c_void_p] * 3,
)
"""`EntryPoint` of csrc/program.h."""
_DONE, _FAILED = 0, 1
_SECONDS_TO_LEAVE = 2


class MpiProcessGroups:
    """Groups of ranks joined through MPI, by number.

    functions: by the names of the library's own (csrc/mindspore_ops.cpp), for which they stand in a program.
        They give the same bits: sums are added in the order of ranks.
    """

    def __init__(self, rank: int) -> None:
        """rank: of this process in its replica. The world has the ranks of all replicas in their order.

        Raises:
            BackendError: there is no mpi4py, or its MPI is not that of mpirun.
        """
        try:
            from mpi4py import MPI  # joins the world of mpirun
        except (ImportError, RuntimeError) as error:  # RuntimeError: not the MPI that it was built for
            reason = str(error).splitlines()[0]
            raise BackendError(f"ranks on several hosts meet through mpi4py, and here: {reason}") from error
        self._world = MPI.COMM_WORLD
        if self._world.size == 1:
            name = MPI.Get_library_version().partition(",")[0]
            raise BackendError(f"mpi4py uses {name} here, which is not that of mpirun; allowed: Open MPI's")
        self._first = self._world.rank - rank
        self._meetings: list[MPI.Intracomm] = []
        self.functions = {
            "mb_all_reduce": self._function(_sum),
            "mb_all_gather": self._function(_gather),
            "mb_send_hidden": self._function(_hand_over),
            "mb_receive_hidden": self._function(_take_over),
        }
        signal.signal(signal.SIGTERM, partial(_leave, MPI.Finalize))
        outlive_parent()  # which ends its threads before its processes

    def join(self, name: str, ranks: Sequence[int]) -> int:
        """The number of a meeting of these ranks of the replica, each of which waits for the others here."""
        members = self._world.group.Incl([self._first + rank for rank in ranks])
        self._meetings.append(self._world.Create_group(members))
        return len(self._meetings) - 1

    def _function(self, take_part: Callable[[MPI.Intracomm, FloatArray, FloatArray], None]) -> Any:
        """`take_part(meeting, x, y)` as a function of the library: its operands are x, a number and y."""

        def call(count: int, operands: Any, dimensions: Any, shapes: Any, *_: Any) -> int:
            try:
                settings = (ctypes.c_int32 * shapes[1][0]).from_address(operands[1])
                take_part(self._meetings[settings[-1]], *(_floats(operands[i], shapes[i]) for i in (0, 2)))
            except Exception as error:  # goes through C++, which knows numbers only
                say(f"MPI: {error}")
                return _FAILED
            return _DONE

        return _Function(call)


def _sum(meeting: MPI.Intracomm, x: FloatArray, y: FloatArray) -> None:
    first, *others = _parts(meeting, x)
    np.copyto(y, first)
    for part in others:
        y += part


def _gather(meeting: MPI.Intracomm, x: FloatArray, y: FloatArray) -> None:
    """Side by side, without what is beyond the columns of y."""
    width, total = x.shape[1], y.shape[1]
    for rank, part in enumerate(_parts(meeting, x)):
        columns = slice(rank * width, min((rank + 1) * width, total))
        y[:, columns] = part[:, : max(0, total - rank * width)]


def _hand_over(meeting: MPI.Intracomm, x: FloatArray, y: FloatArray) -> None:
    """Until it is taken: MPI moves nothing on while this process is elsewhere."""
    meeting.Ssend(x, 1)
    np.copyto(y, x)


def _take_over(meeting: MPI.Intracomm, ids: FloatArray, y: FloatArray) -> None:
    meeting.Recv(y, 0)


def _parts(meeting: MPI.Intracomm, x: FloatArray) -> FloatArray:
    """Gathers the arrays of all ranks as [ranks, rows, width]."""
    parts = np.empty((meeting.size, *x.shape), np.float32)
    meeting.Allgather(x, parts)
    return parts


def _floats(address: int, shape: Any) -> FloatArray:
    """The float32 array [rows, width] there."""
    rows, width = shape[0], shape[1]
    numbers = (ctypes.c_float * (rows * width)).from_address(address)
    return np.frombuffer(numbers, np.float32).reshape(rows, width)


def _leave(finalize: Callable[[], None], number: int, _: Any) -> None:
    """Ends as by this signal, but leaves MPI before: else mpirun takes the end of the job for a failure.

    Who leaves waits for the others, which may not have been told to end: SIGALRM bounds that.
    """
    signal.signal(number, signal.SIG_DFL)
    signal.alarm(_SECONDS_TO_LEAVE)
    finalize()  # keeps Python's lock
    os.kill(os.getpid(), number)
