"""Process groups: in memory that one host shares (csrc/process_group.cpp), or through MPI on several."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
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
    """Numbers of the process groups that this process has joined.

    slices: the group of a tensor-parallel slice, by slice. Empty if MindSpore connects the ranks.
    stage_links: the group with the peer in a neighbouring stage, by the stage that sends.
    functions: functions that replace the library's of the same names.
    """

    def __init__(self, library: NativeLibrary) -> None:
        self._library = library
        self.slices: dict[TensorSlice, int] = {}
        self.stage_links: dict[int, int] = {}
        self.functions: Mapping[str, Any] = {}

    def join(self, topology: Topology, rank: int, secret: bytes | None) -> None:
        """Joins the groups of the rank's slice and of its neighbours in the pipeline.

        secret: see `Kernels.join_process_groups`.
        """
        if secret is not None:
            join: Callable[[str, Sequence[int]], int] = partial(self._join_in_memory, secret, rank)
        else:
            through_mpi = MpiProcessGroups(rank)
            self.functions, join = through_mpi.functions, through_mpi.join
        shard, stage = topology.slice_of(rank), topology.coordinates(rank).stage
        if shard.size > 1:
            first = rank - shard.rank
            self.slices[shard] = join(f"{stage}", range(first, first + shard.size))
        # The link with the stage before comes first, so that ranks never wait for one another in a circle.
        for name, ranks in topology.stage_links(rank):
            self.stage_links[topology.coordinates(ranks[0]).stage] = join(name, ranks)

    def suffice(self, shard: TensorSlice, stage: Stage) -> bool:
        """True if this process has joined all groups that a rank needs."""
        neighbours = [sender for sender in (stage.index - 1, stage.index) if 0 <= sender < stage.count - 1]
        within = shard.size == 1 or shard in self.slices
        return within and all(sender in self.stage_links for sender in neighbours)

    def _join_in_memory(self, secret: bytes, rank: int, name: str, ranks: Sequence[int]) -> int:
        shard = TensorSlice(ranks.index(rank), len(ranks))
        file = shared_file(secret, name, shard, self._library.process_group_bytes(shard.size))
        try:
            return self._library.join_process_group(file, shard.rank, shard.size)
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
_EXIT_SECONDS = 2


class MpiProcessGroups:
    """Process groups that were joined through MPI."""

    def __init__(self, rank: int) -> None:
        """Connects to the world of mpirun, which has the ranks of all replicas in their order.

        rank: the rank of this process in its replica.

        Raises:
            BackendError: there is no mpi4py, or its MPI is not that of mpirun.
        """
        try:
            from mpi4py import MPI  # joins the world of mpirun
        except (ImportError, RuntimeError) as error:  # RuntimeError: not the MPI that it was built for
            reason = str(error).splitlines()[0]
            raise BackendError(f"ranks on several hosts need mpi4py, and here: {reason}") from error
        self._world = MPI.COMM_WORLD
        if self._world.size == 1:
            name = MPI.Get_library_version().partition(",")[0]
            raise BackendError(f"mpi4py uses {name} here, which is not that of mpirun; allowed: Open MPI's")
        self._first = self._world.rank - rank
        self._groups: list[MPI.Intracomm] = []
        signal.signal(signal.SIGTERM, partial(_exit_on_signal, MPI.Finalize))
        outlive_parent()  # which ends its threads before its processes

    def join(self, name: str, ranks: Sequence[int]) -> int:
        """Joins these ranks of the replica, waits for all of them, and returns the group's number."""
        members = self._world.group.Incl([self._first + rank for rank in ranks])
        self._groups.append(self._world.Create_group(members))
        return len(self._groups) - 1

    @cached_property
    def functions(self) -> Mapping[str, Any]:
        """Functions that replace the library's of the same names (csrc/mindspore_ops.cpp) in a program.

        They give the same bits: sums are added in the same tree.
        """
        return {
            "mb_all_reduce": self._function(_sum),
            "mb_all_gather": self._function(_gather),
            "mb_send_hidden": self._function(_send),
            "mb_receive_hidden": self._function(_receive),
        }

    def _function(self, collective: Callable[[MPI.Intracomm, FloatArray, FloatArray], None]) -> Any:
        """Wraps `collective(group, x, y)` as a function of the library, whose operands are x, settings and y.

        The group's number is the last of the settings: see `mindbatch.kernels.native.EXTRAS`.
        """

        def call(count: int, operands: Any, dimensions: Any, shapes: Any, *_: Any) -> int:
            try:
                settings = (ctypes.c_int32 * shapes[1][0]).from_address(operands[1])
                collective(self._groups[settings[-1]], *(_floats(operands[i], shapes[i]) for i in (0, 2)))
            except Exception as error:  # goes through C++, which knows numbers only
                say(f"MPI: {error}")
                return _FAILED
            return _DONE

        return _Function(call)


def _sum(group: MPI.Intracomm, x: FloatArray, y: FloatArray) -> None:
    np.copyto(y, _tree(_parts(group, x)))


def _tree(parts: FloatArray) -> FloatArray:
    """The sum of parts [n, ...]: of the first half of them, and of the second."""
    if len(parts) == 1:
        first: FloatArray = parts[0]
        return first
    half = (len(parts) + 1) // 2
    return _tree(parts[:half]) + _tree(parts[half:])


def _gather(group: MPI.Intracomm, x: FloatArray, y: FloatArray) -> None:
    """Side by side, without what is beyond the columns of y."""
    width, total = x.shape[1], y.shape[1]
    for rank, part in enumerate(_parts(group, x)):
        columns = slice(rank * width, min((rank + 1) * width, total))
        y[:, columns] = part[:, : max(0, total - rank * width)]


def _send(group: MPI.Intracomm, x: FloatArray, y: FloatArray) -> None:
    """Waits until it is received: MPI moves nothing on while this process is elsewhere."""
    group.Ssend(x, 1)
    np.copyto(y, x)


def _receive(group: MPI.Intracomm, ids: FloatArray, y: FloatArray) -> None:
    group.Recv(y, 0)


def _parts(group: MPI.Intracomm, x: FloatArray) -> FloatArray:
    """Gathers the arrays of all ranks as [ranks, rows, width]."""
    parts = np.empty((group.size, *x.shape), np.float32)
    group.Allgather(x, parts)
    return parts


def _floats(address: int, shape: Any) -> FloatArray:
    """Returns the float32 array [rows, width] at an address."""
    rows, width = shape[0], shape[1]
    numbers = (ctypes.c_float * (rows * width)).from_address(address)
    return np.frombuffer(numbers, np.float32).reshape(rows, width)


def _exit_on_signal(finalize: Callable[[], None], number: int, _: Any) -> None:
    """Leaves MPI and ends the process by this signal: else mpirun takes the end of the job for a failure.

    A process that leaves waits for the others, which may not know that they should end: SIGALRM bounds that.
    """
    signal.signal(number, signal.SIG_DFL)
    signal.alarm(_EXIT_SECONDS)
    finalize()  # keeps Python's lock
    os.kill(os.getpid(), number)
