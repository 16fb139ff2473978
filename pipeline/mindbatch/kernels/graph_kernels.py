"""The C++ CPU kernels in MindSpore's graphs: what MindFormers' networks compute with on a CPU."""

from collections.abc import Mapping, Sequence
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor, nn, ops

from mindbatch.kernels.adapters import AdaptedShape, AdapterStore, Ranks
from mindbatch.kernels.arrays import Array
from mindbatch.kernels.memory import FloatType, NumberType
from mindbatch.kernels.mindspore_kernels import MindSporeKernels, constant
from mindbatch.kernels.native import NativeKernels
from mindbatch.kernels.native_adapters import NativeAdapters
from mindbatch.kernels.recording import OPERATIONS
from mindbatch.kernels.shapes import AttentionShape, CacheGeometry
from mindbatch.parallel.collectives import all_gather, all_reduce
from mindbatch.parallel.topology import TensorSlice, Topology


class GraphKernels(MindSporeKernels):
    """Cells call the library's functions from within a graph."""

    name = "native"

    def __init__(self, native: NativeKernels) -> None:
        self.native = native

    @property
    def cache_type(self) -> FloatType:
        return self.native.cache_type

    @property
    def cache_dtype(self) -> np.dtype[Any]:
        return self.native.cache_dtype

    @property
    def weight_type(self) -> NumberType:
        return self.native.weight_type

    def packed_zeros(self, outputs: int, inputs: int) -> Array:
        return self.native.packed_zeros(outputs, inputs)

    def pack(self, packed: Array, first_output: int, rows: Array) -> int:
        return self.native.pack(packed, first_output, rows)

    def cache_shapes(
        self, shape: AttentionShape, geometry: CacheGeometry
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self.native.cache_shapes(shape, geometry)

    def adapter_store(
        self, shapes: Mapping[str, AdaptedShape], adapters: Sequence[Ranks], slots: int
    ) -> AdapterStore:
        return NativeAdapters(shapes, adapters, slots, self.as_parameter)

    def meet(self, topology: Topology, rank: int, secret: bytes | None) -> None:
        self.native.meet(topology, rank, secret)

    def cell(self, operation: str, **settings: Any) -> nn.Cell:
        """Makes the cell of an operation. Ranks that share no memory of a host meet through MindSpore."""
        shard = settings.get("shard")
        if isinstance(shard, TensorSlice) and not self.native.meetings.has_slices(shard):
            return all_reduce(**settings) if operation == "all_reduce" else all_gather(**settings)
        function = getattr(self.native.functions, operation)(**settings)
        declared, has_settings = OPERATIONS[operation], function.settings is not None

        def shape(*shapes: Any) -> Any:
            widths = declared.widths(shapes[:-1] if has_settings else shapes, settings)
            outputs = tuple([shapes[0][0], width] for width in widths)
            return outputs if len(outputs) > 1 else outputs[0]

        def dtype(*types: Any) -> Any:
            return mindspore.float32

        name = f"{self.native.library.path}:{function.name}"
        if not has_settings:
            return PlainGraphCell(ops.Custom(name, shape, dtype, "aot"))
        of_graph = constant(function.settings, function.settings.dtype)
        return GraphCell(ops.Custom(name, shape, dtype, "aot"), of_graph)


class PlainGraphCell(nn.Cell):
    def __init__(self, operator: ops.Custom) -> None:
        super().__init__()
        self.operator = operator

    def construct(self, *inputs: Tensor) -> Any:
        return self.operator(*inputs)


class GraphCell(PlainGraphCell):
    """Cell of a library function whose last input is its settings."""

    def __init__(self, operator: ops.Custom, settings: Tensor) -> None:
        super().__init__(operator)
        self.settings = settings

    def construct(self, *inputs: Tensor) -> Any:
        return self.operator(*inputs, self.settings)
