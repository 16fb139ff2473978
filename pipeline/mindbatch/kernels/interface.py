"""Interface of kernels: how they keep weights and the paged cache, and run a recording of a model's steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from mindbatch.kernels.adapters import AdaptedShape, AdapterStore, Ranks
from mindbatch.kernels.arrays import Array, CopyRows, FloatArray, KernelParameter, aligned_zeros, copy_rows
from mindbatch.kernels.codes import Codes, CodeType
from mindbatch.kernels.memory import FLOAT32, FloatType, NumberType
from mindbatch.kernels.recording import Recording
from mindbatch.kernels.shapes import (
    AttentionShape,
    CacheGeometry,
    CacheShapes,
    ConvolutionShape,
    DeltaShape,
)
from mindbatch.kernels.step import ANY_STEP, Batch, IntArray, StepShape
from mindbatch.parallel.topology import Stage, TensorSlice, Topology

if TYPE_CHECKING:
    from mindbatch.kernels.native_program import OutputMemory


class Kernels(ABC):
    """Computes the operations of models (`mindbatch.kernels.operations`) on a device.

    A "packed" weight is a linear layer's [outputs, inputs] matrix in the layout that suits these kernels.

    float_type: the type of vectors and hidden states. Numbers from a checkpoint and results of a model are
        float32, which holds the values of every stored type.
    graph: the kind of step (`StepShape.graph`) that these kernels compute.
    sums_segments: products are summed by the segments of `packed_zeros`, so that what follows a sum over
        ranks can be the same on any number of them.
    packs_any_float: `pack` takes float32, float16 and bfloat16's bits (uint16), not its own dtype only.
    """

    name: str
    device_target: str = "CPU"
    float_type: FloatType = FLOAT32
    graph: str = ANY_STEP
    packs_any_float: bool = False
    sums_segments: bool = False

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy's form of `float_type`."""
        return np.dtype(self.float_type.name)

    @property
    def cache_type(self) -> FloatType:
        return self.float_type

    @property
    def cache_dtype(self) -> np.dtype[Any]:
        """NumPy's form of `cache_type`, or of the bits of its numbers."""
        return self.dtype

    @property
    def weight_type(self) -> NumberType:
        return self.float_type

    def as_parameter(self, name: str, array: Array) -> KernelParameter:
        """Makes a kernel parameter of a weight or a cache, over the array's own memory.

        name: the parameter's name in a model's description.
        """
        return array

    def add_offset(self, vector: KernelParameter, offset: float) -> KernelParameter:
        """Computes vector + offset in float32 for a vector that is a kernel parameter."""
        return self.fixed(self.floats(vector) + np.float32(offset))

    def floats(self, weight: KernelParameter) -> FloatArray:
        """Returns the numbers of a weight that is not packed."""
        return np.asarray(weight, np.float32)

    def fixed(self, numbers: FloatArray) -> KernelParameter:
        """Makes a kernel parameter of numbers that were computed from weights."""
        return numbers

    def zeros(self, width: int) -> KernelParameter:
        """Makes a vector [width] of zeros of `float_type`."""
        return np.zeros(width, self.dtype)

    @abstractmethod
    def packed_zeros(self, outputs: int, inputs: int, segments: int = 1) -> Array:
        """Allocates a packed weight, which `pack` fills.

        segments: equal stretches of inputs whose products are summed apart, and then in a balanced tree; see
            `TensorSpec.segments`. Only kernels whose sums are ordered so look at them.
        """

    def packed_stack(self, matrices: int, outputs: int, inputs: int, segments: int = 1) -> Array:
        """Allocates packed matrices of one size, which `pack` fills one after another.

        Each begins `stacked_outputs(outputs)` outputs behind the one before.
        """
        return self.packed_zeros(matrices * self.stacked_outputs(outputs), inputs, segments)

    def stacked_outputs(self, outputs: int) -> int:
        """Counts outputs from one matrix of a packed stack to the next, for matrices of so many outputs."""
        return outputs

    @abstractmethod
    def pack(self, packed: Array, first_output: int, rows: Array) -> int:
        """Writes rows [n, inputs] of the weight to its outputs first_output .. first_output + n - 1.

        Returns how many finite numbers the kernels' type of weights does not reach.
        """

    def code_type(self, stored: Collection[CodeType], inputs: int) -> CodeType | None:
        """The type in which a matrix of numbers that are stored so is kept unchanged; None if as floats.

        inputs: number of inputs that are summed by themselves.
        """
        return None

    def coded_zeros(self, kind: CodeType, outputs: int, inputs: int, segments: int = 1) -> Array:
        """Allocates a packed weight of codes, which `pack_codes` fills; only of a `code_type`."""
        raise NotImplementedError

    def pack_codes(self, packed: Array, first_output: int, kind: CodeType, codes: Codes) -> None:
        """Writes codes of [n, inputs] to the outputs from first_output on."""
        raise NotImplementedError

    @abstractmethod
    def adapter_store(
        self, shapes: Mapping[str, AdaptedShape], adapters: Sequence[Ranks], slots: int
    ) -> AdapterStore:
        """Allocates memory for so many of the adapters at a time.

        shapes: the shapes of the adapted parameters, by name.
        """

    @abstractmethod
    def cache_shapes(self, shape: AttentionShape, geometry: CacheGeometry) -> CacheShapes:
        """Returns the shapes of one layer's key and value cache."""

    def block_copies(
        self, arrays: Sequence[Array], parameters: Sequence[KernelParameter], padding: int
    ) -> CopyRows:
        """Returns a function that copies blocks of caches on the device; see `PagedCache.copy_blocks`.

        arrays: the caches. parameters: the kernel parameters over them.
        padding: the block that is never read.
        """
        return partial(copy_rows, arrays)

    def table_width(self, needed: int, maximum: int) -> int:
        """Returns the columns of block_tables for a step whose longest sequence has `needed` blocks.

        A program takes tables of any width, a graph is compiled for one.
        """
        return needed

    def graph_inputs(self, batch: Batch, shape: StepShape, geometry: CacheGeometry) -> Sequence[IntArray]:
        """Returns the inputs of a step for a batch that is laid out in `shape.tokens` tokens."""
        return [array for array in batch if array is not None]

    def set_up(self) -> None:  # noqa: B027 - by default there is nothing to do
        """Prepares the device; before any model is made.

        Raises:
            ConfigError: this machine does not have the device.
        """

    def join_process_groups(self, topology: Topology, rank: int, secret: bytes | None) -> None:  # noqa: B027
        """Connects a local rank with the others without MindSpore, if these kernels can; before any model.

        secret: a secret that only these ranks know, all on this host; None for ranks on several hosts, which
            are a part of the world of MPI that mpirun has made.

        Raises:
            MindBatchError: other ranks did not join in time, or MPI cannot be used here.
        """

    def for_single_tokens(self) -> Kernels:
        """Returns kernels for a model whose one graph takes every token as a sequence of its own."""
        return self


