"""The C++ CPU kernels in MindSpore's graphs: of MindFormers' networks, and of ranks on several hosts."""

from __future__ import annotations

from mindspore import nn

from mindbatch.kernels.mindspore_kernels import MindSporeKernels
from mindbatch.kernels.native import NativeKernels
from mindbatch.kernels.native_cells import graph_cells
from mindbatch.kernels.native_library import NativeLibrary
from mindbatch.parallel.topology import Stage, TensorSlice


class NativeGraphKernels(NativeKernels, MindSporeKernels):
    """Cells call the library's functions from within a graph, as far as there are any."""

    def __init__(self, kernels: NativeKernels) -> None:
        """kernels: those in whose place they are."""
        super().__init__(
            kernels.library, kernels.weight_type, kernels.cache_type, graph_cells(kernels.library.path)
        )
        self.meetings = kernels.meetings

    def program_library(self, shard: TensorSlice, stage: Stage) -> NativeLibrary | None:
        return None

    def all_reduce(self, shard: TensorSlice) -> nn.Cell:
        kind = MindSporeKernels if self.meetings.of_slices(shard) is None else NativeKernels
        return kind.all_reduce(self, shard)

    def all_gather(self, shard: TensorSlice, total: int) -> nn.Cell:
        kind = MindSporeKernels if self.meetings.of_slices(shard) is None else NativeKernels
        return kind.all_gather(self, shard, total)

    def send_hidden(self, stage: int, tensor_rank: int) -> nn.Cell:
        kind = NativeKernels if stage in self.meetings.hand_overs else MindSporeKernels
        return kind.send_hidden(self, stage, tensor_rank)

    def receive_hidden(self, stage: int, tensor_rank: int, width: int) -> nn.Cell:
        kind = NativeKernels if stage - 1 in self.meetings.hand_overs else MindSporeKernels
        return kind.receive_hidden(self, stage, tensor_rank, width)
