"""Collectives of ranks on several hosts: functions that replace the library's."""

from types import SimpleNamespace

import numpy as np
import pytest

from mindbatch.kernels.native import NativeKernels
from mindbatch.kernels.native_library import find_library
from mindbatch.kernels.operations.dense import all_gather, all_reduce
from mindbatch.kernels.process_groups import MpiProcessGroups
from mindbatch.kernels.recording import Recording
from mindbatch.parallel.topology import TensorSlice

SHARD = TensorSlice(1, 3)


def gather_three(x: np.ndarray, parts: np.ndarray) -> None:
    """Fills in the parts of ranks whose numbers are 10 apart."""
    parts[:] = [x, x + 10, x + 20]


@pytest.mark.skipif(find_library() is None, reason="the C++ kernels were not built")
def test_a_program_calls_the_group_that_its_settings_name() -> None:
    through_mpi = object.__new__(MpiProcessGroups)  # no world of MPI
    through_mpi._groups = [SimpleNamespace(), SimpleNamespace(size=3, Allgather=gather_three)]
    library = find_library()
    assert library is not None
    kernels = NativeKernels(library)
    kernels.process_groups.slices[SHARD] = 1
    kernels.process_groups.functions = through_mpi.functions
    recording = Recording()
    x = recording.input((2,), np.float32)
    recording.outputs += [all_reduce(x, shard=SHARD), all_gather(x, shard=SHARD, total=5)]
    total, gathered = kernels.program(kernels.lowered(recording)).run([np.array([[1, 2]], np.float32)])
    np.testing.assert_array_equal(total, [[33, 36]])
    np.testing.assert_array_equal(gathered, [[1, 2, 11, 12, 21]])
