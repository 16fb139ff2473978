"""Makes the C++ CPU kernels callable from MindSpore's graphs, for MindFormers' networks on a CPU."""

from collections.abc import Callable, Sequence
from typing import Any

import mindspore
from mindspore import Tensor, nn, ops

from mindbatch.io.errors import ConfigError
from mindbatch.kernels.interface import Kernels
from mindbatch.kernels.mindspore_kernels import MindSporeKernels, constant, outermost_cell
from mindbatch.kernels.native import NativeKernels, NativeStorage
from mindbatch.kernels.recording import OPERATIONS
from mindbatch.kernels.shapes import AttentionShape, CacheGeometry
from mindbatch.kernels.step import ANY_STEP, Batch, Span, StepShape
from mindbatch.parallel.context import all_gather, all_reduce
from mindbatch.parallel.topology import TensorSlice


class GraphKernels(NativeStorage, MindSporeKernels):
    """Kernels whose cells call the C++ library's functions from within a graph."""

    def __init__(self, native: NativeKernels) -> None:
        """Shares the state of `native`: the library, its groups of ranks, the types of weights and cache."""
        vars(self).update(vars(native))

    def cell(self, operation: str, **settings: Any) -> nn.Cell:
        """Makes the cell of an operation. Ranks without shared memory use MindSpore's collectives."""
        shard = settings.get("shard")
        if isinstance(shard, TensorSlice) and shard not in self.process_groups.slices:
            return all_reduce(**settings) if operation == "all_reduce" else all_gather(**settings)
        function = self.functions.function(operation, **settings)
        declared, numbers = OPERATIONS[operation], function.settings
        extra_inputs = [] if numbers is None else [constant(numbers, numbers.dtype)]

        def shape(*shapes: Any) -> Any:
            widths = declared.widths(shapes[: len(shapes) - len(extra_inputs)], settings)
            outputs = tuple([shapes[0][0], width] for width in widths)
            return outputs if len(outputs) > 1 else outputs[0]

        def dtype(*types: Any) -> Any:
            return mindspore.float32 if declared.outputs == 1 else (mindspore.float32,) * declared.outputs

        operator = ops.Custom(f"{self.library.path}:{function.name}", shape, dtype, "aot")
        return GraphCell(operator, extra_inputs)

    def step_graph(self, cell: nn.Cell, geometry: CacheGeometry, *, adapted: bool = False) -> nn.Cell:
        """Makes the graph of a step; its inputs are the fields of `kernels.step.Batch`."""
        step = "(slots, rows, block_tables, lengths)"
        result = f"return self.cell(ids, positions, {step}, adapters)"
        return outermost_cell(Batch._fields[:6], result, adapted=adapted, cell=cell)

    def head_graph(self, head: nn.Cell, *, adapted: bool = False) -> nn.Cell:
        if not adapted:
            return head
        return outermost_cell(["hidden"], "return self.cell(hidden, adapters)", adapted=True, cell=head)

    def step_shape(
        self, spans: Sequence[Span], pad: Callable[[int], int], capacity: int, attention: AttentionShape
    ) -> StepShape:
        tokens = pad(sum(stop - start for start, stop in spans))
        return StepShape(ANY_STEP, tokens, tokens)


class GraphCell(nn.Cell):
    """A cell of a library function, whose settings, if any, are its last input."""

    def __init__(self, operator: ops.Custom, settings: Sequence[Tensor]) -> None:
        super().__init__()
        self.operator, self.settings = operator, tuple(settings)

    def construct(self, *inputs: Tensor) -> Any:
        return self.operator(*inputs, *self.settings)


def compiled(kernels: Kernels) -> MindSporeKernels:
    """Returns kernels whose cells MindSpore compiles.

    Raises:
        ConfigError: the kernels are neither those of C++ nor of an NPU.
    """
    if isinstance(kernels, MindSporeKernels):
        return kernels
    if not isinstance(kernels, NativeKernels):
        raise ConfigError(f"runtime.kernels={kernels.name}: not with MindFormers' models; allowed: native")
    graphs = GraphKernels(kernels)
    graphs.set_up()
    return graphs