class Runnable(Protocol):
    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Computes new arrays [rows, ...] of the outputs; the first input has as many rows."""
        ...


class ProgramKernels(Kernels):
    """Runs recordings for any number of tokens, without compiling anything."""

    @abstractmethod
    def can_run(self, shard: TensorSlice, stage: Stage) -> bool:
        """True if a rank has joined the process groups that its part of a model needs."""

    @abstractmethod
    def lowered(self, recording: Recording) -> Recording:
        """Turns a recording into calls of these kernels' functions."""

    @abstractmethod
    def program(self, recording: Recording, outputs: Sequence[OutputMemory] | None = None) -> Runnable:
        """Makes a program of a lowered recording. outputs: memory that other programs share with it."""


LayerCache = AttentionShape | Sequence[ConvolutionShape | DeltaShape]
"""The cache of a layer: keys and values of its heads, or states."""


class PagedCache:
    """One key and one value tensor per layer, cut in blocks; the last block takes what padding writes.

    A recurrent layer has tensors of states instead, float32 [num_states, ...].

    layers: the tensors of each layer. nbytes: the bytes of all tensors, the padding block included.
    """

    def __init__(
        self,
        geometry: CacheGeometry,
        layers: Sequence[tuple[KernelParameter, ...]],
        nbytes: int,
        copy: CopyRows,
        states: Sequence[Array] = (),
    ) -> None:
        """copy: copies blocks. states: the tensors of recurrent layers."""
        self.geometry, self.layers, self.nbytes = geometry, list(layers), nbytes
        self._copy, self._states = copy, states

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies each (source, destination) block in every layer, in the order of the pairs.

        A block may be a source and after that a destination, never the other way round.
        """
        self._copy(pairs)

    def copy_states(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies each (source, destination) slot in every recurrent layer, as `copy_blocks` does blocks."""
        copy_rows(self._states, pairs)


def allocate(caches: Sequence[LayerCache], geometry: CacheGeometry, kernels: Kernels) -> PagedCache:
    """Allocates a cache of zeros in the layout of the kernels. caches: the cache of each layer."""
    blocks, states = list[Array](), list[Array]()
    parameters, layers = list[KernelParameter](), list[tuple[KernelParameter, ...]]()
    for layer, cache in enumerate(caches):
        if isinstance(cache, AttentionShape):
            pair = [
                aligned_zeros(size, kernels.cache_dtype) for size in kernels.cache_shapes(cache, geometry)
            ]
            names = ("keys", "values")
            layers.append(
                tuple(
                    kernels.as_parameter(f"cache.{layer}.{name}", array)
                    for name, array in zip(names, pair, strict=True)
                )
            )
            blocks += pair
            parameters += layers[-1]
        else:
            sizes = ((geometry.num_states, *shape.state) for shape in cache)
            layers.append(tuple(aligned_zeros(size, np.dtype(np.float32)) for size in sizes))
            states += layers[-1]
    copy = kernels.block_copies(blocks, parameters, padding=geometry.num_blocks)
    nbytes = sum(array.nbytes for array in (*blocks, *states))
    return PagedCache(geometry, layers, nbytes, copy, states)
